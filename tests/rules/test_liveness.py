"""LIV: a pool that keeps every other rule must also go on."""

from __future__ import annotations

import contextlib
import random

import pytest

from tests.rules.toy import DATA, Make, Toy, another, bytes_of
from vmmref.errors import LeaseError, StaleLease
from vmmref.proxy import Reconstruction, TensorProxy
from vmmref.simcuda import Blocked


class Churn:
    """A seeded client that publishes, reads, releases, revokes and lets pieces of work run, in no useful order."""

    def __init__(self, pool: Toy, seed: int) -> None:
        self.pool = pool
        self.random = random.Random(seed)
        self.open: list[tuple[TensorProxy, set[int]]] = []
        self.readings: list[Reconstruction] = []

    def publish(self) -> None:
        size = self.random.choice([1, 256, 300, 512])
        if (publication := self.pool.pool.begin_publish(bytes_of(1, size))) is not None:
            proxy = self.pool.pool.finish_publish(publication)
            self.open.append((proxy, set(range(self.pool.consumers))))

    def take_part(self) -> None:
        if not self.open:
            return
        proxy, owing = self.random.choice(self.open)
        if owing:
            rank = self.random.choice(sorted(owing))
            owing.discard(rank)
            if self.random.random() < 0.5:
                self.readings.append(self.pool.start(another(proxy), rank))
            else:
                self.pool.release(another(proxy), rank)

    def collect(self) -> None:
        if self.readings:
            self._finish(self.readings.pop(self.random.randrange(len(self.readings))))

    def _finish(self, reading: Reconstruction) -> None:
        # Read or told that it is stale: both are answers.
        with contextlib.suppress(StaleLease):
            reading.finish()

    def revoke(self) -> None:
        if self.open and self.random.random() < 0.3:
            proxy, _ = self.open.pop(self.random.randrange(len(self.open)))
            # Refused where its ranks were faster.
            with contextlib.suppress(LeaseError):
                self.pool.pool.begin_cancel(proxy.lease)

    def run_a_piece(self) -> None:
        self.pool.simulator.step_submission()

    def pass_(self) -> None:
        self.pool.pool.claim(self.pool.pool.look())
        self.pool.pool.reclaim(wait=False)

    def step(self) -> None:
        taking_part = [self.take_part] * 2
        self.random.choice([self.publish, *taking_part, self.collect, self.revoke, self.run_a_piece, self.pass_])()

    def drive_home(self) -> None:
        """Every reader is answered, every rank takes part in all that it has not."""
        for proxy, owing in self.open:
            for rank in owing:
                self.pool.release(another(proxy), rank)
        while self.readings:
            self._finish(self.readings.pop())
        self.pool.drain()


@pytest.mark.rule("LIV-1")
@pytest.mark.parametrize("seed", range(20))
def test_liv_1_acknowledged_leases_come_back(toy: Make, seed: int) -> None:
    """
    If every rank acknowledges, every lease is recycled in the end.

    Given: a pool after a hundred steps of a client in no useful order.
    When: every reader is answered, every rank takes part in what it has not, and one pass runs.
    Then: no lease is left, and all bytes are free in one range.
    """
    pool = toy(slots=3, consumers=2)
    churn = Churn(pool, seed)
    for _ in range(100):
        churn.step()
        pool.check_accounts()
    churn.drive_home()
    pool.pool.recycle()
    pool.check_home()


@pytest.mark.rule("LIV-2")
@pytest.mark.parametrize("seed", range(20, 40))
def test_liv_2_nothing_is_stuck(toy: Make, seed: int) -> None:
    """
    There is always something that can run, and a pool that serves or says why not.

    Given: a client in no useful order.
    When: after each step everything queued is run as far as it goes.
    Then: no stream is blocked for good; at the end a tensor of the whole data area is served.
    """
    pool = toy(slots=2, consumers=1)
    churn = Churn(pool, seed)
    for _ in range(60):
        churn.step()
        while (piece := pool.simulator.step_submission()) is not None:
            assert not isinstance(piece, Blocked)
    churn.drive_home()
    pool.pool.recycle()
    assert pool.read(pool.wrap(9, DATA)) == b"\x09" * DATA
