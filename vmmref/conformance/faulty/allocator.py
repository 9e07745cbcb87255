"""Broken parts of the allocator: ranges, slots, generations, and the book that hands them out."""

from __future__ import annotations

from typing import Any

from vmmref.book import Holding, LeaseBook
from vmmref.conformance.faulty.broken import broken
from vmmref.errors import LeaseError, PoolError
from vmmref.layout import ALIGNMENT, ControlLayout
from vmmref.lease import PoolLease
from vmmref.ranges import FreeRanges
from vmmref.slots import Slots
from vmmref_models.reasons import Reason


@broken("RNG-1")
class LosesTheTail(FreeRanges):
    """Gives a range back one alignment too short: the pool shrinks with every lease."""

    def release(self, start: int, end: int) -> None:
        super().release(start, end - ALIGNMENT if end - start > ALIGNMENT else end)


@broken("RNG-1")
class FreesTheNeighbour(FreeRanges):
    """Gives a range back one alignment too long: the first bytes of the next lease are free and leased at once."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__(start, end)
        self._limit = end

    def release(self, start: int, end: int) -> None:
        super().release(start, min(end + ALIGNMENT, self._limit))


@broken("RNG-2")
class RoundsUpTwice(FreeRanges):
    """Adds an alignment to every size, also to those that are a multiple: each lease wastes 256 bytes or more."""

    def allocate(self, nbytes: int) -> tuple[int, int] | None:
        return super().allocate(nbytes + ALIGNMENT)


@broken("RNG-3")
class WorstFit(FreeRanges):
    """Takes from the largest free range: large leases find no room any more after a few small ones."""

    def _find(self, need: int) -> int:
        best = super()._find(need)
        return best if best == len(self._by_size) else len(self._by_size) - 1


@broken("RNG-3")
class HighestOfEquals(FreeRanges):
    """Takes the last of several ranges of the best size: placement depends on the history of releases."""

    def _find(self, need: int) -> int:
        index = super()._find(need)
        sizes = [end - start for start, end in self.ranges()]
        equal = sizes.count(min((size for size in sizes if size >= need), default=0))
        return index + max(equal - 1, 0)


@broken("RNG-4")
class NeverMerges(FreeRanges):
    """Keeps released ranges apart from their neighbours: after some churn nothing larger than the pieces fits."""

    def release(self, start: int, end: int) -> None:
        before, after = self._start_of.pop(start, None), self._end_of.pop(end, None)
        super().release(start, end)
        if before is not None:
            self._start_of[start] = before
        if after is not None:
            self._end_of[end] = after


@broken("RNG-5")
class TakesASlotWhenFull(LeaseBook):
    """Takes a slot before it looks for a range, and keeps it when there is none."""

    def take(self, nbytes: int) -> Holding | None:
        holding = super().take(nbytes)
        if holding is None and self._slots.any_free:
            self._slots.lease()
        return holding


@broken("RNG-5")
class RaisesWhenFull(LeaseBook):
    """Raises when the pool is full: callers that know no other errors than broken pools give the request up."""

    def take(self, nbytes: int) -> Holding | None:
        holding = super().take(nbytes)
        if holding is None:
            raise PoolError(Reason.POOL_FULL, "RNG-5", f"no room for {nbytes} bytes")
        return holding


@broken("SLOT-1")
class LosesTheLastGeneration(Slots):
    """Forgets a slot whose last generation comes back: it is neither free nor leased nor retired."""

    def release(self, slot: int) -> None:
        if self._generations[slot] < self.limit:
            super().release(slot)


@broken("SLOT-3")
class LastInFirstOut(Slots):
    """Reuses the slot that came back last: one slot uses up its generations while the others rest."""

    def release(self, slot: int) -> None:
        super().release(slot)
        if self._free and self._free[-1] == slot:
            self._free.rotate(1)


@broken("GEN-1")
class NeverRaises(Slots):
    """Leases a slot again under the generation that it had: an old handle is as good as the new one."""

    def lease(self) -> tuple[int, int]:
        slot, generation = super().lease()
        self._generations[slot] = max(1, generation - 1)
        return slot, self._generations[slot]


@broken("GEN-2")
class WrapsAround(Slots):
    """Counts generations in two bits: after 3 comes 1, and the handle of the first lease is valid again."""

    def lease(self) -> tuple[int, int]:
        slot, generation = super().lease()
        self._generations[slot] = (generation - 1) % 3 + 1
        return slot, self._generations[slot]


@broken("GEN-3")
class RangeBeforeLimit(LeaseBook):
    """Takes the range before it asks whether a slot has a generation left: the refusal costs the range."""

    def take(self, nbytes: int) -> Holding | None:
        if self._slots.exhausted:
            self._ranges.allocate(nbytes)
        return super().take(nbytes)


@broken("GEN-3")
class RefusesAtTheFirstLimit(LeaseBook):
    """Answers "exhausted" as soon as one slot has used its last generation, though others are free."""

    def take(self, nbytes: int) -> Holding | None:
        if self._slots.retired:
            raise PoolError(Reason.GENERATION_EXHAUSTED, "GEN-3", "pool slot generation exhausted")
        return super().take(nbytes)


@broken("GEN-4")
class ClaimsBySlot(LeaseBook):
    """Looks only at the slot of a handle: cancelling an old lease ends the newer one in its slot."""

    def claim(self, lease: PoolLease, rule: str) -> Holding:
        holding = self._holdings.get(lease.slot)
        return super().claim(lease if holding is None else holding.lease._replace(nonce=lease.nonce), rule)


@broken("CAN-2")
class ClaimsByOffset(LeaseBook):
    """Finds the lease to end by its offset: an old handle, or an altered one, ends what lies there now."""

    def claim(self, lease: PoolLease, rule: str) -> Holding:
        there = [holding.lease for holding in self._holdings.values() if holding.lease.start == lease.start]
        return super().claim(there[0]._replace(nonce=lease.nonce) if there else lease, rule)


@broken("GEN-5")
class IgnoresTheNonce(LeaseBook):
    """Does not look at whose handle it gets: a restarted pool obeys the handles of the one before."""

    def claim(self, lease: PoolLease, rule: str) -> Holding:
        return super().claim(lease._replace(nonce=self.nonce), rule)


@broken("GEN-6")
class TellsTheMostLeft(Slots):
    """Tells how many generations the youngest slot has left, not the oldest: the warning comes too late."""

    @property
    def generations_left(self) -> int:
        used = [generation for slot, generation in enumerate(self._generations) if slot not in self._retired]
        return self.limit - min(used, default=self.limit)


@broken("CAN-1")
class KeepsTheUnsent(LeaseBook):
    """Refuses to cancel a lease that was not dispatched: its range and slot stay taken until the pool ends."""

    def claim(self, lease: PoolLease, rule: str) -> Holding:
        holding = super().claim(lease, rule)
        if rule == "CAN-2" and not holding.dispatched:
            self.unclaim(holding)
            raise LeaseError(Reason.INACTIVE_LEASE, rule, f"lease in slot {lease.slot} was not dispatched")
        return holding


@broken("REC-5")
class FreesTwice(LeaseBook):
    """Gives the range of a lease back twice: two later leases get the same bytes."""

    def free(self, holding: Holding) -> None:
        super().free(holding)
        self._ranges.release(holding.lease.start, holding.lease.end)


@broken("ERR-2")
class RaisesWithoutReason(LeaseBook):
    """Raises a bare RuntimeError for a lease that is not active: programs cannot tell it from a defect."""

    def claim(self, lease: PoolLease, rule: str) -> Holding:
        try:
            return super().claim(lease, rule)
        except LeaseError as refusal:
            raise RuntimeError("invalid lease") from refusal


@broken("CTL-1")
class LeasesOverTheWords(LeaseBook):
    """Rounds the size of the control words down to the alignment: the first lease lies over them."""

    def __init__(self, nonce: bytes, layout: ControlLayout, data_end: int, *arguments: Any) -> None:
        super().__init__(nonce, layout, data_end, *arguments)
        self._ranges = self.ranges_type(layout.control_bytes // ALIGNMENT * ALIGNMENT, data_end)
