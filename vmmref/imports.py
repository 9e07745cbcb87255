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
from vmmref.errors import BrokerError, DriverError, ProducerGone, VmmRefError, WaitTimeout
from vmmref.imported import PoolImport
from vmmref.lease import PoolCard, PoolLease
from vmmref.reader import WAIT_SECONDS
from vmmref.table import RankTable
from vmmref.unwind import Unwind
from vmmref.wire import refuse_contradiction
from vmmref_models.reasons import Reason

_log = logging.getLogger("vmmref")


def producer_is_gone(card: PoolCard) -> bool:
    """Whether the pool has ended, by its shutdown or with its process; never waits."""
    return is_dark(card.beacon)


def _gone(card: PoolCard) -> ProducerGone:
    message = f"producer process {card.producer_pid} does not exist any more, or has ended the pool of this proxy"
    if card.producer_pid == os.getpid():
        message = "the pool of this proxy has been shut down"
    return ProducerGone(Reason.PRODUCER_GONE, "REAP-3", message)


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
