"""Slots: the order of their reuse, and the end of their generations."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vmmref.slots import Slots


def test_first_in_first_out() -> None:
    slots = Slots(3, limit=10)
    assert [slots.lease() for _ in range(3)] == [(0, 1), (1, 1), (2, 1)]
    for slot in (1, 0, 2):
        slots.release(slot)
    assert slots.free == (1, 0, 2)
    assert [slots.lease() for _ in range(3)] == [(1, 2), (0, 2), (2, 2)]


def test_a_slot_at_its_limit_is_retired() -> None:
    slots = Slots(2, limit=2, issued=(1, 0))
    assert slots.lease() == (0, 2)
    slots.release(0)
    assert (slots.free, slots.retired, slots.exhausted) == ((1,), (0,), False)


def test_a_slot_that_starts_at_its_limit_is_retired() -> None:
    slots = Slots(2, limit=5, issued=(5, 4))
    assert (slots.free, slots.retired) == ((1,), (0,))
    assert slots.lease() == (1, 5)


def test_exhausted_while_the_last_lease_is_still_out() -> None:
    slots = Slots(1, limit=1)
    assert not slots.exhausted
    assert slots.lease() == (0, 1)
    assert slots.exhausted
    slots.release(0)
    assert (slots.exhausted, slots.free, slots.retired) == (True, (), (0,))


def test_not_exhausted_while_a_lease_is_out_that_will_come_back() -> None:
    slots = Slots(2, limit=2, issued=(2, 0))
    slots.lease()
    assert not slots.any_free
    assert not slots.exhausted


def test_generations_left_is_of_the_most_used_slot() -> None:
    slots = Slots(3, limit=10, issued=(10, 7, 2))
    assert slots.generations_left == 3
    # A lease that is out counts with its slot until the slot is retired.
    assert slots.lease() == (1, 8)
    assert slots.generations_left == 2
    assert Slots(1, limit=4, issued=(4,)).generations_left == 0


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_every_slot_is_in_one_place_and_no_pair_is_issued_twice(count: int, limit: int, data: st.DataObject) -> None:
    issued = data.draw(st.lists(st.integers(0, limit), min_size=count, max_size=count))
    slots, leased = Slots(count, limit, issued), dict[int, int]()
    last = list(issued)
    # A lease and a release for every generation that is left.
    for _ in range(2 * sum(limit - used for used in issued)):
        if slots.any_free and (not leased or data.draw(st.booleans())):
            slot, generation = slots.lease()
            assert slot not in leased
            assert generation == last[slot] + 1 <= limit
            last[slot] = leased[slot] = generation
        else:
            slot = data.draw(st.sampled_from(sorted(leased)))
            del leased[slot]
            slots.release(slot)
        assert sorted([*slots.free, *leased, *slots.retired]) == list(range(count))
        assert slots.generations == tuple(last)
    assert not leased
    assert slots.exhausted
    assert slots.generations_left == 0
