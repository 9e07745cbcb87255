"""The figures of a pool at one moment."""

from __future__ import annotations

from typing import NamedTuple

from vmmref.lease import PoolLease


class PoolStats(NamedTuple):
    """What a pool holds at one moment. Sizes in bytes; ranges as (start, end) by start; leases by slot."""

    free_ranges: tuple[tuple[int, int], ...]
    leases: tuple[PoolLease, ...]
    """Every lease that holds a range and a slot, retiring ones included."""
    retiring_slots: tuple[int, ...]
    set_aside_slots: tuple[int, ...]
    """Leases past their deadline: not reissued, back when their late readers have acknowledged (REAP-2)."""
    free_slots: tuple[int, ...]
    """In the order of their reuse."""
    retired_slots: tuple[int, ...]
    """Slots that have used their last generation."""
    generations: tuple[int, ...]
    """Last generation issued per slot, 0 = none."""
    generations_left: int
    """The smallest number left over the slots still in use (GEN-6)."""
    usable_size: int

    @property
    def free_bytes(self) -> int:
        """Bytes that are free, in however many pieces."""
        return sum(end - start for start, end in self.free_ranges)

    @property
    def largest_free(self) -> int:
        """The largest lease that can be had now."""
        return max((end - start for start, end in self.free_ranges), default=0)

    @property
    def capacity(self) -> int:
        """Bytes that leases can use now: the usable size less what is set aside."""
        late = self.set_aside_slots
        return self.usable_size - sum(lease.end - lease.start for lease in self.leases if lease.slot in late)
