"""Breadth-first search of small pools: how many states there are, and that every one of them keeps the rules.

The numbers are pinned: a model that can do less, or more, than it should does not pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest

from tests.model.walks import publish
from vmmref_models import Monitor, Policies, Shape, State, Step, enabled, initial, observe, runnable, step
from vmmref_models.operations import (
    Advance,
    Borrow,
    Cancel,
    Claim,
    Collect,
    Crash,
    Deliver,
    Dispatch,
    DropImport,
    Join,
    Look,
    Operation,
    Peek,
    Read,
    Reap,
    Reclaim,
    Release,
    Return,
)


class Scope(NamedTuple):
    """What a small environment may ask for."""

    leases: int
    copies: int = 1
    revoke: bool = False
    borrow: bool = False
    """Leases may be borrowed, views given back; imports may be dropped."""
    deaths: bool = False
    """Processes die, are counted and replaced."""


def choices(state: State, scope: Scope) -> Iterator[Operation]:
    """Every operation of the scope; tokens follow from the state, so equal states meet."""
    if len(state.published) < scope.leases:
        yield publish(len(state.published), 256, borrowable=scope.borrow)
    for lease in state.published:
        if lease.token not in state.dispatched:
            yield Dispatch(lease.token)
            continue
        if scope.revoke:
            yield Cancel(lease.token, False)
        for rank in range(state.shape.consumers):
            for copy in range(scope.copies):
                yield Deliver(lease.token, (lease.token * 4 + rank) * 4 + copy, rank)
    for proxy in state.consumers.proxies:
        yield Read(proxy.token, proxy.token)
        yield Release(proxy.token)
        if scope.borrow:
            yield Borrow(proxy.token, proxy.token)
    for reader in state.consumers.readers:
        yield Collect(reader.token)
    for view in state.consumers.views:
        yield Peek(view.token)
        yield Return(view.token)
    for rank in range(state.shape.consumers):
        if scope.deaths:
            yield from (Crash(rank), Join(rank))
        if scope.borrow:
            yield DropImport(rank)
    if scope.deaths:
        yield Reap()
    for stream in runnable(state):
        yield Advance(stream)
    yield Claim(0) if state.looks else Look(0)
    yield Reclaim(False)


def search(shape: Shape, scope: Scope) -> tuple[int, int, int]:
    """States, transitions and depth of everything reachable; fails at the first rule that is broken."""
    monitor = Monitor(Policies())
    start = initial(shape)
    seen, level, transitions, depth = {start}, [start], 0, 0
    while level:
        following: list[State] = []
        for state in level:
            before = observe(state)
            for operation in choices(state, scope):
                if not enabled(state, operation):
                    continue
                after, outcome = step(state, operation)
                if outcome.kind != "done":
                    assert after == state or isinstance(operation, Collect | Borrow), operation
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
APART = replace(ONE, apart=True)
TWO = replace(ONE, consumers=2)


@pytest.mark.parametrize(
    ("shape", "scope", "expected"),
    [
        (ONE, Scope(1), (54, 224, 11)),
        (ONE, Scope(1, revoke=True), (163, 872, 10)),
        (ONE, Scope(1, copies=2), (384, 2341, 13)),
        (ONE, Scope(1, copies=2, revoke=True), (1271, 9320, 12)),
        (ONE, Scope(2), (182, 1068, 21)),
        (ONE, Scope(2, revoke=True), (5186, 43675, 20)),
        (TWO, Scope(1), (686, 4611, 15)),
        (replace(ONE, slots=2), Scope(2), (182, 1068, 21)),
        (replace(ONE, generation_limit=1), Scope(2), (54, 276, 11)),
        (ONE, Scope(1, borrow=True), (120, 732, 11)),
        (ONE, Scope(1, borrow=True, revoke=True), (375, 2735, 12)),
        (ONE, Scope(1, copies=2, borrow=True), (1020, 9001, 13)),
        (ONE, Scope(2, borrow=True), (722, 6266, 21)),
        (APART, Scope(1, deaths=True), (322, 1845, 18)),
        (APART, Scope(1, deaths=True, borrow=True, revoke=True), (1024, 8331, 18)),
        (APART, Scope(2, deaths=True), (5128, 41205, 29)),
    ],
)
def test_every_reachable_state_keeps_the_rules(shape: Shape, scope: Scope, expected: tuple[int, int, int]) -> None:
    assert search(shape, scope) == expected
