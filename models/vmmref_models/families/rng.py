"""RNG: ranges."""

from __future__ import annotations

from itertools import pairwise

from vmmref_models.families.history import (
    BY_HANDLE,
    PUBLISHES,
    TAKES_BACK,
    answer,
    bytes_wanted,
    first_change,
    fits,
    free_before,
    generations_before,
    granted,
    is_open,
)
from vmmref_models.observation import ALIGNMENT
from vmmref_models.operations import CancelProxy, Faulty, Operation, Reclaim, Recycle, WrapPack
from vmmref_models.reasons import Reason
from vmmref_models.rules import BOOKS, HELD, Broken, Kind, Step, Verdict, reachable, rule


@rule("RNG-1", kind=Kind.ALWAYS, needs=("ranges",))
def ranges_tile_the_data_area(step: Step) -> Verdict | None:
    """Free, leased and set-aside ranges tile [data_start, memory_size) exactly: no gap, no overlap."""
    after = step.after
    if after.free_ranges is None or after.leases is None or after.life == "failed" or step.past.failed:
        return None
    covered = sorted([*after.free_ranges, *[(lease.start, lease.end) for lease in after.leases]])
    position, shape = step.shape.data_start, step.shape
    for start, end in covered:
        if start != position or end <= start:
            what = "overlap" if start < position else "gap"
            return Broken(f"a range that starts at {position}", f"[{start}, {end}), {what} in {covered}")
        position = end
    if position != shape.data_end:
        return Broken(f"ranges up to {shape.data_end}", f"up to {position} in {covered}")
    return HELD


@rule("RNG-2", kind=Kind.ALWAYS)
def leases_are_aligned(step: Step) -> Verdict | None:
    """A lease starts and ends on 256; it holds nbytes and wastes less than 256."""
    if not step.after.leases:
        return None
    for lease in step.after.leases:
        size = lease.end - lease.start
        if lease.start % ALIGNMENT or lease.end % ALIGNMENT or not lease.nbytes <= size < lease.nbytes + ALIGNMENT:
            return Broken(f"multiples of {ALIGNMENT} around {lease.nbytes} B", f"[{lease.start}, {lease.end})")
    lease_now, operation = granted(step), step.operation
    if lease_now is None or not isinstance(operation, PUBLISHES):
        return HELD
    least, most = bytes_wanted(operation)
    if not least <= lease_now.nbytes <= most:
        return Broken(f"a lease of {least}" + (f" to {most} B" if most > least else " B"), f"{lease_now.nbytes} B")
    return HELD


@rule("RNG-3", on=PUBLISHES, needs=("ranges",))
def best_fit(step: Step) -> Verdict | None:
    """Best fit: the smallest free range that fits; between equals the lowest start."""
    lease, operation = granted(step), step.operation
    if step.policies.fit != "best" or lease is None or step.before.free_ranges is None:
        return None
    nbytes = lease.nbytes if isinstance(operation, WrapPack) else _nbytes(operation)
    fitting = fits(step.before.free_ranges, nbytes)
    if not fitting:
        return Broken("full: no free range fits", answer(step.outcome))
    best = min(fitting, key=lambda free: (free[1] - free[0], free[0]))
    if lease.start != best[0]:
        return Broken(f"start {best[0]}, the smallest that fits of {step.before.free_ranges}", f"start {lease.start}")
    return HELD


def _nbytes(operation: Operation) -> int:
    return bytes_wanted(operation)[1] if isinstance(operation, PUBLISHES) else 0


@reachable("RNG-3", "choice", on=PUBLISHES, needs=("ranges",))
def there_was_a_choice_of_ranges(step: Step) -> Verdict | None:
    """A lease was granted while at least two free ranges fitted."""
    if granted(step) is None or step.before.free_ranges is None:
        return None
    return HELD if len(fits(step.before.free_ranges, _nbytes(step.operation))) > 1 else None


@rule("RNG-4", on=(*TAKES_BACK, Faulty), needs=("ranges",), signs=BOOKS)
def free_ranges_are_merged(step: Step) -> Verdict | None:
    """No two free ranges touch after a release, a recycle pass or a cancel."""
    free = step.after.free_ranges
    if free is None or not step.left:
        return None
    for (_, end), (start, _) in pairwise(free):
        if end == start:
            return Broken("free ranges that touch are one", f"two meet at {start} in {free}")
    return HELD


@reachable("RNG-4", "both-neighbours", on=(Reclaim, Recycle, *BY_HANDLE, CancelProxy), needs=("ranges",))
def both_neighbours_were_free(step: Step) -> Verdict | None:
    """A range came back between two free ones."""
    before, after = step.before.free_ranges, step.after.free_ranges
    if before is None or after is None or len(after) >= len(before):
        return None
    return HELD


@rule("RNG-5", on=PUBLISHES)
def no_room_is_a_normal_answer(step: Step) -> Verdict | None:
    """No room or no free slot: answered "pool full" (no lease, not an exception); nothing changed."""
    operation, outcome = step.operation, step.outcome
    if not isinstance(operation, PUBLISHES) or not is_open(step):
        return None
    ranges, slots = free_before(step)
    least, most = bytes_wanted(operation)
    if outcome.kind == "full":
        if slots and fits(ranges, most):
            return Broken(f"a lease of {most} B: free are {ranges}, slots {slots}", "full")
        change = first_change(step)
        return HELD if change is None else Broken("full, nothing changed", change)
    if outcome.reason is Reason.GENERATION_EXHAUSTED:
        return None  # GEN-3 judges it.
    if (slots and fits(ranges, least)) or min(generations_before(step)) >= step.shape.generation_limit:
        return None
    return Broken(f"full: free are {ranges}, slots {slots}", answer(outcome))


@reachable("RNG-5", "no-slot", on=PUBLISHES)
def there_was_room_but_no_slot(step: Step) -> Verdict | None:
    """A pool was full for want of a slot."""
    if step.outcome.kind != "full":
        return None
    ranges, slots = free_before(step)
    return HELD if fits(ranges, _nbytes(step.operation)) and not slots else None


@reachable("RNG-5", "no-range", on=PUBLISHES)
def there_was_a_slot_but_no_range(step: Step) -> Verdict | None:
    """A pool was full for want of a range."""
    if step.outcome.kind != "full":
        return None
    ranges, slots = free_before(step)
    return HELD if slots and not fits(ranges, _nbytes(step.operation)) else None
