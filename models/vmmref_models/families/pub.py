"""PUB: publishing."""

from __future__ import annotations

from vmmref_models.families.history import (
    PUBLISHES,
    answer,
    first_change,
    granted,
    inner,
    is_open,
    layouts,
    lease_named,
    must_refuse,
    stream_of,
    word,
)
from vmmref_models.operations import (
    Advance,
    Cancel,
    Claim,
    Construct,
    Deliver,
    Dispatch,
    Faulty,
    Look,
    Publish,
    PublishUnusable,
    Read,
    Reclaim,
    Release,
    Revoke,
    Wrap,
    WrapPack,
)
from vmmref_models.reasons import Reason
from vmmref_models.rules import HELD, TROUBLE, WORDS, Broken, Step, Verdict, rule
from vmmref_models.state import COPY, READY, RETIRE_VALIDATE_MAX

RVM = (RETIRE_VALIDATE_MAX,)


@rule(
    "PUB-1",
    on=(Advance, Publish, Deliver, Read, Release, Look, Claim, Reclaim, Cancel, Revoke),
    needs=("words", "stepping"),
    protocols=RVM,
    signs=WORDS,
)
def ready_follows_the_copy(step: Step) -> Verdict | None:
    """ready(slot) = n becomes visible only after every byte of lease n is."""
    operation = step.operation
    if isinstance(operation, Cancel | Revoke | Reclaim) and operation.wait:
        return None  # It may have run the copy as well.
    verdict: Verdict | None = None
    for slot, column, old, new in step.changed_words:
        if column or new % 2 or new < old:
            continue
        queue = step.past.device.queues[0]
        behind = next((p for p in queue if p.lease.slot == slot and 2 * p.lease.generation == new), None)
        if behind is None:
            continue
        is_next = isinstance(operation, Advance) and stream_of(step.past, operation) == 0 and queue[0] is behind
        if behind.kind == COPY or not is_next:
            return Broken(f"R of slot {slot} stays at {old}: the copy of {behind.lease.view} is queued", f"{new}")
        if behind.kind == READY:
            verdict = HELD
    return verdict


@rule("PUB-2", on=(Dispatch, Wrap, WrapPack), needs=("words",), protocols=RVM)
def proxies_leave_when_ready_is_visible(step: Step) -> Verdict | None:
    """Readiness is host-published: a proxy leaves the producer when R = 2n is visible."""
    if step.outcome.kind != "done" or step.after.words is None:
        return None
    named = lease_named(step.past, step.operation)
    lease = named.view if named is not None else granted(step)
    if lease is None:
        return None
    ready = word(step.after.words, lease.slot, 0)
    if ready != 2 * lease.generation:
        return Broken(f"R of slot {lease.slot} is {2 * lease.generation}", f"{ready}")
    return HELD


@rule("PUB-3", needs=("faults",), signs=WORDS | TROUBLE)
def a_failed_publish_loses_nothing(step: Step) -> Verdict | None:
    """Copy or ready failed: the lease goes back only after the queued copy and the queued ready store have ended; the
    error reaches the caller; if the device state is unknown the pool is failed (LIFE-3).
    """
    if isinstance(step.operation, Faulty) and isinstance(inner(step), PUBLISHES):
        if not is_open(step) or step.outcome.kind != "failed" or step.after.life == "failed":
            return None
        return _nothing_is_lost(step)
    if step.policies.protocol != RETIRE_VALIDATE_MAX:
        return None
    for slot, column, old, new in step.changed_words:
        if column or new % 2 or new <= old:
            continue
        lease = granted(step)
        known = [other.view for other in step.past.published] + ([lease] if lease is not None else [])
        if not any(view.slot == slot and 2 * view.generation == new for view in known):
            return Broken(f"no ready store of a lease that was never granted in slot {slot}", f"R became {new}")
    return None


def _nothing_is_lost(step: Step) -> Verdict:
    before, after = step.before, step.after
    for name in ("leases", "retiring", "free_ranges"):
        if getattr(before, name) != getattr(after, name):
            return Broken(f"{name} {getattr(before, name)} as before", f"{getattr(after, name)}")
    used = [
        s for s, (a, b) in enumerate(zip(before.generations or (), after.generations or (), strict=False)) if a != b
    ]
    for slot in used:
        if after.free_slots is not None and slot not in (*after.free_slots, *(after.retired_slots or ())):
            return Broken(f"slot {slot} free again", f"free {after.free_slots}")
        ready = word(after.words, slot, 0) if step.policies.protocol == RETIRE_VALIDATE_MAX else None
        if ready is not None and after.generations is not None and ready == 2 * after.generations[slot]:
            return Broken(f"R of slot {slot} is not live: the lease went back", f"{ready}")
    return HELD


@rule("PUB-4", on=(*PUBLISHES, PublishUnusable))
def unusable_tensors_are_refused(step: Step) -> Verdict | None:
    """Empty, wrong-device and otherwise unusable tensors are refused before anything is taken; non-contiguous ones are
    made contiguous.
    """
    if not is_open(step):
        return None
    if isinstance(step.operation, PublishUnusable):
        return must_refuse(step, Reason.UNUSABLE_TENSOR)
    if step.outcome.reason is Reason.UNUSABLE_TENSOR:
        return Broken("a valid tensor is taken", answer(step.outcome))
    if set(layouts(step.operation)) <= {"contiguous"}:
        return None
    return HELD if step.outcome.kind == "done" else None


@rule("PUB-5", on=(Construct,))
def backing_is_checked_at_construction(step: Step) -> Verdict | None:
    """Backing memory is checked once, at construction: a sufficiently large contiguous uint8 tensor on the pool's
    device.
    """
    if not isinstance(step.operation, Construct) or not step.operation.what.startswith("backing-"):
        return None
    if step.outcome.kind != "refused" or step.outcome.reason is not Reason.UNUSABLE_BACKING:
        return Broken(f"refused {Reason.UNUSABLE_BACKING}", answer(step.outcome))
    change = first_change(step)
    return HELD if change is None else Broken("nothing changed", change)
