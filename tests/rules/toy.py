"""A toy pool on the simulated driver: 1024 bytes of data, every queued piece of work run when a test says so."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from vmmref import simcuda
from vmmref.driver import calls, streams
from vmmref.imports import IMPORTS, close_imports
from vmmref.lease import PoolLease
from vmmref.pool import Publication, VmmMemoryPool
from vmmref.proxy import Reconstruction, TensorProxy
from vmmref.simcuda import Simulator
from vmmref.stats import PoolStats

GRANULE = 2 << 20
"""Bytes: the simulated device's granularity, the least that a pool can be made of."""
DATA = 1024
"""Bytes of the data area, as in the scenarios."""

Words = tuple[tuple[int, ...], ...]
"""One tuple a slot: R, then A[0] ... A[C - 1]."""


class Toy:
    """One pool and the ranks of one consumer process, which share one import as they would in a process of their own.

    Whoever waits runs the queued work up to what it waits for, and nothing else of other streams.
    """

    def __init__(self, simulator: Simulator, slots: int = 1, consumers: int = 1, **settings: Any) -> None:
        settings.setdefault("data_size", DATA)
        settings.setdefault("handle_type", "fabric")
        self.simulator = simulator
        self.slots = slots
        self.consumers = consumers
        self.pool = VmmMemoryPool(GRANULE, "sim", consumers, None, slots, **settings)
        self.publications: list[Publication] = []
        """Every one that was begun."""
        self.first = self.pool.stats().free_ranges[0][0] if self.pool.stats().free_ranges else 0
        self.whole = self.pool.stats().free_ranges

    # ---- producer

    def begin(self, value: int, nbytes: int = 256) -> Publication:
        """Queue the publishing of `nbytes` bytes that are all `value`; nothing of it has run."""
        publication = self.pool.begin_publish(bytes_of(value, nbytes))
        assert publication is not None, "the pool is full"
        self.publications.append(publication)
        return publication

    def wrap(self, value: int, nbytes: int = 256) -> TensorProxy:
        """Publish `nbytes` bytes that are all `value`."""
        return self.pool.finish_publish(self.begin(value, nbytes))

    # ---- consumers

    def join(self) -> None:
        """Let every rank meet the pool, so that what comes next is no first time."""
        imported = IMPORTS.open(self.pool.card, "sim:0")
        with imported:
            for rank in range(self.consumers):
                imported.rank(rank)

    def replace_consumers(self) -> None:
        """Let the ranks act from now on as those of a new process do, which knows nothing of the old one's."""
        close_imports(self.pool.card.nonce)
        IMPORTS._known.pop(self.pool.card.nonce, None)

    def start(self, proxy: TensorProxy, rank: int = 0) -> Reconstruction:
        """Queue a reconstruction by `rank`; nothing of it has run."""
        return proxy.begin_reconstruction("sim", self.consumers, rank)

    def read(self, proxy: TensorProxy, rank: int = 0) -> bytes:
        """Reconstruct by `rank`. The acknowledgement is queued behind it and has not run."""
        return content(self.start(proxy, rank).finish())

    def release(self, proxy: TensorProxy, rank: int = 0) -> None:
        """Acknowledge by `rank` without reading."""
        proxy.release_without_reconstruction(self.consumers, rank)

    def consume(self, proxy: TensorProxy) -> None:
        """Every rank reads, and every acknowledgement has run."""
        for rank in range(self.consumers):
            self.read(proxy, rank)
        self.drain()

    def rank_stream(self, rank: int = 0) -> int:
        """The stream of a rank that has taken part."""
        (imported,) = IMPORTS.find(self.pool.card.nonce)
        return imported.rank(rank).stream.handle

    # ---- the device

    def step(self, stream: int) -> Any:
        """Run one memory piece of a stream; what ran."""
        return self.simulator.step_memory(stream)

    def drain(self) -> None:
        """Run everything that is queued."""
        assert self.simulator.drain_all() == 0

    def words(self) -> Words:
        """All control words as they lie in memory."""
        size = self.pool.card.word_bytes
        raw = self.simulator.read_bytes(self.pool.address, self.pool.card.layout.control_bytes)
        row = (1 + self.consumers) * size
        return tuple(
            tuple(int.from_bytes(raw[at : at + size], "little") for at in range(start, start + row, size))
            for start in range(0, len(raw), row)
        )

    def held_bytes(self, lease: PoolLease) -> bytes:
        """What lies in the bytes of a lease now."""
        return self.simulator.read_bytes(self.pool.address + lease.start, lease.nbytes)

    # ---- looking

    @property
    def free(self) -> int:
        """Free bytes of the data area."""
        return self.pool.stats().free_bytes

    def state(self) -> tuple[PoolStats, Words]:
        """All that a refusal must leave as it was (ERR-1)."""
        return self.pool.stats(), self.words()

    def check_accounts(self) -> None:
        """Ranges tile the data area (RNG-1), and every slot is in one place (SLOT-1)."""
        stats = self.pool.stats()
        spans = sorted([*stats.free_ranges, *((lease.start, lease.end) for lease in stats.leases)])
        borders = [self.whole[0][0], *(end for _, end in spans)]
        assert [start for start, _ in spans] == borders[:-1], "ranges overlap or leave a gap"
        assert borders[-1] == self.whole[-1][1], "the last bytes are in no range"
        slots = [*stats.free_slots, *stats.retired_slots, *(lease.slot for lease in stats.leases)]
        assert sorted(slots) == list(range(self.slots)), "a slot is in no place or in two"

    def check_home(self) -> None:
        """All leases gone, one free range of everything, every slot listed once."""
        stats = self.pool.stats()
        assert (stats.leases, stats.retiring_slots, stats.free_ranges) == ((), (), self.whole)
        assert sorted([*stats.free_slots, *stats.retired_slots]) == list(range(self.slots))

    def close(self) -> None:
        """End the consumers and the pool."""
        self.simulator.drain_all()
        close_imports(self.pool.card.nonce)
        self.pool.shutdown()


