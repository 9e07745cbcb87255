"""Streams, events and waits that end.

CUDA has no wait with a time-out, so a wait asks the event again and again, with growing pauses, until its deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from types import TracebackType

from vmmref.driver import calls
from vmmref.errors import WaitTimeout
from vmmref.unwind import Unwind
from vmmref_models.reasons import Reason

_SPIN_SECONDS = 0.0002
"""Most waits end within this time, and a pause would cost them more than it saves."""
_LONGEST_PAUSE_SECONDS = 0.001

_progress: Callable[[int], None] | None = None


class progress:
    """While this context lasts, a waiting host calls `run(event)` in place of pausing.

    A stepping simulator runs its queued work there, up to that event: nobody else would.
    """

    def __init__(self, run: Callable[[int], None] | None) -> None:
        self._run = run
        self._before: Callable[[int], None] | None = None

    def __enter__(self) -> None:
        global _progress
        self._before, _progress = _progress, self._run

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _progress
        _progress = self._before


def wait(event: int, timeout_seconds: float, what: str) -> None:
    """Wait until `event` is done; raises WaitTimeout, which says `what` is outstanding, after `timeout_seconds`."""
    if calls.event_done(event):
        return
    if _progress is not None:
        _progress(event)
        if calls.event_done(event):
            return
    started = time.monotonic()
    pause = 0.00002
    while not calls.event_done(event):
        waited = time.monotonic() - started
        if waited >= timeout_seconds:
            # LIFE-5: every wait has an end.
            raise WaitTimeout(Reason.TIMED_OUT, "LIFE-5", f"{what} has not ended after {waited:.1f} s")
        if waited > _SPIN_SECONDS:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


class Stream:
    """A non-blocking stream of the current context, with a store of reusable events.

    Everything on it runs in the order in which it was queued. Callers queue work under a lock of theirs; anybody may
    mark it, and wait for the mark.
    """

    __slots__ = ("_events", "_free", "handle", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._events: list[int] = []
        self._free: list[int] = []
        self.handle = calls.create_stream()

    def mark(self) -> int:
        """An event that stands for all that was queued so far; hand it to `recycle` when nobody asks it any more."""
        try:
            # In one step: between a look and a pop another thread may take the last one.
            event = self._free.pop()
        except IndexError:
            event = calls.create_event()
            self._events.append(event)
        try:
            calls.record_event(event, self.handle)
        except BaseException:
            self._free.append(event)
            raise
        return event

    def recycle(self, event: int) -> None:
        """Take an event of `mark` back for reuse."""
        self._free.append(event)

    def synchronize(self, timeout_seconds: float) -> None:
        """Wait until everything queued so far has ended; raises WaitTimeout at the end of its patience."""
        event = self.mark()
        wait(event, timeout_seconds, f"work on the {self.name} stream")
        self.recycle(event)

    def close(self) -> None:
        """Destroy events and stream; each once, also when one of them fails."""
        unwind = Unwind()
        if self.handle:
            handle, self.handle = self.handle, 0
            unwind.push(partial(calls.destroy_stream, handle))
        while self._events:
            unwind.push(partial(calls.destroy_event, self._events.pop()))
        unwind.run()
