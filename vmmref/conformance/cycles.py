"""Lease cycles between real processes: publish here, reconstruct there, recycle here, and compare every byte.

    python -m vmmref.conformance.cycles DEVICE [CYCLES [CONSUMERS]]

Sizes vary, several leases are under way at a time, and every tenth proxy is presented a second time, which must be
refused. At the end each process counts what it still holds.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch

from vmmref import simcuda
from vmmref.driver.device import Device
from vmmref.errors import AlreadyReleased
from vmmref.imports import close_imports
from vmmref.pool import VmmMemoryPool
from vmmref.proxy import TensorProxy

PATTERN_BYTES = 64 << 10
LARGEST_BYTES = 4 << 10
SLOTS = 64
BATCH = 16
"""Proxies a message; fewer messages, and several leases under way at once."""
ANSWER_SECONDS = 60.0
"""A process that has not answered for so long is taken for hung (LIFE-5)."""


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


def pattern(device: str) -> torch.Tensor:
    """The bytes that every payload is a piece of; the same in every process."""
    generator = torch.Generator().manual_seed(20_011)
    return torch.randint(0, 256, (PATTERN_BYTES,), dtype=torch.uint8, generator=generator).to(device)


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
    """Run `cycles` lease cycles with `consumers` spawned processes; raises RuntimeError when one of them fails."""
    spawn = multiprocessing.get_context("spawn")
    links: list[tuple[Connection, Any]] = []
    try:
        for rank in range(consumers):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=consume, args=(theirs, device, rank, consumers), daemon=True)
            process.start()
            theirs.close()
            links.append((ours, process))
        connections = [connection for connection, _ in links]
        for connection in connections:
            _answer(connection)
        return _produce(device, cycles, handle_type, connections, progress)
    finally:
        for connection, process in links:
            connection.close()
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


def _produce(
    device: str, cycles: int, handle_type: str, connections: list[Connection], progress: Callable[[int], None] | None
) -> Cycles:
    with VmmMemoryPool(2 << 20, device, len(connections), None, SLOTS, handle_type=handle_type) as pool:
        source = pattern("cpu" if device.startswith("sim") else device)
        started = time.monotonic()
        sent = 0
        while sent < cycles:
            batch: list[tuple[int, bytes]] = []
            while len(batch) < min(BATCH, cycles - sent):
                proxy = pool.wrap_tensor(piece(source, sent + len(batch)))
                if proxy is None:
                    # Full: consumers have acknowledged, or will have by the next pass.
                    _recycle_until(pool, SLOTS // 2)
                    continue
                batch.append((sent + len(batch), bytes(proxy)))
            for connection in connections:
                connection.send(batch)
            for connection in connections:
                _answer(connection)
            sent += len(batch)
            pool.recycle()
            if progress is not None:
                progress(sent)
        _recycle_until(pool, 0)
        seconds = time.monotonic() - started
        for connection in connections:
            connection.send(None)
        reports = [_answer(connection) for connection in connections]
        chosen = str(pool.handle_type)
    leftovers = {f"rank {rank}": report[2] for rank, report in enumerate(reports)}
    leftovers["producer"] = held()
    wrong, served = sum(report[0] for report in reports), sum(report[1] for report in reports)
    return Cycles(cycles, len(connections), chosen, seconds, wrong, served, leftovers)


def _recycle_until(pool: VmmMemoryPool, most: int) -> None:
    deadline = time.monotonic() + ANSWER_SECONDS
    while pool.active_lease_count > most:
        pool.recycle()
        if time.monotonic() > deadline:
            raise RuntimeError(f"{pool.active_lease_count} leases were not acknowledged within {ANSWER_SECONDS} s")


def _answer(connection: Connection) -> Any:
    if not connection.poll(ANSWER_SECONDS):
        raise RuntimeError(f"a consumer process has not answered for {ANSWER_SECONDS} s")
    try:
        answer = connection.recv()
    except EOFError:
        raise RuntimeError("a consumer process has died") from None
    if isinstance(answer, str):
        raise RuntimeError(f"a consumer process failed: {answer}")
    return answer


def consume(connection: Connection, device: str, rank: int, consumers: int) -> None:
    """The consumer process of one rank: answers each batch, and at the end (wrong, served twice, leftovers)."""
    try:
        opened = Device(device)
        source = pattern(opened.torch_device)
        opened.close()
        connection.send(True)
        wrong = served = 0
        while (batch := connection.recv()) is not None:
            for index, data in batch:
                tensor = TensorProxy.from_bytes(data).reconstruct_on_target_device(device, consumers, rank)
                wrong += not torch.equal(tensor, piece(source, index))
                if index % 10 == 0:
                    served += _serves_again(data, device, consumers, rank)
            connection.send(True)
        close_imports()
        connection.send((wrong, served, held()))
    except BaseException as error:
        connection.send(f"{type(error).__name__}: {error}")
        raise


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
