"""What may go wrong, each as often as the scope allows; and how the protocol comes out of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from vmmref_models.small_pool.deaths import deaths
from vmmref_models.small_pool.fields import Action, Field, Fields, Step
from vmmref_models.small_pool.pool import Closing, Phase, Reader, SmallPool
from vmmref_models.small_pool.producer import sent
from vmmref_models.small_pool.protocol import Late
from vmmref_models.small_pool.reader import item, meant, name, own_fields, without_head


def actions(pool: SmallPool) -> Iterator[Action]:
    """Every fault that the scope allows, and what follows from it."""
    allowed = pool.scope.allowed
    for lease in pool.leases:
        for fault in ("cancel", "revoke", "copy-fail", "deadline"):
            if allowed(fault):
                yield taking(pool, lease, fault)
        if allowed("late-delivery"):
            yield late_delivery(pool, lease)
        if allowed("foreign"):
            yield forging(pool, lease)
        if allowed("shutdown"):
            yield ending(pool, lease)
    for rank in pool.ranks:
        if allowed("reader-fail"):
            yield failing(pool, rank)
        if allowed("crash"):
            yield from deaths(pool, rank)
        if allowed("shutdown"):
            yield dropping(pool, rank)
    if allowed("shutdown"):
        yield from (closing(pool), unmapping(pool))
    if allowed("producer-crash"):
        yield dying_producer(pool)


def spent(now: Fields, fault: str) -> dict[Field, int]:
    """The change that uses a fault up once."""
    return {("left", fault): now["left", fault] - 1}


def taking(pool: SmallPool, lease: int, fault: str) -> Action:
    """Somebody other than the recycler claims the lease."""
    sees = (("left", fault), ("phase", lease), ("other", lease), ("sent", lease), ("excused", lease))
    more = (("held", lease), ("dead producer",), ("written", lease))
    return Action(fault, (*sees, *more), partial(_take, pool, lease, fault), trouble=True)


def _take(pool: SmallPool, lease: int, fault: str, now: Fields) -> Iterator[Step]:
    if not now["left", fault] or now["dead producer",] or not _can_take(pool, lease, now):
        return
    is_sent = now["sent", lease] == 1
    claimed = now.changed({**spent(now, fault), **taken(pool, lease, now)})
    if fault == "deadline":
        if is_sent and pool.protocol.late is Late.KEPT:
            yield Step(now.changed(spent(now, fault)), f"lease {lease} is late: reported, and kept")
        elif is_sent:
            yield Step(claimed.changed({("held", lease): 1}), f"lease {lease} is late: claimed, and held for its ranks")
    elif fault == "copy-fail":
        if not is_sent or pool.waits_on_device:
            yield Step(claimed, f"publishing lease {lease} fails: claimed")
    elif is_sent == (fault == "revoke"):
        yield Step(claimed, f"{fault} lease {lease}: claimed")


def _can_take(pool: SmallPool, lease: int, now: Fields) -> bool:
    """Whether the lease is active; who does not claim only sees that it has not been freed."""
    if pool.protocol.claims:
        return now["phase", lease] in (Phase.ACTIVE, Phase.LOOKED)
    return Phase.NONE < now["phase", lease] < Phase.FREED and now["other", lease] == Phase.NONE


def taken(pool: SmallPool, lease: int, now: Fields) -> dict[Field, int]:
    """The change that claims a lease for somebody other than the recycler; late readers may find it stale."""
    way = "phase" if pool.protocol.claims else "other"
    borrowed = pool.may_borrow and pool.protocol.borrow_holds and now["sent", lease] == 1
    unsent = pool.protocol.holds_unsent and not now["sent", lease]
    return {(way, lease): Phase.CLAIMED, ("excused", lease): 1, ("held", lease): int(borrowed or unsent)}


def late_delivery(pool: SmallPool, lease: int) -> Action:
    """The proxies of a lease that was cancelled are handed on nevertheless."""
    fault = "late-delivery"
    vacant: tuple[Field, ...] = tuple(("vacant", rank) for rank in pool.ranks)
    own: tuple[Field, ...] = (("left", fault), ("phase", lease), ("sent", lease), ("written", lease))
    return Action(fault, (*own, *vacant, *pool.awaited(lease)), partial(_deliver_late, pool, lease), trouble=True)


def _deliver_late(pool: SmallPool, lease: int, now: Fields) -> Iterator[Step]:
    if not now["left", "late-delivery"] or now["phase", lease] < Phase.CLAIMED or now["sent", lease]:
        return
    # Where readiness is host-published, there is no proxy before the host has seen R.
    if now["written", lease] == pool.pieces_of_lease or pool.waits_on_device:
        after = sent(pool, lease, now).changed(spent(now, "late-delivery"))
        yield Step(after, f"the proxies of lease {lease} are handed on although it was cancelled")


def forging(pool: SmallPool, lease: int) -> Action:
    """Somebody acknowledges for every rank: a canceller, a group, a reaper."""
    own: tuple[Field, ...] = (("left", "foreign"), ("phase", lease), ("sent", lease), ("excused", lease))
    return Action("foreign", (*own, *pool.names(lease), *pool.words()), partial(_forge, pool, lease), trouble=True)


def _forge(pool: SmallPool, lease: int, now: Fields) -> Iterator[Step]:
    if not now["left", "foreign"] or not now["sent", lease] or now["phase", lease] != Phase.ACTIVE:
        return
    slot, word = now["slot", lease], pool.word(now["generation", lease])
    words: dict[Field, int] = {("A", slot, rank): max(word, now["A", slot, rank]) for rank in pool.ranks}
    after = now.changed({**spent(now, "foreign"), **words, ("excused", lease): 1})
    yield Step(after, f"somebody acknowledges lease {lease} for every rank")


def failing(pool: SmallPool, rank: int) -> Action:
    """The work of the reader at the head of a stream fails before its acknowledgement."""
    sees: list[Field] = [("left", "reader-fail"), *own_fields(pool, rank)]
    for place in pool.places[: pool.protocol.streams]:
        sees += [("done", place, rank), ("foreign", place, rank)]
    return Action("reader-fail", tuple(sees), partial(_fail, pool, rank), trouble=True)


def _fail(pool: SmallPool, rank: int, now: Fields) -> Iterator[Step]:
    if not now["left", "reader-fail"] or now["dead", rank]:
        return
    for place in range(pool.protocol.streams):
        number, done = now["queue", place, 0, rank], now["done", place, rank]
        if number == 0 or done >= len(pool.program) - len(pool.acknowledging):
            continue
        lease, copy, only_acknowledges = meant(pool, rank, number)
        if only_acknowledges:
            continue
        changes = {**spent(now, "reader-fail"), ("done", place, rank): 0, ("foreign", place, rank): 0}
        if pool.protocol.failed_acknowledges and not pool.protocol.host_judges:
            # The acknowledgement stands where the failed work stood: it runs when that has ended.
            changes["queue", place, 0, rank] = item(pool, rank, lease, copy, True)
        else:
            # Without an acknowledgement it is over: a retry is refused by the table.
            changes |= without_head(pool, rank, place, now)
            fate = Reader.ARRIVED if pool.protocol.failed_acknowledges else Reader.OVER
            changes["reader", lease, copy, rank] = fate
        yield Step(now.changed(changes), f"{name(pool, rank, lease, copy)}: its work fails")


def closing(pool: SmallPool) -> Action:
    """The pool is shut down."""
    return Action(
        "shutdown", (("left", "shutdown"), ("closing",), ("dead producer",)), partial(_close, pool), trouble=True
    )


def _close(pool: SmallPool, now: Fields) -> Iterator[Step]:
    if not now["dead producer",] and now["closing",] == Closing.OPEN and now["left", "shutdown"]:
        yield Step(now.changed({**spent(now, "shutdown"), ("closing",): Closing.CLOSING}), "the pool is shut down")


def unmapping(pool: SmallPool) -> Action:
    """A pool that is shut down unmaps its memory when no lease is left."""
    phases: tuple[Field, ...] = tuple(("phase", lease) for lease in pool.leases)
    return Action("unmap", (("closing",), ("dead producer",), *phases), partial(_unmap, pool))


def _unmap(pool: SmallPool, now: Fields) -> Iterator[Step]:
    if now["closing",] != Closing.CLOSING or now["dead producer",]:
        return
    over = all(now["phase", lease] in (Phase.NONE, Phase.FREED) for lease in pool.leases)
    if over or not pool.protocol.unmap_waits:
        yield Step(now.changed({("closing",): Closing.UNMAPPED}), "the producer unmaps the pool")


def ending(pool: SmallPool, lease: int) -> Action:
    """A pool that is shut down claims every lease."""
    sees = (("closing",), ("phase", lease), ("other", lease), ("sent", lease), ("excused", lease), ("held", lease))
    return Action("claim at shutdown", (*sees, ("dead producer",)), partial(_end, pool, lease))


def _end(pool: SmallPool, lease: int, now: Fields) -> Iterator[Step]:
    if now["closing",] == Closing.OPEN or now["dead producer",] or not _can_take(pool, lease, now):
        return
    yield Step(now.changed(taken(pool, lease, now)), f"shutdown claims lease {lease}")


def dropping(pool: SmallPool, rank: int) -> Action:
    """A consumer drops its import of a pool that has ended."""
    sees = (("closing",), *own_fields(pool, rank))
    return Action("drop the import", sees, partial(_drop, pool, rank))


def _drop(pool: SmallPool, rank: int, now: Fields) -> Iterator[Step]:
    if now["closing",] != Closing.UNMAPPED or now["dropped", rank] or now["dead", rank]:
        return
    using = (Reader.QUEUED, Reader.ARRIVED, Reader.BORROWED, Reader.VIEWED)
    busy = any(now["reader", lease, copy, rank] in using for lease, copy in pool.readers(rank))
    if not busy or not pool.protocol.drop_waits:
        yield Step(now.changed({("dropped", rank): 1}), f"rank {rank} drops its import")


def dying_producer(pool: SmallPool) -> Action:
    """The producer's process dies, and its queued work with it; what the device did before is done."""
    return Action("producer-crash", (("left", "producer-crash"), ("dead producer",)), partial(_die, pool), trouble=True)


def _die(pool: SmallPool, now: Fields) -> Iterator[Step]:
    if now["left", "producer-crash"] and not now["dead producer",]:
        after = now.changed({**spent(now, "producer-crash"), ("dead producer",): 1})
        yield Step(after, "the producer's process dies, and its queued work with it")
