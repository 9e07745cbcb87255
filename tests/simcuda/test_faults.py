"""Faults: the chosen occasion fails, has no effect, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cuda.bindings import driver as cuda

from tests.simcuda.support import (
    ILLEGAL_ADDRESS,
    NOT_PERMITTED,
    OUT_OF_MEMORY,
    SIZE,
    SUCCESS,
    UNKNOWN,
    code,
    create,
    memory,
    ok,
    properties,
    stream,
)
from vmmref.simcuda import Piece, Simulator, SimulatorError

pytestmark = pytest.mark.simulator

LAUNCH_FAILED = 719


def test_the_kth_call_of_a_name_fails(stepping: Simulator) -> None:
    stepping.fail_call("cuMemCreate", 3, cuda.CUresult.CUDA_ERROR_UNKNOWN)
    answers = [code(cuda.cuMemCreate(SIZE, properties(), 0)) for _ in range(4)]
    assert answers == [SUCCESS, SUCCESS, UNKNOWN, SUCCESS]
    assert stepping.usage().handles == 3
    assert stepping.armed() == 0


def test_the_kth_call_of_any_name_fails(stepping: Simulator) -> None:
    before = stepping.call_count()
    stepping.fail_any(2, OUT_OF_MEMORY)
    handle = create()
    assert code(cuda.cuMemRelease(handle)) == OUT_OF_MEMORY
    assert stepping.usage().handles == 1, "the failing call had no effect"
    ok(cuda.cuMemRelease(handle))
    assert stepping.call_count() - before == 3


def test_several_faults(stepping: Simulator) -> None:
    """Each counts every occasion, also one on which another fires."""
    stepping.fail_call("cuMemCreate", 1, UNKNOWN)
    stepping.fail_call("cuMemCreate", 2, OUT_OF_MEMORY)
    stepping.fail_any(3, NOT_PERMITTED)
    stepping.fail_call("cuMemUnmap", 1, UNKNOWN)
    answers = [code(cuda.cuMemCreate(SIZE, properties(), 0)) for _ in range(4)]
    assert answers == [UNKNOWN, OUT_OF_MEMORY, NOT_PERMITTED, SUCCESS]
    assert stepping.armed() == 1
    stepping.clear_faults()
    assert stepping.armed() == 0


def test_counters_tell_how_many_occasions_there_are(stepping: Simulator) -> None:
    stepping.reset()
    memory().unmap()
    assert stepping.call_count("cuMemMap") == 1
    assert stepping.call_count("cuMemAlloc") == 0
    assert stepping.call_count() == 7
    with pytest.raises(SimulatorError, match="no call named cuMemMapp"):
        stepping.call_count("cuMemMapp")


@pytest.mark.parametrize("k", range(1, 8))
def test_every_call_of_a_sequence_can_fail(stepping: Simulator, k: int) -> None:
    stepping.fail_any(k, UNKNOWN)
    with pytest.raises(AssertionError, match="CUDA_ERROR_UNKNOWN"):
        memory().unmap()
    assert stepping.armed() == 0
    assert stepping.violations() == ()


@pytest.mark.parametrize(("k", "result"), [(0, 2), (-1, 2), (1, 0)])
def test_faults_that_make_no_sense_are_refused(stepping: Simulator, k: int, result: int) -> None:
    arms: tuple[Callable[[], None], ...] = (
        lambda: stepping.fail_call("cuMemCreate", k, result),
        lambda: stepping.fail_any(k, result),
        lambda: stepping.fail_piece(k, result),
    )
    for arm in arms:
        with pytest.raises(SimulatorError, match="at least 1"):
            arm()
    with pytest.raises(SimulatorError, match="no call named cuNothing"):
        stepping.fail_call("cuNothing", 1, 2)


def test_a_piece_fails_when_it_runs(stepping: Simulator) -> None:
    """
    The call that enqueues succeeds; the piece has no effect and the next synchronising call reports it, once.
    """
    block = memory()
    queue, other = stream(), stream()
    stepping.fail_piece(2, LAUNCH_FAILED)
    for value in (1, 2, 3):
        ok(cuda.cuMemsetD32Async(block.address + 4 * value, value, 1, queue))
    outcomes = [stepping.step(queue) for _ in range(3)]
    assert [piece.result for piece in outcomes if isinstance(piece, Piece)] == [SUCCESS, LAUNCH_FAILED, SUCCESS]
    assert [stepping.read_word(block.address + 4 * value) for value in (1, 2, 3)] == [1, 0, 3]
    assert code(cuda.cuStreamSynchronize(other)) == SUCCESS
    assert code(cuda.cuStreamSynchronize(queue)) == LAUNCH_FAILED
    assert code(cuda.cuStreamSynchronize(queue)) == SUCCESS


@pytest.mark.parametrize("report", ["cuStreamQuery", "cuEventSynchronize", "cuCtxSynchronize", "cuEventQuery"])
def test_every_synchronising_call_reports(stepping: Simulator, report: str) -> None:
    block = memory()
    queue = stream()
    happened = int(ok(cuda.cuEventCreate(0)))
    stepping.fail_piece(1, LAUNCH_FAILED)
    ok(cuda.cuMemsetD32Async(block.address, 1, 1, queue))
    ok(cuda.cuEventRecord(happened, queue))
    stepping.drain(queue)
    arguments = {"cuStreamQuery": (queue,), "cuCtxSynchronize": ()}.get(report, (happened,))
    assert code(getattr(cuda, report)(*arguments)) == LAUNCH_FAILED
    ok(cuda.cuStreamSynchronize(queue))


def test_a_sticky_piece_loses_the_context(stepping: Simulator) -> None:
    block = memory()
    queue, other = stream(), stream()
    stepping.fail_piece(1, ILLEGAL_ADDRESS, sticky=True)
    ok(cuda.cuMemsetD32Async(block.address, 1, 1, queue))
    ok(cuda.cuMemsetD32Async(block.address, 2, 1, other))
    for _ in range(2):
        assert code(cuda.cuStreamSynchronize(queue)) == ILLEGAL_ADDRESS
    assert code(cuda.cuStreamSynchronize(other)) == ILLEGAL_ADDRESS
    assert code(cuda.cuStreamCreate(1)) == ILLEGAL_ADDRESS
    assert code(cuda.cuStreamDestroy(other)) == ILLEGAL_ADDRESS
    assert stepping.drain_all() == 0
    assert stepping.read_word(block.address) == 0, "nothing runs any more"
    block.unmap()


def test_pieces_are_counted(stepping: Simulator) -> None:
    stepping.reset()
    block = memory()
    queue = stream()
    ok(cuda.cuStreamWriteValue32(queue, block.address, 1, 0))
    ok(cuda.cuStreamWaitValue32(queue, block.address, 1, 0))
    ok(cuda.cuEventRecord(int(ok(cuda.cuEventCreate(0))), queue))
    stepping.drain(queue)
    assert stepping.piece_count() == 2


def test_memory_budget(stepping: Simulator) -> None:
    stepping.limit_memory(2 * SIZE)
    create()
    other = create(device=1)
    assert code(cuda.cuMemCreate(SIZE, properties(), 0)) == OUT_OF_MEMORY
    assert code(cuda.cuMemAlloc(1)) == OUT_OF_MEMORY
    ok(cuda.cuMemRelease(other))
    create()
    stepping.limit_memory(None)
    create()
