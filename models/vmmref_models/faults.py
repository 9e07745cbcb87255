"""What an injected driver failure may leave behind. The pool has freedom here: the model follows what it was shown.

Everything that is not listed here is `Impossible`: a failed publish grants nothing and loses nothing (PUB-3), a failed
read keeps its table entry and acknowledges once (CON-4), a failed pass or cancel carries each claim through or undoes
it (REC-3), a failed constructor keeps nothing (LIFE-4).
"""

from __future__ import annotations

from dataclasses import replace

from vmmref_models import allocation, streams
from vmmref_models.observation import Observation
from vmmref_models.operations import (
    Advance,
    Cancel,
    Claim,
    Collect,
    Construct,
    Faulty,
    Fetch,
    Operation,
    Outcome,
    Publish,
    Read,
    Recycle,
    Release,
    Wrap,
)
from vmmref_models.reasons import Reason
from vmmref_models.state import (
    ACK,
    ENDED,
    READ_READY,
    READY,
    RETIRE_VALIDATE_MAX,
    RETIRED,
    Device,
    Impossible,
    Lease,
    Piece,
    State,
    replaced,
    stream_names,
)
from vmmref_models.streams import PUBLISH_QUEUE, RETIRE_QUEUE, rank_queue

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
        return replace(state, failed=True), outcome
    if seen.reason is not Reason.DRIVER_CALL_FAILED:
        raise Impossible("ERR-2", f"a failed driver call was reported as {seen.reason}")
    if isinstance(operation, Construct):
        return state, replace(outcome, leftovers=0)
    if state.closed or state.failed:
        return state, outcome
    if isinstance(operation, Read | Fetch):
        return _failed_read(state, operation, observed), outcome
    if observed is None:
        return state, outcome
    words = readable_words(state, observed)
    if words is not None:
        state = replace(state, device=_caught_up(state.device, words))
    if isinstance(operation, Publish | Wrap):
        return _failed_publish(state, observed), outcome
    if isinstance(operation, Recycle):
        claimable = _complete(state)
    else:
        claimable = tuple(lease for lease in state.published if lease.token == operation.lease)
    return _failed_claim(state, claimable, observed), outcome


def readable_words(state: State, observed: Observation | None) -> Words | None:
    """The words that a pool showed, where the model knows what they mean."""
    if observed is None or observed.words is None or state.policies.protocol != RETIRE_VALIDATE_MAX:
        return None
    same_form = list(map(len, observed.words)) == list(map(len, state.device.words))
    return observed.words if same_form else None  # CTL-2 judges a table of another form.


def _caught_up(device: Device, words: Words) -> Device:
    """The device after the producer's streams ran as far as the stores that are visible in `words`."""
    for index, kind in ((PUBLISH_QUEUE, READY), (RETIRE_QUEUE, RETIRED)):
        done = 0
        for position, piece in enumerate(device.queues[index]):
            value = 2 * piece.lease.generation + (kind == RETIRED)
            if piece.kind == kind and words[piece.lease.slot][0] >= value:
                done = position + 1
        device = streams.run(device, index, done)
    return device


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


def _complete(state: State) -> tuple[Lease, ...]:
    """The leases that a pass might have claimed: active, dispatched, acknowledged by every rank."""
    return tuple(
        lease
        for lease in state.allocator.held
        if lease is not None
        and lease.slot not in state.allocator.retiring
        and lease.token in state.dispatched
        and set(state.device.words[lease.slot][1:]) == {lease.generation}
    )


def _failed_claim(state: State, claimable: tuple[Lease, ...], observed: Observation) -> State:
    """REC-3: every claim of this operation was carried through, wholly or up to retiring, or was undone."""
    if observed.leases is None or observed.retiring is None:
        return state
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
    words = readable_words(state, observed)
    if words is not None:
        state = replace(state, device=_caught_up(state.device, words))
    waiting = {piece.lease.slot for piece in state.device.queues[RETIRE_QUEUE]}
    early = waiting.intersection(gone)
    if early and words is not None:
        raise Impossible("REC-2", f"slots {sorted(early)} were freed before their retire store was complete")
    slots = tuple(slot for slot in state.allocator.retiring if slot in gone)
    limit = state.shape.generation_limit
    return replace(state, allocator=allocation.give_back(state.allocator, limit, slots, observed.free_slots))


