"""The reference pool's answer to every `Attempt`: short experiments that make what they need and give it back."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable

from vmmref.conformance.subjects import simulation
from vmmref.conformance.subjects.experiments import brokers, handles, killed, one_request, requests
from vmmref.conformance.subjects.experiments.trial import Ground, Trial, open_descriptors
from vmmref.conformance.subjects.outcomes import outcome_of
from vmmref_models.operations import Attempt, Outcome

__all__ = ["EXPERIMENTS", "Ground", "attempt", "possible"]

EXPERIMENTS: dict[str, Callable[[Trial], Outcome]] = {
    "map-after-close": handles.map_after_close,
    "map-existing-after-close": handles.map_existing_after_close,
    "map-outside": handles.map_outside,
    "exporter-killed": killed.exporter_killed,
    "descriptors": handles.descriptors,
    "use-after-fork": handles.use_after_fork,
    "ask": brokers.ask,
    "ask-without-token": brokers.ask_without_token,
    "ask-as-another-user": brokers.ask_as_another_user,
    "ask-among-bad-clients": brokers.ask_among_bad_clients,
    "ask-the-dead": brokers.ask_the_dead,
    "broken-broker": brokers.broken_broker,
    "producer-killed": killed.producer_killed,
    "request-without-processor": requests.without_processor,
    "request": one_request.request,
    "request-of-containers": requests.of_containers,
    "request-when-full": requests.when_full,
}
"""Every experiment by the name that `Attempt.what` gives."""

_WITH_PROCESSES = frozenset({"exporter-killed", "producer-killed"})


def possible() -> frozenset[str]:
    """The experiments that this process can do: asking as another user takes root."""
    return frozenset(EXPERIMENTS) - (frozenset() if os.geteuid() == 0 else {"ask-as-another-user"})


def attempt(ground: Ground, operation: Attempt, kept: Counter[str], failing_call: int = 0) -> Outcome:
    """Do one experiment; `failing_call` is the number of its driver call that is made to fail, 0 = none.

    The leftovers are whatever it found wrong, and what this process holds afterwards that it did not hold before. What
    the driver has refused to take back is counted in `kept` instead.
    """
    if operation.what in _WITH_PROCESSES:
        killed.prepare()
    trial = Trial(ground, f"{operation.what}/{operation.seed}", failing_call)
    usage, descriptors = simulation.usage(), open_descriptors()
    try:
        outcome = EXPERIMENTS[operation.what](trial)
    except Exception as error:
        outcome = outcome_of(error, trial.kept)
    wrong = list(trial.wrong)
    for kind, count in simulation.usage().items():
        left = count - usage[kind] - trial.kept[kind]
        wrong += [f"one of the {kind} was left behind"] * max(0, left)
    kept.update(trial.kept)
    if not trial.kept:
        # Memory that the driver refuses to take back keeps its descriptor.
        wrong += [f"descriptor {number} was left open" for number in sorted(open_descriptors() - descriptors)]
    message = "; ".join(filter(None, [outcome.message, *wrong]))
    return dataclasses.replace(outcome, leftovers=len(wrong), message=message)
