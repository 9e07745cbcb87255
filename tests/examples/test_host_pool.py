"""The example pool keeps the rules that it claims, and is caught when it does not."""

from __future__ import annotations

import pytest

from examples.subjects import host_pool
from vmmref.conformance.run import Rig
from vmmref.conformance.search import Plan, Search
from vmmref_models.operations import LeaseView


def searched(episodes: int) -> Search:
    search = Search(Rig(host_pool.make()), Plan(seed=7, walk_episodes=episodes, walk_seconds=60.0))
    search.walk()
    return search


def test_the_example_keeps_its_rules() -> None:
    search = searched(400)
    assert search.failures == {}
    exercised = {rule for rule, count in search.rig.monitor.exercised.items() if count}
    assert {"RNG-3", "GEN-3", "GEN-4", "CON-3", "CON-5", "REC-1", "REC-2", "LIFE-2", "ACK-5"} <= exercised


def test_the_example_without_its_retire_store_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    end = host_pool.HostPool.end

    def without(self: host_pool.HostPool, lease: LeaseView) -> None:
        ready = self.word(lease.slot, 0)
        end(self, lease)
        self.store(lease.slot, 0, ready)

    monkeypatch.setattr(host_pool.HostPool, "end", without)
    failures = searched(60).failures
    assert "REC-2" in failures
    assert len(failures["REC-2"].operations) <= 2
