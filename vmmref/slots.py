"""Slots and their generations: which slot the next lease gets, and the number that tells it from all before."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class Slots:
    """`count` slots, reused first in, first out, each with a generation that only rises up to `limit`.

    Not thread-safe: the pool's lock is held around every call.
    """

    __slots__ = ("_free", "_generations", "_retired", "count", "limit")

    def __init__(self, count: int, limit: int, issued: Sequence[int] = ()) -> None:
        self.count = count
        self.limit = limit
        self._generations = list(issued) if issued else [0] * count
        self._free = deque(slot for slot in range(count) if self._generations[slot] < limit)
        # SLOT-1: a slot that starts at its limit is retired, not lost.
        self._retired = {slot for slot in range(count) if self._generations[slot] >= limit}

    @property
    def any_free(self) -> bool:
        """Whether `lease` has a slot to give."""
        return bool(self._free)

    def lease(self) -> tuple[int, int]:
        """The slot that has been free longest, and its next generation. There must be a free one."""
        # SLOT-3: first in, first out spreads the generations, so no slot reaches its limit long before the others.
        slot = self._free.popleft()
        # GEN-1, GEN-2: exactly one more than the last; a slot at the limit is never in the free list (GEN-3).
        generation = self._generations[slot] + 1
        self._generations[slot] = generation
        return slot, generation

    def release(self, slot: int) -> None:
        """Take `slot` back: free again, or retired when its last generation has been used."""
        if self._generations[slot] < self.limit:
            self._free.append(slot)
        else:
            # GEN-3: never wrap around; a repeated generation would revive a stale lease.
            self._retired.add(slot)

    @property
    def exhausted(self) -> bool:
        """True when no slot can ever be leased again, not even one whose lease is still out (GEN-3)."""
        return not self._free and min(self._generations) >= self.limit

    @property
    def generations_left(self) -> int:
        """The smallest number of generations left over the slots that are not retired; 0 when all are (GEN-6)."""
        used = [generation for slot, generation in enumerate(self._generations) if slot not in self._retired]
        return self.limit - max(used, default=self.limit)

    @property
    def generations(self) -> tuple[int, ...]:
        """Last generation issued per slot, 0 = none."""
        return tuple(self._generations)

    @property
    def free(self) -> tuple[int, ...]:
        """Free slots in the order of their reuse."""
        return tuple(self._free)

    @property
    def retired(self) -> tuple[int, ...]:
        """Slots that have used their last generation, ascending."""
        return tuple(sorted(self._retired))
