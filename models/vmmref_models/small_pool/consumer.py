"""What a consumer rank does: enter the table and enqueue, run its streams, judge, borrow and release."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from vmmref_models.small_pool.fields import Action, Field, Fields, Step
from vmmref_models.small_pool.pool import Reader, SmallPool
from vmmref_models.small_pool.protocol import Table, Wait
from vmmref_models.small_pool.reader import (
    Turn,
    enqueued,
    entered,
    item,
    lease_names,
    meant,
    name,
    own_fields,
    queue_fields,
    refused,
)


def actions(pool: SmallPool) -> Iterator[Action]:
    """Everything that the ranks and their streams do in an untroubled run."""
    for rank in pool.ranks:
        if not pool.readers(rank):
            continue
        yield beginning(pool, rank)
        for place in pool.places:
            yield running(pool, rank, place)
        if pool.protocol.host_judges:
            yield judging(pool, rank)
        if pool.may_borrow:
            yield from (borrowing(pool, rank), viewing(pool, rank))


def beginning(pool: SmallPool, rank: int) -> Action:
    """A reader is looked up in the table and enqueued."""
    sent: tuple[Field, ...] = tuple(("sent", lease) for lease in pool.leases)
    return Action("begin", (*own_fields(pool, rank), *lease_names(pool), *sent), partial(_begin, pool, rank))


def _begin(pool: SmallPool, rank: int, now: Fields) -> Iterator[Step]:
    for lease, copy in pool.readers(rank):
        reader: Field = ("reader", lease, copy, rank)
        if now[reader] != Reader.IDLE or not now["sent", lease] or now["dead", rank]:
            continue
        who = name(pool, rank, lease, copy)
        if now["dropped", rank]:
            yield Step(now.changed({reader: Reader.OVER}), f"{who}: refused, the pool has ended")
        elif refused(pool, rank, lease, now):
            yield Step(now.changed({reader: Reader.OVER}), f"{who}: refused by the table")
        else:
            entry = entered(pool, rank, lease, now, Table.ENQUEUE)
            for place in range(pool.protocol.streams):
                number = item(pool, rank, lease, copy, False)
                changes = {reader: Reader.QUEUED, **entry, **enqueued(pool, rank, place, number, now)}
                where = f" on stream {place}" if pool.protocol.streams > 1 else ""
                yield Step(now.changed(changes), f"{who}: enqueue the reader{where}")


def running(pool: SmallPool, rank: int, place: int) -> Action:
    """The oldest reader of one stream runs its next piece."""
    sees: list[Field] = [("dead", rank), ("work", rank), ("dropped", rank)]
    sees += [("reader", lease, copy, rank) for lease, copy in pool.readers(rank)]
    sees += [("table", slot, rank) for slot in pool.slots]
    sees += [("excused", lease) for lease in pool.leases]
    sees += [("done", place, rank), ("loaded", place, rank)]
    sees += [("foreign", place, rank)]
    words = pool.words() if pool.stores_for_others else tuple(("A", slot, rank) for slot in pool.slots)
    shared = (*queue_fields(pool, rank, place), *lease_names(pool), *pool.bytes(), *pool.ready_words())
    return Action("reader's stream", (*sees, *shared, *words), partial(_run, pool, rank, place))


def _run(pool: SmallPool, rank: int, place: int, now: Fields) -> Iterator[Step]:
    number, done = now["queue", place, 0, rank], now["done", place, rank]
    of_dead = now["dead", rank] or place >= pool.protocol.streams
    if number == 0 or (of_dead and not now["work", rank]):
        return
    lease, copy, only_acknowledges = meant(pool, rank, number)
    program = pool.acknowledging if only_acknowledges else pool.program
    if done == 0 and not only_acknowledges and _blocked(pool, lease, now):
        return
    unmapped = ("HND-4",) if now["dropped", rank] else ()
    step = Turn(pool, rank, place, lease, copy, program, done).run(now, bool(of_dead))
    yield step._replace(broken=(*unmapped, *step.broken))


def _blocked(pool: SmallPool, lease: int, now: Fields) -> bool:
    """Whether the stream still waits for R."""
    ready, live = now["R", now["slot", lease]], pool.protocol.live(now["generation", lease])
    if pool.protocol.wait is Wait.AT_LEAST:
        return ready < live
    return pool.protocol.wait is Wait.EQUAL and ready != live


def judging(pool: SmallPool, rank: int) -> Action:
    """The host of a rank has seen that R was right, and enqueues the acknowledgement or leaves it out."""
    return Action("judge", (*own_fields(pool, rank), *lease_names(pool)), partial(_judge, pool, rank))


def _judge(pool: SmallPool, rank: int, now: Fields) -> Iterator[Step]:
    for lease, copy in pool.readers(rank):
        reader: Field = ("reader", lease, copy, rank)
        if now[reader] != Reader.ARRIVED or now["dead", rank]:
            continue
        who, newer = name(pool, rank, lease, copy), now["table", now["slot", lease], rank]
        if pool.protocol.leaves_out_late and newer > now["generation", lease]:
            after = now.changed({reader: Reader.FINISHED})
            yield Step(after, f"{who}: generation {newer} of the slot is in the table, no acknowledgement")
            continue
        for place in range(pool.protocol.streams):
            number = item(pool, rank, lease, copy, True)
            changes = {reader: Reader.QUEUED, **enqueued(pool, rank, place, number, now)}
            yield Step(now.changed(changes), f"{who}: the host enqueues the acknowledgement")


def borrowing(pool: SmallPool, rank: int) -> Action:
    """A copy is borrowed instead of copied out, or its view is released."""
    sent: tuple[Field, ...] = tuple(("sent", lease) for lease in pool.leases)
    sees = (*own_fields(pool, rank), *lease_names(pool), *pool.ready_words(), *sent)
    return Action("borrow", sees, partial(_borrow, pool, rank))


def _borrow(pool: SmallPool, rank: int, now: Fields) -> Iterator[Step]:
    for lease, copy in pool.readers(rank):
        reader: Field = ("reader", lease, copy, rank)
        if now["dead", rank]:
            continue
        who, acknowledgement = name(pool, rank, lease, copy), item(pool, rank, lease, copy, True)
        if now[reader] == Reader.VIEWED:
            changes = {reader: Reader.QUEUED, **enqueued(pool, rank, 0, acknowledgement, now)}
            yield Step(now.changed(changes), f"{who}: the view is released, enqueue the acknowledgement")
        if now[reader] != Reader.IDLE or not now["sent", lease] or refused(pool, rank, lease, now):
            continue
        if now["dropped", rank]:
            continue
        entry, slot = entered(pool, rank, lease, now, Table.ENQUEUE), now["slot", lease]
        ready = now["R", slot]
        if ready == pool.protocol.live(now["generation", lease]):
            yield Step(now.changed({reader: Reader.BORROWED, **entry}), f"{who}: borrowed, R[{slot}] = {ready}")
        elif pool.protocol.borrow_holds:
            changes = {reader: Reader.QUEUED, **entry, **enqueued(pool, rank, 0, acknowledgement, now)}
            yield Step(now.changed(changes), f"{who}: not borrowed, R[{slot}] = {ready}; enqueue the acknowledgement")
        else:
            yield Step(now.changed({reader: Reader.OVER, **entry}), f"{who}: not borrowed, R[{slot}] = {ready}")


def viewing(pool: SmallPool, rank: int) -> Action:
    """A borrowed view is read in place."""
    readers: tuple[Field, ...] = tuple(("reader", lease, copy, rank) for lease, copy in pool.readers(rank))
    sees = (*readers, ("dead", rank), *lease_names(pool), *pool.bytes())
    return Action("read the view", sees, partial(_view, pool, rank))


def _view(pool: SmallPool, rank: int, now: Fields) -> Iterator[Step]:
    for lease, copy in pool.readers(rank):
        reader: Field = ("reader", lease, copy, rank)
        if now[reader] != Reader.BORROWED or now["dead", rank]:
            continue
        got = [now["holds", now["unit", lease], half] for half in pool.halves]
        broken = () if all(content == lease for content in got) else ("CON-6",)
        whose = " and ".join(str(content) for content in dict.fromkeys(got))
        text = f"{name(pool, rank, lease, copy)}: the view reads bytes of {whose}"
        yield Step(now.changed({reader: Reader.VIEWED}), text, broken)
