"""What a consumer process holds of a pool: one import a pool and device, and one stream a rank (HND-4, ACK-2)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from vmmref.broker import request_descriptor
from vmmref.driver import calls, streams
from vmmref.driver.device import Device
from vmmref.driver.streams import Stream
from vmmref.errors import AlreadyReleased, BrokerError, DriverError, ProducerGone, StaleLease
from vmmref.forks import fork_count, refuse_after_fork
from vmmref.handles import HandleType
from vmmref.layout import live_word
from vmmref.lease import PoolCard, PoolLease
from vmmref.reservation import VmmReservation
from vmmref.table import RankTable
from vmmref.unwind import Unwind
from vmmref.words import PinnedCells
from vmmref_models.reasons import Reason

WAIT_SECONDS = 30.0
"""A consumer waits this long for its own queued copies before it reports them (LIFE-5)."""


class CopyOut:
    """One reconstruction under way: what was queued for it, and where its bytes arrive."""

    __slots__ = ("cell", "destination", "event", "lease")

    def __init__(self, lease: PoolLease, destination: Any, cell: int, event: int) -> None:
        self.lease = lease
        self.destination = destination
        self.cell = cell
        self.event = event


class RankReader:
    """One rank of a pool in this process: its stream, its table of leases seen, its acknowledgements.

    All of the rank's device work runs on one stream in order, and the table admits only rising generations of a slot,
    so a plain store is enough for an acknowledgement word never to fall (ACK-2). Thread-safe.
    """

    def __init__(self, owner: PoolImport, table: RankTable) -> None:
        self._device = owner.device
        self._address = owner.address
        self._layout = owner.card.layout
        self._table = table
        self.rank = table.rank
        self._lock = threading.Lock()
        self.unreleased: set[tuple[int, int]] = set()
        """(slot, generation) of leases whose acknowledgement could not be queued; they stay leased (CON-4)."""
        self._cells = PinnedCells(self._layout.word_bytes)
        self._staged: list[tuple[int, int]] = []
        self._under_way: set[CopyOut] = set()
        """Copies that may still run: their destinations must outlive them, whatever becomes of the caller."""
        self.stream = Stream(f"rank {table.rank}")

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

    def begin(self, lease: PoolLease, destination: Any, destination_address: int) -> CopyOut:
        """Queue the copy-out of an entered lease and, behind its last byte, the read of R.

        On failure the lease is acknowledged behind whatever had been queued, and the error raised (CON-4).
        """
        with self._lock:
            try:
                cell = self._cells.take()
                self._order_after_torch()
                self._queue_bytes(lease, destination_address)
                self._queue_ready_read(lease, cell)
                copy = CopyOut(lease, destination, cell, self.stream.mark())
            except BaseException as error:
                self._under_way.add(CopyOut(lease, destination, 0, 0))
                self._acknowledge_after(error, lease)
                raise
            self._under_way.add(copy)
            return copy

    def _queue_bytes(self, lease: PoolLease, destination_address: int) -> None:
        calls.copy_on_device(destination_address, self._address + lease.start, lease.nbytes, self.stream.handle)

    def _queue_ready_read(self, lease: PoolLease, cell: int) -> None:
        # CON-5: queued behind the copy on the same stream, so it starts after the last byte has arrived.
        ready = self._address + self._layout.ready_offset(lease.slot)
        calls.copy_to_host(cell, ready, self._layout.word_bytes, self.stream.handle)

    def _order_after_torch(self) -> None:
        """Let the copy-out start after torch's own earlier use of the memory that it gave us for the destination."""
        torch_stream = self._device.current_stream()
        if torch_stream is not None:
            event = calls.create_event()
            try:
                calls.record_event(event, torch_stream)
                calls.wait_for_event(self.stream.handle, event)
            finally:
                calls.destroy_event(event)

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
                    self._acknowledge(lease)
        except StaleLease:
            raise
        except BaseException as error:
            with self._lock:
                self._acknowledge_after(error, lease)
            raise
        return copy.destination

    def _judge(self, copy: CopyOut) -> None:
        """Raise StaleLease unless R was still live when the copy had ended (CON-5). The lock is held."""
        lease, word = copy.lease, self._cells.read(copy.cell)
        self._cells.give(copy.cell)
        self.stream.recycle(copy.event)
        if word != live_word(lease.generation):
            # Whatever was copied may be another lease's bytes; it is thrown away and no word is written.
            message = (
                f"lease (slot={lease.slot}, generation={lease.generation}) was retired before rank {self.rank} had "
                f"copied it: R is {word}, not {live_word(lease.generation)}"
            )
            raise StaleLease(Reason.STALE_LEASE, "CON-5", message)

    def release(self, lease: PoolLease) -> None:
        """Acknowledge without reading; nothing happens when this rank took part already (ACK-3)."""
        key = (lease.slot, lease.generation)
        if not self._table.enter(lease) and key not in self.unreleased:
            return
        with self._lock:
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

    def _acknowledge_after(self, error: BaseException, lease: PoolLease) -> None:
        """CON-4: a failed reconstruction acknowledges once, behind its queued work; a second failure becomes a note."""
        try:
            self._acknowledge(lease)
        except BaseException as second:
            self.unreleased.add((lease.slot, lease.generation))
            error.add_note(f"the acknowledgement failed too, the lease stays leased: {type(second).__name__}: {second}")

    def close(self) -> None:
        """Give stream, events and pinned words back; nothing queued uses them any more."""
        with self._lock:
            self._under_way.clear()
            unwind = Unwind()
            unwind.push(self._cells.close)
            unwind.push(self.stream.close)
            unwind.run()


