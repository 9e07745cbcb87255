"""Each predicate can fail: for every rule at least one step, made by hand, that breaks it and nothing less.

A case is a history of operations, one more operation, and what a broken pool answers or shows instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from tests.model.walks import digest, pack, publish, wrap
from vmmref_models import (
    RULES,
    Kind,
    Monitor,
    Observation,
    Outcome,
    Policies,
    Reason,
    Run,
    Shape,
    State,
    Step,
    initial,
    observe,
    step,
)
from vmmref_models.attempts import ATTEMPTS
from vmmref_models.operations import (
    DONE,
    Advance,
    Attempt,
    Borrow,
    Cancel,
    CancelProxy,
    Claim,
    Collect,
    Confirm,
    Construct,
    Crash,
    Deliver,
    Dispatch,
    DropImport,
    Expire,
    Faulty,
    Fetch,
    Import,
    Join,
    LeaseView,
    Look,
    Operation,
    Peek,
    PublishUnusable,
    Read,
    Reap,
    Reclaim,
    Recycle,
    Release,
    ReleaseAs,
    ReleaseLease,
    Return,
    Revoke,
    Shutdown,
    Tamper,
    WrapPack,
)

SHAPE = Shape(slots=2, consumers=2, data_size=1024, generation_limit=3)
ONE_SLOT = replace(SHAPE, slots=1)
FAILED = Outcome("failed", Reason.DRIVER_CALL_FAILED, message="cuMemcpyAsync failed")
CRASHED = Outcome("crashed", message="ZeroDivisionError")

Change = Callable[[Observation], Observation]


def show(**fields: object) -> Change:
    """What a pool shows instead of the right thing."""
    return lambda observation: replace(observation, **fields)  # type: ignore[arg-type]


def put(slot: int, column: int, value: int) -> Change:
    """A control word that is not what it should be."""

    def change(observation: Observation) -> Observation:
        assert observation.words is not None
        rows = [list(row) for row in observation.words]
        rows[slot][column] = value
        return replace(observation, words=tuple(map(tuple, rows)))

    return change


@dataclass(frozen=True)
class Case:
    """`rule` is broken when, after `past`, `operation` is answered `answer` or shows `shown` (None: the right one)."""

    rule: str
    past: Sequence[Operation]
    operation: Operation
    answer: Outcome | None = None
    shown: Change | None = None
    shape: Shape = SHAPE
    fails: bool = False
    """The pool had failed before."""


READ = (wrap(1), Deliver(1, 10, 0), Read(10, 20))
ACKED = (wrap(1), Deliver(1, 10, 0), Fetch(10, 20), Advance("rank:0"))
DONE_WITH = (*ACKED, Deliver(1, 11, 1), Release(11), Advance("rank:1"))
REISSUED = (*DONE_WITH, Recycle(), wrap(2))
OLD = LeaseView(0, 1, 256, 512, 256)
NEW = LeaseView(0, 2, 256, 512, 256)
EXHAUSTED = replace(ONE_SLOT, issued=(3,))
STALE = (wrap(1), Deliver(1, 10, 0), Revoke(1, True))
APART = replace(SHAPE, apart=True)
PACKED = (pack(1, 101, 64, element=4), Deliver(1, 10, 0), Deliver(1, 11, 0, 1))
PLACED = LeaseView(0, 1, 256, 512, 168)
LED = (wrap(1, groups=((1, 0),)), Deliver(1, 10, 0), Deliver(1, 11, 1))
LENT = (wrap(1, borrowable=True), Deliver(1, 10, 0), Deliver(1, 11, 0))
VIEWED = (*LENT, Borrow(10, 30))
HALF_DEAD = (wrap(1), Deliver(1, 11, 1), Release(11), Advance("rank:1"), Crash(0))
LATE = (wrap(1), Deliver(1, 10, 0), Expire())

CASES = [
    Case("CTL-1", [], publish(1), shown=show(leases=(LeaseView(0, 1, 0, 256, 256),))),
    Case("CTL-2", [publish(1), Advance("publish")], Advance("publish"), shown=put(1, 0, 2)),
    Case("CTL-2", DONE_WITH[:-1], Advance("rank:1"), shown=lambda o: put(0, 2, 0)(put(1, 2, 1)(o))),
    Case("CTL-2", [publish(1), Advance("publish")], Advance("publish"), shown=show(words=((2, 0, 0),))),
    Case("CTL-3", [*DONE_WITH, Recycle()], wrap(2), shown=put(0, 1, 0), shape=ONE_SLOT),
    Case("CTL-4", [wrap(1)], Cancel(1, True), shown=put(0, 1, 1)),
    Case("CTL-4", ACKED[:-1], Advance("rank:0"), shown=put(0, 2, 1)),
    Case("CTL-4", [wrap(1)], Deliver(1, 10, 0), shown=put(0, 0, 3)),
    Case("CTL-5", [], Construct("control-only"), Outcome("done", leftovers=0)),
    Case("CTL-6", STALE, Recycle(), shown=put(0, 0, 2)),
    Case("RNG-1", [], publish(1), shown=show(free_ranges=((256, 1280),))),
    Case("RNG-1", [], publish(1), shown=show(free_ranges=((768, 1280),))),
    Case("RNG-1", [], publish(1), shown=show(free_ranges=((512, 1024),))),
    Case("RNG-2", [], publish(1, 100), shown=show(leases=(LeaseView(0, 1, 256, 356, 100),))),
    Case("RNG-2", [], publish(1, 100), shown=show(leases=(LeaseView(0, 1, 256, 768, 100),))),
    Case("RNG-2", [], publish(1, 100), Outcome("done", lease=LeaseView(0, 1, 256, 512, 99))),
    Case("RNG-3", [], publish(1), Outcome("done", lease=LeaseView(0, 1, 512, 768, 256))),
    Case(
        "RNG-3",
        [publish(1, 512), publish(2), Cancel(1, True)],
        publish(3),
        Outcome("done", lease=LeaseView(0, 2, 256, 512, 256)),
    ),
    Case("RNG-4", [publish(1)], Cancel(1, True), shown=show(free_ranges=((256, 512), (512, 1280)))),
    Case("RNG-5", [publish(1, 1024)], publish(2), Outcome("refused", Reason.BAD_ARGUMENT, message="no")),
    Case("RNG-5", [publish(1, 1024)], publish(2), shown=show(free_slots=())),
    Case("RNG-5", [], publish(1), Outcome("full", Reason.POOL_FULL)),
    Case("SLOT-1", [publish(1)], Cancel(1, True), shown=show(free_slots=(1,))),
    Case("SLOT-1", [], publish(1), shown=show(free_slots=(0, 1))),
    Case("SLOT-2", [publish(1)], publish(2), shown=show(leases=(OLD, LeaseView(0, 1, 512, 768, 256)))),
    Case("SLOT-2", [publish(1), Advance("publish")], Advance("publish"), shown=put(0, 0, 4)),
    Case("SLOT-3", [], publish(1), Outcome("done", lease=LeaseView(1, 1, 256, 512, 256))),
    Case("SLOT-3", DONE_WITH, Recycle(), shown=show(free_slots=(0, 1))),
    Case("GEN-1", [], publish(1), Outcome("done", lease=LeaseView(0, 2, 256, 512, 256))),
    Case("GEN-1", [], publish(1), shown=show(generations=(0, 0))),
    Case("GEN-1", [wrap(1)], Recycle(), shown=show(generations=(2, 0))),
    Case("GEN-2", [wrap(1), Cancel(1, True)], wrap(2), Outcome("done", lease=OLD), shape=ONE_SLOT),
    Case("GEN-2", [], publish(1), Outcome("done", lease=LeaseView(0, 0, 256, 512, 256))),
    Case("GEN-3", [], publish(1), shown=show(free_ranges=((512, 1280),)), shape=EXHAUSTED),
    Case("GEN-3", [], publish(1), Outcome("done", lease=LeaseView(0, 4, 256, 512, 256)), shape=EXHAUSTED),
    Case("GEN-3", [], publish(1), Outcome("refused", Reason.GENERATION_EXHAUSTED, message="no")),
    Case(
        "GEN-3",
        [publish(1)],
        Cancel(1, True),
        shown=show(free_slots=(0,), retired_slots=()),
        shape=replace(ONE_SLOT, generation_limit=1),
    ),
    Case("GEN-4", REISSUED, Cancel(1, True), DONE, shape=ONE_SLOT),
    Case("GEN-4", REISSUED, ReleaseLease(1), shown=show(leases=()), shape=ONE_SLOT),
    Case("GEN-4", [*REISSUED, Deliver(1, 30, 1)], Release(30), shown=put(0, 2, 2), shape=ONE_SLOT),
    Case(
        "GEN-4",
        [*STALE, wrap(2), Read(10, 20)],
        Collect(20),
        Outcome("done", digest=digest(2)),
        shape=ONE_SLOT,
    ),
    Case("GEN-5", [wrap(1)], Tamper(1, "pool"), DONE),
    Case("GEN-5", [wrap(1)], Tamper(1, "pool"), shown=show(leases=())),
    Case("GEN-6", [], publish(1), shown=show(generations_left=3)),
    Case("PUB-1", [publish(1)], Advance("publish"), shown=put(0, 0, 2)),
    Case("PUB-1", [publish(1)], Look(2), shown=put(0, 0, 2)),
    Case("PUB-2", [publish(1)], Dispatch(1), shown=put(0, 0, 0)),
    Case("PUB-2", [], wrap(1), shown=put(0, 0, 0)),
    Case("PUB-3", [], Faulty(publish(1), 1), FAILED, show(free_ranges=((512, 1280),))),
    Case("PUB-3", [], Faulty(publish(1), 1), FAILED, show(leases=(OLD,))),
    Case("PUB-3", [], Faulty(publish(1), 1), FAILED, lambda o: put(0, 0, 2)(show(generations=(1, 0))(o))),
    Case("PUB-3", [], Recycle(), shown=put(0, 0, 2)),
    Case("PUB-4", [], PublishUnusable("empty"), DONE),
    Case("PUB-4", [], PublishUnusable("empty"), shown=show(free_slots=(1,))),
    Case("PUB-4", [], wrap(1, 256, "transposed"), Outcome("refused", Reason.UNUSABLE_TENSOR, message="no")),
    Case("PUB-5", [], Construct("backing-dtype"), Outcome("done", leftovers=0)),
    Case("CON-1", READ, Collect(20), Outcome("done", digest=digest(9))),
    Case("CON-1", READ[:-1], Fetch(10, 20), CRASHED),
    Case("CON-1", [], wrap(1), CRASHED),
    Case("CON-2", ACKED, Fetch(10, 21), Outcome("done", digest=digest(1))),
    Case("CON-2", ACKED, Fetch(10, 21), Outcome("done", cached=True, digest=digest(9))),
    Case("CON-2", ACKED, Read(10, 21), shown=put(0, 1, 2)),
    Case("CON-2", READ[:-1], Fetch(10, 21), Outcome("done", cached=True, digest=digest(1))),
    Case("CON-3", [*ACKED, Deliver(1, 12, 0)], Fetch(12, 21), Outcome("done", digest=digest(1))),
    Case("CON-3", [*READ[:-1], Release(10)], Read(10, 21), DONE),
    Case("CON-4", READ[:-1], Faulty(Fetch(10, 20), 1), FAILED, show(leases=())),
    Case("CON-4", READ[:-1], Faulty(Fetch(10, 20), 1), FAILED, put(0, 2, 1)),
    Case("CON-4", READ[:-1], Faulty(Fetch(10, 20), 3), replace(FAILED, count=1)),
    Case("REC-2", [wrap(1)], Faulty(Cancel(1, True), 2), FAILED, show(leases=())),
    Case("CON-5", STALE, Fetch(10, 20), Outcome("done", digest=digest(1))),
    Case("CON-5", STALE, Fetch(10, 20), shown=put(0, 1, 1)),
    Case("CON-5", READ, Collect(20), Outcome("refused", Reason.STALE_LEASE, message="stale")),
    Case("ACK-1", READ, Advance("rank:0"), shown=put(0, 1, 1)),
    Case("ACK-1", READ[:-1], Read(10, 20), shown=put(0, 1, 1)),
    Case("ACK-2", [*REISSUED, Deliver(2, 30, 0), Release(30)], Advance("rank:0"), shown=put(0, 1, 0), shape=ONE_SLOT),
    Case("ACK-3", [*ACKED, Deliver(1, 12, 0), Release(12)], Recycle(), Outcome("done", count=1), show(leases=())),
    Case("ACK-3", [*ACKED, Deliver(1, 12, 0)], Release(12), shown=put(0, 2, 1)),
    Case("ACK-4", ACKED[:-1], Advance("rank:0"), shown=put(0, 2, 1)),
    Case("ACK-4", [*ACKED[:-1], Deliver(1, 12, 1)], Release(12), shown=put(0, 1, 1)),
    Case("ACK-5", REISSUED, Recycle(), Outcome("done", count=1), show(leases=()), ONE_SLOT),
    Case("REC-1", ACKED, Recycle(), Outcome("done", count=1), show(leases=())),
    Case("REC-1", [*ACKED, Look(3)], Claim(3), Outcome("done", count=1), show(retiring=(0,))),
    Case("REC-2", DONE_WITH, Recycle(), shown=put(0, 0, 2)),
    Case("REC-3", [*DONE_WITH, Look(3), Claim(3)], Cancel(1, True), DONE),
    Case(
        "REC-3",
        [*DONE_WITH, Look(3), Recycle(), wrap(2)],
        Claim(3),
        Outcome("done", count=1),
        show(retiring=(0,)),
        ONE_SLOT,
    ),
    Case("REC-4", [publish(1)], publish(2), shown=put(0, 0, 2)),
    Case("REC-4", ACKED[:-1], Look(3), shown=put(0, 1, 1)),
    Case("REC-5", DONE_WITH, Recycle(), Outcome("done", count=2)),
    Case("REC-5", DONE_WITH, Recycle(), shown=show(free_ranges=((0, 1280),))),
    Case("REC-6", [wrap(1), Cancel(1, True)], ReleaseLease(1), DONE),
    Case("REC-6", [wrap(1)], ReleaseLease(1), Outcome("refused", Reason.INACTIVE_LEASE, message="no")),
    Case("CAN-1", [publish(1)], Cancel(1, True), Outcome("refused", Reason.INACTIVE_LEASE, message="no")),
    Case("CAN-1", [publish(1)], Cancel(1, True), shown=show(free_ranges=((512, 1280),))),
    Case("CAN-1", [publish(1)], Cancel(1, True), shown=show(leases=(OLD,))),
    Case("CAN-1", [publish(1)], Cancel(1, True), shown=show(free_slots=(1,))),
    Case("CAN-1", [publish(1)], Cancel(1, False), shown=show(retiring=())),
    Case("CAN-2", [wrap(1), Cancel(1, True)], Cancel(1, True), DONE),
    Case("CAN-2", [wrap(1)], Tamper(1, "offset"), DONE),
    Case("CAN-2", [wrap(1)], Tamper(1, "generation"), shown=show(leases=())),
    Case("CAN-3", [wrap(1)], Revoke(1, True), shown=put(0, 0, 2)),
    Case("CAN-3", [wrap(1)], Revoke(1, True), shown=show(leases=(OLD,))),
    Case("LIFE-1", [], Construct("memory_size"), Outcome("done", leftovers=0)),
    Case("LIFE-1", [], Construct("recycle_interval"), Outcome("refused", Reason.POOL_TOO_SMALL, message="no")),
    Case("LIFE-2", [Shutdown()], publish(1), Outcome("done", lease=OLD)),
    Case("LIFE-2", [wrap(1), Shutdown()], Cancel(1, True), Outcome("done")),
    Case("LIFE-2", [wrap(1)], Shutdown(), shown=show(leases=(OLD,))),
    Case("LIFE-2", [], Shutdown(), shown=show(life="open")),
    Case("LIFE-2", [Shutdown()], Shutdown(), Outcome("refused", Reason.POOL_CLOSING, message="no")),
    Case("LIFE-2", [], Recycle(), Outcome("refused", Reason.POOL_CLOSING, message="no")),
    Case("LIFE-3", [], publish(1), Outcome("done", lease=OLD), fails=True),
    Case("LIFE-3", [wrap(1)], Recycle(), Outcome("refused", Reason.POOL_FAILED, message="no")),
    Case("LIFE-3", [], Faulty(publish(1), 1), Outcome("failed", Reason.POOL_FAILED, message="no")),
    Case("LIFE-4", [], Faulty(Construct("valid"), 2), replace(FAILED, leftovers=1)),
    Case("LIFE-4", [], Construct("memory_size"), Outcome("refused", Reason.BAD_ARGUMENT, leftovers=2, message="no")),
    Case("LIFE-5", [wrap(1)], Recycle(), Outcome("failed", Reason.TIMED_OUT, message="stream 2")),
    Case("ERR-1", [Look(3), Shutdown()], Reclaim(True), shown=show(generations=(1, 0))),
    Case("ERR-1", [*STALE, Read(10, 20)], Collect(20), shown=put(0, 2, 1)),
    Case("ERR-2", [], Recycle(), CRASHED),
    Case("ERR-2", [], PublishUnusable("empty"), Outcome("refused", message="no reason")),
    Case("ERR-2", [], PublishUnusable("empty"), Outcome("refused", Reason.UNUSABLE_TENSOR)),
]

CASES += [
    Case("ACK-4", LED, Fetch(10, 20), Outcome("done", digest=digest(1))),
    Case("ACK-4", LED, Release(10), DONE),
    Case("ACK-4", LED, Confirm(10), Outcome("refused", Reason.ALREADY_RELEASED, message="no")),
    Case("ACK-4", LED, Release(11), Outcome("refused", Reason.BAD_RANK, message="no")),
    Case("ACK-4", LED, ReleaseAs(11, (1,)), DONE),
    Case("ACK-4", LED, ReleaseAs(11, ()), shown=put(0, 2, 1)),
    Case("REC-1", LED, Recycle(), Outcome("done", count=1), show(leases=())),
    Case("ACK-5", [*REISSUED, Look(9)], Claim(9), Outcome("done", count=1), show(retiring=(0,)), ONE_SLOT),
    Case("PACK-1", [], PACKED[0], Outcome("done", lease=PLACED, places=(0,))),
    Case("PACK-1", [], PACKED[0], shown=show(leases=(PLACED, PLACED))),
    Case("PACK-1", [publish(1, 1024)], pack(2, 8), shown=show(leases=())),
    Case("PACK-1", [], Faulty(pack(1, 8, 8), 3), FAILED, show(leases=(OLD,))),
    Case("PACK-2", [], PACKED[0], Outcome("done", lease=PLACED, places=(0, 101))),
    Case("PACK-2", [], PACKED[0], Outcome("done", lease=PLACED, places=(0, 100))),
    Case("PACK-2", [], PACKED[0], Outcome("done", lease=PLACED, places=(0, 108))),
    Case("PACK-3", PACKED, Confirm(11), DONE),
    Case("PACK-3", [*PACKED, Fetch(10, 20)], Confirm(11), Outcome("refused", Reason.NOT_RECONSTRUCTED, message="no")),
    Case("PACK-3", [*PACKED, Fetch(10, 20)], Fetch(11, 21), Outcome("done", digest=digest(1001))),
    Case("PACK-3", [*PACKED, Release(10)], Fetch(11, 21), Outcome("done", digest=digest(1001))),
    Case("PACK-3", [*PACKED, Release(10)], Release(11), shown=put(0, 2, 1)),
    Case("PACK-4", [PACKED[0], CancelProxy(1)], CancelProxy(1, 1), Outcome("refused", Reason.INACTIVE_LEASE)),
    Case("PACK-4", [PACKED[0], CancelProxy(1), wrap(2)], CancelProxy(1, 1), shown=show(leases=()), shape=ONE_SLOT),
    Case("PACK-4", [PACKED[0]], CancelProxy(1), shown=show(leases=(PLACED,))),
    Case("PACK-4", [PACKED[0], wrap(2)], CancelProxy(1), shown=show(leases=())),
    Case("CON-1", PACKED, Fetch(11, 20), Outcome("done", digest=digest(1))),
    Case("CON-6", READ[:-1], Borrow(10, 30), DONE),
    Case("CON-6", LENT, Borrow(10, 30), Outcome("refused", Reason.STALE_LEASE, message="no")),
    Case("CON-6", [*LENT, Release(11)], Borrow(10, 30), DONE),
    Case("CON-6", [*LENT, Revoke(1, True)], Borrow(10, 30), DONE),
    Case("CON-6", VIEWED, Fetch(11, 20), Outcome("done", digest=digest(1))),
    Case("CON-6", VIEWED, Release(11), shown=put(0, 1, 1)),
    Case("CON-6", VIEWED, Peek(30), Outcome("done", digest=digest(9))),
    Case("CON-6", VIEWED, Return(30), Outcome("refused", Reason.STALE_LEASE, message="no")),
    Case("CON-6", VIEWED, DropImport(0), Outcome("done", count=1)),
    Case("CON-6", [Import(0)], DropImport(0), Outcome("refused", Reason.STILL_BORROWED, message="no")),
    Case("CON-6", VIEWED, Revoke(1, True), shown=show(leases=(), retiring=())),
    Case("CON-6", VIEWED, CancelProxy(1), shown=show(set_aside=())),
    Case("CON-6", [*VIEWED, Revoke(1, True)], Recycle(), Outcome("done", count=1), show(leases=())),
    Case("CON-6", LENT, Faulty(Cancel(1, True), 3), FAILED, show(leases=())),
    Case("REAP-1", [Crash(0)], Reap(), Outcome("done", count=0), shape=APART),
    Case("REAP-1", [wrap(1), Crash(0)], Reap(), shown=put(0, 1, 1), shape=APART),
    Case("REAP-1", [wrap(1)], Crash(0), shown=show(leases=()), shape=APART),
    Case("REAP-1", [Crash(0)], Join(0), DONE, shape=APART),
    Case("REAP-1", [Crash(0), Reap()], Join(0), Outcome("refused", Reason.BAD_RANK, message="no"), shape=APART),
    Case("REAP-1", HALF_DEAD, Recycle(), Outcome("done", count=0), show(leases=(OLD,)), APART),
    Case("REAP-1", HALF_DEAD, Recycle(), shown=put(0, 1, 1), shape=APART),
    Case("REAP-1", [*HALF_DEAD, Look(3)], Claim(3), Outcome("done", count=1), show(retiring=(0,)), APART),
    Case("REAP-2", LATE[:-1], Expire(), shown=show(set_aside=())),
    Case("REAP-2", LATE, wrap(2), shown=show(set_aside=(0, 1))),
    Case("REAP-2", LATE, Recycle(), Outcome("done", count=1), show(leases=(), set_aside=())),
    Case("REAP-2", LATE, Fetch(10, 20), shown=put(0, 0, 3)),
    Case("REAP-2", LATE[:-1], Expire(), Outcome("refused", Reason.TIMED_OUT, message="no")),
    Case("REAP-3", [*READ[:-1], Shutdown()], Fetch(10, 20), Outcome("refused", Reason.STALE_LEASE, message="no")),
    Case("REAP-3", READ[:-1], Fetch(10, 20), Outcome("refused", Reason.PRODUCER_GONE, message="no")),
    Case("REAP-3", [Shutdown()], Import(0), DONE),
    Case("HND-4", [], Import(0), shown=show(imports=(2,))),
    Case("HND-4", [], Import(0), shown=show(imports=(0,))),
    Case("HND-4", [], Import(0), shown=show(imports=(1, 1)), shape=APART),
    Case("HND-4", [Import(0)], DropImport(0), Outcome("done", count=0)),
    Case("HND-4", [Import(0)], DropImport(0), shown=show(imports=(1,))),
    Case("HND-4", [Import(0)], Crash(0), shown=show(imports=(1, 0)), shape=APART),
    Case("HND-4", [*READ, Shutdown()], Construct("valid"), shown=show(imports=(0,))),
    Case("TRN-2", [], Faulty(Attempt("request"), 3), replace(FAILED, leftovers=2)),
    Case("TRN-2", [], Faulty(Attempt("request"), 3), Outcome("failed", Reason.POOL_FAILED, message="no")),
    Case("TRN-2", [wrap(1)], Attempt("request"), shown=show(leases=())),
]
for what, (rule, due, _) in ATTEMPTS.items():
    CASES.append(Case(rule, [], Attempt(what), Outcome("refused" if due.kind == "done" else "done", message="no")))
    CASES.append(Case(rule, [], Attempt(what), replace(due, leftovers=1, message="no")))

RUNS = [
    ("HND-1", Run(observe(initial(SHAPE)), initial(SHAPE), True, leftovers={"descriptors": 1})),
    ("LIV-1", Run(replace(observe(initial(SHAPE)), leases=(OLD,)), initial(SHAPE), True)),
    ("LIV-1", Run(replace(observe(initial(SHAPE)), free_ranges=((256, 512),)), initial(SHAPE), True)),
    ("LIV-2", Run(observe(initial(SHAPE)), initial(SHAPE), False, stuck=("rank:0 does not proceed",))),
    ("LIV-2", Run(replace(observe(initial(SHAPE)), retiring=(0,)), initial(SHAPE), True)),
]


def after(shape: Shape, operations: Sequence[Operation]) -> State:
    """The model's state after these operations on a new pool."""
    state = initial(shape)
    for operation in operations:
        state, _ = step(state, operation)
    return state