def bytes_of(value: int, nbytes: int) -> torch.Tensor:
    """A tensor of `nbytes` bytes that are all `value`."""
    return torch.full((nbytes,), value, dtype=torch.uint8)


def content(tensor: torch.Tensor) -> bytes:
    """The bytes of a uint8 tensor."""
    return bytes(tensor.tolist())


def another(proxy: TensorProxy) -> TensorProxy:
    """One more copy of a proxy, as it arrives in a consumer."""
    return TensorProxy.from_bytes(bytes(proxy))


UNKNOWN_ERROR = 999
"""CUDA_ERROR_UNKNOWN: what an injected fault answers, since no code treats it specially."""

_LEFT_BY: dict[str, dict[str, int]] = {
    "cuMemRelease": {"handles": 1},
    "cuMemUnmap": {"mappings": 1, "reservations": 1},
    "cuMemAddressFree": {"reservations": 1},
    "cuStreamDestroy": {"streams": 1},
    "cuEventDestroy": {"events": 1},
    "cuMemFreeHost": {"pinned": 1},
}


def left_by(failed_call: str) -> dict[str, int]:
    """What stays behind when this very call fails: the one thing that it should have given back, if it is such a call.

    It is not tried again, because nobody knows whether a real driver has taken the thing back all the same (HND-1).
    """
    return _LEFT_BY.get(failed_call, {})


def counts(simulator: Simulator) -> dict[str, int]:
    """What exists in this process, kinds with a count above zero; bytes left out."""
    usage = dataclasses.asdict(simulator.usage())
    del usage["bytes"]
    return {kind: count for kind, count in usage.items() if count}


Make = Callable[..., Toy]
"""The fixture `toy`: makes a Toy; arguments as Toy's, without the simulator."""


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    """The simulated driver, stepping. A test leaves nothing behind and does nothing that a driver leaves undefined."""
    loaded = simcuda.load()
    loaded.reset()
    loaded.set_mode("stepping")
    try:
        with streams.progress(calls.synchronize_event):
            yield loaded
        assert loaded.violations() == ()
        assert loaded.usage().is_empty, f"left behind: {loaded.usage()}"
    finally:
        loaded.clear_faults()
        with contextlib.suppress(Exception):
            close_imports()
        loaded.reset()


@pytest.fixture
def toy(simulator: Simulator) -> Iterator[Make]:
    """Makes toy pools, which are closed after the test."""
    made: list[Toy] = []

    def make(slots: int = 1, consumers: int = 1, **settings: Any) -> Toy:
        made.append(Toy(simulator, slots, consumers, **settings))
        return made[-1]

    yield make
    simulator.clear_faults()
    for each in made:
        each.close()
