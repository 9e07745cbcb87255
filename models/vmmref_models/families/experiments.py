"""How an experiment beside the pool is judged (`vmmref_models.attempts`), whatever rule it is about."""

from __future__ import annotations

from vmmref_models.attempts import ATTEMPTS
from vmmref_models.families.history import answer, first_change, inner
from vmmref_models.operations import Attempt
from vmmref_models.reasons import Reason
from vmmref_models.rules import HELD, Broken, Step, Verdict


def tried(step: Step, rule: str) -> Verdict | None:
    """Held when an experiment about `rule` was answered as it must be, left nothing behind and changed no lease."""
    operation, outcome = inner(step), step.outcome
    if not isinstance(operation, Attempt) or ATTEMPTS[operation.what].rule != rule:
        return None
    _, due, sentence = ATTEMPTS[operation.what]
    if operation is not step.operation and outcome.kind == "failed":
        if outcome.reason is not Reason.DRIVER_CALL_FAILED:
            return Broken(f"failed {Reason.DRIVER_CALL_FAILED}: {sentence}", _told(step))
    elif (outcome.kind, outcome.reason) != (due.kind, due.reason):
        return Broken(f"{answer(due)}: {sentence}", _told(step))
    if outcome.leftovers:
        return Broken(f"everything as it must be afterwards: {sentence}", f"{outcome.leftovers} that are not")
    change = first_change(step)
    return HELD if change is None else Broken("the pool beside it as before", change)


def _told(step: Step) -> str:
    return f"{answer(step.outcome)} {step.outcome.message}".strip()
