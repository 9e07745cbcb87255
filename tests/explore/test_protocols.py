"""Every wrong protocol is refuted by its shortest sequence, and the right ones keep every rule; counts are pinned.

A model that can do less, or more, than it should does not pass.
"""

from __future__ import annotations

from functools import cache

import pytest

from vmmref_models import RULES
from vmmref_models.explore import Result, Search
from vmmref_models.protocols import CLEAN, KNOWN_WRONG, NIGHT, PROTOCOLS, RELYING, RETIRE_VALIDATE_MAX, RIGHT
from vmmref_models.small_pool.ending import MEANINGS
from vmmref_models.small_pool.pool import SmallPool
from vmmref_models.small_pool.protocol import Protocol
from vmmref_models.small_pool.scope import OBLIGATIONS, Scope, faults_from, without_obligations
from vmmref_models.small_pool.system import actions_of

Counts = tuple[int, int, int]
"""States, transitions and depth."""

WRONG: dict[str, Counts] = {
    "boolean-ack": (1095, 2685, 32),
    "geq-plain": (1058, 2559, 32),
    "eq-wait": (939, 2212, 32),
    "geq-max": (1009, 2482, 32),
    "host-table": (483, 1293, 27),
    "max-no-retire": (2379, 5828, 44),
    "validate-before": (943, 2466, 34),
    "retire-overtakes-ready": (195, 432, 17),
    "failure-forgets-ready": (146, 226, 34),
    "failure-forgets-copy": (257, 437, 34),
    "range-before-retire": (4328, 11802, 36),
    "slot-before-retire": (243, 408, 36),
    "stale-silent-set-aside": (76, 156, 17),
    "borrow-free-on-revoke": (3158, 9966, 34),
    "borrow-table-late": (9951, 30822, 42),
    "group-store-leader-dies": (106, 185, 17),
    "max-two-streams": (7104, 22711, 38),
    "store-two-streams": (3681, 11537, 34),
    "rejoin-early": (1460, 3890, 42),
    "reaper-forges-early": (8241, 25547, 41),
    "fail-no-ack": (29, 49, 17),
    "no-claim": (111, 233, 20),
    "check-mid-copy": (906, 2249, 40),
    "acknowledges-first": (57, 106, 17),
    "late-judged-acknowledgement": (1240, 3092, 38),
    "unmap-with-queued-work": (397, 1018, 21),
    "import-dropped-early": (228, 501, 21),
    "device-wait": (60, 107, 18),
    "hold-undispatched": (188, 388, 21),
}
CLEAN_COUNTS: tuple[Counts, ...] = (
    (5641, 14139, 60),
    (926, 2334, 40),
    (351499, 1358986, 63),
    (145036, 477164, 60),
    (175383, 698460, 42),
    (993227, 4955734, 39),
    (53983, 177196, 61),
    (344154, 1855884, 41),
    (5410, 20015, 50),
    (75619, 321773, 50),
    (144403, 435582, 43),
    (10834, 33084, 60),
    (227074, 982704, 44),
    (278771, 1200230, 37),
    (465831, 1986345, 46),
    (248460, 950537, 44),
    (370705, 1694283, 40),
    (100411, 523595, 38),
    (156919, 635624, 39),
)


def counts(result: Result) -> Counts:
    """What is pinned of a search."""
    return result.states, result.transitions, result.depth


@cache
def refuted(name: str) -> Result:
    """The whole search of a wrong protocol."""
    known = KNOWN_WRONG[name]
    return Search(SmallPool(known.protocol, known.scope)).run(to_the_end=True)


@cache
def kept(number: int) -> Result:
    """The whole search of a right protocol."""
    return Search(SmallPool(CLEAN[number].protocol, CLEAN[number].scope)).run(to_the_end=True)


