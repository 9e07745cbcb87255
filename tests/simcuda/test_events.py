"""Events: what they stand for, and when."""

from __future__ import annotations

import pytest
from cuda.bindings import driver as cuda

from tests.simcuda.support import INVALID_HANDLE, INVALID_VALUE, NOT_READY, code, event, memory, ok, stream
from vmmref.simcuda import Blocked, Simulator

pytestmark = pytest.mark.simulator


def test_an_event_never_recorded_is_no_wait(either: Simulator) -> None:
    happened = event()
    assert code(cuda.cuEventQuery(happened)) == 0
    ok(cuda.cuEventSynchronize(happened))
    queue = stream()
    ok(cuda.cuStreamWaitEvent(queue, happened, 0))
    ok(cuda.cuStreamSynchronize(queue))


def test_a_wait_is_for_the_record_before_it(stepping: Simulator) -> None:
    block = memory()
    recording, waiting = stream(), stream()
    happened = event()
    ok(cuda.cuStreamWriteValue32(recording, block.address, 1, 0))
    ok(cuda.cuEventRecord(happened, recording))
    ok(cuda.cuStreamWaitEvent(waiting, happened, 0))
    ok(cuda.cuStreamWriteValue32(recording, block.address, 2, 0))
    ok(cuda.cuEventRecord(happened, recording))
    stepping.step(recording)
    assert isinstance(stepping.step(waiting), Blocked)
    stepping.step(recording)
    assert not isinstance(stepping.step(waiting), Blocked)
    assert code(cuda.cuEventQuery(happened)) == NOT_READY, "the event stands for its last record"


def test_a_destroyed_event_still_orders(stepping: Simulator) -> None:
    block = memory()
    first, second = stream(), stream()
    happened = event()
    ok(cuda.cuStreamWriteValue32(first, block.address, 1, 0))
    ok(cuda.cuEventRecord(happened, first))
    ok(cuda.cuStreamWaitEvent(second, happened, 0))
    ok(cuda.cuEventDestroy(happened))
    ok(cuda.cuStreamDestroy(first))
    assert isinstance(stepping.step(second), Blocked)
    ok(cuda.cuStreamSynchronize(second))
    assert stepping.read_word(block.address) == 1


def test_events_of_another_device_can_be_waited_for(stepping: Simulator) -> None:
    block = memory()
    first = stream()
    happened = event()
    ok(cuda.cuStreamWriteValue32(first, block.address, 1, 0))
    ok(cuda.cuEventRecord(happened, first))
    ok(cuda.cuCtxPushCurrent(ok(cuda.cuDevicePrimaryCtxRetain(1))))
    on_one = stream()
    assert code(cuda.cuEventRecord(happened, on_one)) == INVALID_HANDLE
    ok(cuda.cuStreamWaitEvent(on_one, happened, 0))
    ok(cuda.cuStreamSynchronize(on_one))
    ok(cuda.cuCtxPopCurrent())
    ok(cuda.cuDevicePrimaryCtxRelease(1))
    assert stepping.read_word(block.address) == 1


def test_flags_and_handles_are_checked(stepping: Simulator) -> None:
    interprocess = int(cuda.CUevent_flags.CU_EVENT_INTERPROCESS)
    assert code(cuda.cuEventCreate(interprocess)) == INVALID_VALUE
    assert code(cuda.cuEventCreate(64)) == INVALID_VALUE
    happened = event()
    ok(cuda.cuEventDestroy(happened))
    for call in (cuda.cuEventQuery, cuda.cuEventSynchronize, cuda.cuEventDestroy):
        assert code(call(happened)) == INVALID_HANDLE
    assert len(stepping.violations()) == 3


def test_elapsed_time_needs_timing_and_both_records(stepping: Simulator) -> None:
    queue = stream()
    start, end = (int(ok(cuda.cuEventCreate(0))) for _ in range(2))
    assert code(cuda.cuEventElapsedTime(start, end)) == INVALID_HANDLE
    ok(cuda.cuEventRecord(start, queue))
    ok(cuda.cuEventRecord(end, queue))
    assert code(cuda.cuEventElapsedTime(start, end)) == NOT_READY
    ok(cuda.cuStreamSynchronize(queue))
    assert ok(cuda.cuEventElapsedTime(start, end)) >= 0
    assert code(cuda.cuEventElapsedTime(start, event())) == INVALID_HANDLE
