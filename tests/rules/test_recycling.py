"""REC: how a lease comes back, once, and never early."""

from __future__ import annotations

import threading

import pytest

from tests.rules.toy import Make, Toy, another, bytes_of
from vmmref.driver import calls, streams
from vmmref.errors import LeaseError
from vmmref.proxy import TensorProxy
from vmmref.simcuda import Blocked, Simulator
from vmmref_models.reasons import Reason


@pytest.mark.rule("REC-1")
@pytest.mark.parametrize("absent", [0, 1, 2])
def test_rec_1_recycling_waits_for_every_rank(toy: Make, absent: int) -> None:
    """
    Partial groups never suffice.

    Given: a lease of three ranks, of which two have acknowledged.
    When: a pass runs, and again after the third.
    Then: nothing, then one lease.
    """
    pool = toy(consumers=3)
    proxy = pool.wrap(1)
    for rank in {0, 1, 2} - {absent}:
        pool.read(proxy, rank)
    pool.drain()
    assert (pool.pool.recycle(), len(pool.pool.stats().leases)) == (0, 1)
    pool.read(proxy, absent)
    # Queued is not done.
    assert pool.pool.recycle() == 0
    pool.drain()
    assert pool.pool.recycle() == 1


@pytest.mark.rule("REC-2")
def test_rec_2_range_and_slot_come_back_when_the_retire_store_is_seen(toy: Make) -> None:
    """
    Neither the range nor the slot returns before R = 2n+1.

    Given: a claimed lease whose retire store is queued and has not run.
    When: the pool is asked to take it back without waiting, and for another lease.
    Then: range and slot stay taken; after the store has run both return.
    """
    pool = toy(slots=2)
    proxy = pool.wrap(1, 1024)
    pool.consume(proxy)
    assert pool.pool.claim(pool.pool.look()) == 1
    assert pool.pool.reclaim(wait=False) == 0
    stats = pool.pool.stats()
    assert (stats.free_bytes, stats.retiring_slots, stats.free_slots) == (0, (0,), (1,))
    assert pool.words()[0] == (2, 1)
    pool.step(pool.pool.retire_stream)
    assert pool.words()[0] == (3, 1)
    assert pool.pool.reclaim(wait=False) == 1
    pool.check_home()


@pytest.mark.rule("REC-2")
def test_rec_2_the_retire_store_comes_after_copy_and_ready(toy: Make) -> None:
    """
    A cancel before the copy has run waits for it.

    Given: a lease whose copy is queued.
    When: it is cancelled, and the retire stream is asked to run first.
    Then: blocked until copy and ready store have run; the range comes back after that.
    """
    pool = toy()
    pool.pool.begin_cancel(pool.begin(1, 1024).lease)
    for _ in range(2):
        assert isinstance(pool.step(pool.pool.retire_stream), Blocked)
        assert pool.pool.reclaim(wait=False) == 0
        pool.step(pool.pool.publish_stream)
    pool.step(pool.pool.retire_stream)
    assert pool.pool.reclaim(wait=False) == 1


@pytest.mark.rule("REC-3")
def test_rec_3_an_old_look_claims_nothing_of_a_newer_lease(toy: Make) -> None:
    """
    A look is dropped where the lease it saw is not active any more.

    Given: two looks that saw a lease complete.
    When: the first is acted on, the slot is leased again, and then the second is acted on.
    Then: the second claims nothing; the newer lease stays.
    """
    pool = toy()
    pool.consume(pool.wrap(1))
    looks = [pool.pool.look(), pool.pool.look()]
    assert pool.pool.claim(looks[0]) == 1
    # Retiring: nobody else may claim it.
    assert pool.pool.claim(looks[1]) == 0
    assert pool.pool.reclaim() == 1
    new = pool.wrap(2)
    assert pool.pool.claim(looks[1]) == 0
    assert pool.pool.stats().leases == (new.lease,)


@pytest.mark.rule("REC-3")
def test_rec_3_one_of_recycler_and_cancel_wins(toy: Make) -> None:
    """
    A lease leaves active once; the loser is told and changes nothing.

    Given: a complete lease, and one that was cancelled without waiting.
    When: the first is claimed by a pass and then cancelled; a pass then looks at both.
    Then: INACTIVE_LEASE for the loser; each comes back once.
    """
    pool = toy(slots=2)
    complete, cancelled = pool.wrap(1), pool.wrap(2)
    pool.consume(complete)
    pool.consume(cancelled)
    pool.pool.begin_cancel(cancelled.lease)
    assert pool.pool.claim(pool.pool.look()) == 1
    for proxy in (complete, cancelled):
        before = pool.state()
        for end in (pool.pool.cancel_lease, pool.pool.revoke, pool.pool.release_lease):
            with pytest.raises(LeaseError) as refusal:
                end(proxy.lease)
            assert refusal.value.reason is Reason.INACTIVE_LEASE
        assert pool.state() == before
    assert pool.pool.recycle() == 2
    pool.check_home()


