"""What a consumer process holds of a pool: one import a pool and device (HND-4), shared by the ranks in it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from vmmref.arguments import check_seconds, refused
from vmmref.beacon import is_dark
from vmmref.broker import request_descriptor
from vmmref.driver import calls
from vmmref.driver.device import Device
from vmmref.errors import BrokerError, DriverError, LeaseError, ProducerGone, VmmRefError, WaitTimeout
from vmmref.forks import fork_count, refuse_after_fork
from vmmref.handles import HandleType
from vmmref.lease import PoolCard, PoolLease
from vmmref.reader import WAIT_SECONDS, RankReader
from vmmref.reservation import VmmReservation
from vmmref.table import RankTable
from vmmref.unwind import Unwind
from vmmref_models.reasons import Reason

_log = logging.getLogger("vmmref")


class PoolImport:
    """A pool's memory mapped into this process on one device, with the ranks that use it.

    Whoever uses a rank of it is inside (`with imported:`), and it is not dropped under anybody. Thread-safe.
    """

    reader_type: type[RankReader] = RankReader

    def __init__(self, card: PoolCard, device_name: str, tables: dict[int, RankTable]) -> None:
        self.card = card
        self._tables = tables
        self._lock = threading.Lock()
        self._forks = fork_count()
        self._ranks: dict[int, RankReader] = {}
        self._unfinished: list[RankReader] = []
        self._unwind = Unwind()
        self._changed = threading.Condition()
        self._inside = 0
        self._closing = False
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
        except BaseException as error:
            unwind = Unwind()
            unwind.push(partial(calls.release_memory, handle))
            unwind.run(cause=error)
            raise
        # HND-5: the mapping keeps the memory, whatever becomes of the exporter; every import needs its own release.
        calls.release_memory(handle)
        self.address = reservation.address

    def __enter__(self) -> PoolImport:
        refuse_after_fork(self._forks, "import of a pool")
        with self._changed:
            if self._closing:
                raise ProducerGone(Reason.PRODUCER_GONE, "HND-4", "this process has dropped its import of the pool")
            self._inside += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def rank(self, rank: int) -> RankReader:
        """The one reader of `rank` in this process, for a caller inside.

        The first time it waits for a copy of the rank's words. Raises ArgumentError when the rank acts on another
        device, WaitTimeout and DriverError.
        """
        with self._lock:
            reader = self._ranks.get(rank)
            if reader is None:
                table = self._tables.setdefault(rank, RankTable(rank, self.device.name))
                table.check_device(self.device.name)
                with self.device:
                    reader = self._ranks[rank] = self._make_reader(table)
            return reader

    def _make_reader(self, table: RankTable) -> RankReader:
        reader = self.reader_type(self.device, self.address, self.card.layout, table)
        try:
            reader.start_table()
        except BaseException as error:
            # What is still queued writes into the reader's memory: then it stays until the import ends.
            self._unfinished.append(reader)
            unwind = Unwind()
            unwind.push(self._close_unfinished)
            unwind.run(cause=error)
            raise
        return reader

    def _close_unfinished(self) -> None:
        for reader in tuple(self._unfinished):
            if calls.stream_idle(reader.stream.handle):
                self._unfinished.remove(reader)
                reader.close()

    def synchronize(self, timeout_seconds: float) -> None:
        """Wait for everything that this process's ranks have queued so far."""
        with self._lock, self.device:
            for reader in self._readers:
                reader.stream.synchronize(timeout_seconds)

    @property
    def _readers(self) -> tuple[RankReader, ...]:
        return (*self._ranks.values(), *self._unfinished)

    def close(self, timeout_seconds: float) -> None:
        """Drop the import once nobody is inside and no rank has queued work left (HND-4).

        A reading that was begun and not finished is given up: acknowledged behind its copy, as one that failed (CON-4).
        Raises WaitTimeout when that takes longer, and LeaseError while a view is borrowed; then the import is as it
        was.
        """
        refuse_after_fork(self._forks, "import of a pool")
        with self._changed:
            self._closing = True
            empty = self._changed.wait_for(lambda: self._inside == 0, timeout_seconds)
        try:
            if not empty:
                message = f"{self._inside} reader(s) inside the import of a pool have not ended in time"
                raise WaitTimeout(Reason.TIMED_OUT, "LIFE-5", message)
            self._end(timeout_seconds)
        finally:
            self._closing = self.closed

    def close_if_idle(self) -> None:
        """Drop the import if nobody is inside, nothing is queued or begun, and no view is out; waits for nothing."""
        refuse_after_fork(self._forks, "import of a pool")
        with self._changed, self.device:
            if self._inside or self._closing or any(reader.is_busy for reader in self._readers):
                return
            self._closing = True
            self._give_back()

    def _end(self, timeout_seconds: float) -> None:
        borrowed = [lease for reader in self._readers for lease in reader.borrowed.values()]
        if borrowed:
            message = f"{len(borrowed)} borrowed view(s) of the pool have not been released: {borrowed[0]}"
            raise LeaseError(Reason.STILL_BORROWED, "CON-6", message)
        with self.device:
            for reader in self._readers:
                reader.give_up()
            self.synchronize(timeout_seconds)
            self._give_back()

    def _give_back(self) -> None:
        """Unmap, with nothing queued on it any more; also when a step fails it is over (HND-1)."""
        self.closed = True
        for reader in self._readers:
            self._unwind.push(reader.close)
        self._ranks.clear()
        self._unfinished.clear()
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
    """Whether the pool has ended, by its shutdown or with its process; never waits."""
    return is_dark(card.beacon)


