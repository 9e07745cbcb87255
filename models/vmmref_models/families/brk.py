"""BRK: the descriptor broker. Judged by experiments beside the pool."""

from __future__ import annotations

from vmmref_models.families.experiments import tried
from vmmref_models.operations import Attempt
from vmmref_models.rules import Step, Verdict, rule


@rule("BRK-1", on=(Attempt,))
def only_the_authorised_get_a_descriptor(step: Step) -> Verdict | None:
    """Only a process of the same user that shows the pool's token gets a descriptor; everybody else gets nothing and
    learns nothing.
    """
    return tried(step, "BRK-1")


@rule("BRK-2", on=(Attempt,))
def a_bad_client_harms_nobody_else(step: Step) -> Verdict | None:
    """A client that vanishes, lies, floods or stalls neither stops service for the others nor fails the pool."""
    return tried(step, "BRK-2")


@rule("BRK-3", on=(Attempt,))
def broker_failures_are_told(step: Step) -> Verdict | None:
    """ "CUDA VMM POSIX FD broker failed" when the broker itself is broken; "CUDA VMM POSIX FD broker returned no file
    descriptor" to the client that got none, in bounded time.
    """
    return tried(step, "BRK-3")
