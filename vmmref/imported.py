"""A pool's memory in a consumer process: how it comes there, and how it is left."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial

from vmmref.broker import request_descriptor
from vmmref.driver import calls
from vmmref.driver.device import Device
from vmmref.errors import LeaseError, ProducerGone, WaitTimeout
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
        self._unfinished: list[RankReader] = []
        self._unwind = Unwind()
        self._changed = threading.Condition()
        self._inside: list[int] = []
        """The thread of each caller inside. Who is inside may come in again, also while somebody waits to close."""
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

    @property
    def is_over(self) -> bool:
        """Whether it was dropped, and nothing of it is left."""
        return self.closed and not self._closing

    def __enter__(self) -> PoolImport:
        if not self.enter(time.monotonic() + WAIT_SECONDS):
            raise ProducerGone(Reason.PRODUCER_GONE, "HND-4", "this process has dropped its import of the pool")
        return self

    def enter(self, deadline: float) -> bool:
        """Come inside, to leave by `__exit__`; False when it was dropped.

        Waits until `deadline` for who is about to drop it, and may fail to. Raises WaitTimeout.
        """
        refuse_after_fork(self._forks, "import of a pool")
        me = threading.get_ident()
        with self._changed:
            if me not in self._inside:
                self._wait_until(lambda: not self._closing, deadline, "another thread that drops")
            if self.closed:
                return False
            self._inside.append(me)
        return True

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside.remove(threading.get_ident())
            self._changed.notify_all()

    def _wait_until(self, condition: Callable[[], bool], deadline: float, who: str) -> None:
        if not self._changed.wait_for(condition, max(0.0, deadline - time.monotonic())):
            message = f"{who} the import of a pool: {len(self._inside)} call(s) inside have not ended in time"
            raise WaitTimeout(Reason.TIMED_OUT, "LIFE-5", message)

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
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            self._wait_until(lambda: not self._closing, deadline, "another thread that drops")
            if self.closed:
                return
            self._closing = True
        try:
            with self._changed:
                self._wait_until(lambda: not self._inside, deadline, "reader(s) inside")
            self._end(timeout_seconds)
        finally:
            with self._changed:
                self._closing = False
                self._changed.notify_all()

    def close_if_idle(self) -> None:
        """Drop the import if nobody is inside, nothing is queued or begun, and no view is out; waits for nothing."""
        refuse_after_fork(self._forks, "import of a pool")
        with self._changed, self.device:
            if self._inside or self._closing or self.closed or any(reader.is_busy for reader in self._readers):
                return
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


def _descriptor_of(card: PoolCard) -> int:
    export = _exporters.get(card.nonce)
    if export is not None:
        return export()
    return request_descriptor(card.locator, card.transport_name)