def _failed_read(state: State, operation: Read | Fetch, observed: Observation | None) -> State:
    """CON-4: if the lease was entered, A[r] = n is queued or done; the word or a retry will show which."""
    proxy = state.proxy(operation.proxy)
    if proxy is None:
        raise ValueError(f"proxy {operation.proxy} is unknown")
    consumers, lease, rank = state.consumers, proxy.lease, proxy.rank
    if consumers.tables[rank][lease.slot] >= lease.generation:
        return state
    proxies = tuple(replace(p, state=ENDED) if p.token == proxy.token else p for p in consumers.proxies)
    state = replace(state, consumers=replace(consumers, proxies=proxies, imported=consumers.imported or None))
    return resolved(doubtful(state, lease, rank), None, None, observed)


def has_import(state: State, seen: Outcome | None) -> bool:
    """Whether the consumers' process holds an import of a pool that is gone; after a failed read, as the pool says."""
    if state.policies.protocol != RETIRE_VALIDATE_MAX and seen is not None:
        return seen.reason is not Reason.PRODUCER_GONE  # It may leave its memory in place.
    if state.consumers.imported is None:
        return seen is None or seen.reason is not Reason.PRODUCER_GONE
    return state.consumers.imported


# --- doubts: acknowledgements that may or may not be queued -----------------------------------------------------------


def doubtful(state: State, lease: Lease, rank: int) -> State:
    """The state in which this rank may or may not have entered the lease and queued its acknowledgement."""
    device = streams.queued(state.device, rank_queue(rank), Piece(ACK, lease, rank, certain=False))
    return replace(state, device=device, doubts=True)


def resolved(state: State, operation: Operation | None, seen: Outcome | None, observed: Observation | None) -> State:
    """The state with every doubt removed that the coming operation removes by what was seen of it.

    A doubtful piece that is visible in its word has run, and whatever was queued before it. One that the operation ran
    past without a trace was never there. A retry shows the table: refused, or not. A release leaves one piece for sure,
    queued then or now: both places stay doubtful until the word tells.
    """
    words = readable_words(state, observed)
    for piece in [piece for queue in state.device.queues for piece in queue if not piece.certain]:
        index, generation = rank_queue(piece.rank), piece.lease.generation
        if not any(piece is queued for queued in state.device.queues[index]):
            continue  # Another place of the same acknowledgement has settled it.
        word = words[piece.lease.slot][1 + piece.rank] if words is not None else 0
        retries = _retries(state, operation, piece)
        if retries and not isinstance(operation, Release) and not _is_refused(seen):
            if _table(state, piece) < generation:
                state = _dropped(state, index, [piece])  # A read was accepted: what the word shows may be its own.
        elif word == generation or _was_counted(state, operation, piece, observed):
            state = _made_certain(_dropped(_entered(state, piece), index, _twins(state, piece)), index, piece)
            if not isinstance(operation, Advance):  # An Advance runs it itself.
                state = replace(state, device=streams.drained(state.device, index, ACK, piece.lease))
        elif word > generation:
            state = _dropped(state, index, [piece])  # If it was there, it has run, and a newer one after it.
        elif retries:
            state = _after_retry(state, operation, index, piece)
        elif words is not None and _runs_past(state, operation, seen, piece):
            twins = _twins(state, piece)
            state = _dropped(state, index, [piece])
            is_due = bool(twins) and _table(state, piece) >= generation
            state = _made_certain(state, index, twins[0]) if is_due else state
    return replace(state, doubts=any(not piece.certain for queue in state.device.queues for piece in queue))


def _is_refused(seen: Outcome | None) -> bool:
    return seen is not None and seen.reason is Reason.ALREADY_RELEASED


def _table(state: State, piece: Piece) -> int:
    return state.consumers.tables[piece.rank][piece.lease.slot]