class PoolImport:
    """A pool's memory mapped into this process on one device, with the ranks that use it."""

    reader_type: type[RankReader] = RankReader

    def __init__(self, card: PoolCard, device_name: str, tables: dict[int, RankTable]) -> None:
        self.card = card
        self._tables = tables
        self._lock = threading.Lock()
        self._forks = fork_count()
        self._ranks: dict[int, RankReader] = {}
        self._unwind = Unwind()
        self.closed = False
        self.device = Device(device_name)
        self._unwind.push(self.device.close)
        try:
            with self.device:
                self._map()
        except BaseException as error:
            self._unwind.run(cause=error)
            raise

    def _map(self) -> None:
        size = self.card.memory_size
        reservation = VmmReservation(self.device, size, self.card.handle_type.driver_type)
        self._unwind.push(reservation.close)
        handle = import_handle(self.card)
        try:
            reservation.map_existing(handle, 0, size)
        finally:
            # The mapping keeps the memory; every import needs its own release.
            calls.release_memory(handle)
        self.address = reservation.address

    def rank(self, rank: int) -> RankReader:
        """The one reader of `rank` in this process.

        Raises ProducerGone when the import was dropped meanwhile, ArgumentError when the rank acts on another device.
        """
        refuse_after_fork(self._forks, "import of a pool")
        with self._lock:
            if self.closed:
                raise ProducerGone(Reason.PRODUCER_GONE, "HND-4", "this process has dropped its import of the pool")
            reader = self._ranks.get(rank)
            if reader is None:
                table = self._tables.setdefault(rank, RankTable(rank, self.device.name))
                table.check_device(self.device.name)
                with self.device:
                    reader = self._ranks[rank] = self.reader_type(self, table)
            return reader

    def synchronize(self, timeout_seconds: float) -> None:
        """Wait for everything that this process's ranks have queued so far."""
        with self._lock, self.device:
            for reader in self._ranks.values():
                reader.stream.synchronize(timeout_seconds)

    def close(self, timeout_seconds: float) -> None:
        """Drop the import once no rank has a queued copy-out, read of R or acknowledgement left (HND-4).

        Raises WaitTimeout when that takes longer; then the import is as it was.
        """
        self.synchronize(timeout_seconds)
        with self._lock, self.device:
            self.closed = True
            for reader in self._ranks.values():
                self._unwind.push(reader.close)
            self._ranks.clear()
            self._unwind.run()


def import_handle(card: PoolCard) -> int:
    """A handle of the pool's allocation, by the road that its card names; the caller releases it."""
    if card.handle_type is HandleType.FABRIC:
        return calls.import_fabric(card.locator)
    descriptor = _descriptor_of(card)
    try:
        return calls.import_descriptor(descriptor)
    finally:
        # Importing takes no ownership, and an open descriptor would pin the memory.
        os.close(descriptor)


