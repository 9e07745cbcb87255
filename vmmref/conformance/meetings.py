"""Meetings: three callers of one pool at a time, in every order of their steps up to a bound (REC-3, REC-4, LIFE-2).

    python -m vmmref.conformance.meetings [--bound N] [--lines]

Each order runs the real pool on the stepping simulator. Afterwards the ranges must tile, every slot must be in one
list, every lease must have ended once, and the closed pool must hold nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from vmmref import book, errors, frame, life, publisher, reaper, recycler, simcuda
from vmmref.conformance import schedules
from vmmref.conformance.schedules import Deadlock, Schedule, Search
from vmmref.driver import calls, streams
from vmmref.lease import PoolLease
from vmmref.pool import VmmMemoryPool
from vmmref_models.reasons import Reason

LOCKED = (book, frame, life, publisher, recycler, reaper)
"""The modules whose locks the threads of a pool meet at."""
LINES = (book, life, publisher, recycler, streams)
"""The modules that are interrupted at every line, on request."""
_LATE = frozenset({Reason.INACTIVE_LEASE, Reason.POOL_CLOSING})
"""Refusals that a caller gets who came after another one."""


@dataclass(slots=True)
class Table:
    """One pool and what its callers have done to it."""

    pool: VmmMemoryPool
    leases: list[PoolLease]
    """Dispatched and not acknowledged, before the callers meet."""
    look: recycler.Look | None = None
    """Taken when the first lease had been acknowledged."""
    ended: Counter[PoolLease] = field(default_factory=Counter)
    """Leases by how often somebody was told to have ended them."""
    recycled: int = 0
    published: list[PoolLease] = field(default_factory=list)

    def publish(self) -> None:
        """Publish a lease; "full" is an answer, too."""
        proxy = self.pool.wrap_tensor(torch.zeros(200, dtype=torch.uint8))
        if proxy is not None:
            self.published.append(proxy.lease)

    def cancel(self) -> None:
        """Cancel the first lease."""
        self.pool.cancel_lease(self.leases[0])
        self.ended[self.leases[0]] += 1

    def revoke(self) -> None:
        """Revoke the first lease."""
        self.pool.revoke(self.leases[0])
        self.ended[self.leases[0]] += 1

    def recycle(self) -> None:
        """One pass."""
        self.recycled += self.pool.recycle()

    def claim(self) -> None:
        """The second half of a pass whose look is old."""
        assert self.look is not None, "the story has taken a look"
        self.pool.claim(self.look)
        self.recycled += self.pool.reclaim()

    def shut_down(self) -> None:
        """End the pool."""
        self.pool.shutdown()

    def synchronize(self) -> None:
        """Wait for what the producer has queued."""
        self.pool.synchronize()


STORIES: dict[str, tuple[Callable[[Table], None], ...]] = {
    "cancel, revoke, recycle": (Table.cancel, Table.revoke, Table.recycle),
    "cancel, claim by an old look, publish": (Table.cancel, Table.claim, Table.publish),
    "publish, publish, recycle": (Table.publish, Table.publish, Table.recycle),
    "publish, cancel, synchronize": (Table.publish, Table.cancel, Table.synchronize),
    "publish, recycle, shut down": (Table.publish, Table.recycle, Table.shut_down),
    "cancel, shut down, shut down": (Table.cancel, Table.shut_down, Table.shut_down),
}
"""Who meets, by name."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A schedule after which something is wrong."""

    story: str
    rule: str
    what: str
    schedule: tuple[int, ...]
    """Which caller went on at each choice; `vmmref.conformance.schedules.replay` repeats it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of all schedules of one story."""

    story: str
    schedules: int
    seconds: float
    broken: Broken | None = None
    """The first schedule that broke a rule; the search ends there."""


def meet(story: str, bound: int, lines: bool = False, pool_type: type[VmmMemoryPool] = VmmMemoryPool) -> Outcome:
    """Run every schedule of a story with at most `bound` interruptions, until one breaks a rule."""
    search, count, started = Search(bound), 0, time.monotonic()
    trace = schedules.at_each_line(LINES) if lines else None
    for choose in search.schedules():
        count += 1
        wrong = _run(STORIES[story], choose, trace, pool_type)
        if wrong is not None:
            broken = Broken(story, *wrong, search.taken)
            return Outcome(story, count, time.monotonic() - started, broken)
    return Outcome(story, count, time.monotonic() - started)


def _run(
    callers: Sequence[Callable[[Table], None]],
    choose: schedules.Choose,
    trace: object,
    pool_type: type[VmmMemoryPool],
) -> tuple[str, str] | None:
    simulator = simcuda.loaded() or simcuda.load()
    simulator.reset()
    simulator.set_mode("stepping")
    held: list[str] = []
    with schedules.watched(LOCKED), contextlib.ExitStack() as left:
        table = _table(pool_type)
        left.callback(_let_go, table.pool)
        named = [(caller.__name__, lambda caller=caller: caller(table)) for caller in callers]
        schedule = Schedule(named, choose)
        with streams.progress(lambda event: _device_goes_on(table, event, held)):
            try:
                schedule.run(trace)  # type: ignore[arg-type]
            except Deadlock as deadlock:
                return "LIV-2", str(deadlock)
            return _judge(table, schedule, held)


