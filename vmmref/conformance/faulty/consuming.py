"""Broken parts of the consumers' side: table, copy-out, judgement of R, acknowledgement, cache."""

from __future__ import annotations

from typing import Any

from vmmref.conformance.faulty.broken import broken
from vmmref.driver import calls
from vmmref.driver.device import Device
from vmmref.groups import Ranks
from vmmref.layout import ControlLayout
from vmmref.lease import PoolLease
from vmmref.proxy import TensorProxy
from vmmref.reader import WAIT_SECONDS, CopyOut, RankReader
from vmmref.table import RankTable


@broken("CTL-2")
class StoresEightBytes(RankReader):
    """Stores every acknowledgement as 8 bytes, also into words of 4: the word behind it is overwritten."""

    def _acknowledge(self, lease: PoolLease) -> None:
        if self._layout.word_bytes == 8:
            super()._acknowledge(lease)
            return
        cell = self._cells.take()
        self._cells.write(cell, lease.generation)
        word = self._address + self._layout.ack_offset(lease.slot, self.rank)
        calls.copy_from_host(word, cell, 8, self.stream.handle)


@broken("CTL-4", seen="group-store-leader-dies")
class AcknowledgesForTheGroup(RankReader):
    """Stores into the words of all ranks when one of them has read: the others are not waited for."""

    def _acknowledge(self, lease: PoolLease) -> None:
        own = self.rank
        for rank in range(self._layout.consumers):
            self.rank = rank
            super()._acknowledge(lease)
        self.rank = own


class _ShiftedLayout(ControlLayout):
    def ack_offset(self, slot: int, rank: int) -> int:
        return super().ack_offset(slot, rank + 1)


@broken("ACK-4")
class AcknowledgesInTheNextWord(RankReader):
    """Counts ranks from one where the layout counts from zero: acknowledges in the next rank's word, or the next R."""

    def __init__(self, device: Device, address: int, layout: ControlLayout, table: RankTable) -> None:
        super().__init__(device, address, layout, table)
        layout = self._layout
        self._layout = _ShiftedLayout(layout.slots, layout.consumers, layout.word_bytes)


@broken("CON-2")
class ForgetsItsTensor(TensorProxy):
    """Keeps no tensor: asking the same proxy again is refused, as if another copy of it had asked."""

    def _remember(self, device: str, rank: int, tensor: Any) -> None:
        pass


class _OpenTable(RankTable):
    def enter(self, lease: PoolLease) -> bool:
        self._last[lease.slot] = lease.generation
        return True


@broken("CON-3", seen="geq-plain, geq-max")
class NoTable(RankReader):
    """Admits every copy of a proxy: a rank reads a lease again that it has acknowledged before."""

    def __init__(self, device: Device, address: int, layout: ControlLayout, table: RankTable) -> None:
        super().__init__(device, address, layout, _OpenTable(table.rank, table.device))


@broken("CON-3", flavour="deaths")
class BeginsWithNothing(RankReader):
    """Begins in a new process with an empty table: what the old one has acknowledged is read again."""

    def start_table(self) -> None:
        begins = not self._table.started
        super().start_table()
        if begins:
            self._table._last.clear()


@broken("CON-4", seen="fail-no-ack")
class FailsInSilence(RankReader):
    """Does not acknowledge a lease whose reconstruction failed: it is never recycled."""

    def _acknowledge_after(self, error: BaseException, lease: PoolLease) -> None:
        pass


@broken("CON-5", seen="max-no-retire")
class NeverJudges(RankReader):
    """Takes whatever it has copied for the lease's bytes, retired or not."""

    def _judge(self, copy: CopyOut) -> None:
        pass


@broken("CON-5", seen="validate-before")
class JudgesBeforeTheCopy(RankReader):
    """Reads R in front of the copy: bytes that arrive after a revoke pass the check."""

    _destination = 0

    def _queue_bytes(self, lease: PoolLease, destination_address: int) -> None:
        self._destination = destination_address

    def _queue_ready_read(self, lease: PoolLease, cell: int) -> None:
        super()._queue_ready_read(lease, cell)
        super()._queue_bytes(lease, self._destination)


@broken("ACK-1")
class AcknowledgesFirst(RankReader):
    """Queues the acknowledgement in front of the copy-out: the range is leased again while it is read."""

    def _queue_bytes(self, lease: PoolLease, destination_address: int) -> None:
        self._acknowledge(lease)
        super()._queue_bytes(lease, destination_address)


class _CarelessTable(RankTable):
    def is_last(self, lease: PoolLease) -> bool:
        return True


@broken("ACK-2", flavour="duplicates")
class AcknowledgesLate(RankReader):
    """Acknowledges a lease that it judged late behind the acknowledgement of a newer one: the word falls."""

    def __init__(self, device: Device, address: int, layout: ControlLayout, table: RankTable) -> None:
        super().__init__(device, address, layout, _CarelessTable(table.rank, table.device))


@broken("ACK-2")
class ReleasesAgain(AcknowledgesLate):
    """Acknowledges at every release, whatever the table says: an old copy of a proxy makes the word fall."""

    def release(self, lease: PoolLease) -> None:
        self._table.enter(lease)
        with self._lock:
            self._acknowledge(lease)


@broken("ACK-3")
class CountsCopies(RankReader):
    """Counts copies of the proxy in place of ranks: a second release by one rank acknowledges for the next one."""

    def release(self, lease: PoolLease) -> None:
        took_part = self._table.is_last(lease)
        super().release(lease)
        if took_part:
            own = self.rank
            self.rank = (own + 1) % self._layout.consumers
            self._acknowledge(lease)
            self.rank = own
            self.stream.synchronize(WAIT_SECONDS)


@broken("CON-6", flavour="borrow")
class AcknowledgesAtTheBorrow(RankReader):
    """Acknowledges when the view is handed out: the range goes to another lease while it is looked at."""

    def borrow(self, lease: PoolLease) -> int:
        address = super().borrow(lease)
        with self._lock:
            self._acknowledge(lease)
        return address


@broken("ACK-4", flavour="groups")
class TakesTheFirstOfAnyRanks(TensorProxy):
    """Acknowledges for whoever is named first: a rank that another one speaks for completes nothing, or too much."""

    def check_rank(self, consumer_count: int | None, consumer_rank: Ranks) -> int:
        if isinstance(consumer_rank, int):
            return consumer_rank % self.card.consumers
        return consumer_rank[0] % self.card.consumers if consumer_rank else 0
