"""Result states, exit status and the forms of a report."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import Any

import pytest

from tests.machine.model_subject import make
from vmmref.conformance import report
from vmmref.conformance.failure import Failure
from vmmref.conformance.timeline import failure_lines, lines
from vmmref_models import RULES, Shape
from vmmref_models.operations import Advance, Cancel, Recycle

DESCRIBED = make().describe()
FAILURE = Failure("GEN-1", Shape(1, 2, 256), (Recycle(), Advance("rank:1"), Cancel(1, wait=True)), "a", "b\x00<")


def row(rule: str, exercised: int = 5, failure: Failure | None = None, **changes: Any) -> report.Row:
    """The row of one rule for a subject that is described with some changes."""
    described = replace(DESCRIBED, **changes)
    failures = {rule: failure} if failure else {}
    (found,) = report.rows([RULES[rule]], described, {rule: exercised}, failures, {})
    return found


def test_exercised_rule_passes_and_one_never_exercised_does_not() -> None:
    assert row("GEN-1").state == "pass"
    assert row("GEN-1", 0).state == "could-not-run"
    assert row("GEN-1", 5, FAILURE).state == "fail"


@pytest.mark.parametrize(
    ("rule", "changes", "reason"),
    [
        ("PACK-1", {"operations": frozenset({"Wrap", "Fetch"})}, "the subject does not understand WrapPack"),
        ("CON-1", {"level": "A"}, "the rule is of level C, the subject declares level A"),
        ("ACK-2", {"capabilities": frozenset()}, 'the subject lacks "words": the control words can be observed'),
        ("RNG-3", {"fit": "any"}, "the subject declares a fit of its own"),
        ("SLOT-3", {"slot_order": "any"}, "the subject declares an order of slots of its own"),
        ("CTL-6", {"protocol": "other"}, "the subject uses other"),
        ("PUB-5", {"operations": frozenset({"Wrap"})}, "the subject does not understand Construct"),
    ],
)
def test_rule_that_a_subject_cannot_be_asked_about(rule: str, changes: dict[str, Any], reason: str) -> None:
    found = row(rule, 0, **changes)
    assert found.state == "not-supported"
    assert reason in found.reason


def test_rule_that_a_well_behaved_client_never_exercises() -> None:
    (found,) = report.rows([RULES["GEN-5"]], DESCRIBED, {}, {}, {}, "well-behaved")
    assert found.state == "not-supported"
    assert "well-behaved" in found.reason


def test_exit_status() -> None:
    passed, failed = row("GEN-1"), row("GEN-1", 5, FAILURE)
    unable, unsupported = row("GEN-1", 0), row("PACK-1", operations=frozenset({"Wrap"}))
    assert report.exit_status([passed, unsupported]) == 0
    assert report.exit_status([passed, failed, unable]) == 1
    assert report.exit_status([passed, unable]) == 2
    assert report.exit_status([unsupported]) == 2
    assert report.summary([passed, failed, unable, unsupported]) == {
        "pass": 1,
        "fail": 1,
        "not-supported": 1,
        "waived": 0,
        "could-not-run": 1,
    }


def test_junit_takes_any_text() -> None:
    table = [row("GEN-1", 5, FAILURE), row("GEN-2", 0), row("CON-1", level="A"), row("RNG-1")]
    details = {"GEN-1": "\n".join(failure_lines(FAILURE, RULES["GEN-1"].title, "vmmref replay x.json"))}
    suite = ElementTree.fromstring(report.as_junit(table, "a & b", 1.5, details).split("?>", 1)[1])[0]
    assert [(child.tag, child.get("name", "").split()[0], [kind.tag for kind in child]) for child in suite] == [
        ("testcase", "GEN-1", ["failure"]),
        ("testcase", "GEN-2", ["error"]),
        ("testcase", "CON-1", ["skipped"]),
        ("testcase", "RNG-1", []),
    ]


def test_rules_are_selected_by_identifier_and_family() -> None:
    assert [rule.id for rule in report.select("ack-3, SLOT")] == ["SLOT-1", "SLOT-2", "SLOT-3", "ACK-3"]
    assert len(report.select("")) == len(RULES)
    with pytest.raises(ValueError, match="ACK-99"):
        report.select("ACK-99")


def test_timeline_has_a_lane_for_each_stream_only_where_one_was_stepped() -> None:
    shape = Shape(1, 2, 256)
    header, first, second, _ = lines(shape, FAILURE.operations)
    assert header.split() == ["hst", "pub", "ret", "r0", "r1"]
    assert first == "   1 ●   │   │   │   │   recycle"
    assert second == "   2 │   │   │   │   ●   run the oldest piece of rank:1"
    assert lines(shape, [Recycle()]) == ["   1 recycle"]


def test_failure_shows_all_that_a_porter_needs() -> None:
    shown = failure_lines(FAILURE, "Title", "vmmref replay x.json")
    assert shown[0] == "GEN-1 broken by operation 3 (cancel L1): Title"
    assert [line.split()[0] for line in shown[1:6]] == ["pool", "before", "expected", "got", "sequence"]
    assert shown[-1] == "  replay   vmmref replay x.json"
