"""Ranges, slots and generations: the producer's side of the model, level A."""

from __future__ import annotations

from dataclasses import replace

from vmmref_models.observation import ALIGNMENT, Shape
from vmmref_models.operations import LeaseView, Publish, Wrap, WrapPack
from vmmref_models.state import Allocator, Impossible, Lease, Policies, Range, replaced


def rounded(nbytes: int) -> int:
    """Bytes that a lease of `nbytes` holds (RNG-2)."""
    return (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def exhausted(allocator: Allocator, limit: int) -> bool:
    """Whether no slot can ever be leased again (GEN-3); slots that are leased for the last time count too."""
    return min(allocator.generations) >= limit


def best_fit(free_ranges: tuple[Range, ...], size: int) -> Range | None:
    """The smallest free range that holds `size` bytes, the lowest among equals (RNG-3)."""
    fitting = [free for free in free_ranges if free[1] - free[0] >= size]
    return min(fitting, key=lambda free: (free[1] - free[0], free[0])) if fitting else None


def take(
    allocator: Allocator,
    shape: Shape,
    policies: Policies,
    operation: Publish | Wrap | WrapPack,
    nbytes: int,
    seen: LeaseView | None,
) -> tuple[Allocator, Lease] | None:
    """Lease `nbytes`: a range and a slot under its next generation; None when there is no room or no slot (RNG-5).

    `seen` is the lease that the pool granted: followed where its policy is free. Raises Impossible where it cannot be.
    """
    size = rounded(nbytes)
    chosen = best_fit(allocator.free_ranges, size)
    if chosen is None or not allocator.free_slots:
        return None
    start, slot = chosen[0], allocator.free_slots[0]
    if seen is not None and policies.fit == "any":
        start = seen.start
        chosen = _range_around(allocator.free_ranges, start, size)
    if seen is not None and policies.slot_order == "any":
        slot = seen.slot
        if slot not in allocator.free_slots:
            raise Impossible("SLOT-2", f"slot {slot} was leased, the free slots are {allocator.free_slots}")
    generation = allocator.generations[slot] + 1
    lease = _leased(operation, LeaseView(slot, generation, start, start + size, nbytes))
    taken = replace(
        allocator,
        free_ranges=_without(allocator.free_ranges, chosen, start, start + size),
        free_slots=tuple(free for free in allocator.free_slots if free != slot),
        generations=replaced(allocator.generations, slot, generation),
        held=replaced(allocator.held, slot, lease),
        # REAP-1: nobody acts for a vacant rank, so nobody would acknowledge.
        excused=allocator.excused | {(slot, rank) for rank in allocator.vacant},
    )
    return taken, lease


def _leased(operation: Publish | Wrap | WrapPack, view: LeaseView) -> Lease:
    """The lease that an operation was granted."""
    if isinstance(operation, WrapPack):
        return Lease(operation.lease, view, operation.digests[0], operation.groups, digests=operation.digests)
    return Lease(operation.lease, view, operation.digest, operation.groups, operation.borrowable)


def _range_around(free_ranges: tuple[Range, ...], start: int, size: int) -> Range:
    """The free range that holds [start, start + size), the choice of a pool with a policy of its own."""
    for free in free_ranges:
        if free[0] <= start and start + size <= free[1]:
            return free
    raise Impossible("RNG-1", f"[{start}, {start + size}) was leased, free are {free_ranges}")


def _without(free_ranges: tuple[Range, ...], chosen: Range, start: int, end: int) -> tuple[Range, ...]:
    """The free ranges after [start, end) was cut out of `chosen`."""
    rest: list[Range] = []
    for free in free_ranges:
        if free != chosen:
            rest.append(free)
            continue
        rest += [part for part in ((free[0], start), (end, free[1])) if part[0] < part[1]]
    return tuple(rest)


def merged(free_ranges: tuple[Range, ...], freed: Range) -> tuple[Range, ...]:
    """The free ranges with `freed` added and joined to its neighbours (RNG-4)."""
    start, end = freed
    rest: list[Range] = []
    for free in free_ranges:
        if free[1] == start:
            start = free[0]
        elif free[0] == end:
            end = free[1]
        else:
            rest.append(free)
    rest.append((start, end))
    return tuple(sorted(rest))


def claim(allocator: Allocator, slot: int) -> Allocator:
    """Move the lease in `slot` from active to retiring: whoever does this, and nobody else, retires it (REC-3)."""
    return replace(allocator, retiring=(*allocator.retiring, slot))


def is_complete(allocator: Allocator, words: tuple[tuple[int, ...], ...], lease: Lease) -> bool:
    """Whether every group's speaker has acknowledged n, or is excused (REC-1, ACK-4, ACK-5), by these words."""
    acks, generation, slot = words[lease.slot][1:], lease.generation, lease.slot
    if not lease.groups and not allocator.excused:
        return all(word == generation for word in acks)
    excused = allocator.excused
    return all(acks[rank] == generation or (slot, rank) in excused for rank in lease.speakers(len(acks)))


def excuse(allocator: Allocator, ranks: tuple[int, ...]) -> Allocator:
    """Let no lease that is out wait for these ranks, whose processes are dead, nor any new one (REAP-1)."""
    pairs = {(slot, rank) for slot, lease in enumerate(allocator.held) if lease is not None for rank in ranks}
    vacant = tuple(sorted((*allocator.vacant, *ranks)))
    return replace(allocator, vacant=vacant, excused=allocator.excused | pairs)


def expect(allocator: Allocator, rank: int) -> Allocator:
    """Let the leases from now on wait for `rank` again; those that are out still do not."""
    return replace(allocator, vacant=tuple(other for other in allocator.vacant if other != rank))


def guard(allocator: Allocator, slot: int) -> Allocator:
    """Keep the claimed lease in `slot` from being freed: ranks may be looking at its bytes (CON-6)."""
    return replace(allocator, guarded=(*allocator.guarded, slot))


def hold_back(allocator: Allocator, slots: tuple[int, ...]) -> Allocator:
    """Set the guarded leases in `slots` aside, where they would otherwise have been freed."""
    return replace(allocator, set_aside=(*allocator.set_aside, *slots))


def let_go(allocator: Allocator, slots: tuple[int, ...]) -> Allocator:
    """Let the leases in `slots`, which were set aside, be freed behind all that is retiring."""
    return replace(
        allocator,
        guarded=tuple(slot for slot in allocator.guarded if slot not in slots),
        retiring=(*(slot for slot in allocator.retiring if slot not in slots), *slots),
    )


def give_back(
    allocator: Allocator, limit: int, slots: tuple[int, ...], order: tuple[int, ...] | None = None
) -> Allocator:
    """Free the ranges of the retiring leases in `slots`, and the slots themselves unless they are used up (GEN-3).

    `order` is the order of the free slots that the pool shows afterwards: among leases that end in one operation the
    pool may choose which slot comes first.
    """
    free_ranges, held = allocator.free_ranges, list(allocator.held)
    for slot in slots:
        lease = held[slot]
        if lease is None:
            raise ValueError(f"slot {slot} holds no lease")
        free_ranges = merged(free_ranges, (lease.view.start, lease.view.end))
        held[slot] = None
    used_up = [slot for slot in slots if allocator.generations[slot] >= limit]
    freed = [slot for slot in slots if slot not in used_up]
    tail = order[len(allocator.free_slots) :] if order is not None and len(freed) > 1 else ()
    if sorted(tail) == sorted(freed):
        freed = list(tail)
    return replace(
        allocator,
        free_ranges=free_ranges,
        free_slots=(*allocator.free_slots, *freed),
        retired_slots=tuple(sorted((*allocator.retired_slots, *used_up))) if used_up else allocator.retired_slots,
        held=tuple(held),
        retiring=tuple(slot for slot in allocator.retiring if slot not in slots),
        excused=frozenset(pair for pair in allocator.excused if pair[0] not in slots),
        guarded=tuple(slot for slot in allocator.guarded if slot not in slots),
        set_aside=tuple(slot for slot in allocator.set_aside if slot not in slots),
    )
