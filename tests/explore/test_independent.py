"""The search, Spin and Rumur: three encodings of one protocol count and judge the same."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from vmmref.cli import _compare, main
from vmmref.conformance import checkers
from vmmref.conformance.checkers import CouldNotRun, Counts
from vmmref_models.protocols import DEVICE_WAIT_FORM, KNOWN_WRONG, RETIRE_VALIDATE_MAX, SMALLEST_SAFE
from vmmref_models.small_pool.protocol import Protocol
from vmmref_models.small_pool.scope import Scope, faults_from

ENCODINGS = Path(__file__).parents[2] / "models" / "independent"

needs_spin = pytest.mark.skipif(shutil.which("spin") is None, reason="the package spin is not installed")
needs_rumur = pytest.mark.skipif(shutil.which("rumur") is None, reason="the package rumur is not installed")

NO_FAULT = (
    (Scope(leases=1), Counts(46, 70)),
    (Scope(leases=2), Counts(1_694, 4_231)),
    (Scope(leases=3), Counts(9_754, 24_756)),
    (Scope(leases=1, halves=1), Counts(34, 49)),
    (Scope(leases=2, halves=1), Counts(1_081, 2_629)),
    (Scope(leases=3, halves=1), Counts(6_184, 15_333)),
)
"""Two slots and two ranges; the counts that specs/protocols-that-fail.md has of another explorer, too."""


@needs_spin
@pytest.mark.parametrize(("scope", "counts"), NO_FAULT)
def test_spin_counts_the_same(scope: Scope, counts: Counts) -> None:
    assert checkers.spin_counts(checkers.constants_of(RETIRE_VALIDATE_MAX, scope)) == counts


@needs_rumur
@pytest.mark.parametrize(("scope", "counts"), NO_FAULT)
def test_rumur_counts_the_same(scope: Scope, counts: Counts) -> None:
    assert checkers.rumur_counts(checkers.constants_of(RETIRE_VALIDATE_MAX, scope)) == counts


@needs_spin
@needs_rumur
@pytest.mark.parametrize("faults", ["revoke", "cancel:2", "reader-fail:2", "dup,revoke"])
def test_all_three_count_the_same_with_faults(faults: str) -> None:
    row = _compare.counted(_compare.Compared(RETIRE_VALIDATE_MAX, Scope(halves=1, faults=faults_from(faults))))
    assert [opinion.agrees for opinion in row.opinions] == [True, True], row.text


@needs_rumur
def test_exchangeable_ranks_are_counted_the_same() -> None:
    row = _compare.counted_alike(_compare.Compared(RETIRE_VALIDATE_MAX, Scope(leases=3)))
    assert row.rumur.agrees, row.text
    assert row.search == "5,641 states, 14,139 transitions"


@needs_spin
@needs_rumur
@pytest.mark.parametrize(
    ("protocol", "faults", "verdict"),
    [
        (RETIRE_VALIDATE_MAX, "reader-fail,revoke", "every run ends well"),
        (RETIRE_VALIDATE_MAX, "producer-crash", "every run ends well"),
        (KNOWN_WRONG["fail-no-ack"].protocol, "reader-fail", "LIV-1 broken"),
        (DEVICE_WAIT_FORM, "producer-crash", "LIV-2 broken"),
    ],
)
def test_all_three_judge_the_ends_alike(protocol: Protocol, faults: str, verdict: str) -> None:
    row = _compare.judged(_compare.Compared(protocol, Scope(leases=1, halves=1, faults=faults_from(faults))))
    assert (row.search, row.spin) == (verdict, _compare.Opinion(verdict, True)), row.text
    assert row.rumur.agrees, row.text


@needs_spin
@needs_rumur
def test_another_protocol_is_told_from_the_right_one() -> None:
    """A comparison that cannot fail would be worth nothing."""
    scope = Scope(leases=1, halves=1, faults=faults_from("reader-fail"))
    right = checkers.constants_of(RETIRE_VALIDATE_MAX, scope)
    wrong = checkers.constants_of(KNOWN_WRONG["fail-no-ack"].protocol, scope)
    assert checkers.spin_counts(right) != checkers.spin_counts(wrong)
    assert checkers.rumur_counts(right) != checkers.rumur_counts(wrong)


@needs_spin
@needs_rumur
@pytest.mark.parametrize(
    ("name", "right", "wrong", "rule"),
    [
        (
            "retire_validate_max.pml",
            ":: R[slot_of[l]] == 2 * generation[l] ->",
            ":: R[slot_of[l]] >= 2 * generation[l] ->",
            "CON-1",
        ),
        ("retire_validate_max.m", "home.ready = 2 * mine.number", "home.ready >= 2 * mine.number", "CON-1"),
    ],
)
def test_assertions_of_the_encodings_fire(
    name: str, right: str, wrong: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever takes any R from 2n on for right reads another lease's bytes, and both checkers see it."""
    text = (ENCODINGS / name).read_text()
    assert text.count(right) == 1
    (tmp_path / name).write_text(text.replace(right, wrong))
    monkeypatch.setattr(checkers, "ENCODINGS", tmp_path)
    count = checkers.spin_counts if name.endswith(".pml") else checkers.rumur_counts
    constants = checkers.constants_of(RETIRE_VALIDATE_MAX, Scope(halves=1, faults=faults_from("revoke")))
    with pytest.raises(CouldNotRun, match="broken assertion") as found:
        count(constants)
    assert rule in str(found.value) or "foreign" in str(found.value)


def test_missing_checkers_are_never_a_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(_compare, "COUNTED", _compare.COUNTED[:1])
    report = tmp_path / "report.json"
    with pytest.raises(SystemExit) as ended:
        main(("explore", "--compare", "--json", str(report)))
    assert ended.value.code == 2
    shown = capsys.readouterr().out
    assert "spin: could not run: install the package spin" in shown
    assert "rumur: could not run: install the package rumur" in shown
    first = json.loads(report.read_text())["comparisons"][0]
    assert first["spin"] == {"text": "could not run: install the package spin", "agrees": None}


def test_a_checker_that_disagrees_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkers, "spin_counts", lambda constants: Counts(1_694, 4_230))
    monkeypatch.setattr(checkers, "rumur_counts", lambda constants: Counts(1_694, 4_231))
    row = _compare.counted(_compare.Compared(RETIRE_VALIDATE_MAX, Scope()))
    assert row.spin == _compare.Opinion("DISAGREES: 1,694 states, 4,230 transitions", False)
    assert row.rumur.agrees


@pytest.mark.parametrize(
    ("protocol", "scope", "sentence"),
    [
        (SMALLEST_SAFE, Scope(), "the encodings do not describe smallest-safe-profile"),
        (RETIRE_VALIDATE_MAX, Scope(faults=faults_from("crash")), "the encodings have no crash"),
        (RETIRE_VALIDATE_MAX, Scope(leases=4), "up to 3 leases"),
        (RETIRE_VALIDATE_MAX, Scope(consumers=3), "2 ranks"),
        (RETIRE_VALIDATE_MAX, Scope(faults=faults_from("dup:2")), "duplicates in one rank"),
    ],
)
def test_what_the_encodings_do_not_describe_is_refused(protocol: Protocol, scope: Scope, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        checkers.constants_of(protocol, scope)


def test_compare_has_its_own_scopes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(("explore", "--compare", "--leases", "1"))
    assert ended.value.code == 2
    assert "have their own protocols and scopes" in capsys.readouterr().err
