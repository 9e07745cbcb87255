"""Handles, reservations, mappings, access: answers and what they keep alive."""

from __future__ import annotations

import pytest
from cuda.bindings import driver as cuda

from tests.simcuda.support import (
    FABRIC,
    ILLEGAL_ADDRESS,
    INVALID_DEVICE,
    INVALID_VALUE,
    MIB,
    NO_ACCESS,
    NO_HANDLE,
    NOT_PERMITTED,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    POSIX,
    READ,
    SIZE,
    allow,
    code,
    create,
    map_handle,
    memory,
    ok,
    properties,
    reserve,
    stream,
    use_device,
)
from vmmref.simcuda import Simulator, SimulatorError, load

pytestmark = pytest.mark.simulator


def test_granularity_is_two_mebibytes_unless_configured(stepping: Simulator) -> None:
    flags = cuda.CUmemAllocationGranularity_flags
    for option in (flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM, flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED):
        assert ok(cuda.cuMemGetAllocationGranularity(properties(), option)) == 2 * MIB
    load(granularity=64 << 10)
    try:
        minimum = flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        assert ok(cuda.cuMemGetAllocationGranularity(properties(), minimum)) == 64 << 10
        memory(64 << 10).unmap()
    finally:
        load(granularity=2 * MIB)


def test_bytes_survive_a_round_trip(either: Simulator) -> None:
    block = memory()
    ok(cuda.cuMemcpyHtoD(block.address + 5, b"0123456789", 10))
    answer = bytearray(10)
    ok(cuda.cuMemcpyDtoH(answer, block.address + 5, 10))
    assert answer == b"0123456789"
    block.unmap()
    assert either.usage().is_empty
    assert either.violations() == ()


@pytest.mark.parametrize("first", range(9))
@pytest.mark.parametrize("second", [0, 1, 4, 7])
def test_copies_and_memsets_of_every_alignment(stepping: Simulator, first: int, second: int) -> None:
    block = memory()
    source = bytes(range(1, 60))
    for count in (1, 3, 4, 8, 9, 31, 59):
        ok(cuda.cuMemsetD8(block.address, 0, 512))
        ok(cuda.cuMemcpyHtoD(block.address + first, source, count))
        ok(cuda.cuMemcpyDtoD(block.address + 256 + second, block.address + first, count))
        ok(cuda.cuMemsetD8(block.address + 128 + first, 0xAB, count))
        written = stepping.read_bytes(block.address, 512)
        expected = bytearray(512)
        expected[first : first + count] = source[:count]
        expected[256 + second : 256 + second + count] = source[:count]
        expected[128 + first : 128 + first + count] = b"\xab" * count
        assert written == expected


def test_memset_of_words(stepping: Simulator) -> None:
    block = memory()
    ok(cuda.cuMemsetD32(block.address + 4, 0x01020304, 5))
    assert stepping.read_bytes(block.address, 28) == bytes(4) + bytes([4, 3, 2, 1]) * 5 + bytes(4)
    assert code(cuda.cuMemsetD32(block.address + 2, 1, 1)) == INVALID_VALUE


