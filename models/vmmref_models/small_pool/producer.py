"""What the producer does: publish, hand out, look, claim, retire, free; and its streams."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from vmmref_models.small_pool.fields import Action, Field, Fields, Step
from vmmref_models.small_pool.pool import Closing, Phase, Reader, SmallPool
from vmmref_models.small_pool.protocol import Acknowledge, Ended


def actions(pool: SmallPool) -> Iterator[Action]:
    """Everything that the producer's host and streams do in an untroubled run."""
    yield publishing(pool)
    for lease in pool.leases:
        yield from (dispatching(pool, lease), copying(pool, lease), looking(pool, lease))
        # Without claims two parties may be taking the same lease back, each on its own way.
        for way in ("phase",) if pool.protocol.claims else ("phase", "other"):
            yield from (queueing(pool, lease, way), retiring(pool, lease, way), freeing(pool, lease, way))


def publishing(pool: SmallPool) -> Action:
    """Take a free slot, its next generation and a free unit, and queue copy and ready store."""
    sees: list[Field] = [("closing",), ("dead producer",)]
    for lease in pool.leases:
        sees += [("phase", lease), ("other", lease), *pool.names(lease)]
        sees += [("range back", lease), ("slot back", lease)]
    return Action("publish", (*sees, *_zeroed_words(pool)), partial(_publish, pool))


def _zeroed_words(pool: SmallPool) -> tuple[Field, ...]:
    """The acknowledgement words that are zeroed at publishing: none, where they say which lease is meant."""
    return pool.words() if pool.protocol.acknowledge is Acknowledge.FLAG else ()


def _publish(pool: SmallPool, now: Fields) -> Iterator[Step]:
    issued = [lease for lease in pool.leases if now["phase", lease] != Phase.NONE]
    lease = len(issued) + 1
    if lease not in pool.leases or now["closing",] != Closing.OPEN or now["dead producer",]:
        return
    for slot in _free(now, issued, "slot", pool.scope.slots):
        generation = 1 + sum(now["slot", other] == slot for other in issued)
        if generation > pool.last_generation:
            continue
        zeroed: dict[Field, int] = {field: 0 for field in _zeroed_words(pool) if field[1] == slot}
        for unit in _free(now, issued, "unit", pool.scope.units):
            lease_fields: dict[Field, int] = {
                ("phase", lease): Phase.ACTIVE,
                ("slot", lease): slot,
                ("unit", lease): unit,
                ("generation", lease): generation,
            }
            text = f"publish lease {lease}: slot {slot}, generation {generation}, range {unit}"
            yield Step(now.changed({**lease_fields, **zeroed}), text)


def _free(now: Fields, issued: list[int], kind: str, count: int) -> Iterator[int]:
    """The free slots or units; of those that were never used only the lowest, because the others are its mirror images.

    Before its first use nothing tells a slot or unit from another one, so renaming them in the order of first use maps
    every run to one of these.
    """
    back = "slot back" if kind == "slot" else "range back"
    taken = {now[kind, lease] for lease in issued if _holds(now, lease) and not now[back, lease]}
    used = {now[kind, lease] for lease in issued}
    for index in range(min(count, len(used) + 1)):
        if index not in taken:
            yield index


def _holds(now: Fields, lease: int) -> bool:
    return now["phase", lease] != Phase.FREED and now["other", lease] != Phase.FREED


def dispatching(pool: SmallPool, lease: int) -> Action:
    """Hand the lease's proxies out: when the host has seen R, or at once where readers wait on the device."""
    sees = (("phase", lease), ("sent", lease), ("written", lease), ("dead producer",))
    vacant: tuple[Field, ...] = tuple(("vacant", rank) for rank in pool.ranks)
    return Action("dispatch", (*sees, *vacant, *pool.awaited(lease)), partial(_dispatch, pool, lease))


def _dispatch(pool: SmallPool, lease: int, now: Fields) -> Iterator[Step]:
    ready = now["written", lease] == pool.pieces_of_lease
    if now["phase", lease] != Phase.ACTIVE or now["sent", lease] or now["dead producer",]:
        return
    if ready or pool.waits_on_device:
        yield Step(sent(pool, lease, now), f"dispatch lease {lease}")


def sent(pool: SmallPool, lease: int, now: Fields) -> Fields:
    """The fields after the proxies left; the ranks that are waited for are fixed then."""
    changes: dict[Field, int] = {("sent", lease): 1}
    if pool.scope.allowed("crash"):
        # A vacant place is not waited for.
        changes |= {("awaited", lease, rank): 1 - now["vacant", rank] for rank in pool.ranks}
    return now.changed(changes)


def copying(pool: SmallPool, lease: int) -> Action:
    """The lease's stream: the copy in parts, then the ready store."""
    sees = (("phase", lease), ("written", lease), ("dead producer",), ("closing",), *pool.names(lease))
    return Action("publish stream", (*sees, *pool.bytes(), *pool.ready_words()), partial(_copy, pool, lease))


def _copy(pool: SmallPool, lease: int, now: Fields) -> Iterator[Step]:
    done = now["written", lease]
    if now["phase", lease] == Phase.NONE or done == pool.pieces_of_lease or now["dead producer",]:
        return
    broken = ("LIFE-2",) if now["closing",] == Closing.UNMAPPED else ()
    changes: dict[Field, int] = {("written", lease): done + 1}
    if done < pool.scope.halves:
        unit = now["unit", lease]
        changes["holds", unit, done] = lease
        yield Step(now.changed(changes), f"copy of lease {lease}, {_part(pool, done)} into range {unit}", broken)
        return
    slot, value = now["slot", lease], pool.protocol.live(now["generation", lease])
    if value < now["R", slot]:
        broken = (*broken, "CTL-6")
    changes["R", slot] = value
    yield Step(now.changed(changes), f"ready store of lease {lease}: R[{slot}] = {value}", broken)


