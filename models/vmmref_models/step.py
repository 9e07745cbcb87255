"""What each operation does: the whole protocol on a few screens. Start reading at `step`.

retire-validate-max, host-published. Per slot one word R (live = 2n, retired = 2n + 1) and one word A[r] per rank (last
generation that rank r acknowledged). Queuing a piece and running it are different events; an operation that waits runs
the queued pieces that it waits for.
"""

from __future__ import annotations

from dataclasses import replace

from vmmref_models import allocation, faults, streams
from vmmref_models.observation import Observation
from vmmref_models.operations import (
    DONE,
    FULL,
    Advance,
    Cancel,
    Claim,
    Collect,
    Construct,
    Deliver,
    Dispatch,
    Faulty,
    Fetch,
    Look,
    Operation,
    Outcome,
    Publish,
    PublishUnusable,
    Read,
    Reclaim,
    Recycle,
    Release,
    ReleaseLease,
    Revoke,
    Shutdown,
    Tamper,
    Wrap,
    refused,
)
from vmmref_models.reasons import Reason
from vmmref_models.state import (
    ACK,
    CACHED,
    COPY,
    COPY_OUT,
    ENDED,
    FRESH,
    READ_READY,
    READING,
    READY,
    RELEASED,
    RETIRE_VALIDATE_MAX,
    RETIRED,
    Lease,
    Piece,
    Proxy,
    Reader,
    Snapshot,
    State,
    observe,
    replaced,
    stream_names,
)
from vmmref_models.streams import PUBLISH_QUEUE, RETIRE_QUEUE, rank_queue

__all__ = ["enabled", "observe", "runnable", "settle", "step"]

CONSTRUCTIONS: dict[str, Outcome] = {
    "valid": Outcome("done", leftovers=0),
    **{
        what: Outcome("refused", Reason.BAD_ARGUMENT, leftovers=0, message=f"{what} is out of range [LIFE-1]")
        for what in ("memory_size", "consumer_count", "max_inflight_slices", "recycle_interval", "below-granule")
    },
    "control-only": Outcome(
        "refused", Reason.POOL_TOO_SMALL, leftovers=0, message="no room behind the control words [CTL-5]"
    ),
    **{
        what: Outcome("refused", Reason.UNUSABLE_BACKING, leftovers=0, message=f"{what} is unusable [PUB-5]")
        for what in ("backing-dtype", "backing-size", "backing-strided")
    },
}
"""What making a second pool answers, by what is wrong with it."""

UNUSABLE = ("empty", "wrong-device")
TAMPERED = {
    "generation": Reason.INACTIVE_LEASE,
    "offset": Reason.INACTIVE_LEASE,
    "pool": Reason.FOREIGN_POOL,
}


def step(
    state: State, operation: Operation, seen: Outcome | None = None, observed: Observation | None = None
) -> tuple[State, Outcome]:
    """The state after one operation, and its answer.

    `seen` and `observed` are what the pool under test answered and showed. They decide only what is declared free: the
    place under another policy, the order of slots that end together, and what an injected fault left behind.
    Raises ValueError when the operation is not enabled, Impossible when what was seen is outside every freedom.
    """
    if not enabled(state, operation):
        raise ValueError(f"not enabled in this state: {operation}")
    match operation:
        case Publish():
            return publish(state, operation, seen)
        case Dispatch():
            return dispatch(state, operation)
        case Wrap():
            return wrap(state, operation, seen)
        case Deliver():
            return deliver(state, operation)
        case Read():
            return read(state, operation.proxy, operation.reader, seen)
        case Collect():
            return collect(state, operation.reader, seen)
        case Fetch():
            return fetch(state, operation, seen)
        case Release():
            return release(state, operation)
        case Advance():
            return advance(state, operation)
        case Look():
            return look(state, operation)
        case Claim():
            return claim(state, operation)
        case Reclaim():
            return reclaim(state, operation.wait, observed)
        case Recycle():
            return recycle(state, observed)
        case Cancel() | Revoke():
            return cancel(state, operation.lease, operation.wait)
        case ReleaseLease():
            return cancel(state, operation.lease, wait=True)
        case Tamper():
            reason = TAMPERED[operation.how]
            return state, _not_open(state) or refused(reason, f"the handle's {operation.how} was altered [CAN-2]")
        case PublishUnusable():
            return state, _not_open(state) or refused(Reason.UNUSABLE_TENSOR, f"{operation.what} tensor [PUB-4]")
        case Shutdown():
            return shutdown(state)
        case Construct():
            return state, CONSTRUCTIONS[operation.what]
        case Faulty():
            if seen is None or seen.kind != "failed":  # The fault came after the operation's last call.
                return step(state, operation.operation, seen, observed)
            # Nothing was queued before it, and what it queued itself has ended: so nothing is in doubt.
            after, outcome = faults.failed(state, operation.operation, seen, observed)
            return settle(after), outcome


