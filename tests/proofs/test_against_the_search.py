"""The proved machine takes every step of the searched one: neither has drifted from the other.

`vmmref_models.small_pool` is searched, `vmmref_models.proofs.protocol` is proved, and they share no code. Here the
first one walks at random, under the profile of the reference pool, and the second one follows with actions of its own.
Each of these must be possible where it is taken, every invariant must hold after it and every law for it, and then both
must agree on what they have in common: words, tables, bytes, and what became of each lease and reading.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from vmmref_models.protocols import SMALLEST_SAFE
from vmmref_models.small_pool.protocol import Ended, Protocol, Table
from vmmref_models.small_pool.scope import Scope, faults_from

pytest.importorskip("z3", reason="the package z3-solver is not installed")

from tests.proofs.following import played
from tests.proofs.machine import LeftBehind

SCOPES: Final = (
    Scope(),
    Scope(slots=1, units=1, leases=3, halves=1),
    Scope(slots=1, units=1, halves=1, faults=faults_from("dup:2,revoke")),
    Scope(units=1, faults=faults_from("revoke,reader-fail,deadline")),
    Scope(slots=1, faults=faults_from("cancel,copy-fail,reader-fail")),
    Scope(slots=1, units=1, halves=1, faults=faults_from("crash,revoke")),
)


@pytest.mark.parametrize("scope", SCOPES, ids=lambda scope: ",".join(scope.faults) or f"{scope.leases} leases")
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_the_proved_machine_follows_the_searched_one(scope: Scope, seed: int) -> None:
    follower = played(scope, seed, SMALLEST_SAFE)
    assert {"publish", "copy-block", "copy-ends", "ready-store", "retire-store", "free"} <= follower.taken


WRONG: Final = {
    "the range goes back early": (replace(SMALLEST_SAFE, early_range=True), Scope(units=1, halves=1), "revoke"),
    "failures wait for nothing": (
        replace(SMALLEST_SAFE, retire_waits_for=Ended.NOTHING, free_waits_for=Ended.NOTHING),
        Scope(slots=1, units=1, leases=1, halves=1),
        "copy-fail",
    ),
    "no table": (replace(SMALLEST_SAFE, table=Table.NEVER), Scope(slots=1, units=1, leases=1, halves=1), "dup:2"),
    "failed readers are silent": (
        replace(SMALLEST_SAFE, failed_acknowledges=False),
        Scope(slots=1, units=1, leases=1, halves=1),
        "reader-fail",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_it_does_not_follow_a_wrong_one(name: str) -> None:
    """A comparison that cannot fail would be worth nothing."""
    protocol, scope, faults = WRONG[name]
    scope = replace(scope, faults=faults_from(faults))
    assert any(_is_left_behind(scope, seed, protocol) for seed in range(8))


def _is_left_behind(scope: Scope, seed: int, protocol: Protocol) -> bool:
    try:
        played(scope, seed, protocol)
    except LeftBehind:
        return True
    return False
