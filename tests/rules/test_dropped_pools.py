"""LIFE-2, LIFE-5: a recycler thread that outlives time-outs, and a pool that is dropped without `shutdown`."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from tests.rules.test_handles import in_forked_child
from tests.rules.toy import GRANULE, bytes_of
from vmmref.driver import streams
from vmmref.errors import BrokerError, PoolClosing, ProducerGone, WaitTimeout
from vmmref.imports import IMPORTS, close_imports, producer_is_gone
from vmmref.pool import VmmMemoryPool
from vmmref.proxy import TensorProxy
from vmmref.recycler import RecyclerThread
from vmmref.simcuda import Simulator
from vmmref_models.reasons import Reason

WAIT_SECONDS = 20.0
HANDLE_TYPES = ["posix_fd", "fabric"]


def until(condition: Callable[[], object]) -> None:
    """Wait until `condition`, in bounded time."""
    pause = threading.Event()
    for _ in range(int(WAIT_SECONDS / 0.002)):
        if condition():
            return
        pause.wait(0.002)
    raise AssertionError("it has not come to be in time")


def threads_of_pools() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("vmmref-")]


@pytest.mark.rule("LIFE-5")
def test_life_5_the_recycler_thread_outlives_a_time_out(simulator: Simulator, caplog: pytest.LogCaptureFixture) -> None:
    """
    A device that does not answer for a while costs the background passes their time, and nothing else.

    Given: a pool that recycles by itself, with a complete lease, on a device that does not run.
    When: some passes have timed out, and the device runs again.
    Then: each was a warning; the pool has not failed; the lease comes back by itself and the pool serves.
    """
    pool = VmmMemoryPool(GRANULE, "sim", 1, 0.001, 4, handle_type="fabric", wait_timeout=0.02)
    first, second = (pool.wrap_tensor(bytes_of(value, 256)) for value in (1, 2))
    assert first is not None
    assert second is not None
    assert first.reconstruct_on_target_device("sim").tolist() == [1] * 256
    with streams.progress(None):
        second.release_without_reconstruction()
        until(lambda: len(caplog.records) >= 3)
        assert {record.levelname for record in caplog.records} == {"WARNING"}
        assert "has not ended" in caplog.text
        assert pool.life == "open"
        assert second.lease in pool.stats().leases
        until(lambda: not simulator.drain_all() and not pool.active_lease_count)
    third = pool.wrap_tensor(bytes_of(3, 1024))
    assert third is not None
    assert third.reconstruct_on_target_device("sim").tolist() == [3] * 1024
    close_imports()
    pool.shutdown(timeout=WAIT_SECONDS)
    assert threads_of_pools() == []


@pytest.mark.rule("LIFE-5")
def test_life_5_a_pass_that_times_out_is_followed_by_another(caplog: pytest.LogCaptureFixture) -> None:
    """
    The thread ends when the pool refuses, and not because a pass took too long.

    Given: passes of which the first two time out, the third succeeds and the fourth is refused.
    When: the thread runs.
    Then: four passes, two warnings, no failure.
    """
    answers: list[BaseException | int] = [
        WaitTimeout(Reason.TIMED_OUT, "LIFE-5", "the first look has not ended"),
        WaitTimeout(Reason.TIMED_OUT, "LIFE-5", "the second look has not ended"),
        3,
        PoolClosing(Reason.POOL_CLOSING, "LIFE-2", "closing"),
    ]
    left, failures = list(answers), list[BaseException]()

    def run_pass() -> int:
        answer = left.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    thread = RecyclerThread(run_pass, 0.001, failures.append)
    until(lambda: not left)
    assert thread.stop(WAIT_SECONDS)
    assert (failures, len(caplog.records)) == ([], 2)


@pytest.fixture
def forgetful(simulator: Simulator) -> Iterator[Simulator]:
    """A simulator whose device side is cleared afterwards: that of a dropped pool stays."""
    yield simulator
    close_imports()
    simulator.reset()


def drop(made: list[VmmMemoryPool]) -> None:
    """Hold on to these no longer; no cycle is collected for them to be gone."""
    made.clear()


def used(pool: VmmMemoryPool) -> list[TensorProxy]:
    """Two proxies of a pool: one that was read here, and one that was not; behind them a copy is queued."""
    proxies = [pool.wrap_tensor(bytes_of(value, 256)) for value in (7, 9)]
    made = [proxy for proxy in proxies if proxy is not None]
    bytes(made[0])
    assert made[0].reconstruct_on_target_device("sim").tolist() == [7] * 256
    pool.begin_publish(bytes_of(8, 256))
    return made


@pytest.mark.rule("LIFE-2")
@pytest.mark.rule("HND-4")
@pytest.mark.parametrize("handle_type", HANDLE_TYPES)
def test_life_2_a_pool_that_is_dropped_is_told_of(forgetful: Simulator, handle_type: str) -> None:
    """
    A pool that nobody ends is no pool for ever: its threads, its broker and its descriptors end when it is collected.

    Given: a pool with its recycler thread, its broker and a queued copy, imported in this process.
    When: it is dropped and collected without `shutdown`.
    Then: a ResourceWarning with its name; threads and descriptors are gone; it counts as ended, so a reader that has
    an import still gets the bytes, and one that has none is told; the device side stays as it was.
    """
    made = [VmmMemoryPool(GRANULE, "sim", 1, 3600.0, 4, "Feature Pool", handle_type)]
    reference = weakref.ref(made[0])
    read, fresh = used(made[0])
    assert threads_of_pools()
    mappings, descriptors = forgetful.usage().mappings, len(os.listdir("/proc/self/fd"))
    with pytest.warns(ResourceWarning, match=r"^Feature Pool pool was dropped without shutdown\(\)"):
        drop(made)
    assert reference() is None
    until(lambda: not threads_of_pools())
    assert len(os.listdir("/proc/self/fd")) < descriptors
    assert producer_is_gone(read.card)
    assert fresh.reconstruct_on_target_device("sim").tolist() == [9] * 256
    assert forgetful.usage().mappings == mappings
    close_imports(read.card.nonce)
    with pytest.raises(ProducerGone):
        TensorProxy.from_bytes(bytes(read)).reconstruct_on_target_device("sim")
    # What was queued still runs, over memory that is still there.
    forgetful.drain_all()
    assert forgetful.violations() == ()


def drop_many(count: int) -> None:
    """Make pools that recycle all the time, and drop them; return when nothing of them runs."""
    for _ in range(count):
        pool = VmmMemoryPool(GRANULE, "sim", 1, 0.0001, 4, handle_type="fabric")
        pool.wrap_tensor(bytes_of(7, 256))
        del pool
    gc.collect()
    until(lambda: not threads_of_pools())
    gc.collect()


@pytest.mark.rule("LIFE-2")
def test_life_2_its_own_thread_may_be_the_last_to_hold_it(forgetful: Simulator) -> None:
    """
    A pool may be collected in its recycler thread, which must not wait for itself.

    Given: pools that recycle all the time.
    When: they are dropped.
    Then: every one is told of, and no thread is left.
    """
    forgetful.set_mode("threads")
    with pytest.warns(ResourceWarning) as told:
        drop_many(20)
    assert len([warning for warning in told if "dropped without" in str(warning.message)]) == 20


@pytest.mark.rule("LIFE-2")
@pytest.mark.parametrize("handle_type", HANDLE_TYPES)
def test_life_2_a_pool_that_was_shut_down_is_dropped_in_silence(simulator: Simulator, handle_type: str) -> None:
    """
    Who ends a pool hears nothing more of it.

    Given: a pool that was shut down.
    When: it is collected.
    Then: no warning (each would be an error here), and nothing is left.
    """
    with VmmMemoryPool(GRANULE, "sim", 1, None, 4, handle_type=handle_type) as pool:
        reference = weakref.ref(pool)
    del pool
    gc.collect()
    assert reference() is None
    assert simulator.usage().is_empty


@pytest.mark.rule("LIFE-2")
@pytest.mark.rule("HND-7")
def test_hnd_7_a_fork_s_copy_ends_nothing(simulator: Simulator) -> None:
    """
    A forked child that drops its copy of a pool leaves the parent's alone.

    Given: a pool with a running broker.
    When: a child is forked, and lets the pool's host side end there as if the pool was collected.
    Then: no warning in the child; in the parent the broker still serves, and the pool lives.
    """
    with VmmMemoryPool(GRANULE, "sim", 1, None, 4, handle_type="posix_fd") as pool:
        proxy = pool.wrap_tensor(bytes_of(7, 256))
        assert proxy is not None
        bytes(proxy)
        assert in_forked_child([pool._end_if_dropped]) == ["returned None"]
        assert not producer_is_gone(pool.card)
        assert threads_of_pools() == ["vmmref-broker"]
        bytes(proxy)
        assert proxy.reconstruct_on_target_device("sim").tolist() == [7] * 256
        close_imports()


@pytest.mark.rule("LIFE-4")
@pytest.mark.rule("HND-4")
def test_life_4_a_pool_without_a_sign_of_life_is_not_made(
    simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A constructor that cannot have its socket gives everything back.

    Given: no socket to be had for the beacon.
    When: a pool is made.
    Then: BROKER_FAILED, and nothing is left.
    """

    def refuse() -> None:
        raise BrokerError(Reason.BROKER_FAILED, "HND-4", "no socket can be had")

    monkeypatch.setattr(VmmMemoryPool, "beacon_type", staticmethod(refuse))
    before = os.listdir("/proc/self/fd")
    with pytest.raises(BrokerError):
        VmmMemoryPool(GRANULE, "sim", 1, None, 4, handle_type="posix_fd")
    assert os.listdir("/proc/self/fd") == before
    assert simulator.usage().is_empty
    assert IMPORTS.find(b"") == ()
