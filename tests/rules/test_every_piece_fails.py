"""LIFE-2, LIFE-3, ERR-2: whatever queued work fails on the device, somebody is told and the pool comes to its end.

The number of (operation, k) pairs that were tried is in the summary at the end of the test run.
"""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial

import pytest

from tests.rules.faults import LOST, ending_of, take_part
from tests.rules.operations import Prepare
from tests.rules.operations_of_consumers import OF_CONSUMERS
from tests.rules.operations_of_producers import OF_PRODUCERS, WITHOUT_CONSUMERS
from tests.rules.toy import UNKNOWN_ERROR, Make, counts
from vmmref.driver import calls
from vmmref.errors import DriverError
from vmmref.simcuda import Simulator


@pytest.mark.rule("LIFE-3")
@pytest.mark.rule("ERR-2")
@pytest.mark.parametrize("prepare", [*OF_PRODUCERS, *OF_CONSUMERS], ids=lambda prepare: prepare.__name__)
def test_life_3_every_piece_of_work_of_an_operation_fails(
    toy: Make, simulator: Simulator, pairs: Counter[str], prepare: Prepare
) -> None:
    """
    Queued work that fails on the device is told to who waits for it, and what it may have done is trusted no more.

    Given: the k-th piece of work (copy, fill, store) fails on the device, for every k that runs within an operation.
    When: the operation is called on a pool in use; then the consumers' import is dropped and the pool shut down.
    Then: the error is told, ranges and slots are accounted for, and nothing is left at the end.
    """
    for k in itertools.count(1):
        pool = toy(slots=3, consumers=2)
        act, after = prepare(pool)
        simulator.fail_piece(k, UNKNOWN_ERROR)
        told = ending_of(act)
        complete = bool(simulator.armed())
        simulator.clear_faults()
        pairs["a piece of work"] += not complete
        pool.check_accounts()
        # A cancelled lease is waited for on another stream than its copy; then the next one who waits there is told.
        endings = [told, ending_of(after), ending_of(partial(take_part, pool)), ending_of(pool.close)]
        assert complete or any(isinstance(each, DriverError) for each in endings), f"nobody was told of piece {k}"
        pool.check_accounts()
        pool.close()
        assert counts(simulator) == {}, f"piece {k}"
        simulator.reset()
        if complete:
            break


@pytest.mark.rule("LIFE-3")
@pytest.mark.parametrize("prepare", WITHOUT_CONSUMERS, ids=lambda prepare: prepare.__name__)
def test_life_3_a_lost_context_ends_a_pool_in_bounded_time(
    toy: Make, simulator: Simulator, pairs: Counter[str], prepare: Prepare
) -> None:
    """
    When the device has faulted, every driver call fails from then on; the pool says so and still comes to its end.

    Given: the k-th piece of work faults, for every k that runs within an operation, and the context is lost with it.
    When: the operation is called, and the pool is shut down, and again.
    Then: the fault is told; ranges and slots are accounted for; the first shutdown tells what the driver has refused
    to take back, the second one nothing.
    """
    for k in itertools.count(1):
        pool = toy(slots=3, consumers=2)
        act, _ = prepare(pool)
        simulator.fail_piece(k, LOST, sticky=True)
        told = ending_of(act)
        complete = bool(simulator.armed())
        simulator.clear_faults()
        pairs["a piece that takes the context with it"] += not complete
        assert complete or (isinstance(told, DriverError) and told.result == LOST), f"piece {k}: {told!r}"
        pool.check_accounts()
        assert (ending_of(pool.pool.shutdown) is None) is complete
        pool.pool.shutdown()
        assert pool.pool.life == "closed"
        simulator.reset()
        if complete:
            break


@pytest.mark.rule("LIFE-2")
@pytest.mark.rule("LIFE-3")
def test_life_2_a_context_that_others_have_lost_ends_a_pool_in_bounded_time(toy: Make, simulator: Simulator) -> None:
    """
    A pool that has not been told that the device has faulted comes to its end all the same.

    Given: a pool with leases in every phase, and a context that was lost by work that is not the pool's.
    When: the pool is shut down, and again.
    Then: the first call tells it, the second one comes to the end.
    """
    pool = toy(slots=4)
    pool.wrap(1)
    pool.pool.begin_cancel(pool.wrap(2).lease)
    pool.begin(3)
    stream = calls.create_stream()
    calls.fill_bytes(pool.pool.address + pool.first, 0, 1, stream)
    simulator.fail_piece(1, LOST, sticky=True)
    pool.step(stream)
    assert isinstance(ending_of(pool.pool.shutdown), DriverError)
    ending_of(pool.pool.shutdown)
    assert pool.pool.life == "closed"
    pool.check_accounts()
    simulator.reset()
