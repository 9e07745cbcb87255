"""The search itself: its counts against another explorer's, its tables against plain steps, its limits."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from vmmref_models.explore import Limits, Search
from vmmref_models.protocols import DEVICE_WAIT_FORM, KNOWN_WRONG, RETIRE_VALIDATE_MAX, SMALLEST_SAFE
from vmmref_models.small_pool.fields import Fields, Layout
from vmmref_models.small_pool.pool import SmallPool
from vmmref_models.small_pool.protocol import Protocol
from vmmref_models.small_pool.scope import Scope, faults_from
from vmmref_models.small_pool.system import actions_of


@pytest.mark.parametrize(
    ("protocol", "scope", "expected"),
    [
        (RETIRE_VALIDATE_MAX, Scope(leases=1), (46, 70, 20)),
        (RETIRE_VALIDATE_MAX, Scope(leases=2), (1694, 4231, 40)),
        (RETIRE_VALIDATE_MAX, Scope(leases=3), (9754, 24756, 60)),
        (RETIRE_VALIDATE_MAX, Scope(leases=1, halves=1), (34, 49, 17)),
        (RETIRE_VALIDATE_MAX, Scope(leases=2, halves=1), (1081, 2629, 34)),
        (RETIRE_VALIDATE_MAX, Scope(leases=3, halves=1), (6184, 15333, 51)),
        (RETIRE_VALIDATE_MAX, Scope(leases=3, slots=1, units=1), (136, 210, 60)),
        (RETIRE_VALIDATE_MAX, Scope(leases=3, slots=2, units=1), (316, 490, 60)),
        (DEVICE_WAIT_FORM, Scope(leases=3), (18664, 57093, 60)),
        (RETIRE_VALIDATE_MAX, Scope(leases=3, faults=faults_from("dup")), (351499, 1358986, 63)),
        (DEVICE_WAIT_FORM, Scope(leases=3, faults=faults_from("dup")), (624352, 2637646, 63)),
    ],
)
def test_counts_are_those_of_another_explorer(protocol: Protocol, scope: Scope, expected: tuple[int, int, int]) -> None:
    """Written apart, in another language, from the same description of the steps: both meet on the same integers."""
    result = Search(SmallPool(protocol, scope), symmetry=False).run(to_the_end=True)
    assert (result.states, result.transitions, result.depth) == expected
    assert result.complete
    assert result.broken == {}


SLOW = ("range-before-retire", "borrow-free-on-revoke", "borrow-table-late", "max-two-streams", "reaper-forges-early")
"""Stepping through their thousands of states without tables takes too long."""

SMALL = [
    (RETIRE_VALIDATE_MAX, Scope(leases=1, faults=faults_from("revoke,crash,rejoin,cancel,late-delivery"))),
    (SMALLEST_SAFE, Scope(leases=1, halves=1, faults=faults_from("borrow,shutdown,reader-fail,deadline"))),
    (DEVICE_WAIT_FORM, Scope(leases=1, faults=faults_from("foreign,copy-fail,producer-crash"))),
]
LITTLE = [
    *SMALL,
    *((known.protocol, known.scope) for known in KNOWN_WRONG.values() if known.protocol.name not in SLOW),
]


def stepped(pool: SmallPool) -> tuple[set[int], int, set[str]]:
    """States, transitions and broken rules, each step worked out anew on the whole state."""
    actions = list(actions_of(pool))
    everything = tuple(pool.layout.places)
    seen, waiting, transitions, broken = {pool.initial()}, [pool.initial()], 0, set[str]()
    while waiting:
        now = pool.layout.unpacked(waiting.pop(), everything)
        for action in actions:
            for step in action.steps(now):
                transitions += 1
                broken.update(step.broken)
                after = pool.layout.packed(step.after)
                if after not in seen:
                    seen.add(after)
                    waiting.append(after)
    return seen, transitions, broken


@pytest.mark.parametrize(("protocol", "scope"), LITTLE, ids=lambda value: getattr(value, "name", ""))
def test_tables_do_what_the_steps_say(protocol: Protocol, scope: Scope) -> None:
    """An action that looked at a field outside its view would step differently here."""
    pool = SmallPool(protocol, scope)
    states, transitions, broken = stepped(pool)
    search = Search(pool, symmetry=False)
    result = search.run(to_the_end=True)
    assert (search.seen, result.transitions) == (states, transitions)
    assert set(result.broken) - {"LIV-1", "LIV-2"} == broken


@pytest.mark.parametrize(("protocol", "scope"), SMALL)
@pytest.mark.parametrize("consumers", [2, 3])
def test_one_state_stands_for_all_with_other_rank_numbers(protocol: Protocol, scope: Scope, consumers: int) -> None:
    """What is found with exchangeable ranks is what is found without, up to the numbers of ranks."""
    faults = {name: count for name, count in scope.faults.items() if name != "dup"}
    pool = SmallPool(protocol, replace(scope, consumers=consumers, leases=1, halves=1, faults=faults))
    every, some = Search(pool, symmetry=False), Search(pool)
    result = some.run(to_the_end=True)
    assert every.run(to_the_end=True).broken == result.broken
    assert some.naming is not None
    assert {some.naming(state) for state in every.seen} == some.seen
    assert every.seen == {renumbered(pool, state, order) for state in some.seen for order in permutations(pool.ranks)}


RANKED = {"dead", "work", "vacant", "dropped", "A", "table", "awaited", "reader", "queue", "done", "foreign", "loaded"}
"""The fields that belong to a rank; its number comes last."""


def renumbered(pool: SmallPool, state: int, order: tuple[int, ...]) -> int:
    """The state in which rank r is what rank order[r] was."""
    now = pool.layout.unpacked(state, pool.layout.places)
    moved = {field: now[(*field[:-1], order[int(field[-1])])] for field in now if field[0] in RANKED}
    return pool.layout.packed(now.changed(moved))


def test_ranks_with_different_rights_are_not_exchanged() -> None:
    for faults in ("dup", "group"):
        assert Search(SmallPool(RETIRE_VALIDATE_MAX, Scope(faults=faults_from(faults)))).naming is None


def test_limits_make_a_search_incomplete() -> None:
    pool = SmallPool(RETIRE_VALIDATE_MAX, Scope())
    for limits in (Limits(states=100), Limits(seconds=0.0)):
        result = Search(pool).run(limits)
        assert not result.complete
        assert result.violations == ()


def test_an_interrupted_search_is_incomplete() -> None:
    def interrupt(states: int, depth: int, seconds: float) -> None:
        if depth == 10:
            raise KeyboardInterrupt

    result = Search(SmallPool(RETIRE_VALIDATE_MAX, Scope())).run(progress=interrupt)
    assert (result.complete, result.interrupted) == (False, True)


def test_a_search_stops_at_the_first_level_that_breaks_a_rule() -> None:
    known = KNOWN_WRONG["max-two-streams"]
    result = Search(SmallPool(known.protocol, known.scope)).run()
    assert (result.broken, result.complete) == ({"ACK-2": known.broken["ACK-2"]}, False)


def test_a_trace_tells_what_happens() -> None:
    known = KNOWN_WRONG["no-claim"]
    (violation,) = Search(SmallPool(known.protocol, known.scope)).run().violations
    assert violation.rule == "REC-5"
    assert violation.trace[0] == "publish lease 1: slot 0, generation 1, range 0"
    assert violation.trace.count("free lease 1") == 2


def test_a_view_is_kept_to() -> None:
    layout = Layout()
    layout.add(("R", 0), 3)
    layout.add(("A", 0, 0), 1)
    seen = layout.unpacked(0b111, [("R", 0)])
    assert seen == {("R", 0): 3}
    assert layout.packed(seen.changed({("R", 0): 1})) == 1
    with pytest.raises(KeyError):
        seen["A", 0, 0]
    with pytest.raises(AssertionError, match="does not see it"):
        seen.changed({("A", 0, 0): 1})
    with pytest.raises(AssertionError, match="does not fit"):
        layout.packed(Fields({("A", 0, 0): 2}))


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ("oops", 'there is no fault "oops"'),
        ("revoke:x", "whole number"),
        ("revoke,revoke", "twice"),
        ("rejoin", "without crash"),
        ("late-delivery", "without cancel"),
        ("dup:3", "more than 2 ranks"),
    ],
)
def test_impossible_faults_are_said(faults: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Scope(faults=faults_from(faults))


def test_impossible_scopes_are_said() -> None:
    with pytest.raises(ValueError, match="slots = 0"):
        Scope(slots=0)
    with pytest.raises(ValueError, match="two halves"):
        SmallPool(KNOWN_WRONG["check-mid-copy"].protocol, Scope(halves=1))


def test_generations_end() -> None:
    """A slot leaves service after its last generation; its range does not, and nothing leaks."""
    results = [
        Search(SmallPool(RETIRE_VALIDATE_MAX, Scope(leases=3, generations=limit)), symmetry=False).run(to_the_end=True)
        for limit in (1, 2)
    ]
    assert [result.broken for result in results] == [{}, {}]
    assert results[0].states < results[1].states < 9754


@pytest.mark.parametrize("halves", [1, 2])
@pytest.mark.parametrize("consumers", [1, 2, 3])
@pytest.mark.parametrize("exchangeable", [False, True])
def test_the_estimate_of_a_scope_is_from_below(halves: int, consumers: int, exchangeable: bool) -> None:
    scope = Scope(1, 1, consumers, 1, halves)
    found = Search(SmallPool(RETIRE_VALIDATE_MAX, scope), exchangeable).run(Limits())
    assert found.states / 4 < scope.least_states(exchangeable) <= found.states