@pytest.mark.rule("REC-3")
def test_rec_3_many_threads_one_winner(toy: Make) -> None:
    """
    However many want to end a lease, one does.

    Given: a complete lease.
    When: eight threads cancel it while one claims it from a look.
    Then: exactly one succeeds, and the lease comes back once.
    """
    pool = toy()
    proxy = pool.wrap(1)
    pool.consume(proxy)
    look, start = pool.pool.look(), threading.Barrier(9)
    won: list[str] = []

    def cancel() -> None:
        start.wait(10)
        try:
            pool.pool.begin_cancel(proxy.lease)
            won.append("cancel")
        except LeaseError:
            pass

    def claim() -> None:
        start.wait(10)
        won.extend(["claim"] * pool.pool.claim(look))

    threads = [threading.Thread(target=cancel) for _ in range(8)] + [threading.Thread(target=claim)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(won) == 1
    assert pool.pool.reclaim() == 1
    pool.check_home()


def waiter(pool: Toy, done: list[TensorProxy | BaseException]) -> threading.Thread:
    """A thread that publishes, and waits until somebody else runs its stream."""
    publication = pool.begin(0xA1)

    def publish() -> None:
        try:
            done.append(pool.pool.finish_publish(publication))
        except BaseException as error:
            done.append(error)

    thread = threading.Thread(target=publish)
    thread.start()
    return thread


@pytest.mark.rule("REC-4")
def test_rec_4_a_stuck_stream_stops_nobody_else(toy: Make, simulator: Simulator) -> None:
    """
    Nobody waits for the device with a lock in hand.

    Given: a thread that waits for its publication, on a publish stream that does not run.
    When: others lease, read, release, look, cancel and recycle what does not depend on that stream.
    Then: all of it is done while the thread still waits; it gets its proxy when the stream runs.
    """
    pool = toy(slots=4)
    main = threading.get_ident()

    def run_what_main_waits_for(event: int) -> None:
        if threading.get_ident() == main:
            calls.synchronize_event(event)

    ready = [pool.wrap(value) for value in (1, 2)]
    done: list[TensorProxy | BaseException] = []
    with streams.progress(run_what_main_waits_for):
        thread = waiter(pool, done)
        queued = pool.begin(4)
        assert pool.read(ready[0]) == b"\1" * 256
        simulator.drain(pool.rank_stream())
        assert pool.pool.recycle() == 1
        pool.pool.cancel_lease(ready[1].lease)
        pool.pool.begin_cancel(queued.lease)
        assert pool.pool.reclaim(wait=False) == 0
        assert (thread.is_alive(), done) == (True, [])
        assert pool.words()[2] == (0, 0)
        simulator.drain(pool.pool.publish_stream)
        thread.join(10)
    assert isinstance(done[0], TensorProxy)
    assert pool.pool.reclaim() == 1


@pytest.mark.rule("REC-4")
def test_rec_4_a_slow_consumer_does_not_stop_the_pool(toy: Make) -> None:
    """
    The recycler has a stream of its own.

    Given: a rank whose copy-out is queued and does not run.
    When: passes run, leases are taken and cancelled.
    Then: all of it is done; the slow rank's lease stays.
    """
    pool = toy(slots=2)
    slow = pool.wrap(0xA1)
    reading = pool.start(slow)
    for _ in range(3):
        pool.pool.cancel_lease(pool.wrap(2).lease)
        assert pool.pool.recycle() == 0
    assert reading.finish().tolist() == [0xA1] * 256
    pool.drain()
    assert pool.pool.recycle() == 1


@pytest.mark.rule("REC-5")
def test_rec_5_a_lease_is_recycled_once(toy: Make) -> None:
    """
    A lease that came back does not come back again.

    Given: two complete leases.
    When: passes run until nothing happens, with every rank acknowledging again in between.
    Then: two, then none; the ranges and slots have grown once.
    """
    pool = toy(slots=2)
    proxies = [pool.wrap(value) for value in (1, 2)]
    for proxy in proxies:
        pool.consume(proxy)
    assert pool.pool.recycle() == 2
    for proxy in proxies:
        pool.release(another(proxy))
    pool.drain()
    assert [pool.pool.recycle() for _ in range(3)] == [0, 0, 0]
    pool.check_home()


@pytest.mark.rule("REC-6")
def test_rec_6_releasing_an_inactive_lease_is_refused(toy: Make) -> None:
    """
    The low-level release ends the active lease and no other.

    Given: a lease that was released by its handle.
    When: the handle is released again, at once and after the slot was leased again.
    Then: INACTIVE_LEASE with slot and generation, and nothing has changed.
    """
    pool = toy(slots=2)
    lease, _ = pool.pool.copy_tensor(bytes_of(1, 3))
    assert lease is not None
    pool.pool.release_lease(lease)
    for _ in range(3):
        before = pool.state()
        with pytest.raises(LeaseError) as refusal:
            pool.pool.release_lease(lease)
        assert (refusal.value.reason, refusal.value.rule) == (Reason.INACTIVE_LEASE, "REC-6")
        assert "(slot=0, generation=1)" in str(refusal.value)
        assert pool.state() == before
        pool.wrap(2) if pool.pool.stats().free_slots else None
