"""Every condition is proved, every wrong action is refuted by the rule that it is named for."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from vmmref_models.proofs import words
from vmmref_models.proofs.conditions import PROVED, REFUTED, Prover, conditions
from vmmref_models.proofs.families import SYSTEMS
from vmmref_models.proofs.questions import Condition
from vmmref_models.proofs.system import Property, System, Wrong
from vmmref_models.proofs.terms import Truth
from vmmref_models.proofs.words import WORDS_32, WORDS_64, Book, book
from vmmref_models.proofs.words.properties import greater_or_equal_is_right
from vmmref_models.proofs.world import World

CONDITIONS = {"layout": 8, "ranges": 78, "words-32": 139, "words-64": 139, "protocol": 2140}
"""How many there are: a property or an action that gets lost is missed."""

PROVED_RULES = {
    *("ACK-1", "ACK-2", "ACK-3", "ACK-4", "ACK-5", "CAN-3", "CON-1", "CON-3", "CON-4", "CON-5", "CON-6"),
    *("CTL-1", "CTL-2", "CTL-3", "CTL-4", "CTL-6", "ERR-1", "GEN-1", "GEN-2", "GEN-3", "GEN-4", "HND-4"),
    *("LIFE-2", "LIFE-3", "LIV-1", "PUB-1", "PUB-2", "PUB-3", "REAP-1", "REAP-2", "REC-1", "REC-2", "REC-3", "REC-5"),
    *("RNG-1", "RNG-2", "RNG-3", "RNG-4", "RNG-5", "SLOT-1", "SLOT-2"),
}
"""The rules that some condition carries. Of some of them a part only: specs/proofs.md says which."""

WRONG = [(system, wrong) for system in SYSTEMS for wrong in system.wrongs]
PROVERS = {system.family: Prover(system) for system in SYSTEMS}


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.family)
def test_every_condition_is_proved(system: System[Any]) -> None:
    verdicts = [PROVERS[system.family].decide(condition) for condition in conditions(system)]
    assert len(verdicts) == CONDITIONS[system.family]
    assert [f"{one.condition} {one.answer}" for one in verdicts if one.answer != PROVED] == []


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.family)
def test_every_action_can_happen(system: System[Any]) -> None:
    """The invariants do not contradict each other or a guard: the conditions say something."""
    assert [action.name for action in system.actions if not PROVERS[system.family].possible(action)] == []


@pytest.mark.parametrize(("system", "wrong"), WRONG, ids=lambda item: getattr(item, "family", "") or item.action.name)
def test_every_wrong_action_is_refuted(system: System[Any], wrong: Wrong[Any]) -> None:
    """By a condition that carries its rule, with a counterexample among a few things."""
    asked = [condition for condition in conditions(system, wrong) if wrong.rule in condition.rules]
    verdicts = [PROVERS[system.family].refute(condition) for condition in asked]
    assert {verdict.answer for verdict in verdicts} <= {PROVED, REFUTED}
    told = [verdict.counterexample.text() for verdict in verdicts if verdict.counterexample is not None]
    assert told
    for text in told:
        assert text.startswith(f"action   {wrong.action.name}(")
        assert "Not so for" in text or "Where no lease" in text
        assert "\nchanges  " in text


def test_every_rule_that_names_conditions_has_a_wrong_action() -> None:
    """A proof that nothing can refute is worth nothing."""
    assert len(WRONG) == 71
    named = {proposed.rules[0] for system in SYSTEMS for proposed in system.properties}
    assert sorted(named - {wrong.rule for _, wrong in WRONG}) == []


def test_every_condition_has_its_rules_and_its_own_name() -> None:
    names = [(one.family, one.action_name, one.wanted.name) for system in SYSTEMS for one in conditions(system)]
    assert len(set(names)) == len(names)
    assert {rule for system in SYSTEMS for proposed in system.properties for rule in proposed.rules} == PROVED_RULES
    assert all(proposed.sentence for system in SYSTEMS for proposed in system.properties)
    assert all(action.sentence for system in SYSTEMS for action in system.actions)


def greater_or_equal_too_far(world: World, some: Book) -> Truth:
    """One generation more than is promised."""
    return greater_or_equal_is_right(world, some, book.half_limit(world) + 1)


@pytest.mark.parametrize("system", [WORDS_32, WORDS_64], ids=lambda system: system.family)
def test_the_bound_of_greater_or_equal_is_sharp(system: System[Book]) -> None:
    """From generation 2^(w-2) on, 2n is negative as a signed word, and a device's wait may err."""
    too_far: Property[Book] = Property("too-far", ("GEN-3",), "", step=False, formula=greater_or_equal_too_far)
    (action,) = [action for action in system.actions if action.name == "ready-store"]
    verdict = Prover(system).refute(Condition(system.family, too_far, action))
    assert verdict.answer == REFUTED


def test_the_limit_of_32_bits_is_sharp(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one generation more, 2n does not fit: R would have to fall to zero."""
    monkeypatch.setitem(words.book.LIMITS, 32, 2**31)
    (bound,) = [proposed for proposed in WORDS_32.properties if proposed.name == "ready-word-has-a-bound"]
    (action,) = [action for action in WORDS_32.actions if action.name == "lease-slot"]
    verdict = Prover(WORDS_32).refute(Condition("words-32", bound, action))
    assert verdict.answer == REFUTED
    assert verdict.counterexample is not None
    assert "2147483647 -> 2147483648" in "\n".join(verdict.counterexample.changes)


def test_the_encoding_is_independent_of_the_model() -> None:
    """A proof that used the model's step would prove the model by itself."""
    folder = Path(words.__file__).resolve().parents[1]
    imported = {
        node.module
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vmmref")
    }
    assert {name for name in imported if not str(name).startswith("vmmref_models.proofs")} == {"vmmref_models.titles"}
