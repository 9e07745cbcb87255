"""Threads mode: streams run beside their callers, waits block, and every wait has an end."""

from __future__ import annotations

import ctypes
import struct
import threading
import time

import pytest
from cuda.bindings import driver as cuda

from tests.simcuda.support import (
    CONTEXT_IS_DESTROYED,
    EQ,
    GEQ,
    LAUNCH_TIMEOUT,
    NOT_READY,
    UNKNOWN,
    code,
    event,
    memory,
    ok,
    stream,
)
from vmmref.simcuda import Simulator, load

pytestmark = pytest.mark.simulator

HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
PATIENCE_SECONDS = 20


def in_context(context: int, work: object, *arguments: object) -> threading.Thread:
    """Start a thread with the context current."""

    def run() -> None:
        ok(cuda.cuCtxSetCurrent(context))
        work(*arguments)  # type: ignore[operator]

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_work_runs_without_being_waited_for(threads: Simulator) -> None:
    block = memory()
    queue = stream()
    ok(cuda.cuStreamWriteValue32(queue, block.address, 5, 0))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while code(cuda.cuStreamQuery(queue)) == NOT_READY and time.monotonic() < deadline:
        pass
    assert threads.read_word(block.address) == 5


def test_a_wait_blocks_until_another_stream_writes(threads: Simulator) -> None:
    block = memory()
    waiting, writing = stream(), stream()
    ok(cuda.cuStreamWaitValue32(waiting, block.address, 3, GEQ))
    ok(cuda.cuStreamWriteValue32(waiting, block.address + 4, 1, 0))
    assert code(cuda.cuStreamQuery(waiting)) == NOT_READY
    assert threads.read_word(block.address + 4) == 0
    ok(cuda.cuStreamWriteValue32(writing, block.address, 4, 0))
    ok(cuda.cuStreamSynchronize(waiting))
    assert threads.read_word(block.address + 4) == 1


def test_events_order_streams(threads: Simulator) -> None:
    block = memory()
    streams = [stream() for _ in range(4)]
    for turn in range(1, 201):
        queue = streams[turn % 4]
        happened = event()
        ok(cuda.cuStreamWaitValue32(queue, block.address, turn - 1, EQ))
        ok(cuda.cuStreamWriteValue32(queue, block.address, turn, 0))
        ok(cuda.cuEventRecord(happened, queue))
        ok(cuda.cuStreamWaitEvent(streams[(turn + 1) % 4], happened, 0))
        ok(cuda.cuEventDestroy(happened))
    ok(cuda.cuCtxSynchronize())
    assert threads.read_word(block.address) == 200
    assert threads.usage().events == 0


def test_host_functions_run_on_the_stream_in_order(threads: Simulator) -> None:
    block = memory()
    queue = stream()
    seen: list[int] = []
    callers: set[int] = set()

    def look(_data: int | None) -> None:
        seen.append(threads.read_word(block.address))
        callers.add(threading.get_ident())

    function = HostFunction(look)
    for value in (1, 2, 3):
        ok(cuda.cuStreamWriteValue32(queue, block.address, value, 0))
        ok(cuda.cuLaunchHostFunc(queue, cuda.CUhostFn(_ptr=ctypes.addressof(function)), 0))
    ok(cuda.cuStreamSynchronize(queue))
    assert seen == [1, 2, 3]
    assert threading.get_ident() not in callers


def test_a_stuck_wait_answers_after_the_time_limit(threads: Simulator) -> None:
    block = memory()
    queue = stream()
    load(time_limit_seconds=0.02)
    ok(cuda.cuStreamWaitValue32(queue, block.address, 3, GEQ))
    assert code(cuda.cuStreamSynchronize(queue)) == LAUNCH_TIMEOUT
    assert "has not finished its work after 20 ms" in threads.violations()[0]
    ok(cuda.cuStreamWriteValue32(stream(), block.address, 3, 0))
    load(time_limit_seconds=0)
    ok(cuda.cuStreamSynchronize(queue))


def test_reset_frees_callers_that_wait_for_ever(threads: Simulator) -> None:
    """
    A wait without a writer blocks its callers; a reset ends it.

    Given: three threads that synchronise a stream whose head is a wait that nothing satisfies.
    When: the simulator is reset.
    Then: each of them answers that its context is gone, in bounded time.
    """
    block = memory()
    queue = stream()
    context = int(ok(cuda.cuCtxGetCurrent()))
    ok(cuda.cuStreamWaitValue32(queue, block.address, 3, GEQ))
    answers: list[int] = []
    ready = threading.Barrier(4, timeout=PATIENCE_SECONDS)

    def wait() -> None:
        ready.wait()
        answers.append(code(cuda.cuStreamSynchronize(queue)))

    waiting = [in_context(context, wait) for _ in range(3)]
    ready.wait()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while threads.call_count("cuStreamSynchronize") < 3 and time.monotonic() < deadline:
        pass
    threads.reset()
    for thread in waiting:
        thread.join(PATIENCE_SECONDS)
    assert answers == [CONTEXT_IS_DESTROYED] * 3
    assert threads.usage().is_empty


def test_an_error_of_a_piece_is_reported_once(threads: Simulator) -> None:
    block = memory()
    queue = stream()
    threads.fail_piece(1, UNKNOWN)
    ok(cuda.cuStreamWriteValue32(queue, block.address, 3, 0))
    ok(cuda.cuStreamWriteValue32(queue, block.address + 4, 4, 0))
    assert code(cuda.cuStreamSynchronize(queue)) == UNKNOWN
    assert code(cuda.cuStreamSynchronize(queue)) == 0
    assert struct.unpack("<II", threads.read_bytes(block.address, 8)) == (0, 4)


def test_elapsed_time(threads: Simulator) -> None:
    queue = stream()
    block = memory(16 << 20)
    start, end = (int(ok(cuda.cuEventCreate(0))) for _ in range(2))
    ok(cuda.cuEventRecord(start, queue))
    ok(cuda.cuMemsetD8Async(block.address, 1, 16 << 20, queue))
    ok(cuda.cuEventRecord(end, queue))
    ok(cuda.cuEventSynchronize(end))
    assert ok(cuda.cuEventElapsedTime(start, end)) > 0


def test_many_streams_and_threads(threads: Simulator) -> None:
    """Each thread hands a counter round its own ring of streams; no increment is lost and no wait is missed."""
    context = int(ok(cuda.cuCtxGetCurrent()))
    block = memory()
    rounds, rings, size = 60, 6, 5
    failures: list[BaseException] = []

    def run_ring(ring: int) -> None:
        try:
            word = block.address + 64 * ring
            streams = [stream() for _ in range(size)]
            for value in range(rounds * size):
                queue = streams[value % size]
                ok(cuda.cuStreamWaitValue32(queue, word, value, GEQ))
                ok(cuda.cuMemcpyDtoDAsync(word + 4096, word, 4, queue))
                ok(cuda.cuStreamWriteValue32(queue, word, value + 1, 0))
            for queue in streams:
                ok(cuda.cuStreamSynchronize(queue))
                ok(cuda.cuStreamDestroy(queue))
        except BaseException as error:
            failures.append(error)

    running = [in_context(context, run_ring, ring) for ring in range(rings)]
    for thread in running:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    assert failures == []
    assert [threads.read_word(block.address + 64 * ring) for ring in range(rings)] == [rounds * size] * rings
    assert threads.usage().streams == 0