@pytest.mark.parametrize("name", KNOWN_WRONG)
def test_wrong_protocol_breaks_its_rules_in_so_many_steps(name: str) -> None:
    result = refuted(name)
    assert result.complete
    assert result.broken == dict(KNOWN_WRONG[name].broken)
    assert counts(result) == WRONG[name]
    assert all(len(violation.trace) == violation.length for violation in result.violations)


@pytest.mark.parametrize("number", range(len(CLEAN)))
def test_right_protocol_keeps_every_rule(number: int) -> None:
    result = kept(number)
    assert result.complete
    assert result.broken == {}
    assert counts(result) == CLEAN_COUNTS[number]


@pytest.mark.parametrize("name", KNOWN_WRONG)
def test_wrong_protocols_look_clean_while_nothing_goes_wrong(name: str) -> None:
    """Two do not: they break a rule in an untroubled run, the one late, the other with the first reader."""
    known = KNOWN_WRONG[name]
    pool = SmallPool(known.protocol, Scope(leases=2, halves=known.scope.halves))
    looks_clean = Search(pool).run(to_the_end=True).broken == {}
    assert looks_clean == (name not in {"slot-before-retire", "acknowledges-first"})


@pytest.mark.parametrize("obligation", OBLIGATIONS)
def test_obligation_is_needed_by_who_relies_on_it(obligation: str) -> None:
    relying = RELYING[obligation]
    assert relying.scope == without_obligations([obligation], Scope(slots=1, units=1, halves=1))
    result = Search(SmallPool(relying.protocol, relying.scope)).run(to_the_end=True)
    assert result.complete
    assert result.broken == dict(relying.broken)


@pytest.mark.parametrize("protocol", RIGHT.values(), ids=lambda protocol: protocol.name)
@pytest.mark.parametrize("obligation", OBLIGATIONS)
def test_right_protocols_need_no_obligation(obligation: str, protocol: Protocol) -> None:
    scope = without_obligations([obligation], Scope(slots=1, units=1))
    result = Search(SmallPool(protocol, scope)).run(to_the_end=True)
    assert result.complete
    assert result.broken == {}


@pytest.mark.parametrize("name", ["smallest-safe-profile", "plain-store"])
def test_plain_store_wants_one_writer(name: str) -> None:
    """A pool with plain stores must itself see to own-ack-only (CTL-4): foreign acknowledgements make its words fall."""
    scope = Scope(slots=1, units=1, halves=1, faults=faults_from("foreign:2"))
    assert set(Search(SmallPool(RIGHT[name], scope)).run(to_the_end=True).broken) == {"ACK-2"}
    assert Search(SmallPool(RETIRE_VALIDATE_MAX, scope)).run(to_the_end=True).broken == {}


def test_every_action_happens_and_every_rule_is_broken_somewhere() -> None:
    """Else a search would say nothing about it."""
    searched = [(known.protocol, known.scope) for known in KNOWN_WRONG.values()]
    searched += [(entry.protocol, entry.scope) for entry in CLEAN]
    pools = [SmallPool(protocol, scope) for protocol, scope in searched]
    actions = {action.name for pool in pools for action in actions_of(pool)}
    results = [refuted(name) for name in KNOWN_WRONG] + [kept(number) for number in range(len(CLEAN))]
    assert set().union(*(result.fired for result in results)) == actions
    assert set().union(*(result.broken for result in results)) == set(MEANINGS)
    assert set(MEANINGS) <= set(RULES)


def test_catalogue_has_the_names_that_others_build_on() -> None:
    assert {"boolean-ack", "geq-plain", "eq-wait", "geq-max", "host-table", "validate-before", "max-no-retire"} <= set(
        KNOWN_WRONG
    )
    assert list(WRONG) == list(KNOWN_WRONG)
    assert len(CLEAN_COUNTS) == len(CLEAN)
    assert not set(KNOWN_WRONG) & set(RIGHT)
    assert all(PROTOCOLS[name].name == name for name in PROTOCOLS)
    assert {entry.protocol.name for entry in (*CLEAN, *NIGHT)} == set(RIGHT)
