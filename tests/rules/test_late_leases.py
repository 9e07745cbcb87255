"""REAP-2: a lease past its deadline."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.rules.toy import Toy

Make = Callable[..., Toy]


@pytest.mark.rule("REAP-2")
def test_reap_2_a_late_lease_is_reported_and_not_ended(toy: Make) -> None:
    """
    A lease past its deadline stays as it is, whatever the pool does meanwhile.

    Given: a lease dispatched at 0, with a deadline of 5 seconds.
    When: it is 5, then 6, and passes go by.
    Then: only at 6 is it set aside; R is 2n throughout, and no pass takes it back.
    """
    now = 0.0
    pool = toy(slots=1, lease_deadline=5.0, clock=lambda: now)
    pool.wrap(1)
    now = 5.0
    assert pool.pool.stats().set_aside_slots == ()
    now = 6.0
    assert pool.pool.stats().set_aside_slots == (0,)
    assert pool.pool.recycle() == 0
    assert pool.words()[0][0] == 2
    assert pool.pool.stats().set_aside_slots == (0,)


@pytest.mark.rule("REAP-2")
def test_reap_2_what_was_not_dispatched_is_not_late(toy: Make) -> None:
    """Nobody has a proxy of it, so nobody can be late: its publisher may still cancel it."""
    now = 0.0
    pool = toy(slots=1, lease_deadline=5.0, clock=lambda: now)
    pool.begin(1)
    now = 100.0
    assert pool.pool.stats().set_aside_slots == ()


@pytest.mark.rule("REAP-2")
def test_reap_2_the_late_reader_is_served_and_the_lease_comes_back_once(toy: Make) -> None:
    """
    Late is no proof of gone.

    Given: a lease past its deadline.
    When: its rank reads it after all, and two passes follow.
    Then: the rank has the bytes, the first pass takes the lease back, the second finds nothing.
    """
    now = 0.0
    pool = toy(slots=1, lease_deadline=5.0, clock=lambda: now)
    proxy = pool.wrap(7)
    now = 6.0
    assert pool.read(proxy) == bytes([7]) * 256
    pool.drain()
    assert [pool.pool.recycle(), pool.pool.recycle()] == [1, 0]
    assert pool.pool.stats().set_aside_slots == ()
