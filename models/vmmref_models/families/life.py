"""LIFE: a pool's life. HND-1: what it leaves behind."""

from __future__ import annotations

from vmmref_models.families.history import POOL_USES, answer, first_change, inner
from vmmref_models.operations import (
    Attempt,
    Borrow,
    Cancel,
    CancelProxy,
    Collect,
    Construct,
    Dispatch,
    DropImport,
    Faulty,
    Fetch,
    Join,
    Peek,
    PublishUnusable,
    Reclaim,
    Recycle,
    ReleaseLease,
    Revoke,
    Shutdown,
    Tamper,
    Wrap,
    WrapPack,
)
from vmmref_models.reasons import Reason
from vmmref_models.rules import HELD, TROUBLE, Broken, Run, Step, Verdict, rule, run_rule

REFUSED_ANYWAY = (PublishUnusable, Tamper, Cancel, Revoke, CancelProxy, ReleaseLease, Join)
"""What a closed pool has two reasons to refuse: which of them it names is its own affair."""

WAITS = (
    Dispatch,
    Wrap,
    WrapPack,
    Collect,
    Fetch,
    Borrow,
    Peek,
    DropImport,
    Reclaim,
    Recycle,
    Cancel,
    Revoke,
    CancelProxy,
    ReleaseLease,
    Shutdown,
    Attempt,
)

BAD_ARGUMENTS = ("memory_size", "consumer_count", "max_inflight_slices", "recycle_interval", "below-granule")


@rule("LIFE-1", on=(Construct,))
def bad_arguments_are_refused(step: Step) -> Verdict | None:
    """Bad sizes and intervals are refused: memory_size, consumer_count, max_inflight_slices and recycle_interval must
    be positive; smaller than one granule: says both numbers.
    """
    if not isinstance(step.operation, Construct) or step.operation.what not in BAD_ARGUMENTS:
        return None
    if step.outcome.kind == "refused" and step.outcome.reason is Reason.BAD_ARGUMENT:
        return HELD
    return Broken(f"refused {Reason.BAD_ARGUMENT} for a bad {step.operation.what}", answer(step.outcome))


@rule("LIFE-2", on=(*POOL_USES, Shutdown))
def a_closed_pool_refuses_newcomers(step: Step) -> Verdict | None:
    """Closing: "CUDA VMM multimodal pool is closing" for newcomers; every queued copy, ready and retire store ends
    first. It need not wait for consumers that hold an import of their own. Twice and again are safe.
    """
    outcome, after = step.outcome, step.after
    if isinstance(step.operation, Shutdown):
        if outcome.kind != "done" or after.life != "closed":
            return Broken("done, closed", f"{answer(outcome)}, {after.life}")
        if after.leases and not step.past.failed:
            return Broken("no lease after a shutdown", f"{after.leases}")
        change = first_change(step) if step.past.closed else None
        return HELD if change is None else Broken("a second shutdown changes nothing", change)
    if not step.past.closed:
        closing = outcome.reason is Reason.POOL_CLOSING
        return Broken("an answer: the pool is not closed", answer(outcome)) if closing else None
    if outcome.kind == "refused" and (outcome.reason is Reason.POOL_CLOSING or isinstance(inner(step), REFUSED_ANYWAY)):
        return HELD
    return Broken(f"refused {Reason.POOL_CLOSING}", answer(outcome))


@rule("LIFE-3", on=(*POOL_USES, Faulty), needs=("faults",), signs=TROUBLE)
def a_failed_pool_refuses_every_use(step: Step) -> Verdict | None:
    """ "CUDA VMM multimodal pool failed" (with its cause) for every use after a failure that leaves device state
    unknown; nothing is reused.
    """
    outcome = step.outcome
    if step.past.closed or isinstance(inner(step), Construct):
        return None
    if not step.past.failed:
        if outcome.reason is not Reason.POOL_FAILED:
            return None
        if outcome.kind == "failed" and step.after.life == "failed":
            return HELD
        return Broken("POOL_FAILED from a pool that a driver failure has left failed", answer(outcome))
    if not isinstance(inner(step), POOL_USES):
        return None
    if outcome.reason is not Reason.POOL_FAILED:
        return Broken(f"refused {Reason.POOL_FAILED}", answer(outcome))
    change = first_change(step)
    return HELD if change is None else Broken("nothing is reused", change)


@rule("LIFE-4", on=(Construct, Faulty), needs=("leaks",), signs=TROUBLE)
def a_failed_constructor_keeps_nothing(step: Step) -> Verdict | None:
    """A constructor that fails gives back everything it took."""
    outcome = step.outcome
    if not isinstance(inner(step), Construct) or outcome.kind not in ("refused", "failed"):
        return None
    if outcome.leftovers is None:
        return None
    return HELD if outcome.leftovers == 0 else Broken("nothing left behind", f"{outcome.leftovers} left behind")


@rule("LIFE-5", on=WAITS)
def every_wait_has_an_end(step: Step) -> Verdict | None:
    """Every wait has an end: a time-out path that reports what is outstanding."""
    if step.outcome.reason is Reason.TIMED_OUT:
        return Broken("an end: nothing that it waits for is stuck", f"{answer(step.outcome)} {step.outcome.message}")
    if isinstance(step.operation, Cancel | Revoke | Reclaim) and not step.operation.wait:
        return None
    return HELD if step.outcome.kind == "done" else None


@run_rule("HND-1", needs=("leaks",))
def every_handle_is_given_back(run: Run) -> Verdict | None:
    """Each handle, mapping, reservation and descriptor is given back exactly once, on success and at every failing
    step.
    """
    if run.leftovers is None:
        return None
    kept = {kind: count for kind, count in run.leftovers.items() if count}
    return HELD if not kept else Broken("nothing left behind by a closed pool", f"{kept}")
