"""REC: recycling."""

from __future__ import annotations

from vmmref_models.families.history import (
    BY_HANDLE,
    PUBLISHES,
    TAKES_BACK,
    acknowledged_by_all,
    answer,
    first_change,
    granted,
    is_acknowledged,
    is_idle,
    is_open,
    lease_named,
    must_refuse,
    possible_acks,
    proxy_used,
    word,
    word_name,
)
from vmmref_models.operations import (
    Cancel,
    Claim,
    Deliver,
    Faulty,
    Look,
    Publish,
    Read,
    Reclaim,
    Recycle,
    Release,
    ReleaseLease,
    Return,
    Revoke,
    Shutdown,
)
from vmmref_models.reasons import Reason
from vmmref_models.rules import BOOKS, HELD, Broken, Change, Step, Verdict, reachable, rule
from vmmref_models.state import RETIRE_VALIDATE_MAX, Lease, State


def active_leases(past: State) -> list[Lease]:
    """The leases that held a slot and that nobody had claimed."""
    retiring = past.allocator.retiring
    return [lease for lease in past.allocator.held if lease is not None and lease.slot not in retiring]


def was_taken(step: Step, lease: Lease) -> bool:
    """Whether an active lease was claimed or freed by this step."""
    before, after = step.before, step.after
    if before.leases is None or after.leases is None or lease.view not in before.leases:
        return False
    if lease.view not in after.leases:
        return True
    return lease.slot in (after.retiring or ()) and lease.slot not in (before.retiring or ())


@rule("REC-1", on=(Claim, Recycle, Reclaim))
def recycled_only_when_all_have_acknowledged(step: Step) -> Verdict | None:
    """A lease is recycled only when every rank has acknowledged n (or is known dead). Partial groups never suffice."""
    verdict: Verdict | None = None
    for lease in active_leases(step.past):
        words, taken = step.past.device.words[lease.slot][1:], was_taken(step, lease)
        complete = acknowledged_by_all(step, lease)
        if taken and not complete:
            return Broken(f"{lease.view} stays: acknowledged were {words}", "it was claimed")
        if taken or (lease.generation in words and not complete):
            verdict = HELD
    return verdict


@reachable("REC-1", "reuse", on=PUBLISHES)
def a_slot_was_reused_after_all_had_acknowledged(step: Step) -> Verdict | None:
    """A slot was leased again after every rank had acknowledged its last lease."""
    lease = granted(step)
    if lease is None or lease.generation == 1 or not 0 <= lease.slot < step.shape.slots:
        return None
    return HELD if set(step.past.device.words[lease.slot][1:]) == {lease.generation - 1} else None


@rule("REC-2", on=(*TAKES_BACK, Faulty), needs=("words",), protocols=(RETIRE_VALIDATE_MAX,), signs=BOOKS)
def freed_after_the_retire_store(step: Step) -> Verdict | None:
    """The retire store of lease n comes after lease n's own copy and ready store, and the host has seen it complete
    before the range or the slot returns to a free list.
    """
    if step.after.words is None:
        return None
    verdict: Verdict | None = None
    for lease in step.left:
        ready = word(step.after.words, lease.slot, 0)
        if ready != 2 * lease.generation + 1:
            return Broken(f"R of slot {lease.slot} is {2 * lease.generation + 1} before it is freed", f"{ready}")
        verdict = HELD
    return verdict


@rule("REC-3", on=(*BY_HANDLE, Claim))
def one_party_claims(step: Step) -> Verdict | None:
    """Recycler, cancel, revoke, deadline, failure and shutdown first move lease (slot, n) from active to retiring under
    the lock; exactly one succeeds, and only that one retires and frees. A look that finds another state or generation
    is dropped.
    """
    if not is_open(step):
        return None
    past, lease = step.past, lease_named(step.past, step.operation)
    if lease is not None:
        is_retiring = past.is_held(lease) and lease.slot in past.allocator.retiring
        return must_refuse(step, Reason.INACTIVE_LEASE) if is_retiring else None
    dropped = _dropped_by_look(step)
    if not dropped or step.before.retiring is None or step.after.retiring is None:
        return None
    new = set(step.after.retiring) - set(step.before.retiring)
    due = {other.slot for other in active_leases(past) if acknowledged_by_all(step, other)}
    for old in dropped:
        if old.slot in new - due:
            return Broken(f"the look at {old.view} is dropped: it is not active", f"slot {old.slot} was claimed")
    return HELD


