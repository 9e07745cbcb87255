"""The producer's side of a lease: the copy, the ready store behind it, and the retire store that ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from vmmref.book import Holding, LeaseBook
from vmmref.driver import calls, streams
from vmmref.driver.device import Device
from vmmref.driver.streams import Stream
from vmmref.errors import DriverError
from vmmref.layout import ControlLayout, live_word, retired_word
from vmmref.lease import PoolLease
from vmmref.life import Life
from vmmref.unwind import Unwind, note_failure


class Part(NamedTuple):
    """A contiguous tensor and where its bytes go: `nbytes` from `address` to `offset` in the lease."""

    source: Any
    address: int
    offset: int
    nbytes: int


class Publisher:
    """Two streams of the producer over one pool's memory: "publish" for copies and ready stores, "retire" for the rest.

    R of a slot has one writer, and its stores are ordered: a retire store is queued only behind the lease's own ready
    store (by event, or because the host has seen that one done), and the slot comes back only after the host has seen
    the retire store done (CTL-6, REC-2).
    """

    def __init__(
        self,
        device: Device,
        address: int,
        layout: ControlLayout,
        book: LeaseBook,
        life: Life,
        timeout_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._device = device
        self._address = address
        self._layout = layout
        self._book = book
        self._life = life
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        # Queueing is serialised a stream; the allocator's lock is another one and never held here (REC-4).
        self._publish_lock = threading.Lock()
        self._retire_lock = threading.Lock()
        self._unwind = Unwind()
        try:
            self.publish_stream = Stream("publish")
            self._unwind.push(self.publish_stream.close)
            self.retire_stream = Stream("retire")
            self._unwind.push(self.retire_stream.close)
        except BaseException as error:
            self._unwind.run(cause=error)
            raise

    def queue_copy(self, holding: Holding, parts: Sequence[Part]) -> None:
        """Queue the copy of every part into the lease and, behind them all, the one ready store (PACK-1).

        On failure the lease goes back before the error leaves (PUB-3).
        """
        holding.source = parts
        try:
            with self._publish_lock:
                # The work that torch has queued to make the tensor comes first.
                self._device.order_after_torch(self.publish_stream.handle)
                self._queue_bytes(holding, parts)
                self._queue_ready(holding)
                holding.published = self.publish_stream.mark()
        except BaseException as error:
            self._abandon(holding, error)
            raise

    def _queue_bytes(self, holding: Holding, parts: Sequence[Part]) -> None:
        start = self._address + holding.lease.start
        for part in parts:
            calls.copy_on_device(start + part.offset, part.address, part.nbytes, self.publish_stream.handle)

    def _queue_ready(self, holding: Holding) -> None:
        # PUB-1: a stream write makes everything before it on the stream visible first.
        self._store(holding.lease, live_word(holding.lease.generation), self.publish_stream)
        holding.ready_queued = True

    def _store(self, lease: PoolLease, value: int, stream: Stream) -> None:
        """Queue R := `value` in the lease's slot, behind all that is queued on `stream`."""
        ready = self._address + self._layout.ready_offset(lease.slot)
        calls.write_word(ready, value, self._layout.word_bytes, stream.handle)

    def _abandon(self, holding: Holding, error: BaseException) -> None:
        """Take back a lease whose publishing failed at `error`: when its queued work has ended, and only then."""
        try:
            self._book.claim(holding.lease, "PUB-3")
            # PUB-3: also when nothing seems to be queued; a range that goes back early is overwritten later.
            self.publish_stream.synchronize(self._timeout_seconds)
            if holding.ready_queued:
                self.retire(holding)
                self.wait_retired(holding)
            self.free(holding)
        except BaseException as second:
            # LIFE-3: what the device will still do to this range is not known.
            note_failure(error, second, "taking the lease back failed too")
            self._life.fail(error)

    def wait_published(self, holding: Holding) -> None:
        """Wait until the lease's ready store is visible to the host, then let it be dispatched (PUB-2).

        Raises WaitTimeout, DriverError (then the pool has failed), or LeaseError when it was cancelled meanwhile.
        """
        lease = holding.lease
        self._book.require_active(holding)
        assert holding.published is not None, "an active lease has its ready store queued"
        self._wait(holding.published, f"publishing of lease (slot={lease.slot}, generation={lease.generation})")
        self._book.dispatch(holding, self._clock())
        holding.source = None

    def retire(self, holding: Holding) -> None:
        """Queue R := 2n+1 for a claimed lease.

        On failure `holding.retire_queued` tells whether the store is on its way all the same; then the lease must be
        waited for like any other, and only otherwise it may become active again.
        """
        stream = self.retire_stream
        with self._retire_lock:
            if holding.published is not None and not holding.dispatched:
                # CTL-6, REC-2: not before the lease's own copy and ready store, which nobody has seen done yet.
                calls.wait_for_event(stream.handle, holding.published)
            if holding.ready_queued:
                self._store(holding.lease, retired_word(holding.lease.generation), stream)
            holding.retire_queued = True
            try:
                holding.retired = stream.mark()
            except BaseException as error:
                # The store is queued and will have to be waited for: one more try, and the error leaves all the same.
                try:
                    holding.retired = stream.mark()
                except DriverError as second:
                    note_failure(error, second, "marking it again failed too")
                raise

    def is_retired(self, holding: Holding) -> bool:
        """Whether the host sees the retire store done; does not wait."""
        if holding.retired is None:
            # No event stands for the store, but an idle stream has nothing left to do, the store included.
            return calls.stream_idle(self.retire_stream.handle)
        return calls.event_done(holding.retired)

    def wait_retired(self, holding: Holding) -> None:
        """Wait until the host sees the retire store done (REC-2)."""
        lease = holding.lease
        self._wait(
            self._retired_event(holding), f"retiring of lease (slot={lease.slot}, generation={lease.generation})"
        )

    def _retired_event(self, holding: Holding) -> int:
        if holding.retired is None:
            # Marking failed when the store was queued; a later mark on the same stream stands for it too.
            with self._retire_lock:
                holding.retired = self.retire_stream.mark()
        return holding.retired

    def free(self, holding: Holding) -> None:
        """Give the range and the slot of a lease back, whose retire store is done."""
        published, retired = holding.published, holding.retired
        self._book.free(holding)
        if published is not None:
            self.publish_stream.recycle(published)
        if retired is not None:
            self.retire_stream.recycle(retired)

    def _wait(self, event: int, what: str) -> None:
        try:
            streams.wait(event, self._timeout_seconds, what)
        except TimeoutError:
            raise
        except Exception as error:
            # A queued piece failed: the context is broken and with it every range (LIFE-3). An interruption from the
            # keyboard says nothing of the device.
            self._life.fail(error)
            raise

    def synchronize(self, timeout_seconds: float) -> None:
        """Wait for everything queued on both streams; raises WaitTimeout when one of them takes longer."""
        self.publish_stream.synchronize(timeout_seconds)
        self.retire_stream.synchronize(timeout_seconds)

    def close(self) -> None:
        """Destroy both streams."""
        self._unwind.run()
