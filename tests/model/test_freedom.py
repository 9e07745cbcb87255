"""The model follows a pool that uses every freedom, and nothing beyond."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.free_pool import FAILED, Walk
from tests.model.walks import publish, wrap
from vmmref_models import (
    EVERY_CAPABILITY,
    Impossible,
    Outcome,
    Policies,
    Reason,
    Shape,
    initial,
    observe,
    runnable,
    step,
)
from vmmref_models.operations import Advance, Cancel, Construct, Deliver, Faulty, Fetch, LeaseView, Operation, Recycle


@pytest.mark.parametrize(
    ("fit", "slot_order", "stepping"), [("any", "any", True), ("best", "fifo", False), ("any", "any", False)]
)
def test_the_model_follows_every_free_choice(fit: str, slot_order: str, stepping: bool) -> None:
    capabilities = EVERY_CAPABILITY if stepping else EVERY_CAPABILITY - {"stepping"}
    walk = Walk(Policies(fit=fit, slot_order=slot_order, capabilities=capabilities), seed=7, stepping=stepping)
    for _ in range(90):
        walk.episode(60)
    assert walk.answers["Faulty failed"] > 60
    assert walk.monitor.exercised["PUB-3"] > 5
    assert walk.monitor.exercised["CON-4"] > 5


SHAPE = Shape(slots=2, consumers=1, data_size=1024)


@pytest.mark.parametrize(
    ("rule", "operation", "done", "shown"),
    [
        ("PUB-3", publish(9), [], {"generations": (1, 0), "words": ((2, 0), (0, 0))}),
        ("GEN-1", publish(9), [], {"generations": (2, 0)}),
        ("GEN-1", publish(9), [], {"generations": (1, 1)}),
        ("GEN-1", publish(9), [], {"generations": (1, 0, 0)}),
        ("REC-1", Recycle(), [wrap(1)], {"leases": (), "retiring": (), "words": ((3, 0), (0, 0))}),
        ("REC-3", Recycle(), [wrap(1), Cancel(1, False), Advance("retire")], {"retiring": ()}),
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


def test_a_failed_read_that_was_entered_is_not_retried() -> None:
    """CON-4: its acknowledgement has run when the step ends."""
    state = initial(SHAPE)
    for earlier in (wrap(1), Deliver(1, 2, 0)):
        state, _ = step(state, earlier)
    state, answer = step(state, Faulty(Fetch(2, 3), 4), replace(FAILED, count=1), observe(state))
    assert answer == replace(FAILED, count=1)
    _, answer = step(state, Fetch(2, 4))
    assert answer.reason is Reason.ALREADY_RELEASED
    assert state.device.words[0] == (2, 1)
    assert runnable(state) == ()


def test_a_failed_read_that_was_not_entered_is_retried() -> None:
    state = initial(SHAPE)
    for earlier in (wrap(1), Deliver(1, 2, 0)):
        state, _ = step(state, earlier)
    shown = observe(state)
    for imports, known in ((None, None), ((0,), False), ((1,), True)):
        seen = replace(shown, imports=imports)
        failed, _ = step(state, Faulty(Fetch(2, 3), 1), replace(FAILED, count=0), seen)
        assert failed.consumers.imported == (known,)
        _, answer = step(failed, Fetch(2, 4))
        assert answer.kind == "done"
