"""Strict checks: what the real driver leaves undefined is an error here, and a text that names it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cuda.bindings import driver as cuda

from tests.simcuda.support import (
    ILLEGAL_ADDRESS,
    INVALID_HANDLE,
    INVALID_VALUE,
    SIZE,
    code,
    create,
    memory,
    ok,
    properties,
    reserve,
    stream,
)
from vmmref.simcuda import Piece, Simulator, load

pytestmark = pytest.mark.simulator


def release_twice() -> int:
    handle = create()
    ok(cuda.cuMemRelease(handle))
    return code(cuda.cuMemRelease(handle))


def map_released() -> int:
    handle = create()
    ok(cuda.cuMemRelease(handle))
    return code(cuda.cuMemMap(reserve(), SIZE, 0, handle, 0))


def export_released() -> int:
    handle = create()
    ok(cuda.cuMemRelease(handle))
    posix = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    return code(cuda.cuMemExportToShareableHandle(handle, posix, 0))


def unmap_a_part() -> int:
    return code(cuda.cuMemUnmap(memory(2 * SIZE).address, SIZE))


def unmap_twice() -> int:
    block = memory()
    ok(cuda.cuMemUnmap(block.address, SIZE))
    return code(cuda.cuMemUnmap(block.address, SIZE))


def access_to_a_part() -> int:
    wanted = cuda.CUmemAccessDesc()
    wanted.location = properties().location
    wanted.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
    return code(cuda.cuMemSetAccess(memory(2 * SIZE).address, SIZE, [wanted], 1))


def free_addresses_while_mapped() -> int:
    return code(cuda.cuMemAddressFree(memory().address, SIZE))


def free_part_of_a_reservation() -> int:
    return code(cuda.cuMemAddressFree(reserve(2 * SIZE), SIZE))


def free_addresses_twice() -> int:
    address = reserve()
    ok(cuda.cuMemAddressFree(address, SIZE))
    return code(cuda.cuMemAddressFree(address, SIZE))


def map_with_offset() -> int:
    return code(cuda.cuMemMap(reserve(), SIZE, 4096, create(), 0))


def map_a_part() -> int:
    return code(cuda.cuMemMap(reserve(), SIZE, 0, create(2 * SIZE), 0))


def map_twice() -> int:
    block = memory()
    return code(cuda.cuMemMap(block.address, SIZE, 0, block.handle, 0))


def map_outside() -> int:
    return code(cuda.cuMemMap(reserve() + 64 * SIZE, SIZE, 0, create(), 0))


def map_misaligned() -> int:
    return code(cuda.cuMemMap(reserve(2 * SIZE) + 4096, SIZE, 0, create(), 0))


def create_misaligned() -> int:
    return code(cuda.cuMemCreate(SIZE + 1, properties(), 0))


def free_pinned_twice() -> int:
    address = int(ok(cuda.cuMemHostAlloc(64, 0)))
    ok(cuda.cuMemFreeHost(address))
    return code(cuda.cuMemFreeHost(address))


def memset_misaligned() -> int:
    return code(cuda.cuMemsetD32Async(memory().address + 1, 0, 1, stream()))


MISUSES: list[tuple[Callable[[], int], str]] = [
    (release_twice, "cuMemRelease of handle 0x"),
    (map_released, "cuMemMap of handle 0x"),
    (export_released, "export of handle 0x"),
    (unmap_a_part, "not made of whole mappings"),
    (unmap_twice, "not made of whole mappings"),
    (access_to_a_part, "cuMemSetAccess of 0x"),
    (free_addresses_while_mapped, "while memory is mapped there"),
    (free_part_of_a_reservation, "not one whole reservation"),
    (free_addresses_twice, "not one whole reservation"),
    (map_with_offset, "the offset must be 0"),
    (map_a_part, "only whole allocations are mapped"),
    (map_twice, "where memory is mapped already"),
    (map_outside, "not inside a reservation"),
    (map_misaligned, "not multiples of the granularity"),
    (create_misaligned, "not a multiple of the granularity"),
    (free_pinned_twice, "no pinned allocation or is freed"),
    (memset_misaligned, "not aligned"),
]


@pytest.mark.parametrize(("misuse", "text"), MISUSES, ids=[misuse.__name__ for misuse, _ in MISUSES])
def test_misuse_is_named(stepping: Simulator, misuse: Callable[[], int], text: str) -> None:
    assert misuse() == INVALID_VALUE
    (violation,) = stepping.violations()
    assert text in violation


def test_without_strict_only_the_answer_is_left(stepping: Simulator) -> None:
    load(strict=False)
    for misuse, _ in MISUSES:
        assert misuse() == INVALID_VALUE
    assert stepping.violations() == ()


def test_stale_stream(stepping: Simulator) -> None:
    queue = stream()
    ok(cuda.cuStreamDestroy(queue))
    assert code(cuda.cuStreamSynchronize(queue)) == INVALID_HANDLE
    assert code(cuda.cuStreamDestroy(queue)) == INVALID_HANDLE
    assert all(f"{queue:#x}, which is destroyed" in text for text in stepping.violations())


def test_unmap_with_work_queued(stepping: Simulator) -> None:
    """The driver unmaps at once and does not wait: the work that runs afterwards faults and the context is lost."""
    block = memory()
    queue = stream()
    ok(cuda.cuMemsetD8Async(block.address + 100, 1, 4, queue))
    ok(cuda.cuMemUnmap(block.address, SIZE))
    assert "still has work queued" in stepping.violations()[0]
    piece = stepping.step(queue)
    assert isinstance(piece, Piece)
    assert piece.result == ILLEGAL_ADDRESS
    assert f"touches {block.address + 100:#x}, where no memory is mapped" in stepping.violations()[1]
    for _ in range(2):
        assert code(cuda.cuStreamSynchronize(queue)) == ILLEGAL_ADDRESS
    assert code(cuda.cuStreamCreate(1)) == ILLEGAL_ADDRESS
    stepping.reset()
    ok(cuda.cuStreamCreate(1))


def test_unmap_with_work_queued_that_only_reads(stepping: Simulator) -> None:
    source, target = memory(), memory()
    ok(cuda.cuMemcpyDtoDAsync(target.address, source.address, 4, stream()))
    ok(cuda.cuMemUnmap(source.address, SIZE))
    assert "still has work queued" in stepping.violations()[0]


def test_pinned_memory_freed_with_work_queued(stepping: Simulator) -> None:
    block = memory()
    queue = stream()
    pinned = int(ok(cuda.cuMemHostAlloc(64, 0)))
    ok(cuda.cuMemcpyDtoHAsync(pinned, block.address, 8, queue))
    ok(cuda.cuMemFreeHost(pinned))
    assert "still has work queued on it" in stepping.violations()[0]
    assert code(cuda.cuStreamSynchronize(queue)) == ILLEGAL_ADDRESS


def test_a_wait_on_memory_that_is_gone_faults(either: Simulator) -> None:
    block = memory()
    queue = stream()
    ok(cuda.cuStreamWaitValue32(queue, block.address, 1, 1))
    ok(cuda.cuMemUnmap(block.address, SIZE))
    assert code(cuda.cuStreamSynchronize(queue)) == ILLEGAL_ADDRESS


def test_a_copy_that_ends_outside_has_no_effect(stepping: Simulator) -> None:
    block = memory()
    assert code(cuda.cuMemcpyHtoD(block.address + SIZE - 4, b"12345678", 8)) == ILLEGAL_ADDRESS
    assert stepping.read_bytes(block.address + SIZE - 4, 4) == bytes(4)


def test_violations_can_be_cleared(stepping: Simulator) -> None:
    release_twice()
    stepping.clear_violations()
    assert stepping.violations() == ()
