"""Broken parts of taking back: what a look counts as acknowledged, how a lease is cancelled, revoked and released."""

from __future__ import annotations

from vmmref.book import Holding
from vmmref.conformance.faulty.broken import broken
from vmmref.driver import calls
from vmmref.layout import live_word
from vmmref.lease import PoolLease
from vmmref.pool import VmmMemoryPool
from vmmref.recycler import Look, Recycler


class _Words(Look):
    """A look whose words can be asked for by slot."""

    def acknowledgements(self, slot: int) -> list[int]:
        """A[0] ... A[consumers - 1] as the look saw them."""
        first = slot * self._layout.words_per_slot + 1
        return list(self._words[first : first + self._layout.consumers])

    def ready(self, slot: int) -> int:
        """R as the look saw it."""
        return int(self._words[slot * self._layout.words_per_slot])


@broken("REC-1")
class OneTooFew(_Words):
    """Does not wait for the last rank, by a loop that ends one too early."""

    def all_acknowledged(self, holding: Holding) -> bool:
        words = self.acknowledgements(holding.lease.slot)
        return all(word == holding.lease.generation for word in words[:-1])


@broken("REC-1")
class AnyRankSuffices(_Words):
    """Recycles a lease when one rank has acknowledged it, whichever, and however often."""

    def all_acknowledged(self, holding: Holding) -> bool:
        return holding.lease.generation in self.acknowledgements(holding.lease.slot)


@broken("ACK-5", seen="boolean-ack")
class CountsAnyGeneration(_Words):
    """Takes every word that is not zero for an acknowledgement: those of the slot's last lease count for the next."""

    def all_acknowledged(self, holding: Holding) -> bool:
        return all(self.acknowledgements(holding.lease.slot))


@broken("REC-3", seen="no-claim")
class ActsOnTheSlot(_Words):
    """Notes which slots are complete and forgets for which lease: an old look ends the newer lease of the slot."""

    def all_acknowledged(self, holding: Holding) -> bool:
        ready = self.ready(holding.lease.slot)
        return ready > 0 and all(live_word(word) == ready for word in self.acknowledgements(holding.lease.slot))


@broken("LIV-1")
class NeverLooksAtSlotZero(_Words):
    """Leaves out slot 0, by a loop that starts one too late: its lease is acknowledged and never recycled."""

    def all_acknowledged(self, holding: Holding) -> bool:
        return holding.lease.slot > 0 and super().all_acknowledged(holding)


@broken("LIFE-5")
class CancelWaitsForReaders(Recycler):
    """Waits in a cancel until every rank has acknowledged, without an end: a rank that was never asked never will."""

    def end_lease(self, holding: Holding) -> None:
        while not self.look().all_acknowledged(holding):
            pass
        super().end_lease(holding)


@broken("REC-6")
class ReleasesAnything(VmmMemoryPool):
    """Takes the release of a lease that is not active for done: a double release goes unnoticed."""

    def release_lease(self, lease: PoolLease) -> None:
        with self._life:
            active = self._book.is_active(lease)
        if active:
            super().release_lease(lease)


@broken("CAN-3", seen="max-no-retire")
class RevokesInSilence(VmmMemoryPool):
    """Frees a revoked lease without retiring it: its readers find R unchanged and take the next lease's bytes."""

    def revoke(self, lease: PoolLease) -> None:
        with self._life:
            self._book.free(self._book.claim(lease, "CAN-3"))


@broken("CTL-4", seen="host-table")
class RevokesByForging(VmmMemoryPool):
    """Acknowledges a revoked lease in the name of every rank, and lets the recycler do the rest."""

    def revoke(self, lease: PoolLease) -> None:
        with self._life:
            stream, layout = self._publisher.retire_stream, self._layout
            for rank in range(layout.consumers):
                word = self._address + layout.ack_offset(lease.slot, rank)
                calls.write_word(word, lease.generation, layout.word_bytes, stream.handle)
            stream.synchronize(self._timeout)
        self.recycle()


@broken("LIV-1", flavour="groups")
class WaitsForEveryWord(Look):
    """Waits for the word of each rank, also of those that another one speaks for: such a lease never comes back."""

    def all_acknowledged(self, holding: Holding) -> bool:
        ranks, holding.awaited = holding.awaited, tuple(range(self._layout.consumers))
        try:
            return super().all_acknowledged(holding)
        finally:
            holding.awaited = ranks


@broken("CON-6", seen="borrow-free-on-revoke", flavour="borrow")
class FreesUnderTheView(Recycler):
    """Frees a borrowable lease when it is revoked, as any other: the view shows the bytes of the next one."""

    def _free(self, holding: Holding) -> bool:
        holding.borrowable = False
        return super()._free(holding)
