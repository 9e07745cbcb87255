"""A whole check in processes of its own: what hangs, crashes or cannot be judged ends as a report, never as a hang."""

from __future__ import annotations

import pytest

from vmmref.conformance.runner import PROFILES, Check, replay_trace
from vmmref.conformance.search import Plan
from vmmref_models import Shape

BAD = "tests.machine.bad_subjects"
SHORT = Plan(0, "any", 3.0, 30, 0.0, shrink_seconds=1.0, hang_seconds=3.0)
"""One worker that walks a few episodes."""


def test_both_phases_run_and_their_counts_add_up() -> None:
    plan = Plan(0, "any", 30.0, 20, 30.0, 1)
    result = Check("tests.machine.model_subject:make", "sim", plan).run()
    assert result.cannot_run == ""
    assert result.notes == []
    assert result.failures == {}
    assert result.operations > 300
    assert result.exercised["RNG-1"] > 300
    assert result.description is not None
    assert result.description.name == "model"


def test_broken_rule_comes_back_with_its_shortest_sequence() -> None:
    result = Check(f"{BAD}:no_merge", "sim", SHORT).run()
    assert len(result.failures["RNG-4"].operations) == 2


@pytest.mark.rule("LIFE-5")
def test_operation_that_does_not_come_back_is_named() -> None:
    result = Check(f"{BAD}:hanging", "sim", SHORT).run()
    failure = result.failures["LIFE-5"]
    assert type(failure.operations[-1]).__name__ == "Cancel"
    assert "did not come back within 3 s" in failure.got
    assert result.exercised["RNG-1"] >= 0


@pytest.mark.rule("ERR-2")
def test_operation_that_takes_the_process_with_it_is_named() -> None:
    result = Check(f"{BAD}:crashing", "sim", SHORT).run()
    failure = result.failures["ERR-2"]
    assert type(failure.operations[-1]).__name__ == "Cancel"
    assert "SIGKILL" in failure.got
    failures, unable = replay_trace(f"{BAD}:crashing", "sim", failure.shape, failure.operations)
    assert unable == ""
    assert [again.rule for again in failures] == ["ERR-2"]


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        ("blind", "observe() of a new pool raised RuntimeError: nobody can see this"),
        ("nonsense", "observe() of a new pool answered an Observation whose words is"),
        ("unshaped", "the subject refused 30 shapes in a row, the last one with: this pool cannot have"),
        ("misdescribed", 'declares capability "telepathy"'),
        ("raising", "its factory raised RuntimeError: no pool on sim today"),
        ("nothing", "its factory made None, which has no method describe()"),
    ],
)
def test_subject_that_cannot_be_judged_says_why(factory: str, reason: str) -> None:
    result = Check(f"{BAD}:{factory}", "sim", SHORT).run()
    assert reason in result.cannot_run
    assert result.failures == {}


def test_replay_of_a_shape_that_is_refused_says_why() -> None:
    failures, unable = replay_trace(f"{BAD}:unshaped", "sim", Shape(3, 1, 256), ())
    assert failures == []
    assert unable == "the subject refuses a pool of that shape: this pool cannot have 3 slots"


def test_plans_fit_their_profile() -> None:
    quick = PROFILES["quick"]
    at_once, in_turn = quick.plan("sim", 1, "any"), quick.plan("cuda:0", 1, "any")
    assert at_once.walk_seconds + at_once.shrink_seconds <= 45
    assert in_turn.walk_seconds + in_turn.machine_seconds + in_turn.shrink_seconds <= 45
    assert quick.plan("sim", 1, "any", 4.0).walk_seconds < 4
    assert quick.plan("sim", 1, "any", 9999.0).walk_seconds < 45
