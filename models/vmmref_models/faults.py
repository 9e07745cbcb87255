"""What an injected driver failure may leave behind. The pool has freedom here: the model follows what it was shown.

Everything that is not listed here is `Impossible`: a failed publish grants nothing and loses nothing (PUB-3), a failed
read keeps its table entry, if it got that far, and acknowledges once (CON-4), a failed pass or cancel carries each
claim through or undoes it (REC-3), a failed constructor keeps nothing (LIFE-4).
"""

from __future__ import annotations

from dataclasses import replace

from vmmref_models import allocation, streams
from vmmref_models.observation import Observation
from vmmref_models.operations import (
    Cancel,
    Construct,
    Fetch,
    Outcome,
    Publish,
    Read,
    Recycle,
    Wrap,
)
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
    replaced,
)
from vmmref_models.streams import RETIRE_QUEUE, rank_queue

Words = tuple[tuple[int, ...], ...]


def failed(
    state: State,
    operation: Publish | Wrap | Read | Fetch | Recycle | Cancel | Construct,
    seen: Outcome,
    observed: Observation | None,
) -> tuple[State, Outcome]:
    """The state after `operation` answered that a driver call failed, as far as `observed` tells.

    Raises Impossible for an end that no rule allows.
    """
    outcome = Outcome("failed", seen.reason, message=seen.message)
    if seen.reason is Reason.POOL_FAILED and not isinstance(operation, Read | Fetch | Construct):
        if isinstance(operation, Recycle | Cancel) and observed is not None:
            state = _failed_claim(state, operation, observed)
        return replace(state, failed=True), outcome
    if seen.reason is not Reason.DRIVER_CALL_FAILED:
        raise Impossible("ERR-2", f"a failed driver call was reported as {seen.reason}")
    if isinstance(operation, Construct):
        return state, replace(outcome, leftovers=0)
    if isinstance(operation, Read | Fetch):
        # A consumer goes on with its own import, whatever has become of the pool.
        return _failed_read(state, operation, seen), replace(outcome, count=seen.count)
    if state.closed or state.failed:
        return state, outcome
    if observed is None:
        return state, outcome
    if isinstance(operation, Publish | Wrap):
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
        and set(state.device.words[lease.slot][1:]) == {lease.generation}
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
            pieces = streams.queued(state.device, RETIRE_QUEUE, Piece(RETIRED, lease))
            state = replace(state, allocator=allocation.claim(state.allocator, lease.slot), device=pieces)
        if not held:
            gone.append(lease.slot)
    slots = tuple(slot for slot in state.allocator.retiring if slot in gone)
    limit = state.shape.generation_limit
    return replace(state, allocator=allocation.give_back(state.allocator, limit, slots, observed.free_slots))


def _failed_read(state: State, operation: Read | Fetch, seen: Outcome) -> State:
    """CON-4: where the rank had entered the lease, A[r] = n is queued behind whatever the read had queued."""
    proxy = state.proxy(operation.proxy)
    if proxy is None:
        raise ValueError(f"proxy {operation.proxy} is unknown")
    consumers, lease, rank = state.consumers, proxy.lease, proxy.rank
    if consumers.tables[rank][lease.slot] >= lease.generation:
        return state
    if not seen.count:  # The failure came before the table; the import may have come before the failure.
        return replace(state, consumers=replace(consumers, imported=consumers.imported or None))
    proxies = tuple(replace(p, state=ENDED) if p.token == proxy.token else p for p in consumers.proxies)
    tables = replaced(consumers.tables, rank, replaced(consumers.tables[rank], lease.slot, lease.generation))
    device = streams.queued(state.device, rank_queue(rank), Piece(ACK, lease, rank))
    return replace(state, consumers=replace(consumers, tables=tables, proxies=proxies, imported=True), device=device)


def has_import(state: State, rank: int, seen: Outcome | None) -> bool:
    """Whether the process of a rank holds an import of a pool that is gone.

    As the pool says where that is its own affair: after a failed read, and for a rank that came too late, which may
    share another rank's process, or have one of its own.
    """
    if state.policies.protocol != RETIRE_VALIDATE_MAX and seen is not None:
        return seen.reason is not Reason.PRODUCER_GONE  # It may leave its memory in place.
    if state.consumers.imported is None or (state.consumers.imported and rank in state.consumers.late):
        return seen is None or seen.reason is not Reason.PRODUCER_GONE
    return state.consumers.imported
