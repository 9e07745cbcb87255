"""Stream waits and writes: conditions, widths, alignment, batches."""

from __future__ import annotations

import itertools

import pytest
from cuda.bindings import driver as cuda

from tests.simcuda.support import (
    AND,
    EQ,
    GEQ,
    INVALID_VALUE,
    NOR,
    NOT_SUPPORTED,
    code,
    memory,
    ok,
    stream,
)
from vmmref.simcuda import BLOCKED, RAN, Simulator

pytestmark = pytest.mark.simulator

WORDS = (0, 1, 2, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF)
LONG_WORDS = (0, 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, (1 << 64) - 1)


def holds(condition: int, word: int, value: int, bits: int) -> bool:
    """The documented condition; GEQ by the signed difference."""
    mask = (1 << bits) - 1
    if condition == GEQ:
        return (word - value) & mask < 1 << (bits - 1)
    if condition == EQ:
        return word == value
    return bool(word & value) if condition == AND else bool(~(word | value) & mask)


@pytest.mark.parametrize("condition", [GEQ, EQ, AND, NOR])
def test_conditions_of_32_bit_waits(stepping: Simulator, condition: int) -> None:
    block = memory()
    for word, value in itertools.product(WORDS, WORDS):
        queue = stream()
        ok(cuda.cuMemsetD32(block.address, word, 1))
        ok(cuda.cuStreamWaitValue32(queue, block.address, value, condition))
        expected = RAN if holds(condition, word, value, 32) else BLOCKED
        assert stepping.step_raw(queue) == expected, (word, value)


@pytest.mark.parametrize("condition", [GEQ, EQ, AND, NOR])
def test_conditions_of_64_bit_waits(stepping: Simulator, condition: int) -> None:
    block = memory()
    writer = stream()
    for word, value in itertools.product(LONG_WORDS, LONG_WORDS):
        queue = stream()
        ok(cuda.cuStreamWriteValue64(writer, block.address, word, 0))
        stepping.drain(writer)
        ok(cuda.cuStreamWaitValue64(queue, block.address, value, condition))
        expected = RAN if holds(condition, word, value, 64) else BLOCKED
        assert stepping.step_raw(queue) == expected, (word, value)


def test_geq_on_a_zeroed_word(stepping: Simulator) -> None:
    """A zeroed word blocks for every value up to 2**31, and lets the values above pass: hence 31-bit generations."""
    block = memory()
    outcomes = {}
    for value in (1, 0x7FFFFFFF, 0x80000000, 0x80000001):
        queue = stream()
        ok(cuda.cuStreamWaitValue32(queue, block.address, value, GEQ))
        outcomes[value] = stepping.step_raw(queue)
    assert outcomes == {1: BLOCKED, 0x7FFFFFFF: BLOCKED, 0x80000000: BLOCKED, 0x80000001: RAN}


def test_flush_is_a_flag_beside_the_condition(stepping: Simulator) -> None:
    block = memory()
    queue = stream()
    ok(cuda.cuStreamWaitValue32(queue, block.address, 0, EQ | 1 << 30))
    assert stepping.step_raw(queue) == RAN
    assert code(cuda.cuStreamWaitValue32(queue, block.address, 0, 4)) == INVALID_VALUE
    assert code(cuda.cuStreamWriteValue32(queue, block.address, 0, 1)) == NOT_SUPPORTED
    assert code(cuda.cuStreamWriteValue32(queue, block.address, 0, 2)) == INVALID_VALUE


def test_words_are_aligned(stepping: Simulator) -> None:
    block = memory()
    queue = stream()
    assert code(cuda.cuStreamWriteValue32(queue, block.address + 2, 0, 0)) == INVALID_VALUE
    assert code(cuda.cuStreamWaitValue64(queue, block.address + 4, 0, GEQ)) == INVALID_VALUE
    assert [text for text in stepping.violations() if "not aligned" in text] == list(stepping.violations())
    assert len(stepping.violations()) == 2


def test_pinned_words(stepping: Simulator) -> None:
    pinned = int(ok(cuda.cuMemHostAlloc(64, 0)))
    queue = stream()
    ok(cuda.cuStreamWriteValue32(queue, pinned, 4, 0))
    ok(cuda.cuStreamWaitValue32(queue, pinned, 4, EQ))
    assert stepping.drain(queue) == 0
    assert stepping.read_word(pinned) == 4


def test_unknown_addresses_are_refused(stepping: Simulator) -> None:
    queue = stream()
    for address in (0, 4096):
        assert code(cuda.cuStreamWriteValue32(queue, address, 1, 0)) == INVALID_VALUE
        assert code(cuda.cuStreamWaitValue32(queue, address, 1, 0)) == INVALID_VALUE


def _operation(kind: int, address: int, value: int, flags: int = 0) -> object:
    entry = cuda.CUstreamBatchMemOpParams()
    entry.operation = cuda.CUstreamBatchMemOpType(kind)
    part = entry.waitValue if kind in (1, 4) else entry.writeValue
    part.operation = cuda.CUstreamBatchMemOpType(kind)
    part.address = address
    if kind in (4, 5):
        part.value64 = value
    else:
        part.value = value
    part.flags = flags
    return entry


def test_batches_run_in_order(stepping: Simulator) -> None:
    block = memory()
    queue = stream()
    wait_32, write_32, wait_64, write_64 = 1, 2, 4, 5
    entries = [
        _operation(write_32, block.address, 5),
        _operation(wait_32, block.address, 5, EQ),
        _operation(write_64, block.address + 8, 1 << 40),
        _operation(wait_64, block.address + 8, 1 << 40, EQ),
    ]
    ok(cuda.cuStreamBatchMemOp(queue, 4, entries, 0))
    assert stepping.pending(queue) == 4
    assert stepping.drain(queue) == 0
    assert stepping.read_word(block.address + 8, 8) == 1 << 40


def test_a_batch_with_a_bad_entry_has_no_effect(stepping: Simulator) -> None:
    block = memory()
    queue = stream()
    entries = [_operation(2, block.address, 5), _operation(2, block.address + 1, 5)]
    assert code(cuda.cuStreamBatchMemOp(queue, 2, entries, 0)) == INVALID_VALUE
    assert stepping.pending(queue) == 0
