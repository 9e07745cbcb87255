"""Experiments beside the pool under test: what each asks, which rule it is about, and what a right pool answers.

Each ends by itself, needs nothing of the pool's history and leaves the pool as it was. The seed of an `Attempt` varies
what an experiment leaves open. `leftovers` counts whatever is not as it must be afterwards.
"""

from __future__ import annotations

from typing import NamedTuple

from vmmref_models.operations import Outcome
from vmmref_models.reasons import Reason


class Expectation(NamedTuple):
    """What an experiment is about, and the only right answer to it."""

    rule: str
    outcome: Outcome
    sentence: str


def _done(rule: str, sentence: str) -> Expectation:
    return Expectation(rule, Outcome("done", leftovers=0), sentence)


def _refused(rule: str, reason: Reason, sentence: str) -> Expectation:
    return Expectation(rule, Outcome("refused", reason, leftovers=0), sentence)


ATTEMPTS: dict[str, Expectation] = {
    "map-after-close": _refused("HND-2", Reason.RESERVATION_CLOSED, "map new memory into a closed reservation"),
    "map-existing-after-close": _refused(
        "HND-2", Reason.RESERVATION_CLOSED, "map an allocation into a closed reservation"
    ),
    "map-outside": _refused("HND-3", Reason.OUTSIDE_RESERVATION, "map beyond the end, or before the start"),
    "exporter-killed": _done("HND-5", "import a pool, kill its process, read what it had published"),
    "descriptors": _done("HND-6", "count own and received descriptors that a program started now would inherit"),
    "use-after-fork": _refused("HND-7", Reason.FORKED, "use a pool, a proxy or an import in a forked child"),
    "ask": _done("BRK-1", "ask the broker for the descriptor, as the right user with the token"),
    "ask-without-token": _refused("BRK-1", Reason.NO_DESCRIPTOR, "ask with no, a wrong, a cut or a longer token"),
    "ask-as-another-user": _refused("BRK-1", Reason.NO_DESCRIPTOR, "ask with the token, as another user"),
    "ask-among-bad-clients": _done("BRK-2", "ask while others vanish, lie, flood and stall; all of them hang up then"),
    "ask-the-dead": _refused("BRK-3", Reason.NO_DESCRIPTOR, "ask the broker of a pool that has ended"),
    "broken-broker": _refused("BRK-3", Reason.BROKER_FAILED, "end a broker whose thread cannot end"),
    "producer-killed": _refused("REAP-3", Reason.PRODUCER_GONE, "read a proxy whose producer has been killed"),
    "request-without-processor": _refused("TRN-1", Reason.BAD_ARGUMENT, "make a transport without a processor"),
    "request": _done("TRN-2", "publish a request, whole or not; give it to each rank, or take it back"),
    "request-of-containers": _refused("TRN-3", Reason.BAD_ARGUMENT, "publish a request with a container of tensors"),
    "request-when-full": _done("TRN-4", "publish requests until tensors travel as host copies, and compare them"),
}
"""Every experiment by the name that `Attempt.what` gives."""
