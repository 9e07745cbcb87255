"""The consumers of a session, wherever they live: in this process together, or each in a process of its own."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple, Protocol

from vmmref.conformance.subjects.consumer import Consumer, Setting
from vmmref_models.operations import Operation, Outcome


class Closed(NamedTuple):
    """What is to be known when what a session leaves is counted."""

    kept: Counter[str]
    """What the driver has refused to take back of the session's own process, by kind: no leak of the pool's."""
    left: Counter[str]
    """What other processes of the session hold and should not, by kind."""


class Ranks(Protocol):
    """All ranks of one pool, as the session sees them."""

    def apply(self, operation: Operation, form: bytes = b"") -> Outcome:
        """Do one of `consumer.OPERATIONS`, or Faulty of one, where the rank lives that it concerns.

        `form` is the wire form of the proxy that a Deliver brings. Never raises for a refusal or a failure.
        """

    def crash(self, rank: int) -> None:
        """Kill the process of `rank`; it is gone when this returns."""

    def join(self, rank: int) -> None:
        """Let a new process act for `rank`, and the pool watch it; raises what the pool's refusal raises."""

    def imports(self) -> tuple[int, ...]:
        """How many imports of the pool each consumer process holds; 0 for a dead one."""

    def settle(self) -> None:
        """Let everything that the ranks have queued so far end."""

    def close(self) -> Closed:
        """Drop every import; raises what that raises."""


class Together:
    """All ranks in the session's own process, with one import of the pool for all."""

    def __init__(self, setting: Setting) -> None:
        self._consumer = Consumer(setting)

    def apply(self, operation: Operation, form: bytes = b"") -> Outcome:
        """Do it here."""
        return self._consumer.apply(operation, form)

    def crash(self, rank: int) -> None:
        """There is no process of `rank` to kill."""
        raise NotImplementedError(f"rank {rank} shares its process with the pool")

    def join(self, rank: int) -> None:
        """There is no place for a process of `rank`."""
        raise NotImplementedError(f"rank {rank} shares its process with the pool")

    def imports(self) -> tuple[int, ...]:
        """One number: there is one process."""
        return (self._consumer.imports(),)

    def settle(self) -> None:
        """Let everything queued so far end."""
        self._consumer.settle()

    def close(self) -> Closed:
        """Drop the import."""
        self._consumer.close()
        return Closed(self._consumer.kept, Counter())