def test_large_copy(threads: Simulator) -> None:
    block = memory(4 * MIB)
    data = bytes(range(256)) * (MIB // 256)
    ok(cuda.cuMemcpyHtoD(block.address, data, MIB))
    ok(cuda.cuMemcpyDtoD(block.address + 2 * MIB, block.address, MIB))
    assert threads.read_bytes(block.address + 2 * MIB, MIB) == data


def test_one_memory_at_two_addresses(stepping: Simulator) -> None:
    first = memory()
    second = map_handle(first.handle)
    ok(cuda.cuMemsetD8(first.address, 7, 1))
    assert stepping.read_bytes(second.address, 1) == b"\x07"
    assert stepping.usage().bytes == SIZE


def test_memory_lives_until_the_last_handle_and_mapping(stepping: Simulator) -> None:
    block = memory()
    ok(cuda.cuMemRelease(block.handle))
    ok(cuda.cuMemsetD8(block.address, 1, 1))
    again = int(ok(cuda.cuMemRetainAllocationHandle(block.address + 100)))
    ok(cuda.cuMemUnmap(block.address, SIZE))
    assert stepping.usage().bytes == SIZE
    ok(cuda.cuMemRelease(again))
    assert stepping.usage().bytes == 0


def test_properties_of_a_handle(stepping: Simulator) -> None:
    handle = create(device=1, handle_type=FABRIC)
    found = ok(cuda.cuMemGetAllocationPropertiesFromHandle(handle))
    assert found.location.id == 1
    assert found.requestedHandleTypes == FABRIC


def test_access_is_per_device_and_starts_at_none(stepping: Simulator) -> None:
    address = reserve()
    handle = create()
    ok(cuda.cuMemMap(address, SIZE, 0, handle, 0))
    where = cuda.CUmemLocation()
    where.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    where.id = 1
    assert ok(cuda.cuMemGetAccess(where, address)) == 0
    ok(allow(address, device=1, flags=READ))
    assert ok(cuda.cuMemGetAccess(where, address + 5)) == 1
    assert code(cuda.cuMemsetD8(address, 1, 1)) == ILLEGAL_ADDRESS
    assert "device has no access" in stepping.violations()[-1]


def test_read_only_memory_refuses_a_store_and_gives_a_load(stepping: Simulator) -> None:
    block = memory()
    ok(cuda.cuMemsetD8(block.address, 9, 4))
    ok(allow(block.address, flags=READ))
    answer = bytearray(4)
    ok(cuda.cuMemcpyDtoH(answer, block.address, 4))
    assert answer == b"\x09" * 4
    assert code(cuda.cuMemsetD8(block.address, 1, 1)) == ILLEGAL_ADDRESS
    assert "may only read" in stepping.violations()[-1]
    assert stepping.read_bytes(block.address, 4) == b"\x09" * 4


def test_memory_without_access_can_still_be_observed(stepping: Simulator) -> None:
    block = memory()
    ok(cuda.cuMemsetD8(block.address, 3, 4))
    ok(allow(block.address, flags=NO_ACCESS))
    assert stepping.read_bytes(block.address, 4) == b"\x03" * 4
    ok(cuda.cuMemUnmap(block.address, SIZE))
    with pytest.raises(SimulatorError, match="no memory is mapped"):
        stepping.read_bytes(block.address, 4)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"size": SIZE + 4096}, INVALID_VALUE),
        ({"size": 0}, INVALID_VALUE),
        ({"device": 7}, INVALID_DEVICE),
        ({"handle_type": cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_WIN32}, NOT_SUPPORTED),
    ],
)
def test_create_refuses(stepping: Simulator, change: dict[str, int], expected: int) -> None:
    wanted = {"size": SIZE, "device": 0, "handle_type": POSIX} | change
    size = wanted.pop("size")
    assert code(cuda.cuMemCreate(size, properties(**wanted), 0)) == expected
    assert stepping.usage().is_empty


def test_handle_types_that_the_machine_lacks(stepping: Simulator) -> None:
    load(handle_types=1)
    assert code(cuda.cuMemCreate(SIZE, properties(handle_type=FABRIC), 0)) == NOT_PERMITTED
    supported = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED
    assert ok(cuda.cuDeviceGetAttribute(supported, 0)) == 0
    load(handle_types=0)
    assert code(cuda.cuMemCreate(SIZE, properties(), 0)) == NOT_SUPPORTED
    create(handle_type=NO_HANDLE)


def test_device_memory_is_bounded(stepping: Simulator) -> None:
    load(memory_bytes=2 * SIZE)
    handles = [create(), create()]
    assert code(cuda.cuMemCreate(SIZE, properties(), 0)) == OUT_OF_MEMORY
    assert ok(cuda.cuMemGetInfo()) == (0, 2 * SIZE)
    create(device=1)
    ok(cuda.cuMemRelease(handles[0]))
    create()


def test_reservations_are_aligned_and_hints_are_followed(stepping: Simulator) -> None:
    address = int(ok(cuda.cuMemAddressReserve(SIZE, 16 * MIB, 0, 0)))
    assert address % (16 * MIB) == 0
    hint = 1 << 40  # far below what the kernel gives out
    assert int(ok(cuda.cuMemAddressReserve(SIZE, 0, hint, 0))) == hint
    assert int(ok(cuda.cuMemAddressReserve(SIZE, 0, hint, 0))) != hint
    assert code(cuda.cuMemAddressReserve(SIZE, 3, 0, 0)) == INVALID_VALUE


