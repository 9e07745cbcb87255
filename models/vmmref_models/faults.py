"""What an injected driver failure may leave behind. The pool has freedom here: the model follows what it was shown.

Everything that is not listed here is `Impossible`: a failed publish grants nothing and loses nothing (PUB-3), a failed
read keeps its table entry, if it got that far, and acknowledges once (CON-4), a failed pass or cancel carries each
claim through or undoes it (REC-3), a failed constructor keeps nothing (LIFE-4).
"""

from __future__ import annotations

from dataclasses import replace

from vmmref_models import allocation, streams
from vmmref_models.consuming import entered_in, share
from vmmref_models.observation import Observation
from vmmref_models.operations import (
    Attempt,
    Borrow,
    Cancel,
    Construct,
    Disturbed,
    Fetch,
    Outcome,
    Publish,
    Read,
    Recycle,
    Wrap,
    WrapPack,
)
from vmmref_models.processes import imported_perhaps, reap, with_import
from vmmref_models.reasons import Reason
from vmmref_models.state import (
    ACK,
    ENDED,
    RETIRE_VALIDATE_MAX,
    RETIRED,
    Impossible,
    Lease,
    Piece,
    State,
)
from vmmref_models.streams import RETIRE_QUEUE, rank_queue
from vmmref_models.taking_back import may_be_looked_at

Words = tuple[tuple[int, ...], ...]


def failed(
    state: State,
    operation: Disturbed,
    seen: Outcome,
    observed: Observation | None,
) -> tuple[State, Outcome]:
    """The state after `operation` answered that a driver call failed, as far as `observed` tells.

    Raises Impossible for an end that no rule allows.
    """
    outcome = Outcome("failed", seen.reason, message=seen.message)
    is_the_pools = not isinstance(operation, Read | Fetch | Borrow | Construct | Attempt)
    if isinstance(operation, Recycle) and not state.closed and not state.failed:
        state, _ = reap(state)
    if seen.reason is Reason.POOL_FAILED and is_the_pools:
        if isinstance(operation, Recycle | Cancel) and observed is not None:
            state = _failed_claim(state, operation, observed)
        return replace(state, failed=True), outcome
    if seen.reason is not Reason.DRIVER_CALL_FAILED:
        raise Impossible("ERR-2", f"a failed driver call was reported as {seen.reason}")
    if isinstance(operation, Construct | Attempt):
        return state, replace(outcome, leftovers=0)
    if isinstance(operation, Read | Fetch | Borrow):
        # A consumer goes on with its own import, whatever has become of the pool.
        return _failed_read(state, operation, seen, observed), replace(outcome, count=seen.count)
    if state.closed or state.failed or observed is None:
        return state, outcome
    if isinstance(operation, Publish | Wrap | WrapPack):
        return _failed_publish(state, observed), outcome
    return _failed_claim(state, operation, observed), outcome


def readable_words(state: State, observed: Observation | None) -> Words | None:
    """The words that a pool showed, where the model knows what they mean."""
    if observed is None or observed.words is None or state.policies.protocol != RETIRE_VALIDATE_MAX or state.failed:
        return None
    same_form = list(map(len, observed.words)) == list(map(len, state.device.words))
    return observed.words if same_form else None  # CTL-2 judges a table of another form.


def _failed_publish(state: State, observed: Observation) -> State:
    """PUB-3: no lease and no range is gone; at most one free slot has used a generation, and went to the end."""
    allocator, device = state.allocator, state.device
    if observed.generations is None or observed.generations == allocator.generations:
        return state
    if len(observed.generations) != state.shape.slots:
        raise Impossible("GEN-1", f"{len(observed.generations)} generations shown for {state.shape.slots} slots")
    used = [slot for slot, count in enumerate(observed.generations) if count != allocator.generations[slot]]
    slot = used[0]
    generation = observed.generations[slot]
    if len(used) > 1 or generation != allocator.generations[slot] + 1 or slot not in allocator.free_slots:
        raise Impossible("GEN-1", f"generations {allocator.generations} became {observed.generations}")
    words = readable_words(state, observed)
    if words is not None and words[slot][0] != device.words[slot][0]:
        if words[slot][0] != 2 * generation + 1:
            raise Impossible("PUB-3", f"R of slot {slot} is {words[slot][0]}, not {2 * generation + 1}")
        device = replace(device, words=streams.stored(device.words, slot, 0, 2 * generation + 1))
    used_up = generation >= state.shape.generation_limit
    others = tuple(free for free in allocator.free_slots if free != slot)
    allocator = replace(
        allocator,
        generations=observed.generations,
        free_slots=others if used_up else (*others, slot),
        retired_slots=tuple(sorted((*allocator.retired_slots, slot))) if used_up else allocator.retired_slots,
    )
    return replace(state, allocator=allocator, device=device)


