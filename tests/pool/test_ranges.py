"""Free ranges against the plainest model there is: a list with one entry for every 256 bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmmref.layout import ALIGNMENT
from vmmref.ranges import FreeRanges

UNITS = 24
START = 3 * ALIGNMENT
"""Not zero: control words come before the data."""


@dataclass
class Units:
    """One bool for each unit of the data area: True while it is free."""

    free: list[bool] = field(default_factory=lambda: [True] * UNITS)

    def runs(self) -> list[tuple[int, int]]:
        """Every free run as (first unit, one past the last), found by walking over all units."""
        runs: list[tuple[int, int]] = []
        for unit, is_free in enumerate(self.free):
            if is_free and runs and runs[-1][1] == unit:
                runs[-1] = (runs[-1][0], unit + 1)
            elif is_free:
                runs.append((unit, unit + 1))
        return runs

    def allocate(self, nbytes: int) -> tuple[int, int] | None:
        """Best fit, lowest start between equals, by trying every run."""
        need = -(-nbytes // ALIGNMENT)
        fitting = [(end - start, start) for start, end in self.runs() if end - start >= need]
        if not fitting:
            return None
        start = min(fitting)[1]
        self.free[start : start + need] = [False] * need
        return start, start + need

    def release(self, start: int, end: int) -> None:
        self.free[start:end] = [True] * (end - start)


def in_bytes(span: tuple[int, int]) -> tuple[int, int]:
    return START + span[0] * ALIGNMENT, START + span[1] * ALIGNMENT


@given(st.data())
def test_same_as_a_list_of_units(data: st.DataObject) -> None:
    ranges, units = FreeRanges(START, START + UNITS * ALIGNMENT), Units()
    held: list[tuple[int, int]] = []
    for _ in range(data.draw(st.integers(1, 40))):
        gives_back: bool = data.draw(st.booleans())
        if held and gives_back:
            span = held.pop(data.draw(st.integers(0, len(held) - 1)))
            units.release(*span)
            ranges.release(*in_bytes(span))
        else:
            nbytes = data.draw(st.integers(1, 8 * ALIGNMENT))
            expected = units.allocate(nbytes)
            assert ranges.allocate(nbytes) == (None if expected is None else in_bytes(expected))
            if expected is not None:
                held.append(expected)
        assert ranges.ranges() == tuple(in_bytes(run) for run in units.runs())
        assert ranges.free_bytes == sum(units.free) * ALIGNMENT
        assert ranges.largest == max((end - start for start, end in units.runs()), default=0) * ALIGNMENT


def cut(*sizes: int) -> tuple[FreeRanges, list[tuple[int, int]]]:
    """A data area of exactly these sizes in units, all of it leased in that order."""
    ranges = FreeRanges(0, sum(sizes) * ALIGNMENT)
    spans = [ranges.allocate(size * ALIGNMENT) for size in sizes]
    return ranges, [span for span in spans if span is not None]


def test_smallest_that_fits_is_taken() -> None:
    ranges, spans = cut(4, 1, 2, 1, 3, 1)
    for number in (0, 2, 4):
        ranges.release(*spans[number])
    assert ranges.allocate(2 * ALIGNMENT) == spans[2]


def test_lowest_start_between_equals() -> None:
    ranges, spans = cut(2, 1, 2, 1, 2, 1)
    for number in (4, 2, 0):
        ranges.release(*spans[number])
    assert [ranges.allocate(300) for _ in range(3)] == [spans[0], spans[2], spans[4]]


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 1, 0), (1, 0, 2)])
def test_neighbours_merge_in_any_order(order: tuple[int, ...]) -> None:
    ranges, spans = cut(1, 2, 1)
    for number in order:
        ranges.release(*spans[number])
    assert ranges.ranges() == ((0, 4 * ALIGNMENT),)


def test_an_empty_area_gives_nothing() -> None:
    ranges = FreeRanges(ALIGNMENT, ALIGNMENT)
    assert ranges.allocate(1) is None
    assert (ranges.ranges(), ranges.free_bytes, ranges.largest) == ((), 0, 0)


def test_a_refusal_changes_nothing() -> None:
    ranges, spans = cut(1, 1, 1)
    ranges.release(*spans[1])
    before = ranges.ranges()
    assert ranges.allocate(ALIGNMENT + 1) is None
    assert ranges.ranges() == before
