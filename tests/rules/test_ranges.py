"""RNG: the bytes of the data area."""

from __future__ import annotations

import pytest

from tests.rules.toy import DATA, Make, Toy, bytes_of
from vmmref.lease import PoolLease


def leases_of(pool: Toy, *sizes: int) -> list[PoolLease]:
    return [pool.wrap(number, size).lease for number, size in enumerate(sizes)]


@pytest.mark.rule("RNG-1")
def test_rng_1_every_byte_is_in_one_range(toy: Make) -> None:
    """
    Free and leased ranges tile the data area, at every moment.

    Given: a pool of four slots.
    When: leases are taken, retired, given back in another order and taken again.
    Then: after each step there is neither gap nor overlap.
    """
    pool = toy(slots=4)
    pool.check_accounts()
    leases = leases_of(pool, 300, 100, 256)
    pool.check_accounts()
    pool.pool.begin_cancel(leases[1])
    pool.check_accounts()
    pool.pool.cancel_lease(leases[0])
    pool.check_accounts()
    leases_of(pool, 1)
    pool.check_accounts()
    pool.pool.reclaim()
    pool.check_accounts()


@pytest.mark.rule("RNG-2")
@pytest.mark.parametrize(("nbytes", "held"), [(1, 256), (255, 256), (256, 256), (257, 512), (1024, 1024)])
def test_rng_2_a_lease_is_aligned_and_wastes_little(toy: Make, nbytes: int, held: int) -> None:
    """
    A lease starts and ends on 256, holds its bytes and wastes less than 256.

    Given: an empty pool.
    When: a number of bytes is published.
    Then: the lease holds the next multiple of 256.
    """
    lease = toy().wrap(1, nbytes).lease
    assert (lease.start % 256, lease.end - lease.start, lease.nbytes) == (0, held, nbytes)


@pytest.mark.rule("RNG-3")
def test_rng_3_the_smallest_free_range_that_fits(toy: Make) -> None:
    """
    Best fit.

    Given: free ranges of 512 bytes (lower) and 256 bytes (higher).
    When: 256 bytes are published.
    Then: they lie in the smaller range.
    """
    pool = toy(slots=4, data_size=1280)
    wide, _, narrow, _ = leases_of(pool, 400, 1, 256, 1)
    pool.pool.cancel_lease(wide)
    pool.pool.cancel_lease(narrow)
    assert pool.wrap(9).lease.start == narrow.start


@pytest.mark.rule("RNG-3")
def test_rng_3_the_lowest_start_between_equals(toy: Make) -> None:
    """
    Between equal ranges the lower one is taken.

    Given: two free ranges of 256 bytes, the higher one given back first.
    When: 256 bytes are published twice.
    Then: the lower range comes first.
    """
    pool = toy(slots=4)
    low, _, high, _ = leases_of(pool, 1, 1, 1, 1)
    pool.pool.cancel_lease(high)
    pool.pool.cancel_lease(low)
    assert [lease.start for lease in leases_of(pool, 1, 1)] == [low.start, high.start]


@pytest.mark.rule("RNG-4")
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_rng_4_neighbours_are_merged(toy: Make, order: tuple[int, ...]) -> None:
    """
    No two free ranges touch.

    Given: three neighbouring leases and a free rest.
    When: they come back in some order: by a cancel, by a recycle pass and by a release.
    Then: one free range of everything.
    """
    pool = toy(slots=3)
    proxies = [pool.wrap(1) for _ in range(3)]
    pool.pool.cancel_lease(proxies[order[0]].lease)
    pool.consume(proxies[order[1]])
    assert pool.pool.recycle() == 1
    pool.pool.release_lease(proxies[order[2]].lease)
    assert pool.pool.stats().free_ranges == ((256, 256 + DATA),)


@pytest.mark.rule("RNG-5")
@pytest.mark.parametrize(("slots", "taken", "asked"), [(4, 768, 257), (1, 256, 256), (4, 1, 1025), (2, 1024, 1)])
def test_rng_5_a_full_pool_says_so_and_changes_nothing(toy: Make, slots: int, taken: int, asked: int) -> None:
    """
    No room or no free slot is an answer, not an error.

    Given: a pool without room for the request, by bytes or by slots.
    When: the tensor is published.
    Then: None; ranges, slots, generations and words are as before, and the tensor still is the caller's.
    """
    pool = toy(slots=slots)
    pool.wrap(1, taken)
    before = pool.state()
    tensor = bytes_of(7, asked)
    assert pool.pool.wrap_tensor(tensor) is None
    assert pool.pool.begin_publish(tensor) is None
    assert pool.pool.copy_tensor(tensor) == (None, None)
    assert pool.state() == before
    assert tensor.tolist() == [7] * asked
