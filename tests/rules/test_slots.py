"""SLOT: slots, their order and what belongs to them."""

from __future__ import annotations

import pytest

from tests.rules.toy import Make


@pytest.mark.rule("SLOT-1")
def test_slot_1_every_slot_is_in_one_place(toy: Make) -> None:
    """
    A slot is free, leased or retired, and never nowhere.

    Given: three slots, of which one is at its limit and one reaches it with its next lease.
    When: leases are taken, retired and given back.
    Then: each slot is in exactly one place all the time.
    """
    pool = toy(slots=3, generation_limit=5, issued_generations=(5, 4, 0))
    pool.check_accounts()
    assert pool.pool.stats().retired_slots == (0,)
    last, other = pool.wrap(1).lease, pool.wrap(2).lease
    pool.check_accounts()
    pool.pool.begin_cancel(last)
    pool.check_accounts()
    pool.pool.reclaim()
    pool.check_accounts()
    assert (pool.pool.stats().retired_slots, pool.pool.stats().free_slots) == ((0, 1), ())
    pool.pool.cancel_lease(other)
    pool.check_accounts()


@pytest.mark.rule("SLOT-2")
def test_slot_2_words_and_bytes_belong_to_the_same_slot(toy: Make) -> None:
    """
    A slot carries one lease, and a lease's words are its slot's.

    Given: three leases with bytes of their own.
    When: the middle one is revoked and the others are read.
    Then: three different slots; only the middle one's R is retired; the others are read with their own bytes.
    """
    pool = toy(slots=3)
    proxies = [pool.wrap(value) for value in (0xA1, 0xB2, 0xC3)]
    assert len({proxy.lease.slot for proxy in proxies}) == 3
    pool.pool.revoke(proxies[1].lease)
    assert [words[0] for words in pool.words()] == [2, 3, 2]
    assert pool.read(proxies[0]) == b"\xa1" * 256
    assert pool.read(proxies[2]) == b"\xc3" * 256


@pytest.mark.rule("SLOT-3")
def test_slot_3_slots_are_reused_first_in_first_out(toy: Make) -> None:
    """
    Churn spreads over all slots.

    Given: three slots.
    When: one lease at a time is taken and given back, six times.
    Then: each slot is used twice, in turn.
    """
    pool = toy(slots=3)
    used = []
    for _ in range(6):
        lease = pool.wrap(1).lease
        used.append((lease.slot, lease.generation))
        pool.pool.cancel_lease(lease)
    assert used == [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (2, 2)]
