"""The registry of rules: which exist, when each is judged, and by what predicate.

A predicate looks at one step of a pool under test: what it showed before and after, what it answered, and the model's
state before (the past: who was given which proxy, what is queued). It never asks `step` what should have happened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

from vmmref_models.observation import Observation, Shape
from vmmref_models.operations import LeaseView, Operation, Outcome
from vmmref_models.state import Policies, State
from vmmref_models.titles import RULE_TITLES, level_of


class Kind(StrEnum):
    """When a rule is judged."""

    ALWAYS = "always"
    """Of every state that a step shows, when the bookkeeping in it is new."""
    STEP = "step"
    """Of every step of the named operations."""
    REACHABLE = "reachable"
    """Some run must reach it, else the runs prove little."""
    WHOLE_RUN = "whole-run"
    """Once, after a pool has ended."""


WORDS: Final = 1
"""Sign of a step: a control word changed."""
BOOKS: Final = 2
"""Sign of a step: ranges, leases, slots, generations, imports or life changed."""
GRANT: Final = 4
"""Sign of a step: a lease was granted."""
TROUBLE: Final = 8
"""Sign of a step: the answer was not "done", or the pool had failed or been closed before."""
EVERY_SIGN: Final = WORDS | BOOKS | GRANT | TROUBLE


def glance(step: Step) -> int:
    """The signs of a step, by which a monitor passes over the rules that cannot apply."""
    before, after, outcome, past = step.before, step.after, step.outcome, step.past
    found = GRANT if outcome.lease is not None else 0
    if outcome.kind != "done" or past.failed or past.closed:
        found |= TROUBLE
    if before is after:
        return found
    if before.words is not after.words and before.words != after.words:
        found |= WORDS
    return found if same_books(before, after) else found | BOOKS


def same_books(one: Observation, other: Observation) -> bool:
    """Whether two looks show the same ranges, leases, slots, generations, imports and life; words do not matter."""
    return one is other or (
        one.leases == other.leases
        and one.free_ranges == other.free_ranges
        and one.retiring == other.retiring
        and one.free_slots == other.free_slots
        and one.generations == other.generations
        and one.retired_slots == other.retired_slots
        and one.set_aside == other.set_aside
        and one.imports == other.imports
        and one.generations_left == other.generations_left
        and one.life == other.life
    )


@dataclass(frozen=True, slots=True)
class Held:
    """The rule applied here and was kept."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The rule applied here and was broken; both texts contain the values."""

    expected: str
    got: str


HELD: Final = Held()
Verdict: TypeAlias = Held | Broken


Words: TypeAlias = tuple[tuple[int, ...], ...]
Change: TypeAlias = tuple[int, int, int, int]
"""A control word that changed: (slot, column, old value, new value); column 0 is R, column 1 + r is A[r]."""


def _changed(before: Words | None, after: Words | None) -> tuple[Change, ...]:
    if before is after or before is None or after is None or before == after:
        return ()
    return tuple(
        (slot, column, old, new)
        for slot, (old_row, new_row) in enumerate(zip(before, after, strict=False))
        if old_row != new_row
        for column, (old, new) in enumerate(zip(old_row, new_row, strict=False))
        if old != new
    )


def _left(before: tuple[LeaseView, ...] | None, after: tuple[LeaseView, ...] | None) -> tuple[LeaseView, ...]:
    if before is after or before is None or after is None or before == after:
        return ()
    return tuple([lease for lease in before if lease not in after])


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a pool under test, as it was seen from outside, and the past that it continues."""

    before: Observation
    after: Observation
    operation: Operation
    outcome: Outcome
    past: State
    """The model's state before the operation."""

    changed_words: tuple[Change, ...] = field(init=False)
    """The control words that differ after the step; () when the words cannot be seen."""
    left: tuple[LeaseView, ...] = field(init=False)
    """The leases that held a range and a slot before the step and do not after it."""

    def __post_init__(self) -> None:
        # Worked out once: several rules ask for them at every step.
        object.__setattr__(self, "changed_words", _changed(self.before.words, self.after.words))
        object.__setattr__(self, "left", _left(self.before.leases, self.after.leases))

    @property
    def shape(self) -> Shape:
        """The pool's shape."""
        return self.past.shape

    @property
    def policies(self) -> Policies:
        """The pool's declared freedoms."""
        return self.past.policies


