"""The long run in its shortest form: everything at once, between real processes, every byte compared."""

from __future__ import annotations

import random

import pytest

from vmmref.conformance import soak
from vmmref.conformance.soak import Fate
from vmmref.simcuda import Simulator

LEASES = 20_000


@pytest.mark.rule("LIV-1")
@pytest.mark.rule("HND-1")
@pytest.mark.rule("REAP-1")
@pytest.mark.slow
def test_liv_1_a_long_run_with_everything_at_once(simulator: Simulator) -> None:
    """
    Twenty thousand leases of all sizes, with duplicates, cancellations, revocations and deaths, leave nothing.

    Given: a producer and four consumer processes; a pool that is full now and then.
    When: every lease has its fate, and every two thousand leases a consumer is killed and replaced.
    Then: every byte is right, no copy is served twice, all leases come back, and no process holds anything.
    """
    result = soak.run("sim", LEASES, consumers=4, seed=1)
    assert result.clean, result
    assert (result.leases, result.kills) == (LEASES, LEASES // soak.KILL_EVERY)
    assert set(result.fates) == set(Fate)
    assert sum(result.fates.values()) == LEASES
    assert result.stale > 0
    assert set(result.leftovers) == {"producer", "rank 0", "rank 1", "rank 2", "rank 3"}


def test_the_same_seed_draws_the_same_leases() -> None:
    first, second, other = random.Random(7), random.Random(7), random.Random(8)
    leases = [soak.draw(first) for _ in range(500)]
    assert leases == [soak.draw(second) for _ in range(500)]
    assert leases != [soak.draw(other) for _ in range(500)]
    assert all(1 <= lease.size <= 1 << 20 and lease.start + lease.size <= soak.PATTERN_BYTES for lease in leases)
    assert sum(lease.size <= 4 << 10 for lease in leases) > 400
