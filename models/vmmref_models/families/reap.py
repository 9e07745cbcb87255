"""REAP: dead and late consumers."""

from __future__ import annotations

from vmmref_models.families.experiments import tried
from vmmref_models.families.history import (
    PUBLISHES,
    acknowledged_by_all,
    answer,
    first_change,
    is_acknowledged,
    is_open,
    must_refuse,
    proxy_used,
    speaks,
    word,
    word_name,
)
from vmmref_models.families.rec import active_leases, was_taken
from vmmref_models.operations import (
    Attempt,
    Borrow,
    Cancel,
    Claim,
    Collect,
    Crash,
    Expire,
    Fetch,
    Import,
    Join,
    Read,
    Reap,
    Reclaim,
    Recycle,
    Revoke,
)
from vmmref_models.reasons import Reason
from vmmref_models.rules import HELD, Broken, Step, Verdict, reachable, rule
from vmmref_models.state import CACHED, FRESH, RETIRE_VALIDATE_MAX, Lease

# --- dead -------------------------------------------------------------------------------------------------------------


@rule("REAP-1", on=(Crash, Reap, Join, Claim, Recycle, Reclaim), needs=("processes",))
def the_host_counts_the_dead(step: Step) -> Verdict | None:
    """A consumer process that died (pidfd readable) no longer holds leases: the reaper counts its rank, and the set it
    speaks for, on the host and for each lease; it writes no word. The rank's number goes to a new process only after
    the old one's device work is gone. The others are undisturbed.
    """
    for slot, column, old, new in step.changed_words:
        if column and column - 1 in step.past.consumers.dead:
            return Broken(f"{word_name(slot, column)} stays {old}: rank {column - 1} is dead", f"{new}")
    if isinstance(step.operation, Crash | Reap | Join):
        return _death_changes_nothing(step)
    return _the_dead_are_not_waited_for(step) if is_open(step) and somebody_died(step) else None


def somebody_died(step: Step) -> bool:
    """Whether a rank is dead, or some lease that is out was there when one was."""
    return bool(step.past.consumers.dead or step.past.allocator.excused)


def _death_changes_nothing(step: Step) -> Verdict | None:
    operation, outcome, consumers = step.operation, step.outcome, step.past.consumers
    if isinstance(operation, Join) and is_open(step) and operation.rank not in step.past.allocator.vacant:
        return must_refuse(step, Reason.BAD_RANK)
    if not isinstance(operation, Crash) and not is_open(step):
        return None
    if outcome.kind != "done":
        return Broken("done", answer(outcome))
    due = len(set(consumers.dead) - set(step.past.allocator.vacant))
    if isinstance(operation, Reap) and outcome.count is not None and outcome.count != due:
        return Broken(f"{due} found dead", f"{outcome.count}")
    change = first_change(step)
    return HELD if change is None else Broken("no word and no lease changes", change)


def _the_dead_are_not_waited_for(step: Step) -> Verdict | None:
    """A pass that knows of the dead takes what only they have not acknowledged, and nothing before it knows."""
    verdict: Verdict | None = None
    for lease in active_leases(step.past):
        missing = _dead_and_missing(step, lease)
        if not missing or lease.token not in step.past.dispatched:
            continue
        complete = _known_complete(step, lease)
        if complete and step.outcome.kind == "done" and not was_taken(step, lease):
            if step.after.leases is None or step.after.retiring is None:
                continue
            return Broken(f"{lease.view} is taken back: only the dead ranks {missing} are missing", "it stays")
        if not complete and was_taken(step, lease):
            return Broken(f"{lease.view} stays until its dead ranks {missing} are counted", "it was claimed")
        verdict = HELD
    return verdict


def _dead_and_missing(step: Step, lease: Lease) -> list[int]:
    """The dead ranks, counted or not, that lead a group and have not acknowledged."""
    past = step.past
    acks = past.device.words[lease.slot][1:]
    return [
        rank
        for rank in lease.speakers(past.shape.consumers)
        if acks[rank] != lease.generation
        and (rank in past.consumers.dead or (lease.slot, rank) in past.allocator.excused)
    ]


def _known_complete(step: Step, lease: Lease) -> bool:
    """Whether what this pass looks at shows the lease complete."""
    operation = step.operation
    if isinstance(operation, Recycle):
        return acknowledged_by_all(step, lease)
    for snapshot in step.past.looks:
        if isinstance(operation, Claim) and snapshot.token == operation.look:
            return is_acknowledged(step.past, lease, snapshot.words)
    return False


@reachable("REAP-1", "taken-back", on=(Claim, Recycle), needs=("processes",))
def a_lease_came_back_without_the_dead(step: Step) -> Verdict | None:
    """A lease was taken back though a rank whose process had died had not acknowledged it."""
    leases = active_leases(step.past) if somebody_died(step) else []
    return HELD if any(_dead_and_missing(step, lease) and was_taken(step, lease) for lease in leases) else None


@reachable("REAP-1", "group-of-the-dead", on=(Claim, Recycle), needs=("processes", "groups"))
def a_lease_came_back_without_a_dead_ranks_group(step: Step) -> Verdict | None:
    """A lease was taken back without the group of a rank whose process had died."""
    for lease in active_leases(step.past) if somebody_died(step) else []:
        missing = _dead_and_missing(step, lease)
        leads = any(len(group) > 1 and group[0] in missing for group in lease.groups)
        if leads and was_taken(step, lease):
            return HELD
    return None