def _after_retry(state: State, operation: Operation | None, index: int, piece: Piece) -> State:
    """The state after a release, or before a refused read, of a lease that this rank may have entered."""
    if _table(state, piece) >= piece.lease.generation:
        return state
    if isinstance(operation, Release):
        proxy = state.proxy(operation.proxy)
        is_same = proxy is not None and proxy.lease.token == piece.lease.token
        if not is_same or (state.closed and not state.consumers.imported):
            return state  # `may_be_entered` tells the release.
        return doubtful(_entered(state, piece), piece.lease, piece.rank)
    return _made_certain(_entered(state, piece), index, piece)


def may_be_entered(state: State, lease: Lease, rank: int) -> bool:
    """Whether a failed read leaves it open if this rank has entered this lease or a newer one of its slot."""
    return state.doubts and any(
        not piece.certain and piece.lease.slot == lease.slot and piece.lease.generation >= lease.generation
        for piece in state.device.queues[rank_queue(rank)]
    )


def _was_counted(state: State, operation: Operation | None, piece: Piece, observed: Observation | None) -> bool:
    """Whether a pass took the lease of a doubtful piece, which it may do only once this rank has acknowledged."""
    lease = piece.lease
    if not isinstance(operation, Recycle | Claim) or observed is None or observed.leases is None:
        return False
    return state.is_active(lease) and (lease.view not in observed.leases or lease.slot in (observed.retiring or ()))


def _retries(state: State, operation: Operation | None, piece: Piece) -> bool:
    """Whether the operation reads or releases, for the same rank, the lease of a doubtful piece or an older one of its
    slot, so that the doubtful entry in the rank's table decides what it is answered.
    """
    inner = operation.operation if isinstance(operation, Faulty) else operation
    if not isinstance(inner, Read | Fetch | Release):
        return False
    proxy = state.proxy(inner.proxy)
    if proxy is None or proxy.rank != piece.rank or proxy.lease.slot != piece.lease.slot:
        return False
    return _table(state, piece) < proxy.lease.generation <= piece.lease.generation


def _runs_past(state: State, operation: Operation | None, seen: Outcome | None, piece: Piece) -> bool:
    """Whether the operation runs a later piece of the same stream than the doubtful one."""
    index = rank_queue(piece.rank)
    queue = state.device.queues[index]
    if isinstance(operation, Advance):
        names = stream_names(state.shape.consumers)
        return names.index(operation.stream) == index and queue[0] is piece
    if isinstance(operation, Collect):
        place = next(place for place, other in enumerate(queue) if other is piece)
        return any(other.kind == READ_READY and other.reader == operation.reader for other in queue[place:])
    if isinstance(operation, Fetch):
        proxy = state.proxy(operation.proxy)
        is_read = seen is not None and not seen.cached and seen.reason in (None, Reason.STALE_LEASE)
        return proxy is not None and proxy.rank == piece.rank and is_read
    return False


def _twins(state: State, piece: Piece) -> list[Piece]:
    """The other doubtful places of the same acknowledgement; exactly one of them and `piece` is real."""
    return [other for other in state.device.queues[rank_queue(piece.rank)] if other == piece and other is not piece]


def _entered(state: State, piece: Piece) -> State:
    """The rank has entered the lease of a doubtful piece: no retry will be accepted."""
    consumers, lease = state.consumers, piece.lease
    row = consumers.tables[piece.rank]
    row = replaced(row, lease.slot, max(row[lease.slot], lease.generation))
    tables = replaced(consumers.tables, piece.rank, row)
    return replace(state, consumers=replace(consumers, tables=tables, imported=True))


def _made_certain(state: State, index: int, piece: Piece) -> State:
    queue = tuple(replace(p, certain=True) if p is piece else p for p in state.device.queues[index])
    return replace(state, device=replace(state.device, queues=replaced(state.device.queues, index, queue)))


def _dropped(state: State, index: int, pieces: list[Piece]) -> State:
    queue = tuple(other for other in state.device.queues[index] if not any(other is piece for piece in pieces))
    return replace(state, device=replace(state.device, queues=replaced(state.device.queues, index, queue)))