def enabled(state: State, operation: Operation) -> bool:
    """Whether the operation makes sense here: the tokens that it names exist, the ones that it gives are new.

    An operation that the pool must refuse is enabled: refusing is what is checked.
    """
    match operation:
        case Publish() | Wrap():
            return operation.nbytes > 0 and state.lease(operation.lease) is None
        case Dispatch():
            return state.lease(operation.lease) is not None and operation.lease not in state.dispatched
        case Deliver():
            return (
                operation.lease in state.dispatched
                and 0 <= operation.rank < state.shape.consumers
                and state.proxy(operation.proxy) is None
            )
        case Read() | Fetch():
            return state.proxy(operation.proxy) is not None and state.reader(operation.reader) is None
        case Collect():
            return state.reader(operation.reader) is not None
        case Release():
            return state.proxy(operation.proxy) is not None
        case Advance():
            return operation.stream in runnable(state)
        case Look():
            return all(snapshot.token != operation.look for snapshot in state.looks)
        case Claim():
            return any(snapshot.token == operation.look for snapshot in state.looks)
        case Cancel() | Revoke() | ReleaseLease():
            return state.lease(operation.lease) is not None
        case Tamper():
            return operation.how in TAMPERED and state.lease(operation.lease) is not None
        case PublishUnusable():
            return operation.what in UNUSABLE
        case Construct():
            return operation.what in CONSTRUCTIONS
        case Faulty():
            return operation.call > 0 and not any(state.device.queues) and enabled(state, operation.operation)
        case _:
            return True


def runnable(state: State) -> tuple[str, ...]:
    """The streams whose oldest piece may run now."""
    names = stream_names(state.shape.consumers)
    return tuple([names[index] for index in range(len(names)) if streams.may_run(state.device, index)])


def settle(state: State) -> State:
    """The state after everything that is queued has run: publish, retire, then the ranks in order."""
    if any(state.device.queues):
        return state.having(device=streams.emptied(state.device))
    return state


def _not_open(state: State) -> Outcome | None:
    """The refusal of a closed (LIFE-2) or failed (LIFE-3) pool; closed wins."""
    if state.closed:
        return refused(Reason.POOL_CLOSING, "CUDA VMM multimodal pool is closing [LIFE-2]")
    if state.failed:
        return refused(Reason.POOL_FAILED, "CUDA VMM multimodal pool failed [LIFE-3]")
    return None


# --- producer: publishing ---------------------------------------------------------------------------------------------


def publish(state: State, operation: Publish | Wrap, seen: Outcome | None) -> tuple[State, Outcome]:
    """Lease a range and a slot, queue the copy and then the ready store on the same stream (PUB-1)."""
    closed = _not_open(state)
    if closed is not None:
        return state, closed
    if allocation.exhausted(state.allocator, state.shape.generation_limit):
        return state, refused(Reason.GENERATION_EXHAUSTED, "pool slot generation exhausted [GEN-3]")
    granted = seen.lease if seen is not None else None
    taken = allocation.take(state.allocator, state.shape, state.policies, operation, granted)
    if taken is None:
        return state, FULL
    allocator, lease = taken
    device = streams.queued(state.device, PUBLISH_QUEUE, Piece(COPY, lease), Piece(READY, lease))
    published = (*state.published, lease)
    return state.having(allocator=allocator, device=device, published=published), Outcome("done", lease=lease.view)


