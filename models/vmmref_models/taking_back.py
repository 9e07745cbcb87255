"""The producer takes back: look, claim, retire, free; cancel, revoke, deadline, shutdown. All go through one claim."""

from __future__ import annotations

from dataclasses import replace

from vmmref_models import allocation, processes, streams
from vmmref_models.observation import Observation
from vmmref_models.operations import DONE, CancelProxy, Claim, Look, Outcome
from vmmref_models.refusals import granted, inactive, not_open
from vmmref_models.state import RETIRED, Lease, Piece, Snapshot, State
from vmmref_models.streams import PUBLISH_QUEUE, RETIRE_QUEUE

Words = tuple[tuple[int, ...], ...]


def complete(state: State, words: Words) -> tuple[Lease, ...]:
    """The active, dispatched leases that these words show acknowledged by everybody they wait for, by slot (REC-1)."""
    allocator, found = state.allocator, []
    for slot, lease in enumerate(allocator.held):
        if lease is None or slot in allocator.retiring or lease.token not in state.dispatched:
            continue
        if allocation.is_complete(allocator, words, lease):
            found.append(lease)
    return tuple(found)


def look(state: State, operation: Look) -> tuple[State, Outcome]:
    """Take a snapshot of every word as it is in memory now; queued acknowledgements are not waited for."""
    closed = not_open(state)
    if closed is not None:
        return state, closed
    return replace(state, looks=(*state.looks, Snapshot(operation.look, state.device.words))), DONE


def claim(state: State, operation: Claim) -> tuple[State, Outcome]:
    """Claim what the look saw complete. Looks may be old: leases that are no longer active are dropped (REC-3).

    Who is excused decides now, and not when the look was taken.
    """
    closed = not_open(state)
    if closed is not None:
        return state, closed
    snapshot = next(snapshot for snapshot in state.looks if snapshot.token == operation.look)
    state = replace(state, looks=tuple(other for other in state.looks if other is not snapshot))
    return claimed_by(state, snapshot.words)


def claimed_by(state: State, words: Words) -> tuple[State, Outcome]:
    """Claim what these words show complete, and let go what was set aside and is complete too; counts the claims."""
    leases = complete(state, words)
    state = let_go(state, words)
    for lease in leases:
        state = claimed(state, lease)
    return state, Outcome("done", count=len(leases))


def claimed(state: State, lease: Lease) -> State:
    """The state after an active lease was claimed and its retire store queued."""
    device = streams.queued(state.device, RETIRE_QUEUE, Piece(RETIRED, lease))
    return state.having(allocator=allocation.claim(state.allocator, lease.slot), device=device)


def let_go(state: State, words: Words) -> State:
    """CON-6: what was set aside may be freed once nobody looks at it any more."""
    slots = finished(state, words)
    return state.having(allocator=allocation.let_go(state.allocator, slots)) if slots else state


def finished(state: State, words: Words) -> tuple[int, ...]:
    """Slots that were set aside, and that these words show acknowledged by everybody they wait for."""
    allocator = state.allocator
    held = [allocator.held[slot] for slot in allocator.set_aside if slot in allocator.guarded]
    return tuple([lease.slot for lease in held if lease and allocation.is_complete(allocator, words, lease)])


def reclaim(state: State, wait: bool, observed: Observation | None) -> tuple[State, Outcome]:
    """Free the retiring leases whose retire store the host has seen complete, in the order of their claims (REC-2).

    A lease at whose bytes ranks may be looking is set aside instead (CON-6).
    """
    closed = not_open(state)
    if closed is not None:
        return state, closed
    if wait:
        state = state.having(device=streams.retired_up_to(state.device))
    if state.allocator.set_aside:
        state = _let_go_as_seen(state, observed)
    slots = retired(state)
    guarded = tuple([slot for slot in slots if slot in state.allocator.guarded])
    if guarded:
        state = state.having(allocator=allocation.hold_back(state.allocator, guarded))
        slots = tuple([slot for slot in slots if slot not in guarded])
    return freed(state, slots, observed), Outcome("done", count=len(slots))


