"""What the operations on groups, packs, views, deadlines and imports do, one behaviour a test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.test_step import ONE, SHAPE, after, answers
from tests.model.walks import digest, pack, wrap
from vmmref_models import LeaseView, Observation, Outcome, Policies, Reason, initial, observe, step
from vmmref_models.attempts import ATTEMPTS
from vmmref_models.operations import (
    DONE,
    FULL,
    Advance,
    Attempt,
    Borrow,
    Cancel,
    CancelProxy,
    Claim,
    Collect,
    Confirm,
    Construct,
    Crash,
    Deliver,
    DropImport,
    Expire,
    Faulty,
    Fetch,
    Import,
    Look,
    Operation,
    Peek,
    Publish,
    Read,
    Reclaim,
    Recycle,
    Release,
    ReleaseAs,
    Return,
    Revoke,
    Shutdown,
)

LED: list[Operation] = [wrap(1, groups=((1, 0),)), Deliver(1, 10, 0), Deliver(1, 11, 1)]
LENT: list[Operation] = [wrap(1, borrowable=True), Deliver(1, 10, 0), Deliver(1, 11, 0), Deliver(1, 12, 1)]
VIEWED: list[Operation] = [*LENT, Borrow(10, 30)]
PACKED: list[Operation] = [pack(1, 101, 64, element=4), Deliver(1, 10, 0), Deliver(1, 11, 0, 1), Deliver(1, 12, 1, 1)]


# --- groups -----------------------------------------------------------------------------------------------------------


def test_a_lease_waits_for_the_first_of_each_group() -> None:
    state = after([*LED, Release(11), Advance("rank:1")])
    assert state.device.words[0] == (2, 0, 1)
    assert step(state, Recycle())[1].count == 1


@pytest.mark.parametrize("use", [Read(10, 20), Fetch(10, 20), Release(10), Confirm(10), Borrow(10, 30)])
def test_a_rank_that_is_spoken_for_is_refused(use: Operation) -> None:
    """Before anything else: also when its leader has acknowledged, and when the pool has ended."""
    for past in (LED, [*LED, Release(11)], [*LED, Shutdown()]):
        state = after(past)
        same, answer = step(state, use)
        assert (same, answer.reason) == (state, Reason.BAD_RANK)


@pytest.mark.parametrize("ranks", [(), (0,), (1,), (0, 1), (1, 1), (1, 0, 2), (7,)])
def test_a_release_in_another_name_is_refused(ranks: tuple[int, ...]) -> None:
    state = after(LED)
    assert step(state, ReleaseAs(11, ranks)) == (state, Outcome("refused", Reason.BAD_RANK))


def test_a_release_in_the_groups_own_name_is_not_asked_as_another() -> None:
    with pytest.raises(ValueError, match="not enabled"):
        step(after(LED), ReleaseAs(11, (1, 0)))


@pytest.mark.parametrize("groups", [((0,),), ((0, 1), (1,)), ((0, 1), ()), ((0,), (2,))])
def test_groups_divide_the_ranks(groups: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match="not enabled"):
        step(initial(SHAPE), wrap(1, groups=groups))


# --- packs ------------------------------------------------------------------------------------------------------------


def test_a_pack_is_one_lease() -> None:
    state, answer = step(initial(SHAPE), PACKED[0])
    assert answer == Outcome("done", lease=LeaseView(0, 1, 256, 512, 168), places=(0, 104))
    assert observe(state).leases == (answer.lease,)
    assert state.dispatched == (1,)
    assert answers([pack(1, 1000, 100)])[0] == FULL


def test_a_pool_may_pad_its_packs_otherwise() -> None:
    policies = Policies(fit="any")
    padded = Outcome("done", lease=LeaseView(0, 1, 256, 512, 166), places=(64, 0))
    assert step(initial(SHAPE, policies), PACKED[0], padded)[1] == padded
    too_long = replace(padded, lease=LeaseView(0, 1, 256, 512, 169))
    assert step(initial(SHAPE, policies), PACKED[0], too_long)[1].lease == LeaseView(0, 1, 256, 512, 168)


def test_the_first_tensor_that_is_fetched_brings_all() -> None:
    fetched: list[Operation] = [Fetch(10, 20), Fetch(11, 21), Deliver(1, 13, 0), Fetch(13, 22)]
    first, sibling, _, late = answers([*PACKED, *fetched])[-4:]
    assert (first.digest, first.cached) == (digest(1), False)
    assert (sibling.digest, sibling.cached) == (digest(1001), True)
    assert (late.digest, late.cached) == (digest(1), True)


def test_a_tensor_of_a_pack_is_confirmed_once_its_rank_took_part() -> None:
    state = after(PACKED)
    assert step(state, Confirm(11)) == (state, Outcome("refused", Reason.NOT_RECONSTRUCTED))
    for took_part in (Fetch(10, 20), Release(10)):
        state = after([*PACKED, took_part])
        assert step(state, Confirm(11)) == (state, DONE)
        assert step(state, Confirm(12))[1].reason is Reason.NOT_RECONSTRUCTED
    stale = after([*PACKED, Revoke(1, True), Fetch(10, 20)])
    assert step(stale, Confirm(11)) == (stale, DONE)


def test_a_pack_is_released_once_and_not_fetched_afterwards() -> None:
    state = after([*PACKED, Release(10), Release(11)])
    assert len(state.device.queues[2]) == 1
    assert step(state, Fetch(11, 20))[1].reason is Reason.ALREADY_RELEASED


@pytest.mark.parametrize("use", [Read(10, 20), Peek(30), Return(30)])
def test_packs_are_fetched_only(use: Operation) -> None:
    state = after(PACKED)
    assert step(state, Borrow(10, 30))[1].reason is Reason.NOT_BORROWABLE
    with pytest.raises(ValueError, match="not enabled"):
        step(state, use)


def test_a_pack_is_cancelled_once() -> None:
    state, answer = step(after(PACKED), CancelProxy(1, 1))
    assert (answer, observe(state).leases) == (DONE, ())
    assert step(state, CancelProxy(1)) == (state, DONE)
    reissued = after([PACKED[0], CancelProxy(1), wrap(2)], ONE)
    assert step(reissued, CancelProxy(1)) == (reissued, DONE)
    assert step(after([wrap(1), CancelProxy(1)]), CancelProxy(1))[1].reason is Reason.INACTIVE_LEASE
    assert step(after([PACKED[0], Shutdown()]), CancelProxy(1))[1].reason is Reason.POOL_CLOSING


def test_confirm_of_an_ordinary_lease_is_a_release() -> None:
    past: list[Operation] = [wrap(1), Deliver(1, 10, 0)]
    assert after([*past, Confirm(10)]) == after([*past, Release(10)])


# --- views ------------------------------------------------------------------------------------------------------------


def test_a_view_shows_the_bytes_until_it_is_given_back() -> None:
    state = after(VIEWED)
    assert step(state, Peek(30))[1].digest == digest(1)
    assert state.device.queues[2] == ()
    state, answer = step(state, Return(30))
    assert (answer, len(state.device.queues[2]), state.consumers.views) == (DONE, 1, ())


def test_only_what_was_published_for_it_is_borrowed() -> None:
    state = after([wrap(1), Deliver(1, 10, 0)])
    assert step(state, Borrow(10, 30)) == (state, Outcome("refused", Reason.NOT_BORROWABLE))


@pytest.mark.parametrize("use", [Read(11, 20), Fetch(11, 20), Borrow(11, 31), Read(10, 20)])
def test_another_copy_does_not_get_in_under_a_view(use: Operation) -> None:
    assert answers([*VIEWED, use])[-1].reason is Reason.ALREADY_RELEASED
    assert after([*VIEWED, Release(11)]).device.queues[2] == ()


def test_a_borrow_waits_for_what_its_rank_had_queued() -> None:
    past: list[Operation] = [wrap(2), Deliver(2, 20, 0), Release(20), *LENT]
    state = after([*past, Borrow(10, 30)])
    assert (state.device.queues[2], state.device.words[0][1]) == ((), 1)


def test_a_stale_look_acknowledges_that_it_is_done() -> None:
    """Nobody else's word of a lease that is set aside would ever come."""
    for late in ([Borrow(10, 30)], [Fetch(10, 20)]):
        state = after([*LENT, Revoke(1, True), *late])
        assert answers([*LENT, Revoke(1, True), *late])[-1].reason is Reason.STALE_LEASE
        assert len(state.device.queues[2]) == 1
    plain: list[Operation] = [wrap(1), Deliver(1, 10, 0), Revoke(1, True), Fetch(10, 20)]
    assert after(plain).device.queues[2] == ()


