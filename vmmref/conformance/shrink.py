"""The shortest sequence that breaks a rule: operations are dropped and simplified while the same rule stays broken.

Deterministic: the same failure on the same pool gives the same result. Every candidate is replayed on a fresh pool;
operations that are not enabled any more are skipped, so a candidate is any subsequence. Bounded by `Budget`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vmmref.conformance.failure import Failure
from vmmref.conformance.simpler import (
    cancelling,
    fitted,
    lease_tokens,
    merged,
    plainer,
    plainness,
    renumbered,
    smaller,
    with_less,
)
from vmmref_models.observation import Shape
from vmmref_models.operations import Operation

Replay = Callable[[Shape, Sequence[Operation]], Failure | None]
"""Do operations on a fresh pool; the failure of the rule in question, or None where it is not broken."""

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
        shape.apart,
        shape.slots,
        shape.consumers,
        issued,
        shape.data_size,
        shape.word_bytes,
        sum(plainness(operation) for operation in operations),
    )


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
        for token in sorted({token for token in lease_tokens(self.best.operations).values()}, reverse=True):
            owners = lease_tokens(self.best.operations)
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
        return any(self._try(self.best.shape, candidate) for candidate in merged(self.best.operations))

    def _shortcut(self) -> bool:
        """Let the producer cancel a lease instead of consumers reading it and a pass taking it back."""
        return any(self._try(self.best.shape, candidate) for candidate in cancelling(self.best.operations))

    def _smaller_pool(self) -> bool:
        """Fewer slots, ranks and bytes, also with a lease or readers less; generations preset to their end, or none.

        Slots are reused in turn: what needs the reuse of one needs leases that only fill the others.
        """
        candidates = tuple(with_less(self.best.operations))
        return any(
            self._try(shape, [fitted(operation, shape.consumers) for operation in candidate])
            for shape in smaller(self.best.shape)
            for candidate in candidates
        )

    def _plainer(self) -> bool:
        improved = False
        for index in range(len(self.best.operations) - 1, -1, -1):
            if index >= len(self.best.operations):
                continue
            for simpler in plainer(self.best.operations[index]):
                operations = self.best.operations
                if self._try(self.best.shape, (*operations[:index], simpler, *operations[index + 1 :])):
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
