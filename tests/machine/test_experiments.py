"""The reference pool's experiments: the right answer for any seed, and nothing that goes wrong stays unseen."""

from __future__ import annotations

import signal
from collections import Counter
from typing import Any

import pytest

from vmmref.conformance.subjects.experiments import EXPERIMENTS, Ground, attempt, possible
from vmmref.conformance.subjects.experiments.trial import Trial, in_fork, open_descriptors
from vmmref.conformance.subjects.parts import Parts, parts_with
from vmmref.reservation import VmmReservation
from vmmref.simcuda import Simulator
from vmmref.transport import FeatureTransport, PublishedRequest
from vmmref_models.attempts import ATTEMPTS
from vmmref_models.operations import Attempt, Outcome

GRANULE = 2 << 20
WITH_PROCESSES = ("exporter-killed", "producer-killed")


def ground(simulator: Simulator, parts: Parts | None = None) -> Ground:
    return Ground("sim:0", "cpu", GRANULE, parts or Parts(), simulator)


def done(simulator: Simulator, what: str, seed: int, call: int = 0, parts: Parts | None = None) -> Outcome:
    return attempt(ground(simulator, parts), Attempt(what, seed), Counter(), call)


def test_every_experiment_of_the_model_is_there() -> None:
    assert set(EXPERIMENTS) == set(ATTEMPTS)
    assert possible() >= set(ATTEMPTS) - {"ask-as-another-user"}


@pytest.mark.parametrize("what", sorted(ATTEMPTS))
def test_an_experiment_answers_as_it_must(simulator: Simulator, what: str) -> None:
    if what not in possible():
        pytest.skip("only root can ask as another user")
    for seed in range(2 if what in WITH_PROCESSES else 8):
        outcome = done(simulator, what, seed)
        assert outcome == ATTEMPTS[what].outcome, (seed, outcome.message)


@pytest.mark.parametrize("seed", range(6))
def test_a_request_loses_nothing_whichever_call_fails(simulator: Simulator, seed: int) -> None:
    kinds = set()
    for call in range(1, 100, 2):
        outcome = done(simulator, "request", seed, call)
        assert outcome.kind in ("done", "failed"), outcome
        assert outcome.leftovers == 0, (call, outcome.message)
        kinds.add(outcome.kind)
    assert "failed" in kinds
    # What the driver has refused to take back stays, and is nobody's leak.
    simulator.reset()


def test_the_same_seed_does_the_same(simulator: Simulator) -> None:
    def calls(seed: int) -> int:
        before = simulator.call_count()
        done(simulator, "request", seed)
        return simulator.call_count() - before

    assert calls(3) == calls(3)
    assert len({calls(seed) for seed in range(5)}) > 1


class LeavesItsLeases(FeatureTransport):
    """Takes no request back."""

    def cancel(self, request: PublishedRequest) -> None:
        """Nothing."""


class KeepsItsHandles(VmmReservation):
    """Is never closed."""

    def close(self) -> None:
        self._closed = True


@pytest.mark.parametrize(("what", "part"), [("request", LeavesItsLeases), ("map-after-close", KeepsItsHandles)])
def test_what_is_left_behind_is_counted(simulator: Simulator, what: str, part: type) -> None:
    outcomes = [done(simulator, what, seed, parts=parts_with(part)) for seed in range(8)]
    assert max(outcome.leftovers or 0 for outcome in outcomes) > 0
    simulator.reset()


def test_a_refused_give_back_is_nobodys_leftover(simulator: Simulator) -> None:
    kept: Counter[str] = Counter()
    for call in range(1, 100):
        outcome = attempt(ground(simulator), Attempt("request", 1), kept, call)
        assert outcome.leftovers == 0
    usage = {kind: count for kind, count in kept.items() if count}
    assert all(getattr(simulator.usage(), kind) == count for kind, count in usage.items())
    simulator.reset()


def test_a_forked_child_that_hangs_is_ended(simulator: Simulator, monkeypatch: Any) -> None:
    from vmmref.conformance.subjects.experiments import trial

    monkeypatch.setattr(trial, "PATIENCE_SECONDS", 0.05)
    before = open_descriptors()
    assert in_fork(_never) == b""
    assert open_descriptors() == before


def _never() -> bytes:
    signal.pause()
    return b"late"


def test_a_trial_notes_only_what_is_not_right(simulator: Simulator) -> None:
    trial = Trial(ground(simulator), "a seed")
    trial.check(True, "right")
    trial.check(False, "wrong")
    assert trial.wrong == ["wrong"]
