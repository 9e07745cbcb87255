"""The proved machine in a few things with names, in states in which every function is a table of values."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final

import z3

from vmmref_models.proofs.protocol import PROTOCOL
from vmmref_models.proofs.protocol.state import State
from vmmref_models.proofs.system import Property
from vmmref_models.proofs.world import FLAG, NUMBER, World
from vmmref_models.small_pool.fields import Fields
from vmmref_models.small_pool.pool import SmallPool

ACTIONS: Final = {action.name: action for action in PROTOCOL.actions}
INVARIANTS: Final = [wanted for wanted in PROTOCOL.properties if not wanted.step]
LAWS: Final = [wanted for wanted in PROTOCOL.properties if wanted.step]


class LeftBehind(AssertionError):
    """The proved machine cannot do, or does not keep, what the searched one has done."""


class Follower:
    """The proved machine in a state in which every function is a table."""

    def __init__(self, pool: SmallPool, last: Fields) -> None:
        self.pool = pool
        self.copies = max(len(pool.copies(rank)) for rank in pool.ranks)
        counts = (len(pool.leases), len(pool.units) * len(pool.halves), len(pool.leases) * self.copies * 2)
        self.world: World = PROTOCOL.world((len(pool.slots), 2, 2, *counts))
        self.state = self._start(last)
        self.taken: set[str] = set()
        """The actions that were taken."""
        for process in self.world.things["Process"]:
            # The searched ranks have imported the pool before their first step.
            self.take("import-pool", process)

    def thing(self, sort: str, index: int) -> Any:
        """One thing of a sort."""
        return self.world.things[sort][index]

    def reading(self, lease: int, copy: int, rank: int) -> Any:
        """The reading that stands for a copy of a proxy in its rank."""
        return self.thing("Reading", ((lease - 1) * self.copies + copy) * 2 + rank)

    def block(self, unit: int, half: int) -> Any:
        """The block that stands for one half of a range."""
        return self.thing("Block", unit * len(self.pool.halves) + half)

    def lease(self, lease: int) -> Any:
        """The lease with the searched pool's number."""
        return self.thing("Lease", lease - 1)

    def _start(self, last: Fields) -> State:
        """Nothing has happened; slots, generations and ranges are those that the run will give."""
        first = {sort: things[0] for sort, things in self.world.things.items()}
        empty = {FLAG: z3.BoolVal(False), NUMBER: z3.IntVal(0), **first}
        state = State(**{entry.name: _constant(empty[entry.metadata["range"]]) for entry in fields(State)})
        rigid: dict[str, Callable[..., Any]] = {
            "slot_of": lambda lease: self.thing("Slot", last["slot", _index(lease) + 1]),
            "generation_of": lambda lease: z3.IntVal(last["generation", _index(lease) + 1]),
            "covers": lambda lease, block: z3.BoolVal(
                last["unit", _index(lease) + 1] == _index(block) // len(self.pool.halves)
            ),
            "speaker_of": lambda lease, rank: rank,
            "rank_of": lambda process: self.thing("Rank", _index(process)),
            "current": lambda rank: self.thing("Process", _index(rank)),
            "lease_of": lambda reading: self.lease(_index(reading) // (self.copies * 2) + 1),
            "process_of": lambda reading: self.thing("Process", _index(reading) % 2),
            **{name: _constant(z3.BoolVal(True)) for name in ("born", "slot_free", "block_free")},
        }
        state = self._settled(State(**{**vars(state), **rigid}), None)
        for formula in (*PROTOCOL.facts, *PROTOCOL.starts):
            assert _is_true(formula(self.world, state)), f"the start does not keep {formula.__name__}"
        return state

    def _settled(self, after: State, before: State | None) -> State:
        """The same state with a table for each function that has changed."""
        settled: dict[str, Any] = {}
        for entry in fields(State):
            function = getattr(after, entry.name)
            if before is None or function is not getattr(before, entry.name):
                choices = itertools.product(*(self.world.things[sort] for sort in entry.metadata["domain"]))
                function = _table({_key(choice): z3.simplify(_term(function(*choice))) for choice in choices})
            settled[entry.name] = function
        return State(**settled)

    def take(self, name: str, *things: Any) -> None:
        """Take an action, which must be possible and keep every law."""
        step = ACTIONS[name].take(self.world, self.state, *things)
        if not _is_true(step.guard):
            raise LeftBehind(f"{name} {things} is not possible")
        before, self.state = self.state, self._settled(step.after, self.state)
        self.taken.add(name)
        for law in LAWS:
            self.hold(law, before, self.state)

    def hold(self, wanted: Property[State], *states: State) -> None:
        """Fail unless an invariant holds in a state, or a law for the states before and after an action."""
        if not _is_true(wanted.formula(self.world, *states)):
            raise LeftBehind(f"{wanted.rules[0]} {wanted.name} is broken")

    def possible(self, name: str, *things: Any) -> bool:
        """Whether an action could be taken now."""
        return _is_true(ACTIONS[name].take(self.world, self.state, *things).guard)


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *things: value


def _table(values: dict[tuple[str, ...], Any]) -> Callable[..., Any]:
    return lambda *things: values[_key(things)]


def _key(things: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(str(thing if thing.num_args() == 0 else z3.simplify(thing)) for thing in things)


def _index(thing: Any) -> int:
    return int("".join(digit for digit in str(thing) if digit.isdigit()))


def _term(value: Any) -> Any:
    return z3.BoolVal(value) if isinstance(value, bool) else z3.IntVal(value) if isinstance(value, int) else value


def _is_true(formula: Any) -> bool:
    return bool(z3.is_true(z3.simplify(_term(formula))))
