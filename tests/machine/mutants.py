"""Models broken on purpose, each in one place: what the harness must name, and how short it must show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tests.machine.model_subject import ModelSession, ModelSubject
from vmmref.conformance.subject import Leftovers
from vmmref_models import allocation, consuming, processes, publishing, streams, taking_back
from vmmref_models.attempts import ATTEMPTS
from vmmref_models.observation import Observation, Shape
from vmmref_models.operations import (
    Attempt,
    Cancel,
    CancelProxy,
    Claim,
    Collect,
    Confirm,
    Construct,
    Crash,
    Dispatch,
    DropImport,
    Expire,
    Faulty,
    Fetch,
    Import,
    Operation,
    Outcome,
    Publish,
    PublishUnusable,
    Read,
    Reap,
    Recycle,
    Release,
    ReleaseLease,
    Revoke,
    Tamper,
    Wrap,
)
from vmmref_models.reasons import Reason
from vmmref_models.state import Allocator, Lease, Snapshot, State
from vmmref_models.step import settle, step
from vmmref_models.streams import PUBLISH_QUEUE

Words = tuple[tuple[int, ...], ...]
Stepped = tuple[State, Outcome]
Change = Callable[[State, Operation, State, Outcome], Stepped]
"""From the state before, the operation, and what a right model made of it, to what the broken one makes of it."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A broken model: functions of the model replaced while it steps, or a change of what came out or is shown."""

    rules: frozenset[str]
    """Any of these names the fault."""
    operations: int
    """The longest sequence that counts as short."""
    patches: Mapping[tuple[Any, str], Any] = field(default_factory=dict)
    change: Change | None = None
    show: Callable[[Observation], Observation] | None = None
    leftovers: Mapping[str, int] = field(default_factory=dict)


class BrokenSession(ModelSession):
    """A model in the place of a pool, with one fault."""

    def __init__(self, shape: Shape, stepping: bool, mutant: Mutant) -> None:
        super().__init__(shape, stepping)
        self.mutant = mutant

    def stepped(self, operation: Operation) -> Stepped:
        before = self.state
        with patched(self.mutant.patches):
            after, outcome = super().stepped(operation)
        if self.mutant.change is None:
            return after, outcome
        return self.mutant.change(before, operation, after, outcome)

    def observe(self) -> Observation:
        observation = super().observe()
        return observation if self.mutant.show is None else self.mutant.show(observation)

    def close(self) -> Leftovers:
        return Leftovers(dict(self.mutant.leftovers))