def test_two_memories_side_by_side(stepping: Simulator) -> None:
    """One access call, one copy and one unmap may span several mappings."""
    address = reserve(2 * SIZE)
    for offset in (0, SIZE):
        ok(cuda.cuMemMap(address + offset, SIZE, 0, create(), 0))
    ok(allow(address, 2 * SIZE))
    ok(cuda.cuMemcpyHtoD(address + SIZE - 4, b"abcdefgh", 8))
    assert stepping.read_bytes(address + SIZE - 4, 8) == b"abcdefgh"
    ok(cuda.cuMemUnmap(address, 2 * SIZE))
    assert stepping.usage().mappings == 0


def test_plain_allocations(either: Simulator) -> None:
    address = int(ok(cuda.cuMemAlloc(100)))
    ok(cuda.cuMemsetD8(address, 5, 100))
    assert int(ok(cuda.cuMemGetAddressRange(address + 50))[0]) == address
    assert code(cuda.cuMemRetainAllocationHandle(address)) == INVALID_VALUE
    assert either.usage().allocations == 1
    assert either.usage().handles == either.usage().mappings == either.usage().reservations == 0
    ok(cuda.cuMemFree(address))
    assert either.usage().is_empty
    assert code(cuda.cuMemFree(address)) == INVALID_VALUE


def test_pointer_attributes(stepping: Simulator) -> None:
    block = memory(device=1)
    attribute = cuda.CUpointer_attribute
    assert ok(cuda.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block.address)) == 1
    assert int(ok(cuda.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block.address))) == 2
    assert ok(cuda.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_RANGE_SIZE, block.address)) == SIZE
    both = [attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED]
    assert [int(value) for value in ok(cuda.cuPointerGetAttributes(2, both, block.address))] == [1, 0]
    assert code(cuda.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 4096)) == INVALID_VALUE


def test_addresses_given_back_are_not_used_again(stepping: Simulator) -> None:
    """
    Quarantine: a late use of freed addresses is found, not served from somebody else's memory.

    Given: a block unmapped and freed.
    When: many others are reserved, and the old address is written.
    Then: none of them overlaps it, and the write is a device fault.
    """
    block = memory()
    block.unmap()
    others = [reserve() for _ in range(50)]
    assert block.address not in others
    assert code(cuda.cuMemsetD8(block.address, 1, 1)) == ILLEGAL_ADDRESS
    assert "no memory is mapped" in stepping.violations()[-1]


def test_the_quarantine_is_bounded(stepping: Simulator) -> None:
    load(quarantine=2 * SIZE)
    blocks = [memory() for _ in range(3)]
    for block in blocks:
        block.unmap()
    assert code(cuda.cuMemsetD8Async(blocks[0].address, 1, 1, stream())) == INVALID_VALUE
    assert code(cuda.cuMemsetD8Async(blocks[2].address, 1, 1, stream())) == 0


def test_each_device_needs_its_own_access(stepping: Simulator) -> None:
    """A copy runs as its stream's device: device 1 may read the memory of device 0 only when it was given access."""
    block = memory(device=0)
    use_device(1)
    on_one = stream()
    ok(cuda.cuMemsetD8Async(block.address, 1, 1, on_one))
    assert code(cuda.cuStreamSynchronize(on_one)) == ILLEGAL_ADDRESS
    use_device(0)
    assert code(cuda.cuCtxSynchronize()) == 0, "the fault belongs to the context of device 1"
    stepping.reset()
    block = memory(device=0)
    ok(allow(block.address, device=1))
    use_device(1)
    on_one = stream()
    ok(cuda.cuMemsetD8Async(block.address, 1, 1, on_one))
    ok(cuda.cuStreamSynchronize(on_one))
    assert stepping.read_bytes(block.address, 1) == b"\x01"
    for _ in range(2):
        cuda.cuDevicePrimaryCtxRelease(1)
    cuda.cuDevicePrimaryCtxRelease(0)
