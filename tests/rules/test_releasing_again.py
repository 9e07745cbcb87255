"""CON-4: an acknowledgement that could not be made is made by a later release, once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.rules.toy import UNKNOWN_ERROR, Make, Toy, another, bytes_of
from vmmref import FeatureTransport
from vmmref.errors import AlreadyReleased, DriverError
from vmmref.imports import IMPORTS, close_imports
from vmmref.proxy import TensorProxy
from vmmref.simcuda import Simulator

Use = Callable[[TensorProxy], Any]
ACKNOWLEDGING = {4: "cuMemsetD32Async", 8: "cuMemcpyHtoDAsync"}
"""The call that queues an acknowledgement, by the bytes of a word."""


def reconstruct(proxy: TensorProxy) -> object:
    return proxy.reconstruct_on_target_device("sim")


def borrow(proxy: TensorProxy) -> object:
    return proxy.borrow_on_target_device("sim")


def release(proxy: TensorProxy) -> None:
    proxy.release_without_reconstruction()


def lent(pool: Toy) -> TensorProxy:
    proxy = pool.pool.wrap_tensor(bytes_of(7, 256), borrowable=True)
    assert proxy is not None
    return proxy


@pytest.mark.rule("CON-4")
@pytest.mark.parametrize("word_bytes", [4, 8])
@pytest.mark.parametrize(
    ("use", "failing"),
    [(reconstruct, "cuMemcpyDtoDAsync"), (borrow, "cuMemcpyDtoHAsync"), (release, "")],
    ids=["read", "borrow", "release"],
)
@pytest.mark.parametrize("same_copy", [True, False], ids=["same copy", "another copy"])
def test_con_4_a_later_release_makes_up_for_a_failed_acknowledgement(
    toy: Make, simulator: Simulator, use: Use, failing: str, word_bytes: int, same_copy: bool
) -> None:
    """
    The lease stays visible as unreleased until its rank releases it again, and then it is acknowledged once.

    Given: a reading, a look or a release whose acknowledgement cannot be queued.
    When: the rank releases again, while that still fails, when it does not, and once more.
    Then: the first error is told, the lease stays; then there is one store and the lease comes back; it is not read.
    """
    pool = toy(word_bytes=word_bytes)
    pool.join()
    proxy = lent(pool)
    copy = proxy if same_copy else another(proxy)
    if failing:
        simulator.fail_call(failing, 1, UNKNOWN_ERROR)
    for attempt in (use, release):
        simulator.fail_call(ACKNOWLEDGING[word_bytes], 1, UNKNOWN_ERROR)
        with pytest.raises(DriverError):
            attempt(proxy if attempt is use else copy)
        pool.drain()
        assert IMPORTS.owes(proxy.lease, 0)
        assert (pool.pool.recycle(), pool.words()) == (0, ((2, 0),))
        assert pool.pool.stats().unreleased == ((0, (0,)),)
    before = simulator.call_count(ACKNOWLEDGING[word_bytes])
    for again in (copy, copy, proxy):
        release(again)
    assert simulator.call_count(ACKNOWLEDGING[word_bytes]) == before + 1
    assert not IMPORTS.owes(proxy.lease, 0)
    pool.drain()
    assert pool.words() == ((2, 1),)
    with pytest.raises(AlreadyReleased):
        reconstruct(another(proxy))
    assert pool.pool.recycle() == 1
    pool.check_home()


@pytest.mark.rule("CON-4")
def test_con_4_the_failed_reading_still_comes_first(toy: Make, simulator: Simulator) -> None:
    """
    Also the second attempt to acknowledge is queued behind what the failed reading has queued.

    Given: a reading whose copy was queued, whose read of R and whose acknowledgement have failed.
    When: the rank releases, and its stream runs piece by piece.
    Then: the copy runs before the acknowledgement.
    """
    pool = toy()
    pool.join()
    proxy = pool.wrap(1)
    simulator.fail_call("cuMemcpyDtoHAsync", 1, UNKNOWN_ERROR)
    simulator.fail_call("cuMemsetD32Async", 1, UNKNOWN_ERROR)
    with pytest.raises(DriverError) as failure:
        reconstruct(proxy)
    assert len(failure.value.__notes__) == 1
    release(proxy)
    pool.step(pool.rank_stream())
    assert pool.words() == ((2, 0),)
    pool.step(pool.rank_stream())
    assert pool.words() == ((2, 1),)


@pytest.mark.rule("CON-4")
@pytest.mark.rule("HND-4")
def test_con_4_what_is_owed_outlives_the_import(toy: Make, simulator: Simulator) -> None:
    """
    A rank can make up for it through a new import, too.

    Given: a failed release, and the import dropped.
    When: the rank releases again.
    Then: the lease comes back.
    """
    pool = toy()
    pool.join()
    proxy = pool.wrap(1)
    simulator.fail_call("cuMemsetD32Async", 1, UNKNOWN_ERROR)
    with pytest.raises(DriverError):
        release(proxy)
    close_imports(pool.pool.card.nonce)
    release(another(proxy))
    pool.drain()
    assert pool.pool.recycle() == 1


@pytest.mark.rule("CON-4")
@pytest.mark.rule("ACK-2")
def test_con_4_a_debt_that_nobody_waits_for_is_not_paid(toy: Make, simulator: Simulator) -> None:
    """
    When the slot has been leased again and entered, the old acknowledgement is left out: the word must not fall.

    Given: a failed acknowledgement of a lease that was then revoked, and the slot's next lease, read.
    When: the rank releases the old one again.
    Then: nothing is stored, and nothing is owed.
    """
    pool = toy()
    pool.join()
    old = pool.wrap(1)
    simulator.fail_call("cuMemsetD32Async", 1, UNKNOWN_ERROR)
    with pytest.raises(DriverError):
        release(old)
    pool.pool.revoke(old.lease)
    pool.consume(pool.wrap(2))
    release(old)
    pool.drain()
    assert (pool.words(), IMPORTS.owes(old.lease, 0)) == (((4, 2),), False)
    assert pool.pool.recycle() == 1


@pytest.mark.rule("CON-4")
@pytest.mark.rule("TRN-2")
def test_con_4_an_abort_makes_up_for_a_failed_reception(toy: Make, simulator: Simulator) -> None:
    """
    A request's rank that failed altogether gives the rest back when it is asked again.

    Given: a request of two leases, received while copies and acknowledgements fail.
    When: it is aborted.
    Then: both leases come back.
    """
    pool = toy(slots=2)
    pool.join()
    fields = {"a": bytes_of(1, 256), "b": bytes_of(2, 256)}
    transport = FeatureTransport(pool.pool, processor=1)
    transport.publish(fields, single=["a", "b"])
    simulator.fail_call("cuMemcpyDtoDAsync", 1, UNKNOWN_ERROR)
    # Behind the failed copy, in the clean-up of the same lease, and of the other one.
    for k in (1, 2, 3):
        simulator.fail_call("cuMemsetD32Async", k, UNKNOWN_ERROR)
    with pytest.raises(DriverError) as failure:
        transport.receive(fields, "sim")
    assert (failure.value.call, len(failure.value.__notes__)) == ("cuMemcpyDtoDAsync", 3)
    pool.drain()
    assert pool.pool.recycle() == 0
    transport.abort(fields)
    pool.drain()
    assert pool.pool.recycle() == 2
    pool.check_home()


@pytest.mark.rule("CON-4")
def test_con_4_two_threads_pay_once(toy: Make, simulator: Simulator) -> None:
    """
    What is owed is acknowledged by the first who comes.

    Given: a failed release.
    When: eight threads release again, through copies of their own.
    Then: one store.
    """
    pool = toy()
    pool.join()
    proxy = pool.wrap(1)
    simulator.fail_call("cuMemsetD32Async", 1, UNKNOWN_ERROR)
    with pytest.raises(DriverError):
        release(proxy)
    before = simulator.call_count("cuMemsetD32Async")
    start = threading.Barrier(8)

    def release_again(copy: TensorProxy) -> None:
        start.wait(10)
        release(copy)

    threads = [threading.Thread(target=release_again, args=(another(proxy),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert simulator.call_count("cuMemsetD32Async") == before + 1
