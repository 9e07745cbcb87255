"""Test the tests: each model that was broken on purpose is named by its rule, in a short sequence."""

from __future__ import annotations

import pytest

from tests.machine.mutants import MUTANTS, make
from vmmref.conformance.run import Rig
from vmmref.conformance.search import Plan, Search
from vmmref.conformance.walk import Schedule

EPISODES = 600
"""So many episodes of the walk are enough for every mutant; nearly all need fewer than twenty."""
PLAN = Plan(seed=7, shrink_replays=1500, shrink_seconds=20.0)


def _shortest(name: str) -> int:
    """Walk until one of the mutant's rules is named; the length of its shortest sequence."""
    mutant = MUTANTS[name]
    rig = Rig(make(name))
    search = Search(rig, PLAN)
    schedule = Schedule(search.flavours, PLAN.least)
    others: set[str] = set()
    for index in range(EPISODES):
        before, done = rig.counts(), rig.operations
        flavour = schedule.choose(index, before)
        failures = search.one_episode(index, flavour)
        schedule.learn(flavour, rig.operations - done, before, rig.counts())
        named = [failure for failure in failures if failure.rule in mutant.rules]
        others.update(failure.rule for failure in failures)
        if named:
            shortest = search.shortest(named[0])
            assert shortest.rule == named[0].rule
            return len(shortest.operations)
    raise AssertionError(f"{name}: none of {sorted(mutant.rules)} was named, but {sorted(others) or 'nothing'}")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.rule(rule) for rule in sorted(mutant.rules)])
        for name, mutant in MUTANTS.items()
    ],
)
def test_mutant_is_named_in_a_short_sequence(name: str) -> None:
    """
    The walk names the rule that a broken model breaks, and shows it in as few operations as it takes.

    Given: a model with one fault.
    When: episodes are walked until the fault's rule is named, and the sequence is shrunk.
    Then: the sequence is no longer than the fault needs.
    """
    assert _shortest(name) <= MUTANTS[name].operations
