"""What dies with a process, what its successor finds, and who waits for whom; one behaviour a test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.test_step import SHAPE, after, answers
from tests.model.walks import publish, wrap
from vmmref_models import Reason, enabled, observe, step
from vmmref_models.operations import (
    DONE,
    Advance,
    Attempt,
    Borrow,
    Claim,
    Crash,
    Deliver,
    Dispatch,
    DropImport,
    Faulty,
    Fetch,
    Import,
    Join,
    Look,
    Operation,
    Peek,
    Read,
    Reap,
    Recycle,
    Release,
    Revoke,
    Shutdown,
)

APART = replace(SHAPE, apart=True)
HALF: list[Operation] = [wrap(1), Deliver(1, 10, 0), Deliver(1, 11, 1), Release(11), Advance("rank:1")]
"""Rank 1 has acknowledged, rank 0 has a copy."""


def test_a_crash_takes_what_the_process_had_and_no_word() -> None:
    past: list[Operation] = [*HALF, Read(10, 20), Advance("rank:0")]
    before = after(past, APART)
    state, answer = step(before, Crash(0))
    assert (answer, state.device.words, state.allocator) == (DONE, before.device.words, before.allocator)
    assert (state.device.queues[2], state.device.arrivals) == ((), ())
    assert [proxy.rank for proxy in state.consumers.proxies] == [1]
    assert (state.consumers.readers, observe(state).imports) == ((), (0, 1))


@pytest.mark.parametrize("use", [Deliver(1, 30, 0), Import(0), DropImport(0), Crash(0), Read(10, 20), Join(1)])
def test_nothing_is_asked_of_a_dead_process(use: Operation) -> None:
    with pytest.raises(ValueError, match="not enabled"):
        step(after([*HALF, Crash(0)], APART), use)


def test_a_pass_is_disturbed_only_when_every_death_is_counted() -> None:
    """A pass counts the dead first: of one that fails nobody could tell whether it had."""
    assert not enabled(after([Crash(0)], APART), Faulty(Recycle(), 1))
    assert enabled(after([Crash(0), Reap()], APART), Faulty(Recycle(), 1))


def test_an_experiment_is_disturbed_only_when_no_import_of_an_ended_pool_is_left() -> None:
    """It may drop that import, and the failing call would hit there."""
    request = Faulty(Attempt("request", 0), 1)
    assert enabled(after([Import(0)], APART), request)
    assert not enabled(after([Import(0), Shutdown()], APART), request)
    assert enabled(after([Import(0), DropImport(0), Shutdown()], APART), request)


def test_a_dead_rank_is_waited_for_until_it_is_counted() -> None:
    dead: list[Operation] = [*HALF, Crash(0)]
    assert answers([*dead, Look(5), Claim(5)], APART)[-1].count == 0
    assert answers([*dead, Look(5), Reap(), Claim(5)], APART)[-2:][1].count == 1
    assert answers([*dead, Reap(), Reap()], APART)[-2:] == [replace(DONE, count=1), replace(DONE, count=0)]
    assert answers([*dead, Recycle()], APART)[-1].count == 1


def test_new_leases_do_not_wait_for_a_vacant_rank() -> None:
    past: list[Operation] = [Crash(0), Reap(), wrap(1), Deliver(1, 11, 1), Release(11), Advance("rank:1")]
    assert answers([*past, Recycle()], APART)[-1].count == 1
    assert answers([*past, Join(0), Recycle()], APART)[-1].count == 1
    later: list[Operation] = [Crash(0), Reap(), Join(0), *past[2:]]
    assert answers([*later, Recycle()], APART)[-1].count == 0


def test_the_dead_first_of_a_group_is_counted_for_all_of_it() -> None:
    led: list[Operation] = [wrap(1, groups=((0, 1),)), Crash(0)]
    assert answers([*led, Recycle()], APART)[-1].count == 1
    other: list[Operation] = [wrap(1, groups=((0, 1),)), Crash(1)]
    assert answers([*other, Recycle()], APART)[-1].count == 0


def test_a_rank_goes_to_a_new_process_when_the_old_one_was_counted() -> None:
    state = after([Crash(0)], APART)
    same, answer = step(state, Join(0))
    assert (same, answer.reason) == (state, Reason.BAD_RANK)
    state = after([Crash(0), Reap(), Join(0)], APART)
    assert (state.consumers.dead, state.allocator.vacant) == ((), ())
    assert answers([Crash(0), Shutdown(), Reap(), Join(0)], APART)[-1].reason is Reason.POOL_CLOSING


def test_a_new_process_knows_what_its_ranks_words_say() -> None:
    acknowledged: list[Operation] = [wrap(1), Deliver(1, 10, 0), Release(10), Advance("rank:0")]
    late: list[Operation] = [*acknowledged, Crash(0), Reap(), Join(0), Deliver(1, 30, 0)]
    assert answers([*late, Fetch(30, 40)], APART)[-1].reason is Reason.ALREADY_RELEASED
    assert after([*late, Release(30)], APART).device.queues[2] == ()
    unread: list[Operation] = [wrap(1), Deliver(1, 10, 0), Read(10, 20), Crash(0), Reap(), Join(0), Deliver(1, 30, 0)]
    assert answers([*unread, Fetch(30, 40)], APART)[-1].kind == "done"


def test_a_view_dies_with_its_process_and_holds_nothing_any_more() -> None:
    lent: list[Operation] = [wrap(1, borrowable=True), Deliver(1, 10, 0), Deliver(1, 11, 1), Borrow(10, 30)]
    past: list[Operation] = [*lent, Release(11), Advance("rank:1"), Revoke(1, True)]
    assert observe(after([*past, Recycle()], APART)).set_aside == (0,)
    state, answer = step(after([*past, Crash(0)], APART), Recycle())
    assert (answer.count, observe(state).leases) == (1, ())
    with pytest.raises(ValueError, match="not enabled"):
        step(state, Peek(30))


def test_nobody_borrows_what_does_not_wait_for_him() -> None:
    """The bytes could go away under the view: a lease that was out when the rank's process died."""
    past: list[Operation] = [wrap(1, borrowable=True), Crash(0), Reap(), Join(0), Deliver(1, 30, 0)]
    with pytest.raises(ValueError, match="not enabled"):
        step(after(past, APART), Borrow(30, 40))
    assert answers([*past, Fetch(30, 40)], APART)[-1].kind == "done"
    fresh: list[Operation] = [Crash(0), Reap(), Join(0), wrap(1, borrowable=True), Deliver(1, 30, 0), Borrow(30, 40)]
    assert answers(fresh, APART)[-1] == DONE


def test_an_import_is_a_processs_own() -> None:
    state = after([Import(1)], APART)
    assert observe(state).imports == (0, 1)
    past: list[Operation] = [*HALF, Shutdown()]
    assert answers([*past, Fetch(10, 20)], APART)[-1].reason is Reason.PRODUCER_GONE
    assert answers([*past, Import(1)], APART)[-1] == DONE


def test_a_lease_that_nobody_is_left_for_comes_back_once_it_was_dispatched() -> None:
    everybody: list[Operation] = [publish(1), Crash(0), Crash(1), Recycle()]
    assert answers(everybody, APART)[-1].count == 0
    assert answers([*everybody, Dispatch(1), Recycle()], APART)[-1].count == 1