class BrokenSubject(ModelSubject):
    """Makes models with one fault."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__()
        self.mutant = mutant

    def open(self, shape: Shape) -> ModelSession:
        return BrokenSession(shape, "stepping" in self.capabilities, self.mutant)


@contextmanager
def patched(patches: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
    """Replace functions of modules; only while the broken model steps, never while the right one does."""
    saved = {(owner, name): getattr(owner, name) for owner, name in patches}
    for (owner, name), value in patches.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name), value in saved.items():
            setattr(owner, name, value)


def _worst_fit(free_ranges: tuple[tuple[int, int], ...], size: int) -> tuple[int, int] | None:
    fitting = [free for free in free_ranges if free[1] - free[0] >= size]
    return max(fitting, key=lambda free: (free[1] - free[0], free[0])) if fitting else None


def _unmerged(free_ranges: tuple[tuple[int, int], ...], freed: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((*free_ranges, freed)))


def _word_counts(counts: Callable[[tuple[int, ...], int], bool]) -> Callable[[State, Words], tuple[Lease, ...]]:
    """A recycler with its own idea of when a lease is complete."""

    def complete(state: State, words: Words) -> tuple[Lease, ...]:
        return tuple(
            lease
            for slot, lease in enumerate(state.allocator.held)
            if lease is not None
            and slot not in state.allocator.retiring
            and lease.token in state.dispatched
            and counts(words[slot][1:], lease.generation)
        )

    return complete


def _same_generation(before: State, operation: Operation, after: State, outcome: Outcome) -> Stepped:
    """Hands out the last generation again."""
    if outcome.lease is None or outcome.lease.generation < 2:
        return after, outcome
    slot, view = outcome.lease.slot, replace(outcome.lease, generation=outcome.lease.generation - 1)
    held = after.allocator.held[slot]
    if held is None:
        return after, outcome
    allocator = replace(
        after.allocator,
        generations=before.allocator.generations,
        held=_at(after.allocator.held, slot, replace(held, view=view)),
    )
    return replace(after, allocator=allocator), replace(outcome, lease=view)


def _at(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _stale_look(state: State, operation: Claim) -> Stepped:
    """Claims whatever holds the slots that the look saw complete, of whichever generation."""
    snapshot = next(one for one in state.looks if one.token == operation.look)
    words = tuple(
        _now(held.generation, row) if held is not None else row
        for held, row in zip(state.allocator.held, snapshot.words, strict=True)
    )
    looks = tuple(Snapshot(one.token, words) if one is snapshot else one for one in state.looks)
    return _right_claim(replace(state, looks=looks), operation)


def _now(generation: int, row: tuple[int, ...]) -> tuple[int, ...]:
    """The words of a slot that were complete for some lease, as if they had been for this one."""
    return (row[0], *(generation for _ in row[1:])) if len(set(row[1:])) == 1 and row[1] else row


_right_claim, _right_cancel = taking_back.claim, taking_back.cancel
_right_release, _right_publish = consuming.release, publishing.publish


def _cancel_by_slot(state: State, token: int, wait: bool) -> Stepped:
    """Cancels whatever holds the slot of an old lease."""
    lease = state.lease(token)
    held = state.allocator.held[lease.slot] if lease is not None else None
    return _right_cancel(state, held.token if held is not None else token, wait)


def _ready_before_copy(state: State, operation: Any, seen: Outcome | None, nbytes: int) -> Stepped:
    after, outcome = _right_publish(state, operation, seen, nbytes)
    if outcome.kind != "done":
        return after, outcome
    *older, copy, ready = after.device.queues[PUBLISH_QUEUE]
    queues = _at(after.device.queues, PUBLISH_QUEUE, (*older, ready, copy))
    return replace(after, device=replace(after.device, queues=queues)), outcome


def _acknowledged_at_once(before: State, operation: Operation, after: State, outcome: Outcome) -> Stepped:
    """Stores the acknowledgement when the read begins, before its copy-out has run."""
    if not isinstance(operation, Read) or outcome.kind != "done" or outcome.cached:
        return after, outcome
    proxy = after.proxy(operation.proxy)
    if proxy is None:
        return after, outcome
    words = streams.stored(after.device.words, proxy.lease.slot, 1 + proxy.rank, proxy.lease.generation)
    return replace(after, device=replace(after.device, words=words)), outcome


def _words_zeroed(before: State, operation: Operation, after: State, outcome: Outcome) -> Stepped:
    if not isinstance(operation, Publish | Wrap) or outcome.lease is None or outcome.lease.generation < 2:
        return after, outcome
    words = _at(after.device.words, outcome.lease.slot, (0,) * (1 + after.shape.consumers))
    if isinstance(operation, Wrap):
        words = streams.stored(words, outcome.lease.slot, 0, 2 * outcome.lease.generation)
    return replace(after, device=replace(after.device, words=words)), outcome


def _range_lost_at_limit(before: State, operation: Operation, after: State, outcome: Outcome) -> Stepped:
    if outcome.reason is not Reason.GENERATION_EXHAUSTED or not after.allocator.free_ranges:
        return after, outcome
    return replace(after, allocator=replace(after.allocator, free_ranges=after.allocator.free_ranges[1:])), outcome


def _open_for_ever(before: State, operation: Operation, after: State, outcome: Outcome) -> Stepped:
    """Accepts publications after it was shut down."""
    if isinstance(operation, Publish | Wrap) and outcome.reason is Reason.POOL_CLOSING:
        return step(replace(before, closed=False), operation)
    return after, outcome


def _never_stale(before: State, operation: Operation, after: State, outcome: Outcome) -> Stepped:
    """Serves a reader whose lease was retired under it."""
    if isinstance(operation, Collect | Fetch) and outcome.reason is Reason.STALE_LEASE:
        return after, Outcome("done", digest=0x5A5A5A5A)
    return after, outcome


def _release_forgets_table(state: State, proxy: int, observed: Observation | None = None) -> Stepped:
    """Releases without entering the lease in the rank's table, so that another copy may still read."""
    after, outcome = _right_release(state, proxy, observed)
    return replace(after, consumers=replace(after.consumers, tables=state.consumers.tables)), outcome


