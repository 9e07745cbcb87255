"""CON: consuming."""

from __future__ import annotations

from vmmref_models.families.history import (
    PUBLISHES,
    answer,
    bytes_wanted,
    fits,
    free_before,
    has_entered,
    inner,
    is_due_ack,
    is_open,
    is_readable,
    proxy_used,
    speaks,
    word,
    word_name,
)
from vmmref_models.operations import Borrow, Collect, Faulty, Fetch, Read
from vmmref_models.reasons import Reason
from vmmref_models.rules import HELD, Broken, Step, Verdict, reachable, rule
from vmmref_models.state import CACHED, RETIRE_VALIDATE_MAX, Lease


@rule("CON-1", on=(*PUBLISHES, Read, Collect, Fetch))
def the_published_tensor_arrives(step: Step) -> Verdict | None:
    """The tensor that a consumer gets equals the published one: bytes, shape, dtype, for every dtype torch has, also
    0-dim and non-contiguous sources.
    """
    operation, outcome = step.operation, step.outcome
    if isinstance(operation, PUBLISHES):
        ranges, slots = free_before(step)
        if outcome.kind == "crashed" and is_open(step) and slots and fits(ranges, bytes_wanted(operation)[1]):
            return Broken("a valid payload is published", answer(outcome))
        return None
    proxy = proxy_used(step.past, operation)
    if proxy is None or not speaks(proxy) or proxy.state == CACHED or outcome.kind not in ("done", "crashed"):
        return None
    if isinstance(operation, Read | Fetch) and (has_entered(step.past, proxy) or step.past.closed):
        return None
    if isinstance(operation, Read):
        return Broken("the read begins", answer(outcome)) if outcome.kind == "crashed" else None
    if not isinstance(operation, Collect | Fetch) or not is_readable(step.past, operation):
        return None
    due = proxy.lease.digest_of(proxy.part)
    if outcome.kind == "crashed" or outcome.digest != due:
        return Broken(f"digest {due:#010x} of lease {proxy.lease.view}", answer(outcome))
    return HELD


@rule("CON-2", on=(Read, Fetch))
def asking_again_gives_the_cached_tensor(step: Step) -> Verdict | None:
    """Asking again on the same device returns the same cached tensor: no pool read, no second ack."""
    proxy, outcome = proxy_used(step.past, step.operation), step.outcome
    if proxy is None or not speaks(proxy) or (proxy.state != CACHED and not outcome.cached):
        return None
    if proxy.state != CACHED:
        return Broken("a read: this copy of the proxy holds no tensor", f"{answer(outcome)} from its cache")
    if outcome.kind != "done" or not outcome.cached:
        return Broken("the cached tensor", answer(outcome))
    due = proxy.lease.digest_of(proxy.part)
    if outcome.digest is not None and outcome.digest != due:
        return Broken(f"the cached digest {due:#010x}", answer(outcome))
    changes = step.changed_words
    return Broken("no word changes", word_name(*changes[0][:2])) if changes else HELD


@rule("CON-3", on=(Read, Fetch))
def no_read_after_release(step: Step) -> Verdict | None:
    """After release without a cached tensor: "CUDA VMM tensor has already released its pool slice"; no byte is read;
    also for every other copy of that proxy in the same rank.
    """
    proxy, outcome = proxy_used(step.past, step.operation), step.outcome
    if proxy is None or not speaks(proxy) or proxy.state == CACHED or not has_entered(step.past, proxy):
        return None
    if outcome.kind == "refused" and outcome.reason is Reason.ALREADY_RELEASED:
        return HELD
    consumers = step.past.consumers
    unsure = not consumers.imported[step.past.process_of(proxy.rank)] or proxy.rank in consumers.late
    if step.past.closed and unsure and outcome.reason is Reason.PRODUCER_GONE:
        return None  # A read failed, or the rank came late: only the pool knows whether there is an import.
    entered = consumers.tables[proxy.rank][proxy.lease.slot]
    return Broken(
        f"refused {Reason.ALREADY_RELEASED}: rank {proxy.rank} has entered generation {entered} of slot "
        f"{proxy.lease.slot}",
        answer(outcome),
    )


@rule("CON-4", on=(Faulty,), needs=("faults",))
def a_failed_read_acknowledges_once(step: Step) -> Verdict | None:
    """A failed reconstruction acknowledges n after its queued work has ended, exactly once; the rank's table entry
    stays and it is not retried; the lease stays for the other ranks.
    """
    operation = inner(step)
    proxy = proxy_used(step.past, operation)
    if proxy is None or not isinstance(operation, Read | Fetch | Borrow) or step.outcome.kind != "failed":
        return None
    lease, column = proxy.lease, 1 + proxy.rank
    shown = word(step.after.words, lease.slot, column) if step.policies.protocol == RETIRE_VALIDATE_MAX else None
    if step.outcome.count and shown is not None and shown < lease.generation and not step.past.failed:
        return Broken(f"{word_name(lease.slot, column)} is {lease.generation}: the rank had entered it", f"{shown}")
    if step.before.leases != step.after.leases or step.before.retiring != step.after.retiring:
        return Broken(f"leases {step.before.leases} as before", f"{step.after.leases}")
    for change in step.changed_words:
        if not is_due_ack(step, change, proxy.rank, proxy.lease):
            return Broken(f"{word_name(change[0], change[1])} stays {change[2]}", f"{change[3]}")
    return HELD


@rule("CON-5", on=(Collect, Fetch))
def a_retired_lease_is_never_read(step: Step) -> Verdict | None:
    """R is read by an operation that starts after the last byte of the copy has arrived, past every cache. Not 2n:
    StaleLease, the copy is thrown away, and no word of another lease changes.
    """
    operation, outcome = step.operation, step.outcome
    proxy = proxy_used(step.past, operation)
    if proxy is None or not isinstance(operation, Collect | Fetch) or step.past.failed or not speaks(proxy):
        return None
    if isinstance(operation, Fetch) and (proxy.state == CACHED or has_entered(step.past, proxy)):
        return None
    lease, is_stale = proxy.lease, outcome.reason is Reason.STALE_LEASE
    if is_readable(step.past, operation):
        return Broken(f"the bytes of {lease.view}, which is live", answer(outcome)) if is_stale else None
    if not is_stale and not _is_late_but_right(step, lease):
        return Broken(f"refused {Reason.STALE_LEASE}: {lease.view} was retired", answer(outcome))
    own = lease if lease.borrowable else None  # CON-6: it is set aside until every reader has said that it is done.
    for change in step.changed_words:
        if not is_due_ack(step, change, proxy.rank, own):
            return Broken(f"{word_name(change[0], change[1])} stays {change[2]}", f"{change[3]}")
    return HELD


def _is_late_but_right(step: Step, lease: Lease) -> bool:
    """Whether a reader of a closed pool was told that it is gone, or got the right bytes where those may be left."""
    if not step.past.closed:
        return False
    foreign = step.policies.protocol != RETIRE_VALIDATE_MAX
    return step.outcome.reason is Reason.PRODUCER_GONE or (foreign and step.outcome.digest == lease.digest)


@reachable("CON-5", "reissued", on=(Collect, Fetch))
def a_stale_reader_met_a_newer_lease(step: Step) -> Verdict | None:
    """A reader was told that its lease is stale after its slot had been leased again."""
    proxy = proxy_used(step.past, step.operation)
    if proxy is None or step.outcome.reason is not Reason.STALE_LEASE:
        return None
    return HELD if step.past.allocator.generations[proxy.lease.slot] > proxy.lease.generation else None
