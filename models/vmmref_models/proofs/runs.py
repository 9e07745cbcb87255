"""Runs from the start, in a world with a few things: what the actions can really do, one after the other.

A condition is about one action in any state with every invariant. A run shows that the actions are not idle (a slot is
leased again and read again), and that a wrong action leads from the start to a state that a rule forbids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import z3

from vmmref_models.proofs.system import Action, Step, System
from vmmref_models.proofs.terms import Term, Truth
from vmmref_models.proofs.world import World

S = TypeVar("S")


class CannotPlay(Exception):
    """A run names an action or a thing that is not there; the text says which."""


@dataclass(frozen=True)
class Played(Generic[S]):
    """A run as one formula: the state after it, and what must be so for it to happen."""

    world: World
    last: S
    happens: tuple[Truth, ...]

    def possible(self, *wanted: Callable[[World, S], Truth]) -> bool:
        """Whether the run can happen and end in a state with everything that is wanted.

        Raises TimeoutError when the solver does not know after a minute.
        """
        solver = z3.Solver()
        solver.set("timeout", 60_000)
        solver.add(*self.happens, *(formula(self.world, self.last) for formula in wanted))
        result = solver.check()
        if result == z3.unknown:
            raise TimeoutError(f"the solver does not know whether the run can happen: {solver.reason_unknown()}")
        return bool(result == z3.sat)


def play(
    system: System[S],
    sizes: tuple[int, ...],
    script: Sequence[str],
    given: Callable[[World, S], Truth] | None = None,
) -> Played[S]:
    """The run of a script of lines like "ack-store reading0"; wrong actions go by their names. `given` holds before.

    Raises CannotPlay for an action or a thing that is not there.
    """
    world = system.world(sizes)
    state = world.state(system.state)
    happens = [formula(world, state) for formula in (*system.facts, *system.starts)]
    if given is not None:
        happens.append(given(world, state))
    for line in script:
        name, *things = line.split()
        step: Step[S] = _action(system, name).take(world, state, *(_thing(world, thing) for thing in things))
        happens.append(step.guard)
        state = step.after
    return Played(world, state, tuple(happens))


def _action(system: System[S], name: str) -> Action[S]:
    for action in (*system.actions, *(wrong.action for wrong in system.wrongs)):
        if action.name == name:
            return action
    raise CannotPlay(f'{system.family} has no action "{name}"')


def _thing(world: World, name: str) -> Term:
    for things in world.things.values():
        for thing in things:
            if str(thing) == name:
                return thing
    raise CannotPlay(f'there is no thing "{name}"')
