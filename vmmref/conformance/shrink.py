"""The shortest sequence that breaks a rule: operations are dropped and simplified while the same rule stays broken.

Deterministic: the same failure on the same pool gives the same result. Every candidate is replayed on a fresh pool;
operations that are not enabled any more are skipped, so a candidate is any subsequence. Bounded by `Budget`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from vmmref.conformance import payloads
from vmmref.conformance.failure import Failure
from vmmref_models.observation import ALIGNMENT, Shape
from vmmref_models.operations import (
    Advance,
    Cancel,
    Claim,
    Collect,
    Deliver,
    Dispatch,
    Faulty,
    Fetch,
    Look,
    Operation,
    Payload,
    Publish,
    Read,
    Reclaim,
    Recycle,
    Release,
    Revoke,
    Wrap,
)

Replay = Callable[[Shape, Sequence[Operation]], Failure | None]
"""Do operations on a fresh pool; the failure of the rule in question, or None where it is not broken."""

CONSUMING = (Deliver, Read, Fetch, Collect, Release, Advance)
PAIRS_UP_TO = 14
"""Sequences up to this length are also tried with every two operations left out."""


@dataclass(slots=True)
class Budget:
    """How much a shrinker may spend."""

    replays: int = 600
    seconds: float = 8.0
    clock: Callable[[], float] = time.monotonic
    used: int = 0
    _started: float = field(default=-1.0)

    def spend(self) -> bool:
        """Count one replay; False when there is nothing left."""
        if self._started < 0:
            self._started = self.clock()
        if self.used >= self.replays or self.clock() - self._started > self.seconds:
            return False
        self.used += 1
        return True


def shrink(failure: Failure, replay: Replay, budget: Budget | None = None) -> Failure:
    """The shortest and simplest failure of the same rule that was found within the budget."""
    return _Shrinker(failure, replay, budget or Budget()).run()


def cost(shape: Shape, operations: Sequence[Operation]) -> tuple[int, ...]:
    """What "simpler" means: fewer operations first, then a smaller pool, then plainer operations."""
    issued = 1 if any(shape.issued) else 0
    return (
        len(operations),
        shape.slots,
        shape.consumers,
        issued,
        shape.data_size,
        shape.word_bytes,
        sum(_plainness(operation) for operation in operations),
    )


def _plainness(operation: Operation) -> int:
    if isinstance(operation, Faulty):
        return 2000 + operation.call + _plainness(operation.operation)
    if isinstance(operation, Publish | Wrap):
        plain = operation.payload.dtype == "uint8" and len(operation.payload.shape) == 1
        return operation.nbytes + (0 if plain else 1000) + (0 if operation.payload.layout == "contiguous" else 1000)
    if isinstance(operation, Deliver):
        return operation.rank
    if isinstance(operation, Cancel | Revoke | Reclaim):
        return 0 if operation.wait else 1
    return 0


class _Shrinker:
    def __init__(self, failure: Failure, replay: Replay, budget: Budget) -> None:
        self.best = failure
        self.replay = replay
        self.budget = budget
        self.tried: set[tuple[Shape, tuple[Operation, ...]]] = set()

    def run(self) -> Failure:
        passes = (
            self._drop_chunks,
            self._drop_leases,
            self._merge,
            self._shortcut,
            self._smaller_pool,
            self._plainer,
            self._drop_pairs,
        )
        improved = True
        while improved:
            improved = False
            for attempt in passes:
                improved |= attempt()
        self._renumber()
        return self.best

    def _try(self, shape: Shape, operations: Sequence[Operation]) -> bool:
        """Replay a candidate; keep it where it is simpler than the best so far and breaks the same rule."""
        candidate = tuple(operations)
        simpler = cost(shape, candidate) < cost(self.best.shape, self.best.operations)
        if (shape, candidate) in self.tried or not (simpler or shape.issued):
            return False
        self.tried.add((shape, candidate))
        if not self.budget.spend():
            return False
        found = self.replay(shape, candidate)
        if found is None or cost(found.shape, found.operations) >= cost(self.best.shape, self.best.operations):
            return False
        self.best = found
        return True

    def _drop_leases(self) -> bool:
        """Leave out everything that has to do with one lease."""
        improved = False
        for token in sorted({token for token in _lease_tokens(self.best.operations).values()}, reverse=True):
            owners = _lease_tokens(self.best.operations)
            kept = [operation for index, operation in enumerate(self.best.operations) if owners.get(index) != token]
            improved |= self._try(self.best.shape, kept)
        return improved

    def _drop_chunks(self) -> bool:
        """Leave out ever smaller chunks, the latest first."""
        improved = False
        size = max(1, len(self.best.operations) // 2)
        while True:
            end = len(self.best.operations)
            while end > 0:
                operations = self.best.operations
                if self._try(self.best.shape, operations[: max(0, end - size)] + operations[end:]):
                    improved = True
                    end = min(end, len(self.best.operations))
                else:
                    end -= size
            if size == 1:
                return improved
            size //= 2

    def _drop_pairs(self) -> bool:
        """Leave out any two operations: some only make sense together."""
        count = len(self.best.operations)
        if count > PAIRS_UP_TO:
            return False
        for later in range(count - 1, 0, -1):
            for earlier in range(later - 1, -1, -1):
                operations = self.best.operations
                kept = operations[:earlier] + operations[earlier + 1 : later] + operations[later + 1 :]
                if self._try(self.best.shape, kept):
                    return True
        return False

    def _merge(self) -> bool:
        """Say in one operation what two or three parts say."""
        return any(self._try(self.best.shape, candidate) for candidate in _merged(self.best.operations))

    def _shortcut(self) -> bool:
        """Let the producer cancel a lease instead of consumers reading it and a pass taking it back."""
        return any(self._try(self.best.shape, candidate) for candidate in _cancelling(self.best.operations))

    def _smaller_pool(self) -> bool:
        """Fewer slots, ranks and bytes, also with a lease or readers less; generations preset to their end, or none.

        Slots are reused in turn: what needs the reuse of one needs leases that only fill the others.
        """
        candidates = tuple(_with_less(self.best.operations))
        return any(self._try(shape, candidate) for shape in _smaller(self.best.shape) for candidate in candidates)

    def _plainer(self) -> bool:
        improved = False
        for index in range(len(self.best.operations) - 1, -1, -1):
            if index >= len(self.best.operations):
                continue
            for plainer in _plainer(self.best.operations[index]):
                operations = self.best.operations
                if self._try(self.best.shape, (*operations[:index], plainer, *operations[index + 1 :])):
                    improved = True
                    break
        return improved

    def _renumber(self) -> None:
        """Name tokens 1, 2, ... in the order of their first use, a kind each; keep it if the rule stays broken."""
        renamed = renumbered(self.best.operations)
        if renamed != self.best.operations:
            found = self.replay(self.best.shape, renamed)
            if found is not None and len(found.operations) <= len(self.best.operations):
                self.best = found


def _lease_tokens(operations: Sequence[Operation]) -> dict[int, int]:
    """Index of an operation -> the lease it has to do with, through proxies and readers too."""
    lease_of: dict[tuple[str, int], int] = {}
    owners: dict[int, int] = {}
    for index, operation in enumerate(operations):
        inner: Any = operation.operation if isinstance(operation, Faulty) else operation
        lease = getattr(inner, "lease", None)
        for kind in ("proxy", "reader"):
            token = getattr(inner, kind, None)
            if token is not None and lease is None:
                lease = lease_of.get((kind, token))
        if lease is None:
            continue
        owners[index] = lease
        for kind in ("proxy", "reader"):
            if getattr(inner, kind, None) is not None:
                lease_of[kind, getattr(inner, kind)] = lease
    return owners


def _merged(operations: tuple[Operation, ...]) -> Iterator[tuple[Operation, ...]]:
    for index, operation in enumerate(operations):
        rest = operations[index + 1 :]
        if isinstance(operation, Publish):
            wrap = Wrap(operation.lease, operation.payload, operation.nbytes, operation.digest)
            yield (*operations[:index], wrap, *(o for o in rest if o != Dispatch(operation.lease)))
        if isinstance(operation, Read):
            fetch = Fetch(operation.proxy, operation.reader)
            yield (*operations[:index], fetch, *(o for o in rest if o != Collect(operation.reader)))
        if isinstance(operation, Claim | Reclaim):
            looks = [o for o in operations[:index] if not isinstance(o, Look)]
            yield (*looks, Recycle(), *(o for o in rest if not isinstance(o, Look | Claim | Reclaim)))


def _cancelling(operations: tuple[Operation, ...]) -> Iterator[tuple[Operation, ...]]:
    owners = _lease_tokens(operations)
    for index, operation in enumerate(operations):
        if not isinstance(operation, Recycle | Claim | Reclaim):
            continue
        for token in dict.fromkeys(owners.values()):
            for wait in (True, False):
                before = (o for i, o in enumerate(operations[:index]) if owners.get(i) != token or _publishes(o))
                yield (*before, Cancel(token, wait), *operations[index + 1 :])


def _publishes(operation: Operation) -> bool:
    return isinstance(operation, Publish | Wrap | Dispatch)


def _with_less(operations: tuple[Operation, ...]) -> Iterator[tuple[Operation, ...]]:
    yield operations
    yield tuple(o for o in operations if not (isinstance(o, Deliver) and o.rank))
    yield tuple(replace(o, rank=0) if isinstance(o, Deliver) else o for o in operations)
    yield tuple(o for o in operations if not isinstance(o, CONSUMING))
    owners = _lease_tokens(operations)
    for token in dict.fromkeys(owners.values()):
        yield tuple(o for index, o in enumerate(operations) if owners.get(index) != token)


def _smaller(shape: Shape) -> Iterator[Shape]:
    if any(shape.issued):
        yield replace(shape, issued=())
        yield replace(shape, issued=(shape.generation_limit,) * shape.slots)
    for slots in range(1, shape.slots):
        yield replace(shape, slots=slots, issued=shape.issued[:slots])
    for consumers in range(1, shape.consumers):
        yield replace(shape, consumers=consumers)
    for units in range(1, shape.data_size // ALIGNMENT):
        yield replace(shape, data_size=units * ALIGNMENT)
    if shape.word_bytes > 4:
        yield replace(shape, word_bytes=4)


def _plainer(operation: Operation) -> Iterator[Operation]:
    if isinstance(operation, Faulty):
        yield operation.operation
        for call in range(1, operation.call):
            yield replace(operation, call=call)
        for inner in _plainer(operation.operation):
            yield replace(operation, operation=inner)  # type: ignore[arg-type]
    elif isinstance(operation, Publish | Wrap):
        yield from _plainer_payload(operation)
    elif isinstance(operation, Deliver):
        for rank in range(operation.rank):
            yield replace(operation, rank=rank)
    elif isinstance(operation, Cancel | Revoke | Reclaim) and not operation.wait:
        yield replace(operation, wait=True)


def _plainer_payload(operation: Publish | Wrap) -> Iterator[Operation]:
    whole = operation.nbytes // ALIGNMENT
    lengths = sorted({1, *(unit * ALIGNMENT for unit in range(1, whole + 1)), operation.nbytes})
    simple = [Payload("uint8", (length,), operation.payload.seed) for length in lengths]
    simple += [replace(operation.payload, layout="contiguous"), replace(operation.payload, shape=())]
    for payload in simple:
        yield type(operation)(operation.lease, payload, payloads.nbytes(payload), payloads.expected_digest(payload))


def renumbered(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """The same operations with tokens 1, 2, ... in the order of their first use, counted for each kind.

    Payloads get their lease's number as seed, so that equal findings look equal.
    """
    names: dict[tuple[str, int], int] = {}
    given: dict[str, int] = {}

    def renamed(operation: Any) -> Any:
        if isinstance(operation, Faulty):
            return replace(operation, operation=renamed(operation.operation))
        changes: dict[str, Any] = {}
        for kind in ("lease", "proxy", "reader", "look"):
            if not any(entry.name == kind for entry in fields(operation)):
                continue
            token = getattr(operation, kind)
            if (kind, token) not in names:
                given[kind] = given.get(kind, 0) + 1
                names[kind, token] = given[kind]
            changes[kind] = names[kind, token]
        if isinstance(operation, Publish | Wrap):
            payload = replace(operation.payload, seed=changes["lease"])
            changes |= {"payload": payload, "digest": payloads.expected_digest(payload)}
        return replace(operation, **changes) if changes else operation

    return tuple(renamed(operation) for operation in operations)
