"""Three callers of one pool in every order of their steps, and pools whose locking has a gap."""

from __future__ import annotations

import threading

import pytest

from vmmref import book, frame, life, reaper, simcuda
from vmmref.book import Holding, LeaseBook, Phase
from vmmref.conformance.meetings import STORIES, Broken, meet
from vmmref.conformance.schedules import Deadlock, Lock, Schedule, Search, replay, watched
from vmmref.driver import calls, streams
from vmmref.errors import ArgumentError
from vmmref.lease import PoolLease
from vmmref.life import Life
from vmmref.pool import VmmMemoryPool
from vmmref.reaper import Reaper
from vmmref_models.reasons import Reason

pytestmark = [pytest.mark.simulator]


@pytest.mark.rule("REC-3")
@pytest.mark.rule("REC-4")
@pytest.mark.rule("LIFE-2")
@pytest.mark.parametrize("story", STORIES)
def test_rec_3_no_order_of_locks_breaks_the_pool(story: str) -> None:
    outcome = meet(story, bound=2)
    assert outcome.broken is None
    assert outcome.schedules > 500


@pytest.mark.rule("REC-3")
@pytest.mark.rule("REC-4")
@pytest.mark.parametrize("story", STORIES)
def test_rec_3_no_interruption_between_two_lines_breaks_the_pool(story: str) -> None:
    outcome = meet(story, bound=1, lines=True)
    assert outcome.broken is None
    assert outcome.schedules > 1000


class _LooksThenClaims(LeaseBook):
    """Asks whether the lease is active, lets the lock go, and claims it then."""

    def claim(self, lease: PoolLease, rule: str) -> Holding:
        if not self.is_active(lease):
            return super().claim(lease, rule)
        with self._lock:
            holding = self._holdings[lease.slot]
            holding.phase = Phase.RETIRING
            return holding


class _TakesWithoutTheLock(LeaseBook):
    """Looks for a free slot and a range, and takes them, without the lock."""

    def take(self, nbytes: int) -> Holding | None:
        lock, self._lock = self._lock, Lock()  # type: ignore[assignment]
        try:
            return super().take(nbytes)
        finally:
            self._lock = lock


class _ClosesOverItsCallers(Life):
    """Does not wait for the callers inside."""

    def wait_until_empty(self, timeout_seconds: float) -> None:
        pass


class _WaitsUnderTheLock(VmmMemoryPool):
    """Ends a lease while it holds the lock of the book."""

    def _end(self, lease: PoolLease, rule: str) -> None:
        with self._life:
            holding = self._book.claim(lease, rule)
            self._publisher.retire(holding)
            with self._book._lock:
                self._publisher.wait_retired(holding)
            self._publisher.free(holding)


class _Claims(VmmMemoryPool):
    book_type = _LooksThenClaims


class _Takes(VmmMemoryPool):
    book_type = _TakesWithoutTheLock


class _Closes(VmmMemoryPool):
    life_type = _ClosesOverItsCallers


@pytest.mark.parametrize(
    ("pool", "story", "lines", "rules"),
    [
        (_Claims, "cancel, revoke, recycle", False, {"ERR-2", "REC-3", "REC-5"}),
        (_Takes, "publish, publish, recycle", True, {"ERR-2", "RNG-1", "SLOT-1"}),
        (_Closes, "publish, recycle, shut down", False, {"ERR-2", "LIFE-2"}),
        (_WaitsUnderTheLock, "cancel, revoke, recycle", False, {"REC-4"}),
    ],
    ids=["looks-then-claims", "takes-without-the-lock", "closes-over-its-callers", "waits-under-the-lock"],
)
def test_a_gap_in_the_locking_is_caught(pool: type[VmmMemoryPool], story: str, lines: bool, rules: set[str]) -> None:
    outcome = meet(story, 1 if lines else 2, lines, pool)
    assert isinstance(outcome.broken, Broken)
    assert outcome.broken.rule in rules, outcome.broken


class _OneDeath(Reaper):
    """Rank 0's process has died; it is seen once, and only then another one may be watched."""

    def watch(self, rank: int, process_id: int) -> None:
        with self._lock:
            if not self._watched:
                message = "rank 0 is acted for by a process that has not been seen dead"
                raise ArgumentError(Reason.BAD_RANK, "REAP-1", message)

    def collect(self) -> list[int]:
        with self._lock:
            seen = bool(self._watched)
            self._watched[-1] = 0
            return [] if seen else [0]

    def close(self) -> None:
        """Nothing was opened."""


class _Reaps(VmmMemoryPool):
    reaper_type = _OneDeath


@pytest.mark.rule("REAP-1")
def test_reap_1_who_joins_in_the_middle_of_a_reaping_is_not_counted_as_dead() -> None:
    """
    Counting a death and letting a new process act for the rank are one step each.

    Given: a pool whose rank 0 has died.
    When: one thread reaps while another has a new process watched, in every order.
    Then: where the new process was accepted, new leases wait for it.
    """
    search = Search(bound=2)
    for choose in search.schedules():
        with watched((book, frame, life, reaper)), streams.progress(calls.synchronize_event):
            simcuda.load().reset()
            simcuda.load().set_mode("stepping")
            pool = _Reaps(2 << 20, "sim", 1, None, 1, handle_type="fabric")
            joins = Schedule([("reap", lambda: pool.reap()), ("join", lambda: pool.watch_consumer(0, 1))], choose)  # noqa: B023
            joins.run()
            accepted = joins.tasks[1].error is None
            assert pool._book._dead == (frozenset() if accepted else {0}), search.taken
            pool.shutdown()


def test_every_order_of_two_tasks_is_run_once() -> None:
    """Two tasks that take a lock twice each: without a bound all interleavings of their four steps."""
    orders = set()
    search = Search(bound=10)
    for choose in search.schedules():
        order: list[str] = []
        lock = Lock()

        def twice(name: str, order: list[str] = order, lock: Lock = lock) -> None:
            for _ in range(2):
                with lock:
                    order.append(name)

        Schedule([("a", lambda: twice("a")), ("b", lambda: twice("b"))], choose).run()
        orders.add("".join(order))
    assert orders == {"aabb", "abab", "abba", "baab", "baba", "bbaa"}


def test_a_deadlock_is_found_and_replayed() -> None:
    one, two = Lock(), Lock()

    def takes(first: Lock, second: Lock) -> None:
        with first, second:
            pass

    callers = [("ab", lambda: takes(one, two)), ("ba", lambda: takes(two, one))]
    search = Search(bound=1)

    def until_one_deadlocks() -> None:
        for choose in search.schedules():
            Schedule(callers, choose).run()

    with pytest.raises(Deadlock, match="ab and ba wait for each other"):
        until_one_deadlocks()
    one.holder = two.holder = None
    with pytest.raises(Deadlock):
        Schedule(callers, replay(search.taken)).run()


def test_locks_are_watched_for_a_while_only() -> None:
    with watched((book,)):
        assert vars(book)["threading"].Lock is Lock
    assert vars(book)["threading"] is threading
