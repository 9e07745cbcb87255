"""What the clients of a pool remember: the tokens of an episode and what may still be done with each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from vmmref_models.operations import (
    Borrow,
    Cancel,
    CancelProxy,
    Claim,
    Collect,
    Confirm,
    Crash,
    Deliver,
    Dispatch,
    DropImport,
    Faulty,
    Fetch,
    Groups,
    Look,
    Operation,
    Outcome,
    Publish,
    Read,
    Release,
    ReleaseLease,
    Return,
    Revoke,
    Shutdown,
    Wrap,
    WrapPack,
)
from vmmref_models.reasons import Reason

KINDS: tuple[str, ...] = ("lease", "proxy", "reader", "view", "look")
"""Whatever a token may name, as the fields of operations call it."""


@dataclass(slots=True)
class Handed:
    """A published lease, as its producer remembers it."""

    token: int
    owed: list[int]
    """Ranks that have to acknowledge it and that no proxy has been delivered to."""
    parts: int = 1
    """How many tensors it carries: more than one only in a pack."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One delivered copy of a proxy."""

    token: int
    lease: int
    rank: int


@dataclass(frozen=True, slots=True)
class Begun:
    """A read that nobody has collected, or a view that nobody has given back."""

    token: int
    rank: int


@dataclass(slots=True)
class Tokens:
    """Every token of an episode. It says what was handed out, never what the pool should have done with it."""

    consumers: int
    apart: bool = False
    """Whether each rank has a process of its own."""
    given: int = 0
    waiting: list[Handed] = field(default_factory=list)
    """Published, not dispatched."""
    dispatched: list[Handed] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    fresh: list[Copy] = field(default_factory=list)
    """Copies neither read nor released yet."""
    readers: list[Begun] = field(default_factory=list)
    views: list[Begun] = field(default_factory=list)
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
            for kind in KINDS:
                self.given = max(self.given, getattr(inner, kind, 0))

    def note(self, operation: Operation, outcome: Outcome) -> None:
        """Write down what an operation was answered."""
        if isinstance(operation, Faulty):
            operation = operation.operation
        write = _WRITE.get(type(operation))
        if write is not None:
            write(self, operation, outcome)

    def _speakers(self, groups: Groups) -> list[int]:
        return [group[0] for group in groups] if groups else list(range(self.consumers))

    def _published(self, operation: Publish, outcome: Outcome) -> None:
        if outcome.kind == "done":
            self.waiting.append(Handed(operation.lease, self._speakers(operation.groups)))

    def _wrapped(self, operation: Wrap, outcome: Outcome) -> None:
        if outcome.kind == "done":
            self.dispatched.append(Handed(operation.lease, self._speakers(operation.groups)))

    def _wrapped_pack(self, operation: WrapPack, outcome: Outcome) -> None:
        if outcome.kind == "done":
            speakers = self._speakers(operation.groups)
            self.dispatched.append(Handed(operation.lease, speakers, len(operation.payloads)))

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

    def _used(self, operation: Fetch | Release | Confirm, outcome: Outcome) -> None:
        self._no_more_fresh(operation.proxy)

    def _no_more_fresh(self, proxy: int) -> None:
        for index, copy in enumerate(self.fresh):
            if copy.token == proxy:
                del self.fresh[index]
                return

    def _rank_of(self, proxy: int) -> int:
        return next((copy.rank for copy in reversed(self.copies) if copy.token == proxy), 0)

    def _read(self, operation: Read, outcome: Outcome) -> None:
        self._no_more_fresh(operation.proxy)
        if outcome.kind == "done" and not outcome.cached:
            self.readers.append(Begun(operation.reader, self._rank_of(operation.proxy)))

    def _collected(self, operation: Collect, outcome: Outcome) -> None:
        self.readers = [reader for reader in self.readers if reader.token != operation.reader]

    def _borrowed(self, operation: Borrow, outcome: Outcome) -> None:
        if outcome.reason is not Reason.NOT_BORROWABLE:
            self._no_more_fresh(operation.proxy)
        if outcome.kind == "done":
            self.views.append(Begun(operation.view, self._rank_of(operation.proxy)))

    def _returned(self, operation: Return, outcome: Outcome) -> None:
        self.views = [view for view in self.views if view.token != operation.view]

    def _crashed(self, operation: Crash, outcome: Outcome) -> None:
        rank = operation.rank
        self.copies = [copy for copy in self.copies if copy.rank != rank]
        self.fresh = [copy for copy in self.fresh if copy.rank != rank]
        self.readers = [reader for reader in self.readers if reader.rank != rank]
        self.views = [view for view in self.views if view.rank != rank]

    def _import_dropped(self, operation: DropImport, outcome: Outcome) -> None:
        if outcome.kind == "done":
            # The readings of its process were given up with it.
            self.readers = [reader for reader in self.readers if self.apart and reader.rank != operation.rank]

    def _looked(self, operation: Look, outcome: Outcome) -> None:
        if outcome.kind == "done":
            self.looks.append(operation.look)

    def _claimed(self, operation: Claim, outcome: Outcome) -> None:
        if operation.look in self.looks:
            self.looks.remove(operation.look)

    def _cancelled(self, operation: Cancel | Revoke | CancelProxy | ReleaseLease, outcome: Outcome) -> None:
        if outcome.kind == "done":
            self.cancelled.add(operation.lease)

    def _shut(self, operation: Shutdown, outcome: Outcome) -> None:
        self.ended = True


_WRITE: dict[type, Callable[[Tokens, Any, Outcome], None]] = {
    Publish: Tokens._published,
    Wrap: Tokens._wrapped,
    WrapPack: Tokens._wrapped_pack,
    Dispatch: Tokens._dispatched,
    Deliver: Tokens._delivered,
    Fetch: Tokens._used,
    Release: Tokens._used,
    Confirm: Tokens._used,
    Borrow: Tokens._borrowed,
    Return: Tokens._returned,
    Crash: Tokens._crashed,
    DropImport: Tokens._import_dropped,
    Read: Tokens._read,
    Collect: Tokens._collected,
    Look: Tokens._looked,
    Claim: Tokens._claimed,
    Cancel: Tokens._cancelled,
    Revoke: Tokens._cancelled,
    CancelProxy: Tokens._cancelled,
    ReleaseLease: Tokens._cancelled,
    Shutdown: Tokens._shut,
}