def _let_go(pool: VmmMemoryPool) -> None:
    """A pool that was found broken has not been ended; that it is dropped is no news to anybody."""
    if pool._end_if_dropped.detach() is not None:
        pool._beacon.close()


def _table(pool_type: type[VmmMemoryPool]) -> Table:
    """A pool of two slots with two leases out, the first one acknowledged by its only rank."""
    with streams.progress(calls.synchronize_event):
        pool = pool_type(2 << 20, "sim", 1, None, 2, handle_type="fabric", data_size=1024)
        first = pool.wrap_tensor(torch.ones(300, dtype=torch.uint8))
        second = pool.wrap_tensor(torch.ones(100, dtype=torch.uint8))
        assert first is not None, "a fresh pool has room"
        assert second is not None, "a fresh pool has room for two"
        table = Table(pool, [first.lease, second.lease])
        _acknowledge(pool, first.lease)
        table.look = pool.look()
    return table


def _acknowledge(pool: VmmMemoryPool, lease: PoolLease) -> None:
    """A[0] := n, as the rank's own stream would store it."""
    with pool._device:
        stream = streams.Stream("rank 0")
        calls.fill_word32(pool.address + pool.card.layout.ack_offset(lease.slot, 0), lease.generation, stream.handle)
        stream.synchronize(1.0)
        stream.close()


def _device_goes_on(table: Table, event: int, held: list[str]) -> None:
    """Somebody waits for the device: the others may go on, and the lock of the book must be free (REC-4)."""
    lock = table.pool._book._lock
    if isinstance(lock, schedules.Lock) and lock.is_mine():
        held.append("the book's lock is held while the device is waited for")
    schedules.pause()
    calls.synchronize_event(event)


def _judge(table: Table, schedule: Schedule, held: list[str]) -> tuple[str, str] | None:
    for wrong in _problems(table, schedule, held):
        return wrong
    try:
        with streams.progress(calls.synchronize_event):
            table.pool.shutdown()
    except errors.VmmRefError as error:
        return "LIFE-2", f"shutting down afterwards: {error}"
    simulator = simcuda.loaded()
    assert simulator is not None, "it was loaded above"
    usage = simulator.usage()
    kinds = ("handles", "mappings", "reservations", "descriptors", "streams", "events", "pinned")
    left = {kind: getattr(usage, kind) for kind in kinds if getattr(usage, kind)}
    return ("HND-1", f"left over: {left}") if left else None


def _problems(table: Table, schedule: Schedule, held: list[str]) -> Iterator[tuple[str, str]]:
    """What is wrong after the meeting, the rule first."""
    for task in schedule.tasks:
        error = task.error
        if error is not None and not (isinstance(error, errors.VmmRefError) and error.reason in _LATE):
            yield "ERR-2", f"{task.name}: {type(error).__name__}: {error}"
    if held:
        yield "REC-4", held[0]
    for lease, count in table.ended.items():
        if count > 1:
            yield "REC-3", f"{lease} was ended {count} times"
    yield from _book_problems(table)


def _book_problems(table: Table) -> Iterator[tuple[str, str]]:
    stats = table.pool.stats()
    spans = sorted([*stats.free_ranges, *((lease.start, lease.end) for lease in stats.leases)])
    end = table.pool.card.layout.data_start
    for start, stop in spans:
        if start != end:
            yield "RNG-1", f"bytes [{end}, {start}) are missing or held twice: {spans}"
        end = stop
    if end != table.pool.card.data_end:
        yield "RNG-1", f"bytes from {end} on are missing: {spans}"
    slots = sorted([*stats.free_slots, *(lease.slot for lease in stats.leases), *stats.retired_slots])
    if slots != list(range(len(stats.generations))):
        yield "SLOT-1", f"the lists hold slots {slots}"
    taken = len(table.leases) + len(table.published)
    told = sum(table.ended.values()) + table.recycled
    if table.pool.life == "open" and told != taken - len(stats.leases):
        yield "REC-5", f"{taken} leases were taken, {len(stats.leases)} are out, and {told} were told to have ended"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every story; 0 when no schedule breaks a rule."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--bound", type=int, default=2, help="interruptions a schedule may have at most")
    parser.add_argument("--lines", action="store_true", help="interrupt at every line, not at locks only")
    options = parser.parse_args(arguments)
    clean = True
    for story in STORIES:
        outcome = meet(story, options.bound, options.lines)
        print(f"{story}: {outcome.schedules} schedules in {outcome.seconds:.1f} s", flush=True)
        if outcome.broken is not None:
            clean = False
            print(f"  {outcome.broken.rule} broken: {outcome.broken.what}\n  schedule {outcome.broken.schedule}")
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
