"""Contracts of the free ranges: what `FreeRanges` does to one, two or three ranges of any place and size.

Sizes are counted in units of ALIGNMENT, so that every number of units is a size that can come up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vmmref.conformance.symbolic.by_equality import ByEquality
from vmmref.layout import ALIGNMENT
from vmmref.ranges import FreeRanges

Range = tuple[int, int]

ADDRESS_SPACE = 2**48
"""Bytes; the pool relies on it that offsets stay below."""

MOST_UNITS = ADDRESS_SPACE // ALIGNMENT - 1
"""Where the last range may end."""


def entry(free: Range) -> int:
    """A range as one number that sorts by size, then by start."""
    start, end = free
    return (end - start) * ADDRESS_SPACE + start


def free_ranges(ranges: Iterable[Range]) -> FreeRanges:
    """The pool's own free ranges, with these in them."""
    free: Any = FreeRanges(0, 0)
    ranges = list(ranges)
    free._by_size = sorted(entry(one) for one in ranges)
    # Keys are compared and not hashed: a hash would need a number in place of a symbol.
    free._end_of = ByEquality(ranges)
    free._start_of = ByEquality([(end, start) for start, end in ranges])
    filled: FreeRanges = free
    return filled


def assert_holds(free: FreeRanges, due: Iterable[Range]) -> None:
    """`free` has these ranges, which are in the order of their starts, in each of its three views."""
    due = list(due)
    assert list(free.ranges()) == due
    assert sorted(free._start_of.items()) == sorted((end, start) for start, end in due)
    assert list(free._by_size) == sorted(entry(one) for one in due)


def in_bytes(first_unit: int, units: int) -> Range:
    """The range of so many units from `first_unit` on."""
    return first_unit * ALIGNMENT, (first_unit + units) * ALIGNMENT


def one_range_is_cut_at_its_start(first: int, units: int, nbytes: int) -> None:
    """RNG-1, RNG-2: a lease has whole units, less than one of them unused, and what is left stays free."""
    assert 0 <= first < first + units <= MOST_UNITS
    assert 0 < nbytes <= units * ALIGNMENT
    whole = in_bytes(first, units)
    free = free_ranges([whole])
    taken = free.allocate(nbytes)
    assert taken is not None
    start, end = taken
    assert start == whole[0]
    assert end % ALIGNMENT == 0
    assert nbytes <= end - start < nbytes + ALIGNMENT
    assert_holds(free, [(end, whole[1])] if end < whole[1] else [])


def the_best_of_three_is_taken(
    first: int, units: int, second: int, second_units: int, third: int, third_units: int, nbytes: int
) -> None:
    """RNG-3: the smallest range that fits, between equals the lowest."""
    assert 0 <= first < first + units < second < second + second_units < third < third + third_units <= MOST_UNITS
    assert nbytes > 0
    spans = (in_bytes(first, units), in_bytes(second, second_units), in_bytes(third, third_units))
    taken = free_ranges(spans).allocate(nbytes)
    fitting = [(end - start, start) for start, end in spans if end - start >= nbytes]
    if taken is None:
        assert not fitting
    else:
        assert taken[0] == min(fitting)[1]


def a_full_pool_stays_as_it_is(first: int, units: int, second: int, second_units: int, nbytes: int) -> None:
    """RNG-5: where no range fits, the answer is None and nothing was taken."""
    assert 0 <= first < first + units < second < second + second_units <= MOST_UNITS
    assert units * ALIGNMENT < nbytes
    assert second_units * ALIGNMENT < nbytes
    spans = [in_bytes(first, units), in_bytes(second, second_units)]
    free = free_ranges(spans)
    assert free.allocate(nbytes) is None
    assert_holds(free, spans)


def what_was_taken_leaves_the_rest(
    first: int, units: int, second: int, second_units: int, third: int, third_units: int, nbytes: int
) -> None:
    """RNG-1: taking from one of three ranges changes nothing of the others, and the rest of it stays free."""
    assert 0 <= first < first + units < second < second + second_units < third < third + third_units <= MOST_UNITS
    assert nbytes > 0
    spans = [in_bytes(first, units), in_bytes(second, second_units), in_bytes(third, third_units)]
    free = free_ranges(spans)
    taken = free.allocate(nbytes)
    rest = []
    for start, end in spans:
        if taken is not None and start == taken[0]:
            start = taken[1]
        if start < end:
            rest.append((start, end))
    assert_holds(free, rest)


def a_range_merges_with_what_it_touches(
    before: int, gap: int, units: int, second_gap: int, after: int, third_gap: int, third: int
) -> None:
    """RNG-4: a range comes back between two free ones: it joins those that it touches, and no third one behind them."""
    assert before > 0
    assert gap >= 0
    assert units > 0
    assert second_gap >= 0
    assert after > 0
    assert third_gap > 0
    assert third > 0
    assert before + gap + units + second_gap + after + third_gap + third <= MOST_UNITS
    behind = before + gap + units + second_gap
    left, given, right = in_bytes(0, before), in_bytes(before + gap, units), in_bytes(behind, after)
    last = in_bytes(behind + after + third_gap, third)
    free = free_ranges([left, right, last])
    free.release(*given)
    due = [(left[0] if gap == 0 else given[0], right[1] if second_gap == 0 else given[1])]
    if gap > 0:
        due = [left, *due]
    if second_gap > 0:
        due = [*due, right]
    assert_holds(free, [*due, last])


def a_range_at_the_edge_merges_too(units: int, gap: int, neighbour: int, is_before: bool) -> None:
    """RNG-4: the same with one free range, in front of it or behind it."""
    assert units > 0
    assert gap >= 0
    assert neighbour > 0
    assert units + gap + neighbour <= MOST_UNITS
    if is_before:
        other, given = in_bytes(0, neighbour), in_bytes(neighbour + gap, units)
    else:
        given, other = in_bytes(0, units), in_bytes(units + gap, neighbour)
    free = free_ranges([other])
    free.release(*given)
    whole = in_bytes(0, units + neighbour)
    assert_holds(free, [whole] if gap == 0 else sorted([given, other]))


def giving_back_undoes_taking(first: int, units: int, second: int, second_units: int, nbytes: int) -> None:
    """RNG-1, RNG-4: a lease that comes and goes leaves no trace."""
    assert 0 <= first < first + units < second < second + second_units <= MOST_UNITS
    assert nbytes > 0
    spans = [in_bytes(first, units), in_bytes(second, second_units)]
    free = free_ranges(spans)
    taken = free.allocate(nbytes)
    if taken is not None:
        free.release(*taken)
    assert_holds(free, spans)


def two_leases_share_no_byte(first: int, units: int, nbytes: int, more_bytes: int, in_order: bool) -> None:
    """RNG-1, RNG-4: two leases from one range lie in it and apart; given back in any order, they leave it whole."""
    assert 0 <= first < first + units <= MOST_UNITS
    assert nbytes > 0
    assert more_bytes > 0
    whole = in_bytes(first, units)
    free = free_ranges([whole])
    leases = [lease for lease in (free.allocate(nbytes), free.allocate(more_bytes)) if lease is not None]
    for start, end in leases:
        assert whole[0] <= start < end <= whole[1]
    if len(leases) == 2:
        assert leases[0][1] <= leases[1][0]
    for lease in leases if in_order else reversed(leases):
        free.release(*lease)
    assert_holds(free, [whole])
