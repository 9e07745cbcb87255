"""The subject for the published sglang pool: what that pool does wrong, shown directly, and what it does right."""

from __future__ import annotations

import importlib.metadata
import os
import random
from dataclasses import dataclass, field

import pytest

pytest.importorskip("torch", reason="torch is not installed: the sglang subject moves tensors")

from examples.subjects import sglang_boundary
from examples.subjects.sglang_pool import LIMIT, SglangSession, SglangSubject, make, outcome_of
from vmmref.conformance import payloads
from vmmref_models.observation import ALIGNMENT, Observation, Shape
from vmmref_models.operations import (
    DONE,
    FULL,
    Cancel,
    Construct,
    Deliver,
    Faulty,
    Fetch,
    LeaseView,
    Operation,
    Outcome,
    Payload,
    PublishUnusable,
    Recycle,
    Release,
    Revoke,
    Shutdown,
    Tamper,
    Wrap,
)
from vmmref_models.reasons import Reason

SMALL = Shape(slots=1, consumers=1, data_size=ALIGNMENT)


@pytest.fixture(scope="module")
def subject() -> SglangSubject:
    try:
        return make()
    except ValueError as error:
        pytest.skip(str(error))


def wrap(lease: int, *, dtype: str = "uint8", shape: tuple[int, ...] = (200,), layout: str = "contiguous") -> Wrap:
    """A publication whose bytes differ from lease to lease."""
    payload = Payload(dtype, shape, lease, layout)
    return Wrap(lease, payload, payloads.nbytes(payload), payloads.expected_digest(payload))


def run(subject: SglangSubject, shape: Shape, *operations: Operation) -> tuple[list[Outcome], Observation]:
    """The outcomes of a sequence on a fresh pool, and the pool afterwards."""
    session = subject.open(shape)
    try:
        return [session.apply(operation) for operation in operations], session.observe()
    finally:
        session.close()


# What the published pool does wrong


@pytest.mark.rule("GEN-3")
def test_gen_3_a_refusal_at_the_limit_loses_a_range_and_a_slot(subject: SglangSubject) -> None:
    """
    Given: a pool whose only slot has used its last generation.
    When: a tensor is published.
    Then: it is refused, and the range and the slot are in no list any more.
    """
    outcomes, after = run(subject, Shape(1, 1, 2 * ALIGNMENT, issued=(LIMIT,)), wrap(0), Recycle())
    assert (outcomes[0].kind, outcomes[0].reason) == ("refused", Reason.GENERATION_EXHAUSTED)
    assert after.free_ranges == ((2 * ALIGNMENT, 3 * ALIGNMENT),)
    assert (after.leases, after.free_slots, after.retired_slots) == ((), (), ())


@pytest.mark.rule("GEN-3")
def test_gen_3_one_slot_at_the_limit_refuses_while_another_is_free(subject: SglangSubject) -> None:
    """
    Given: two slots, the one that is next at its last generation.
    When: a tensor is published twice.
    Then: the first is refused although the other slot is free, the second is not.
    """
    outcomes, _ = run(subject, Shape(2, 1, 2 * ALIGNMENT, issued=(LIMIT, 0)), wrap(0), wrap(1))
    assert [outcome.reason for outcome in outcomes] == [Reason.GENERATION_EXHAUSTED, None]


@pytest.mark.rule("GEN-4")
@pytest.mark.rule("CON-3")
@pytest.mark.rule("CON-5")
def test_gen_4_a_second_copy_reads_the_bytes_of_a_newer_lease(subject: SglangSubject) -> None:
    """
    Given: two copies of one proxy in one rank; the first reads, the lease is recycled, its slot leased again.
    When: the second copy reconstructs.
    Then: it gets the newer lease's bytes and no exception.
    """
    newer = wrap(1)
    outcomes, after = run(
        subject, SMALL, wrap(0), Deliver(0, 0, 0), Deliver(0, 1, 0), Fetch(0, 0), Recycle(), newer, Fetch(1, 1)
    )
    assert outcomes[3].digest == wrap(0).digest
    assert (outcomes[-1].kind, outcomes[-1].digest) == ("done", newer.digest)
    assert after.words == ((2, 1),)


