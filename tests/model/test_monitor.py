"""The monitor counts what applied, and the comparison with the model names the likeliest rule."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.model.walks import Drawer, digest, pack, publish, shapes, wrap
from vmmref_models import (
    Impossible,
    LeaseView,
    Monitor,
    Observation,
    Outcome,
    Policies,
    Reason,
    Shape,
    State,
    Step,
    difference,
    initial,
    observe,
    step,
)
from vmmref_models.operations import (
    DONE,
    FULL,
    Advance,
    Attempt,
    Borrow,
    Cancel,
    CancelProxy,
    Claim,
    Collect,
    Confirm,
    Construct,
    DropImport,
    Expire,
    Fetch,
    Import,
    Join,
    Operation,
    Peek,
    Reap,
    Recycle,
    Release,
    Shutdown,
)

SHAPE = Shape(slots=2, consumers=1, data_size=1024)


def _step(state: State, operation: Operation) -> tuple[Step, State]:
    after, outcome = step(state, operation)
    return Step(observe(state), observe(after), operation, outcome, state), after


def test_only_what_applied_is_counted() -> None:
    monitor = Monitor(Policies())
    first, state = _step(initial(SHAPE), publish(1))
    assert monitor.judge(first) == []
    assert monitor.exercised["GEN-1"] == monitor.exercised["RNG-1"] == 1
    assert monitor.exercised["ACK-2"] == monitor.exercised["CON-1"] == monitor.exercised["RNG-4"] == 0
    second, _ = _step(state, Advance("publish"))
    assert monitor.judge(second) == []
    assert monitor.exercised["RNG-1"] == 1  # Nothing of the bookkeeping is new.


def test_a_new_pool_is_judged_even_if_it_shows_what_the_last_one_showed() -> None:
    monitor = Monitor(Policies())
    state = initial(SHAPE)
    wrong = replace(observe(state), free_slots=(0,))
    step_without_change = Step(wrong, wrong, Advance("publish"), DONE, state)
    for _ in range(2):
        monitor.start()
        assert "SLOT-1" in [rule.id for rule, _ in monitor.judge(step_without_change)]


def test_broken_rules_come_in_the_order_of_the_specification() -> None:
    made, _ = _step(initial(SHAPE), publish(1))
    wrong = LeaseView(1, 2, 0, 100, 7)
    shown = replace(made.after, leases=(wrong,), free_ranges=(), generations=(0, 2), generations_left=9)
    broken = Monitor(Policies()).judge(replace(made, after=shown, outcome=Outcome("done", lease=wrong)))
    names = [rule.id for rule, _ in broken]
    assert names == sorted(names, key=list(Monitor(Policies()).exercised).index)
    assert {"CTL-1", "RNG-1", "RNG-2", "RNG-3", "SLOT-1", "SLOT-3", "GEN-1", "GEN-6"} <= set(names)


BASE = observe(initial(SHAPE))


@pytest.mark.parametrize(
    ("rule", "operation", "expected", "got"),
    [
        ("RNG-3", publish(1), {}, {"free_ranges": ((512, 1280),)}),
        ("RNG-4", Recycle(), {}, {"free_ranges": ((512, 1280),)}),
        ("SLOT-3", publish(1), {}, {"free_slots": (1, 0)}),
        ("GEN-1", publish(1), {}, {"generations": (1, 0)}),
        ("GEN-3", Recycle(), {}, {"retired_slots": (1,)}),
        ("GEN-6", Recycle(), {}, {"generations_left": 1}),
        ("REC-3", Claim(1), {}, {"retiring": (1,)}),
        ("LIFE-2", Shutdown(), {}, {"life": "closed"}),
        ("PUB-1", Advance("publish"), {}, {"words": ((2, 0), (0, 0))}),
        ("PUB-2", wrap(1), {"words": ((2, 0), (0, 0))}, {}),
        ("REC-2", Cancel(1, True), {"words": ((3, 0), (0, 0))}, {}),
        ("ACK-1", Advance("rank:0"), {}, {"words": ((0, 1), (0, 0))}),
        ("ACK-2", Advance("rank:0"), {"words": ((0, 1), (0, 0))}, {}),
        ("CTL-2", Recycle(), {}, {"words": ((0, 0),)}),
        ("REAP-2", Expire(), {"set_aside": (0,)}, {}),
        ("CON-6", Recycle(), {"retiring": (0,)}, {"retiring": (0,), "set_aside": (0,)}),
        ("HND-4", Import(0), {"imports": (1,)}, {}),
    ],
)
def test_a_difference_in_what_is_shown(
    rule: str, operation: Operation, expected: dict[str, Any], got: dict[str, Any]
) -> None:
    found = difference(replace(BASE, **expected), replace(BASE, **got), operation, DONE, DONE)
    assert found is not None
    assert found.rule == rule
    assert found.expected != found.got


STALE = Outcome("refused", Reason.STALE_LEASE)
CLOSING = Outcome("refused", Reason.POOL_CLOSING)


@pytest.mark.parametrize(
    ("rule", "operation", "expected", "got"),
    [
        ("RNG-5", publish(1), FULL, Outcome("crashed")),
        ("GEN-3", publish(1), Outcome("refused", Reason.GENERATION_EXHAUSTED), FULL),
        ("CON-5", Collect(1), STALE, Outcome("done", digest=1)),
        ("CON-3", Fetch(1, 2), Outcome("refused", Reason.ALREADY_RELEASED), STALE),
        ("CON-1", Fetch(1, 2), Outcome("done", digest=digest(1)), Outcome("done", digest=digest(2))),
        ("CON-2", Fetch(1, 2), Outcome("done", cached=True), Outcome("done")),
        ("LIFE-2", Cancel(1, True), CLOSING, DONE),
        ("LIV-1", Recycle(), Outcome("done", count=1), Outcome("done", count=0)),
        ("REC-5", Recycle(), Outcome("done", count=1), Outcome("done", count=2)),
        ("LIV-2", Advance("rank:0"), DONE, Outcome("failed", Reason.TIMED_OUT)),
        ("HND-1", Construct("valid"), Outcome("done", leftovers=0), Outcome("done", leftovers=2)),
        ("LIFE-5", Recycle(), Outcome("done", count=0), Outcome("failed", Reason.TIMED_OUT)),
        ("ACK-4", Release(1), Outcome("refused", Reason.BAD_RANK), DONE),
        ("REAP-1", Join(0), Outcome("refused", Reason.BAD_RANK), DONE),
        ("REAP-1", Reap(), Outcome("done", count=1), Outcome("done", count=0)),
        ("CON-6", Peek(1), Outcome("done", digest=1), Outcome("done", digest=2)),
        ("CON-6", Borrow(1, 2), Outcome("refused", Reason.NOT_BORROWABLE), DONE),
        ("PACK-2", pack(1, 8), Outcome("done", places=(0,)), Outcome("done", places=(8,))),
        ("PACK-3", Confirm(1), Outcome("refused", Reason.NOT_RECONSTRUCTED), DONE),
        ("PACK-4", CancelProxy(1), DONE, Outcome("crashed")),
        ("HND-4", DropImport(0), Outcome("done", count=1), Outcome("done", count=0)),
        ("BRK-2", Attempt("ask-among-bad-clients"), DONE, Outcome("crashed")),
        ("TRN-4", Attempt("request-when-full"), Outcome("done", leftovers=0), Outcome("done", leftovers=1)),
        (
            "GEN-1",
            publish(1),
            Outcome("done", lease=LeaseView(0, 1, 256, 512, 256)),
            Outcome("done", lease=LeaseView(0, 2, 256, 512, 256)),
        ),
    ],
)
def test_a_difference_in_the_answer(rule: str, operation: Operation, expected: Outcome, got: Outcome) -> None:
    found = difference(BASE, BASE, operation, expected, got)
    assert found is not None
    assert found.rule == rule


GARBAGE: dict[str, list[Any]] = {
    "life": ["open", "closed", "failed", "asleep"],
    "free_ranges": [None, (), ((0, 0),), ((5, 2), (1, 2**70))],
    "leases": [None, (), (LeaseView(9, 0, -1, 7, 0),), (LeaseView(0, 1, 256, 512, 256),) * 3],
    "retiring": [None, (), (7, -1)],
    "free_slots": [None, (), (0, 0, 9)],
    "retired_slots": [None, (), (3,)],
    "generations": [None, (), (1,), (0, 2**80, -5)],
    "words": [None, (), ((),), ((1, 2, 3, 4),) * 9],
    "generations_left": [None, -1],
    "set_aside": [None, (), (7, -1)],
    "imports": [None, (), (5,), (0, 1, 2, 3)],
}
ANSWERS = [
    *(Outcome(kind, reason) for kind in ("done", "full", "refused", "failed", "crashed") for reason in (None, *Reason)),
    Outcome("done", lease=LeaseView(9, 0, -1, 7, 0), digest=1, count=-3, cached=True, leftovers=4),
    Outcome("done", lease=LeaseView(0, 1, 256, 512, 1), places=()),
    Outcome("done", lease=LeaseView(0, 1, 256, 512, 1), places=(0, -5, 9, 9, 9)),
]


def test_nonsense_is_judged_without_an_accident() -> None:
    """Whatever a broken pool shows or answers, the monitor and the model say so in their own way."""
    rng, monitor, told = Random(3), Monitor(Policies()), 0
    for _ in range(60):
        state, drawer = initial(shapes(rng)), Drawer(rng, faults=True)
        for _ in range(40):
            operation = drawer.draw(state)
            after, right = step(state, operation)
            before, shown = (_spoilt(observe(seen), rng) for seen in (state, after))
            answer = rng.choice(ANSWERS) if rng.random() < 0.5 else right
            told += bool(monitor.judge(Step(before, shown, operation, answer, state)))
            try:
                expected, outcome = step(state, operation, answer, shown)
                told += difference(observe(expected), shown, operation, outcome, answer) is not None
            except Impossible:
                told += 1
            state = after
    assert told > 2000


def _spoilt(observation: Observation, rng: Random) -> Observation:
    names = [name for name in GARBAGE if rng.random() < 0.3]
    return replace(observation, **{name: rng.choice(GARBAGE[name]) for name in names})


def test_what_a_pool_cannot_show_makes_no_difference() -> None:
    hidden = replace(BASE, free_ranges=None, words=None, generations_left=None)
    assert difference(BASE, hidden, Recycle(), DONE, DONE) is None
    assert difference(hidden, BASE, Recycle(), DONE, DONE) is None
    shuffled = replace(BASE, free_slots=(1, 0))
    assert difference(BASE, shuffled, Recycle(), DONE, DONE, Policies(slot_order="any")) is None
    assert difference(BASE, BASE, Recycle(), DONE, replace(DONE, message="other words")) is None
