"""What a pool in a given state shows."""

from __future__ import annotations

from functools import lru_cache

from vmmref_models.observation import Observation
from vmmref_models.state import RETIRE_VALIDATE_MAX, Allocator, State


def observe(state: State) -> Observation:
    """What a pool in this state shows. Fields that nobody can predict are None.

    Of a failed pool only its life is known, and what its consumers hold. The words of a closed pool are gone with its
    memory, and the order in which a shutdown gives slots back is nobody's business.
    """
    if state.failed:
        return Observation(state.life, imports=_counted(state.consumers.imported))
    allocator = state.allocator
    predicts_words = state.policies.protocol == RETIRE_VALIDATE_MAX and not state.closed
    return Observation(
        life=state.life,
        free_ranges=allocator.free_ranges,
        leases=tuple([lease.view for lease in allocator.held if lease is not None]),
        retiring=tuple(sorted(allocator.retiring)),
        free_slots=None if state.closed else allocator.free_slots,
        retired_slots=allocator.retired_slots,
        generations=allocator.generations,
        words=state.device.words if predicts_words else None,
        set_aside=set_aside(state) if state.overdue or allocator.set_aside else (),
        imports=_counted(state.consumers.imported),
        generations_left=generations_left(allocator, state.shape.generation_limit),
    )


def set_aside(state: State) -> tuple[int, ...]:
    """Slots of the leases that are held back, sorted: active and past their deadline, or retired and not yet free."""
    allocator, late = state.allocator, state.dispatched[: state.overdue]
    overdue = [lease.slot for lease in allocator.held if lease is not None and lease.token in late]
    return tuple(sorted({*overdue} - {*allocator.retiring} | {*allocator.set_aside}))


@lru_cache(maxsize=256)
def _counted(imported: tuple[bool | None, ...]) -> tuple[int, ...] | None:
    """The number of imports per process, or None where nobody can tell of one of them."""
    known = tuple([int(one) for one in imported if one is not None])
    return known if len(known) == len(imported) else None


def shows_the_same(one: State, other: State) -> bool:
    """Whether two states of one pool surely show the same: nothing that `observe` looks at is another object."""
    return (
        one.allocator is other.allocator
        and one.device.words is other.device.words
        and one.consumers.imported == other.consumers.imported
        and one.overdue == other.overdue
        and one.closed == other.closed
        and one.failed == other.failed
    )


def generations_left(allocator: Allocator, limit: int) -> int:
    """The smallest number of generations that a slot still in use (not retired) has left; 0 when none is in use."""
    used_up = allocator.retired_slots
    in_use = [generation for slot, generation in enumerate(allocator.generations) if slot not in used_up]
    return limit - max(in_use) if in_use else 0
