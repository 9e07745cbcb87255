"""Breadth-first search of small pools: how many states there are, and that every one of them keeps the rules.

The numbers are pinned: a model that can do less, or more, than it should does not pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.model.walks import publish
from vmmref_models import Monitor, Policies, Shape, State, Step, enabled, initial, observe, runnable, step
from vmmref_models.operations import (
    Advance,
    Cancel,
    Claim,
    Collect,
    Deliver,
    Dispatch,
    Look,
    Operation,
    Read,
    Reclaim,
    Release,
)


def choices(state: State, leases: int, copies: int, revoke: bool) -> Iterator[Operation]:
    """Every operation that a small environment may ask for; tokens follow from the state, so equal states meet."""
    if len(state.published) < leases:
        yield publish(len(state.published), 256)
    for lease in state.published:
        if lease.token not in state.dispatched:
            yield Dispatch(lease.token)
            continue
        if revoke:
            yield Cancel(lease.token, False)
        for rank in range(state.shape.consumers):
            for copy in range(copies):
                yield Deliver(lease.token, (lease.token * 4 + rank) * 4 + copy, rank)
    for proxy in state.consumers.proxies:
        yield Read(proxy.token, proxy.token)
        yield Release(proxy.token)
    for reader in state.consumers.readers:
        yield Collect(reader.token)
    for stream in runnable(state):
        yield Advance(stream)
    yield Claim(0) if state.looks else Look(0)
    yield Reclaim(False)


def search(shape: Shape, leases: int, copies: int, revoke: bool) -> tuple[int, int, int]:
    """States, transitions and depth of everything reachable; fails at the first rule that is broken."""
    monitor = Monitor(Policies())
    start = initial(shape)
    seen, level, transitions, depth = {start}, [start], 0, 0
    while level:
        following: list[State] = []
        for state in level:
            before = observe(state)
            for operation in choices(state, leases, copies, revoke):
                if not enabled(state, operation):
                    continue
                after, outcome = step(state, operation)
                if outcome.kind != "done":
                    assert after == state or isinstance(operation, Collect), operation
                transitions += 1
                monitor.start()
                broken = monitor.judge(Step(before, observe(after), operation, outcome, state))
                assert not broken, (operation, broken)
                if after not in seen:
                    seen.add(after)
                    following.append(after)
        level = following
        depth += bool(level)
    return len(seen), transitions, depth


ONE = Shape(slots=1, consumers=1, data_size=256)


@pytest.mark.parametrize(
    ("shape", "leases", "copies", "revoke", "expected"),
    [
        (ONE, 1, 1, False, (40, 166, 11)),
        (ONE, 1, 1, True, (96, 512, 10)),
        (ONE, 1, 2, False, (276, 1684, 13)),
        (ONE, 1, 2, True, (728, 5356, 12)),
        (ONE, 2, 1, False, (116, 676, 21)),
        (ONE, 2, 1, True, (1928, 16166, 20)),
        (replace(ONE, consumers=2), 1, 1, False, (422, 2844, 15)),
        (replace(ONE, slots=2), 2, 1, False, (116, 676, 21)),
        (replace(ONE, generation_limit=1), 2, 1, False, (40, 204, 11)),
    ],
)
def test_every_reachable_state_keeps_the_rules(
    shape: Shape, leases: int, copies: int, revoke: bool, expected: tuple[int, int, int]
) -> None:
    assert search(shape, leases, copies, revoke) == expected