@dataclass(frozen=True, slots=True)
class Run:
    """One pool's whole life, for the rules that are judged once."""

    last: Observation
    """The last look before the pool was closed."""
    state: State
    """The model's state at that look."""
    driven_home: bool
    """Every queued piece has run, every rank has acknowledged or released every dispatched lease, every other lease was
    cancelled, and a recycle pass came after."""
    stuck: tuple[str, ...] = ()
    """What did not come to an end though nothing else could proceed, a sentence each."""
    leftovers: Mapping[str, int] | None = None
    """What the closed pool still holds, by kind; None: it cannot be counted."""


StepPredicate: TypeAlias = Callable[[Step], Verdict | None]
"""None: the rule did not apply to this step."""
RunPredicate: TypeAlias = Callable[[Run], Verdict | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: `predicate` judges steps, `run_predicate` whole runs; with neither, no run can judge it yet."""

    id: str
    title: str
    level: str
    kind: Kind
    sentence: str
    needs: tuple[str, ...] = ()
    """Capabilities without which it cannot be judged."""
    on: tuple[type[Operation], ...] = ()
    """The operations that can exercise it; () = all."""
    requires: tuple[type[Operation], ...] = ()
    """The operations without which nothing exercises it."""
    protocols: tuple[str, ...] = ()
    """The protocols that it speaks about; () = all."""
    signs: int = 0
    """It applies only to steps with one of these; none = to all."""
    predicate: StepPredicate | None = None
    run_predicate: RunPredicate | None = None


RULES: dict[str, Rule] = {
    identifier: Rule(identifier, title, level_of(identifier), Kind.STEP, title + ".")
    for identifier, title in RULE_TITLES.items()
}
"""Every rule by identifier, in the order of the specification."""

REACHABLE: dict[str, Rule] = {}
"""What some run must reach, by "RULE/name"."""


def rule(
    identifier: str,
    *,
    kind: Kind = Kind.STEP,
    on: tuple[type[Operation], ...] = (),
    needs: tuple[str, ...] = (),
    requires: tuple[type[Operation], ...] = (),
    protocols: tuple[str, ...] = (),
    signs: int = 0,
) -> Callable[[StepPredicate], StepPredicate]:
    """Register a predicate on steps; its docstring is the rule's sentence."""

    def register(predicate: StepPredicate) -> StepPredicate:
        title, level = RULE_TITLES[identifier], level_of(identifier)
        sentence = _sentence(predicate.__doc__)
        _add(RULES, Rule(identifier, title, level, kind, sentence, needs, on, requires, protocols, signs, predicate))
        return predicate

    return register


def run_rule(identifier: str, *, needs: tuple[str, ...] = ()) -> Callable[[RunPredicate], RunPredicate]:
    """Register a predicate on whole runs; its docstring is the rule's sentence."""

    def register(predicate: RunPredicate) -> RunPredicate:
        title, level = RULE_TITLES[identifier], level_of(identifier)
        sentence = _sentence(predicate.__doc__)
        _add(RULES, Rule(identifier, title, level, Kind.WHOLE_RUN, sentence, needs, run_predicate=predicate))
        return predicate

    return register


def reachable(
    identifier: str, name: str, *, on: tuple[type[Operation], ...] = (), needs: tuple[str, ...] = ()
) -> Callable[[StepPredicate], StepPredicate]:
    """Register what some run must reach for the rule to have been tried in earnest."""

    def register(predicate: StepPredicate) -> StepPredicate:
        key, level = f"{identifier}/{name}", level_of(identifier)
        REACHABLE[key] = Rule(
            key, name, level, Kind.REACHABLE, _sentence(predicate.__doc__), needs, on, predicate=predicate
        )
        return predicate

    return register


def _add(rules: dict[str, Rule], new: Rule) -> None:
    if rules[new.id].predicate is not None or rules[new.id].run_predicate is not None:
        raise ValueError(f"{new.id} has a predicate already")
    rules[new.id] = new


def _sentence(docstring: str | None) -> str:
    """A docstring as one paragraph."""
    return " ".join((docstring or "").split())