def _gone(card: PoolCard) -> ProducerGone:
    message = f"producer process {card.producer_pid} does not exist any more, or has ended the pool of this proxy"
    if card.producer_pid == os.getpid():
        message = "the pool of this proxy has been shut down"
    return ProducerGone(Reason.PRODUCER_GONE, "REAP-3", message)


def _descriptor_of(card: PoolCard) -> int:
    export = _exporters.get(card.nonce)
    if export is not None:
        return export()
    return request_descriptor(card.locator, card.transport_name)


class _Known(NamedTuple):
    """What a process remembers of a pool as long as it can meet proxies of it, imported or not."""

    card: PoolCard
    tables: dict[int, RankTable]
    """By rank. A table outlives the import: a late alias must find it after a new one too (ACK-2)."""


class ImportTable:
    """Every import of this process, by pool nonce and device (HND-4)."""

    import_type: type[PoolImport] = PoolImport

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._imports: dict[tuple[bytes, str], PoolImport] = {}
        self._known: dict[bytes, _Known] = {}

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
                # HND-4: whoever restarts its producer never says which imports are over, but comes here.
                self._try_to_sweep()
                found = self._imports[key] = self._make(card, device_name)
            return found

    def _make(self, card: PoolCard, device_name: str) -> PoolImport:
        if producer_is_gone(card):
            raise _gone(card)
        known = self._known.get(card.nonce, _Known(card, {}))
        try:
            made = self.import_type(card, device_name, known.tables)
        except (BrokerError, DriverError) as error:
            # A dead producer answers no broker, and its FABRIC handle cannot be imported any more.
            refused = isinstance(error, BrokerError) or error.call == "cuMemImportFromShareableHandle"
            if not refused or not producer_is_gone(card):
                raise
            raise _gone(card) from error
        self._known[card.nonce] = known
        return made

    def _table(self, nonce: bytes, rank: int) -> RankTable | None:
        known = self._known.get(nonce)
        return None if known is None else known.tables.get(rank)

    def device_of(self, nonce: bytes, rank: int) -> str | None:
        """The device that a rank of this process acts on, None before it has acted."""
        table = self._table(nonce, rank)
        return None if table is None else table.device

    def owes(self, lease: PoolLease, rank: int) -> bool:
        """Whether an acknowledgement of this lease by a rank of this process could not be made so far (CON-4)."""
        table = self._table(lease.nonce, rank)
        return table is not None and table.owes(lease)

    def find(self, nonce: bytes) -> tuple[PoolImport, ...]:
        """Imports of one pool, on any device."""
        return tuple(found for (key, _), found in tuple(self._imports.items()) if key == nonce)

    def close(self, nonce: bytes | None = None, timeout_seconds: float = WAIT_SECONDS) -> None:
        """Drop the imports of one pool, or all; each waits for this process's own queued work on it (HND-4).

        Then those of pools that have ended, as far as nothing is left to wait for.
        """
        unwind = Unwind()
        with self._lock:
            unwind.push(self._sweep)
            for found in self._imports_of(nonce):
                unwind.push(partial(self._drop, found, partial(found.close, timeout_seconds)))
            unwind.run()

    def _imports_of(self, nonce: bytes | None) -> list[PoolImport]:
        return [found for found in self._imports.values() if nonce in (None, found.card.nonce)]

    def _drop(self, found: PoolImport, end: Callable[[], None]) -> None:
        try:
            end()
        finally:
            # Also when the driver has refused to take something back: it is not asked twice (HND-1).
            if found.closed:
                for key in [key for key, other in self._imports.items() if other is found]:
                    del self._imports[key]

    def _sweep(self) -> None:
        """Drop the imports of pools that have ended and that nothing here uses any more. The lock is held.

        One that is still used stays for the next time. Raises the first failure, when all were tried.
        """
        unwind = Unwind()
        for nonce, known in tuple(self._known.items()):
            if producer_is_gone(known.card):
                unwind.push(partial(self._forget, nonce))
                for found in self._imports_of(nonce):
                    unwind.push(partial(self._drop, found, found.close_if_idle))
        unwind.run()

    def _forget(self, nonce: bytes) -> None:
        """Let the tables of an ended pool go: nobody can import it again, so no alias can do harm."""
        if not self._imports_of(nonce):
            del self._known[nonce]

    def _try_to_sweep(self) -> None:
        try:
            self._sweep()
        except VmmRefError as error:
            # It is another pool's: whoever wants to read from this one must not suffer for it.
            _log.warning("an import of a pool that has ended could not be dropped: %s", error)


IMPORTS = ImportTable()
"""The one table of this process."""


def close_imports(nonce: bytes | None = None, timeout_seconds: float = WAIT_SECONDS) -> None:
    """Give back what this process has imported of one pool (by nonce), or of all pools.

    Imports of pools that have ended go by themselves when a new one is made, or here, unless they are still in use.
    Raises WaitTimeout when queued work has not ended in time, and LeaseError while a view is borrowed.
    """
    if nonce is not None and not isinstance(nonce, bytes):
        raise refused("HND-4", f"a pool's nonce is bytes, got {type(nonce).__name__}")
    check_seconds("timeout_seconds", timeout_seconds, least=0.0)
    IMPORTS.close(nonce, timeout_seconds)