_exporters: dict[bytes, Callable[[], int]] = {}
"""By nonce: pools of this very process, which need no broker to reach themselves."""


def register_exporter(nonce: bytes, export: Callable[[], int]) -> None:
    """Let imports in this process get the pool's descriptor from `export`."""
    _exporters[nonce] = export


def forget_exporter(nonce: bytes) -> None:
    """The pool has ended."""
    _exporters.pop(nonce, None)


def producer_is_gone(card: PoolCard) -> bool:
    """Whether the pool has ended, as far as this process can tell: it was ours, or its process does not exist."""
    if card.producer_pid == os.getpid():
        return card.nonce not in _exporters
    return not os.path.exists(f"/proc/{card.producer_pid}")


def _descriptor_of(card: PoolCard) -> int:
    export = _exporters.get(card.nonce)
    if export is not None:
        return export()
    return request_descriptor(card.locator, card.transport_name)


class ImportTable:
    """Every import of this process, by pool nonce and device (HND-4)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._imports: dict[tuple[bytes, str], PoolImport] = {}
        self._tables: dict[bytes, dict[int, RankTable]] = {}
        """By nonce. A table outlives the import: a late alias must find it after a new one too (ACK-2)."""

    def open(self, card: PoolCard, device_name: str) -> PoolImport:
        """The import of the pool on that device, made at the first call.

        Raises ProducerGone when the pool does not exist any more and was not imported before.
        """
        key = (card.nonce, device_name)
        found = self._imports.get(key)
        if found is not None:
            return found
        with self._lock:
            found = self._imports.get(key)
            if found is None:
                found = self._imports[key] = self._make(card, device_name)
            return found

    def _make(self, card: PoolCard, device_name: str) -> PoolImport:
        if card.producer_pid == os.getpid() and producer_is_gone(card):
            raise ProducerGone(Reason.PRODUCER_GONE, "REAP-3", "the pool of this proxy has been shut down")
        try:
            return PoolImport(card, device_name, self._tables.setdefault(card.nonce, {}))
        except (BrokerError, DriverError) as error:
            # A dead producer answers no broker, and its FABRIC handle cannot be imported any more.
            refused = isinstance(error, BrokerError) or error.call == "cuMemImportFromShareableHandle"
            if not refused or not producer_is_gone(card):
                raise
            message = f"producer process {card.producer_pid} does not exist any more"
            raise ProducerGone(Reason.PRODUCER_GONE, "REAP-3", message) from error

    def device_of(self, nonce: bytes, rank: int) -> str | None:
        """The device that a rank of this process acts on, None before it has acted."""
        table = self._tables.get(nonce, {}).get(rank)
        return None if table is None else table.device

    def find(self, nonce: bytes) -> tuple[PoolImport, ...]:
        """Imports of one pool, on any device."""
        return tuple(found for (key, _), found in tuple(self._imports.items()) if key == nonce)

    def close(self, nonce: bytes | None = None, timeout_seconds: float = WAIT_SECONDS) -> None:
        """Drop the imports of one pool, or all; each waits for this process's own queued work on it (HND-4)."""
        unwind = Unwind()
        with self._lock:
            for key in [key for key in self._imports if nonce is None or key[0] == nonce]:
                found = self._imports[key]
                unwind.push(lambda found=found, key=key: self._drop(key, found, timeout_seconds))  # type: ignore[misc]
            unwind.run()

    def _drop(self, key: tuple[bytes, str], found: PoolImport, timeout_seconds: float) -> None:
        try:
            found.close(timeout_seconds)
        finally:
            # Also when the driver has refused to take something back: it is not asked twice (HND-1).
            if found.closed:
                del self._imports[key]
                if producer_is_gone(found.card):
                    # Nobody can import it again, so no alias can do harm.
                    self._tables.pop(key[0], None)


IMPORTS = ImportTable()
"""The one table of this process."""


def close_imports(nonce: bytes | None = None, timeout_seconds: float = WAIT_SECONDS) -> None:
    """Give back what this process has imported of one pool (by nonce), or of all pools.

    For consumers whose producer has ended or was restarted. Raises WaitTimeout when queued work has not ended in time.
    """
    IMPORTS.close(nonce, timeout_seconds)
