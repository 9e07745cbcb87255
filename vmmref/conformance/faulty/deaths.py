"""Broken ways to deal with the dead and the late."""

from __future__ import annotations

from typing import Any

from vmmref.beacon import Beacon
from vmmref.conformance.faulty.broken import broken
from vmmref.driver import calls
from vmmref.pool import VmmMemoryPool
from vmmref.reaper import Reaper


@broken("REAP-1", flavour="deaths")
class NeverReaps(Reaper):
    """Never sees that a process has died: what its rank had not acknowledged is lost."""

    def collect(self) -> list[int]:
        return []


@broken("REAP-1", flavour="deaths")
class ReapsTheLiving(Reaper):
    """Counts a rank as dead whenever it has not been heard of: its leases are taken back while it reads."""

    def collect(self) -> list[int]:
        super().collect()
        return sorted(set(self._watched.values()))[:1]


@broken("REAP-1", seen="reaper-forges-early", flavour="deaths")
class ForgesForTheDead(VmmMemoryPool):
    """Writes the acknowledgements that a dead rank will not write any more into its words."""

    def _reap(self) -> list[int]:
        dead, layout = super()._reap(), self._layout
        for rank in dead:
            for lease in self.stats().leases:
                word = self._address + layout.ack_offset(lease.slot, rank)
                calls.write_word(word, lease.generation, layout.word_bytes, self._publisher.retire_stream.handle)
        self._publisher.retire_stream.synchronize(self._timeout)
        return dead


@broken("REAP-1", seen="rejoin-early", flavour="deaths")
class GivesARankAwayEarly(Reaper):
    """Lets a second process act for a rank whose first one has not been seen dead."""

    def watch(self, rank: int, process_id: int) -> None:
        with self._lock:
            for descriptor, watched in tuple(self._watched.items()):
                if watched == rank:
                    self._watched[descriptor] = -1
        super().watch(rank, process_id)


@broken("REAP-2", flavour="late")
class ForgetsTheLate(VmmMemoryPool):
    """Reports no lease as set aside: an operator cannot tell a pool that is short from one that is stuck."""

    def stats(self) -> Any:
        return super().stats()._replace(set_aside_slots=())


@broken("REAP-2", seen="stale-silent-set-aside", flavour="late")
class TakesTheLateBack(VmmMemoryPool):
    """Revokes a lease whose deadline has passed: its late rank is told that it is stale, and lost its bytes."""

    def recycle(self) -> int:
        stats = self.stats()
        for lease in stats.leases:
            if lease.slot in stats.set_aside_slots and lease.slot not in stats.retiring_slots:
                self.revoke(lease)
        return super().recycle()


@broken("REAP-3", flavour="shutdown")
class ShinesOn(Beacon):
    """Goes on giving a sign of life after the pool has ended: whoever comes late asks a broker that is not there."""

    def close(self) -> None:
        listener, self._listener = self._listener, self._listener.dup()
        listener.close()