def dispatch(state: State, operation: Dispatch) -> tuple[State, Outcome]:
    """Wait until R = 2n is visible to the host; only then may the proxy leave (PUB-2)."""
    lease = _granted(state, operation.lease)
    closed = _not_open(state)
    if closed is not None:
        return state, closed
    if not state.is_active(lease):
        return state, _inactive(lease)
    device = streams.drained(state.device, PUBLISH_QUEUE, READY, lease)
    return state.having(device=device, dispatched=(*state.dispatched, lease.token)), DONE


def wrap(state: State, operation: Wrap, seen: Outcome | None) -> tuple[State, Outcome]:
    """Publish and dispatch."""
    state, outcome = publish(state, operation, seen)
    if outcome.kind == "done":
        state, _ = dispatch(state, Dispatch(operation.lease))
    return state, outcome


# --- consumers --------------------------------------------------------------------------------------------------------


def deliver(state: State, operation: Deliver) -> tuple[State, Outcome]:
    """One more copy of the proxy reaches a rank. Proxies outlive leases: an old one may arrive at any later time."""
    lease = _granted(state, operation.lease)
    proxies = (*state.consumers.proxies, Proxy(operation.proxy, lease, operation.rank))
    return state.having(consumers=replace(state.consumers, proxies=proxies)), DONE


def read(state: State, proxy_token: int, reader: int, seen: Outcome | None) -> tuple[State, Outcome]:
    """Enter (slot, n) in the rank's table, then queue the copy-out and behind it the read of R (CON-5)."""
    proxy, consumers = _delivered(state, proxy_token), state.consumers
    lease, rank = proxy.lease, proxy.rank
    if proxy.state == CACHED:
        return state, Outcome("done", cached=True)
    if state.closed and not faults.has_import(state, rank, seen):
        return state, refused(Reason.PRODUCER_GONE, "the pool is gone and was never imported here [REAP-3]")
    if consumers.tables[rank][lease.slot] >= lease.generation:
        return state, refused(Reason.ALREADY_RELEASED, "CUDA VMM tensor has already released its pool slice [CON-3]")
    entered = replace(
        consumers,
        tables=_entered(consumers.tables, rank, lease),
        proxies=_in_state(consumers.proxies, proxy, READING),
        readers=(*consumers.readers, Reader(reader, proxy_token)),
        imported=True,
    )
    work = (Piece(COPY_OUT, lease, rank, reader), Piece(READ_READY, lease, rank, reader))
    return state.having(consumers=entered, device=streams.queued(state.device, rank_queue(rank), *work)), DONE


def collect(state: State, reader_token: int, seen: Outcome | None) -> tuple[State, Outcome]:
    """Wait for the copy and for R. Not 2n: the lease was retired first, throw the copy away. Else queue A[r] := n."""
    reader = state.reader(reader_token)
    if reader is None:
        raise ValueError(f"reader {reader_token} is unknown")
    proxy, consumers = _delivered(state, reader.proxy), state.consumers
    lease, rank = proxy.lease, proxy.rank
    device, arrival = streams.collected(state.device, rank_queue(rank), reader_token)
    valid = arrival.ready == 2 * lease.generation
    if seen is not None and _may_be_either(state):
        valid = seen.kind == "done"
    readers = tuple(other for other in consumers.readers if other.token != reader_token)
    proxies = _in_state(consumers.proxies, proxy, CACHED if valid else ENDED)
    state = state.having(consumers=replace(consumers, readers=readers, proxies=proxies), device=device)
    if not valid:
        return state, refused(Reason.STALE_LEASE, "the lease was retired before the copy had ended [CON-5]")
    if consumers.tables[rank][lease.slot] == lease.generation:
        # ACK-2: once the rank has entered a newer lease, this one is retired and its acknowledgement would come late,
        # behind the newer one's, and lower the word.
        state = state.having(device=streams.queued(device, rank_queue(rank), Piece(ACK, lease, rank)))
    return state, Outcome("done", digest=_digest(arrival.content, lease))


