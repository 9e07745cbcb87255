"""A system to be proved: its state, its start, its actions, and what must always hold.

An invariant holds in every state, a law of every step. A wrong action is what an action becomes when one guard or one
order is left out; it must break a condition that carries the rule it is named for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from vmmref_models.proofs.terms import Truth
from vmmref_models.proofs.world import World
from vmmref_models.titles import RULE_TITLES

S = TypeVar("S")
"""The class of a system's states."""


@dataclass(frozen=True)
class Step(Generic[S]):
    """What an action does: possible where `guard` holds, and then the state is `after`."""

    guard: Truth
    after: S


@dataclass(frozen=True)
class Action(Generic[S]):
    """An action on things of the sorts `on`."""

    name: str
    on: tuple[str, ...]
    sentence: str
    take: Callable[..., Step[S]]
    """(world, state, one thing for each of `on`) -> step."""


@dataclass(frozen=True)
class Wrong(Generic[S]):
    """An action that is wrong on purpose, in place of the right one; it breaks `rule`."""

    action: Action[S]
    replaces: str
    rule: str


@dataclass(frozen=True)
class Property(Generic[S]):
    """What must hold: of each state (`step` false), or of the states before and after each action (`step` true)."""

    name: str
    rules: tuple[str, ...]
    """The first one names its conditions; the others need it too."""
    sentence: str
    step: bool
    formula: Callable[..., Truth]
    """(world, state) or (world, before, after) -> truth."""


@dataclass(frozen=True)
class System(Generic[S]):
    """One family of proofs. Modules add to it through its decorators, in the order in which they are read."""

    family: str
    sentence: str
    sorts: tuple[str, ...]
    state: type[S]
    few: tuple[tuple[int, ...], ...] = ()
    """How many things of each sort are tried for a counterexample, smallest first."""
    width: int = 32
    """Bits of a machine word, for systems that have some."""
    starts: list[Callable[[World, S], Truth]] = field(default_factory=list)
    """What holds at the start."""
    facts: list[Callable[[World, S], Truth]] = field(default_factory=list)
    """What holds of the fields that no action changes."""
    actions: list[Action[S]] = field(default_factory=list)
    properties: list[Property[S]] = field(default_factory=list)
    wrongs: list[Wrong[S]] = field(default_factory=list)

    def world(self, sizes: tuple[int, ...] | None = None) -> World:
        """A world with this system's sorts: any number of things, or so many of each."""
        return World(self.sorts, sizes, self.width)

    def start(self, formula: Callable[[World, S], Truth]) -> Callable[[World, S], Truth]:
        """Register what holds at the start."""
        self.starts.append(formula)
        return formula

    def fact(self, formula: Callable[[World, S], Truth]) -> Callable[[World, S], Truth]:
        """Register what holds of the fields that no action changes."""
        self.facts.append(formula)
        return formula

    def action(self, *on: str) -> Callable[[Callable[..., Step[S]]], Callable[..., Step[S]]]:
        """Register an action on things of these sorts; its docstring is its sentence."""

        def register(take: Callable[..., Step[S]]) -> Callable[..., Step[S]]:
            self.actions.append(Action(_name(take), on, _sentence(take), take))
            return take

        return register

    def wrong(self, replaces: str, breaks: str) -> Callable[[Callable[..., Step[S]]], Callable[..., Step[S]]]:
        """Register what the action `replaces` must not be; it takes the same things and breaks the rule `breaks`."""
        (right,) = [action for action in self.actions if action.name == replaces]

        def register(take: Callable[..., Step[S]]) -> Callable[..., Step[S]]:
            action = Action(_name(take), right.on, _sentence(take), take)
            self.wrongs.append(Wrong(action, replaces, _known((breaks,))[0]))
            return take

        return register

    def invariant(self, *rules: str) -> Callable[[Callable[..., Truth]], Callable[..., Truth]]:
        """Register what holds in every state, by the rules that need it."""
        return self._property(rules, step=False)

    def law(self, *rules: str) -> Callable[[Callable[..., Truth]], Callable[..., Truth]]:
        """Register what holds of every step, by the rules that need it."""
        return self._property(rules, step=True)

    def _property(self, rules: tuple[str, ...], step: bool) -> Callable[[Callable[..., Truth]], Callable[..., Truth]]:
        def register(formula: Callable[..., Truth]) -> Callable[..., Truth]:
            self.properties.append(Property(_name(formula), _known(rules), _sentence(formula), step, formula))
            return formula

        return register


def _known(rules: tuple[str, ...]) -> tuple[str, ...]:
    unknown = [rule for rule in rules if rule not in RULE_TITLES]
    if unknown or not rules:
        raise ValueError(f"a property or wrong action names no rule of the specification: {unknown}")
    return rules


def _name(function: Callable[..., Any]) -> str:
    return function.__name__.strip("_").replace("_", "-")


def _sentence(function: Callable[..., Any]) -> str:
    return " ".join((function.__doc__ or "").split())
