"""Contracts of the control words: where they lie, what they hold, which generation is next and who has entered."""

from __future__ import annotations

from typing import Any

from vmmref.book import LeaseBook
from vmmref.conformance.symbolic.by_equality import ByEquality
from vmmref.conformance.symbolic.ranges import MOST_UNITS, assert_holds, free_ranges, in_bytes
from vmmref.errors import GenerationExhausted
from vmmref.layout import ALIGNMENT, ControlLayout, largest_generation, live_word, retired_word
from vmmref.lease import PoolLease
from vmmref.slots import Slots
from vmmref.table import RankTable


def offset_of(layout: ControlLayout, slot: int, place: int) -> int:
    """Where a word lies: place 0 is R(slot), place 1 + r is A[r]."""
    return layout.ready_offset(slot) if place == 0 else layout.ack_offset(slot, place - 1)


def two_words_share_no_byte(
    slots: int, consumers: int, wide: bool, slot: int, place: int, other_slot: int, other_place: int
) -> None:
    """CTL-2: any two words of a pool, of whatever slots and ranks."""
    assert 0 <= slot < slots
    assert 0 <= other_slot < slots
    assert 0 <= place <= consumers
    assert 0 <= other_place <= consumers
    assert slot != other_slot or place != other_place
    word_bytes = 8 if wide else 4
    layout = ControlLayout(slots, consumers, word_bytes)
    one, other = offset_of(layout, slot, place), offset_of(layout, other_slot, other_place)
    assert one + word_bytes <= other or other + word_bytes <= one


def words_lie_below_the_data(slots: int, consumers: int, wide: bool, slot: int, place: int) -> None:
    """CTL-1, CTL-2: every word ends where the data begins or before, and is aligned to its size."""
    assert 0 <= slot < slots
    assert 0 <= place <= consumers
    word_bytes = 8 if wide else 4
    layout = ControlLayout(slots, consumers, word_bytes)
    offset = offset_of(layout, slot, place)
    assert offset >= 0
    assert offset + word_bytes <= layout.data_start
    assert offset % word_bytes == 0


def data_begins_at_the_next_multiple(slots: int, consumers: int, wide: bool) -> None:
    """CTL-1, RNG-2: the data begins on a multiple of ALIGNMENT, with less than one of them lost."""
    assert slots > 0
    assert consumers > 0
    layout = ControlLayout(slots, consumers, 8 if wide else 4)
    assert layout.data_start % ALIGNMENT == 0
    assert layout.control_bytes <= layout.data_start < layout.control_bytes + ALIGNMENT


def no_two_ready_words_are_equal(generation: int, other: int, wide: bool) -> None:
    """GEN-3: up to the limit, the words of a slot's leases, live and retired, differ, fit and are not zero."""
    assert 1 <= generation <= largest_generation(8 if wide else 4)
    assert 1 <= other <= largest_generation(8 if wide else 4)
    word_bytes = 8 if wide else 4
    live, retired = live_word(generation), retired_word(generation)
    assert 0 < live < 2 ** (8 * word_bytes)
    assert 0 < retired < 2 ** (8 * word_bytes)
    assert live != retired_word(other)
    assert (live == live_word(other)) == (generation == other)
    assert (retired == retired_word(other)) == (generation == other)


def the_limit_of_small_words_is_sharp(generation: int) -> None:
    """GEN-3: one generation more than the limit of 4-byte words has a word that does not fit."""
    assert generation > largest_generation(4)
    assert retired_word(generation) >= 2**32


def a_lease_has_the_next_generation(limit: int, issued: int) -> None:
    """GEN-1, GEN-2, GEN-3: one more than the last; at the limit there is none, and the slot is retired, not lost."""
    assert limit >= 1
    assert 0 <= issued <= limit
    slots = Slots(1, limit, (issued,))
    assert slots.any_free == (issued < limit)
    assert slots.exhausted == (issued >= limit)
    if slots.any_free:
        slot, generation = slots.lease()
        assert (slot, generation) == (0, issued + 1)
        assert slots.generations == (generation,)
        assert not slots.any_free