def _dropped_by_look(step: Step) -> list[Lease]:
    """The leases that an old look saw complete and that are not active any more."""
    if not isinstance(step.operation, Claim):
        return []
    dropped: list[Lease] = []
    for snapshot in step.past.looks:
        if snapshot.token == step.operation.look:
            seen = [lease for lease in step.past.published if lease.generation in snapshot.words[lease.slot][1:]]
            gone = [lease for lease in seen if not step.past.is_active(lease)]
            dropped += [lease for lease in gone if is_acknowledged(step.past, lease, snapshot.words)]
    return dropped


@reachable("REC-3", "old-look", on=(Claim,))
def an_old_look_met_a_newer_lease(step: Step) -> Verdict | None:
    """A look was used for a claim after the slot of a lease that it saw complete had been leased again."""
    held = step.past.allocator.held
    return HELD if any(held[lease.slot] not in (None, lease) for lease in _dropped_by_look(step)) else None


@rule(
    "REC-4",
    on=(Publish, Deliver, Read, Release, Return, Look, Claim, Reclaim, Cancel, Revoke),
    needs=("words", "stepping"),
)
def nothing_waits_without_need(step: Step) -> Verdict | None:
    """No allocator lock is held while waiting for the device; a stuck stream does not stop allocation, cancel or
    shutdown.
    """
    operation = step.operation
    if isinstance(operation, Cancel | Revoke | Reclaim) and operation.wait:
        return None
    for change in step.changed_words:
        if _is_queued_store(step, change):
            slot, column, old, new = change
            expected = f"{type(operation).__name__} waits for no stream: {word_name(slot, column)} stays {old}"
            return Broken(expected, f"{new}")
    return None if is_idle(step.past) or step.after.words is None else HELD


def _is_queued_store(step: Step, change: Change) -> bool:
    """Whether a word changed as a queued piece, or the one that this operation queues, was to change it."""
    slot, column, _, new = change
    proxy = proxy_used(step.past, step.operation)
    if proxy is not None and (slot, column, new) == (proxy.lease.slot, 1 + proxy.rank, proxy.lease.generation):
        return True
    if column == 0 and step.after.generations is not None and slot < len(step.after.generations):
        return new // 2 == step.after.generations[slot]
    return column > 0 and new in possible_acks(step.past, slot, column - 1)


@rule("REC-5", on=(Claim, *TAKES_BACK))
def recycled_exactly_once(step: Step) -> Verdict | None:
    """A lease is recycled exactly once."""
    operation, outcome, ended = step.operation, step.outcome, step.left
    if isinstance(operation, Reclaim | Recycle) and outcome.kind == "done" and step.after.leases is not None:
        if outcome.count is not None and outcome.count != len(ended):
            return Broken(f"{len(ended)} leases freed: {ended}", f"{outcome.count} counted")
    elif not ended:
        return None
    before, after = step.before.free_ranges, step.after.free_ranges
    if before is None or after is None:
        return HELD if ended else None
    grown = sum(end - start for start, end in after) - sum(end - start for start, end in before)
    due = sum(lease.end - lease.start for lease in ended)
    if grown != due:
        return Broken(f"{due} B more free: {ended} ended", f"{grown} B more")
    return HELD if ended else None


@rule("REC-6", on=(ReleaseLease,), needs=("release-lease",))
def releasing_an_inactive_lease_is_refused(step: Step) -> Verdict | None:
    """ "Cannot release inactive pool lease (slot=..., generation=...)" for any release that is not of the active
    lease.
    """
    lease = lease_named(step.past, step.operation)
    if lease is None or not is_open(step):
        return None
    if not step.past.is_active(lease):
        return must_refuse(step, Reason.INACTIVE_LEASE)
    if step.outcome.kind != "done":
        return Broken(f"{lease.view} is released", answer(step.outcome))
    return None


@reachable("REC-6", "reissued", on=(ReleaseLease,), needs=("release-lease",))
def an_old_handle_was_released(step: Step) -> Verdict | None:
    """A handle was released after its slot had been leased again."""
    lease = lease_named(step.past, step.operation)
    newest = step.past.allocator.generations
    return HELD if lease is not None and is_open(step) and newest[lease.slot] > lease.generation else None


@reachable("REC-2", "published-and-cancelled", on=(Cancel, Revoke))
def a_lease_was_cancelled_while_its_copy_was_queued(step: Step) -> Verdict | None:
    """A lease was cancelled while its copy and its ready store were still queued."""
    lease = lease_named(step.past, step.operation)
    queue = step.past.device.queues[0]
    if lease is None or step.outcome.kind != "done":
        return None
    return HELD if any(piece.lease.token == lease.token for piece in queue) else None


@reachable("REC-5", "shutdown-with-leases", on=(Shutdown,))
def a_pool_was_shut_down_with_leases(step: Step) -> Verdict | None:
    """A pool was shut down while leases were active."""
    return HELD if step.before.leases and first_change(step) is not None else None
