"""Whether a subject answers in the form that the interface asks for. A subject that does not cannot be judged."""

from __future__ import annotations

from typing import Any

from vmmref.conformance.subject import Leftovers
from vmmref_models import LeaseView, Observation, Outcome

KINDS = frozenset({"done", "full", "refused", "failed", "crashed"})
LIVES = frozenset({"open", "closed", "failed"})
NUMBERS = ("retiring", "free_slots", "retired_slots", "generations", "set_aside", "imports")
"""Parts of an observation that are tuples of numbers."""


def what(value: object) -> str:
    """A value as part of a sentence: None, or its type."""
    return "None" if value is None else f"an object of type {type(value).__name__}"


def session_problem(session: Any) -> str | None:
    """What is wrong with what `open()` answered."""
    missing = [method for method in ("apply", "observe", "close") if not callable(getattr(session, method, None))]
    return f"{what(session)}, which has no method {missing[0]}()" if missing else None


def outcome_problem(outcome: Any) -> str | None:
    """What is wrong with what `apply()` answered."""
    if not isinstance(outcome, Outcome):
        return f"{what(outcome)}, not an Outcome"
    if outcome.kind not in KINDS:
        return f'an Outcome of kind "{outcome.kind}"; kinds are {", ".join(sorted(KINDS))}'
    if outcome.lease is not None and not isinstance(outcome.lease, LeaseView):
        return f"an Outcome whose lease is {what(outcome.lease)}, not a LeaseView"
    return None


def observation_problem(seen: Any) -> str | None:
    """What is wrong with what `observe()` answered."""
    if not isinstance(seen, Observation):
        return f"{what(seen)}, not an Observation"
    if seen.life not in LIVES:
        return f'an Observation whose life is "{seen.life}"; lives are {", ".join(sorted(LIVES))}'
    for name in ("leases", "free_ranges", "words", *NUMBERS):
        value = getattr(seen, name)
        if value is not None and type(value) is not tuple:
            return f"an Observation whose {name} is {what(value)}, not a tuple"
    for lease in seen.leases or ():
        if not isinstance(lease, LeaseView):
            return f"an Observation whose leases have {what(lease)} among them, not only LeaseViews"
    for name in ("free_ranges", "words"):
        for entry in getattr(seen, name) or ():
            if type(entry) is not tuple or any(type(number) is not int for number in entry):
                return f"an Observation whose {name} have {entry!r} among them, not only tuples of int"
    for name in NUMBERS:
        for number in getattr(seen, name) or ():
            if type(number) is not int:
                return f"an Observation whose {name} have {number!r} among them, not only int"
    return None


def leftovers_problem(left: Any) -> str | None:
    """What is wrong with what `close()` answered."""
    return None if left is None or isinstance(left, Leftovers) else f"{what(left)}, neither Leftovers nor None"