@pytest.mark.rule("ACK-2")
def test_ack_2_a_late_acknowledgement_lowers_the_word_and_the_lease_stays(subject: SglangSubject) -> None:
    """
    Given: a second copy of an older proxy, and a newer lease that its consumer has acknowledged.
    When: the second copy acknowledges.
    Then: the word falls back to the older generation and the newer lease is never recycled.
    """
    older = (wrap(0), Deliver(0, 0, 0), Deliver(0, 1, 0), Release(0), Recycle())
    outcomes, after = run(
        subject, SMALL, *older, wrap(1), Deliver(1, 2, 0), Fetch(2, 0), Release(1), Recycle(), wrap(2)
    )
    assert outcomes[-2].count == 0
    assert outcomes[-1] == FULL
    assert after.words == ((2, 1),)


@pytest.mark.rule("CON-3")
def test_con_3_a_reconstruction_after_an_acknowledgement_is_not_refused(subject: SglangSubject) -> None:
    """
    Given: a proxy that was released without being read.
    When: the same copy reconstructs.
    Then: it reads the pool, where it must be refused with ALREADY_RELEASED.
    """
    outcomes, _ = run(subject, SMALL, wrap(0), Deliver(0, 0, 0), Release(0), Fetch(0, 0))
    assert outcomes[-1] == Outcome("done", digest=wrap(0).digest)


@pytest.mark.rule("LIFE-2")
def test_life_2_an_allocation_after_shutdown_is_accepted(subject: SglangSubject) -> None:
    """
    Given: a pool that has been shut down.
    When: a tensor is published.
    Then: it is leased, where POOL_CLOSING is due; no pass will ever take it back.
    """
    outcomes, after = run(subject, SMALL, Shutdown(), wrap(0))
    assert outcomes[-1].lease == LeaseView(slot=0, generation=1, start=256, end=512, nbytes=200)
    assert after == Observation("closed")


@pytest.mark.rule("CON-1")
@pytest.mark.parametrize(
    ("shape", "layout"), [((), "contiguous"), ((1,), "transposed")], ids=["0-dim", "one element of a wider row"]
)
def test_con_1_some_float32_tensors_cannot_be_published(
    subject: SglangSubject, shape: tuple[int, ...], layout: str
) -> None:
    """
    Given: a float32 tensor without a dimension, or one that torch calls contiguous though its last stride is not 1.
    When: it is published.
    Then: torch's own error comes out, with the range and the slot back and a generation used up.
    """
    outcomes, after = run(subject, SMALL, wrap(0, dtype="float32", shape=shape, layout=layout))
    assert outcomes[0].kind == "crashed"
    assert "to view Float as Byte" in outcomes[0].message
    assert (after.free_ranges, after.leases, after.generations) == (((256, 512),), (), (1,))


@pytest.mark.rule("CAN-2")
def test_can_2_a_handle_with_an_altered_range_cancels_the_lease(subject: SglangSubject) -> None:
    """Of an altered handle only its words and generation are compared: an altered range is accepted."""
    outcomes, _ = run(subject, SMALL, wrap(0), Tamper(0, "generation"), Tamper(0, "pool"), Tamper(0, "offset"))
    assert [outcome.reason for outcome in outcomes[1:]] == [Reason.INACTIVE_LEASE, Reason.FOREIGN_POOL, None]


# What it does right: the subject invents no failure


