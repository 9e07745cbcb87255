"""Traces: what is written is read back, and nothing else is accepted."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from tests.model.walks import Drawer, pack, publish, shapes, wrap
from vmmref_models import Outcome, Reason, Shape, initial, step
from vmmref_models.operations import (
    Attempt,
    Cancel,
    CancelProxy,
    Construct,
    Crash,
    Deliver,
    Faulty,
    Fetch,
    LeaseView,
    Operation,
    Recycle,
    ReleaseAs,
    Revoke,
)
from vmmref_models.trace import OPERATIONS, Trace, from_json, operation_from_dict, outcome_from_dict, text, to_json

PACK = pack(0, 101, 64, element=4, groups=((1, 0), (2,)))
TRACE = Trace(
    Shape(2, 1, 512, issued=(1, 2)),
    (wrap(0, 3, "transposed"), Recycle(), Faulty(Cancel(0, True), 2), Faulty(Construct("valid"), 1)),
    (
        Outcome("done", lease=LeaseView(0, 2, 256, 512, 3)),
        Outcome("done", count=0),
        Outcome("failed", Reason.DRIVER_CALL_FAILED, message="no"),
        Outcome("done", leftovers=0),
    ),
    ("GEN-1",),
    {"seed": "3"},
)


def test_a_trace_comes_back_as_it_was() -> None:
    assert from_json(to_json(TRACE)) == TRACE


def test_every_walk_comes_back_as_it_was() -> None:
    rng, kinds = Random(1), set()
    for _ in range(60):
        shape, drawer = shapes(rng), Drawer(rng, faults=True)
        state, operations = initial(shape), []
        for _ in range(60):
            operation = drawer.draw(state)
            state, _ = step(state, operation)
            operations.append(operation)
            assert text(operation)
            assert "\n" not in text(operation)
        kinds |= {type(operation).__name__ for operation in operations}
        trace = Trace(shape, tuple(operations))
        assert from_json(to_json(trace)) == trace
    assert kinds == set(OPERATIONS)


def _changed(**changes: Any) -> str:
    document = json.loads(to_json(TRACE))
    document.update(changes)
    return json.dumps(document)


def _shape(**changes: Any) -> dict[str, Any]:
    return {**json.loads(to_json(TRACE))["shape"], **changes}


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ("", "not JSON"),
        ("[", "not JSON"),
        ("[" * 100_000, "JSON|deep"),
        ("[]", "expected an object"),
        ("{}", "format is None"),
        ("NaN", "NaN is not a number"),
        (_changed(format="other"), "format is 'other'"),
        (_changed(version=2), "version is 2, this program knows version 1"),
        (_changed(version=True), "version is True"),
        (_changed(extra=1), "unknown 'extra'"),
        (_changed(operations={}), "operations: expected an array"),
        (_changed(operations=[7]), r"operations\[0\]: expected an object"),
        (_changed(operations=[{"do": "Explode"}]), r"operations\[0\]: unknown operation 'Explode'"),
        (_changed(operations=[{"do": []}]), r"operations\[0\]: unknown operation"),
        (_changed(operations=[{"do": "Cancel", "lease": 1}]), r"operations\[0\]: wait missing"),
        (_changed(operations=[{"do": "Cancel", "lease": 1, "wait": 1}]), "wait: expected true or false, got 1"),
        (_changed(operations=[{"do": "Cancel", "lease": "1", "wait": True}]), "lease: expected a whole number"),
        (_changed(operations=[{"do": "Cancel", "lease": True, "wait": True}]), "lease: expected a whole number"),
        (_changed(operations=[{"do": "Cancel", "lease": -1, "wait": True}]), "outside 0"),
        (_changed(operations=[{"do": "Cancel", "lease": 2**80, "wait": True}]), "outside 0"),
        (_changed(operations=[{"do": "Recycle", "count": 3}]), "unknown 'count'"),
        (_changed(operations=[{"do": "Faulty", "operation": {"do": "Shutdown"}, "call": 1}]), "into Shutdown"),
        (_changed(operations=[{"do": "Faulty", "call": 1}]), "operation missing"),
        (_changed(outcomes=[{"kind": "done"}]), "4 operations but 1 outcomes"),
        (_changed(operations=[{"do": "Recycle"}], outcomes=[{"kind": "fine"}]), "kind is 'fine'"),
        (_changed(operations=[{"do": "Recycle"}], outcomes=[{"kind": "refused", "reason": "MOOD"}]), "unknown reason"),
        (_changed(rules=[1]), "rules: expected a text"),
        (_changed(about={"seed": 3}), "about.seed: expected a text"),
        (_changed(shape=_shape(slots=0)), "must be positive"),
        (_changed(shape=_shape(word_bytes=5)), "word_bytes is 5, expected 4 or 8"),
        (_changed(shape=_shape(issued=[1])), "issued must hold"),
        (_changed(shape=_shape(issued="12")), "issued: expected an array"),
        (_changed(shape=_shape(slots=2**40, issued=[])), "more than any pool has"),
    ],
)
def test_anything_else_is_refused_with_a_sentence(document: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        from_json(document)


def test_every_cut_of_a_trace_is_refused() -> None:
    whole = to_json(TRACE).rstrip()
    for length in range(len(whole)):
        with pytest.raises(ValueError, match="trace"):
            from_json(whole[:length])


def test_single_records() -> None:
    assert operation_from_dict({"do": "Deliver", "lease": 1, "proxy": 2, "rank": 0}) == Deliver(1, 2, 0)
    assert outcome_from_dict({"kind": "full", "reason": "POOL_FULL"}) == Outcome("full", Reason.POOL_FULL)


def test_groups_packs_and_their_places_come_back_as_they_were() -> None:
    """Fields at their default are left out, so that older programs read what is not new."""
    made = Outcome("done", lease=LeaseView(0, 1, 256, 512, 168), places=(0, 104))
    trace = Trace(Shape(1, 3, 512, apart=True), (PACK, ReleaseAs(3, ()), Faulty(PACK, 1)), (made, made, made))
    assert from_json(to_json(trace)) == trace
    document = json.loads(to_json(trace))
    assert document["operations"][0]["groups"] == [[1, 0], [2]]
    assert document["operations"][0]["payloads"][1] == {"dtype": "float32", "shape": [16], "seed": 0}
    assert "groups" not in json.loads(to_json(TRACE))["operations"][0]
    assert "part" not in json.loads(to_json(Trace(TRACE.shape, (Deliver(0, 1, 0),))))["operations"][0]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"groups": [1]}, "groups: expected an array"),
        ({"groups": [["0"]]}, "groups: expected a whole number"),
        ({"groups": [[-1]]}, "outside 0"),
        ({"payloads": [1]}, "payloads: expected an object"),
        ({"payloads": {}}, "payloads: expected an array"),
        ({"sizes": [1.5]}, "sizes: expected a whole number"),
        ({"digests": None}, "digests: expected an array"),
    ],
)
def test_other_packs_are_refused_with_a_sentence(changes: dict[str, Any], complaint: str) -> None:
    item = {**json.loads(to_json(Trace(TRACE.shape, (PACK,))))["operations"][0], **changes}
    with pytest.raises(ValueError, match=complaint):
        operation_from_dict(item)


@pytest.mark.parametrize(
    ("operation", "line"),
    [
        (publish(3, 512), "publish L3: 512 B (uint8 512)"),
        (wrap(3, 6, "transposed"), "wrap L3: 6 B (uint8 6, transposed)"),
        (Fetch(4, 7), "fetch P4 (reader 7)"),
        (Revoke(3, False), "revoke L3 without waiting"),
        (Faulty(Recycle(), 2), "recycle, driver call 2 fails"),
        (publish(3, 9, groups=((1, 0), (2,))), "publish L3: 9 B (uint8 9), groups 1+0 2"),
        (wrap(3, 9, borrowable=True), "wrap L3: 9 B (uint8 9), may be borrowed"),
        (PACK, "wrap L0 as a pack: 101 B (uint8 101); 64 B (float32 16), groups 1+0 2"),
        (Deliver(3, 4, 1, 2), "deliver L3, tensor 2 to rank 1 as P4"),
        (ReleaseAs(4, (1, 1)), "release P4 in the name of ranks [1, 1]"),
        (CancelProxy(3, 1), "cancel by a proxy of L3, tensor 1"),
        (Crash(1), "kill the process of rank 1"),
        (Attempt("ask-the-dead", 5), "beside the pool: ask-the-dead (seed 5)"),
    ],
)
def test_lines_for_people(operation: Operation, line: str) -> None:
    assert text(operation) == line
