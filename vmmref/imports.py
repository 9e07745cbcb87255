"""What a consumer process holds of a pool: one import a pool and device (HND-4), shared by the ranks in it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from vmmref.arguments import check_seconds, refused
from vmmref.broker import request_descriptor
from vmmref.driver import calls
from vmmref.driver.device import Device
from vmmref.errors import BrokerError, DriverError, LeaseError, ProducerGone, WaitTimeout
from vmmref.forks import fork_count, refuse_after_fork
from vmmref.handles import HandleType
from vmmref.lease import PoolCard
from vmmref.reader import WAIT_SECONDS, RankReader
from vmmref.reservation import VmmReservation
from vmmref.table import RankTable
from vmmref.unwind import Unwind
from vmmref_models.reasons import Reason


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
        finally:
            # The mapping keeps the memory; every import needs its own release.
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

        Raises ArgumentError when the rank acts on another device.
        """
        with self._lock:
            reader = self._ranks.get(rank)
            if reader is None:
                table = self._tables.setdefault(rank, RankTable(rank, self.device.name))
                table.check_device(self.device.name)
                with self.device:
                    reader = self._ranks[rank] = self.reader_type(self.device, self.address, self.card.layout, table)
            return reader

    def synchronize(self, timeout_seconds: float) -> None:
        """Wait for everything that this process's ranks have queued so far."""
        with self._lock, self.device:
            for reader in self._ranks.values():
                reader.stream.synchronize(timeout_seconds)

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

    def _end(self, timeout_seconds: float) -> None:
        readers = tuple(self._ranks.values())
        borrowed = [lease for reader in readers for lease in reader.borrowed.values()]
        if borrowed:
            message = f"{len(borrowed)} borrowed view(s) of the pool have not been released: {borrowed[0]}"
            raise LeaseError(Reason.STILL_BORROWED, "CON-6", message)
        with self.device:
            for reader in readers:
                reader.give_up()
            self.synchronize(timeout_seconds)
            self.closed = True
            for reader in readers:
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
    if nonce is not None and not isinstance(nonce, bytes):
        raise refused("HND-4", f"a pool's nonce is bytes, got {type(nonce).__name__}")
    check_seconds("timeout_seconds", timeout_seconds, least=0.0)
    IMPORTS.close(nonce, timeout_seconds)
