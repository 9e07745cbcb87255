"""Measurements: always two things in one run, round by round in turn, because machines are noisy and ratios are not."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

ROUNDS = 7
"""Odd, so that the median is a round that was really run."""
ROUND_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, and the same of a baseline in the same run where there is one.

    `ratio` is the median over the rounds of value / baseline; `low` and `high` are its extremes.
    """

    name: str
    value: float
    unit: str
    baseline: str | None = None
    baseline_value: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


class Allocator(Protocol):
    """The allocator of a pool in host memory: ranges, slots and generations, no bytes."""

    def allocate(self, nbytes: int) -> Any:
        """A lease, or None when full."""

    def release(self, lease: Any) -> None:
        """Give a lease back."""


MakeAllocator = Callable[[int, int], Allocator]
"""Makes one with so many slots and so many bytes of data area."""


class ReferenceAllocator:
    """The book of the reference pool: what `wrap_tensor` and the recycler do to it, less the device work."""

    def __init__(self, slots: int, data_size: int) -> None:
        from vmmref.book import LeaseBook
        from vmmref.layout import ControlLayout

        layout = ControlLayout(slots, 1)
        self._book = LeaseBook(b"benchmark nonce.", layout, layout.data_start + data_size, 2**31 - 1, "bench")

    def allocate(self, nbytes: int) -> Any:
        """Take a lease."""
        return self._book.take(nbytes)

    def release(self, lease: Any) -> None:
        """Claim it, as the recycler does, and free it."""
        book = self._book
        book.free(book.claim(lease.lease, "REC-6"))


@dataclass(frozen=True, slots=True)
class Load:
    """What an allocator holds while it is measured: `live` leases, and `holes` free ranges too small for the lease."""

    name: str
    live: int
    holes: int

    def prepare(self, make: MakeAllocator) -> Allocator:
        """An allocator in that state. Every hole lies between two leases, so none can be merged away."""
        slots = self.live + 2 * self.holes + 16
        allocator = make(slots, 256 * (2 * self.live + 2 * self.holes + 64))
        held = [allocator.allocate(256) for _ in range(2 * self.holes)]
        for lease in held[::2]:
            allocator.release(lease)
        for _ in range(self.live):
            allocator.allocate(512 if self.holes else 256)
        return allocator


LOADS: tuple[Load, ...] = (
    Load("allocate+release, 1 live", 1, 0),
    Load("allocate+release, 16 live", 16, 0),
    Load("allocate+release, 256 live", 256, 0),
    Load("allocate+release, 4096 live", 4096, 0),
    Load("allocate+release, 16 live, 4096 holes", 16, 4096),
)


def pairs_per_second(allocator: Allocator, seconds: float) -> float:
    """Allocate 512 bytes and release them, again and again, for about `seconds`."""
    allocate, release = allocator.allocate, allocator.release
    done, started, batch = 0, time.perf_counter(), 16
    while True:
        for _ in range(batch):
            release(allocate(512))
        done += batch
        elapsed = time.perf_counter() - started
        if elapsed >= seconds:
            return done / elapsed
        # Clock readings must not weigh in, nor a slow allocator overshoot by seconds.
        batch = max(1, min(1024, int(done / elapsed * seconds / 20)))


def allocator_rows(baseline: MakeAllocator | None, baseline_name: str | None) -> Iterator[Row]:
    """Pairs a second of the reference's book under each load, in turn with the baseline's."""
    for load in LOADS:
        ours = load.prepare(ReferenceAllocator)
        theirs = load.prepare(baseline) if baseline is not None else None
        pairs_per_second(ours, ROUND_SECONDS / 4)
        values, others = [], []
        for _ in range(ROUNDS):
            values.append(pairs_per_second(ours, ROUND_SECONDS))
            if theirs is not None:
                others.append(pairs_per_second(theirs, ROUND_SECONDS))
        yield _row(load.name, "pairs/s", values, baseline_name, others)


def _row(name: str, unit: str, values: list[float], baseline: str | None, others: list[float]) -> Row:
    value = statistics.median(values)
    if not others:
        return Row(name, value, unit)
    ratios = [ours / theirs for ours, theirs in zip(values, others, strict=True)]
    return Row(
        name, value, unit, baseline, statistics.median(others), statistics.median(ratios), min(ratios), max(ratios)
    )


def process_rows(device: str, cycles: int) -> Iterator[Row]:
    """Closed lease cycles a second between processes, every byte checked; raises RuntimeError if anything was wrong."""
    from vmmref.conformance.cycles import run

    for consumers in (1, 2):
        result = run(device, cycles, consumers, "posix_fd")
        if not result.clean:
            raise RuntimeError(f"cycles between processes were not clean: {result}")
        yield Row(f"cycles between processes, {consumers} consumer(s)", cycles / result.seconds, "cycles/s")


def checker_rows(device: str, seconds: float) -> Iterator[Row]:
    """Operations a second of the check itself, all judging included: the seeded walk, and Hypothesis' state machine."""
    from vmmref.conformance.run import Rig
    from vmmref.conformance.search import Plan, Search
    from vmmref.conformance.subjects.reference import make

    gc.collect()
    gc.freeze()
    for name, phase in (("check: walk", "walk"), ("check: state machine", "machine")):
        rig = Rig(make(device))
        search = Search(rig, Plan(seed=1, walk_seconds=seconds, machine_seconds=seconds))
        started = time.perf_counter()
        getattr(search, phase)()
        yield Row(name, rig.operations / (time.perf_counter() - started), "operations/s")


def handover_rows(device: str, rounds: int) -> Iterator[Row]:
    """Publish, reconstruct, recycle in one process, streams running: microseconds a closed hand-over of one rank."""
    import torch

    from vmmref.imports import close_imports
    from vmmref.pool import VmmMemoryPool

    for nbytes in (4 << 10, 256 << 10, 4 << 20):
        with VmmMemoryPool(4 * nbytes + (4 << 20), device, 1, None, 16) as pool:
            source = torch.ones(nbytes, dtype=torch.uint8, device="cpu" if device.startswith("sim") else device)
            target, times = torch.empty_like(source), []
            copies = []
            for _ in range(rounds):
                started = time.perf_counter()
                proxy = pool.wrap_tensor(source)
                assert proxy is not None, "every lease of a closed hand-over is back before the next"
                proxy.reconstruct_on_target_device(device)
                while not pool.recycle():
                    pass
                times.append(time.perf_counter() - started)
                started = time.perf_counter()
                target.copy_(source)
                target.copy_(source)
                copies.append(time.perf_counter() - started)
            close_imports(pool.card.nonce)
        name = f"hand-over in one process, {nbytes >> 10} KiB"
        floor = statistics.median(copies) * 1e6
        value = statistics.median(times) * 1e6
        yield Row(name, value, "us", "two copies of the bytes", floor, value / floor)
