"""The model follows a pool that uses every freedom, and nothing beyond."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from tests.model.free_pool import FAILED, FreePool
from tests.model.walks import Drawer, publish, shapes, wrap
from vmmref_models import (
    EVERY_CAPABILITY,
    Impossible,
    Monitor,
    Observation,
    Outcome,
    Policies,
    Reason,
    Shape,
    Step,
    difference,
    initial,
    observe,
    settle,
    step,
)
from vmmref_models.operations import Cancel, Construct, Deliver, Faulty, Fetch, LeaseView, Operation, Recycle

COMBINATIONS = [("best", "fifo", True), ("any", "any", True), ("best", "fifo", False), ("any", "any", False)]


@pytest.mark.parametrize(("fit", "slot_order", "stepping"), COMBINATIONS)
def test_the_model_follows_every_free_choice(fit: str, slot_order: str, stepping: bool) -> None:
    capabilities = EVERY_CAPABILITY if stepping else EVERY_CAPABILITY - {"stepping"}
    policies = Policies(fit=fit, slot_order=slot_order, capabilities=capabilities)
    monitor, answers, rng = Monitor(policies), Counter[str](), Random(7)
    for _ in range(250):
        shape, drawer = shapes(rng), Drawer(rng, faults=True, stepping=stepping)
        pool, state, before = FreePool(shape, policies, rng, stepping=stepping), initial(shape, policies), None
        monitor.start()
        done: list[Operation] = []
        before = pool.observe()
        for _ in range(60):
            operation = drawer.draw(state)
            done.append(operation)
            seen, after = pool.apply(operation), pool.observe()
            broken = monitor.judge(Step(before, after, operation, seen, state))
            assert not broken, (done, [(rule.id, verdict) for rule, verdict in broken])
            state, expected = step(state, operation, seen, after)
            state = state if stepping else settle(state)
            differs = difference(observe(state), after, operation, expected, seen, policies)
            assert differs is None, (shape, done, differs)
            answers[f"{type(operation).__name__} {seen.kind}"] += 1
            before = after
    assert answers["Faulty failed"] > 200
    assert monitor.exercised["PUB-3"] > 30
    assert monitor.exercised["CON-4"] > 10
    assert monitor.exercised["LIFE-3"] > 5


def _failed(operation: object, observed: Observation, state_of: list[Operation], shape: Shape) -> None:
    state = initial(shape)
    for done in state_of:
        state, _ = step(state, done)
    assert isinstance(operation, Recycle | Cancel | Fetch) or operation is not None
    step(state, Faulty(operation, 1), FAILED, observed)  # type: ignore[arg-type]


SHAPE = Shape(slots=2, consumers=1, data_size=1024)


@pytest.mark.parametrize(
    ("rule", "operation", "done", "shown"),
    [
        ("PUB-3", publish(9), [], {"generations": (1, 0), "words": ((2, 0), (0, 0))}),
        ("GEN-1", publish(9), [], {"generations": (2, 0)}),
        ("GEN-1", publish(9), [], {"generations": (1, 1)}),
        ("GEN-1", publish(9), [], {"generations": (1, 0, 0)}),
        ("REC-1", Recycle(), [wrap(1)], {"leases": (), "retiring": (), "words": ((3, 0), (0, 0))}),
        ("REC-2", Cancel(1, True), [wrap(1)], {"leases": (), "retiring": ()}),
        ("REC-3", Recycle(), [wrap(1), Cancel(1, False)], {"retiring": ()}),
    ],
)
def test_what_no_failure_may_leave_behind(
    rule: str, operation: Operation, done: list[Operation], shown: dict[str, object]
) -> None:
    state = initial(SHAPE)
    for earlier in done:
        state, _ = step(state, earlier)
    observed = replace(observe(state), **shown)  # type: ignore[arg-type]
    with pytest.raises(Impossible) as impossible:
        step(state, Faulty(operation, 1), FAILED, observed)  # type: ignore[arg-type]
    assert impossible.value.rule == rule


def test_a_failed_constructor_or_read_does_not_fail_the_pool() -> None:
    failed = Outcome("failed", Reason.POOL_FAILED)
    state = initial(SHAPE)
    for earlier in (wrap(1), Deliver(1, 2, 0)):
        state, _ = step(state, earlier)
    for operation in (Construct("valid"), Fetch(2, 3)):
        with pytest.raises(Impossible):
            step(state, Faulty(operation, 1), failed, observe(state))


def test_a_place_that_is_not_free_is_impossible() -> None:
    policies = Policies(fit="any", slot_order="any")
    state, _ = step(initial(SHAPE, policies), publish(1), Outcome("done", lease=LeaseView(0, 1, 256, 512, 256)))
    for rule, view in (("RNG-1", LeaseView(1, 1, 256, 512, 256)), ("SLOT-2", LeaseView(0, 2, 512, 768, 256))):
        with pytest.raises(Impossible) as impossible:
            step(state, publish(2), Outcome("done", lease=view))
        assert impossible.value.rule == rule


def test_an_unknown_acknowledgement_is_settled_by_a_retry() -> None:
    """A failed read that shows nothing: only a retry tells whether the lease had been entered."""
    state = initial(SHAPE)
    for earlier in (wrap(1), Deliver(1, 2, 0)):
        state, _ = step(state, earlier)
    state, _ = step(state, Faulty(Fetch(2, 3), 1), FAILED, observe(state))
    assert state.doubts
    refused = Outcome("refused", Reason.ALREADY_RELEASED, message="released")
    entered, answer = step(state, Fetch(2, 4), refused, observe(state))
    assert answer.reason is Reason.ALREADY_RELEASED
    assert entered.consumers.tables == ((1, 0),)
    unknown, answer = step(state, Fetch(2, 4), Outcome("done", digest=0), observe(state))
    assert answer.kind == "done"
    assert not unknown.doubts