def retired(state: State) -> tuple[int, ...]:
    """Slots that a pass comes to: up to the first one whose retire store is queued, without those set aside."""
    allocator, found = state.allocator, []
    waiting = {piece.lease.slot for piece in state.device.queues[RETIRE_QUEUE]}
    for slot in allocator.retiring:
        if slot in allocator.set_aside and slot in allocator.guarded:
            continue
        if slot in waiting:
            break
        found.append(slot)
    return tuple(found)


def _let_go_as_seen(state: State, observed: Observation | None) -> State:
    """A pass that failed may have let go what it found complete: the pool shows it by what is gone now."""
    if observed is None or observed.leases is None:
        return state
    shown = {lease.slot for lease in observed.leases}
    gone = tuple([slot for slot in finished(state, state.device.words) if slot not in shown])
    return state.having(allocator=allocation.let_go(state.allocator, gone)) if gone else state


def freed(state: State, slots: tuple[int, ...], observed: Observation | None = None) -> State:
    """The state after the retiring leases in `slots` gave back their ranges and slots."""
    if not slots:
        return state
    order = observed.free_slots if observed is not None else None
    return state.having(allocator=allocation.give_back(state.allocator, state.shape.generation_limit, slots, order))


def recycle(state: State, observed: Observation | None) -> tuple[State, Outcome]:
    """One whole pass: reap, look, claim, reclaim. Counts what it freed, also what earlier claims had left retiring."""
    closed = not_open(state)
    if closed is not None:
        return state, closed
    if state.consumers.dead:
        state, _ = processes.reap(state)
    state, _ = claimed_by(state, state.device.words)
    return reclaim(state, True, observed)


def cancel(state: State, token: int, wait: bool) -> tuple[State, Outcome]:
    """Claim a lease by its handle (CAN-1, CAN-3); refused unless it is the active lease of its slot (CAN-2, REC-6)."""
    lease = granted(state, token)
    closed = not_open(state)
    if closed is not None:
        return state, closed
    if not state.is_active(lease):
        return state, inactive(lease)
    state = claimed(state, lease)
    is_guarded = may_be_looked_at(state, lease)
    if is_guarded:
        state = state.having(allocator=allocation.guard(state.allocator, lease.slot))
    if not wait:
        return state, DONE
    state = state.having(device=streams.retired_up_to(state.device, lease))
    if is_guarded:
        return state.having(allocator=allocation.hold_back(state.allocator, (lease.slot,))), DONE
    return freed(state, (lease.slot,)), DONE


def may_be_looked_at(state: State, lease: Lease) -> bool:
    """Whether ranks may be looking at the bytes of this lease in place, so that they must outlive its end (CON-6)."""
    return lease.borrowable and lease.token in state.dispatched


def cancel_proxy(state: State, operation: CancelProxy) -> tuple[State, Outcome]:
    """Cancel by a proxy, and wait. Any proxy of a pack cancels the whole; after that the others do nothing (PACK-4)."""
    lease = granted(state, operation.lease)
    closed = not_open(state)
    if closed is not None:
        return state, closed
    if lease.is_pack and not state.is_active(lease):
        return state, DONE
    return cancel(state, operation.lease, wait=True)


def expire(state: State) -> tuple[State, Outcome]:
    """Every lease that was dispatched until now is past its deadline: reported, and nothing else (REAP-2)."""
    if state.closed or state.failed:
        return state, DONE
    return replace(state, overdue=len(state.dispatched)), DONE


def shutdown(state: State) -> tuple[State, Outcome]:
    """Refuse newcomers, end every queued copy, ready and retire store, retire every lease, free it (LIFE-2).

    Ranks are not waited for: one that holds an import goes on, and finds its lease retired.
    """
    if state.closed:
        return state, DONE
    state = processes.told_apart_no_more(state)
    if state.failed:  # LIFE-3: nothing is reused, so nothing is given back to the free lists either.
        return replace(state, closed=True, looks=()), DONE
    for lease in state.allocator.held:
        if lease is not None and lease.slot not in state.allocator.retiring:
            state = claimed(state, lease)
    device = streams.retired_up_to(state.device)
    device = streams.run(device, PUBLISH_QUEUE, len(device.queues[PUBLISH_QUEUE]))
    return freed(replace(state, device=device, closed=True, looks=()), state.allocator.retiring), DONE
