"""GEN: generations."""

from __future__ import annotations

from vmmref_models.families.history import (
    BY_HANDLE,
    PUBLISHES,
    answer,
    first_change,
    generations_before,
    granted,
    inner,
    is_due_ack,
    is_open,
    is_readable,
    lease_named,
    must_refuse,
    proxy_used,
    word_name,
)
from vmmref_models.operations import Borrow, CancelProxy, Collect, Confirm, Fetch, Read, Release, Tamper
from vmmref_models.reasons import Reason
from vmmref_models.rules import BOOKS, GRANT, HELD, TROUBLE, Broken, Kind, Step, Verdict, reachable, rule
from vmmref_models.state import Lease


@rule("GEN-1", signs=BOOKS | GRANT)
def generation_is_the_next(step: Step) -> Verdict | None:
    """The first lease of a slot has generation 1; every later one exactly one more."""
    lease, before, after = granted(step), step.before.generations, step.after.generations
    if lease is not None:
        issued = generations_before(step)
        if not 0 <= lease.slot < len(issued) or lease.generation != issued[lease.slot] + 1:
            last = issued[lease.slot] if 0 <= lease.slot < len(issued) else "none"
            return Broken(f"the generation after {last} in slot {lease.slot}", f"{lease.generation}")
        if before is not None and after is not None:
            due = tuple(count + (slot == lease.slot) for slot, count in enumerate(before))
            return HELD if after == due else Broken(f"generations {due}", f"{after}")
        return HELD
    if before is None or after is None or before == after:
        return None
    risen = [slot for slot, (old, new) in enumerate(zip(before, after, strict=False)) if new != old]
    may_use_one = isinstance(inner(step), PUBLISHES) and step.outcome.kind == "failed"
    if may_use_one and len(risen) == 1 and after[risen[0]] == before[risen[0]] + 1:
        return HELD  # PUB-3: a failed publish may use up a generation.
    return Broken(f"generations {before}: nothing was leased", f"{after}")


@rule("GEN-2", on=PUBLISHES, signs=GRANT)
def nothing_is_issued_twice(step: Step) -> Verdict | None:
    """No (slot, generation) is issued twice in a pool's life; never 0, negative or above the limit."""
    lease, limit = granted(step), step.shape.generation_limit
    if lease is None:
        return None
    if not 1 <= lease.generation <= limit:
        return Broken(f"a generation from 1 to {limit}", f"{lease.generation}")
    for other in step.past.published:
        if other.slot == lease.slot and other.generation == lease.generation:
            return Broken("a pair never issued before", f"slot {lease.slot}, generation {lease.generation} again")
    return HELD


@rule("GEN-3", needs=("preset",), signs=BOOKS | GRANT | TROUBLE)
def the_limit_costs_nothing(step: Step) -> Verdict | None:
    """A slot at the limit is retired; the others go on. When nothing that can ever be leased is left, the refusal is
    "slot generation exhausted" and costs nothing: no range, no slot.
    """
    limit, after = step.shape.generation_limit, step.after
    operation = step.operation
    if isinstance(operation, PUBLISHES) and is_open(step):
        if min(generations_before(step)) >= limit:
            return must_refuse(step, Reason.GENERATION_EXHAUSTED)
        if step.outcome.reason is Reason.GENERATION_EXHAUSTED:
            return Broken(f"a slot below {limit} is left: {generations_before(step)}", answer(step.outcome))
    if after.generations and max(after.generations) > limit:
        return Broken(f"generations up to {limit}", f"{after.generations}")
    for lease in step.left:
        if lease.generation < limit or after.free_slots is None:
            continue
        if lease.slot in after.free_slots or lease.slot not in (after.retired_slots or ()):
            return Broken(f"slot {lease.slot} retired at {limit}", f"free {after.free_slots}")
        return HELD
    return None


@reachable("GEN-3", "last-generation", on=PUBLISHES, needs=("preset",))
def the_last_generation_was_leased(step: Step) -> Verdict | None:
    """A slot was leased under its last generation."""
    lease = granted(step)
    return HELD if lease is not None and lease.generation == step.shape.generation_limit else None


@rule("GEN-4", on=(*BY_HANDLE, CancelProxy, Read, Collect, Fetch, Release, Confirm, Borrow))
def an_old_handle_touches_nothing_newer(step: Step) -> Verdict | None:
    """A handle of an older generation never reads, acknowledges, cancels or releases a newer lease (ABA)."""
    lease = lease_named(step.past, step.operation)
    if lease is None or lease.generation >= step.past.allocator.generations[lease.slot]:
        return None
    if isinstance(step.operation, (*BY_HANDLE, CancelProxy)):
        return _cancels_nothing(step, lease)
    return _reads_nothing(step, lease) or _acknowledges_nothing(step, lease)


def _cancels_nothing(step: Step, lease: Lease) -> Verdict:
    change = first_change(step)
    is_no_op = lease.is_pack and isinstance(step.operation, CancelProxy)  # PACK-4: done, and nothing changed.
    if step.outcome.kind != "refused" and not (is_no_op and is_open(step)):
        newest = step.past.allocator.generations[lease.slot]
        return Broken(f"refused: slot {lease.slot} is at generation {newest}", answer(step.outcome))
    return HELD if change is None else Broken("nothing changed", change)


def _reads_nothing(step: Step, lease: Lease) -> Broken | None:
    """A copy that arrived before the lease was retired is right whenever it is collected; any other is refused."""
    operation, outcome = step.operation, step.outcome
    if isinstance(operation, Borrow) and outcome.kind == "done" and is_open(step):
        newest = step.past.allocator.generations[lease.slot]
        return Broken(f"refused: slot {lease.slot} is at {newest}, the proxy at {lease.generation}", answer(outcome))
    if not isinstance(operation, Fetch | Collect) or outcome.kind != "done" or outcome.cached or step.past.failed:
        return None
    if is_readable(step.past, operation) and outcome.digest in (None, lease.digest, *lease.digests):
        return None
    newest = step.past.allocator.generations[lease.slot]
    return Broken(f"refused: slot {lease.slot} is at {newest}, the proxy at {lease.generation}", answer(outcome))


def _acknowledges_nothing(step: Step, lease: Lease) -> Verdict:
    proxy = proxy_used(step.past, step.operation)
    if proxy is None:
        return HELD
    for change in step.changed_words:
        if change[0] == lease.slot and change[1] and not is_due_ack(step, change, proxy.rank, lease):
            return Broken(f"{word_name(change[0], change[1])} stays {change[2]}", f"{change[3]}")
    return HELD


@rule("GEN-5", on=(Tamper,), needs=("tamper",))
def another_pools_handle_is_refused(step: Step) -> Verdict | None:
    """Proxies carry a pool nonce; a proxy of another pool is refused even if address, handle bytes, process id, slot
    and generation coincide.
    """
    if not isinstance(step.operation, Tamper) or step.operation.how != "pool" or not is_open(step):
        return None
    return must_refuse(step, Reason.FOREIGN_POOL)


@rule("GEN-6", kind=Kind.ALWAYS)
def the_pool_tells_what_is_left(step: Step) -> Verdict | None:
    """The pool tells the smallest number of generations left and warns once before the end, so an operator can restart
    in time.
    """
    after = step.after
    if after.generations_left is None or after.generations is None or after.life != "open":
        return None
    in_use = [count for slot, count in enumerate(after.generations) if slot not in (after.retired_slots or ())]
    due = step.shape.generation_limit - max(in_use) if in_use else 0
    if after.generations_left != due:
        return Broken(f"{due} left of {step.shape.generation_limit}", f"{after.generations_left}")
    return HELD
