"""What the clients of a pool remember: the tokens of an episode and what may still be done with each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from vmmref_models.operations import (
    Cancel,
    Claim,
    Collect,
    Deliver,
    Dispatch,
    Faulty,
    Fetch,
    Look,
    Operation,
    Outcome,
    Publish,
    Read,
    Release,
    ReleaseLease,
    Revoke,
    Shutdown,
    Wrap,
)


@dataclass(slots=True)
class Handed:
    """A published lease, as its producer remembers it."""

    token: int
    owed: list[int]
    """Ranks that no proxy has been delivered to."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One delivered copy of a proxy."""

    token: int
    lease: int
    rank: int


@dataclass(slots=True)
class Tokens:
    """Every token of an episode. It says what was handed out, never what the pool should have done with it."""

    consumers: int
    given: int = 0
    waiting: list[Handed] = field(default_factory=list)
    """Published, not dispatched."""
    dispatched: list[Handed] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    fresh: list[Copy] = field(default_factory=list)
    """Copies neither read nor released yet."""
    readers: list[int] = field(default_factory=list)
    """Reads that nobody has collected."""
    looks: list[int] = field(default_factory=list)
    """Looks that nobody has claimed by."""
    delivered: set[int] = field(default_factory=set)
    """Leases with at least one delivered copy."""
    cancelled: set[int] = field(default_factory=set)
    ended: bool = False

    def new(self) -> int:
        """A new name; a number is given once in an episode, whatever it names."""
        self.given += 1
        return self.given

    def keep_clear_of(self, operations: Iterable[Operation]) -> None:
        """Give no name that a recorded sequence gives: it brings names of its own, and its ending needs new ones."""
        for operation in operations:
            inner = operation.operation if isinstance(operation, Faulty) else operation
            for kind in ("lease", "proxy", "reader", "look"):
                self.given = max(self.given, getattr(inner, kind, 0))

    def note(self, operation: Operation, outcome: Outcome) -> None:
        """Write down what an operation was answered."""
        if isinstance(operation, Faulty):
            operation = operation.operation
        write = _WRITE.get(type(operation))
        if write is not None:
            write(self, operation, outcome)

    def _published(self, operation: Publish, outcome: Outcome) -> None:
        if outcome.kind == "done":
            self.waiting.append(Handed(operation.lease, list(range(self.consumers))))

    def _wrapped(self, operation: Wrap, outcome: Outcome) -> None:
        if outcome.kind == "done":
            self.dispatched.append(Handed(operation.lease, list(range(self.consumers))))

    def _dispatched(self, operation: Dispatch, outcome: Outcome) -> None:
        for index, lease in enumerate(self.waiting):
            if lease.token == operation.lease:
                del self.waiting[index]
                if outcome.kind == "done":
                    self.dispatched.append(lease)
                return

    def _delivered(self, operation: Deliver, outcome: Outcome) -> None:
        copy = Copy(operation.proxy, operation.lease, operation.rank)
        self.copies.append(copy)
        self.fresh.append(copy)
        self.delivered.add(operation.lease)
        for lease in self.dispatched:
            if lease.token == operation.lease and operation.rank in lease.owed:
                lease.owed.remove(operation.rank)

    def _used(self, operation: Fetch | Release, outcome: Outcome) -> None:
        for index, copy in enumerate(self.fresh):
            if copy.token == operation.proxy:
                del self.fresh[index]
                return

    def _read(self, operation: Read, outcome: Outcome) -> None:
        for index, copy in enumerate(self.fresh):
            if copy.token == operation.proxy:
                del self.fresh[index]
                break
        if outcome.kind == "done" and not outcome.cached:
            self.readers.append(operation.reader)

    def _collected(self, operation: Collect, outcome: Outcome) -> None:
        if operation.reader in self.readers:
            self.readers.remove(operation.reader)

    def _looked(self, operation: Look, outcome: Outcome) -> None:
        if outcome.kind == "done":
            self.looks.append(operation.look)

    def _claimed(self, operation: Claim, outcome: Outcome) -> None:
        if operation.look in self.looks:
            self.looks.remove(operation.look)

    def _cancelled(self, operation: Cancel | Revoke | ReleaseLease, outcome: Outcome) -> None:
        if outcome.kind == "done":
            self.cancelled.add(operation.lease)

    def _shut(self, operation: Shutdown, outcome: Outcome) -> None:
        self.ended = True


_WRITE: dict[type, Callable[[Tokens, Any, Outcome], None]] = {
    Publish: Tokens._published,
    Wrap: Tokens._wrapped,
    Dispatch: Tokens._dispatched,
    Deliver: Tokens._delivered,
    Fetch: Tokens._used,
    Release: Tokens._used,
    Read: Tokens._read,
    Collect: Tokens._collected,
    Look: Tokens._looked,
    Claim: Tokens._claimed,
    Cancel: Tokens._cancelled,
    Revoke: Tokens._cancelled,
    ReleaseLease: Tokens._cancelled,
    Shutdown: Tokens._shut,
}
