"""What the model and the pool both work out, each in its own way and with code of its own, beside one another.

Each pair of functions has the same arguments. Outside of what they speak of, both answer None.
"""

from __future__ import annotations

from vmmref.conformance.symbolic.ranges import MOST_UNITS, Range, free_ranges, in_bytes
from vmmref.layout import ALIGNMENT, ControlLayout, align_up
from vmmref.slots import Slots
from vmmref_models import Shape
from vmmref_models.allocation import best_fit, exhausted, merged, rounded
from vmmref_models.state import Allocator


def model_rounded(nbytes: int) -> int:
    """The bytes of a lease."""
    return rounded(nbytes)


def pool_rounded(nbytes: int) -> int:
    """The bytes of a lease."""
    return align_up(nbytes, ALIGNMENT)


def model_data_start(slots: int, consumers: int, wide: bool) -> int:
    """Where the data begins."""
    return Shape(slots, consumers, ALIGNMENT, 8 if wide else 4).data_start


def pool_data_start(slots: int, consumers: int, wide: bool) -> int:
    """Where the data begins."""
    return ControlLayout(slots, consumers, 8 if wide else 4).data_start


def _three(
    first: int, units: int, second: int, second_units: int, third: int, third_units: int
) -> tuple[Range, ...] | None:
    """Three ranges in order, none touching the next; None for numbers that are no such ranges."""
    in_order = 0 <= first < first + units < second < second + second_units < third < third + third_units <= MOST_UNITS
    if not in_order:
        return None
    return in_bytes(first, units), in_bytes(second, second_units), in_bytes(third, third_units)


def model_lease(
    first: int, units: int, second: int, second_units: int, third: int, third_units: int, nbytes: int
) -> Range | None:
    """The range of a new lease among three free ones."""
    spans = _three(first, units, second, second_units, third, third_units)
    if spans is None or nbytes <= 0:
        return None
    best = best_fit(spans, rounded(nbytes))
    return None if best is None else (best[0], best[0] + rounded(nbytes))


def pool_lease(
    first: int, units: int, second: int, second_units: int, third: int, third_units: int, nbytes: int
) -> Range | None:
    """The range of a new lease among three free ones."""
    spans = _three(first, units, second, second_units, third, third_units)
    return None if spans is None or nbytes <= 0 else free_ranges(spans).allocate(nbytes)


def _around(before: int, gap: int, units: int, second_gap: int, after: int) -> tuple[Range, Range, Range] | None:
    """A range in front, the one that comes back, and one behind; None for numbers that are no such ranges."""
    if before <= 0 or gap < 0 or units <= 0 or second_gap < 0 or after <= 0:
        return None
    behind = before + gap + units + second_gap
    if behind + after > MOST_UNITS:
        return None
    return in_bytes(0, before), in_bytes(before + gap, units), in_bytes(behind, after)


def model_release(before: int, gap: int, units: int, second_gap: int, after: int) -> list[Range] | None:
    """The free ranges after one comes back between two others."""
    spans = _around(before, gap, units, second_gap, after)
    return None if spans is None else list(merged((spans[0], spans[2]), spans[1]))


def pool_release(before: int, gap: int, units: int, second_gap: int, after: int) -> list[Range] | None:
    """The free ranges after one comes back between two others."""
    spans = _around(before, gap, units, second_gap, after)
    if spans is None:
        return None
    free = free_ranges([spans[0], spans[2]])
    free.release(*spans[1])
    return list(free.ranges())


def model_exhausted(limit: int, first: int, second: int) -> bool | None:
    """Whether two slots, both of which came back, can never be leased again."""
    if not (0 <= first <= limit and 0 <= second <= limit):
        return None
    return exhausted(Allocator((), (), (), (first, second), (None, None)), limit)


def pool_exhausted(limit: int, first: int, second: int) -> bool | None:
    """Whether two slots, both of which came back, can never be leased again."""
    if not (0 <= first <= limit and 0 <= second <= limit):
        return None
    return Slots(2, limit, (first, second)).exhausted
