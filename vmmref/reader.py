"""One rank's side of a lease: copy out, judge R, acknowledge; all on one stream, in order."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from vmmref.driver import calls, streams
from vmmref.driver.device import Device
from vmmref.driver.streams import Stream
from vmmref.errors import AlreadyReleased, StaleLease
from vmmref.layout import ControlLayout, live_word
from vmmref.lease import PoolLease
from vmmref.table import RankTable
from vmmref.unwind import Unwind, note_failure
from vmmref.words import PinnedCells
from vmmref_models.reasons import Reason

WAIT_SECONDS = 30.0
"""A consumer waits this long for its own queued copies before it reports them (LIFE-5)."""


class CopyOut:
    """One reconstruction under way: what was queued for it, and where its bytes arrive."""

    __slots__ = ("borrowable", "cell", "destination", "event", "given_up", "lease")

    def __init__(self, lease: PoolLease, destination: Any, cell: int, event: int, borrowable: bool = False) -> None:
        self.lease = lease
        self.borrowable = borrowable
        self.destination = destination
        self.cell = cell
        self.event = event
        self.given_up = False
        """Whether it was acknowledged already, since nobody was to finish it."""


class RankReader:
    """One rank of a pool in this process: its stream, its table of leases seen, its acknowledgements.

    All of the rank's device work runs on one stream in order, and the table admits only rising generations of a slot,
    so a plain store is enough for an acknowledgement word never to fall (ACK-2). Thread-safe.
    """

    def __init__(self, device: Device, address: int, layout: ControlLayout, table: RankTable) -> None:
        self._device = device
        self._address = address
        self._layout = layout
        self._table = table
        self.rank = table.rank
        self._lock = threading.Lock()
        self.borrowed: dict[tuple[int, int], PoolLease] = {}
        """Leases that this rank looks at in place, by slot and generation; the mapping must outlive them (HND-4)."""
        self._cells = PinnedCells(self._layout.word_bytes)
        self._snapshot = 0
        self._staged: list[tuple[int, int]] = []
        self._under_way: set[CopyOut] = set()
        """Copies that may still run: their destinations must outlive them, whatever becomes of the caller."""
        self.stream = Stream(f"rank {table.rank}")

    @property
    def unreleased(self) -> set[tuple[int, int]]:
        """(slot, generation) of leases whose acknowledgement could not be queued; they stay leased (CON-4)."""
        return self._table.unreleased

    @property
    def is_busy(self) -> bool:
        """Whether work is queued on the stream, a reading has not been finished, or a view is out; does not wait."""
        begun = any(not copy.given_up for copy in self._under_way)
        return begun or bool(self.borrowed) or not calls.stream_idle(self.stream.handle)

    def start_table(self) -> None:
        """Let a table that is new in this process begin with what the rank's words say; waits for a copy of the words.

        Raises WaitTimeout or DriverError. Then the table is still new, and `close`, once the stream is idle, gives back
        what the copy has used.
        """
        if self._table.started:
            return
        # ACK-2: a process before this one may have acknowledged for the rank. With an empty table a late copy of such a
        # lease would get in and store its old generation over the newer one in the word. What that process had entered
        # and not acknowledged is of no matter: its work is gone (REAP-1), so nothing of it can be stored any more.
        size = self._layout.control_bytes
        self._snapshot = calls.allocate_pinned(size)
        calls.copy_to_host(self._snapshot, self._address, size, self.stream.handle)
        self.stream.synchronize(WAIT_SECONDS)
        words = memoryview(ctypes.string_at(self._snapshot, size)).cast("I" if self._layout.word_bytes == 4 else "Q")
        self._table.start(words[1 + self.rank :: self._layout.words_per_slot])
        self._free_snapshot()

    def _free_snapshot(self) -> None:
        snapshot, self._snapshot = self._snapshot, 0
        if snapshot:
            calls.free_pinned(snapshot)

    def enter(self, lease: PoolLease) -> None:
        """Note in the table that this rank takes part in `lease`, before any device work.

        Every copy of a proxy in this rank meets the same table, so only the first one gets in: raises AlreadyReleased
        for the others, and for a lease older than one that the rank has seen in the slot (CON-3, GEN-4).
        """
        if not self._table.enter(lease):
            message = (
                f"CUDA VMM tensor has already released its pool slice (slot={lease.slot}, "
                f"generation={lease.generation}, rank={self.rank})"
            )
            raise AlreadyReleased(Reason.ALREADY_RELEASED, "CON-3", message)

    def begin(self, lease: PoolLease, destination: Any, destination_address: int, borrowable: bool = False) -> CopyOut:
        """Queue the copy-out of an entered lease and, behind its last byte, the read of R.

        On failure the lease is acknowledged behind whatever had been queued, and the error raised (CON-4).
        """
        with self._lock:
            try:
                cell = self._cells.take()
                # Torch's earlier use of the memory that it gave us for the destination comes first.
                self._device.order_after_torch(self.stream.handle)
                self._queue_bytes(lease, destination_address)
                self._queue_ready_read(lease, cell)
                copy = CopyOut(lease, destination, cell, self.stream.mark(), borrowable)
            except BaseException as error:
                self._give_up_failed(error, CopyOut(lease, destination, 0, 0))
                raise
            self._under_way.add(copy)
            return copy

    def _queue_bytes(self, lease: PoolLease, destination_address: int) -> None:
        calls.copy_on_device(destination_address, self._address + lease.start, lease.nbytes, self.stream.handle)

    def _queue_ready_read(self, lease: PoolLease, cell: int) -> None:
        # CON-5: queued behind the copy on the same stream, so it starts after the last byte has arrived.
        ready = self._address + self._layout.ready_offset(lease.slot)
        calls.copy_to_host(cell, ready, self._layout.word_bytes, self.stream.handle)

    def finish(self, copy: CopyOut) -> Any:
        """Wait for a copy-out, judge R, acknowledge; the private tensor.

        Raises StaleLease when the lease was retired meanwhile (nothing is written), WaitTimeout, or DriverError.
        """
        lease = copy.lease
        what = f"copy-out of lease (slot={lease.slot}, generation={lease.generation}) by rank {self.rank}"
        try:
            with self._device:
                streams.wait(copy.event, WAIT_SECONDS, what)
                with self._lock:
                    self._under_way.discard(copy)
                    self._judge(copy)
                    if not copy.given_up:
                        self._acknowledge(lease)
        except StaleLease:
            raise
        except BaseException as error:
            with self._lock:
                self._give_up_failed(error, copy)
            raise
        return copy.destination

    def _judge(self, copy: CopyOut) -> None:
        """Raise StaleLease unless R was still live when the copy had ended (CON-5). The lock is held."""
        lease, word = copy.lease, self._cells.read(copy.cell)
        self._cells.give(copy.cell)
        self.stream.recycle(copy.event)
        if word != live_word(lease.generation):
            # Whatever was copied may be another lease's bytes; it is thrown away and no word is written. Only a lease
            # that could be borrowed is held back for its readers, and each of them has to say that it is done (CON-6).
            if copy.borrowable and not copy.given_up:
                self._acknowledge(lease)
            message = (
                f"lease (slot={lease.slot}, generation={lease.generation}) was retired before rank {self.rank} had "
                f"copied it: R is {word}, not {live_word(lease.generation)}"
            )
            raise StaleLease(Reason.STALE_LEASE, "CON-5", message)

    def borrow(self, lease: PoolLease) -> int:
        """Check that an entered lease is live and return the address of its bytes in this process (CON-6).

        The rank is in the table before R is looked at, so no other copy of the proxy gets in any more; and a lease that
        is revoked from here on keeps its range until this rank has acknowledged. Raises StaleLease for one that was
        retired before; either way, and on failure, `release_borrowed` or this call acknowledges once.
        """
        what = f"look at lease (slot={lease.slot}, generation={lease.generation}) by rank {self.rank}"
        try:
            with self._lock:
                cell = self._cells.take()
                self._queue_ready_read(lease, cell)
                copy = CopyOut(lease, None, cell, self.stream.mark(), borrowable=True)
            streams.wait(copy.event, WAIT_SECONDS, what)
            with self._lock:
                self._judge(copy)
                self.borrowed[lease.slot, lease.generation] = lease
        except StaleLease:
            raise
        except BaseException as error:
            with self._lock:
                self._acknowledge_after(error, lease)
            raise
        return self._address + lease.start

    def release_borrowed(self, lease: PoolLease) -> None:
        """Acknowledge behind the reads that torch has queued so far; nothing when the lease is not borrowed."""
        with self._lock:
            if (lease.slot, lease.generation) not in self.borrowed:
                return
            self._device.order_after_torch(self.stream.handle)
            self._acknowledge(lease)
            del self.borrowed[lease.slot, lease.generation]

    def release(self, lease: PoolLease) -> None:
        """Acknowledge without reading; nothing happens when this rank took part already and could say so (ACK-3)."""
        key = (lease.slot, lease.generation)
        with self._lock:
            # CON-4: what could not be acknowledged before is so now, by whichever copy of the proxy asks, and once.
            if not self._table.enter(lease) and key not in self.unreleased:
                return
            self.unreleased.add(key)
            self._acknowledge(lease)
            self.unreleased.discard(key)

    def _acknowledge(self, lease: PoolLease) -> None:
        """Queue A[rank] := n behind the rank's earlier work (ACK-1). The lock is held."""
        if not self._table.is_last(lease):
            # ACK-2: the host judges R some time after the copy. When the lease was revoked in between, and this rank
            # has entered a newer lease of the slot, a store of n would land on that one's acknowledgement and lower
            # it. Nobody waits for n any more.
            return
        word = self._address + self._layout.ack_offset(lease.slot, self.rank)
        if self._layout.word_bytes == 4:
            # A fill and no stream write: newer drivers refuse those on another device's memory.
            calls.fill_word32(word, lease.generation, self.stream.handle)
        else:
            self._copy_word(word, lease.generation)

    def _copy_word(self, word: int, value: int) -> None:
        """Store 8 bytes in one piece, from a cell of its own: it must not change before the copy has run."""
        while self._staged and calls.event_done(self._staged[0][1]):
            cell, event = self._staged.pop(0)
            self._cells.give(cell)
            self.stream.recycle(event)
        cell = self._cells.take()
        self._cells.write(cell, value)
        calls.copy_from_host(word, cell, self._layout.word_bytes, self.stream.handle)
        self._staged.append((cell, self.stream.mark()))

    def _give_up_failed(self, error: BaseException, copy: CopyOut) -> None:
        """Keep what a failed reading may still write to, and acknowledge for it unless that was done. Lock held."""
        self._under_way.add(copy)
        if not copy.given_up:
            copy.given_up = True
            self._acknowledge_after(error, copy.lease)

    def _acknowledge_after(self, error: BaseException, lease: PoolLease) -> None:
        """CON-4: a failed reconstruction acknowledges once, behind its queued work; a second failure becomes a note."""
        try:
            self._acknowledge(lease)
        except BaseException as second:
            self.unreleased.add((lease.slot, lease.generation))
            note_failure(error, second, "the acknowledgement failed too, the lease stays leased")

    def give_up(self) -> None:
        """Acknowledge the readings that were begun and will not be finished, behind their copies."""
        with self._lock:
            for copy in self._under_way:
                if not copy.given_up:
                    self._acknowledge(copy.lease)
                    copy.given_up = True

    def close(self) -> None:
        """Give stream, events and pinned words back; nothing queued uses them any more."""
        with self._lock:
            self._under_way.clear()
            unwind = Unwind()
            unwind.push(self._cells.close)
            unwind.push(self._free_snapshot)
            unwind.push(self.stream.close)
            unwind.run()
