"""The reference subject with a process for each rank: killed, replaced, and otherwise as with all of them together."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from vmmref.conformance import payloads
from vmmref.conformance.faulty import CATALOGUE
from vmmref.conformance.subject import Leftovers
from vmmref.conformance.subjects.apart import Apart
from vmmref.conformance.subjects.reference import ReferenceSession, make, make_as_on_hardware
from vmmref.simcuda import Simulator
from vmmref_models import Outcome, Shape
from vmmref_models import operations as op
from vmmref_models.operations import DONE, Payload, rank_stream
from vmmref_models.reasons import Reason

SHAPE = Shape(slots=2, consumers=2, data_size=1024, apart=True)
READ_PIECES = 2
"""Queued by a reading: the copy-out and the read of R."""


def wrap(lease: int) -> op.Wrap:
    """Publish a payload of its own."""
    payload = Payload("uint8", (40 + lease,), lease)
    return op.Wrap(lease, payload, payloads.nbytes(payload), payloads.expected_digest(payload))


@pytest.fixture
def session(simulator: Simulator) -> Iterator[ReferenceSession]:
    """A pool with two ranks apart, which leaves nothing behind."""
    opened = make().open(SHAPE)
    yield opened
    assert opened.close() == Leftovers({})


def done(session: ReferenceSession, *operations: op.Operation) -> list[Outcome]:
    """Do operations that must all be done; their outcomes."""
    outcomes = [session.apply(operation) for operation in operations]
    assert [outcome.kind for outcome in outcomes] == ["done"] * len(operations), outcomes
    return outcomes


def process_of(session: ReferenceSession, rank: int) -> int:
    """The number of the process that acts for a rank."""
    ranks = session._ranks
    assert isinstance(ranks, Apart), "the session's ranks are apart"
    return ranks._processes[rank].process_id


def test_streams_advance_piece_by_piece_in_their_own_process(session: ReferenceSession) -> None:
    done(session, wrap(0), op.Deliver(0, 0, 0), op.Deliver(0, 1, 1), op.Read(0, 0))
    for _ in range(READ_PIECES):
        done(session, op.Advance(rank_stream(0)))
    words = session.observe().words
    assert words is not None
    assert words[0] == (2, 0, 0)
    collected, _ = done(session, op.Collect(0), op.Advance(rank_stream(0)))
    assert collected.digest == wrap(0).digest
    words = session.observe().words
    assert words is not None
    assert words[0] == (2, 1, 0)


def test_imports_are_counted_by_process(session: ReferenceSession) -> None:
    assert session.observe().imports == (0, 0)
    done(session, wrap(0), op.Deliver(0, 0, 1), op.Fetch(0, 0))
    assert session.observe().imports == (0, 1)
    done(session, op.Import(0), op.DropImport(1))
    assert session.observe().imports == (1, 0)
    done(session, op.Crash(0))
    assert session.observe().imports == (0, 0)


@pytest.mark.rule("REAP-1")
def test_reap_1_a_new_process_joins_when_the_old_one_is_counted(session: ReferenceSession) -> None:
    """
    A rank has one process at a time; the next one joins when the pool has counted the last one's death.

    Given: a lease that rank 1's process has begun to read.
    When: it is killed; a new process wants to join before and after the pool has counted the death.
    Then: BAD_RANK before; after it the lease comes back by rank 0 alone, and a newer one waits for both.
    """
    done(session, wrap(0), op.Deliver(0, 0, 0), op.Deliver(0, 1, 1), op.Read(1, 0), op.Fetch(0, 1), op.Crash(1))
    assert session.apply(op.Join(1)).reason is Reason.BAD_RANK
    reaped, _, back = done(session, op.Reap(), op.Advance(rank_stream(0)), op.Recycle())
    assert (reaped.count, back.count) == (1, 1)
    done(session, op.Join(1), wrap(2), op.Deliver(2, 2, 0), op.Deliver(2, 3, 1), op.Fetch(2, 2))
    done(session, op.Advance(rank_stream(0)))
    assert session.apply(op.Recycle()).count == 0
    fetched, _, back = done(session, op.Fetch(3, 3), op.Advance(rank_stream(1)), op.Recycle())
    assert (fetched.digest, back.count) == (wrap(2).digest, 1)


@pytest.mark.rule("ACK-2")
def test_ack_2_a_new_process_knows_what_the_old_one_acknowledged(session: ReferenceSession) -> None:
    """
    The table of a rank's new process starts with the rank's words, so that no old copy lowers them.

    Given: a lease that rank 1's process has acknowledged before it was killed; a new process for the rank.
    When: it releases and reads late copies of the same lease.
    Then: the read is ALREADY_RELEASED, and the word stays.
    """
    done(session, wrap(0), op.Deliver(0, 0, 1), op.Fetch(0, 0), op.Advance(rank_stream(1)))
    done(session, op.Crash(1), op.Reap(), op.Join(1), op.Deliver(0, 1, 1), op.Release(1))
    assert session.apply(op.Fetch(1, 1)).reason is Reason.ALREADY_RELEASED
    done(session, op.Advance(rank_stream(1)))
    words = session.observe().words
    assert words is not None
    assert words[0] == (2, 0, 1)


def test_a_process_that_dies_by_itself_has_crashed(session: ReferenceSession) -> None:
    done(session, wrap(0), op.Deliver(0, 0, 1))
    os.kill(process_of(session, 1), signal.SIGKILL)
    outcome = session.apply(op.Fetch(0, 0))
    assert (outcome.kind, "rank 1" in outcome.message) == ("crashed", True)
    assert session.apply(op.Fetch(0, 1)).kind == "crashed"
    # What was queued on its streams is gone.
    assert session.apply(op.Advance(rank_stream(1))) == DONE


def test_a_driver_call_fails_in_the_rank_s_process(session: ReferenceSession) -> None:
    done(session, wrap(0), op.Deliver(0, 0, 0), op.Deliver(0, 1, 1))
    outcomes = []
    for call in range(1, 40):
        outcomes.append(session.apply(op.Faulty(op.Fetch(0, call), call)))
        if outcomes[-1].kind != "failed":
            break
    assert {outcome.reason for outcome in outcomes[:-1]} == {Reason.DRIVER_CALL_FAILED}
    # CON-4: the last failure came after the table had been entered.
    assert outcomes[-1].reason is Reason.ALREADY_RELEASED
    assert sum(outcome.count or 0 for outcome in outcomes) == 1
    fetched, _ = done(session, op.Fetch(1, 50), op.Advance(rank_stream(1)))
    assert fetched.digest == wrap(0).digest


def test_processes_are_kept_for_the_next_pool(simulator: Simulator) -> None:
    subject = make()
    first = subject.open(SHAPE)
    done(first, wrap(0), op.Deliver(0, 0, 0), op.Fetch(0, 0))
    used = {process_of(first, 0), process_of(first, 1)}
    assert first.close() == Leftovers({})
    second = subject.open(SHAPE)
    assert {process_of(second, 0), process_of(second, 1)} == used
    fetched = done(second, wrap(0), op.Deliver(0, 0, 0), op.Fetch(0, 0))[-1]
    assert (fetched.digest, fetched.cached) == (wrap(0).digest, False)
    assert second.close() == Leftovers({})


def test_streams_that_run_by_themselves(simulator: Simulator) -> None:
    session = make_as_on_hardware().open(SHAPE)
    try:
        fetched = done(session, wrap(0), op.Deliver(0, 0, 0), op.Deliver(0, 1, 1), op.Fetch(0, 0), op.Fetch(1, 1))[-1]
        assert fetched.digest == wrap(0).digest
        assert session.apply(op.Recycle()).count == 1
    finally:
        assert session.close() == Leftovers({})


def test_a_broken_part_is_broken_in_every_process(simulator: Simulator) -> None:
    """`never-judges` takes the bytes of a revoked lease for good ones, wherever its rank lives."""
    for name, reason in (("never-judges", None), ("fails-in-silence", Reason.STALE_LEASE)):
        session = CATALOGUE[name]().open(SHAPE)
        try:
            done(session, wrap(0), op.Deliver(0, 0, 1), op.Read(0, 0), op.Revoke(0, wait=True))
            assert session.apply(op.Collect(0)).reason is reason
        finally:
            session.close()