@pytest.mark.parametrize("case", CASES, ids=[f"{case.rule}-{number}" for number, case in enumerate(CASES)])
def test_the_rule_is_broken(case: Case) -> None:
    past = after(case.shape, case.past)
    before = observe(past)
    if case.fails:
        past, before = replace(past, failed=True), replace(before, life="failed")
    right_state, right = step(past, case.operation)
    shown = before if case.fails or isinstance(case.operation, Faulty) else observe(right_state)
    answer = case.answer or right
    made_up = Step(before, case.shown(shown) if case.shown else shown, case.operation, answer, past)
    broken = Monitor(Policies()).judge(made_up)
    assert case.rule in [rule.id for rule, _ in broken], broken
    assert all(verdict.expected and verdict.got for _, verdict in broken)


@pytest.mark.parametrize("case", [case for case in CASES if not case.fails and not isinstance(case.operation, Faulty)])
def test_the_same_step_done_right_breaks_nothing(case: Case) -> None:
    past = after(case.shape, case.past)
    right_state, right = step(past, case.operation)
    assert Monitor(Policies()).judge(Step(observe(past), observe(right_state), case.operation, right, past)) == []


@pytest.mark.parametrize(("rule", "run"), RUNS)
def test_the_whole_run_rule_is_broken(rule: str, run: Run) -> None:
    assert rule in [found.id for found, _ in Monitor(Policies()).finish(run)]


def test_every_rule_that_can_be_judged_can_be_broken() -> None:
    judged = {name for name, rule in RULES.items() if rule.predicate or rule.run_predicate}
    assert judged == set(RULES)
    assert {case.rule for case in CASES} | {rule for rule, _ in RUNS} == judged


def test_rules_that_a_pool_cannot_be_judged_by_are_left_out() -> None:
    foreign = Policies(protocol="boolean-ack", capabilities=frozenset({"words"}))
    rules = {rule.id for rule in Monitor(foreign).rules}
    assert "CTL-3" in rules
    assert not rules & {"CTL-4", "CTL-6", "PUB-2", "REC-2", "RNG-1", "SLOT-1", "LIFE-4", "HND-1"}
    assert {rule.id for rule in Monitor(Policies(), ["GEN-1"]).rules} == {"GEN-1"}


def test_kinds_and_sentences() -> None:
    assert RULES["RNG-1"].kind is Kind.ALWAYS
    assert RULES["LIV-1"].kind is Kind.WHOLE_RUN
    assert RULES["GEN-1"].sentence.startswith("The first lease of a slot has generation 1;")
    assert RULES["PACK-3"].requires == (WrapPack,)
