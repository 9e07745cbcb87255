"""GEN: the numbers that tell a lease from all others of its slot."""

from __future__ import annotations

import logging

import pytest

from tests.rules.toy import GRANULE, Make, another, bytes_of
from vmmref.errors import AlreadyReleased, ArgumentError, GenerationExhausted, LeaseError
from vmmref.pool import VmmMemoryPool
from vmmref_models.reasons import Reason


@pytest.mark.rule("GEN-1")
def test_gen_1_each_lease_has_the_next_generation(toy: Make) -> None:
    """
    The first lease of a slot has generation 1; every later one exactly one more.

    Given: a pool of one slot.
    When: three leases end in three ways: recycled, cancelled, revoked after the proxy has left.
    Then: their generations are 1, 2, 3.
    """
    pool = toy()
    recycled = pool.wrap(1)
    pool.consume(recycled)
    pool.pool.recycle()
    cancelled = pool.begin(2)
    pool.pool.cancel_lease(cancelled.lease)
    revoked = pool.wrap(3)
    pool.pool.revoke(revoked.lease)
    assert [recycled.lease.generation, cancelled.lease.generation, revoked.lease.generation] == [1, 2, 3]


@pytest.mark.rule("GEN-2")
def test_gen_2_no_pair_is_issued_twice(toy: Make) -> None:
    """
    No (slot, generation) is issued twice, none is 0 or above the limit.

    Given: two slots with a limit of 3.
    When: leases are taken, one or two at a time, until the pool refuses.
    Then: every pair has come exactly once.
    """
    pool = toy(slots=2, generation_limit=3)
    issued = []
    for size in (1, 2, 1, 2):
        leases = [pool.begin(1).lease for _ in range(size)]
        issued += [(lease.slot, lease.generation) for lease in leases]
        for lease in leases:
            pool.pool.cancel_lease(lease)
    assert sorted(issued) == [(slot, generation) for slot in range(2) for generation in range(1, 4)]
    with pytest.raises(GenerationExhausted):
        pool.begin(1)


@pytest.mark.rule("GEN-3")
@pytest.mark.parametrize(("word_bytes", "last"), [(4, 2**31 - 1), (8, 2**62)])
def test_gen_3_the_last_generation_works_and_is_the_last(toy: Make, word_bytes: int, last: int) -> None:
    """
    The last generation is a full lease; after it the slot is never leased again.

    Given: a slot whose generation is one below the limit.
    When: it is leased, read, acknowledged and recycled, and a lease is asked for again.
    Then: the lease works; then the pool refuses with GENERATION_EXHAUSTED and nothing has changed.
    """
    pool = toy(word_bytes=word_bytes, issued_generations=(last - 1,))
    proxy = pool.wrap(0xA1)
    assert proxy.lease.generation == last
    assert pool.read(another(proxy)) == b"\xa1" * 256
    pool.drain()
    assert pool.words() == ((2 * last, last),)
    assert pool.pool.recycle() == 1
    assert pool.words() == ((2 * last + 1, last),)
    before = pool.state()
    with pytest.raises(GenerationExhausted) as refusal:
        pool.begin(1)
    assert (refusal.value.reason, refusal.value.rule) == (Reason.GENERATION_EXHAUSTED, "GEN-3")
    assert pool.state() == before


@pytest.mark.rule("GEN-3")
def test_gen_3_a_retired_slot_does_not_stop_the_others(toy: Make) -> None:
    """
    A slot at its limit is retired; the others go on.

    Given: two slots, one of them at its last generation but one.
    When: leases are taken and given back.
    Then: the other slot serves on, and a pool with a lease out that can come back is full, not exhausted.
    """
    pool = toy(slots=2, generation_limit=4, issued_generations=(3, 0))
    pool.pool.cancel_lease(pool.wrap(1).lease)
    assert pool.pool.stats().retired_slots == (0,)
    for generation in (1, 2, 3):
        lease = pool.wrap(1).lease
        assert (lease.slot, lease.generation) == (1, generation)
        assert pool.pool.wrap_tensor(bytes_of(1, 1)) is None
        pool.pool.cancel_lease(lease)


