"""Broken handles: reservations, imports, descriptors, and objects that a fork has copied."""

from __future__ import annotations

import os

from vmmref.beacon import is_dark
from vmmref.broker import DescriptorBroker
from vmmref.conformance.faulty.broken import broken
from vmmref.errors import ProducerGone
from vmmref.forks import fork_count
from vmmref.imported import PoolImport
from vmmref.lease import PoolLease
from vmmref.life import Life
from vmmref.reader import RankReader
from vmmref.reservation import VmmReservation
from vmmref_models.reasons import Reason


@broken("HND-2", flavour="reservations")
class MapsAfterClose(VmmReservation):
    """Asks the driver whether a reservation can still be mapped: by then its addresses may be somebody else's."""

    def _check(self, call: str, offset: int, size: int) -> None:
        closed, self._closed = self._closed, False
        try:
            super()._check(call, offset, size)
        finally:
            self._closed = closed


@broken("HND-3", flavour="reservations")
class MapsAnywhere(VmmReservation):
    """Leaves it to the driver to find that a mapping is outside: its answer names neither number."""

    def _check(self, call: str, offset: int, size: int) -> None:
        super()._check(call, 0, self.granularity)


@broken("HND-4", flavour="imports")
class KeepsItsImport(PoolImport):
    """Lets an import live on when it is dropped: the memory of a pool that was restarted stays for ever."""

    def close(self, timeout_seconds: float) -> None:
        self.synchronize(timeout_seconds)


@broken("HND-5", flavour="forks and kills")
class NeedsTheProducer(PoolImport):
    """Does not use the memory that it has mapped once the producer is gone."""

    def rank(self, rank: int) -> RankReader:
        if is_dark(self.card.beacon):
            raise ProducerGone(Reason.PRODUCER_GONE, "HND-5", "the producer of this pool has died")
        return super().rank(rank)


@broken("HND-6", flavour="reservations")
class HandsDescriptorsDown(DescriptorBroker):
    """Leaves the pool's descriptor open in every program that the producer starts: it pins the memory."""

    def __init__(self, descriptor: int, transport_name: str) -> None:
        super().__init__(descriptor, transport_name)
        os.set_inheritable(descriptor, True)


@broken("HND-7", flavour="forks and kills")
class LivesOnAfterFork(Life):
    """Does not see that it is in a forked child, and goes on to the driver there."""

    def __enter__(self) -> None:
        self._forks = fork_count()
        super().__enter__()


@broken("CON-6", flavour="imports")
class DropsUnderAView(PoolImport):
    """Unmaps the pool's memory while somebody looks at it."""

    def _end(self, timeout_seconds: float) -> None:
        for reader in self._readers:
            reader.borrowed.clear()
        super()._end(timeout_seconds)


@broken("CON-6", seen="borrow-table-late", flavour="borrow")
class BorrowsBesideTheTable(RankReader):
    """Does not keep in the table what it has borrowed: a second copy of the proxy acknowledges under the view."""

    def borrow(self, lease: PoolLease) -> int:
        address = super().borrow(lease)
        self._table._last[lease.slot] = lease.generation - 1
        return address
