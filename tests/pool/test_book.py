"""The book of leases: one claim wins, every other is refused, and a refusal changes nothing."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from vmmref.book import Holding, LeaseBook
from vmmref.errors import GenerationExhausted, LeaseError
from vmmref.layout import ControlLayout
from vmmref.stats import PoolStats
from vmmref_models.reasons import Reason

NONCE = b"n" * 16
LAYOUT = ControlLayout(slots=2, consumers=1)


def book(limit: int = 100, issued: tuple[int, ...] = (), layout: ControlLayout = LAYOUT) -> LeaseBook:
    """A book over 1024 bytes of data."""
    return LeaseBook(NONCE, layout, layout.data_start + 1024, limit, "CUDA VMM", issued)


def taken(from_book: LeaseBook, nbytes: int = 256) -> Holding:
    holding = from_book.take(nbytes)
    assert holding is not None
    return holding


def figures(of_book: LeaseBook) -> PoolStats:
    return of_book.snapshot(overdue_before=0.0)


def test_a_lease_is_claimed_once() -> None:
    leases = book()
    holding = taken(leases)
    assert leases.claim(holding.lease, "CAN-2") is holding
    before = figures(leases)
    with pytest.raises(LeaseError) as refusal:
        leases.claim(holding.lease, "CAN-2")
    assert (refusal.value.reason, refusal.value.rule) == (Reason.INACTIVE_LEASE, "CAN-2")
    assert figures(leases) == before


def test_a_retiring_lease_still_holds_range_and_slot() -> None:
    leases = book()
    holding = taken(leases)
    leases.claim(holding.lease, "CAN-2")
    snapshot = leases.snapshot(overdue_before=0.0)
    assert (snapshot.free_ranges, snapshot.free_slots, snapshot.retiring_slots) == (((512, 1280),), (1,), (0,))
    assert snapshot.leases == (holding.lease,)
    leases.free(holding)
    assert figures(leases) == figures(book())._replace(free_slots=(1, 0), generations=(1, 0), generations_left=99)


@pytest.mark.rule("GEN-5")
def test_gen_5_a_lease_of_another_pool_is_refused() -> None:
    """
    The nonce decides, also where everything else coincides.

    Given: an active lease, and the same handle with another pool's nonce.
    When: the latter is claimed.
    Then: FOREIGN_POOL, and the lease is as it was.
    """
    leases = book()
    lease = taken(leases).lease
    before = figures(leases)
    with pytest.raises(LeaseError) as refusal:
        leases.claim(lease._replace(nonce=b"o" * 16), "CAN-2")
    assert refusal.value.reason is Reason.FOREIGN_POOL
    assert figures(leases) == before


@pytest.mark.parametrize("change", [{"generation": 0}, {"generation": 2}, {"start": 512}, {"end": 1024}, {"nbytes": 1}])
def test_an_altered_handle_is_refused(change: dict[str, Any]) -> None:
    leases = book()
    lease = taken(leases).lease
    before = figures(leases)
    with pytest.raises(LeaseError) as refusal:
        leases.claim(lease._replace(**change), "CAN-2")
    assert refusal.value.reason is Reason.INACTIVE_LEASE
    assert figures(leases) == before


def test_full_by_bytes_or_by_slots_changes_nothing() -> None:
    leases = book()
    taken(leases)
    before = figures(leases)
    assert leases.take(1024) is None
    assert figures(leases) == before
    taken(leases)
    before = figures(leases)
    assert leases.take(256) is None
    assert figures(leases) == before


def test_exhausted_changes_nothing() -> None:
    leases = book(limit=1, issued=(1, 1))
    before = figures(leases)
    with pytest.raises(GenerationExhausted) as refusal:
        leases.take(256)
    assert refusal.value.reason is Reason.GENERATION_EXHAUSTED
    assert figures(leases) == before


def test_unclaim_makes_it_active_again() -> None:
    leases = book()
    holding = taken(leases)
    leases.claim(holding.lease, "CAN-2")
    leases.unclaim(holding)
    assert leases.is_active(holding.lease)
    assert leases.claim(holding.lease, "CAN-2") is holding


def test_claim_where_asks_only_dispatched_leases() -> None:
    leases = book()
    first, second = taken(leases), taken(leases)
    leases.dispatch(first, now=0.0)
    assert leases.claim_where(lambda _: True) == [first]
    assert leases.claim_where(lambda _: True) == []
    assert leases.claim_all() == [second]


def test_a_claimed_lease_is_not_dispatched() -> None:
    leases = book()
    holding = taken(leases)
    leases.claim(holding.lease, "CAN-2")
    with pytest.raises(LeaseError) as refusal:
        leases.dispatch(holding, now=0.0)
    assert (refusal.value.reason, refusal.value.rule) == (Reason.INACTIVE_LEASE, "REC-3")
    assert not holding.dispatched


def test_warns_once_before_the_last_generation(caplog: pytest.LogCaptureFixture) -> None:
    leases = book(limit=16, issued=(13, 0), layout=LAYOUT)
    with caplog.at_level(logging.WARNING, logger="vmmref"):
        for _ in range(6):
            leases.free(leases.claim(taken(leases).lease, "CAN-2"))
    assert [record.getMessage() for record in caplog.records] == [
        "CUDA VMM pool: a slot has 1 generations left; restart it in time [GEN-6]"
    ]


def test_many_threads_one_winner() -> None:
    leases = book()
    lease = taken(leases).lease
    start, won, lost = threading.Barrier(8), list[Holding](), list[LeaseError]()

    def claim() -> None:
        start.wait(10)
        try:
            won.append(leases.claim(lease, "CAN-2"))
        except LeaseError as refusal:
            lost.append(refusal)

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert (len(won), len(lost)) == (1, 7)