def _may_be_either(state: State) -> bool:
    """Whether a late reader may get its bytes or be told that they are stale.

    LIFE-3: how far a failed pool's retire stores got is unknown. LIFE-2: a closed pool with words of another kind may
    have left them, and the bytes, as they were.
    """
    return state.failed or (state.closed and state.policies.protocol != RETIRE_VALIDATE_MAX)


def fetch(state: State, operation: Fetch, seen: Outcome | None) -> tuple[State, Outcome]:
    """Read and collect."""
    state, outcome = read(state, operation.proxy, operation.reader, seen)
    if outcome.kind != "done":
        return state, outcome
    if outcome.cached:
        return state, replace(outcome, digest=_delivered(state, operation.proxy).lease.digest)
    return collect(state, operation.reader, seen)


def release(state: State, operation: Release) -> tuple[State, Outcome]:
    """Acknowledge without reading. No effect once this rank has entered the lease: it counts once (ACK-3).

    The table admits only rising n per rank and slot, and one stream stores them, so A[r] never falls (ACK-2).
    """
    proxy, consumers = _delivered(state, operation.proxy), state.consumers
    lease, rank = proxy.lease, proxy.rank
    if state.closed and consumers.imported is False:
        return state, DONE
    proxies = _in_state(consumers.proxies, proxy, RELEASED) if proxy.state == FRESH else consumers.proxies
    if consumers.tables[rank][lease.slot] >= lease.generation:
        return state.having(consumers=replace(consumers, proxies=proxies)), DONE
    tables = _entered(consumers.tables, rank, lease)
    if state.closed and consumers.imported is None:  # Whether it was queued or not, no word can show it any more.
        return state.having(consumers=replace(consumers, tables=tables, proxies=proxies)), DONE
    consumers = replace(consumers, tables=tables, proxies=proxies, imported=True)
    device = streams.queued(state.device, rank_queue(rank), Piece(ACK, lease, rank))
    return state.having(consumers=consumers, device=device), DONE


def advance(state: State, operation: Advance) -> tuple[State, Outcome]:
    """Run the oldest piece of one stream."""
    index = stream_names(state.shape.consumers).index(operation.stream)
    return state.having(device=streams.run(state.device, index, 1)), DONE


# --- producer: taking back --------------------------------------------------------------------------------------------


def complete(state: State) -> tuple[int, ...]:
    """Tokens of the active, dispatched leases whose every A[r] is n (REC-1, ACK-5), by slot."""
    found: list[int] = []
    for slot, lease in enumerate(state.allocator.held):
        if lease is None or slot in state.allocator.retiring or lease.token not in state.dispatched:
            continue
        if all(word == lease.generation for word in state.device.words[slot][1:]):
            found.append(lease.token)
    return tuple(found)


def look(state: State, operation: Look) -> tuple[State, Outcome]:
    """Take a snapshot of every word as it is in memory now; queued acknowledgements are not waited for."""
    closed = _not_open(state)
    if closed is not None:
        return state, closed
    return replace(state, looks=(*state.looks, Snapshot(operation.look, complete(state)))), DONE


def claim(state: State, operation: Claim) -> tuple[State, Outcome]:
    """Claim what the look saw complete. Looks may be old: leases that are no longer active are dropped (REC-3)."""
    closed = _not_open(state)
    if closed is not None:
        return state, closed
    snapshot = next(snapshot for snapshot in state.looks if snapshot.token == operation.look)
    looks = tuple(other for other in state.looks if other is not snapshot)
    leases = [lease for lease in state.allocator.held if lease is not None and lease.token in snapshot.complete]
    active = [lease for lease in leases if lease.slot not in state.allocator.retiring]
    state = replace(state, looks=looks)
    for lease in active:
        state = claimed(state, lease)
    return state, Outcome("done", count=len(active))


def claimed(state: State, lease: Lease) -> State:
    """The state after an active lease was claimed and its retire store queued."""
    device = streams.queued(state.device, RETIRE_QUEUE, Piece(RETIRED, lease))
    return state.having(allocator=allocation.claim(state.allocator, lease.slot), device=device)


