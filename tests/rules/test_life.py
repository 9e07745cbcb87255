"""LIFE: making a pool, ending it, and what a failure leaves."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

from tests.rules.toy import GRANULE, UNKNOWN_ERROR, Make, another, bytes_of, counts, left_by
from vmmref.driver import streams
from vmmref.errors import (
    ArgumentError,
    DriverError,
    PoolClosing,
    PoolFailed,
    ProducerGone,
    StaleLease,
    UnsupportedError,
    WaitTimeout,
)
from vmmref.imports import close_imports
from vmmref.pool import VmmMemoryPool
from vmmref.proxy import TensorProxy
from vmmref.simcuda import Simulator
from vmmref_models.reasons import Reason

ILLEGAL_ADDRESS = 700


@pytest.mark.rule("LIFE-1")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory_size": 0}, "memory_size must be positive"),
        ({"memory_size": -GRANULE}, "memory_size must be positive"),
        ({"memory_size": 1.5 * GRANULE}, "memory_size must be positive"),
        ({"consumer_count": 0}, "consumer_count must be positive"),
        ({"consumer_count": True}, "consumer_count must be positive"),
        ({"max_inflight_slices": -1}, "max_inflight_slices must be positive"),
        ({"recycle_interval": 0}, "recycle_interval must be positive"),
        ({"recycle_interval": float("nan")}, "recycle_interval must be positive"),
        ({"recycle_interval": float("inf")}, "recycle_interval must be positive"),
        ({"wait_timeout": 0}, "wait_timeout must be positive"),
        ({"lease_deadline": -1.0}, "lease_deadline must be positive"),
        ({"memory_size": GRANULE // 2}, f"memory_size {GRANULE // 2} is smaller than one granule of {GRANULE} bytes"),
        ({"data_size": 100}, "data_size must be a positive multiple of 256"),
        ({"data_size": GRANULE}, "data_size must be a positive multiple of 256"),
        ({"handle_type": "carrier pigeon"}, 'handle_type must be "auto", "posix_fd" or "fabric"'),
        ({"word_bytes": 2}, "word_bytes must be 4 or 8"),
        ({"device": "gpu"}, 'device must be "sim", "sim:N" or "cuda:N"'),
    ],
)
def test_life_1_bad_sizes_are_refused(simulator: Simulator, settings: dict[str, Any], message: str) -> None:
    """
    A size that cannot be is refused in one sentence, before anything is taken.

    Given: one argument that is wrong.
    When: a pool is made.
    Then: BAD_ARGUMENT, the message names the argument, and nothing is left behind.
    """
    arguments: dict[str, Any] = {"memory_size": GRANULE, "device": "sim", "recycle_interval": None}
    with pytest.raises(ArgumentError, match=message) as refusal:
        VmmMemoryPool(**arguments | {"max_inflight_slices": 4} | settings)
    assert refusal.value.reason is Reason.BAD_ARGUMENT
    assert simulator.usage().is_empty


@pytest.mark.rule("LIFE-1")
def test_life_1_a_device_that_does_not_exist_is_refused(simulator: Simulator) -> None:
    """
    The driver's devices are counted first.

    Given: a simulated driver of one device.
    When: a pool is made on its second.
    Then: NOT_SUPPORTED with the count, and nothing is left behind.
    """
    with pytest.raises(UnsupportedError, match="shows 1 device") as refusal:
        VmmMemoryPool(GRANULE, "sim:1", 1, None, 4)
    assert refusal.value.reason is Reason.NOT_SUPPORTED
    assert simulator.usage().is_empty


@pytest.mark.rule("LIFE-2")
def test_life_2_newcomers_are_refused_after_shutdown(toy: Make, simulator: Simulator) -> None:
    """
    A closed pool says so to every use, and to shutdown that all is done.

    Given: a pool with an active lease, a queued copy and an unused look, which is shut down.
    When: every operation is called, and shutdown again.
    Then: POOL_CLOSING each time; the second shutdown does nothing; no lease is left and nothing was undefined.
    """
    pool = toy(slots=2)
    proxy = pool.wrap(1)
    publication, look = pool.begin(2), pool.pool.look()
    pool.pool.shutdown()
    pool.check_home()
    uses: list[Any] = [
        lambda: pool.pool.wrap_tensor(bytes_of(1, 1)),
        lambda: pool.pool.wrap_tensor(bytes_of(1, 0)),
        lambda: pool.pool.begin_publish(bytes_of(1, 1)),
        lambda: pool.pool.finish_publish(publication),
        lambda: pool.pool.copy_tensor(bytes_of(1, 1)),
        lambda: pool.pool.cancel_proxy(proxy),
        lambda: pool.pool.cancel_lease(proxy.lease),
        lambda: pool.pool.revoke(proxy.lease),
        lambda: pool.pool.release_lease(proxy.lease),
        lambda: pool.pool.begin_cancel(proxy.lease),
        pool.pool.recycle,
        pool.pool.look,
        lambda: pool.pool.claim(look),
        pool.pool.reclaim,
    ]
    for use in uses:
        with pytest.raises(PoolClosing) as refusal:
            use()
        assert (refusal.value.reason, refusal.value.rule) == (Reason.POOL_CLOSING, "LIFE-2")
    pool.pool.shutdown()
    assert (pool.pool.life, simulator.usage().is_empty) == ("closed", True)


@pytest.mark.rule("LIFE-2")
@pytest.mark.parametrize("pieces", [0, 1, 2], ids=["before its copy", "copied", "checked"])
def test_life_2_consumers_with_an_import_go_on(toy: Make, pieces: int) -> None:
    """
    Shutdown does not wait for consumers, and takes nothing from under them.

    Given: a reader of which no piece, its copy, or also its check has run.
    When: the pool is shut down and the reader goes on; and a rank of another process, without an import, comes.
    Then: STALE_LEASE or right bytes.
    """
    pool = toy()
    reading = pool.start(pool.wrap(0xA1))
    for _ in range(pieces):
        pool.step(pool.rank_stream())
    pool.pool.shutdown()
    if pieces < 2:
        with pytest.raises(StaleLease):
            reading.finish()
    else:
        assert reading.finish().tolist() == [0xA1] * 256


@pytest.mark.rule("LIFE-2")
def test_life_2_without_an_import_the_producer_is_gone(toy: Make) -> None:
    """
    Whoever comes after the end is told.

    Given: a proxy of a pool that was shut down and that this process never imported.
    When: it is released and read.
    Then: the release has no effect and no error, the reader is told PRODUCER_GONE.
    """
    pool = toy()
    proxy = pool.wrap(1)
    copy = another(proxy)
    pool.pool.shutdown()
    pool.release(proxy)
    with pytest.raises(ProducerGone) as refusal:
        pool.start(copy)
    assert refusal.value.reason is Reason.PRODUCER_GONE


def publishing_thread(pool: Any, done: list[Any]) -> threading.Thread:
    """A thread inside `finish_publish`, on a stream that does not run."""
    publication = pool.begin(0xA1)

    def publish() -> None:
        try:
            done.append(pool.pool.finish_publish(publication))
        except BaseException as error:
            done.append(error)

    thread = threading.Thread(target=publish)
    thread.start()
    return thread


def wait_until_inside(pool: Any, count: int) -> None:
    """Wait, with an end, until that many callers are inside the pool."""
    life = pool.pool._life
    with life._changed:
        assert life._changed.wait_for(lambda: life._inside >= count, timeout=0) or _polled(life, count)


def _polled(life: Any, count: int) -> bool:
    # Nobody is notified of an arrival, so ask again; a lost race would make the test say less, not fail.
    for _ in range(10_000):
        if life._inside >= count:
            return True
        life._changed.wait(0.001)
    return False


@pytest.mark.rule("LIFE-2")
@pytest.mark.rule("LIFE-5")
def test_life_2_shutdown_lets_callers_inside_end_first(toy: Make, simulator: Simulator) -> None:
    """
    After a time-out nothing has been unmapped, newcomers are refused, and shutdown can be called again.

    Given: a thread inside the pool, which waits for a stream that does not run.
    When: the pool is shut down with little patience, and again after the stream has run.
    Then: first TIMED_OUT, which counts the callers inside; POOL_CLOSING for newcomers; the thread gets its proxy; then
    the pool closes.
    """
    pool = toy(slots=2)
    done: list[Any] = []
    with streams.progress(None):
        thread = publishing_thread(pool, done)
        wait_until_inside(pool, 1)
        with pytest.raises(WaitTimeout, match=r"1 call\(s\) inside") as failure:
            pool.pool.shutdown(timeout=0.02)
        assert failure.value.reason is Reason.TIMED_OUT
        assert (pool.pool.life, simulator.usage().mappings) == ("closing", 1)
        with pytest.raises(PoolClosing):
            pool.begin(1)
        simulator.drain(pool.pool.publish_stream)
        thread.join(10)
    assert isinstance(done[0], TensorProxy)
    pool.pool.shutdown()
    assert (pool.pool.life, simulator.usage().is_empty) == ("closed", True)
    pool.check_home()


@pytest.mark.rule("LIFE-2")
@pytest.mark.rule("LIFE-5")
def test_life_2_shutdown_goes_on_where_a_time_out_left_it(toy: Make, simulator: Simulator) -> None:
    """
    A device that does not answer ends shutdown in bounded time, and costs nothing when it answers later.

    Given: leases whose copies are queued, on a device that does not run.
    When: the pool is shut down with little patience, twice, and again when the device runs.
    Then: TIMED_OUT twice within that patience; nothing is unmapped; then every lease is retired and the pool closes.
    """
    pool = toy(slots=3, wait_timeout=60)
    leases = [pool.begin(value).lease for value in (1, 2)]
    with streams.progress(None):
        for _ in range(2):
            with pytest.raises(WaitTimeout):
                pool.pool.shutdown(timeout=0.02)
            assert (pool.pool.life, simulator.usage().mappings) == ("closing", 1)
            assert pool.pool.stats().leases == tuple(leases)
    pool.pool.shutdown()
    assert (pool.pool.life, simulator.usage().is_empty) == ("closed", True)
    pool.check_home()


@pytest.mark.rule("LIFE-2")
def test_life_2_many_threads_may_shut_down_at_once(toy: Make, simulator: Simulator) -> None:
    """
    Shutdown from several threads is one shutdown.

    Given: a pool with leases.
    When: six threads shut it down together.
    Then: all return, and everything was given back once.
    """
    pool = toy(slots=2)
    pool.wrap(1)
    pool.begin(2)
    start, failures = threading.Barrier(6), list[BaseException]()

    def shut_down() -> None:
        start.wait(10)
        try:
            pool.pool.shutdown()
            assert pool.pool.life == "closed"
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=shut_down) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert (failures, simulator.usage().is_empty) == ([], True)


@pytest.mark.rule("LIFE-2")
def test_life_2_the_recycler_thread_ends_first(simulator: Simulator) -> None:
    """
    The background pass is stopped before anything is unmapped.

    Given: a pool that recycles by itself every millisecond, with a complete lease.
    When: the thread has taken it back, and the pool is shut down.
    Then: the thread has ended; nothing was undefined.
    """
    simulator.set_mode("threads")
    with VmmMemoryPool(GRANULE, "sim", 1, 0.001, 4, handle_type="fabric") as pool:
        proxy = pool.wrap_tensor(bytes_of(1, 256))
        assert proxy is not None
        proxy.reconstruct_on_target_device("sim")
        deadline = threading.Event()
        for _ in range(5000):
            if not pool.active_lease_count:
                break
            deadline.wait(0.001)
        assert pool.active_lease_count == 0
        close_imports()
    assert "vmmref-recycler" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.rule("LIFE-3")
def test_life_3_a_failed_pool_refuses_every_use(toy: Make, simulator: Simulator) -> None:
    """
    After a failure that leaves the device state unknown nothing is reused.

    Given: a copy that fails while it runs.
    When: the publication is waited for, and the pool is used on.
    Then: the first error; then POOL_FAILED with that error as its cause, every time; the lease is not given back;
    shutdown gives back what was taken, and then the answer is POOL_CLOSING.
    """
    pool = toy(slots=2)
    publication = pool.begin(1)
    simulator.fail_piece(1, ILLEGAL_ADDRESS)
    with pytest.raises(DriverError) as failure:
        pool.pool.finish_publish(publication)
    assert failure.value.result == ILLEGAL_ADDRESS
    assert (pool.pool.life, pool.pool.failure) == ("failed", failure.value)
    for use in (lambda: pool.begin(1), lambda: pool.pool.cancel_lease(publication.lease), pool.pool.recycle):
        with pytest.raises(PoolFailed) as refusal:
            use()
        assert (refusal.value.reason, refusal.value.rule) == (Reason.POOL_FAILED, "LIFE-3")
        assert refusal.value.__cause__ is failure.value
    assert pool.pool.stats().leases == (publication.lease,)
    pool.pool.shutdown()
    assert simulator.usage().is_empty
    with pytest.raises(PoolClosing):
        pool.pool.recycle()


@pytest.mark.rule("LIFE-4")
@pytest.mark.parametrize("handle_type", ["posix_fd", "fabric", "auto"])
def test_life_4_a_failed_constructor_keeps_nothing(simulator: Simulator, handle_type: str) -> None:
    """
    Whatever call fails, all that was taken before is given back.

    Given: the k-th driver call fails, for every k that a constructor makes.
    When: a pool is made.
    Then: the driver's error and nothing left behind, or a pool that works ("auto" only asks whether fabric does).
    """
    failures = 0
    for k in itertools.count(1):
        simulator.fail_any(k, UNKNOWN_ERROR)
        failed_call = ""
        try:
            pool = VmmMemoryPool(GRANULE, "sim", 2, None, 4, handle_type=handle_type)
            complete = simulator.armed()
            simulator.clear_faults()
            pool.shutdown()
            if complete:
                break
        except DriverError as failure:
            failures += 1
            failed_call = failure.call
        assert counts(simulator).items() <= left_by(failed_call).items(), f"call {k}: {failed_call}"
        assert simulator.violations() == (), f"call {k}: {failed_call}"
        simulator.reset()
    assert failures >= 15


@pytest.mark.rule("LIFE-5")
def test_life_5_a_wait_says_what_is_outstanding(toy: Make) -> None:
    """
    Every wait has an end, and names what it waited for.

    Given: a device that does not run.
    When: a publication, a look, a cancel and a reclaim are waited for.
    Then: TIMED_OUT each time, with the lease or the stream; the lease comes back when the device runs.
    """
    pool = toy(wait_timeout=0.01)
    publication = pool.begin(1)
    waits: list[tuple[Any, str]] = [
        (pool.pool.look, "look at the control words"),
        (pool.pool.recycle, "look at the control words"),
        (lambda: pool.pool.cancel_lease(publication.lease), r"retiring of lease \(slot=0, generation=1\)"),
        (pool.pool.reclaim, r"retiring of lease \(slot=0, generation=1\)"),
    ]
    with streams.progress(None):
        for wait, what in waits:
            with pytest.raises(WaitTimeout, match=what) as failure:
                wait()
            assert (failure.value.reason, failure.value.rule) == (Reason.TIMED_OUT, "LIFE-5")
            pool.check_accounts()
    pool.drain()
    assert pool.pool.reclaim(wait=False) == 1
    pool.check_home()
