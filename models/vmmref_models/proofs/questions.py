"""The verification conditions of a system, each as one question to the solver: a state and things that break it.

A property is inductive: it holds at the start, and each action keeps it, given every invariant before the action.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from vmmref_models.proofs.system import Action, Property, Step, System
from vmmref_models.proofs.terms import TRUE, Not, Term, Truth

S = TypeVar("S")

START = "start"
"""The name of the action in conditions about the start."""

Sizes: TypeAlias = tuple[int, ...]
"""How many things of each sort there are."""


@dataclass(frozen=True)
class Condition(Generic[S]):
    """One property, at the start (`action` None) or kept by one action."""

    family: str
    wanted: Property[S]
    action: Action[S] | None

    @property
    def rule(self) -> str:
        """The rule that names it."""
        return self.wanted.rules[0]

    @property
    def rules(self) -> tuple[str, ...]:
        """Every rule that needs it."""
        return self.wanted.rules

    @property
    def action_name(self) -> str:
        """The action's name, or that of the start."""
        return START if self.action is None else self.action.name


@dataclass(frozen=True)
class Question(Generic[S]):
    """Is there a state, and are there things for the action, that fulfil every demand? "No" proves the condition."""

    arguments: tuple[Term, ...]
    """The unknown things that the action is taken on."""
    step: Step[S]
    demands: tuple[Truth, ...]
    """What holds before, the guard, and that the property does not hold after."""
    is_trivial: bool
    """The action changes nothing that the invariant speaks of: before and after are one formula."""


class Setting(Generic[S]):
    """A system in one world: an unknown state, the start, and every invariant of that state."""

    def __init__(self, system: System[S], sizes: Sizes | None) -> None:
        self.world = system.world(sizes)
        self.before = self.world.state(system.state)
        facts = [fact(self.world, self.before) for fact in system.facts]
        self.start: list[Truth] = facts + [start(self.world, self.before) for start in system.starts]
        self._formulas = {
            proposed.name: proposed.formula(self.world, self.before)
            for proposed in system.properties
            if not proposed.step
        }
        self.assumed: list[Truth] = facts + list(self._formulas.values())

    def formula(self, proposed: Property[S]) -> Truth:
        """An invariant of the state before; true for a law."""
        return self._formulas.get(proposed.name, TRUE)

    def arguments(self, action: Action[S]) -> tuple[Term, ...]:
        """Unknown things for an action to be taken on."""
        return tuple(self.world.constant(f"{sort.lower()}!{index}", sort) for index, sort in enumerate(action.on))

    def question(self, condition: Condition[S]) -> Question[S]:
        """What the solver is asked about a condition in this world."""
        if condition.action is None:
            goal = self.formula(condition.wanted)
            return Question((), Step(TRUE, self.before), (*self.start, Not(goal)), is_trivial=False)
        arguments = self.arguments(condition.action)
        step = condition.action.take(self.world, self.before, *arguments)
        states = (self.before, step.after) if condition.wanted.step else (step.after,)
        goal = condition.wanted.formula(self.world, *states)
        demands = (*self.assumed, step.guard, Not(goal))
        return Question(arguments, step, demands, is_trivial=bool(goal.eq(self.formula(condition.wanted))))
