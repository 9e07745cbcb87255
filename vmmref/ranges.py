"""The free bytes of a pool: best fit, merged when given back, at a cost that does not grow with fragmentation."""

from __future__ import annotations

from bisect import bisect_left, insort

from vmmref.layout import ALIGNMENT

_START_BITS = 48
"""Offsets stay below 2^48 bytes, the address space of the devices we know; so (size, start) packs into one integer.

The two are added, not or-ed: symbolic execution confirms sums over all paths.
"""
_START_MASK = (1 << _START_BITS) - 1


class FreeRanges:
    """Free ranges inside [start, end), all multiples of ALIGNMENT bytes.

    Three views of the same set: `_by_size` finds the best fit, `_end_of` and `_start_of` find the two neighbours that a
    released range merges with. Finding is a binary search and two look-ups; what is left is moving at most
    8 bytes a free range within one list, of which a pool of S slots has at most S + 1: with 4,096 holes a lease still
    costs less than twice what it costs with none. Not thread-safe: the pool's lock is held around every call.
    """

    __slots__ = ("_by_size", "_end_of", "_start_of")

    def __init__(self, start: int, end: int) -> None:
        # Sorted by (size, start), packed into integers: comparing those is what a search spends its time on.
        self._by_size: list[int] = []
        self._end_of: dict[int, int] = {}
        self._start_of: dict[int, int] = {}
        if start < end:
            self._by_size.append(((end - start) << _START_BITS) + start)
            self._end_of[start] = end
            self._start_of[end] = start

    def allocate(self, nbytes: int) -> tuple[int, int] | None:
        """Take the smallest range that holds `nbytes` (> 0), between equals the lowest; None when there is none."""
        # RNG-2: whole multiples only, so that the next lease starts on one too.
        need = (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        by_size = self._by_size
        index = self._find(need)
        if index == len(by_size):
            return None
        start = by_size[index] & _START_MASK
        end = start + need
        free_end = self._end_of.pop(start)
        if end == free_end:
            del by_size[index]
            del self._start_of[free_end]
        else:
            self._end_of[end] = free_end
            self._start_of[free_end] = end
            self._replace(index, ((free_end - end) << _START_BITS) + end)
        return start, end

    def _find(self, need: int) -> int:
        """Index of the range to take `need` bytes from, the number of ranges where none holds them."""
        # RNG-3: the first entry at or above (need, 0) is the smallest that fits and, among equals, the lowest.
        return bisect_left(self._by_size, need << _START_BITS)

    def release(self, start: int, end: int) -> None:
        """Give [start, end) back and merge it with the free ranges that it touches (RNG-4)."""
        by_size = self._by_size
        before = self._start_of.pop(start, None)
        after = self._end_of.pop(end, None)
        index = -1
        if before is not None:
            index = bisect_left(by_size, ((start - before) << _START_BITS) + before)
            start = before
        if after is not None:
            if index >= 0:
                del by_size[index]
            index = bisect_left(by_size, ((after - end) << _START_BITS) + end)
            end = after
        self._end_of[start] = end
        self._start_of[end] = start
        packed = ((end - start) << _START_BITS) + start
        if index >= 0:
            self._replace(index, packed)
        else:
            insort(by_size, packed)

    def _replace(self, index: int, packed: int) -> None:
        """Put `packed` in the place of an entry: often it keeps that place, and nothing has to move."""
        by_size = self._by_size
        low_enough = index + 1 == len(by_size) or packed < by_size[index + 1]
        if low_enough and (index == 0 or by_size[index - 1] < packed):
            by_size[index] = packed
        else:
            del by_size[index]
            insort(by_size, packed)

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Every free range as (start, end), by start."""
        return tuple(sorted(self._end_of.items()))

    @property
    def free_bytes(self) -> int:
        """Bytes that are free, in however many pieces."""
        return sum(end - start for start, end in self._end_of.items())

    @property
    def largest(self) -> int:
        """Bytes of the largest free range: the largest lease that can be had now."""
        return self._by_size[-1] >> _START_BITS if self._by_size else 0