def _group_release(before: State, operation: Operation, after: State, outcome: Outcome) -> Stepped:
    """A release acknowledges for every rank."""
    if not isinstance(operation, Release) or after.device.queues == before.device.queues:
        return after, outcome
    proxy = after.proxy(operation.proxy)
    if proxy is None:
        return after, outcome
    words = after.device.words
    for rank in range(after.shape.consumers):
        words = streams.stored(words, proxy.lease.slot, 1 + rank, proxy.lease.generation)
    return replace(after, device=replace(after.device, words=words)), outcome


def _freed_before_retired(state: State, wait: bool, observed: Observation | None) -> Stepped:
    """Frees what is retiring without waiting for its retire store."""
    slots = state.allocator.retiring
    return taking_back.freed(state, slots, observed), Outcome("done", count=len(slots))


def _on(operations: Any, right: Outcome, wrong: Outcome) -> Change:
    """Answers `wrong` wherever a right model answers with the kind and reason of `right`."""

    def change(before: State, operation: Operation, after: State, outcome: Outcome) -> Stepped:
        if isinstance(operation, operations) and (outcome.kind, outcome.reason) == (right.kind, right.reason):
            return after, wrong
        return after, outcome

    return change


def _slot_lost(allocator: Allocator, limit: int, slots: tuple[int, ...], order: Any = None) -> Allocator:
    given = _right_give_back(allocator, limit, slots, order)
    return replace(given, free_slots=allocator.free_slots)


def _last_in_first_out(allocator: Allocator, limit: int, slots: tuple[int, ...], order: Any = None) -> Allocator:
    given = _right_give_back(allocator, limit, slots, order)
    fresh = tuple(slot for slot in given.free_slots if slot not in allocator.free_slots)
    return replace(given, free_slots=(*reversed(fresh), *allocator.free_slots))


_right_give_back = allocation.give_back


