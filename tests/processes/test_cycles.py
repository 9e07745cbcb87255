"""Lease cycles between spawned processes: every byte compared, every process counted."""

from __future__ import annotations

import pytest

from vmmref.conformance import cycles
from vmmref.simcuda import Simulator


@pytest.mark.rule("HND-1")
@pytest.mark.rule("LIV-1")
@pytest.mark.parametrize("consumers", [1, 2])
@pytest.mark.parametrize("handle_type", ["posix_fd", "fabric"])
def test_hnd_1_many_lease_cycles_leave_nothing(simulator: Simulator, handle_type: str, consumers: int) -> None:
    """
    Cycle after cycle nothing is wrong and nothing piles up.

    Given: one or two consumer processes.
    When: two thousand leases are published, read, acknowledged and recycled; every tenth proxy is presented twice.
    Then: no byte is wrong, no proxy was served twice, no process holds anything.
    """
    result = cycles.run("sim", 2000, consumers, handle_type)
    assert result.clean, result
    assert (result.cycles, result.consumers, result.handle_type) == (2000, consumers, handle_type)
    assert set(result.leftovers) == {"producer", *(f"rank {rank}" for rank in range(consumers))}