def test_a_revoked_lease_is_set_aside_until_all_have_acknowledged() -> None:
    state = after([*VIEWED, Revoke(1, True)])
    shown = observe(state)
    assert (shown.retiring, shown.set_aside, len(shown.leases or ())) == ((0,), (0,), 1)
    assert state.device.words[0][0] == 3
    assert step(state, Peek(30))[1].digest == digest(1)
    state = after([*VIEWED, Revoke(1, True), Release(12), Advance("rank:1"), Recycle()])
    assert observe(state).set_aside == (0,)
    ended: list[Operation] = [Return(30), Advance("rank:0")]
    for operation in ended:
        state, _ = step(state, operation)
    state, answer = step(state, Recycle())
    assert (answer.count, observe(state).leases, observe(state).set_aside) == (1, (), ())


def test_what_is_set_aside_is_let_go_by_a_look_and_freed_by_the_reclaim_after_it() -> None:
    done: list[Operation] = [Release(10), Release(12), Advance("rank:0"), Advance("rank:1")]
    state = after([*LENT, Revoke(1, True), *done])
    assert step(state, Reclaim(True))[1].count == 0
    state = after([*LENT, Revoke(1, True), *done, Look(5), Claim(5)])
    assert observe(state).set_aside == (0,)
    state, answer = step(state, Reclaim(False))
    assert (answer.count, observe(state).leases) == (1, ())


