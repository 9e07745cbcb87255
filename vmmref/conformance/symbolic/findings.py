"""What symbolic execution can say, and what it should have said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

CONFIRMED, REFUTED, UNKNOWN = "confirmed", "refuted", "unknown"


class Answer(NamedTuple):
    """What symbolic execution found out.

    `counterexample` is empty unless refuted; `paths` is how many were run, `seconds` how long that took.
    """

    state: str
    counterexample: str
    paths: int
    seconds: float


class Finding(NamedTuple):
    """What was executed, what came of it, and what should."""

    kind: str
    """"contract", "pair" or "wrong"."""
    name: str
    rules: tuple[str, ...]
    answer: Answer

    @property
    def due(self) -> str:
        """The state that it should have."""
        return REFUTED if self.kind == "wrong" else CONFIRMED

    @property
    def is_due(self) -> bool:
        """Whether it has that state."""
        return self.answer.state == self.due


def status_of(findings: Sequence[Finding]) -> int:
    """The exit status; what was not decided is never taken for confirmed, nor for refuted."""
    if any(not finding.is_due and finding.answer.state != UNKNOWN for finding in findings):
        return 1
    return 0 if all(finding.is_due for finding in findings) else 2