@pytest.mark.rule("GEN-3")
@pytest.mark.parametrize(
    "settings",
    [
        {"generation_limit": 2**31},
        {"generation_limit": 2**62 + 1, "word_bytes": 8},
        {"generation_limit": 0},
        {"generation_limit": 5, "issued_generations": (6,)},
        {"issued_generations": (0, 0)},
        {"issued_generations": (-1,)},
    ],
)
def test_gen_3_a_limit_that_the_words_cannot_hold_is_refused(settings: dict[str, object]) -> None:
    """
    Generations must fit their words.

    Given: a limit or preset generations that the control words cannot tell apart, or of another number of slots.
    When: a pool is made.
    Then: BAD_ARGUMENT.
    """
    with pytest.raises(ArgumentError) as refusal:
        VmmMemoryPool(GRANULE, "sim", 1, None, 1, **settings)  # type: ignore[arg-type]
    assert (refusal.value.reason, refusal.value.rule) == (Reason.BAD_ARGUMENT, "GEN-3")


@pytest.mark.rule("GEN-4")
def test_gen_4_an_old_handle_never_touches_a_newer_lease(toy: Make) -> None:
    """
    ABA: everything about the old lease coincides but its generation.

    Given: a lease that was revoked, and a newer one of the same slot and range.
    When: the old handle cancels, revokes and releases, and old proxies are released and read.
    Then: every use is refused or without effect; the newer lease is active, readable and recycled once.
    """
    pool = toy()
    old = pool.wrap(0xA1)
    aliases = [another(old), another(old)]
    pool.pool.revoke(old.lease)
    new = pool.wrap(0xB2)
    assert (new.lease.slot, new.lease.start) == (old.lease.slot, old.lease.start)
    before = pool.pool.stats()
    for end in (pool.pool.cancel_lease, pool.pool.revoke, pool.pool.release_lease, pool.pool.begin_cancel):
        with pytest.raises(LeaseError) as refusal:
            end(old.lease)
        assert refusal.value.reason is Reason.INACTIVE_LEASE
    pool.release(aliases[0])
    pool.drain()
    with pytest.raises(AlreadyReleased):
        pool.read(aliases[1])
    assert pool.pool.recycle() == 0
    assert pool.pool.stats() == before
    assert pool.read(new) == b"\xb2" * 256
    pool.drain()
    assert pool.pool.recycle() == 1


@pytest.mark.rule("GEN-5")
def test_gen_5_a_proxy_of_another_pool_is_refused(toy: Make) -> None:
    """
    The nonce tells pools apart, whatever else coincides.

    Given: two pools alike in everything, each with its first lease, and both proxies read in one process.
    When: each pool is asked to end the other's lease.
    Then: FOREIGN_POOL, nothing changed; each proxy reads its own pool's bytes, and acknowledges there only.
    """
    pools = [toy(), toy()]
    proxies = [pool.wrap(value) for pool, value in zip(pools, (0xA1, 0xB2), strict=True)]
    assert proxies[0].lease[1:] == proxies[1].lease[1:]
    before = [pool.state() for pool in pools]
    for pool, foreign in zip(pools, reversed(proxies), strict=True):
        for end in (pool.pool.cancel_lease, pool.pool.revoke, pool.pool.release_lease):
            with pytest.raises(LeaseError) as refusal:
                end(foreign.lease)
            assert (refusal.value.reason, refusal.value.rule) == (Reason.FOREIGN_POOL, "GEN-5")
    assert [pool.state() for pool in pools] == before
    assert pools[0].read(another(proxies[0])) == b"\xa1" * 256
    pools[0].drain()
    assert [pool.words() for pool in pools] == [((2, 1),), ((2, 0),)]
    assert pools[1].read(another(proxies[1])) == b"\xb2" * 256


@pytest.mark.rule("GEN-6")
def test_gen_6_the_pool_tells_how_many_generations_are_left(toy: Make, caplog: pytest.LogCaptureFixture) -> None:
    """
    An operator can see the end coming.

    Given: two slots with a limit of 16, one of them further than the other.
    When: leases are taken and given back until the pool refuses.
    Then: `generations_left` falls to 0, and one warning has come before the end.
    """
    pool = toy(slots=2, generation_limit=16, issued_generations=(12, 14))
    left = [pool.pool.stats().generations_left]
    with caplog.at_level(logging.WARNING, logger="vmmref"):
        for _ in range(6):
            lease = pool.wrap(1).lease
            left.append(pool.pool.stats().generations_left)
            pool.pool.cancel_lease(lease)
        with pytest.raises(GenerationExhausted):
            pool.wrap(1)
    assert left == [2, 2, 1, 1, 0, 1, 0]
    assert pool.pool.stats().generations_left == 0
    assert len(caplog.records) == 1
