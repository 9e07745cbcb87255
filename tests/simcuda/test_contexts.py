"""Devices and primary contexts."""

from __future__ import annotations

import pytest
from cuda.bindings import driver as cuda

from tests.simcuda.support import (
    CONTEXT_IS_DESTROYED,
    INVALID_CONTEXT,
    INVALID_DEVICE,
    INVALID_HANDLE,
    NOT_SUPPORTED,
    code,
    memory,
    ok,
    stream,
)
from vmmref.simcuda import Simulator, SimulatorError, load
from vmmref.simcuda.native import Option

pytestmark = pytest.mark.simulator


def test_devices_say_that_they_are_simulated(stepping: Simulator) -> None:
    assert ok(cuda.cuDeviceGetCount()) == 2
    name = ok(cuda.cuDeviceGetName(64, 1)).split(b"\0")[0]
    assert name == b"vmmref simulated GPU 1 (no hardware)"
    assert code(cuda.cuDeviceGet(2)) == INVALID_DEVICE
    assert bytes(ok(cuda.cuDeviceGetUuid(0)).bytes) != bytes(ok(cuda.cuDeviceGetUuid(1)).bytes)
    assert ok(cuda.cuDeviceTotalMem(0)) == 4 << 30


def test_attributes_that_the_pool_asks_for(stepping: Simulator) -> None:
    attribute = cuda.CUdevice_attribute
    expected = {
        attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: 1,
        attribute.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: 1,
        attribute.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED: 1,
        attribute.CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS: 1,
        attribute.CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR: 1,
        attribute.CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: 1,
        attribute.CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED: 0,
    }
    assert {asked: ok(cuda.cuDeviceGetAttribute(asked, 0)) for asked in expected} == expected


def test_peer_access(stepping: Simulator) -> None:
    assert ok(cuda.cuDeviceCanAccessPeer(0, 1)) == 1
    assert ok(cuda.cuDeviceCanAccessPeer(0, 0)) == 0
    access = cuda.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED
    assert ok(cuda.cuDeviceGetP2PAttribute(access, 0, 1)) == 1
    assert code(cuda.cuDeviceGetP2PAttribute(access, 0, 0)) == INVALID_DEVICE


def test_streams_need_a_current_context_and_memory_does_not(stepping: Simulator) -> None:
    ok(cuda.cuCtxSetCurrent(0))
    assert code(cuda.cuStreamCreate(1)) == INVALID_CONTEXT
    memory().unmap()


def test_stack_of_contexts(stepping: Simulator) -> None:
    zero = int(ok(cuda.cuCtxGetCurrent()))
    one = ok(cuda.cuDevicePrimaryCtxRetain(1))
    ok(cuda.cuCtxPushCurrent(one))
    assert int(ok(cuda.cuCtxGetDevice())) == 1
    assert int(ok(cuda.cuCtxPopCurrent())) == int(one)
    assert int(ok(cuda.cuCtxGetCurrent())) == zero
    ok(cuda.cuDevicePrimaryCtxRelease(1))
    assert code(cuda.cuCtxSetCurrent(one)) == INVALID_CONTEXT


def test_the_last_release_ends_streams_and_events(stepping: Simulator) -> None:
    ok(cuda.cuCtxPushCurrent(ok(cuda.cuDevicePrimaryCtxRetain(1))))
    on_one = stream()
    ok(cuda.cuEventCreate(0))
    ok(cuda.cuDevicePrimaryCtxRelease(1))
    assert stepping.usage().is_empty
    assert code(cuda.cuStreamCreate(1)) == CONTEXT_IS_DESTROYED
    ok(cuda.cuCtxPopCurrent())
    assert code(cuda.cuStreamSynchronize(on_one)) == INVALID_HANDLE


def test_devices_with_a_context_cannot_go(stepping: Simulator) -> None:
    ok(cuda.cuDevicePrimaryCtxRetain(1))
    with pytest.raises(SimulatorError, match="devices = 1: a device with a context or with memory cannot go"):
        load(devices=1, strict=False)
    assert stepping.settings[Option.STRICT] == 1, "all settings or none"
    ok(cuda.cuDevicePrimaryCtxRelease(1))
    load(devices=1)
    load(devices=3)
    assert ok(cuda.cuDeviceGetCount()) == 3


def test_what_the_simulator_does_not_carry_out_says_so(stepping: Simulator) -> None:
    assert code(cuda.cuModuleLoadData(b"no module")) == NOT_SUPPORTED
    assert code(cuda.cuMemAllocManaged(4096, 1)) == NOT_SUPPORTED


def test_every_result_has_a_name(stepping: Simulator) -> None:
    for result in cuda.CUresult:
        answer, name = cuda.cuGetErrorName(result)
        assert int(answer) == 0
        assert name.decode() == result.name
        assert ok(cuda.cuGetErrorString(result))
