"""ACK: acknowledgements."""

from __future__ import annotations

from vmmref_models.families.history import (
    acknowledged_by_all,
    answer,
    awaited,
    has_entered,
    inner,
    is_due_ack,
    must_refuse,
    proxy_used,
    rank_pieces,
    ranks_at_work,
    speaks,
    stream_of,
    word_name,
)
from vmmref_models.families.rec import active_leases, was_taken
from vmmref_models.operations import (
    Advance,
    Borrow,
    Claim,
    Collect,
    Confirm,
    DropImport,
    Fetch,
    Read,
    Recycle,
    Release,
    ReleaseAs,
    Return,
)
from vmmref_models.reasons import Reason
from vmmref_models.rules import HELD, WORDS, Broken, Change, Step, Verdict, reachable, rule
from vmmref_models.state import ACK, CACHED, COPY_OUT, READ_READY, RELEASED, Lease, State


@rule("ACK-1", needs=("words", "stepping"), signs=WORDS)
def an_ack_follows_its_copy_out(step: Step) -> Verdict | None:
    """Rank r's ack is ordered after its copy-out: ack visible => its read is over."""
    verdict: Verdict | None = None
    operation = inner(step)
    drains = isinstance(operation, Collect | Fetch | Borrow | DropImport) or operation is not step.operation
    drained = ranks_at_work(step.past, operation) if drains else ()
    for slot, column, old, new in step.changed_words:
        if column == 0 or new <= old:
            continue
        rank, proxy = column - 1, proxy_used(step.past, operation)
        pending = [
            piece
            for piece in rank_pieces(step.past, rank)
            if piece.lease.slot == slot
            and piece.lease.generation == new
            and piece.kind in (COPY_OUT, READ_READY)
            and rank not in drained
        ]
        begins = isinstance(step.operation, Read) and proxy is not None and proxy.lease.slot == slot
        if pending or begins:
            what = pending[0].kind if pending else COPY_OUT
            return Broken(f"{word_name(slot, column)} stays {old}: the {what} of rank {rank} is queued", f"{new}")
        verdict = HELD
    return verdict


@rule("ACK-2", needs=("words",), signs=WORDS)
def ack_words_never_decrease(step: Step) -> Verdict | None:
    """Ack words never decrease: one atomic max, or all acks of a rank's word from one stream of one process."""
    verdict: Verdict | None = None
    for slot, column, old, new in step.changed_words:
        if column:
            verdict = HELD
            if new < old:
                return Broken(f"{word_name(slot, column)} stays at {old} or rises", f"{new}")
    return verdict


@rule("ACK-3", on=(Release, Read, Fetch, Confirm, Borrow, Claim, Recycle))
def a_rank_counts_once(step: Step) -> Verdict | None:
    """A rank counts once for a lease, however often and from however many copies of the proxy it acknowledges."""
    if isinstance(step.operation, Claim | Recycle):
        return _duplicates_free_nothing(step)
    proxy = proxy_used(step.past, step.operation)
    if proxy is None or not has_entered(step.past, proxy):
        return None
    for change in step.changed_words:
        if not is_due_ack(step, change, proxy.rank):
            name = word_name(change[0], change[1])
            return Broken(f"{name} stays {change[2]}: rank {proxy.rank} has taken part", f"{change[3]}")
    return HELD


def _duplicates_free_nothing(step: Step) -> Verdict | None:
    verdict: Verdict | None = None
    for lease in active_leases(step.past):
        if acknowledged_by_all(step, lease) or not _has_duplicates(step.past, lease):
            continue
        if was_taken(step, lease):
            return Broken(f"{lease.view} stays: one rank took part twice, another not at all", "it was claimed")
        verdict = HELD
    return verdict


def _has_duplicates(past: State, lease: Lease) -> bool:
    """Whether some rank took part in this lease with more than one copy of its proxy."""
    ranks = [
        proxy.rank
        for proxy in past.consumers.proxies
        if proxy.state in (CACHED, RELEASED) and proxy.lease.token == lease.token
    ]
    return len(set(ranks)) < len(ranks)


@rule(
    "ACK-4",
    on=(Advance, Read, Fetch, Collect, Release, Confirm, ReleaseAs, Borrow, Return, DropImport),
    needs=("words",),
)
def an_ack_is_one_store_into_the_own_word(step: Step) -> Verdict | None:
    """The words a lease waits for are fixed when it is published. An ack names one rank, a declared group led by the
    caller, or nothing else, and is one store into the caller's own word, which the recycler expands by the declared
    set; anything else is refused before any write.
    """
    operation = step.operation
    proxy = proxy_used(step.past, operation)
    if isinstance(operation, ReleaseAs) or (proxy is not None and not speaks(proxy)):
        return must_refuse(step, Reason.BAD_RANK)
    if step.outcome.reason is Reason.BAD_RANK:
        return Broken("an answer: the rank speaks for itself or its group", answer(step.outcome))
    changes = [change for change in step.changed_words if change[1]]
    if not changes:
        return None
    for change in changes:
        if not _is_named(step, change):
            name = word_name(change[0], change[1])
            return Broken(f"{name} stays {change[2]}: it is no word of this acknowledgement", f"{change[3]}")
    return HELD


def _is_named(step: Step, change: Change) -> bool:
    """Whether an acknowledgement that ran in this step names the word that changed."""
    operation = step.operation
    if isinstance(operation, Advance):
        head = step.past.device.queues[stream_of(step.past, operation)][:1]
        return any(piece.kind == ACK and change[:2] == (piece.lease.slot, 1 + piece.rank) for piece in head)
    if isinstance(operation, DropImport):
        return change[1] - 1 in ranks_at_work(step.past, operation)  # Several streams ran dry; CON-4 has the rest.
    proxy = proxy_used(step.past, operation)
    return proxy is not None and is_due_ack(step, change, proxy.rank, proxy.lease)


@reachable("ACK-4", "group-led", on=(Claim, Recycle), needs=("groups",))
def a_lease_was_complete_by_the_word_of_a_groups_first(step: Step) -> Verdict | None:
    """A lease was taken back though a rank that another one speaks for had stored nothing."""
    for lease in active_leases(step.past):
        words = step.past.device.words[lease.slot][1:]
        led = [rank for group in lease.groups for rank in group[1:]]
        if any(words[rank] != lease.generation for rank in led) and was_taken(step, lease):
            return HELD
    return None


@rule("ACK-5", on=(Claim, Recycle))
def an_old_ack_does_not_count(step: Step) -> Verdict | None:
    """An ack with generation n counts for lease (slot, n) and for no other."""
    verdict: Verdict | None = None
    for lease in active_leases(step.past):
        acks = step.past.device.words[lease.slot][1:]
        words = [acks[rank] for rank in awaited(step.past, lease, step.operation)]
        if lease.token not in step.past.dispatched or not any(0 < word < lease.generation for word in words):
            continue
        if was_taken(step, lease):
            return Broken(f"{lease.view} stays: acknowledged were generations {words}", "it was claimed")
        verdict = HELD
    return verdict


@reachable("ACK-5", "only-old-acks", on=(Claim, Recycle))
def every_rank_had_acknowledged_an_older_lease(step: Step) -> Verdict | None:
    """A pass met a lease in whose words every rank's acknowledgement was of an older one."""
    for lease in active_leases(step.past):
        acks, ranks = step.past.device.words[lease.slot][1:], awaited(step.past, lease, step.operation)
        if ranks and all(0 < acks[rank] < lease.generation for rank in ranks):
            return HELD
    return None
