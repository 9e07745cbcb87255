"""What the clients of a pool remember of packs, views and processes, how they end, and how such sequences shrink."""

from __future__ import annotations

from collections.abc import Sequence

from tests.machine.model_subject import make
from vmmref.conformance import payloads
from vmmref.conformance.failure import Failure
from vmmref.conformance.run import Episode, Rig, replay
from vmmref.conformance.shrink import cost, shrink
from vmmref.conformance.simpler import renumbered
from vmmref.conformance.tokens import Begun, Copy, Tokens
from vmmref_models import Operation, Outcome, Payload, Shape
from vmmref_models.operations import (
    DONE,
    Attempt,
    Borrow,
    Crash,
    Deliver,
    DropImport,
    Fetch,
    Join,
    Peek,
    Read,
    Reap,
    Recycle,
    Return,
    Revoke,
    Wrap,
    WrapPack,
)

SMALL = Payload("uint8", (8,), 1)


def wrapped(lease: int, groups: tuple[tuple[int, ...], ...] = (), borrowable: bool = False) -> Wrap:
    digest = payloads.expected_digest(SMALL)
    return Wrap(lease, SMALL, payloads.nbytes(SMALL), digest, groups, borrowable)


def packed(lease: int, tensors: Sequence[Payload], groups: tuple[tuple[int, ...], ...] = ()) -> WrapPack:
    sizes, digests = map(payloads.nbytes, tensors), map(payloads.expected_digest, tensors)
    return WrapPack(lease, tuple(tensors), tuple(sizes), tuple(digests), groups)


def noted(apart: bool, *operations: Operation) -> Tokens:
    tokens = Tokens(3, apart)
    for operation in operations:
        tokens.note(operation, DONE)
    return tokens


def test_only_the_speakers_of_a_lease_are_owed_a_proxy() -> None:
    tokens = noted(False, wrapped(1, ((2, 0), (1,))), packed(2, [SMALL, SMALL]))
    assert [(lease.owed, lease.parts) for lease in tokens.dispatched] == [([2, 1], 1), ([0, 1, 2], 2)]


def test_a_crash_takes_what_the_rank_held() -> None:
    begun = (wrapped(1), Deliver(1, 2, 0), Deliver(1, 3, 1), Read(2, 4), Borrow(3, 5))
    tokens = noted(True, *begun, Crash(1))
    assert (tokens.copies, tokens.readers, tokens.views) == ([Copy(2, 1, 0)], [Begun(4, 0)], [])
    assert noted(True, *begun, Crash(0)).readers == []


def test_a_dropped_import_gives_up_the_readings_of_its_process() -> None:
    begun = (wrapped(1), Deliver(1, 2, 0), Deliver(1, 3, 1), Read(2, 4), Read(3, 5))
    assert noted(False, *begun, DropImport(0)).readers == []
    assert noted(True, *begun, DropImport(0)).readers == [Begun(5, 1)]


def test_a_view_is_remembered_until_it_is_given_back() -> None:
    tokens = noted(False, wrapped(1, borrowable=True), Deliver(1, 2, 0), Borrow(2, 3), Peek(3))
    assert (tokens.views, tokens.fresh) == ([Begun(3, 0)], [])
    tokens.note(Return(3), Outcome("done"))
    assert tokens.views == []


def test_the_ending_gives_views_back_and_takes_the_lease_back() -> None:
    sequence: list[Operation] = [wrapped(1, borrowable=True), Deliver(1, 2, 0), Borrow(2, 3), Revoke(1, wait=True)]
    assert replay(Rig(make()), Shape(1, 2, 256), sequence) == []
    episode = Episode(Rig(make()), Shape(1, 2, 256))
    assert all(episode.do(operation) for operation in sequence)
    assert episode.drive_home()
    assert Return(3) in episode.operations
    assert episode.operations[-2:-1] == [Recycle()]


def test_the_ending_asks_nothing_of_the_dead() -> None:
    sequence: list[Operation] = [wrapped(1, ((1, 0), (2,))), Deliver(1, 2, 1), Crash(1)]
    episode = Episode(Rig(make()), Shape(1, 3, 256, apart=True))
    assert all(episode.do(operation) for operation in sequence)
    assert episode.drive_home()
    delivered = [operation.rank for operation in episode.operations if isinstance(operation, Deliver)]
    assert delivered == [1, 2]
    assert not any(isinstance(operation, Join) for operation in episode.operations)


def _shrunk(shape: Shape, operations: Sequence[Operation], breaks: type[Operation]) -> Failure:
    """Shrink a sequence that counts as broken as long as it has an operation of one kind that is done."""

    def again(shape: Shape, tried: Sequence[Operation]) -> Failure | None:
        done = [operation for operation in tried if isinstance(operation, breaks)]
        return Failure("GEN-1", shape, tuple(tried), "", "") if done else None

    failure = Failure("GEN-1", shape, tuple(operations), "", "")
    shortest = shrink(failure, again)
    assert cost(shortest.shape, shortest.operations) < cost(shape, operations)
    return shortest


def test_a_pack_shrinks_to_one_lease_of_plain_bytes() -> None:
    tensors = [Payload("float64", (2, 3), 5, "transposed"), Payload("int16", (3,), 6), SMALL]
    shortest = _shrunk(Shape(3, 3, 1024), [packed(7, tensors, ((0, 1), (2,)))], WrapPack)
    one = Payload("uint8", (1,), 1)
    assert shortest.operations == (packed(1, [one]),)
    assert shortest.shape == Shape(1, 1, 256)


def test_processes_groups_and_seeds_shrink_away() -> None:
    operations: list[Operation] = [
        wrapped(7, ((2, 1), (0,)), borrowable=True),
        Crash(2),
        Reap(),
        Join(2),
        Attempt("ask", 900),
    ]
    shortest = _shrunk(Shape(1, 3, 256, apart=True), operations, Wrap)
    assert not shortest.shape.apart
    assert shortest.operations == (Wrap(1, one := Payload("uint8", (1,), 1), 1, payloads.expected_digest(one)),)
    assert _shrunk(Shape(1, 3, 256), operations, Attempt).operations == (Attempt("ask", 0),)


def test_views_and_packs_are_renumbered() -> None:
    operations = (packed(9, [SMALL, SMALL]), Deliver(9, 8, 0, 1), Borrow(8, 7), Return(7), Fetch(8, 6))
    renamed = renumbered(operations)
    tensors = [Payload("uint8", (8,), 1), Payload("uint8", (8,), 2)]
    assert renamed == (packed(1, tensors), Deliver(1, 1, 0, 1), Borrow(1, 1), Return(1), Fetch(1, 1))