def a_slot_comes_back_or_retires(limit: int, issued: int, other_issued: int) -> None:
    """SLOT-1, SLOT-3, GEN-3: of two slots, one is leased and comes back: free behind the other one, or retired."""
    assert 0 <= issued < limit
    assert 0 <= other_issued <= limit
    slots = Slots(2, limit, (issued, other_issued))
    slot, generation = slots.lease()
    assert (slot, generation) == (0, issued + 1)
    assert slots.generations == (generation, other_issued)
    slots.release(slot)
    assert slots.free == (*((1,) if other_issued < limit else ()), *((0,) if generation < limit else ()))
    assert slots.retired == (*((0,) if generation >= limit else ()), *((1,) if other_issued >= limit else ()))


def the_smallest_rest_is_told(limit: int, issued: int, other_issued: int) -> None:
    """GEN-6: the number of generations left is the smaller one of two slots that are both in use."""
    assert 0 <= issued < limit
    assert 0 <= other_issued < limit
    left = Slots(2, limit, (issued, other_issued)).generations_left
    assert left == min(limit - issued, limit - other_issued)


def a_refusal_takes_nothing(issued: int, units: int, nbytes: int, wide: bool) -> None:
    """GEN-3, RNG-5: a lease takes a range and the next generation; no room, or the limit, costs neither of them."""
    assert 0 <= issued <= largest_generation(8 if wide else 4)
    assert 0 < units < MOST_UNITS
    assert nbytes > 0
    limit = largest_generation(8 if wide else 4)
    book = book_of_one_slot(limit, issued)
    whole = in_bytes(1, units)
    ranges = book._ranges = free_ranges([whole])
    holding = None
    try:
        holding = book.take(nbytes)
    except GenerationExhausted:
        assert issued == limit
    if holding is None:
        assert issued == limit or nbytes > units * ALIGNMENT
        assert book._slots.generations == (issued,)
        assert_holds(ranges, [whole])
    else:
        assert (holding.lease.slot, holding.lease.generation) == (0, issued + 1)
        assert holding.lease.generation <= limit


def book_of_one_slot(limit: int, issued: int) -> LeaseBook:
    """A book that has already warned of its end, for logging is none of the contract."""
    book = LeaseBook(b"", ControlLayout(1, 1), ALIGNMENT, limit, "symbolic", (issued,))
    book._warned = True
    return book


def table_that_has_entered(generation: int) -> RankTable:
    """A rank's table that knows the last generation of slot 0; 0 = none."""
    table: Any = RankTable(0, "cpu")
    # Generations are values of it and never keys; a symbol may stand for one.
    table._last = ByEquality([(0, generation)] if generation > 0 else [])
    filled: RankTable = table
    return filled


def lease_of(generation: int) -> PoolLease:
    """A lease of slot 0."""
    return PoolLease(b"", 0, generation, 0, ALIGNMENT, ALIGNMENT)


def a_rank_enters_rising_generations_only(last: int, generation: int) -> None:
    """CON-3, ACK-2: a rank takes part in a lease once, and not in one that is older than its last."""
    assert last >= 0
    assert generation >= 1
    table, lease = table_that_has_entered(last), lease_of(generation)
    assert table.enter(lease) == (generation > last)
    assert not table.enter(lease)
    assert table.is_last(lease) == (generation >= last)


def a_late_reader_does_not_acknowledge(last: int, generation: int, newer: int) -> None:
    """ACK-2: once its rank has entered a newer lease of the slot, a lease is not the last any more."""
    assert 0 <= last < generation
    assert newer >= 1
    table, lease, second = table_that_has_entered(last), lease_of(generation), lease_of(newer)
    assert table.enter(lease)
    assert table.enter(second) == (newer > generation)
    assert table.is_last(lease) == (newer <= generation)


def a_new_table_knows_the_words(last: int, word: int, generation: int) -> None:
    """CON-3: a table that learns what its rank's word holds refuses what was acknowledged before its time."""
    assert last >= 0
    assert word >= 0
    assert generation >= 1
    table = table_that_has_entered(last)
    table.start([word])
    assert table.enter(lease_of(generation)) == (generation > last and generation > word)
