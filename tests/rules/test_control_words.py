"""CTL: where the control words lie, who writes them, and that they only rise."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.rules.toy import DATA, GRANULE, Make, another
from vmmref.errors import ArgumentError
from vmmref.imports import IMPORTS
from vmmref.pool import VmmMemoryPool
from vmmref.simcuda import Blocked, Piece, Simulator
from vmmref_models.reasons import Reason


@pytest.mark.rule("CTL-1")
def test_ctl_1_a_full_pool_touches_no_word(toy: Make) -> None:
    """
    No lease overlaps a control word.

    Given: a pool whose whole data area is leased, with bytes that are all ones.
    When: the words are looked at.
    Then: R of each lease holds 2, every other word is zero, and the first lease starts behind the last word.
    """
    pool = toy(slots=2, consumers=3)
    leases = [pool.wrap(0xFF, DATA // 2).lease for _ in range(2)]
    assert pool.free == 0
    assert pool.words() == ((2, 0, 0, 0), (2, 0, 0, 0))
    assert min(lease.start for lease in leases) == 256 >= pool.pool.card.layout.control_bytes


@pytest.mark.rule("CTL-2")
def test_ctl_2_every_word_tells_its_own_story(toy: Make) -> None:
    """
    No two words share an address.

    Given: three slots of two ranks, whose generations differ from slot to slot.
    When: every lease is read by rank 1 only, and then by rank 0 too.
    Then: each word holds its own slot's generation, and only the words of the rank that has read have changed.
    """
    pool = toy(slots=3, consumers=2, issued_generations=(0, 10, 20))
    proxies = [pool.wrap(1) for _ in range(3)]
    for proxy in proxies:
        pool.read(proxy, rank=1)
    pool.drain()
    assert pool.words() == ((2, 0, 1), (22, 0, 11), (42, 0, 21))
    for proxy in proxies:
        pool.read(proxy, rank=0)
    pool.drain()
    assert pool.words() == ((2, 1, 1), (22, 11, 11), (42, 21, 21))


@pytest.mark.rule("CTL-3")
def test_ctl_3_a_word_is_never_zeroed_again(toy: Make) -> None:
    """
    Words are set to zero once, when the pool is created.

    Given: a fresh pool.
    When: its slot is leased, read, recycled and leased again.
    Then: all words were zero at first, and at the second lease they still hold what the first one left.
    """
    pool = toy()
    assert pool.words() == ((0, 0),)
    pool.consume(pool.wrap(1))
    pool.pool.recycle()
    assert pool.words() == ((3, 1),)
    publication = pool.begin(2)
    assert pool.words() == ((3, 1),)
    pool.pool.finish_publish(publication)
    assert pool.words() == ((4, 1),)


@pytest.mark.rule("CTL-4")
def test_ctl_4_one_writer_a_word(toy: Make, simulator: Simulator) -> None:
    """
    R is the producer's, A[r] is rank r's, and nobody else stores into them.

    Given: two leases, one read by both ranks, one revoked after one rank has released it.
    When: every piece of work runs one by one, and each store into a control word is noted with its stream.
    Then: each A[r] was written by the stream of rank r only, each R by the producer's streams only.
    """
    pool = toy(slots=2, consumers=2)
    layout = pool.pool.card.layout
    publish, retire = pool.pool.publish_stream, pool.pool.retire_stream
    stores: list[Piece] = []

    def run_all() -> None:
        while isinstance(piece := simulator.step_submission(), Piece):
            stores.append(piece)

    first, second = pool.begin(1), pool.begin(2)
    run_all()
    read, revoked = pool.pool.finish_publish(first), pool.pool.finish_publish(second)
    readings = [pool.start(read, rank) for rank in range(2)]
    pool.release(revoked, rank=0)
    run_all()
    for reading in readings:
        reading.finish()
    pool.pool.begin_cancel(revoked.lease)
    run_all()
    pool.pool.claim(pool.pool.look())
    run_all()
    assert pool.pool.reclaim() == 2
    writers: dict[int, set[int]] = defaultdict(set)
    # Producer and consumers have mapped the same memory at addresses of their own.
    for mapped in (pool.pool.address, IMPORTS.find(pool.pool.card.nonce)[0].address):
        for store in stores:
            if 0 <= store.destination - mapped < layout.control_bytes:
                writers[store.destination - mapped].add(store.stream)
    ranks = [pool.rank_stream(0), pool.rank_stream(1)]
    assert writers == {
        layout.ready_offset(0): {publish, retire},
        layout.ready_offset(1): {publish, retire},
        layout.ack_offset(0, 0): {ranks[0]},
        layout.ack_offset(0, 1): {ranks[1]},
        layout.ack_offset(1, 0): {ranks[0]},
    }


@pytest.mark.rule("CTL-5")
def test_ctl_5_a_pool_without_a_data_area_is_refused(simulator: Simulator) -> None:
    """
    Control words that leave no room are refused.

    Given: a granule of memory and so many slots that their words fill it.
    When: a pool is made.
    Then: POOL_TOO_SMALL with both sizes, before any driver call that takes something.
    """
    with pytest.raises(ArgumentError) as refusal:
        VmmMemoryPool(GRANULE, "sim", 1, None, GRANULE // 8)
    assert (refusal.value.reason, refusal.value.rule) == (Reason.POOL_TOO_SMALL, "CTL-5")
    assert f"pool={GRANULE}, control={GRANULE}" in str(refusal.value)
    assert simulator.usage().is_empty


@pytest.mark.rule("CTL-6")
def test_ctl_6_a_retire_store_waits_for_its_ready_store(toy: Make, simulator: Simulator) -> None:
    """
    R of a slot never falls, whatever stream runs first.

    Given: a lease whose copy and ready store are queued, and which is cancelled before they have run.
    When: the retire stream is run before the publish stream.
    Then: its store is blocked until the ready store has run; R goes 0, 2, 3.
    """
    pool = toy()
    lease = pool.begin(1).lease
    pool.pool.begin_cancel(lease)
    assert isinstance(pool.step(pool.pool.retire_stream), Blocked)
    assert pool.words() == ((0, 0),)
    pool.step(pool.pool.publish_stream)
    assert isinstance(pool.step(pool.pool.retire_stream), Blocked)
    pool.step(pool.pool.publish_stream)
    assert pool.words() == ((2, 0),)
    assert isinstance(pool.step(pool.pool.retire_stream), Piece)
    assert pool.words() == ((3, 0),)
    assert pool.pool.reclaim() == 1


@pytest.mark.rule("CTL-6")
def test_ctl_6_a_late_acknowledgement_writes_no_ready_word(toy: Make) -> None:
    """
    Only the producer moves R, also when a reader comes late.

    Given: a lease that was revoked and whose slot was leased again.
    When: an old copy of its proxy is released.
    Then: R stays that of the newer lease.
    """
    pool = toy()
    old = pool.wrap(1)
    alias = another(old)
    pool.pool.revoke(old.lease)
    pool.wrap(2)
    pool.release(alias)
    pool.drain()
    assert pool.words() == ((4, 1),)
