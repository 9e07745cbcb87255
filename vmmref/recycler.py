"""The recycler: one explicit pass in three parts, and a thread that does nothing but call it.

A pass looks (a snapshot of all words), claims (every lease that the look saw acknowledged by all ranks) and reclaims
(frees what the host has seen retired). The parts can be interleaved with anything: an old look is harmless, because a
generation is issued once and an acknowledgement word only rises.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections import deque
from collections.abc import Callable

from vmmref.book import Holding, LeaseBook
from vmmref.driver import calls, streams
from vmmref.driver.streams import Stream
from vmmref.errors import PoolClosing
from vmmref.layout import ControlLayout
from vmmref.publisher import Publisher
from vmmref.unwind import Unwind

_log = logging.getLogger("vmmref")


class Look:
    """All control words of a pool as the recycler saw them at one time; each word whole, the set not atomic."""

    __slots__ = ("_layout", "_stride", "_words", "nonce", "raw")

    def __init__(self, nonce: bytes, layout: ControlLayout, raw: bytes) -> None:
        self.nonce = nonce
        self._layout = layout
        self._stride = layout.words_per_slot
        self.raw = raw
        self._words = memoryview(raw).cast("I" if layout.word_bytes == 4 else "Q")

    def all_acknowledged(self, holding: Holding) -> bool:
        """Whether each group of its ranks had acknowledged exactly this lease, or has a dead speaker (REC-1, ACK-5)."""
        # A loop and no comprehension: a pass asks this for every lease that is out.
        lease, words = holding.lease, self._words
        generation, first = lease.generation, lease.slot * self._stride + 1
        for rank in holding.awaited:
            # ACK-4: a speaker's word stands for its whole group, and so does its death (REAP-1).
            if words[first + rank] == generation or rank in holding.excused:
                continue
            return False
        return True

    def unacknowledged(self, holding: Holding) -> tuple[int, ...]:
        """The ranks that the lease waits for and that had not acknowledged it, known dead ones left out."""
        lease, words, excused = holding.lease, self._words, holding.excused
        generation, first = lease.generation, lease.slot * self._stride + 1
        waiting = [rank for rank in holding.awaited if words[first + rank] != generation and rank not in excused]
        return tuple(waiting)


class Recycler:
    """Looks with a stream of its own, so that no publisher's or consumer's work stands in its way (REC-4)."""

    look_type: type[Look] = Look

    def __init__(
        self, address: int, layout: ControlLayout, book: LeaseBook, publisher: Publisher, timeout_seconds: float
    ) -> None:
        self._address = address
        self._layout = layout
        self._book = book
        self._publisher = publisher
        self._timeout_seconds = timeout_seconds
        self._look_lock = threading.Lock()
        # CTL-3: this is what every word is before the first look.
        self._last_look = self.look_type(book.nonce, layout, bytes(layout.control_bytes))
        self._retiring: deque[Holding] = deque()
        self._held: deque[Holding] = deque()
        self._unwind = Unwind()
        try:
            self.look_stream = Stream("look")
            self._unwind.push(self.look_stream.close)
            self._pinned = calls.allocate_pinned(layout.control_bytes)
            self._unwind.push(lambda: calls.free_pinned(self._pinned))
        except BaseException as error:
            self._unwind.run(cause=error)
            raise

    def look(self) -> Look:
        """Take a snapshot of all words; waits for nothing but its own copy."""
        size = self._layout.control_bytes
        with self._look_lock:
            calls.copy_to_host(self._pinned, self._address, size, self.look_stream.handle)
            event = self.look_stream.mark()
            streams.wait(event, self._timeout_seconds, "the recycler's look at the control words")
            self.look_stream.recycle(event)
            self._last_look = self.look_type(self._book.nonce, self._layout, ctypes.string_at(self._pinned, size))
            return self._last_look

    def unacknowledged(self, holding: Holding) -> tuple[int, ...]:
        """The ranks that a lease still waited for when the words were last looked at."""
        return self._last_look.unacknowledged(holding)

    def claim(self, look: Look) -> int:
        """Claim every lease that `look` saw acknowledged by all ranks, and queue its retire store; how many.

        A lease that is not active any more, or is of another generation than the look shows, is none of its business
        (REC-3). On failure the leases whose retire store could not be queued are active again. Raises LeaseError for a
        look at another pool (GEN-5).
        """
        self._book.check_pool(look.nonce, "a look at the words")
        claimed = self._book.claim_where(look.all_acknowledged)
        self._let_go(look)
        self.retire_all(claimed)
        return len(claimed)

    def _let_go(self, look: Look) -> None:
        """CON-6: a lease that was ended while it may have been borrowed comes back when nobody looks at it any more."""
        for _ in range(len(self._held)):
            holding = self._held.popleft()
            if look.all_acknowledged(holding):
                holding.acknowledged = True
                self._retiring.append(holding)
            else:
                self._held.append(holding)

    def retire_all(self, claimed: list[Holding]) -> None:
        """Queue the retire store of each claimed lease; on failure those that were not reached are active again."""
        for number, holding in enumerate(claimed):
            try:
                self.retire(holding)
            except BaseException:
                for untouched in claimed[number + 1 :]:
                    self._book.unclaim(untouched)
                raise

    def retire(self, holding: Holding) -> None:
        """Queue the retire store of a claimed lease and leave its freeing to `reclaim`."""
        try:
            self._publisher.retire(holding)
        except BaseException:
            if not holding.retire_queued:
                self._book.unclaim(holding)
                raise
            self._retiring.append(holding)
            raise
        self._retiring.append(holding)

    def reclaim(self, wait: bool) -> int:
        """Free the retiring leases whose retire store the host has seen done; with `wait`, wait for each; how many."""
        freed = 0
        for _ in range(len(self._retiring)):
            try:
                # REC-5: whoever pops it is the only one to free it.
                holding = self._retiring.popleft()
            except IndexError:
                break
            try:
                if wait:
                    self._publisher.wait_retired(holding)
                elif not self._publisher.is_retired(holding):
                    self._retiring.appendleft(holding)
                    break
            except BaseException:
                self._retiring.appendleft(holding)
                raise
            freed += self._free(holding)
        return freed

    def _free(self, holding: Holding) -> bool:
        """Free a lease whose retire store is done, or hold it back while ranks may be looking at its bytes."""
        if holding.outlives_its_end:
            holding.held = True
            self._held.append(holding)
            return False
        self._publisher.free(holding)
        return True

    def abandon_held(self) -> None:
        """The pool ends: consumers that look at a held lease have a mapping of their own (LIFE-2)."""
        while self._held:
            self._publisher.free(self._held.popleft())

    def end_lease(self, holding: Holding) -> None:
        """Retire a claimed lease, wait, free it: what cancel and revoke do. A failure leaves it to a later pass."""
        try:
            self._publisher.retire(holding)
            self._publisher.wait_retired(holding)
        except BaseException:
            if holding.retire_queued:
                self._retiring.append(holding)
            else:
                self._book.unclaim(holding)
            raise
        self._free(holding)

    def close(self) -> None:
        """Give stream and pinned memory back."""
        self._unwind.run()


class RecyclerThread:
    """Calls one recycle pass every `interval_seconds` until it is stopped or the pool refuses; no logic of its own."""

    def __init__(
        self, run_pass: Callable[[], int], interval_seconds: float, on_failure: Callable[[BaseException], None]
    ) -> None:
        self._run_pass = run_pass
        self._interval_seconds = interval_seconds
        self._on_failure = on_failure
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vmmref-recycler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_seconds):
            try:
                self._run_pass()
            except PoolClosing:
                return
            except TimeoutError as error:
                # Nothing is lost: the leases are retiring, and the next pass asks again.
                _log.warning("recycle pass: %s", error)
            except BaseException as error:
                self._on_failure(error)
                return

    def ask_to_stop(self) -> None:
        """Let the thread end after the pass that it is in, if any; does not wait."""
        self._stop.set()

    def stop(self, timeout_seconds: float) -> bool:
        """Ask the thread to end and wait for it; False when it is still in a pass."""
        self.ask_to_stop()
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()
