"""What a consumer process holds of a pool: one import a pool and device (HND-4), shared by the ranks in it."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
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
from vmmref.wire import refuse_contradiction
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


_Key = tuple[bytes, str]
"""A pool's nonce and a device's name."""
_OPENING_SECONDS = 60.0
"""Who waits for another thread's import: longer than a broker's patience and the driver together should take."""


class _Known(NamedTuple):
    """What a process remembers of a pool as long as it can meet proxies of it, imported or not."""

    card: PoolCard
    tables: dict[int, RankTable]
    """By rank. A table outlives the import: a late alias must find it after a new one too (ACK-2)."""


def _result_of(opening: Future[PoolImport]) -> PoolImport:
    """What another thread's opening comes to. Raises what that raises, and WaitTimeout."""
    try:
        return opening.result(_OPENING_SECONDS)
    except TimeoutError as error:
        if opening.done():
            raise
        message = f"another thread has been importing the pool for {_OPENING_SECONDS} s"
        raise WaitTimeout(Reason.TIMED_OUT, "HND-4", message) from error
    finally:
        # Else the error, which this frame is part of, would keep itself and all that it has seen alive.
        del opening


class ImportTable:
    """Every import of this process, by pool nonce and device (HND-4). Thread-safe.

    Its lock is held for a look only, never while a producer is asked, memory mapped or somebody waited for (REC-4).
    """

    import_type: type[PoolImport] = PoolImport

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._imports: dict[_Key, PoolImport] = {}
        self._openings: dict[_Key, Future[PoolImport]] = {}
        """Imports that a thread is making; others that want the same wait for it."""
        self._known: dict[bytes, _Known] = {}

    @contextlib.contextmanager
    def inside(self, card: PoolCard, device_name: str) -> Iterator[PoolImport]:
        """Be inside the import of the pool on that device (`open`), which nobody drops meanwhile.

        One that is being dropped is waited for, and made again. Raises as `open`, and WaitTimeout.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        found = self.open(card, device_name)
        while not found.enter(deadline):
            found = self.open(card, device_name)
        try:
            yield found
        finally:
            found.__exit__()

    def check(self, card: PoolCard) -> None:
        """Raise WireFormError when a proxy says something else of a pool than this process knows of it (GEN-5)."""
        known = self._known.get(card.nonce)
        if known is not None:
            refuse_contradiction(card, known.card)

    def open(self, card: PoolCard, device_name: str) -> PoolImport:
        """The import of the pool on that device, made at the first call; threads that ask meanwhile share what comes.

        Raises ProducerGone when the pool does not exist any more and was not imported before, WireFormError when the
        card is not the one by which the pool is known here, BrokerError, DriverError and WaitTimeout.
        """
        key = (card.nonce, device_name)
        with self._lock:
            self.check(card)
            found = self._imports.get(key)
            if found is not None and not found.is_over:
                return found
            under_way = self._openings.get(key)
            if under_way is None:
                opening = self._openings[key] = Future()
                # Before it is made: the tables of a rank must be the same ones for every device (ACK-2).
                known = self._known.setdefault(card.nonce, _Known(card, {}))
        return self._make_for_all(key, known, opening) if under_way is None else _result_of(under_way)

    def _make_for_all(self, key: _Key, known: _Known, opening: Future[PoolImport]) -> PoolImport:
        """Make an import, and let it or the error be known to all who wait for this opening."""
        try:
            # HND-4: whoever restarts its producer never says which imports are over, but comes here.
            self._try_to_sweep()
            made = self._make(known, key[1])
        except BaseException as error:
            with self._lock:
                self._openings.pop(key, None)
            if not known.tables:
                self._forget(key[0])
            opening.set_exception(error)
            raise
        with self._lock:
            self._imports[key] = made
            self._openings.pop(key, None)
        opening.set_result(made)
        return made

    def _make(self, known: _Known, device_name: str) -> PoolImport:
        card = known.card
        if producer_is_gone(card):
            raise _gone(card)
        try:
            return self.import_type(card, device_name, known.tables)
        except (BrokerError, DriverError) as error:
            # A dead producer answers no broker, and its FABRIC handle cannot be imported any more.
            refused = isinstance(error, BrokerError) or error.call == "cuMemImportFromShareableHandle"
            if not refused or not producer_is_gone(card):
                raise
            raise _gone(card) from error

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
        unwind.push(self._sweep)
        for found in self._imports_of(nonce):
            unwind.push(partial(self._drop, found, partial(found.close, timeout_seconds)))
        unwind.run()

    def _imports_of(self, nonce: bytes | None) -> list[PoolImport]:
        return [found for found in tuple(self._imports.values()) if nonce in (None, found.card.nonce)]

    def _drop(self, found: PoolImport, end: Callable[[], None]) -> None:
        try:
            end()
        finally:
            # Also when the driver has refused to take something back: it is not asked twice (HND-1).
            if found.closed:
                with self._lock:
                    for key in [key for key, other in self._imports.items() if other is found]:
                        del self._imports[key]

    def _sweep(self) -> None:
        """Drop the imports of pools that have ended and that nothing here uses any more.

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
        with self._lock:
            if all(nonce != other for other, _ in (*self._imports, *self._openings)):
                self._known.pop(nonce, None)

    def let_go_of_threads(self) -> None:
        """In a forked child: wait for none of the parent's threads. Its imports stay, and refuse to be used."""
        self._lock = threading.Lock()
        self._openings.clear()

    def _try_to_sweep(self) -> None:
        try:
            self._sweep()
        except VmmRefError as error:
            # It is another pool's: whoever wants to read from this one must not suffer for it.
            _log.warning("an import of a pool that has ended could not be dropped: %s", error)


IMPORTS = ImportTable()
"""The one table of this process."""
# HND-7: in a forked child the threads that held its lock, or were making an import, do not exist.
os.register_at_fork(after_in_child=IMPORTS.let_go_of_threads)


def close_imports(nonce: bytes | None = None, timeout_seconds: float = WAIT_SECONDS) -> None:
    """Give back what this process has imported of one pool (by nonce), or of all pools.

    Imports of pools that have ended go by themselves when a new one is made, or here, unless they are still in use.
    Raises WaitTimeout when queued work has not ended in time, and LeaseError while a view is borrowed.
    """
    if nonce is not None and not isinstance(nonce, bytes):
        raise refused("HND-4", f"a pool's nonce is bytes, got {type(nonce).__name__}")
    check_seconds("timeout_seconds", timeout_seconds, least=0.0)
    IMPORTS.close(nonce, timeout_seconds)
