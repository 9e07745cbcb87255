"""A long run between real processes: duplicates, cancellations, revocations and deaths, every byte compared.

    python -m vmmref.conformance.soak [LEASES] [--consumers 4] [--seed 0] [--device sim] [--json FILE]

One producer, and consumers in processes of their own. Sizes run from one byte to a mebibyte, most of them small. Now
and then a consumer is killed in the middle of its work, and a new process takes its place. In the end nobody holds
anything.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vmmref.conformance.cycles import held, pattern, recycle_until
from vmmref.conformance.processes import SERVER, Link, Process
from vmmref.driver.device import Device
from vmmref.errors import AlreadyReleased, StaleLease
from vmmref.imports import close_imports
from vmmref.pool import VmmMemoryPool
from vmmref.proxy import TensorProxy

PATTERN_BYTES = 2 << 20
MEMORY_BYTES = 4 << 20
"""So small that it is full now and then: the largest leases take a quarter of it."""
SLOTS = 56
"""Fewer than two batches."""
BATCH = 32
"""Leases a message: several are under way at once, and a message stays well below its limit."""
KILL_EVERY = 2_000
"""Leases between two deaths."""
_SIZES = ((0.94, 4 << 10), (0.055, 64 << 10), (0.005, 1 << 20))
"""How often a lease is at most so large, in bytes."""


class Fate(StrEnum):
    """What becomes of a lease."""

    READ = "read"
    TWICE = "twice"
    """Read, and presented a second time, which must be refused (CON-3)."""
    RELEASE = "release"
    REVOKE = "revoke"
    """Revoked while the ranks have it: right bytes or StaleLease (CAN-3)."""
    CANCEL = "cancel"
    """Cancelled before it is handed on (CAN-1)."""


_FATES = {Fate.READ: 76, Fate.TWICE: 10, Fate.RELEASE: 6, Fate.REVOKE: 4, Fate.CANCEL: 4}


class Drawn(NamedTuple):
    """One lease to come: which piece of the pattern it holds, and its fate."""

    start: int
    size: int
    fate: Fate


@dataclass(frozen=True, slots=True)
class Soak:
    """What came of a run."""

    leases: int
    consumers: int
    seconds: float
    fates: dict[str, int]
    kills: int
    tensors: int
    """Compared byte by byte, over all ranks."""
    stale: int
    """Readings of revoked leases that were told so."""
    wrong: int
    """Tensors that differed, and readings that were refused without a reason to."""
    not_refused: int
    """Second presentations that were served."""
    leftovers: dict[str, dict[str, int]] = field(default_factory=dict)
    """By process, what it held at its end and not at its start."""

    @property
    def clean(self) -> bool:
        """Nothing wrong, nothing left, and all of it was exercised."""
        return not self.wrong and not self.not_refused and not any(self.leftovers.values()) and self.tensors > 0

    @property
    def per_second(self) -> float:
        """Leases a second."""
        return self.leases / self.seconds


def draw(source: random.Random) -> Drawn:
    """The next lease."""
    most = source.choices([size for _, size in _SIZES], [weight for weight, _ in _SIZES])[0]
    size = source.randint(1, most)
    fate = source.choices(list(_FATES), list(_FATES.values()))[0]
    return Drawn(source.randrange(PATTERN_BYTES - size), size, fate)


# ---- a consumer's process


def consume(link: Link, device: str, rank: int, consumers: int) -> None:
    """Answer each batch with what came of it, and at the end with what is left."""
    torch.set_num_threads(1)
    opened = Device(device)
    source = pattern(opened.torch_device, PATTERN_BYTES)
    before = holding()
    link.send(True)
    while (batch := link.receive(seconds=None)) is not None:
        counts: Counter[str] = Counter()
        for form, start, size, fate in batch:
            _take_part(counts, bytes.fromhex(form), source[start : start + size], Fate(fate), device, rank, consumers)
        link.send(counts)
    close_imports()
    link.send({kind: count - before[kind] for kind, count in holding().items() if count != before[kind]})


def _take_part(
    counts: Counter[str], form: bytes, expected: torch.Tensor, fate: Fate, device: str, rank: int, consumers: int
) -> None:
    proxy = TensorProxy.from_bytes(form)
    if fate is Fate.RELEASE:
        proxy.release_without_reconstruction(consumers, rank)
        return
    try:
        tensor = proxy.reconstruct_on_target_device(device, consumers, rank)
        counts["tensors"] += 1
        counts["wrong"] += not torch.equal(tensor, expected)
    except StaleLease:
        counts["stale" if fate is Fate.REVOKE else "wrong"] += 1
    if fate is Fate.TWICE:
        try:
            TensorProxy.from_bytes(form).reconstruct_on_target_device(device, consumers, rank)
            counts["not_refused"] += 1
        except AlreadyReleased:
            pass


def holding() -> Counter[str]:
    """What this process holds of the simulated driver and of the kernel."""
    return Counter(held()) + Counter({"open files": len(os.listdir("/proc/self/fd"))})


# ---- the producer


class _Soaking:
    """One run under way. Leaving its context ends its processes, whatever they are doing."""

    def __init__(self, device: str, consumers: int, seed: int) -> None:
        self._device = device
        self._random = random.Random(seed)
        self._source = pattern("cpu" if device.startswith("sim") else device, PATTERN_BYTES)
        self._pending: deque[Drawn] = deque()
        self._under_way: deque[list[Process]] = deque()
        """For each batch that has been sent, who has not answered yet."""
        self.fates: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        """What the consumers counted."""
        self.kills = 0
        self._processes: list[Process] = []
        self._consumers = consumers

    def __enter__(self) -> _Soaking:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()

    def run(self, pool: VmmMemoryPool, leases: int, kill_every: int, watch: Callable[[int], None]) -> None:
        """Publish so many leases, let them all come back, and kill a consumer now and then."""
        for rank in range(self._consumers):
            self._processes.append(self._start(rank))
            pool.watch_consumer(rank, self._processes[rank].process_id)
        published = 0
        while published < leases:
            wanted = min(BATCH, leases - published) - len(self._pending)
            self._pending.extend(draw(self._random) for _ in range(wanted))
            sent = self._hand_on(pool)
            if sent == 0:
                # Full: what is under way comes back when the ranks have answered.
                self._collect(0)
                recycle_until(pool, 0)
            elif (published + sent) // kill_every > published // kill_every:
                self._kill(pool)
            published += sent
            watch(published)
        self._collect(0)
        recycle_until(pool, 0)

    def _start(self, rank: int) -> Process:
        process = Process("vmmref.conformance.soak:consume", self._device, rank, self._consumers)
        process.link.receive()
        return process

    def _hand_on(self, pool: VmmMemoryPool) -> int:
        """Publish what is pending, or as much as there is room for, while the ranks still have the batch before."""
        message: list[list[Any]] = []
        revoked = []
        count = 0
        while self._pending:
            drawn = self._pending[0]
            proxy = pool.wrap_tensor(self._source[drawn.start : drawn.start + drawn.size])
            if proxy is None:
                break
            self._pending.popleft()
            count += 1
            self.fates[drawn.fate] += 1
            if drawn.fate is Fate.CANCEL:
                pool.cancel_proxy(proxy)
                continue
            message.append([bytes(proxy).hex(), *drawn])
            if drawn.fate is Fate.REVOKE:
                revoked.append(proxy.lease)
        self._send(message)
        for lease in revoked:
            pool.revoke(lease)
        pool.recycle()
        return count

    def _send(self, message: list[list[Any]]) -> None:
        for process in self._processes:
            process.link.send(message)
        self._under_way.append(list(self._processes))
        self._collect(1)

    def _collect(self, most: int) -> None:
        """Wait for answers until so many batches are under way; the dead answer no more."""
        while len(self._under_way) > most:
            for process in self._under_way.popleft():
                if process.status is None:
                    self.counts.update(process.link.receive())

    def _kill(self, pool: VmmMemoryPool) -> None:
        """Kill a consumer that is at work, and let a new process act for its rank."""
        rank = self._random.randrange(self._consumers)
        self._processes[rank].kill()
        reaped = pool.reap()
        if reaped != [rank]:
            raise RuntimeError(f"the process of rank {rank} was killed, and the pool has counted {reaped}")
        self._processes[rank] = self._start(rank)
        pool.watch_consumer(rank, self._processes[rank].process_id)
        self.kills += 1

    def end(self) -> dict[str, dict[str, int]]:
        """Let the consumers drop their imports; what each still holds."""
        for process in self._processes:
            process.link.send(None)
        return {f"rank {rank}": process.link.receive() for rank, process in enumerate(self._processes)}


def run(
    device: str = "sim",
    leases: int = 20_000,
    consumers: int = 4,
    seed: int = 0,
    kill_every: int = KILL_EVERY,
    watch: Callable[[int], None] = lambda published: None,
) -> Soak:
    """Do a whole run; raises RuntimeError when a process dies that was not killed, or leases do not come back."""
    SERVER.start()
    opened = Device(device)
    try:
        before = holding()
        with (
            _Soaking(device, consumers, seed) as soaking,
            VmmMemoryPool(MEMORY_BYTES, device, consumers, None, SLOTS) as pool,
        ):
            started = time.monotonic()
            soaking.run(pool, leases, kill_every, watch)
            seconds = time.monotonic() - started
            left = soaking.end()
        after = holding()
    finally:
        opened.close()
    left["producer"] = {kind: count - before[kind] for kind, count in after.items() if count != before[kind]}
    counts = soaking.counts
    return Soak(
        leases=leases,
        consumers=consumers,
        seconds=seconds,
        fates=dict(soaking.fates),
        kills=soaking.kills,
        tensors=counts["tensors"],
        stale=counts["stale"],
        wrong=counts["wrong"],
        not_refused=counts["not_refused"],
        leftovers=left,
    )


def main(arguments: list[str]) -> int:
    """0 when everything was clean, 1 when not."""
    # Not at the top: every consumer's process imports this module, too.
    from rich.progress import Progress

    parser = argparse.ArgumentParser(prog="python -m vmmref.conformance.soak", description=__doc__)
    parser.add_argument("leases", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--consumers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="sim")
    parser.add_argument("--kill-every", type=int, default=KILL_EVERY, help="leases between two deaths")
    parser.add_argument("--json", type=Path, help="write the result as JSON")
    given = parser.parse_args(arguments)
    with Progress(*Progress.get_default_columns(), transient=True) as progress:
        task = progress.add_task("leases", total=given.leases)

        def watch(published: int) -> None:
            progress.update(task, completed=published)

        result = run(given.device, given.leases, given.consumers, given.seed, given.kill_every, watch)
    report = {**asdict(result), "seed": given.seed, "leases_per_second": result.per_second, "clean": result.clean}
    print(json.dumps(report, indent=2))
    if given.json is not None:
        given.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if result.clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
