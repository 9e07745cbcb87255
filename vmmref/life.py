"""The life of a pool: who may still come in, who is inside, and what a failure means for the next caller."""

from __future__ import annotations

import threading
import time
from enum import Enum
from types import TracebackType

from vmmref.driver.device import Device
from vmmref.errors import PoolClosing, PoolFailed, WaitTimeout
from vmmref.forks import fork_count, refuse_after_fork
from vmmref_models.reasons import Reason


class State(Enum):
    """FAILED ends in CLOSED too: what was taken is given back, but nothing is reused before."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class Life:
    """Counts the callers inside a pool. `with life:` enters (or refuses), makes the device current, and leaves."""

    def __init__(self, device: Device, transport_name: str) -> None:
        self._device = device
        self._transport_name = transport_name
        self._changed = threading.Condition()
        self._inside = 0
        self._closer: int | None = None
        self._forks = fork_count()
        self.state = State.OPEN
        self.failure: BaseException | None = None

    def __enter__(self) -> None:
        if self._forks != fork_count():
            refuse_after_fork(self._forks, f"{self._transport_name} pool")
        with self._changed:
            if self.state is not State.OPEN or self.failure is not None:
                self._refuse()
            self._inside += 1
        try:
            self._device.__enter__()
        except BaseException:
            self._leave()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._device.__exit__(kind, error, trace)
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._changed:
            self._inside -= 1
            if self.state is not State.OPEN:
                self._changed.notify_all()

    def _refuse(self) -> None:
        if self.state is not State.OPEN:
            message = f"{self._transport_name} multimodal pool is closing: it is {self.state.value}"
            raise PoolClosing(Reason.POOL_CLOSING, "LIFE-2", message)
        message = f"{self._transport_name} multimodal pool failed: {self.failure}"
        raise PoolFailed(Reason.POOL_FAILED, "LIFE-3", message) from self.failure

    def fail(self, error: BaseException) -> None:
        """Let every later use be refused because of `error`: the device state is unknown (LIFE-3)."""
        with self._changed:
            if self.failure is None:
                self.failure = error

    def begin_close(self, timeout_seconds: float) -> bool:
        """Refuse newcomers from now on and become the one who closes; False when the pool is closed already.

        Raises WaitTimeout when another thread has been closing it for `timeout_seconds`, or callers are still inside.
        """
        refuse_after_fork(self._forks, f"{self._transport_name} pool")
        deadline = time.monotonic() + timeout_seconds
        me = threading.get_ident()
        with self._changed:
            if self.state is State.OPEN:
                self.state = State.CLOSING
            self._wait_until(lambda: self._closer in (None, me), deadline, "another shutdown of the same pool")
            if self.state is State.CLOSED:
                return False
            self._closer = me
        return True

    def wait_until_empty(self, timeout_seconds: float) -> None:
        """Wait for the callers inside; raises WaitTimeout with their number."""
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            self._wait_until(lambda: self._inside == 0, deadline, "calls inside the pool")

    def _wait_until(self, condition: object, deadline: float, what: str) -> None:
        if not self._changed.wait_for(condition, max(0.0, deadline - time.monotonic())):  # type: ignore[arg-type]
            # LIFE-5; the pool stays closing, and a later shutdown goes on from here (LIFE-2).
            message = f"{what}: {self._inside} call(s) inside have not ended in time"
            raise WaitTimeout(Reason.TIMED_OUT, "LIFE-5", message)

    def end_close(self, closed: bool) -> None:
        """Let the next closer in; `closed` when everything was given back."""
        with self._changed:
            self._closer = None
            if closed:
                self.state = State.CLOSED
            self._changed.notify_all()