def reclaim(state: State, wait: bool, observed: Observation | None) -> tuple[State, Outcome]:
    """Free the retiring leases whose retire store the host has seen complete, in the order of their claims (REC-2)."""
    closed = _not_open(state)
    if closed is not None:
        return state, closed
    device = streams.retired_up_to(state.device) if wait else state.device
    state = state.having(device=device) if wait else state
    queue = device.queues[RETIRE_QUEUE]
    waiting = {piece.lease.slot for piece in queue}
    slots = tuple(slot for slot in state.allocator.retiring if slot not in waiting)
    return freed(state, slots, observed), Outcome("done", count=len(slots))


def freed(state: State, slots: tuple[int, ...], observed: Observation | None = None) -> State:
    """The state after the retiring leases in `slots` gave back their ranges and slots."""
    if not slots:
        return state
    order = observed.free_slots if observed is not None else None
    return state.having(allocator=allocation.give_back(state.allocator, state.shape.generation_limit, slots, order))


def recycle(state: State, observed: Observation | None) -> tuple[State, Outcome]:
    """One whole pass: look, claim, reclaim. Counts what it freed, also what earlier claims had left retiring."""
    closed = _not_open(state)
    if closed is not None:
        return state, closed
    tokens = complete(state)
    if tokens:
        for lease in state.allocator.held:
            if lease is not None and lease.token in tokens:
                state = claimed(state, lease)
    return reclaim(state, True, observed)


def cancel(state: State, token: int, wait: bool) -> tuple[State, Outcome]:
    """Claim a lease by its handle (CAN-1, CAN-3); refused unless it is the active lease of its slot (CAN-2, REC-6)."""
    lease = _granted(state, token)
    closed = _not_open(state)
    if closed is not None:
        return state, closed
    if not state.is_active(lease):
        return state, _inactive(lease)
    state = claimed(state, lease)
    if wait:
        state = freed(state.having(device=streams.retired_up_to(state.device, lease)), (lease.slot,))
    return state, DONE


def shutdown(state: State) -> tuple[State, Outcome]:
    """Refuse newcomers, end every queued copy, ready and retire store, retire every lease, free it (LIFE-2).

    Ranks are not waited for: one that holds an import goes on, and finds its lease retired.
    """
    if state.closed:
        return state, DONE
    late = tuple([rank for rank, table in enumerate(state.consumers.tables) if not any(table)])
    state = state.having(consumers=replace(state.consumers, late=late))
    if state.failed:  # LIFE-3: nothing is reused, so nothing is given back to the free lists either.
        return replace(state, closed=True, looks=()), DONE
    for lease in state.allocator.held:
        if lease is not None and lease.slot not in state.allocator.retiring:
            state = claimed(state, lease)
    device = streams.retired_up_to(state.device)
    device = streams.run(device, PUBLISH_QUEUE, len(device.queues[PUBLISH_QUEUE]))
    return freed(replace(state, device=device, closed=True, looks=()), state.allocator.retiring), DONE


# --- small helpers ----------------------------------------------------------------------------------------------------


def _granted(state: State, token: int) -> Lease:
    lease = state.lease(token)
    if lease is None:
        raise ValueError(f"lease {token} is unknown")
    return lease


def _delivered(state: State, token: int) -> Proxy:
    proxy = state.proxy(token)
    if proxy is None:
        raise ValueError(f"proxy {token} is unknown")
    return proxy


def _inactive(lease: Lease) -> Outcome:
    view = lease.view
    message = f"Cannot release inactive pool lease (slot={view.slot}, generation={view.generation}) [REC-6]"
    return refused(Reason.INACTIVE_LEASE, message)


def _entered(tables: tuple[tuple[int, ...], ...], rank: int, lease: Lease) -> tuple[tuple[int, ...], ...]:
    return replaced(tables, rank, replaced(tables[rank], lease.slot, lease.generation))


def _in_state(proxies: tuple[Proxy, ...], proxy: Proxy, new_state: str) -> tuple[Proxy, ...]:
    return tuple([replace(other, state=new_state) if other.token == proxy.token else other for other in proxies])


def _digest(content: Lease | None, lease: Lease) -> int:
    """The digest of what arrived. Bytes of no single lease have one that no payload was given."""
    return content.digest if content is not None else ~lease.digest & 0xFFFFFFFF
