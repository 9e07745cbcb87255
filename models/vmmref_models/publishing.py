"""The producer publishes: range, slot, copy, ready store, hand out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vmmref_models import allocation, streams
from vmmref_models.operations import DONE, FULL, Dispatch, Outcome, Payload, Publish, Wrap, WrapPack, refused
from vmmref_models.reasons import Reason
from vmmref_models.refusals import granted, inactive, not_open
from vmmref_models.state import COPY, READY, Piece, State
from vmmref_models.streams import PUBLISH_QUEUE


def publish(
    state: State, operation: Publish | Wrap | WrapPack, seen: Outcome | None, nbytes: int
) -> tuple[State, Outcome]:
    """Lease a range and a slot, queue the copy and then the ready store on the same stream (PUB-1)."""
    closed = not_open(state)
    if closed is not None:
        return state, closed
    if allocation.exhausted(state.allocator, state.shape.generation_limit):
        return state, refused(Reason.GENERATION_EXHAUSTED, "pool slot generation exhausted [GEN-3]")
    shown = seen.lease if seen is not None else None
    taken = allocation.take(state.allocator, state.shape, state.policies, operation, nbytes, shown)
    if taken is None:
        return state, FULL
    allocator, lease = taken
    device = streams.queued(state.device, PUBLISH_QUEUE, Piece(COPY, lease), Piece(READY, lease))
    published = (*state.published, lease)
    return state.having(allocator=allocator, device=device, published=published), Outcome("done", lease=lease.view)


def dispatch(state: State, operation: Dispatch) -> tuple[State, Outcome]:
    """Wait until R = 2n is visible to the host; only then may the proxy leave (PUB-2)."""
    lease = granted(state, operation.lease)
    closed = not_open(state)
    if closed is not None:
        return state, closed
    if not state.is_active(lease):
        return state, inactive(lease)
    device = streams.drained(state.device, PUBLISH_QUEUE, READY, lease)
    return state.having(device=device, dispatched=(*state.dispatched, lease.token)), DONE


def wrap(state: State, operation: Wrap | WrapPack, seen: Outcome | None, nbytes: int) -> tuple[State, Outcome]:
    """Publish and dispatch."""
    state, outcome = publish(state, operation, seen, nbytes)
    if outcome.kind == "done":
        state, _ = dispatch(state, Dispatch(operation.lease))
    return state, outcome


# --- several tensors in one lease -------------------------------------------------------------------------------------


def wrap_pack(state: State, operation: WrapPack, seen: Outcome | None) -> tuple[State, Outcome]:
    """As wrap, one lease for all tensors (PACK-1): one behind the other, each on its own element size (PACK-2).

    A pool may lay them out otherwise, as long as it wastes less than an element a tensor: followed where it shows so.
    """
    places, nbytes = laid_out(operation.payloads, operation.sizes)
    least, most = sum(operation.sizes), largest(operation.payloads, operation.sizes)
    if seen is not None and seen.lease is not None and least <= seen.lease.nbytes <= most:
        nbytes = seen.lease.nbytes
    elif seen is not None and seen.kind == "full":
        nbytes = most
    state, outcome = wrap(state, operation, seen, nbytes)
    if outcome.kind != "done":
        return state, outcome
    shown = seen.places if seen is not None and seen.places is not None else places
    return state, Outcome("done", lease=outcome.lease, places=shown)


def element_bytes(payload: Payload, nbytes: int) -> int:
    """The element size of a payload of `nbytes`."""
    return nbytes // max(1, math.prod(payload.shape))


def laid_out(payloads: Sequence[Payload], sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Where tensors begin that are packed one behind the other, and where the last one ends."""
    places, end = [], 0
    for payload, nbytes in zip(payloads, sizes, strict=True):
        element = element_bytes(payload, nbytes)
        start = -(-end // element) * element
        places.append(start)
        end = start + nbytes
    return tuple(places), end


def largest(payloads: Sequence[Payload], sizes: Sequence[int]) -> int:
    """The most bytes that a pack may take, whatever the order of its tensors: less than an element of padding each."""
    return sum(nbytes + element_bytes(payload, nbytes) - 1 for payload, nbytes in zip(payloads, sizes, strict=True))
