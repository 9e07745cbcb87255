"""CAN: ending a lease before its ranks have acknowledged."""

from __future__ import annotations

import pytest

from tests.rules.toy import Make, another
from vmmref.errors import LeaseError, StaleLease
from vmmref.lease import PoolLease
from vmmref_models.reasons import Reason


@pytest.mark.rule("CAN-1")
@pytest.mark.parametrize("finished", [False, True], ids=["while queued", "when ready"])
def test_can_1_an_undelivered_lease_comes_back(toy: Make, finished: bool) -> None:
    """
    Range and slot of a lease that nobody was told of return.

    Given: a publication, before or after its ready store has run.
    When: it is cancelled.
    Then: the whole pool is free again.
    """
    pool = toy()
    publication = pool.begin(1, 1024)
    if finished:
        pool.pool.cancel_proxy(pool.pool.finish_publish(publication))
    else:
        pool.pool.cancel_lease(publication.lease)
    pool.check_home()
    assert pool.read(pool.wrap(2, 1024)) == b"\2" * 1024


@pytest.mark.rule("CAN-1")
def test_can_1_a_cancel_that_does_not_wait_is_finished_by_a_pass(toy: Make) -> None:
    """
    The first half of a cancel claims; the next pass frees.

    Given: a lease that was cancelled without waiting.
    When: a pass runs.
    Then: it takes the lease back.
    """
    pool = toy()
    pool.pool.begin_cancel(pool.begin(1).lease)
    assert pool.pool.stats().retiring_slots == (0,)
    assert pool.pool.recycle() == 1
    pool.check_home()


@pytest.mark.rule("CAN-2")
@pytest.mark.parametrize("state", ["recycled", "cancelled", "retiring", "reissued"])
def test_can_2_cancelling_what_is_not_active_is_refused(toy: Make, state: str) -> None:
    """
    A cancel that comes too late changes nothing.

    Given: a lease that was recycled, cancelled, is retiring, or whose slot was leased again.
    When: it is cancelled and revoked.
    Then: INACTIVE_LEASE, and everything is as before.
    """
    pool = toy(slots=2)
    proxy = pool.wrap(1)
    if state == "recycled":
        pool.consume(proxy)
        assert pool.pool.recycle() == 1
    elif state == "retiring":
        pool.pool.begin_cancel(proxy.lease)
    else:
        pool.pool.cancel_lease(proxy.lease)
    if state == "reissued":
        assert {pool.wrap(2).lease.slot, pool.wrap(3).lease.slot} == {0, 1}
    before = pool.state()
    for end in (pool.pool.cancel_lease, pool.pool.revoke, pool.pool.begin_cancel):
        with pytest.raises(LeaseError) as refusal:
            end(proxy.lease)
        assert refusal.value.reason is Reason.INACTIVE_LEASE
    with pytest.raises(LeaseError):
        pool.pool.cancel_proxy(proxy)
    assert pool.state() == before
    if state == "retiring":
        assert pool.pool.reclaim() == 1


def _altered(lease: PoolLease) -> dict[str, PoolLease]:
    return {
        "older": lease._replace(generation=lease.generation - 1),
        "newer": lease._replace(generation=lease.generation + 1),
        "slot": lease._replace(slot=1),
        "no such slot": lease._replace(slot=99),
        "offset": lease._replace(start=lease.start + 256, end=lease.end + 256),
        "longer": lease._replace(end=lease.end + 256),
        "nbytes": lease._replace(nbytes=1),
    }


@pytest.mark.rule("CAN-2")
@pytest.mark.parametrize("change", list(_altered(PoolLease(b"", 0, 1, 0, 256, 256))))
def test_can_2_an_altered_handle_is_refused(toy: Make, change: str) -> None:
    """
    A handle is data that has travelled: all of it is compared.

    Given: an active lease and a handle that differs in one field.
    When: the handle is cancelled.
    Then: INACTIVE_LEASE, and everything is as before.
    """
    pool = toy(slots=2)
    lease = pool.wrap(1).lease
    before = pool.state()
    with pytest.raises(LeaseError) as refusal:
        pool.pool.cancel_lease(_altered(lease)[change])
    assert refusal.value.reason is Reason.INACTIVE_LEASE
    assert pool.state() == before


@pytest.mark.rule("CAN-3")
def test_can_3_revoking_retires_before_it_frees(toy: Make) -> None:
    """
    A reader that comes after a revoke is told, and forged acknowledgements are not needed for it.

    Given: a dispatched lease of two ranks, of which rank 0 has queued its copy-out.
    When: the lease is revoked and its bytes are leased again.
    Then: R was retired before the range came back; both ranks get STALE_LEASE; no A[r] was written.
    """
    pool = toy(consumers=2)
    proxy = pool.wrap(0xA1)
    copy = another(proxy)
    reading = pool.start(proxy, rank=0)
    pool.pool.revoke(proxy.lease)
    assert pool.words() == ((3, 0, 0),)
    pool.check_home()
    pool.wrap(0xB2)
    with pytest.raises(StaleLease):
        reading.finish()
    with pytest.raises(StaleLease) as refusal:
        pool.read(copy, rank=1)
    assert refusal.value.reason is Reason.STALE_LEASE
    pool.drain()
    assert pool.words() == ((4, 0, 0),)