def _part(pool: SmallPool, half: int) -> str:
    return "whole" if pool.scope.halves == 1 else f"part {half + 1} of {pool.scope.halves}"


def looking(pool: SmallPool, lease: int) -> Action:
    """The recycler sees that every awaited rank has acknowledged."""
    own = (("phase", lease), ("sent", lease), ("dead producer",), *pool.names(lease))
    return Action("look", (*own, *pool.words(), *pool.awaited(lease)), partial(_look, pool, lease))


def _look(pool: SmallPool, lease: int, now: Fields) -> Iterator[Step]:
    if now["phase", lease] != Phase.ACTIVE or not now["sent", lease] or now["dead producer",]:
        return
    if pool.complete(now, lease):
        yield Step(now.changed({("phase", lease): Phase.LOOKED}), f"look: lease {lease} is acknowledged by all")


def queueing(pool: SmallPool, lease: int, way: str) -> Action:
    """Claim the lease that was seen complete, and queue its retire store."""
    sees = ((way, lease), ("sent", lease), ("dead producer",), ("range back", lease), ("slot back", lease))
    return Action("claim and queue", sees, partial(_queue, pool, lease, way))


def _queue(pool: SmallPool, lease: int, way: str, now: Fields) -> Iterator[Step]:
    phase = now[way, lease]
    if now["dead producer",]:
        return
    if phase == Phase.LOOKED and pool.protocol.claims:
        yield Step(now.changed({(way, lease): Phase.CLAIMED}), f"claim lease {lease}")
    elif phase in (Phase.LOOKED, Phase.CLAIMED) and _retires(pool, lease, now):
        yield Step(now.changed({(way, lease): Phase.QUEUED}), f"queue the retire store of lease {lease}")
    elif phase == Phase.QUEUED:
        for early, back, what in (
            (pool.protocol.early_range, "range back", "range"),
            (pool.protocol.early_slot, "slot back", "slot"),
        ):
            if early and not now[back, lease]:
                yield Step(now.changed({(back, lease): 1}), f"give back the {what} of lease {lease}")


def _retires(pool: SmallPool, lease: int, now: Fields) -> bool:
    """Whether this lease is retired before it is freed."""
    return pool.protocol.retires and (pool.protocol.retires_unsent or now["sent", lease] == 1)


def retiring(pool: SmallPool, lease: int, way: str) -> Action:
    """The retire store runs."""
    sees = ((way, lease), ("written", lease), ("dead producer",), ("closing",), *pool.names(lease), *pool.ready_words())
    return Action("retire store", sees, partial(_retire, pool, lease, way))


def _retire(pool: SmallPool, lease: int, way: str, now: Fields) -> Iterator[Step]:
    if now[way, lease] != Phase.QUEUED or now["dead producer",]:
        return
    if not _ended(pool, pool.protocol.retire_waits_for, now["written", lease]):
        return
    slot, value = now["slot", lease], 2 * now["generation", lease] + 1
    broken = ("LIFE-2",) if now["closing",] == Closing.UNMAPPED else ()
    if value < now["R", slot]:
        broken = (*broken, "CTL-6")
    after = now.changed({(way, lease): Phase.RETIRED, ("R", slot): value})
    yield Step(after, f"retire store of lease {lease}: R[{slot}] = {value}", broken)


def _ended(pool: SmallPool, what: Ended, written: int) -> bool:
    pieces = {Ended.READY: pool.pieces_of_lease, Ended.COPY: pool.scope.halves, Ended.NOTHING: 0}
    return written >= pieces[what]


def freeing(pool: SmallPool, lease: int, way: str) -> Action:
    """The host has seen the retire store done, and gives slot and range back."""
    sees = (("phase", lease), ("other", lease), ("written", lease), ("sent", lease), ("dead producer",))
    readers: tuple[Field, ...] = tuple(
        ("reader", lease, copy, rank) for rank in pool.ranks for copy in pool.copies(rank)
    )
    deaths: tuple[Field, ...] = tuple(("dead", rank) for rank in pool.ranks)
    fates = (("excused", lease), ("held", lease), *pool.names(lease), *pool.words(), *pool.awaited(lease))
    return Action("free", (*sees, *fates, *readers, *deaths), partial(_free_lease, pool, lease, way))


def _free_lease(pool: SmallPool, lease: int, way: str, now: Fields) -> Iterator[Step]:
    last = Phase.RETIRED if _retires(pool, lease, now) else Phase.CLAIMED
    if now[way, lease] != last or now["dead producer",]:
        return
    if not _ended(pool, pool.protocol.free_waits_for, now["written", lease]):
        return
    if now["held", lease] and not pool.complete(now, lease):
        return
    broken = () if _holds(now, lease) else ("REC-5",)
    if not now["excused", lease] and any(_unread(pool, now, lease, rank) for rank in pool.awaited_ranks):
        broken = (*broken, "REC-1")
    yield Step(now.changed({(way, lease): Phase.FREED}), f"free lease {lease}", broken)


def _unread(pool: SmallPool, now: Fields, lease: int, rank: int) -> bool:
    """Whether a live rank that the lease waits for has not finished with it."""
    if now["dead", rank] or not pool.waits_for(now, lease, rank) or not pool.copies(rank):
        return False
    return all(now["reader", lease, copy, rank] != Reader.FINISHED for copy in pool.copies(rank))