@dataclass
class Client:
    """A client that keeps every environment obligation, and what it expects of the pool."""

    session: SglangSession
    shape: Shape
    chance: random.Random
    tokens: int = 0
    owed: dict[int, list[int]] = field(default_factory=dict)
    published: dict[int, Wrap] = field(default_factory=dict)

    def step(self) -> None:
        """One operation with its checks."""
        self.tokens += 1
        choice = self.chance.choice(("wrap", "wrap", "consume", "consume", "recycle", "cancel"))
        untouched = [lease for lease, ranks in self.owed.items() if len(ranks) == self.shape.consumers]
        waiting = [lease for lease, ranks in self.owed.items() if ranks]
        if choice == "wrap":
            self._wrap()
        elif choice == "consume" and waiting:
            self.consume(self.chance.choice(waiting))
        elif choice == "cancel" and untouched:
            lease = self.chance.choice(untouched)
            assert self.session.apply(Cancel(lease, wait=True)) == DONE
            del self.owed[lease]
        else:
            self.recycle()
        self._check_tiling()

    def _wrap(self) -> None:
        dtype = self.chance.choice(("uint8", "int16", "float32", "bool", "bfloat16", "complex64"))
        shape = self.chance.choice(((1,), (7,), (3, 5), (2, 3, 4), (64,)))
        # A row of one element out of a wider one is what the package cannot publish.
        layout = "contiguous" if shape == (1,) else self.chance.choice(payloads.LAYOUTS)
        operation = wrap(self.tokens, dtype=dtype, shape=shape, layout=layout)
        before = self.session.observe()
        outcome = self.session.apply(operation)
        assert outcome.kind in {"done", "full"}, outcome
        if outcome.kind == "full":
            assert self.session.observe() == before
            return
        self.owed[self.tokens] = list(range(self.shape.consumers))
        self.published[self.tokens] = operation

    def consume(self, lease: int) -> None:
        """One rank that has not taken part reads or releases a copy of its own."""
        rank = self.owed[lease].pop(self.chance.randrange(len(self.owed[lease])))
        assert self.session.apply(Deliver(lease, self.tokens, rank)) == DONE
        if self.chance.random() < 0.2:
            assert self.session.apply(Release(self.tokens)) == DONE
            return
        wanted = Outcome("done", digest=self.published[lease].digest)
        assert self.session.apply(Fetch(self.tokens, 0)) == wanted
        assert self.session.apply(Fetch(self.tokens, 1)) == Outcome("done", digest=wanted.digest, cached=True)

    def recycle(self) -> None:
        """One pass takes back exactly the leases that every rank has acknowledged."""
        finished = [lease for lease, ranks in self.owed.items() if not ranks]
        assert self.session.apply(Recycle()) == Outcome("done", count=len(finished))
        for lease in finished:
            del self.owed[lease]

    def _check_tiling(self) -> None:
        seen = self.session.observe()
        assert seen.free_ranges is not None
        assert seen.leases is not None
        tiles = sorted([*seen.free_ranges, *((lease.start, lease.end) for lease in seen.leases)])
        ends = [self.shape.data_start, *(end for _, end in tiles)]
        assert [start for start, _ in tiles] + [self.shape.data_end] == ends


@pytest.mark.parametrize("seed", range(8))
def test_a_well_behaved_client_sees_no_failure(subject: SglangSubject, seed: int) -> None:
    """
    Given: a client that uses each proxy once a rank and cancels only what it has not handed on.
    When: it does a few hundred operations and then finishes what is open.
    Then: every reader gets its bytes, ranges always tile the pool, and in the end everything is free.
    """
    chance = random.Random(seed)
    shape = Shape(chance.randint(1, 5), chance.randint(1, 3), ALIGNMENT * chance.randint(2, 9))
    session = subject.open(shape)
    try:
        client = Client(session, shape, chance)
        for _ in range(300):
            client.step()
        for lease in list(client.owed):
            while client.owed[lease]:
                client.tokens += 1
                client.consume(lease)
        client.recycle()
        after = session.observe()
        assert (after.free_ranges, after.leases) == (((shape.data_start, shape.data_end),), ())
        assert sorted(after.free_slots or ()) == list(range(shape.slots))
        assert len(client.published) > 20
    finally:
        session.close()


def test_a_failed_reconstruction_can_be_retried(subject: SglangSubject) -> None:
    """The first driver call of a reconstruction is its wait: when it fails nothing was entered or acknowledged yet."""
    attempt = (Faulty(Fetch(0, 0), 1), Recycle(), Fetch(0, 1), Recycle())
    outcomes, _ = run(subject, SMALL, wrap(0), Deliver(0, 0, 0), *attempt)
    assert (outcomes[2].kind, outcomes[2].reason) == ("failed", Reason.DRIVER_CALL_FAILED)
    assert [outcome.count for outcome in outcomes[3::2]] == [0, 1]
    assert outcomes[4] == Outcome("done", digest=wrap(0).digest)


def test_a_failed_publication_keeps_range_and_slot(subject: SglangSubject) -> None:
    """A refused ready store reaches the caller; range and slot come back, one generation is used up."""
    outcomes, after = run(subject, SMALL, Faulty(wrap(0), 1), wrap(1))
    assert (outcomes[0].kind, outcomes[0].reason) == ("failed", Reason.DRIVER_CALL_FAILED)
    assert outcomes[1].lease == LeaseView(slot=0, generation=2, start=256, end=512, nbytes=200)
    assert after.words == ((2, 0),)