@reachable("REAP-1", "reissued-after-death", on=PUBLISHES, needs=("processes",))
def a_slot_was_reissued_that_a_dead_rank_had_not_acknowledged(step: Step) -> Verdict | None:
    """A slot was leased again while the process of a rank that had not acknowledged its last lease was dead."""
    lease, past = step.outcome.lease, step.past
    if lease is None or not 0 <= lease.slot < past.shape.slots or lease.generation < 2:
        return None
    acks = past.device.words[lease.slot][1:]
    return HELD if any(acks[rank] != lease.generation - 1 for rank in past.allocator.vacant) else None


@reachable("REAP-1", "late-copy-after-join", on=(Read, Fetch, Borrow), needs=("processes",))
def a_new_process_was_refused_what_its_predecessor_had_acknowledged(step: Step) -> Verdict | None:
    """A new process was refused a lease that its rank's dead process had acknowledged."""
    proxy = proxy_used(step.past, step.operation)
    if proxy is None or step.outcome.reason is not Reason.ALREADY_RELEASED:
        return None
    own = [other for other in step.past.consumers.proxies if other.rank == proxy.rank]
    used = [other for other in own if other.lease.token == proxy.lease.token and other.state != FRESH]
    entered = step.past.consumers.tables[proxy.rank][proxy.lease.slot]
    return HELD if not used and entered == proxy.lease.generation else None


# --- late -------------------------------------------------------------------------------------------------------------


@rule("REAP-2", on=(Expire, *PUBLISHES, Claim, Recycle, Reclaim, Cancel, Revoke, Collect, Fetch), needs=("set-aside",))
def a_late_lease_is_set_aside(step: Step) -> Verdict | None:
    """A lease past its deadline is set aside with R = 2n unchanged: reported, not reissued; its late reader is served
    and acknowledged as usual, and the lease comes back once.
    """
    is_expiry = isinstance(step.operation, Expire)
    shown = step.after.set_aside
    if shown is None or not is_open(step) or not (is_expiry or step.past.overdue):
        return None
    if is_expiry and step.outcome.kind != "done":
        return Broken("done", answer(step.outcome))
    retiring, held = step.after.retiring or (), step.after.leases or ()
    late = _late(step)
    for lease in late:
        if lease.view not in held or lease.slot in retiring:
            if is_expiry or (isinstance(step.operation, Claim | Recycle) and not _known_complete(step, lease)):
                return Broken(f"{lease.view} stays as it is: late is no proof of gone", "it was ended")
            continue
        if lease.slot not in shown:
            return Broken(f"{lease.view} among what is set aside: it is past its deadline", f"slots {shown}")
        ready = word(step.after.words, lease.slot, 0)
        if step.policies.protocol == RETIRE_VALIDATE_MAX and ready is not None and ready != 2 * lease.generation:
            return Broken(f"R of slot {lease.slot} stays {2 * lease.generation}", f"{ready}")
    early = [slot for slot in shown if slot not in retiring and slot not in {lease.slot for lease in late}]
    if early:
        return Broken("only what was dispatched before the deadline is set aside", f"slots {early} too")
    return HELD if late else None


def _late(step: Step) -> list[Lease]:
    """The active leases that are past their deadline, this step's included."""
    past = step.past
    count = len(past.dispatched) if isinstance(step.operation, Expire) else past.overdue
    tokens = past.dispatched[:count]
    return [lease for lease in active_leases(past) if lease.token in tokens]


@reachable("REAP-2", "late-reader", on=(Collect, Fetch), needs=("set-aside",))
def a_late_reader_was_served(step: Step) -> Verdict | None:
    """A rank read a lease that was past its deadline."""
    proxy = proxy_used(step.past, step.operation)
    if proxy is None or step.outcome.kind != "done" or step.outcome.cached or not step.past.overdue:
        return None
    return HELD if proxy.lease.token in step.past.dispatched[: step.past.overdue] else None


@reachable("REAP-2", "came-back", on=(Claim, Recycle), needs=("set-aside",))
def a_late_lease_came_back(step: Step) -> Verdict | None:
    """A pass took back a lease that was past its deadline."""
    if not step.past.overdue:
        return None
    return HELD if any(was_taken(step, lease) for lease in _late(step)) else None


# --- a dead producer --------------------------------------------------------------------------------------------------


@rule("REAP-3", on=(Read, Fetch, Borrow, Import, Attempt))
def consumers_of_a_dead_producer_are_told(step: Step) -> Verdict | None:
    """Consumers of a dead producer get ProducerGone in bounded time; none hangs."""
    operation, past = step.operation, step.past
    if isinstance(operation, Attempt):
        return tried(step, "REAP-3")
    if step.outcome.reason is Reason.PRODUCER_GONE and not past.closed:
        return Broken("an answer: the pool is there", answer(step.outcome))
    if not past.closed or step.policies.protocol != RETIRE_VALIDATE_MAX:
        return None
    if isinstance(operation, Import):
        rank = operation.rank
    else:
        proxy = proxy_used(past, operation)
        if proxy is None or not speaks(proxy):
            return None
        if isinstance(operation, Borrow) and not proxy.lease.borrowable:
            return None
        if not isinstance(operation, Borrow) and proxy.state == CACHED:
            return None
        rank = proxy.rank
    if past.consumers.imported[past.process_of(rank)] is not False:
        return None
    return must_refuse(step, Reason.PRODUCER_GONE)
