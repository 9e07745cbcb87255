"""Stepping: queued pieces run only when told, one at a time, and a caller that waits never hangs."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from cuda.bindings import driver as cuda

from tests.simcuda.support import (
    EQ,
    GEQ,
    INVALID_HANDLE,
    LAUNCH_TIMEOUT,
    NOT_PERMITTED,
    NOT_READY,
    Memory,
    code,
    event,
    memory,
    ok,
    stream,
)
from vmmref.simcuda import BLOCKED, EMPTY, INVALID, RAN, Blocked, Piece, PieceKind, Simulator, SimulatorError, load

pytestmark = pytest.mark.simulator

HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@pytest.fixture
def block(stepping: Simulator) -> Memory:
    """Two mebibytes of device memory."""
    return memory()


def kinds(simulator: Simulator, queue: int) -> list[PieceKind]:
    """Step a stream until it is empty or blocked; what ran."""
    ran = []
    while isinstance(piece := simulator.step(queue), Piece):
        ran.append(piece.kind)
    return ran


def host_function(queue: int, function: Any) -> None:
    """Enqueue a host function that takes no data."""
    ok(cuda.cuLaunchHostFunc(queue, cuda.CUhostFn(_ptr=ctypes.addressof(function)), 0))


def test_nothing_runs_until_it_is_stepped(stepping: Simulator, block: Memory) -> None:
    queue = stream()
    for value in (1, 2, 3):
        ok(cuda.cuStreamWriteValue32(queue, block.address, value, 0))
    seen = []
    assert stepping.pending(queue) == 3
    assert code(cuda.cuStreamQuery(queue)) == NOT_READY
    for _ in range(4):
        seen.append(stepping.read_word(block.address))
        stepping.step(queue)
    assert seen == [0, 1, 2, 3]
    assert stepping.step(queue) is None
    assert code(cuda.cuStreamQuery(queue)) == 0


def test_a_step_says_what_ran(stepping: Simulator, block: Memory) -> None:
    queue = stream()
    source = block.address + 512
    ok(cuda.cuMemcpyDtoDAsync(block.address, source, 16, queue))
    ok(cuda.cuMemsetD32Async(block.address + 64, 5, 3, queue))
    copy = stepping.step(queue)
    assert isinstance(copy, Piece)
    order = copy.order
    assert copy == Piece(PieceKind.COPY, block.address, source, 16, 0, queue, order, 0)
    assert stepping.peek(queue) == Piece(PieceKind.MEMSET, block.address + 64, 0, 12, 5, queue, order + 1, 0)
    assert stepping.pending(queue) == 1
    assert stepping.step_raw(queue) == RAN
    assert stepping.step_raw(queue) == EMPTY


def test_every_kind_of_piece(stepping: Simulator, block: Memory) -> None:
    queue, other = stream(), stream()
    happened = event()
    called: list[int] = []
    function = HostFunction(lambda _data: called.append(1))
    ok(cuda.cuMemsetD8Async(block.address + 8, 1, 1, other))
    ok(cuda.cuEventRecord(happened, other))
    ok(cuda.cuStreamWaitEvent(queue, happened, 0))
    ok(cuda.cuMemcpyHtoDAsync(block.address, b"abcd", 4, queue))
    ok(cuda.cuMemsetD8Async(block.address, 0, 4, queue))
    ok(cuda.cuStreamWriteValue64(queue, block.address, 7, 0))
    ok(cuda.cuStreamWaitValue64(queue, block.address, 7, EQ))
    host_function(queue, function)
    ok(cuda.cuEventRecord(happened, queue))
    assert isinstance(stepping.step(queue), Blocked)
    assert kinds(stepping, other) == [PieceKind.MEMSET, PieceKind.EVENT_RECORD]
    assert kinds(stepping, queue) == [
        PieceKind.EVENT_WAIT,
        PieceKind.COPY,
        PieceKind.MEMSET,
        PieceKind.WRITE,
        PieceKind.WAIT,
        PieceKind.HOST_FUNCTION,
        PieceKind.EVENT_RECORD,
    ]
    assert called == [1]


def test_a_blocked_wait_is_told_apart_from_an_empty_queue(stepping: Simulator, block: Memory) -> None:
    queue = stream()
    ok(cuda.cuStreamWaitValue32(queue, block.address, 2, GEQ))
    outcome = stepping.step(queue)
    assert isinstance(outcome, Blocked)
    assert (outcome.piece.kind, outcome.piece.destination, outcome.piece.value) == (PieceKind.WAIT, block.address, 2)
    assert stepping.step_raw(queue) == BLOCKED
    assert stepping.step_memory_raw(queue) == BLOCKED
    ok(cuda.cuMemsetD32(block.address, 2, 1))
    assert isinstance(stepping.step(queue), Piece)


def test_step_memory_takes_bookkeeping_along(stepping: Simulator, block: Memory) -> None:
    queue = stream()
    first, second = event(), event()
    called: list[int] = []
    function = HostFunction(lambda _data: called.append(1))
    ok(cuda.cuEventRecord(first, queue))
    host_function(queue, function)
    ok(cuda.cuStreamWriteValue32(queue, block.address, 5, 0))
    ok(cuda.cuEventRecord(second, queue))
    ok(cuda.cuStreamWriteValue32(queue, block.address, 6, 0))
    piece = stepping.step_memory(queue)
    assert isinstance(piece, Piece)
    assert (piece.kind, piece.value) == (PieceKind.WRITE, 5)
    assert called == [1]
    assert code(cuda.cuEventQuery(second)) == 0
    assert stepping.pending(queue) == 1
    assert stepping.step_memory_raw(queue) == RAN
    assert stepping.step_memory(queue) is None


def test_step_submission_follows_the_order_of_the_calls(stepping: Simulator, block: Memory) -> None:
    """
    The oldest piece that can run, over all streams.

    Given: a stream blocked on a word, and three writes on two other streams, the last of which satisfies it.
    When: pieces are run by submission.
    Then: the blocked stream is passed over until its wait holds, and is then the oldest.
    """
    waiting, left, right = stream(), stream(), stream()
    ok(cuda.cuStreamWaitValue32(waiting, block.address, 3, EQ))
    ok(cuda.cuStreamWriteValue32(left, block.address, 1, 0))
    ok(cuda.cuStreamWriteValue32(right, block.address, 2, 0))
    ok(cuda.cuStreamWriteValue32(left, block.address, 3, 0))
    ok(cuda.cuStreamWaitValue32(right, block.address, 9, EQ))
    ran = []
    while isinstance(piece := stepping.step_submission(), Piece):
        ran.append(piece.stream)
    assert ran == [left, right, left, waiting]
    assert isinstance(piece, Blocked) or stepping.pending(right) == 1
    ok(cuda.cuMemsetD32(block.address, 9, 1))
    assert stepping.drain_all() == 0
    assert stepping.step_submission() is None


def test_synchronising_runs_the_queue_in_the_caller(stepping: Simulator, block: Memory) -> None:
    queue = stream()
    ok(cuda.cuStreamWriteValue32(queue, block.address, 5, 0))
    ok(cuda.cuStreamSynchronize(queue))
    assert stepping.read_word(block.address) == 5


def test_synchronising_follows_events(stepping: Simulator, block: Memory) -> None:
    """Only what the waited-for event needs runs on the other stream."""
    first, second, third = stream(), stream(), stream()
    here, there = event(), event()
    ok(cuda.cuStreamWriteValue32(first, block.address, 1, 0))
    ok(cuda.cuEventRecord(here, first))
    ok(cuda.cuStreamWriteValue32(first, block.address + 4, 1, 0))
    ok(cuda.cuStreamWaitEvent(second, here, 0))
    ok(cuda.cuEventRecord(there, second))
    ok(cuda.cuStreamWaitEvent(third, there, 0))
    ok(cuda.cuMemcpyDtoDAsync(block.address + 8, block.address, 4, third))
    ok(cuda.cuStreamSynchronize(third))
    assert stepping.read_word(block.address + 8) == 1
    assert stepping.read_word(block.address + 4) == 0
    assert stepping.pending(first) == 1


def test_event_synchronize_stops_at_the_event(stepping: Simulator, block: Memory) -> None:
    queue = stream()
    happened = event()
    ok(cuda.cuStreamWriteValue32(queue, block.address, 1, 0))
    ok(cuda.cuEventRecord(happened, queue))
    ok(cuda.cuStreamWriteValue32(queue, block.address, 2, 0))
    ok(cuda.cuEventSynchronize(happened))
    assert stepping.read_word(block.address) == 1


def test_a_wait_that_another_queue_satisfies(stepping: Simulator, block: Memory) -> None:
    """The stream that will write the word is run, as far as that write."""
    waiting, writing = stream(), stream()
    ok(cuda.cuStreamWaitValue32(waiting, block.address, 3, GEQ))
    for value in (1, 3, 5):
        ok(cuda.cuStreamWriteValue32(writing, block.address, value, 0))
    ok(cuda.cuStreamSynchronize(waiting))
    assert stepping.read_word(block.address) == 3
    assert stepping.pending(writing) == 1
    assert stepping.violations() == ()


def test_a_wait_that_nothing_satisfies_is_an_error(stepping: Simulator, block: Memory) -> None:
    queue = stream()
    ok(cuda.cuStreamWaitValue32(queue, block.address, 7, GEQ))
    assert code(cuda.cuStreamSynchronize(queue)) == LAUNCH_TIMEOUT
    (text,) = stepping.violations()
    assert text.startswith(f"would wait for ever: stream {queue:#x} waits for a word >= 7 at {block.address:#x}")
    # The error is not sticky, and the queue is as it was.
    assert stepping.pending(queue) == 1
    ok(cuda.cuMemsetD32(block.address, 7, 1))
    ok(cuda.cuStreamSynchronize(queue))


def test_streams_that_wait_for_each_other(stepping: Simulator, block: Memory) -> None:
    left, right = stream(), stream()
    here, there = event(), event()
    ok(cuda.cuStreamWaitValue32(left, block.address, 1, EQ))
    ok(cuda.cuEventRecord(here, left))
    ok(cuda.cuStreamWaitEvent(right, here, 0))
    ok(cuda.cuStreamWriteValue32(right, block.address, 1, 0))
    ok(cuda.cuEventRecord(there, right))
    for call in (
        lambda: cuda.cuStreamSynchronize(left),
        lambda: cuda.cuStreamSynchronize(right),
        lambda: cuda.cuEventSynchronize(there),
        cuda.cuCtxSynchronize,
    ):
        stepping.clear_violations()
        assert code(call()) == LAUNCH_TIMEOUT
        assert stepping.violations()[0].startswith("would wait for ever")
    assert stepping.drain(left) == 2


def test_pageable_source_is_taken_at_the_call(stepping: Simulator, block: Memory) -> None:
    queue = stream()
    for size in (8, 4096):
        source = bytearray(b"a" * size)
        ok(cuda.cuMemcpyHtoDAsync(block.address, source, size, queue))
        source[:] = b"b" * size
        stepping.step(queue)
        assert stepping.read_bytes(block.address, size) == b"a" * size


def test_pinned_source_is_read_when_the_copy_runs(stepping: Simulator, block: Memory) -> None:
    queue = stream()
    pinned = int(ok(cuda.cuMemHostAlloc(64, 0)))
    ctypes.memset(pinned, 1, 8)
    ok(cuda.cuMemcpyHtoDAsync(block.address, pinned, 8, queue))
    ctypes.memset(pinned, 2, 8)
    stepping.step(queue)
    assert stepping.read_bytes(block.address, 8) == b"\2" * 8


def test_download_to_pinned_memory_stays_queued(stepping: Simulator, block: Memory) -> None:
    queue = stream()
    pinned = int(ok(cuda.cuMemHostAlloc(64, 0)))
    ok(cuda.cuStreamWriteValue32(queue, block.address, 9, 0))
    ok(cuda.cuMemcpyDtoHAsync(pinned, block.address, 4, queue))
    assert stepping.pending(queue) == 2
    assert ctypes.string_at(pinned, 4) == bytes(4)
    assert stepping.drain(queue) == 0
    assert ctypes.string_at(pinned, 4) == b"\x09\0\0\0"


def test_download_to_pageable_memory_drains(stepping: Simulator, block: Memory) -> None:
    queue = stream()
    answer = bytearray(4)
    ok(cuda.cuStreamWriteValue32(queue, block.address, 9, 0))
    ok(cuda.cuMemcpyDtoHAsync(answer, block.address, 4, queue))
    assert answer == b"\x09\0\0\0"
    ok(cuda.cuStreamWaitValue32(queue, block.address, 1, EQ))
    assert code(cuda.cuMemcpyDtoHAsync(answer, block.address, 4, queue)) == LAUNCH_TIMEOUT
    assert stepping.pending(queue) == 1, "the failed call leaves nothing behind"


def test_framework_memory_is_device_memory(stepping: Simulator, block: Memory) -> None:
    """
    A tensor of a framework on the simulated device lies in host memory that no call of the driver has made.

    Given: such memory, copied to and from with cuMemcpyDtoDAsync.
    When: it changes before the copy runs.
    Then: the copy is queued and takes the bytes when it runs, as a copy between device addresses does.
    """
    queue = stream()
    source, target = ctypes.create_string_buffer(b"before", 8), ctypes.create_string_buffer(8)
    ok(cuda.cuMemcpyDtoDAsync(block.address, ctypes.addressof(source), 8, queue))
    ok(cuda.cuMemcpyDtoDAsync(ctypes.addressof(target), block.address, 8, queue))
    assert stepping.pending(queue) == 2
    source.value = b"after"
    stepping.drain(queue)
    assert target.value == b"after"


def test_a_destroyed_stream_still_runs_its_queue(stepping: Simulator, block: Memory) -> None:
    queue = stream()
    ok(cuda.cuStreamWriteValue32(queue, block.address, 1, 0))
    ok(cuda.cuStreamDestroy(queue))
    assert code(cuda.cuStreamSynchronize(queue)) == INVALID_HANDLE
    assert stepping.usage().streams == 1
    assert stepping.step_memory_raw(queue) == RAN
    assert stepping.usage().streams == 0
    assert stepping.step_raw(queue) == INVALID


def test_legacy_stream_orders_blocking_streams(stepping: Simulator, block: Memory) -> None:
    blocking, free = stream(flags=0), stream()
    ok(cuda.cuStreamWriteValue32(blocking, block.address, 1, 0))
    ok(cuda.cuStreamWriteValue32(free, block.address + 4, 1, 0))
    answer = bytearray(8)
    ok(cuda.cuMemcpyDtoH(answer, block.address, 8))
    assert answer == b"\1\0\0\0" + bytes(4)
    assert (stepping.pending(blocking), stepping.pending(free)) == (0, 1)


def test_driver_calls_from_a_host_function_are_refused(stepping: Simulator, block: Memory) -> None:
    queue = stream()
    answers: list[int] = []
    refusals: list[str] = []

    def call(_data: int | None) -> None:
        answers.append(code(cuda.cuStreamQuery(queue)))
        answers.append(stepping.step_raw(queue))
        try:
            stepping.reset()
        except SimulatorError as error:
            refusals.append(str(error))

    function = HostFunction(call)
    host_function(queue, function)
    ok(cuda.cuStreamSynchronize(queue))
    assert answers == [NOT_PERMITTED, INVALID]
    assert refusals == ["reset was called from a host function"]
    assert "cuStreamQuery called from a host function" in stepping.violations()[0]


def test_modes_hold_for_new_streams(stepping: Simulator, block: Memory) -> None:
    stepped = stream()
    stepping.set_mode("threads")
    assert stepping.mode == "threads"
    threaded = stream()
    assert stepping.step_raw(threaded) == INVALID
    with pytest.raises(SimulatorError, match="not a stepped stream"):
        stepping.step(threaded)
    ok(cuda.cuStreamWriteValue32(stepped, block.address, 1, 0))
    assert stepping.pending(stepped) == 1
    with pytest.raises(ValueError, match="threads, stepping"):
        stepping.set_mode("steps")


def test_reset_drops_everything_but_the_context(stepping: Simulator, block: Memory) -> None:
    queue = stream()
    happened = event()
    ok(cuda.cuMemHostAlloc(64, 0))
    ok(cuda.cuStreamWaitValue32(queue, block.address, 1, EQ))
    ok(cuda.cuEventRecord(happened, queue))
    stepping.fail_any(1000, 2)
    stepping.reset()
    assert stepping.usage().is_empty
    assert stepping.armed() == stepping.call_count() == 0
    assert code(cuda.cuStreamSynchronize(queue)) == INVALID_HANDLE
    assert code(cuda.cuMemRelease(block.handle)) != 0, "numbers are not given out again"
    assert memory().address != block.address
    assert load() is stepping
