"""PACK: several tensors in one lease."""

from __future__ import annotations

import math

from vmmref_models.families.history import (
    answer,
    first_change,
    granted,
    inner,
    is_due_ack,
    is_open,
    must_refuse,
    proxy_used,
    speaks,
    word_name,
)
from vmmref_models.operations import CancelProxy, Confirm, Faulty, Fetch, Release, WrapPack
from vmmref_models.reasons import Reason
from vmmref_models.rules import HELD, Broken, Step, Verdict, reachable, rule
from vmmref_models.state import CACHED, FRESH, Lease, Proxy


@rule("PACK-1", on=(WrapPack, Faulty), requires=(WrapPack,))
def packed_tensors_share_one_lease(step: Step) -> Verdict | None:
    """Tensors packed together share one range, slot, generation, copy and ack; one failure publishes none of them."""
    operation, outcome = inner(step), step.outcome
    if not isinstance(operation, WrapPack) or not is_open(step) or step.after.life == "failed":
        return None
    before, after = step.before.leases, step.after.leases
    if outcome.kind == "done":
        lease = outcome.lease
        if lease is None or (outcome.places is not None and len(outcome.places) != len(operation.sizes)):
            return Broken(f"one lease with {len(operation.sizes)} tensors in it", f"{lease}, places {outcome.places}")
        new = [view for view in after or () if view not in (before or ())]
        return HELD if after is None or new == [lease] else Broken(f"one lease more, {lease}", f"{new}")
    if outcome.kind in ("full", "refused", "failed") and before is not None and after is not None:
        return HELD if before == after else Broken(f"none of them is published: leases {before}", f"{after}")
    return None


@rule("PACK-2", on=(WrapPack,), requires=(WrapPack,))
def packed_tensors_are_aligned(step: Step) -> Verdict | None:
    """Each tensor of a pack starts at a multiple of its element size, and overlaps no other."""
    operation, lease, places = step.operation, granted(step), step.outcome.places
    if lease is None or places is None or not isinstance(operation, WrapPack):
        return None
    end = 0
    for place, part in sorted(zip(places, range(len(operation.sizes)), strict=False)):
        payload, nbytes = operation.payloads[part], operation.sizes[part]
        element = nbytes // max(1, math.prod(payload.shape))
        if place % element or (lease.start + place) % element:
            return Broken(f"tensor {part} at a multiple of {element} B", f"at {place} in [{lease.start}, {lease.end})")
        if place < end or place + nbytes > lease.nbytes:
            got = f"[{place}, {place + nbytes})"
            return Broken(f"tensor {part} behind {end} and inside {lease.nbytes} B", got)
        end = place + nbytes
    return HELD


@rule("PACK-3", on=(Confirm, Release, Fetch), requires=(WrapPack,))
def packed_tensors_are_released_as_a_whole(step: Step) -> Verdict | None:
    """ "Packed CUDA VMM features must be reconstructed before release" for a tensor's own ack;
    release_without_reconstruction on any of them releases the whole once.
    """
    proxy = proxy_used(step.past, step.operation)
    if proxy is None or not proxy.lease.is_pack or not speaks(proxy):
        return None
    if isinstance(step.operation, Fetch):
        return _fetched(step, proxy)
    if isinstance(step.operation, Confirm) and proxy.state == FRESH:
        return must_refuse(step, Reason.NOT_RECONSTRUCTED)
    if step.outcome.kind != "done":
        return Broken("done: the rank took part, or does now", answer(step.outcome))
    own = proxy.lease if isinstance(step.operation, Release) and proxy.state == FRESH else None
    for change in step.changed_words:
        if not is_due_ack(step, change, proxy.rank, own):
            return Broken(f"{word_name(change[0], change[1])} stays {change[2]}: it took part", f"{change[3]}")
    return HELD


def _fetched(step: Step, proxy: Proxy) -> Verdict | None:
    """What one tensor of a pack went through, all of them have gone through."""
    outcome = step.outcome
    if proxy.state == FRESH or step.past.closed:
        return None
    if proxy.state == CACHED:
        is_there = outcome.kind == "done" and outcome.cached
        return HELD if is_there else Broken("the tensor that came with its siblings", answer(outcome))
    return must_refuse(step, Reason.ALREADY_RELEASED)


@reachable("PACK-3", "sibling", on=(Fetch,))
def a_tensor_came_with_its_sibling(step: Step) -> Verdict | None:
    """A tensor of a pack was there because another one had been read."""
    proxy = proxy_used(step.past, step.operation)
    if proxy is None or not proxy.lease.is_pack or proxy.state != CACHED:
        return None
    siblings = [
        other.part
        for other in step.past.consumers.proxies
        if other.rank == proxy.rank and other.lease.token == proxy.lease.token
    ]
    return HELD if len(set(siblings)) > 1 else None


@rule("PACK-4", on=(CancelProxy,), requires=(WrapPack, CancelProxy))
def packed_tensors_are_cancelled_once(step: Step) -> Verdict | None:
    """Cancelling any tensor of a pack cancels the whole once; the second time is a no-op and never touches another
    lease.
    """
    lease = _pack_cancelled(step)
    if lease is None or not is_open(step):
        return None
    if step.outcome.kind != "done":
        return Broken(f"done: {lease.view} is cancelled, or was", answer(step.outcome))
    if not step.past.is_active(lease):
        change = first_change(step)
        return HELD if change is None else Broken(f"nothing changed: {lease.view} has ended", change)
    if step.after.leases is not None and lease.view in step.after.leases:
        return Broken(f"{lease.view} is gone", "it holds its range and slot")
    others = [view for view in step.left if view != lease.view]
    return Broken(f"only {lease.view} is cancelled", f"{others} too") if others else HELD


def _pack_cancelled(step: Step) -> Lease | None:
    operation = step.operation
    lease = step.past.lease(operation.lease) if isinstance(operation, CancelProxy) else None
    return lease if lease is not None and lease.is_pack else None


@reachable("PACK-4", "reissued", on=(CancelProxy,))
def a_pack_was_cancelled_again_after_its_slot_was_reissued(step: Step) -> Verdict | None:
    """A tensor of a pack was cancelled after its slot had been leased again."""
    lease = _pack_cancelled(step)
    if lease is None or not is_open(step):
        return None
    return HELD if step.past.allocator.generations[lease.slot] > lease.generation else None