def _retire_store_of_the_past(before: State, operation: Operation, after: State, outcome: Outcome) -> Stepped:
    """Marks a retired slot with an older value than its words had."""
    words = tuple(
        (2 * max(0, new[0] // 2 - 1), *new[1:]) if new[0] % 2 and old[0] != new[0] else new
        for old, new in zip(before.device.words, after.device.words, strict=True)
    )
    return replace(after, device=replace(after.device, words=words)), outcome


def _wrong_bytes(before: State, operation: Operation, after: State, outcome: Outcome) -> Stepped:
    """Loses the first byte of tensors that are not contiguous."""
    if outcome.digest is None or outcome.cached:
        return after, outcome
    token = operation.proxy if isinstance(operation, Fetch) else None
    proxy = before.proxy(token) if token is not None else None
    if proxy is None or proxy.lease.view.nbytes < 300:
        return after, outcome
    return after, replace(outcome, digest=outcome.digest ^ 1)


def _reads_again(before: State, operation: Operation, after: State, outcome: Outcome) -> Stepped:
    """Says nothing of its cache."""
    return after, replace(outcome, cached=False) if outcome.cached else outcome


def _full_counts(before: State, operation: Operation, after: State, outcome: Outcome) -> Stepped:
    """A full pool turns its list of free slots."""
    if outcome.kind != "full" or len(after.allocator.free_slots) < 2:
        return after, outcome
    first, *rest = after.allocator.free_slots
    return replace(after, allocator=replace(after.allocator, free_slots=(*rest, first))), outcome


def _failed_publish_leaks(before: State, operation: Operation, after: State, outcome: Outcome) -> Stepped:
    """Keeps the range of a publication whose driver call failed."""
    inner = operation.operation if isinstance(operation, Faulty) else None
    if not isinstance(inner, Publish | Wrap) or outcome.kind != "failed":
        return after, outcome
    taken, _ = _right_publish(before, inner, None, inner.nbytes)
    return replace(after, allocator=replace(after.allocator, free_ranges=taken.allocator.free_ranges)), outcome


def _waits(before: State, operation: Operation, after: State, outcome: Outcome) -> Stepped:
    """A look waits for everything that is queued."""
    from vmmref_models.operations import Look

    return (settle(after), outcome) if isinstance(operation, Look) else (after, outcome)


def _recycled_twice(before: State, operation: Operation, after: State, outcome: Outcome) -> Stepped:
    """Counts a lease for each rank that acknowledged it."""
    if isinstance(operation, Recycle) and outcome.count:
        return after, replace(outcome, count=outcome.count * 2)
    return after, outcome


def _dispatch_early(before: State, operation: Operation, after: State, outcome: Outcome) -> Stepped:
    """Lets a proxy leave while its ready store is queued."""
    if isinstance(operation, Dispatch) and outcome.kind == "done":
        return replace(after, device=before.device), outcome
    return after, outcome


def _tampered_generation(before: State, operation: Operation, after: State, outcome: Outcome) -> Stepped:
    """Looks at the slot of a handle only."""
    if isinstance(operation, Tamper) and operation.how == "generation" and outcome.kind == "refused":
        lease = before.lease(operation.lease)
        if lease is not None and before.is_active(lease):
            return _right_cancel(before, operation.lease, True)
    return after, outcome


def _tried_wrongly(rule: str) -> Change:
    """Leaves something behind in every experiment about one rule."""

    def change(before: State, operation: Operation, after: State, outcome: Outcome) -> Stepped:
        if isinstance(operation, Attempt) and ATTEMPTS[operation.what].rule == rule:
            return after, replace(outcome, leftovers=1)
        return after, outcome

    return change


def _half_a_pack(before: State, operation: Operation, after: State, outcome: Outcome) -> Stepped:
    """Forgets the last tensor of a pack."""
    if outcome.places is None or len(outcome.places) < 2:
        return after, outcome
    return after, replace(outcome, places=outcome.places[:-1])


def _end_to_end(payloads: Any, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Lays the tensors of a pack out without a gap."""
    return tuple(sum(sizes[:part]) for part in range(len(sizes))), sum(sizes)


def _cancelled_pack_raises(before: State, operation: Operation, after: State, outcome: Outcome) -> Stepped:
    """Refuses to cancel a pack twice."""
    lease = before.lease(operation.lease) if isinstance(operation, CancelProxy) else None
    if lease is None or not lease.is_pack or before.is_active(lease) or outcome.kind != "done":
        return after, outcome
    return after, Outcome("refused", Reason.INACTIVE_LEASE, message="no such lease")


def _counted_at_once(state: State, operation: Crash) -> Stepped:
    """Counts a process as dead when it dies, before any pass."""
    after, outcome = _right_crash(state, operation)
    return processes.reap(after)[0], outcome


def _acknowledged_for_the_dead(before: State, operation: Operation, after: State, outcome: Outcome) -> Stepped:
    """Writes the words of ranks whose processes were found dead."""
    if not isinstance(operation, Reap | Recycle) or before.allocator.vacant == after.allocator.vacant:
        return after, outcome
    words = after.device.words
    for lease in before.allocator.held:
        for rank in after.allocator.vacant if lease is not None else ():
            words = streams.stored(words, lease.slot, 1 + rank, lease.generation) if lease is not None else words
    return replace(after, device=replace(after.device, words=words)), outcome


def _no_deadline(before: State, operation: Operation, after: State, outcome: Outcome) -> Stepped:
    return (before, outcome) if isinstance(operation, Expire) else (after, outcome)


_right_crash = processes.crash

_CRASH = Outcome("crashed", message="IndexError: list index out of range")


def _mute(before: State, operation: Operation, after: State, outcome: Outcome) -> Stepped:
    return after, replace(outcome, message="") if outcome.kind == "refused" else outcome


def _any(*rules: str) -> frozenset[str]:
    return frozenset(rules)


_GONE = Outcome("refused", Reason.PRODUCER_GONE)
_TIMED_OUT = Outcome("refused", Reason.TIMED_OUT, message="no answer")

MUTANTS: dict[str, Mutant] = {
    "worst fit": Mutant(_any("RNG-3"), 6, {(allocation, "best_fit"): _worst_fit}),
    "no merge": Mutant(_any("RNG-4"), 2, {(allocation, "merged"): _unmerged}),
    "generation not raised": Mutant(_any("GEN-1", "GEN-2"), 3, change=_same_generation),
    "one acknowledgement too few": Mutant(
        _any("REC-1"),
        3,
        {(taking_back, "complete"): _word_counts(lambda acks, n: sum(word == n for word in acks) >= len(acks) - 1)},
    ),
    "any acknowledgement counts": Mutant(
        _any("REC-1", "ACK-5"),
        8,
        {(taking_back, "complete"): _word_counts(lambda acks, n: all(acks))},
    ),
    "old look": Mutant(_any("REC-1", "REC-3", "GEN-4"), 9, {(taking_back, "claim"): _stale_look}),
    "cancel by slot": Mutant(_any("CAN-2", "GEN-4", "REC-6"), 4, {(taking_back, "cancel"): _cancel_by_slot}),
    "ready before copy": Mutant(_any("PUB-1"), 2, {(publishing, "publish"): _ready_before_copy}),
    "acknowledged before copy-out": Mutant(_any("ACK-1", "CTL-4"), 3, change=_acknowledged_at_once),
    "words zeroed at reuse": Mutant(_any("CTL-3"), 6, change=_words_zeroed),
    "refusal loses a range": Mutant(_any("GEN-3", "ERR-1"), 1, change=_range_lost_at_limit),
    "open for ever": Mutant(_any("LIFE-2"), 2, change=_open_for_ever),
    "never stale": Mutant(_any("CON-5"), 4, change=_never_stale),
    "release forgets its table": Mutant(_any("CON-3"), 5, {(consuming, "release"): _release_forgets_table}),
    "release for everybody": Mutant(_any("CTL-4", "ACK-3", "ACK-4"), 3, change=_group_release),
    "freed before retired": Mutant(_any("REC-2"), 5, {(taking_back, "reclaim"): _freed_before_retired}),
    "slot lost": Mutant(_any("SLOT-1"), 2, {(allocation, "give_back"): _slot_lost}),
    "slots reused last in first out": Mutant(_any("SLOT-3"), 3, {(allocation, "give_back"): _last_in_first_out}),
    "R falls": Mutant(_any("CTL-6", "CTL-3"), 4, change=_retire_store_of_the_past),
    "wrong bytes": Mutant(_any("CON-1"), 3, change=_wrong_bytes),
    "cache forgotten": Mutant(_any("CON-2"), 4, change=_reads_again),
    "full pool raises": Mutant(
        _any("RNG-5"), 2, change=_on((Publish, Wrap), Outcome("full", Reason.POOL_FULL), _CRASH)
    ),
    "full pool changes": Mutant(_any("RNG-5"), 1, change=_full_counts),
    "failed publish leaks": Mutant(_any("PUB-3"), 1, change=_failed_publish_leaks),
    "a look waits": Mutant(_any("REC-4"), 2, change=_waits),
    "recycled twice": Mutant(_any("REC-5"), 5, change=_recycled_twice),
    "dispatched early": Mutant(_any("PUB-2"), 2, change=_dispatch_early),
    "altered generation accepted": Mutant(_any("CAN-2"), 2, change=_tampered_generation),
    "foreign handle accepted": Mutant(
        _any("GEN-5"), 2, change=_on(Tamper, Outcome("refused", Reason.FOREIGN_POOL), Outcome("done"))
    ),
    "empty tensor accepted": Mutant(
        _any("PUB-4"), 1, change=_on(PublishUnusable, Outcome("refused", Reason.UNUSABLE_TENSOR), Outcome("done"))
    ),
    "bad size accepted": Mutant(
        _any("LIFE-1"),
        1,
        change=_on(Construct, Outcome("refused", Reason.BAD_ARGUMENT), Outcome("done", leftovers=0)),
    ),
    "bad backing crashes": Mutant(
        _any("PUB-5"), 1, change=_on(Construct, Outcome("refused", Reason.UNUSABLE_BACKING), _CRASH)
    ),
    "no room accepted": Mutant(
        _any("CTL-5"),
        1,
        change=_on(Construct, Outcome("refused", Reason.POOL_TOO_SMALL), Outcome("done", leftovers=0)),
    ),
    "failed constructor keeps a handle": Mutant(
        _any("LIFE-4"),
        1,
        change=lambda before, operation, after, outcome: (
            after,
            replace(outcome, leftovers=1) if outcome.kind == "failed" and outcome.leftovers is not None else outcome,
        ),
    ),
    "second release of a handle accepted": Mutant(
        _any("REC-6"), 3, change=_on(ReleaseLease, Outcome("refused", Reason.INACTIVE_LEASE), Outcome("done"))
    ),
    "revoked twice": Mutant(
        _any("CAN-2", "CAN-3"), 3, change=_on(Revoke, Outcome("refused", Reason.INACTIVE_LEASE), Outcome("done"))
    ),
    "cancelled twice": Mutant(
        _any("CAN-2"), 3, change=_on(Cancel, Outcome("refused", Reason.INACTIVE_LEASE), Outcome("done"))
    ),
    "refusal without a word": Mutant(_any("ERR-2"), 4, change=_mute),
    "overlapping data": Mutant(
        _any("CTL-1", "RNG-1"),
        1,
        show=lambda seen: (
            replace(seen, leases=tuple(replace(view, start=0) for view in seen.leases)) if seen.leases else seen
        ),
    ),
    "generations left forgotten": Mutant(_any("GEN-6"), 1, show=lambda seen: replace(seen, generations_left=7)),
    "spoken for and served": Mutant(_any("ACK-4"), 3, {(Lease, "is_led_by"): lambda lease, rank: True}),
    "half a pack": Mutant(_any("PACK-1"), 1, change=_half_a_pack),
    "pack end to end": Mutant(_any("PACK-2"), 1, {(publishing, "laid_out"): _end_to_end}),
    "pack confirmed unread": Mutant(
        _any("PACK-3"), 3, change=_on(Confirm, Outcome("refused", Reason.NOT_RECONSTRUCTED), Outcome("done"))
    ),
    "pack cancelled twice raises": Mutant(_any("PACK-4"), 3, change=_cancelled_pack_raises),
    "revoke frees what is borrowed": Mutant(
        _any("CON-6"), 2, {(taking_back, "may_be_looked_at"): lambda state, lease: False}
    ),
    "set aside and let go": Mutant(
        _any("CON-6"), 3, {(taking_back, "finished"): lambda state, words: state.allocator.set_aside}
    ),
    "imported twice": Mutant(
        _any("HND-4"),
        3,
        show=lambda seen: replace(seen, imports=tuple(2 * count for count in seen.imports)) if seen.imports else seen,
    ),
    "import not dropped": Mutant(
        _any("HND-4"),
        1,
        change=lambda before, operation, after, outcome: (
            after,
            replace(outcome, count=1) if isinstance(operation, DropImport) and outcome.count == 0 else outcome,
        ),
    ),
    "dead counted before a pass": Mutant(_any("REAP-1"), 4, {(processes, "crash"): _counted_at_once}),
    "reaper acknowledges": Mutant(_any("REAP-1"), 3, change=_acknowledged_for_the_dead),
    "no deadline": Mutant(_any("REAP-2"), 2, change=_no_deadline),
    "gone without a word": Mutant(_any("REAP-3"), 2, change=_on((Read, Fetch, Import), _GONE, _TIMED_OUT)),
    **{
        f"something left of {rule}": Mutant(_any(rule), 1, change=_tried_wrongly(rule))
        for rule in sorted({expectation.rule for expectation in ATTEMPTS.values()} - {"REAP-3"})
    },
    "descriptor left behind": Mutant(_any("HND-1"), 1, leftovers={"descriptors": 1}),
}
"""Every broken model by name."""


def make(name: str) -> BrokenSubject:
    """The broken subject of that name."""
    return BrokenSubject(MUTANTS[name])