def test_bad_arguments_and_tensors_are_refused_by_reason(subject: SglangSubject) -> None:
    """Every refusal of a constructor and of a publication has the reason that its message stands for."""
    expected: dict[Operation, Reason | None] = {
        Construct("valid"): None,
        Construct("memory_size"): Reason.BAD_ARGUMENT,
        Construct("consumer_count"): Reason.BAD_ARGUMENT,
        Construct("max_inflight_slices"): Reason.BAD_ARGUMENT,
        Construct("recycle_interval"): Reason.BAD_ARGUMENT,
        Construct("below-granule"): Reason.BAD_ARGUMENT,
        Construct("control-only"): Reason.POOL_TOO_SMALL,
        Construct("backing-dtype"): Reason.UNUSABLE_BACKING,
        Construct("backing-size"): Reason.UNUSABLE_BACKING,
        Construct("backing-strided"): Reason.UNUSABLE_BACKING,
        PublishUnusable("empty"): Reason.UNUSABLE_TENSOR,
        PublishUnusable("wrong-device"): Reason.UNUSABLE_TENSOR,
    }
    outcomes, _ = run(subject, SMALL, *expected)
    assert [outcome.reason for outcome in outcomes] == list(expected.values())
    assert all(outcome.message for outcome in outcomes if outcome.reason)


def test_what_the_pool_does_not_have_is_not_supported(subject: SglangSubject) -> None:
    """An operation outside the description is answered, not raised; the description names none of them."""
    outcomes, _ = run(subject, SMALL, wrap(0), Revoke(0, wait=True))
    assert outcomes[1].reason is Reason.NOT_SUPPORTED
    assert "Revoke" not in subject.describe().operations


@pytest.mark.parametrize(
    ("shape", "values"),
    [(Shape(1, 1, ALIGNMENT, word_bytes=8), "not 8"), (Shape(1, 1, ALIGNMENT, generation_limit=5), "not 5")],
    ids=["words of 8 bytes", "another limit"],
)
def test_a_shape_that_the_package_cannot_have_is_refused(subject: SglangSubject, shape: Shape, values: str) -> None:
    """The refusal is one sentence with both numbers."""
    with pytest.raises(ValueError, match=values):
        subject.open(shape)


def test_sessions_leave_nothing_behind(subject: SglangSubject) -> None:
    """Descriptors and mappings of the pools and of their imports are gone after `close`."""

    def held() -> tuple[int, int]:
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), sum("memfd:pool" in line for line in maps)

    before = held()
    for _ in range(20):
        run(subject, SMALL, wrap(0), Deliver(0, 0, 0), Fetch(0, 0), Construct("valid"), Construct("control-only"))
    assert held() == before


# What goes wrong before a pool is made, and what its errors mean


def test_another_device_is_refused() -> None:
    """The subject has no GPU path, and says so before it looks for the package."""
    with pytest.raises(ValueError, match='its device is "sim", not "cuda:0"'):
        make("cuda:0")


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without sglang the factory says so and how little is needed."""

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ValueError, match="sglang is not installed in this interpreter"):
        sglang_boundary.load.__wrapped__()


def test_another_version_is_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that was not tested is named; whether it can be used is then seen by trying."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9.9")
    monkeypatch.setattr(sglang_boundary, "_leave_out_parents", _not_importable)
    with (
        pytest.warns(UserWarning, match=r"sglang 9\.9\.9 is installed; this subject was tested with 0\.5\.23"),
        pytest.raises(ValueError, match=r"sglang 9\.9\.9 cannot be imported by itself: its files are missing"),
    ):
        sglang_boundary.load.__wrapped__()


def _not_importable(parallel: object) -> None:
    raise ImportError("its files are missing")


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (RuntimeError("CUDA IPC pool slot generation exhausted"), "refused", Reason.GENERATION_EXHAUSTED),
        (RuntimeError("CUDA IPC consumer rank 4 is outside [0, 4)"), "refused", Reason.BAD_RANK),
        (RuntimeError("cuStreamWriteValue32(mm CUDA IPC): 801"), "failed", Reason.DRIVER_CALL_FAILED),
        (KeyError("pool slot generation exhausted"), "crashed", None),
        (RuntimeError("self.dim() cannot be 0"), "crashed", None),
        (sglang_boundary.StreamWouldBlock("a stream waits"), "crashed", None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_are_told_apart_by_type_and_message(error: Exception, kind: str, reason: Reason | None) -> None:
    """A message alone does not make a refusal: its type must be the one that the package raises with it."""
    outcome = outcome_of(error)
    assert (outcome.kind, outcome.reason) == (kind, reason)