def test_a_cancel_that_does_not_wait_sets_aside_when_its_store_was_seen() -> None:
    state = after([*LENT, Cancel(1, False)])
    assert (observe(state).retiring, observe(state).set_aside) == ((0,), ())
    state, answer = step(state, Reclaim(True))
    assert (answer.count, observe(state).set_aside) == (0, (0,))


def test_a_pass_that_failed_may_have_let_go_what_was_complete() -> None:
    done: list[Operation] = [Release(10), Release(12), Advance("rank:0"), Advance("rank:1")]
    state = after([*LENT, Revoke(1, True), *done])
    failed = Outcome("failed", Reason.DRIVER_CALL_FAILED, message="no")
    state, _ = step(state, Faulty(Recycle(), 2), failed, observe(state))
    freed = Observation("open", leases=(), free_ranges=((256, 1280),))
    assert step(state, Reclaim(True), Outcome("done", count=1), freed)[1].count == 1


def test_what_was_never_dispatched_goes_back_at_once() -> None:
    published = wrap(1, borrowable=True)
    plain = Publish(1, published.payload, published.nbytes, published.digest, borrowable=True)
    assert observe(after([plain, Cancel(1, True)])).leases == ()


def test_no_view_outlives_the_mapping() -> None:
    state = after(VIEWED)
    assert step(state, DropImport(1)) == (state, Outcome("refused", Reason.STILL_BORROWED))
    assert step(after([*VIEWED, Return(30)]), DropImport(0))[1].count == 1
    late = after([*VIEWED, Shutdown()])
    assert step(late, Peek(30))[1].digest == digest(1)


# --- deadlines and imports --------------------------------------------------------------------------------------------


