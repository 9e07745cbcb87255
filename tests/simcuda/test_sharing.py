"""Memory shared by two processes, by descriptor and by fabric handle."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest
from cuda.bindings import driver as cuda

from tests.simcuda.children import Peer, start
from tests.simcuda.support import (
    EQ,
    FABRIC,
    GEQ,
    INVALID_DEVICE,
    INVALID_VALUE,
    NOT_SUPPORTED,
    POSIX,
    SIZE,
    code,
    create,
    map_handle,
    memory,
    ok,
    stream,
)
from vmmref.simcuda import Simulator, load

pytestmark = pytest.mark.simulator


@pytest.fixture
def peers() -> Iterator[list[Peer]]:
    """Processes that end with the test."""
    started: list[Peer] = []
    yield started
    for peer in started:
        peer.kill()
        peer.close()


def test_memory_of_a_device_that_the_importer_lacks(threads: Simulator, peers: list[Peer]) -> None:
    """As between containers that see different devices."""
    shared = ok(cuda.cuMemExportToShareableHandle(create(device=1), POSIX, 0))
    importer = start("importer")
    peers.append(importer)
    importer.send({}, shared)
    os.close(shared)
    answer, _ = importer.receive()
    assert answer == {"result": INVALID_DEVICE}


@pytest.mark.parametrize("kind", ["posix", "fabric"])
def test_both_processes_see_what_the_other_writes(threads: Simulator, peers: list[Peer], kind: str) -> None:
    """
    Given: memory of this process that holds 11, exported.
    When: another process imports it, closes what it received, and both write; then this process lets go of it.
    Then: each sees what the other wrote, and the importer keeps the memory.
    """
    handle_type = FABRIC if kind == "fabric" else POSIX
    block = memory(handle_type=handle_type)
    ok(cuda.cuMemsetD32(block.address, 11, 1))
    shared = ok(cuda.cuMemExportToShareableHandle(block.handle, handle_type, 0))
    importer = start("importer")
    peers.append(importer)
    if kind == "fabric":
        importer.send({"fabric": bytes(shared.data).hex()})
    else:
        importer.send({}, shared)
        os.close(shared)
    answer, _ = importer.receive()
    assert answer == {"result": 0, "word": 11, "device": 0}
    ok(cuda.cuMemsetD32(block.address, 12, 1))
    answer = importer.ask({})
    assert answer == {"word": 12}
    assert threads.read_word(block.address + 4) == 77
    block.unmap()
    assert threads.usage().is_empty


@pytest.mark.parametrize("kind", ["posix", "fabric"])
def test_the_importer_survives_the_exporter(threads: Simulator, peers: list[Peer], kind: str) -> None:
    exporter = start("exporter", kind)
    peers.append(exporter)
    message, descriptors = exporter.receive()
    shared = bytes.fromhex(message["fabric"]) if kind == "fabric" else descriptors[0]
    handle = int(ok(cuda.cuMemImportFromShareableHandle(shared, FABRIC if kind == "fabric" else POSIX)))
    block = map_handle(handle)
    exporter.kill()
    assert threads.read_word(block.address) == 55
    ok(cuda.cuMemsetD32(block.address, 56, 1))
    assert threads.read_word(block.address) == 56
    if kind == "fabric":
        answer = cuda.cuMemImportFromShareableHandle(shared, FABRIC)
        assert code(answer) == INVALID_VALUE, "a fabric handle pins nothing: its exporter is dead"
    else:
        again = int(ok(cuda.cuMemImportFromShareableHandle(descriptors[0], POSIX)))
        ok(cuda.cuMemRelease(again))
        os.close(descriptors[0])
    block.unmap()
    assert threads.usage().is_empty


def test_a_fabric_handle_of_released_memory_is_refused(threads: Simulator, peers: list[Peer]) -> None:
    exporter = start("exporter", "fabric")
    peers.append(exporter)
    message, _ = exporter.receive()
    exporter.ask({})
    answer = cuda.cuMemImportFromShareableHandle(bytes.fromhex(message["fabric"]), FABRIC)
    assert code(answer) == INVALID_VALUE


def test_imported_memory_may_rule_out_waits(threads: Simulator, peers: list[Peer]) -> None:
    exporter = start("exporter", "posix")
    peers.append(exporter)
    _, (descriptor,) = exporter.receive()
    block = map_handle(int(ok(cuda.cuMemImportFromShareableHandle(descriptor, POSIX))))
    os.close(descriptor)
    load(wait_on_imported=False)
    assert code(cuda.cuStreamWaitValue32(stream(), block.address, 55, EQ)) == NOT_SUPPORTED
    ok(cuda.cuStreamWriteValue32(stream(), block.address, 1, 0))
    ok(cuda.cuStreamWaitValue32(stream(), memory().address, 0, EQ))


def test_ping_pong(threads: Simulator, peers: list[Peer]) -> None:
    """Two processes hand a payload back and forth by stream waits and writes alone; no payload is torn or early."""
    rounds = 1000
    block = memory()
    shared = ok(cuda.cuMemExportToShareableHandle(block.handle, POSIX, 0))
    other = start("ping_pong", str(rounds))
    peers.append(other)
    other.send({}, shared)
    os.close(shared)
    queue = stream()
    for number in range(1, rounds + 1):
        ok(cuda.cuStreamWaitValue32(queue, block.address + 64, number - 1, GEQ))
        ok(cuda.cuMemsetD32Async(block.address + 4096, number, 16, queue))
        ok(cuda.cuStreamWriteValue32(queue, block.address, number, 0))
    answer, _ = other.receive()
    ok(cuda.cuStreamSynchronize(queue))
    assert answer == {"wrong": 0}


def test_importing_own_memory_makes_another_handle(stepping: Simulator) -> None:
    block = memory()
    shared = ok(cuda.cuMemExportToShareableHandle(block.handle, POSIX, 0))
    again = [int(ok(cuda.cuMemImportFromShareableHandle(shared, POSIX))) for _ in range(2)]
    os.close(shared)
    assert len({block.handle, *again}) == 3
    assert stepping.usage().bytes == SIZE
    other = map_handle(again[0])
    ok(cuda.cuMemsetD8(block.address, 9, 1))
    assert stepping.read_bytes(other.address, 1) == b"\x09"


def test_what_is_not_simulated_memory_is_refused(stepping: Simulator) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(bytes(3 * SIZE))
        file.flush()
        assert code(cuda.cuMemImportFromShareableHandle(file.fileno(), POSIX)) == INVALID_VALUE
    read_end, write_end = os.pipe()
    assert code(cuda.cuMemImportFromShareableHandle(read_end, POSIX)) == INVALID_VALUE
    os.close(read_end)
    os.close(write_end)
    assert code(cuda.cuMemImportFromShareableHandle(read_end, POSIX)) == INVALID_VALUE
    assert code(cuda.cuMemImportFromShareableHandle(bytes(64), FABRIC)) == INVALID_VALUE


def test_only_requested_types_are_exported(stepping: Simulator) -> None:
    posix, fabric = create(handle_type=POSIX), create(handle_type=FABRIC)
    assert code(cuda.cuMemExportToShareableHandle(posix, FABRIC, 0)) == INVALID_VALUE
    assert code(cuda.cuMemExportToShareableHandle(fabric, POSIX, 0)) == INVALID_VALUE
    handle = ok(cuda.cuMemExportToShareableHandle(fabric, FABRIC, 0))
    damaged = bytearray(handle.data)
    damaged[20] ^= 1
    assert code(cuda.cuMemImportFromShareableHandle(bytes(damaged), FABRIC)) == INVALID_VALUE
    assert len(bytes(handle.data)) == 64
