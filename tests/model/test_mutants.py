"""The model broken on purpose, one line at a time: a walk must name the rule."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from tests.model.walks import Drawer, shapes, wrap
from vmmref_models import (
    Monitor,
    Observation,
    Outcome,
    Policies,
    Reason,
    Shape,
    State,
    Step,
    allocation,
    consuming,
    difference,
    initial,
    observe,
    processes,
    publishing,
    runnable,
    step,
    streams,
    taking_back,
)
from vmmref_models.operations import Advance, Collect, Deliver, Operation, Read, Release, Revoke
from vmmref_models.state import ACK, COPY, COPY_OUT, READ_READY, READY, Allocator, Device, Lease, Piece, Range, replaced
from vmmref_models.streams import PUBLISH_QUEUE, RETIRE_QUEUE

Mutation = tuple[Any, str, Callable[..., Any]]
Words = tuple[tuple[int, ...], ...]


def _worst_fit(free_ranges: tuple[Range, ...], size: int) -> Range | None:
    fitting = [free for free in free_ranges if free[1] - free[0] >= size]
    return max(fitting, key=lambda free: free[1] - free[0]) if fitting else None


def _not_merged(free_ranges: tuple[Range, ...], freed: Range) -> tuple[Range, ...]:
    return tuple(sorted((*free_ranges, freed)))


def _neighbour_lost(free_ranges: tuple[Range, ...], freed: Range) -> tuple[Range, ...]:
    return tuple(sorted((*(free for free in free_ranges if free[0] != freed[1]), freed)))


def _last_in_first_out(allocator: Allocator, limit: int, slots: tuple[int, ...], order: Any = None) -> Allocator:
    after = GIVE_BACK(allocator, limit, slots)
    added = after.free_slots[len(allocator.free_slots) :]
    return replace(after, free_slots=(*added, *allocator.free_slots))


def _slot_lost(allocator: Allocator, limit: int, slots: tuple[int, ...], order: Any = None) -> Allocator:
    return replace(GIVE_BACK(allocator, limit, slots), free_slots=allocator.free_slots)


def _same_generation(*arguments: Any) -> Any:
    taken = TAKE(*arguments)
    if taken is None or taken[1].generation == 1:
        return taken
    allocator, lease = taken
    lease = replace(lease, view=replace(lease.view, generation=lease.generation - 1))
    generations = replaced(allocator.generations, lease.slot, lease.generation)
    return replace(allocator, generations=generations, held=replaced(allocator.held, lease.slot, lease)), lease


def _one_ack_too_few(state: State, words: Words) -> tuple[Lease, ...]:
    return _acknowledged(state, words, lambda lease, words: sum(word != lease.generation for word in words) <= 1)


def _any_generation_counts(state: State, words: Words) -> tuple[Lease, ...]:
    return _acknowledged(state, words, lambda lease, words: all(words))


def _acknowledged(state: State, words: Words, enough: Callable[[Lease, tuple[int, ...]], bool]) -> tuple[Lease, ...]:
    return tuple(
        lease
        for slot, lease in enumerate(state.allocator.held)
        if lease is not None
        and slot not in state.allocator.retiring
        and lease.token in state.dispatched
        and enough(lease, words[slot][1:])
    )


def _claim_by_slot(state: State, operation: Any) -> tuple[State, Outcome]:
    """A look is used without asking whether its lease is still the one in the slot."""
    snapshot = next(snapshot for snapshot in state.looks if snapshot.token == operation.look)
    slots = {lease.slot for lease in state.published if set(snapshot.words[lease.slot][1:]) == {lease.generation}}
    state = replace(state, looks=tuple(other for other in state.looks if other is not snapshot))
    count = 0
    for lease in state.allocator.held:
        if lease is not None and lease.slot in slots and state.is_active(lease):
            state, count = taking_back.claimed(state, lease), count + 1
    return state, Outcome("done", count=count)


def _cancel_by_slot(state: State, token: int, wait: bool) -> tuple[State, Outcome]:
    """Whoever holds the slot of the handle is cancelled."""
    lease = state.lease(token)
    holder = state.allocator.held[lease.slot] if lease is not None else None
    cancelled: tuple[State, Outcome] = CANCEL(state, holder.token if holder is not None else token, wait)
    return cancelled


def _ready_first(device: Device, index: int, *pieces: Piece) -> Device:
    if [piece.kind for piece in pieces] == [COPY, READY]:
        pieces = pieces[::-1]
    return QUEUED(device, index, *pieces)


def _ack_first(device: Device, index: int, *pieces: Piece) -> Device:
    if [piece.kind for piece in pieces] == [COPY_OUT, READ_READY]:
        pieces = (Piece(ACK, pieces[0].lease, pieces[0].rank), *pieces)
    return QUEUED(device, index, *pieces)


def _retire_unordered(device: Device, index: int, kind: str, lease: Lease) -> bool:
    return kind != READY and IS_QUEUED(device, index, kind, lease)


def _retired_without_ready(device: Device, lease: Lease | None = None) -> Device:
    return streams.run(device, RETIRE_QUEUE, len(device.queues[RETIRE_QUEUE]))


def _freed_at_once(state: State, wait: bool, observed: Observation | None) -> tuple[State, Outcome]:
    slots = state.allocator.retiring
    return taking_back.freed(state, slots), Outcome("done", count=len(slots))


def _zeroed_at_publish(state: State, operation: Any, seen: Outcome | None, nbytes: int) -> tuple[State, Outcome]:
    state, outcome = PUBLISH(state, operation, seen, nbytes)
    if outcome.lease is None:
        return state, outcome
    zero = (0,) * (1 + state.shape.consumers)
    words = replaced(state.device.words, outcome.lease.slot, zero)
    return replace(state, device=replace(state.device, words=words)), outcome


def _publish_that_waits(state: State, operation: Any, seen: Outcome | None, nbytes: int) -> tuple[State, Outcome]:
    state, outcome = PUBLISH(state, operation, seen, nbytes)
    queue = state.device.queues[PUBLISH_QUEUE]
    return replace(state, device=streams.run(state.device, PUBLISH_QUEUE, len(queue))), outcome


def _dispatch_at_once(state: State, operation: Any) -> tuple[State, Outcome]:
    after, outcome = DISPATCH(state, operation)
    return replace(after, device=state.device), outcome


def _no_table(tables: tuple[tuple[int, ...], ...], rank: int, lease: Lease) -> tuple[tuple[int, ...], ...]:
    return tables


def _never_stale(device: Device, index: int, reader: int) -> Any:
    device, arrival = COLLECTED(device, index, reader)
    lease = next(lease for lease in (arrival.content, *device.whole) if lease is not None)
    return device, replace(arrival, ready=2 * (arrival.ready or 0) // 4 * 2 if arrival.ready else 0, content=lease)


def _late_judged_ack(state: State, reader: int, seen: Outcome | None) -> tuple[State, Outcome]:
    """A lease is acknowledged when it is collected, though the rank has entered a newer one meanwhile."""
    record = state.reader(reader)
    proxy = state.proxy(record.proxy) if record is not None else None
    after, outcome = COLLECT(state, reader, seen)
    if proxy is None or outcome.kind != "done":
        return after, outcome
    index, ack = streams.rank_queue(proxy.rank), Piece(ACK, proxy.lease, proxy.rank)
    if ack in after.device.queues[index]:
        return after, outcome
    return replace(after, device=streams.queued(after.device, index, ack)), outcome


def _one_speaker_is_enough(allocator: Allocator, words: Words, lease: Lease) -> bool:
    acks = words[lease.slot][1:]
    return any(acks[rank] == lease.generation for rank in lease.speakers(len(acks)))


def _everything_set_aside(state: State, words: Words) -> tuple[int, ...]:
    return tuple(slot for slot in state.allocator.set_aside if slot in state.allocator.guarded)


def _acknowledged_at_borrow(state: State, *arguments: Any) -> tuple[State, Outcome]:
    after, outcome = BORROW(state, *arguments)
    if outcome.kind != "done":
        return after, outcome
    proxy = after.proxy(after.consumers.views[-1].proxy)
    assert proxy is not None, "a view has a proxy"
    ack = Piece(ACK, proxy.lease, proxy.rank)
    return replace(after, device=streams.queued(after.device, streams.rank_queue(proxy.rank), ack)), outcome


def _dropped_under_a_view(state: State, *arguments: Any) -> tuple[State, Outcome]:
    after, outcome = DROP_IMPORT(replace(state, consumers=replace(state.consumers, views=())), *arguments)
    return replace(after, consumers=replace(after.consumers, views=state.consumers.views)), outcome


def _counted_at_once(state: State, operation: Any) -> tuple[State, Outcome]:
    after, outcome = CRASH(state, operation)
    return REAP(after)[0], outcome


def _forged_for_the_dead(state: State) -> tuple[State, Outcome]:
    after, outcome = REAP(state)
    words = after.device.words
    for lease in after.allocator.held:
        for rank in after.allocator.vacant if lease is not None and outcome.count else ():
            words = streams.stored(words, lease.slot, 1 + rank, lease.generation) if lease is not None else words
    return replace(after, device=replace(after.device, words=words)), outcome


def _joined_uncounted(state: State, operation: Any) -> tuple[State, Outcome]:
    if state.closed or state.failed:
        return JOIN(state, operation)
    return JOIN(REAP(state)[0], operation)


def _joined_with_an_empty_table(state: State, operation: Any) -> tuple[State, Outcome]:
    after, outcome = JOIN(state, operation)
    tables = replaced(after.consumers.tables, operation.rank, (0,) * state.shape.slots)
    return replace(after, consumers=replace(after.consumers, tables=tables)), outcome


def _retired_at_its_deadline(state: State) -> tuple[State, Outcome]:
    after, outcome = EXPIRE(state)
    for lease in after.allocator.held if after is not state else ():
        if lease is not None and after.is_active(lease) and lease.token in after.dispatched:
            after = taking_back.claimed(after, lease)
    return after, outcome


def _laid_out_end_to_end(payloads: Any, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    return tuple(sum(sizes[:part]) for part in range(len(sizes))), sum(sizes)


def _always_confirmed(state: State, operation: Any, observed: Any) -> tuple[State, Outcome]:
    after, outcome = CONFIRM(state, operation, observed)
    return after, Outcome("done") if outcome.reason is Reason.NOT_RECONSTRUCTED else outcome


def _pack_cancelled_by_slot(state: State, operation: Any) -> tuple[State, Outcome]:
    lease = state.lease(operation.lease)
    holder = state.allocator.held[lease.slot] if lease is not None and lease.is_pack else None
    if holder is None or not state.is_active(holder) or state.closed or state.failed:
        return CANCEL_PROXY(state, operation)
    return CANCEL(state, holder.token, True)


GIVE_BACK, TAKE = allocation.give_back, allocation.take
QUEUED, IS_QUEUED, COLLECTED = streams.queued, streams.is_queued, streams.collected
PUBLISH, DISPATCH = publishing.publish, publishing.dispatch
COLLECT, CANCEL = consuming.collect, taking_back.cancel
BORROW, CONFIRM, DROP_IMPORT = consuming.borrow, consuming.confirm, processes.drop_import
CRASH, REAP, JOIN = processes.crash, processes.reap, processes.join
EXPIRE, CANCEL_PROXY = taking_back.expire, taking_back.cancel_proxy

LATE_JUDGED_ACK: Mutation = (consuming, "collect", _late_judged_ack)
MUTANTS: list[tuple[str, set[str], list[Mutation]]] = [
    ("worst fit", {"RNG-3"}, [(allocation, "best_fit", _worst_fit)]),
    ("free ranges not merged", {"RNG-4"}, [(allocation, "merged", _not_merged)]),
    ("a free neighbour is lost", {"RNG-1"}, [(allocation, "merged", _neighbour_lost)]),
    ("slots last in, first out", {"SLOT-3"}, [(allocation, "give_back", _last_in_first_out)]),
    ("a slot is lost", {"SLOT-1"}, [(allocation, "give_back", _slot_lost)]),
    ("generation not raised", {"GEN-1", "GEN-2"}, [(allocation, "take", _same_generation)]),
    ("one acknowledgement too few", {"REC-1"}, [(taking_back, "complete", _one_ack_too_few)]),
    ("an old acknowledgement counts", {"ACK-5", "REC-1"}, [(taking_back, "complete", _any_generation_counts)]),
    ("an old look is used by slot", {"REC-1", "REC-3"}, [(taking_back, "claim", _claim_by_slot)]),
    ("cancel by slot", {"GEN-4", "CAN-2", "REC-6"}, [(taking_back, "cancel", _cancel_by_slot)]),
    ("ready before copy", {"PUB-1"}, [(streams, "queued", _ready_first)]),
    ("acknowledgement before copy-out", {"ACK-1"}, [(streams, "queued", _ack_first)]),
    (
        "retire overtakes ready",
        {"CTL-6"},
        [(streams, "is_queued", _retire_unordered), (streams, "retired_up_to", _retired_without_ready)],
    ),
    ("range before retire", {"REC-2"}, [(taking_back, "reclaim", _freed_at_once)]),
    ("words zeroed at publish", {"CTL-3"}, [(publishing, "publish", _zeroed_at_publish)]),
    ("publish waits for its stream", {"REC-4"}, [(publishing, "publish", _publish_that_waits)]),
    ("dispatch before ready", {"PUB-2"}, [(publishing, "dispatch", _dispatch_at_once)]),
    ("no table", {"CON-3", "ACK-3"}, [(consuming, "entered_in", _no_table)]),
    ("R not looked at", {"CON-5"}, [(streams, "collected", _never_stale)]),
    ("any rank speaks for its group", {"ACK-4"}, [(Lease, "is_led_by", lambda lease, rank: True)]),
    ("one group is enough", {"REC-1"}, [(allocation, "is_complete", _one_speaker_is_enough)]),
    ("revoke frees what is borrowed", {"CON-6"}, [(taking_back, "may_be_looked_at", lambda state, lease: False)]),
    ("what was set aside is let go", {"CON-6"}, [(taking_back, "finished", _everything_set_aside)]),
    ("acknowledged at the borrow", {"CON-6"}, [(consuming, "borrow", _acknowledged_at_borrow)]),
    ("import dropped under a view", {"CON-6"}, [(processes, "drop_import", _dropped_under_a_view)]),
    ("the dead counted before a pass", {"REAP-1"}, [(processes, "crash", _counted_at_once)]),
    ("the reaper acknowledges", {"REAP-1"}, [(processes, "reap", _forged_for_the_dead)]),
    ("two processes of one rank", {"REAP-1"}, [(processes, "join", _joined_uncounted)]),
    ("an empty table at joining", {"CON-3", "ACK-2"}, [(processes, "join", _joined_with_an_empty_table)]),
    ("retired at the deadline", {"REAP-2"}, [(taking_back, "expire", _retired_at_its_deadline)]),
    ("a pack end to end", {"PACK-2"}, [(publishing, "laid_out", _laid_out_end_to_end)]),
    ("a tensor confirms for its siblings", {"PACK-3"}, [(consuming, "confirm", _always_confirmed)]),
    ("a pack cancelled by slot", {"PACK-4", "GEN-4"}, [(taking_back, "cancel_proxy", _pack_cancelled_by_slot)]),
]


class Mutant:
    """A pool that is the model with some functions exchanged, and the right model beside it."""

    def __init__(self, shape: Shape, mutations: list[Mutation], monitor: Monitor) -> None:
        self.pool = self.state = initial(shape)
        self.mutations = mutations
        self.monitor = monitor
        monitor.start()

    def do(self, operation: Operation) -> set[str]:
        """Do one operation; the rules that it breaks."""
        before = observe(self.pool)
        with ExitStack() as stack:
            for module, name, mutation in self.mutations:
                stack.enter_context(patch.object(module, name, mutation))
            self.pool, seen = step(self.pool, operation)
        shown = observe(self.pool)
        broken = self.monitor.judge(Step(before, shown, operation, seen, self.state))
        if broken:
            return {rule.id for rule, _ in broken}
        self.state, expected = step(self.state, operation, seen, shown)
        differs = difference(observe(self.state), shown, operation, expected, seen)
        return {differs.rule} if differs is not None else set()


def named(mutations: list[Mutation], seed: int, episodes: int, wanted: set[str]) -> set[str]:
    """The rules that a mutant is found to break, until a wanted one is among them."""
    rng, monitor, found = Random(seed), Monitor(Policies()), set[str]()
    for _ in range(episodes):
        drawer, mutant = Drawer(rng), Mutant(shapes(rng), mutations, monitor)
        for _ in range(60):
            broken = mutant.do(drawer.draw(mutant.state))
            found |= broken
            if broken:
                break
        if found & wanted:
            break
    return found


@pytest.mark.parametrize(("name", "rules", "mutations"), MUTANTS, ids=[mutant[0] for mutant in MUTANTS])
def test_the_mutant_is_named(name: str, rules: set[str], mutations: list[Mutation]) -> None:
    found = named(mutations, seed=5, episodes=150, wanted=rules)
    assert rules & found, found


def test_the_right_model_is_never_blamed() -> None:
    assert named([(allocation, "best_fit", allocation.best_fit)], seed=5, episodes=100, wanted=set()) == set()


def test_ack_2_a_late_judged_ack_is_named() -> None:
    """
    A read that was valid may be collected after its rank has acknowledged a newer lease of the slot.

    Given: R was read live, then the lease was revoked, its slot leased again, the new lease released by the same rank.
    When: the old read is collected, and queues its acknowledgement behind the newer one.
    Then: the word falls from 2 to 1, and ACK-2 names it; the right model queues nothing.
    """
    history: list[Operation] = [
        wrap(1),
        Deliver(1, 10, 0),
        Read(10, 20),
        Advance("rank:0"),
        Advance("rank:0"),
        Revoke(1, True),
        wrap(2),
        Deliver(2, 30, 0),
        Release(30),
    ]
    right, late = [Mutant(Shape(1, 1, 256), with_, Monitor(Policies())) for with_ in ([], [LATE_JUDGED_ACK])]
    for mutant in (right, late):
        for operation in [*history, Collect(20), Advance("rank:0")]:
            assert mutant.do(operation) == set()
    assert runnable(right.pool) == ()
    late.state = late.pool  # Its stream has one piece more than the right one's.
    assert late.do(Advance("rank:0")) == {"ACK-2"}