def _claimable(state: State, operation: Recycle | Cancel) -> tuple[Lease, ...]:
    """The leases that the operation might have claimed."""
    if isinstance(operation, Cancel):
        return tuple(lease for lease in state.published if lease.token == operation.lease)
    return tuple(
        lease
        for lease in state.allocator.held
        if lease is not None
        and lease.token in state.dispatched
        and allocation.is_complete(state.allocator, state.device.words, lease)
    )


def _failed_claim(state: State, operation: Recycle | Cancel, observed: Observation) -> State:
    """REC-3: every claim of this operation was carried through, wholly or up to retiring, or was undone."""
    if observed.leases is None or observed.retiring is None:
        return state
    claimable = _claimable(state, operation)
    gone: list[int] = []
    for lease in state.allocator.held:
        if lease is None:
            continue
        active = lease.slot not in state.allocator.retiring
        held, retiring = lease.view in observed.leases, lease.slot in observed.retiring
        if held and not retiring:
            if not active:
                raise Impossible("REC-3", f"slot {lease.slot} was retiring and is active again")
            continue
        if active:
            if lease not in claimable:
                raise Impossible("REC-1", f"slot {lease.slot} was claimed without all acknowledgements")
            state = _claimed(state, lease, by_handle=isinstance(operation, Cancel))
        if not held:
            gone.append(lease.slot)
    return _freed(_held_back(state, observed), tuple(gone), observed)


def _claimed(state: State, lease: Lease, by_handle: bool) -> State:
    pieces = streams.queued(state.device, RETIRE_QUEUE, Piece(RETIRED, lease))
    allocator = allocation.claim(state.allocator, lease.slot)
    if by_handle and may_be_looked_at(state, lease):
        allocator = allocation.guard(allocator, lease.slot)
    return replace(state, allocator=allocator, device=pieces)


def _held_back(state: State, observed: Observation) -> State:
    """CON-6: of the leases that may be looked at, the pool shows which ones it had come to free and set aside."""
    allocator, shown = state.allocator, observed.set_aside or ()
    slots = tuple(slot for slot in allocator.guarded if slot in shown and slot not in allocator.set_aside)
    return replace(state, allocator=allocation.hold_back(allocator, slots)) if slots else state


def _freed(state: State, gone: tuple[int, ...], observed: Observation) -> State:
    """The state after these leases were freed, in the order of their claims."""
    slots = tuple(slot for slot in state.allocator.retiring if slot in gone)
    for slot in slots:
        lease = state.allocator.held[slot]
        is_complete = lease is None or allocation.is_complete(state.allocator, state.device.words, lease)
        if slot in state.allocator.guarded and not is_complete:
            raise Impossible("CON-6", f"slot {slot} was freed while ranks may be looking at its bytes")
    limit = state.shape.generation_limit
    return replace(state, allocator=allocation.give_back(state.allocator, limit, slots, observed.free_slots))


def _failed_read(state: State, operation: Read | Fetch | Borrow, seen: Outcome, observed: Observation | None) -> State:
    """CON-4: where the rank had entered the lease, A[r] = n is queued behind whatever the read had queued."""
    proxy = state.proxy(operation.proxy)
    if proxy is None:
        raise ValueError(f"proxy {operation.proxy} is unknown")
    consumers, lease, rank = state.consumers, proxy.lease, proxy.rank
    if consumers.tables[rank][lease.slot] >= lease.generation or not seen.count:
        # The failure came before the table; the import may have come before the failure.
        return imported_perhaps(state, rank, observed or Observation(state.life))
    entered = replace(
        with_import(state, consumers, rank),
        proxies=tuple(
            replace(p, state=ENDED) if p.token == proxy.token or share(proxy, p) else p for p in consumers.proxies
        ),
        tables=entered_in(consumers.tables, rank, lease),
    )
    device = streams.queued(state.device, rank_queue(rank), Piece(ACK, lease, rank))
    return replace(state, consumers=entered, device=device)
