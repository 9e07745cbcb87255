"""Every wrong protocol is refuted by its shortest sequence, and the right ones keep every rule; counts are pinned.

A model that can do less, or more, than it should does not pass.
"""

from __future__ import annotations

import re
from dataclasses import fields
from enum import StrEnum
from functools import cache
from pathlib import Path

import pytest

from vmmref_models import RULES
from vmmref_models.clean_scopes import CLEAN, NIGHT, Clean
from vmmref_models.explore import Result, Search
from vmmref_models.protocols import KNOWN_WRONG, PROTOCOLS, RELYING, RETIRE_VALIDATE_MAX, RIGHT
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
    "judged-no-table": (1711, 4283, 38),
    "stale-store-no-table": (654, 1591, 34),
    "unsent-not-retired": (671, 1558, 34),
    "unmap-with-queued-work": (397, 1018, 21),
    "import-dropped-early": (228, 501, 21),
    "device-wait": (60, 107, 18),
    "hold-undispatched": (188, 388, 21),
}


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
    assert result.counts == WRONG[name]
    assert all(len(violation.trace) == violation.length for violation in result.violations)


@pytest.mark.parametrize("number", range(len(CLEAN)))
def test_right_protocol_keeps_every_rule(number: int) -> None:
    result = kept(number)
    assert result.complete
    assert result.broken == {}
    assert result.counts == CLEAN[number].counts


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
    """A pool with plain stores must itself see to own-ack-only (CTL-4): a foreign acknowledgement makes words fall."""
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


def test_every_switch_matters() -> None:
    """Each switch of a protocol has a protocol that sets it in another way than the right one."""
    for switch in fields(Protocol):
        values = {getattr(protocol, switch.name) for protocol in PROTOCOLS.values()}
        assert len(values) > 1, switch.name
        if isinstance(switch.default, StrEnum):
            assert values == set(type(switch.default)), switch.name


TOLD = (Path(__file__).resolve().parents[2] / "specs" / "protocols-that-fail.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", KNOWN_WRONG)
def test_the_spec_tells_each_wrong_protocol_with_its_length(name: str) -> None:
    known = KNOWN_WRONG[name]
    (row,) = re.findall(rf"^\| {name} \|.*$", TOLD, flags=re.MULTILINE)
    assert re.search(rf"\b{known.broken[known.rule]}\b", row)


@pytest.mark.parametrize("entry", [*CLEAN, *NIGHT])
def test_the_spec_tells_each_clean_search_with_its_counts(entry: Clean) -> None:
    scope = entry.scope
    faults = ", ".join(name if count == 1 else f"{name}:{count}" for name, count in scope.faults.items())
    limit = f"; generation limit {scope.generations}" if scope.generations else ""
    sizes = f"{scope.slots}, {scope.units}, {scope.consumers}, {scope.leases}, {scope.halves}"
    states, transitions, depth = entry.counts
    row = f"| {entry.protocol.name} | {sizes} | {faults or 'none'}{limit} | {states:,} | {transitions:,} | {depth} |"
    assert row in TOLD


def test_catalogue_has_the_names_that_others_build_on() -> None:
    assert {"boolean-ack", "geq-plain", "eq-wait", "geq-max", "host-table", "validate-before", "max-no-retire"} <= set(
        KNOWN_WRONG
    )
    assert list(WRONG) == list(KNOWN_WRONG)
    assert not set(KNOWN_WRONG) & set(RIGHT)
    assert all(PROTOCOLS[name].name == name for name in PROTOCOLS)
    assert {entry.protocol.name for entry in (*CLEAN, *NIGHT)} == set(RIGHT)
