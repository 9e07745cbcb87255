"""The figures of a pool at one moment."""

from __future__ import annotations

from typing import NamedTuple

from vmmref.lease import PoolLease


class PoolStats(NamedTuple):
    """What a pool holds at one moment. Sizes in bytes; ranges as (start, end) by start; leases by slot."""

    free_ranges: tuple[tuple[int, int], ...]
    """No two of them touch (RNG-4)."""
    leases: tuple[PoolLease, ...]
    """Every lease that holds a range and a slot, retiring ones included."""
    retiring_slots: tuple[int, ...]
    """Slots of leases that have ended and are free once the host has seen it (REC-2), or once nobody may be looking at
    their bytes any more (CON-6)."""
    set_aside_slots: tuple[int, ...]
    """Slots of leases that are held back until their readers have acknowledged: past their deadline (REAP-2), or ended
    while ranks may be looking at their bytes in place (CON-6)."""
    free_slots: tuple[int, ...]
    """In the order of their reuse."""
    retired_slots: tuple[int, ...]
    """Slots that have used their last generation."""
    generations: tuple[int, ...]
    """Last generation issued per slot, 0 = none."""
    generations_left: int
    """The smallest number left over the slots still in use (GEN-6)."""
    usable_size: int
    """Bytes behind the control words, free or not."""
    unreleased: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """(slot, ranks) of every lease that was handed out and is not retiring: the ranks that had not acknowledged it when
    the words were last looked at. A group stands there by its speaker, a dead rank not at all. Whoever is listed here
    again and again holds the pool back; () as ranks means that the next pass takes the lease."""

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
