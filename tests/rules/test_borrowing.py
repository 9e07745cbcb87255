"""CON-6: looking at a lease in place, and what that asks of everybody else."""

from __future__ import annotations

import subprocess

import pytest
import torch

from tests.rules.toy import DATA, Make, Toy, bytes_of
from vmmref.errors import AlreadyReleased, LeaseError, StaleLease
from vmmref.imports import IMPORTS, close_imports
from vmmref.proxy import TensorProxy
from vmmref_models.reasons import Reason


def lent(pool: Toy, value: int, nbytes: int = 256) -> TensorProxy:
    """Publish bytes that may be borrowed, and give a copy of the proxy as another process gets it."""
    proxy = pool.pool.wrap_tensor(bytes_of(value, nbytes), borrowable=True)
    assert proxy is not None
    return TensorProxy.from_bytes(bytes(proxy))


@pytest.mark.rule("CON-6")
def test_con_6_a_view_is_the_pool_s_own_memory_until_its_release(toy: Make) -> None:
    """
    Nothing is copied, and the acknowledgement comes at the release.

    Given: a borrowable lease of 4 floats, borrowed by the one rank.
    When: a pass runs, the view is released, and another pass runs.
    Then: the view has the published values and lies in the rank's import; only the second pass takes the lease back.
    """
    pool = toy()
    source = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    proxy = pool.pool.wrap_tensor(source, borrowable=True)
    assert proxy is not None
    view = proxy.borrow_on_target_device("sim")
    (imported,) = IMPORTS.find(pool.pool.card.nonce)
    assert torch.equal(view, source)
    assert view.data_ptr() == imported.address + proxy.lease.start
    pool.drain()
    assert pool.pool.recycle() == 0
    proxy.release_borrowed()
    proxy.release_borrowed()
    pool.drain()
    assert pool.pool.recycle() == 1
    pool.check_home()


@pytest.mark.rule("CON-6")
def test_con_6_every_other_copy_is_refused(toy: Make) -> None:
    """
    The rank is in the table before R is looked at, so nobody else of the rank gets in.

    Given: two copies of the proxy of a borrowable lease in one rank, one of them borrowed.
    When: the other is read, borrowed, or released.
    Then: reading and borrowing are refused, releasing writes nothing, and the view stays right.
    """
    pool = toy()
    first = lent(pool, 7)
    second = TensorProxy.from_bytes(bytes(first))
    view = first.borrow_on_target_device("sim")
    for take in (second.reconstruct_on_target_device, second.borrow_on_target_device):
        with pytest.raises(AlreadyReleased):
            take("sim")
    second.release_without_reconstruction()
    pool.drain()
    assert pool.pool.recycle() == 0
    assert bytes(view.numpy()) == b"\7" * 256
    first.release_borrowed()


@pytest.mark.rule("CON-6")
def test_con_6_a_revoked_lease_stays_while_somebody_looks(toy: Make) -> None:
    """
    Revoking a borrowable lease sets its range aside until every rank has acknowledged.

    Given: the only lease of a full pool, borrowed by rank 0 and not yet by rank 1.
    When: it is revoked; another lease is asked for; rank 1 borrows late; rank 0 releases its view.
    Then: the pool stays full and says what is set aside; rank 0's view keeps its bytes; rank 1 is told StaleLease and
        has acknowledged by that; the pass after the release frees the range, once.
    """
    pool = toy(consumers=2)
    proxy = lent(pool, 5, DATA)
    view = proxy.borrow_on_target_device("sim", 2, 0)
    pool.pool.revoke(proxy.lease)
    assert pool.pool.wrap_tensor(bytes_of(6, 256)) is None
    assert (pool.pool.stats().set_aside_slots, pool.pool.stats().capacity) == ((0,), 0)
    with pytest.raises(StaleLease):
        proxy.borrow_on_target_device("sim", 2, 1)
    pool.drain()
    assert pool.pool.recycle() == 0
    assert bytes(view.numpy()) == b"\5" * DATA
    proxy.release_borrowed(2, 0)
    pool.drain()
    assert pool.pool.recycle() == 1
    pool.check_home()


@pytest.mark.rule("CON-6")
def test_con_6_a_stale_reader_of_such_a_lease_says_that_it_is_done(toy: Make) -> None:
    """
    Who copies a borrowable lease out too late acknowledges all the same, or the lease never came back.

    Given: a borrowable lease that was revoked after it was delivered.
    When: its one rank reconstructs it.
    Then: the rank is told StaleLease, and the next pass frees the lease.
    """
    pool = toy()
    proxy = lent(pool, 5)
    pool.pool.revoke(proxy.lease)
    assert pool.pool.recycle() == 0
    with pytest.raises(StaleLease):
        proxy.reconstruct_on_target_device("sim")
    pool.drain()
    assert pool.pool.recycle() == 1
    pool.check_home()


@pytest.mark.rule("CON-6")
def test_con_6_what_nobody_was_told_of_goes_back_at_once(toy: Make) -> None:
    """
    Only a dispatched lease can be looked at.

    Given: a publication that has not been finished.
    When: its lease, borrowable or not, is cancelled.
    Then: range and slot are free.
    """
    pool = toy()
    publication = pool.begin(1)
    publication._holding.borrowable = True
    pool.pool.cancel_lease(publication.lease)
    pool.check_home()


@pytest.mark.rule("CON-6")
def test_con_6_a_lease_says_whether_it_may_be_borrowed(toy: Make) -> None:
    """
    Borrowing what was published to be copied is refused before anything is entered.

    Given: a lease that is not borrowable.
    When: it is borrowed, and then read.
    Then: the first is refused with NOT_BORROWABLE, the second succeeds.
    """
    pool = toy()
    proxy = pool.wrap(3)
    with pytest.raises(LeaseError) as refusal:
        proxy.borrow_on_target_device("sim")
    assert refusal.value.reason is Reason.NOT_BORROWABLE
    assert pool.read(proxy) == b"\3" * 256


@pytest.mark.rule("CON-6")
def test_con_6_no_view_outlives_the_mapping(toy: Make) -> None:
    """
    An import is not dropped under a borrowed view, not even when the pool has ended.

    Given: a borrowed view, and a pool that is shut down.
    When: the import is dropped before and after the view is released.
    Then: the first is refused with STILL_BORROWED and the view is still right; the second succeeds.
    """
    pool = toy()
    proxy = lent(pool, 9)
    view = proxy.borrow_on_target_device("sim")
    pool.pool.shutdown()
    with pytest.raises(LeaseError) as refusal:
        close_imports(pool.pool.card.nonce)
    assert refusal.value.reason is Reason.STILL_BORROWED
    assert bytes(view.numpy()) == b"\x09" * 256
    proxy.release_borrowed()
    close_imports(pool.pool.card.nonce)


@pytest.mark.rule("CON-6")
@pytest.mark.rule("REAP-1")
def test_con_6_a_dead_borrower_does_not_hold_the_range(toy: Make) -> None:
    """
    Set aside until every rank has acknowledged *or is dead*.

    Given: a revoked borrowable lease whose rank belongs to another process.
    When: that process ends.
    Then: the next pass frees the lease.
    """
    pool = toy()
    process = subprocess.Popen(["sleep", "60"])
    try:
        pool.pool.watch_consumer(0, process.pid)
        pool.pool.revoke(lent(pool, 5).lease)
        assert pool.pool.recycle() == 0
    finally:
        process.kill()
        process.wait(10)
    assert pool.pool.recycle() == 1
    pool.check_home()
