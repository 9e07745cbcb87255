"""A broken rule, with all that is needed to show it and to break it again."""

from __future__ import annotations

from dataclasses import dataclass

from vmmref_models.observation import Observation, Shape
from vmmref_models.operations import Operation, Outcome


@dataclass(frozen=True, slots=True)
class Failure:
    """A broken rule and the operations that led to it."""

    rule: str
    shape: Shape
    operations: tuple[Operation, ...]
    """Everything that was done, the breaking operation last; for a whole-run rule up to the end of the pool."""
    expected: str
    got: str
    before: Observation | None = None
    """The pool before the last operation; None for a rule that is judged when the pool has ended."""
    outcome: Outcome | None = None
    """What the last operation answered; None where it did not come back, or where the pool has ended."""
    at_end: bool = False
    """The rule was broken by the end of the pool, after the last operation."""

    @property
    def number(self) -> int:
        """Number of the operation that broke the rule, from 1."""
        return len(self.operations)
