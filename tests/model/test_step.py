"""What each operation does, one behaviour a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.model.walks import digest, publish, wrap
from vmmref_models import LeaseView, Outcome, Policies, Reason, Shape, State, initial, observe, runnable, settle, step
from vmmref_models.operations import (
    DONE,
    FULL,
    Advance,
    Cancel,
    Claim,
    Collect,
    Construct,
    Deliver,
    Dispatch,
    Faulty,
    Fetch,
    Look,
    Operation,
    PublishUnusable,
    Read,
    Reclaim,
    Recycle,
    Release,
    ReleaseLease,
    Revoke,
    Shutdown,
    Tamper,
)

SHAPE = Shape(slots=2, consumers=2, data_size=1024)
ONE = Shape(slots=1, consumers=1, data_size=1024)


def after(operations: Sequence[Operation], shape: Shape = SHAPE) -> State:
    """The state after these operations on a new pool."""
    state = initial(shape)
    for operation in operations:
        state, _ = step(state, operation)
    return state


def answers(operations: Sequence[Operation], shape: Shape = SHAPE) -> list[Outcome]:
    """The answers to these operations on a new pool."""
    state, outcomes = initial(shape), []
    for operation in operations:
        state, outcome = step(state, operation)
        outcomes.append(outcome)
    return outcomes


def acknowledged(lease: int, base: int = 10) -> list[Operation]:
    """Both ranks of SHAPE release this lease, and their stores run."""
    operations: list[Operation] = []
    for rank in range(2):
        operations += [Deliver(lease, base + rank, rank), Release(base + rank), Advance(f"rank:{rank}")]
    return operations


READ: list[Operation] = [wrap(1), Deliver(1, 10, 0), Read(10, 20)]


def test_a_new_pool() -> None:
    shown = observe(initial(Shape(slots=3, consumers=2, data_size=512, generation_limit=5, issued=(5, 4, 0))))
    assert shown.free_ranges == ((256, 768),)
    assert (shown.free_slots, shown.retired_slots, shown.generations) == ((1, 2), (0,), (5, 4, 0))
    assert shown.words == ((0, 0, 0),) * 3
    assert shown.generations_left == 1
    assert shown.life == "open"


@pytest.mark.parametrize(
    "shape",
    [
        Shape(0, 1, 256),
        Shape(1, 0, 256),
        Shape(1, 1, 0),
        Shape(1, 1, 256, generation_limit=0),
        Shape(2, 1, 256, issued=(1,)),
        Shape(1, 1, 256, generation_limit=3, issued=(4,)),
        Shape(1, 1, 256, issued=(-1,)),
    ],
)
def test_impossible_shapes(shape: Shape) -> None:
    with pytest.raises(ValueError, match=r"slot|issued"):
        initial(shape)


def test_publish_queues_copy_and_ready() -> None:
    state = after([publish(1, 300)])
    assert observe(state).leases == (LeaseView(0, 1, 256, 768, 300),)
    assert runnable(state) == ("publish",)
    for word in (0, 2):
        state, _ = step(state, Advance("publish"))
        assert state.device.words[0][0] == word
    assert runnable(state) == ()


def test_publish_takes_the_best_fit_and_the_slot_free_longest() -> None:
    made: list[Operation] = [
        publish(1, 512),
        publish(2, 256),
        publish(3, 256),
        Cancel(1, True),
        Cancel(3, True),
        publish(4, 200),
    ]
    shown = observe(after(made, replace(SHAPE, slots=3)))
    assert shown.leases == (LeaseView(0, 2, 1024, 1280, 200), LeaseView(1, 1, 768, 1024, 256))
    assert shown.free_slots == (2,)


@pytest.mark.parametrize(
    ("operations", "outcome"),
    [
        ([publish(1, 1025)], FULL),
        ([publish(1, 1024), publish(2, 1)], FULL),
        ([publish(1, 1), publish(2, 1), publish(3, 1)], FULL),
    ],
)
def test_full_changes_nothing(operations: list[Operation], outcome: Outcome) -> None:
    state = after(operations[:-1])
    full, answer = step(state, operations[-1])
    assert answer == outcome
    assert full == state


def test_the_last_generation_works_and_then_nothing_is_left() -> None:
    shape = replace(ONE, generation_limit=2, issued=(1,))
    *_, last, exhausted = answers([publish(1), publish(2)], shape)
    assert last.lease == LeaseView(0, 2, 256, 512, 256)
    assert exhausted.reason is Reason.GENERATION_EXHAUSTED
    shown = observe(after([publish(1), Cancel(1, True)], shape))
    assert (shown.free_slots, shown.retired_slots, shown.free_ranges) == ((), (0,), ((256, 1280),))


def test_exhausted_comes_before_full() -> None:
    (answer,) = answers([publish(1, 4096)], replace(ONE, generation_limit=1, issued=(1,)))
    assert answer.reason is Reason.GENERATION_EXHAUSTED


def test_dispatch_waits_for_ready_only_of_its_own_lease() -> None:
    state = after([publish(1), publish(2), Dispatch(1)])
    assert [row[0] for row in state.device.words] == [2, 0]
    assert state.dispatched == (1,)


def test_dispatch_of_a_cancelled_lease_is_refused() -> None:
    assert answers([publish(1), Cancel(1, False), Dispatch(1)])[-1].reason is Reason.INACTIVE_LEASE


def test_a_read_brings_the_bytes_and_acknowledges_when_collected() -> None:
    state, outcome = step(after(READ), Collect(20))
    assert outcome == Outcome("done", digest=digest(1))
    assert state.device.words[0] == (2, 0, 0)
    state, _ = step(state, Advance("rank:0"))
    assert state.device.words[0] == (2, 1, 0)


def test_a_second_read_of_the_same_copy_is_cached() -> None:
    first, read, fetch = answers([*READ, Collect(20), Read(10, 21), Fetch(10, 22)])[-3:]
    assert first.digest == fetch.digest == digest(1)
    assert (read.cached, fetch.cached) == (True, True)


@pytest.mark.parametrize("again", [Read(11, 21), Fetch(11, 21), Read(10, 21)])
def test_another_read_in_the_rank_is_refused(again: Operation) -> None:
    for earlier in ([*READ, Deliver(1, 11, 0)], [wrap(1), Deliver(1, 10, 0), Deliver(1, 11, 0), Release(10)]):
        assert answers([*earlier, again])[-1].reason is Reason.ALREADY_RELEASED


def test_release_counts_once() -> None:
    state = after([wrap(1), Deliver(1, 10, 0), Deliver(1, 11, 0), Release(10), Release(10), Release(11)])
    assert len(state.device.queues[2]) == 1
    assert len(after([*READ, Release(10)]).device.queues[2]) == 2


def test_a_reader_whose_lease_was_retired_first_is_stale() -> None:
    state, answer = step(after([*READ, Revoke(1, True)]), Collect(20))
    assert answer.reason is Reason.STALE_LEASE
    assert state.device.queues[2] == ()
    assert state.consumers.tables[0] == (1, 0)


def test_a_reader_that_found_ready_before_the_retire_keeps_its_bytes() -> None:
    run = [Advance("rank:0"), Advance("rank:0")]
    assert answers([*READ, *run, Revoke(1, True), Collect(20)])[-1].digest == digest(1)


def test_recycle_takes_back_what_every_rank_has_acknowledged() -> None:
    state = after([wrap(1), wrap(2), *acknowledged(1)])
    state, answer = step(state, Recycle())
    assert answer.count == 1
    assert state.device.words[0] == (3, 1, 1)
    shown = observe(state)
    assert (shown.free_slots, shown.free_ranges) == ((0,), ((256, 512), (768, 1280)))


def test_a_look_is_used_once_and_drops_what_has_gone() -> None:
    state = after([wrap(1), *acknowledged(1), Look(5), Look(6), Claim(5)])
    assert observe(state).retiring == (0,)
    state, answer = step(state, Claim(6))
    assert answer.count == 0
    assert state.looks == ()
    with pytest.raises(ValueError, match="not enabled"):
        step(state, Claim(6))


def test_reclaim_frees_only_what_the_host_has_seen_retired() -> None:
    state = after([wrap(1), *acknowledged(1), Look(5), Claim(5)])
    assert step(state, Reclaim(False))[1].count == 0
    assert step(state, Reclaim(True))[1].count == 1
    retired, _ = step(state, Advance("retire"))
    assert step(retired, Reclaim(False))[1].count == 1


def test_a_retire_store_waits_for_its_ready_store() -> None:
    state = after([publish(1), Cancel(1, False)])
    assert runnable(state) == ("publish",)
    state = after([publish(1), Cancel(1, False), Advance("publish"), Advance("publish")])
    assert runnable(state) == ("retire",)


def test_a_cancel_that_waits_frees_its_own_lease_only() -> None:
    state = after([publish(1), publish(2), Cancel(1, False), Cancel(2, True)])
    shown = observe(state)
    assert (shown.retiring, [lease.slot for lease in shown.leases or ()]) == ((0,), [0])
    assert [row[0] for row in state.device.words] == [3, 3]


@pytest.mark.parametrize("again", [Cancel(1, True), Revoke(1, False), ReleaseLease(1)])
@pytest.mark.parametrize("wait", [True, False])
def test_cancelling_twice_is_refused(again: Operation, wait: bool) -> None:
    state = after([wrap(1), Cancel(1, wait)])
    refused, answer = step(state, again)
    assert answer.reason is Reason.INACTIVE_LEASE
    assert refused == state


def test_an_old_handle_leaves_the_newer_lease_alone() -> None:
    state = after([wrap(1), Cancel(1, True), wrap(2)], ONE)
    for old in (Cancel(1, True), ReleaseLease(1)):
        assert step(state, old)[0] == state


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("generation", Reason.INACTIVE_LEASE),
        ("offset", Reason.INACTIVE_LEASE),
        ("pool", Reason.FOREIGN_POOL),
    ],
)
def test_altered_handles(how: str, reason: Reason) -> None:
    state = after([wrap(1)])
    refused, answer = step(state, Tamper(1, how))
    assert answer.reason is reason
    assert refused == state


def test_shutdown_frees_everything_and_refuses_newcomers() -> None:
    state = after([publish(1), wrap(2), Cancel(2, False), Shutdown()])
    shown = observe(state)
    assert (shown.life, shown.leases, shown.free_ranges) == ("closed", (), ((256, 1280),))
    assert (shown.words, shown.free_slots) == (None, None)
    assert not state.device.queues[0] + state.device.queues[1]
    assert step(state, Shutdown()) == (state, DONE)
    uses: list[Operation] = [
        publish(3),
        wrap(3),
        Look(3),
        Reclaim(True),
        Recycle(),
        Cancel(1, True),
        Tamper(1, "pool"),
        Dispatch(1),
    ]
    for use in (*uses, PublishUnusable("empty")):
        assert step(state, use)[1].reason is Reason.POOL_CLOSING


def test_consumers_outlive_a_closed_pool_that_they_had_imported() -> None:
    assert answers([*READ, Shutdown(), Collect(20)])[-1].reason is Reason.STALE_LEASE
    late: list[Operation] = [wrap(1), Deliver(1, 10, 0), Deliver(1, 11, 1)]
    assert answers([*late, Release(10), Shutdown(), Fetch(11, 20)])[-1].reason is Reason.STALE_LEASE
    assert answers([*late, Shutdown(), Fetch(11, 20)])[-1].reason is Reason.PRODUCER_GONE
    assert after([*late, Shutdown(), Release(11)]).consumers.tables == ((0, 0), (0, 0))


def test_a_failed_pool_refuses_every_use_until_it_is_closed() -> None:
    state = replace(after([wrap(1), Deliver(1, 10, 0)]), failed=True)
    assert observe(state).life == "failed"
    assert step(state, publish(2))[1].reason is Reason.POOL_FAILED
    assert step(state, Fetch(10, 20))[1].digest == digest(1)
    closed, _ = step(state, Shutdown())
    assert step(closed, publish(2))[1].reason is Reason.POOL_CLOSING


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("valid", None),
        ("memory_size", Reason.BAD_ARGUMENT),
        ("consumer_count", Reason.BAD_ARGUMENT),
        ("max_inflight_slices", Reason.BAD_ARGUMENT),
        ("recycle_interval", Reason.BAD_ARGUMENT),
        ("below-granule", Reason.BAD_ARGUMENT),
        ("control-only", Reason.POOL_TOO_SMALL),
        ("backing-dtype", Reason.UNUSABLE_BACKING),
        ("backing-size", Reason.UNUSABLE_BACKING),
        ("backing-strided", Reason.UNUSABLE_BACKING),
    ],
)
def test_second_pools(what: str, reason: Reason | None) -> None:
    state = after([wrap(1)])
    same, answer = step(state, Construct(what))
    assert (same, answer.reason, answer.leftovers) == (state, reason, 0)


@pytest.mark.parametrize(
    "operation",
    [
        publish(1),
        publish(9, 0),
        Dispatch(1),
        Dispatch(8),
        Deliver(2, 30, 0),
        Deliver(1, 10, 0),
        Deliver(1, 30, 2),
        Deliver(1, 30, -1),
        Read(8, 30),
        Read(10, 20),
        Collect(8),
        Release(8),
        Advance("retire"),
        Advance("rank:7"),
        Claim(8),
        Cancel(8, True),
        Tamper(1, "colour"),
        PublishUnusable("huge"),
        Construct("nothing"),
        Faulty(Recycle(), 0),
        Faulty(Recycle(), 1),
    ],
)
def test_what_makes_no_sense_is_not_enabled(operation: Operation) -> None:
    """Tokens that exist already or do not exist, ranks and streams that no pool has, faults while work is queued."""
    state = after([*READ, publish(2)])
    with pytest.raises(ValueError, match="not enabled"):
        step(state, operation)


def test_settle_runs_everything() -> None:
    state = settle(after([*READ, publish(2), Cancel(1, False)]))
    assert not any(state.device.queues)
    assert [row[0] for row in state.device.words] == [3, 2]
    assert settle(state) is state


def test_states_compare_and_hash() -> None:
    history = [*READ, publish(2), Look(5)]
    assert after(history) == after(history)
    assert len({after(history), after(history), after(history[:-1])}) == 2


def test_the_words_of_another_protocol_are_not_predicted() -> None:
    state = initial(SHAPE, Policies(protocol="boolean-ack"))
    assert observe(state).words is None
    state, _ = step(state, wrap(1))
    state, _ = step(state, Deliver(1, 10, 0))
    closed, _ = step(state, Shutdown())
    late = Outcome("done", digest=digest(1))
    assert step(closed, Fetch(10, 20), late)[1] == late
