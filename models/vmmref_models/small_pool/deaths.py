"""A consumer process dies, is dealt with, and gets a successor."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from vmmref_models.small_pool.fields import Action, Field, Fields, Step
from vmmref_models.small_pool.pool import Phase, Reader, SmallPool
from vmmref_models.small_pool.protocol import Reaper
from vmmref_models.small_pool.reader import lease_names, queue_fields


def deaths(pool: SmallPool, rank: int) -> Iterator[Action]:
    """A consumer process dies, is dealt with, and gets a successor."""
    state: list[Field] = [("dead", rank), ("work", rank), ("vacant", rank)]
    readers: list[Field] = [("reader", lease, copy, rank) for lease, copy in pool.readers(rank)]
    streams: list[Field] = [field for place in pool.places for field in stream_fields(pool, rank, place)]
    table: list[Field] = [("table", slot, rank) for slot in pool.slots]
    leases: list[Field] = [(part, lease) for lease in pool.leases for part in ("phase", "sent")]
    awaited: list[Field] = [("awaited", lease, rank) for lease in pool.leases]
    yield Action("crash", (("left", "crash"), *state), partial(_crash, pool, rank), trouble=True)
    yield Action("device work gone", (*state, *readers, *streams), partial(_gone, pool, rank))
    if pool.protocol.reaper is Reaper.FORGES:
        forged = (*state, *leases, *lease_names(pool), *(("A", slot, rank) for slot in pool.slots))
        yield Action("forge", forged, partial(_forge_for_dead, pool, rank))
    else:
        yield Action("reap", (*state, *awaited), partial(_reap, pool, rank))
    if pool.scope.allowed("rejoin"):
        sees = (("left", "rejoin"), *state, *readers, *streams, *table, *leases)
        yield Action("rejoin", sees, partial(_rejoin, pool, rank), trouble=True)


def stream_fields(pool: SmallPool, rank: int, place: int) -> tuple[Field, ...]:
    """Everything about one stream."""
    head: tuple[Field, ...] = (("done", place, rank), ("loaded", place, rank), ("foreign", place, rank))
    return (*queue_fields(pool, rank, place), *head)


def _crash(pool: SmallPool, rank: int, now: Fields) -> Iterator[Step]:
    if now["left", "crash"] and not now["dead", rank] and not now["work", rank]:
        after = now.changed({("left", "crash"): now["left", "crash"] - 1, ("dead", rank): 1, ("work", rank): 1})
        yield Step(after, f"the process of rank {rank} dies")


def _gone(pool: SmallPool, rank: int, now: Fields) -> Iterator[Step]:
    if not now["work", rank]:
        return
    changes: dict[Field, int] = {("work", rank): 0}
    if now["dead", rank]:
        places = pool.places
        changes |= {
            ("reader", lease, copy, rank): Reader.OVER
            for lease, copy in pool.readers(rank)
            if now["reader", lease, copy, rank] in (Reader.QUEUED, Reader.ARRIVED, Reader.BORROWED, Reader.VIEWED)
        }
    else:
        places = pool.places[pool.protocol.streams :]
    changes |= {field: 0 for place in places for field in stream_fields(pool, rank, place)}
    yield Step(now.changed(changes), f"the device work of rank {rank}'s dead process is gone")


def _reap(pool: SmallPool, rank: int, now: Fields) -> Iterator[Step]:
    if not now["dead", rank] or now["vacant", rank] or (now["work", rank] and not pool.reaps_early):
        return
    # Its words are not waited for any more; nobody writes them.
    changes: dict[Field, int] = {("awaited", lease, rank): 0 for lease in pool.leases}
    speaks = ", and for no member of its group" if pool.stores_for_others else ""
    yield Step(now.changed({**changes, ("vacant", rank): 1}), f"rank {rank} is counted as gone{speaks}")


def _forge_for_dead(pool: SmallPool, rank: int, now: Fields) -> Iterator[Step]:
    if not now["dead", rank] or now["vacant", rank]:
        return
    words: dict[Field, int] = {}
    for lease in pool.leases:
        if now["sent", lease] and now["phase", lease] == Phase.ACTIVE:
            word: Field = ("A", now["slot", lease], rank)
            words[word] = max(now[word], now["generation", lease])
    text = "".join(f", A[{rank}] of slot {word[1]} = {value}" for word, value in words.items())
    yield Step(now.changed({**words, ("vacant", rank): 1}), f"the reaper writes the words of rank {rank}{text}")


def _rejoin(pool: SmallPool, rank: int, now: Fields) -> Iterator[Step]:
    """A new process: an empty table, streams of its own, and none of the proxies that were handed to the old one."""
    if not now["left", "rejoin"] or not now["dead", rank] or not now["vacant", rank]:
        return
    if now["work", rank] and pool.protocol.rejoin_waits:
        return
    changes: dict[Field, int] = {("left", "rejoin"): now["left", "rejoin"] - 1, ("dead", rank): 0, ("vacant", rank): 0}
    changes |= {("table", slot, rank): 0 for slot in pool.slots}
    changes |= {
        ("reader", lease, copy, rank): Reader.OVER
        for lease, copy in pool.readers(rank)
        if now["sent", lease] and now["reader", lease, copy, rank] == Reader.IDLE
    }
    if now["work", rank]:
        own = pool.protocol.streams
        for place in range(own):
            pairs = zip(stream_fields(pool, rank, place), stream_fields(pool, rank, place + own), strict=True)
            for field, old in pairs:
                changes |= {old: now[field], field: 0}
    yield Step(now.changed(changes), f"a new process takes rank {rank}")
