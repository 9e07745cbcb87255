"""The free bytes of a pool: best fit, merged when given back, at a cost that does not grow with fragmentation."""

from __future__ import annotations

from sortedcontainers import SortedList

from vmmref.layout import ALIGNMENT

_START_BITS = 48
"""Offsets stay below 2^48 bytes, the address space of the devices we know; so (size, start) packs into one integer."""
_START_MASK = (1 << _START_BITS) - 1


class FreeRanges:
    """Free ranges inside [start, end), all multiples of ALIGNMENT bytes.

    Three views of the same set are kept together: by (size, start) to find the best fit, by start and by end to find
    the neighbours that a released range merges with. Every operation is O(log n) in the number of free ranges.
    Not thread-safe: the pool's lock is held around every call.
    """

    __slots__ = ("_by_size", "_end_of", "_start_of")

    def __init__(self, start: int, end: int) -> None:
        # Packed integers and no tuples: comparing them is what the search spends its time on.
        self._by_size: SortedList[int] = SortedList()
        self._end_of: dict[int, int] = {}
        self._start_of: dict[int, int] = {}
        if start < end:
            self._insert(start, end)

    def allocate(self, nbytes: int) -> tuple[int, int] | None:
        """Take the smallest range that holds `nbytes` (> 0), between equals the lowest; None when there is none."""
        # RNG-2: whole multiples only, so that the next lease starts on one too.
        need = (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        by_size = self._by_size
        # RNG-3: the first entry at or above (need, 0) is the smallest that fits and, among equals, the lowest.
        index = by_size.bisect_left(need << _START_BITS)
        if index == len(by_size):
            return None
        packed: int = by_size.pop(index)
        start = packed & _START_MASK
        free_end = self._end_of.pop(start)
        end = start + need
        if end == free_end:
            del self._start_of[free_end]
        else:
            self._end_of[end] = free_end
            self._start_of[free_end] = end
            by_size.add(packed - (need << _START_BITS) + need)
        return start, end

    def release(self, start: int, end: int) -> None:
        """Give [start, end) back and merge it with the free ranges that it touches (RNG-4)."""
        before = self._start_of.pop(start, None)
        if before is not None:
            self._by_size.remove((start - before) << _START_BITS | before)
            start = before
        after = self._end_of.pop(end, None)
        if after is not None:
            self._by_size.remove((after - end) << _START_BITS | end)
            end = after
        self._insert(start, end)

    def _insert(self, start: int, end: int) -> None:
        self._by_size.add((end - start) << _START_BITS | start)
        self._end_of[start] = end
        self._start_of[end] = start

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
