"""Lease cycles between real processes: publish here, reconstruct there, recycle here, and compare every byte.

    python -m vmmref.conformance.cycles DEVICE [CYCLES [CONSUMERS]]

Sizes vary, several leases are under way at a time, and every tenth proxy is presented a second time, which must be
refused. At the end each process counts what it still holds.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from vmmref import simcuda
from vmmref.conformance.processes import ANSWER_SECONDS, Link, Process
from vmmref.driver.device import Device
from vmmref.errors import AlreadyReleased, VmmRefError
from vmmref.imports import close_imports
from vmmref.pool import VmmMemoryPool
from vmmref.proxy import TensorProxy

PATTERN_BYTES = 64 << 10
LARGEST_BYTES = 4 << 10
SLOTS = 64
BATCH = 16
"""Proxies a message; fewer messages, and several leases under way at once."""


@dataclass(frozen=True, slots=True)
class Cycles:
    """What came of a run. `leftovers` by process: what it held at its end, empty where the device cannot count."""

    cycles: int
    consumers: int
    handle_type: str
    seconds: float
    wrong: int
    """Tensors that differed from what was published."""
    not_refused: int
    """Second presentations of a proxy that were served."""
    leftovers: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Nothing wrong and nothing left."""
        return not self.wrong and not self.not_refused and not any(self.leftovers.values())


def pattern(device: str, nbytes: int = PATTERN_BYTES) -> torch.Tensor:
    """The bytes that every payload is a piece of, on a torch device; the same in every process."""
    generator = torch.Generator().manual_seed(20_011)
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator).to(device)


def piece(source: torch.Tensor, index: int) -> torch.Tensor:
    """The payload of cycle `index`: another place and another size each time."""
    size = 1 + index * 2_654_435_761 % LARGEST_BYTES
    start = index * 40_503 % (PATTERN_BYTES - size)
    return source[start : start + size]


def run(
    device: str = "sim",
    cycles: int = 1000,
    consumers: int = 1,
    handle_type: str = "posix_fd",
    progress: Callable[[int], None] | None = None,
) -> Cycles:
    """Run `cycles` lease cycles with `consumers` processes.

    Raises RuntimeError when one of them fails, TimeoutError when one hangs.
    """
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(Process("vmmref.conformance.cycles:consume", device, rank, consumers))
            for rank in range(consumers)
        ]
        for process in processes:
            _answer(process)
        return _produce(device, cycles, handle_type, processes, progress)


def _produce(
    device: str, cycles: int, handle_type: str, processes: list[Process], progress: Callable[[int], None] | None
) -> Cycles:
    with VmmMemoryPool(2 << 20, device, len(processes), None, SLOTS, handle_type=handle_type) as pool:
        source = pattern("cpu" if device.startswith("sim") else device)
        started = time.monotonic()
        sent = 0
        while sent < cycles:
            batch: list[tuple[int, str]] = []
            while len(batch) < min(BATCH, cycles - sent):
                proxy = pool.wrap_tensor(piece(source, sent + len(batch)))
                if proxy is None:
                    # Full: consumers have acknowledged, or will have by the next pass.
                    recycle_until(pool, SLOTS // 2)
                    continue
                batch.append((sent + len(batch), bytes(proxy).hex()))
            for process in processes:
                process.link.send(batch)
            for process in processes:
                _answer(process)
            sent += len(batch)
            pool.recycle()
            if progress is not None:
                progress(sent)
        recycle_until(pool, 0)
        seconds = time.monotonic() - started
        for process in processes:
            process.link.send(None)
        reports = [_answer(process) for process in processes]
        chosen = str(pool.handle_type)
    leftovers = {f"rank {rank}": report[2] for rank, report in enumerate(reports)}
    leftovers["producer"] = held()
    wrong, served = sum(report[0] for report in reports), sum(report[1] for report in reports)
    return Cycles(cycles, len(processes), chosen, seconds, wrong, served, leftovers)


def recycle_until(pool: VmmMemoryPool, most: int) -> None:
    """Passes until at most so many leases are out; raises RuntimeError when that takes too long."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while pool.active_lease_count > most:
        pool.recycle()
        if time.monotonic() > deadline:
            raise RuntimeError(f"{pool.active_lease_count} leases were not acknowledged within {ANSWER_SECONDS} s")


def _answer(process: Process) -> Any:
    answer = process.link.receive()
    if isinstance(answer, str):
        raise RuntimeError(f"a consumer process failed: {answer}")
    return answer


def consume(link: Link, device: str, rank: int, consumers: int) -> None:
    """The consumer process of one rank: answers each batch, and at the end [wrong, served twice, leftovers]."""
    try:
        opened = Device(device)
        source = pattern(opened.torch_device)
        opened.close()
        link.send(True)
        wrong = served = 0
        while (batch := link.receive(seconds=None)) is not None:
            for index, form in batch:
                data = bytes.fromhex(form)
                tensor = TensorProxy.from_bytes(data).reconstruct_on_target_device(device, consumers, rank)
                wrong += not torch.equal(tensor, piece(source, index))
                if index % 10 == 0:
                    served += _serves_again(data, device, consumers, rank)
            link.send(True)
        close_imports()
        link.send([wrong, served, held()])
    except (VmmRefError, RuntimeError) as error:
        link.send(f"{type(error).__name__}: {error}")


def _serves_again(data: bytes, device: str, consumers: int, rank: int) -> bool:
    """Whether a second copy of a proxy that this rank has read is served (CON-3: it must not be)."""
    try:
        TensorProxy.from_bytes(data).reconstruct_on_target_device(device, consumers, rank)
    except AlreadyReleased:
        return False
    return True


def held() -> dict[str, int]:
    """What this process holds of the simulated driver, kinds with a count above zero; nothing on real hardware."""
    simulator = simcuda.loaded()
    if simulator is None:
        return {}
    usage = simulator.usage()
    kinds = ("handles", "mappings", "reservations", "descriptors", "streams", "events", "pinned")
    return {kind: count for kind in kinds if (count := getattr(usage, kind))}


def main(arguments: list[str]) -> int:
    """Run with both kinds of handles that the device has; 0 when everything was clean."""
    device = arguments[0] if arguments else "sim"
    cycles = int(arguments[1]) if len(arguments) > 1 else 1000
    consumers = int(arguments[2]) if len(arguments) > 2 else 2
    result = run(device, cycles, consumers, "auto")
    also = run(device, cycles, consumers, "posix_fd") if result.handle_type != "posix_fd" else result
    for one in (result, also):
        print(
            f"{one.handle_type}: {one.cycles} cycles, {one.consumers} consumer processes, {one.seconds:.1f} s "
            f"({one.cycles / one.seconds:.0f}/s), {one.wrong} wrong, {one.not_refused} not refused, "
            f"left over: {one.leftovers}"
        )
    return 0 if result.clean and also.clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
