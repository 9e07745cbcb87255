"""TRN: many tensors of one request. Judged by experiments beside the pool."""

from __future__ import annotations

from vmmref_models.families.experiments import tried
from vmmref_models.operations import Attempt, Faulty
from vmmref_models.rules import HELD, Step, Verdict, reachable, rule


@rule("TRN-1", on=(Attempt,))
def a_model_without_a_processor_is_refused(step: Step) -> Verdict | None:
    """ "A CUDA VMM-enabled model must provide a multimodal processor"."""
    return tried(step, "TRN-1")


@rule("TRN-2", on=(Attempt, Faulty), requires=(Attempt,))
def a_request_is_published_whole_or_not(step: Step) -> Verdict | None:
    """A request is published whole or not at all: at a failure earlier leases are cancelled and the request's fields
    hold their tensors again; the first error is the one reported, later ones are notes.
    """
    return tried(step, "TRN-2")


@reachable("TRN-2", "failed", on=(Faulty,), needs=("faults",))
def a_request_failed_in_the_middle(step: Step) -> Verdict | None:
    """A driver call failed while a request was published or read."""
    return HELD if tried(step, "TRN-2") is not None and step.outcome.kind == "failed" else None


@rule("TRN-3", on=(Attempt,))
def a_container_of_tensors_is_refused(step: Step) -> Verdict | None:
    """A field with a container of tensors is refused (TypeError, "single tensor")."""
    return tried(step, "TRN-3")


@rule("TRN-4", on=(Attempt,))
def a_full_pool_falls_back_to_host_copies(step: Step) -> Verdict | None:
    """Pool full: the tensor travels as a host copy, equal to the source, counted and warned about once."""
    return tried(step, "TRN-4")