def test_what_was_dispatched_before_a_deadline_is_set_aside() -> None:
    state = after([wrap(1), Expire(), wrap(2)])
    shown = observe(state)
    assert (shown.set_aside, shown.retiring, state.device.words[0][0]) == ((0,), (), 2)
    served = after([wrap(1), Deliver(1, 10, 0), Deliver(1, 11, 1), Expire(), Fetch(10, 20), Release(11)])
    for stream in ("rank:0", "rank:1"):
        served, _ = step(served, Advance(stream))
    served, answer = step(served, Recycle())
    assert (answer.count, observe(served).set_aside) == (1, ())
    assert step(after([wrap(1), Shutdown()]), Expire())[1] == DONE


def test_one_import_a_process() -> None:
    assert observe(initial(SHAPE)).imports == (0,)
    assert observe(after([Import(0), Import(1)])).imports == (1,)
    state, answer = step(after([Import(0)]), DropImport(1))
    assert (answer.count, observe(state).imports) == (1, (0,))
    assert step(state, DropImport(0))[1].count == 0
    assert answers([Shutdown(), Import(0)])[-1].reason is Reason.PRODUCER_GONE
    assert answers([Import(0), Shutdown(), Import(1)])[-1] == DONE


def test_an_import_is_dropped_behind_the_queued_work_and_readings_are_given_up() -> None:
    past: list[Operation] = [wrap(1), Deliver(1, 10, 0), Deliver(1, 11, 0), Read(10, 20)]
    state, answer = step(after(past), DropImport(0))
    assert (answer.count, state.device.words[0], state.device.arrivals) == (1, (2, 1, 0), ())
    assert step(state, Fetch(11, 21))[1].reason is Reason.ALREADY_RELEASED
    with pytest.raises(ValueError, match="not enabled"):
        step(state, Collect(20))
    cached = after([*past, Collect(20), DropImport(0)])
    assert step(cached, Fetch(10, 21))[1].cached


def test_a_refused_reader_may_have_imported_the_pool_to_find_out() -> None:
    state = after([wrap(1), Deliver(1, 10, 0), Deliver(1, 11, 0), Fetch(10, 20), DropImport(0)])
    for imports, known in (((1,), (True,)), ((0,), (False,)), (None, (None,))):
        shown = Observation("open", imports=imports)
        assert step(state, Fetch(11, 21), None, shown)[0].consumers.imported == known
    assert observe(replace(state, consumers=replace(state.consumers, imported=(None,)))).imports is None


def test_an_import_of_a_closed_pool_may_go_when_nothing_uses_it() -> None:
    gone = Observation("closed", imports=(0,))
    idle = after([Import(0), Shutdown()])
    assert step(idle, Construct("valid"), None, gone)[0].consumers.imported == (False,)
    busy = after([wrap(1), Deliver(1, 10, 0), Read(10, 20), Shutdown()])
    assert step(busy, Attempt("ask"), None, gone)[0].consumers.imported == (True,)


# --- experiments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ATTEMPTS)
def test_experiments_have_one_right_answer_and_change_nothing(what: str) -> None:
    state = after([wrap(1), Shutdown()])
    same, answer = step(state, Attempt(what, 7))
    assert (same, answer) == (state, ATTEMPTS[what].outcome)


def test_a_driver_call_fails_in_the_middle_of_a_request_only() -> None:
    state, failed = initial(SHAPE), Outcome("failed", Reason.DRIVER_CALL_FAILED, message="no")
    same, answer = step(state, Faulty(Attempt("request"), 3), failed, observe(state))
    assert (same, answer) == (state, replace(failed, leftovers=0))
    for never in (Attempt("ask"), Attempt("no such thing")):
        with pytest.raises(ValueError, match="not enabled"):
            step(state, Faulty(never, 1))


def test_ranks_that_share_a_process_do_not_die() -> None:
    with pytest.raises(ValueError, match="not enabled"):
        step(initial(SHAPE), Crash(0))
