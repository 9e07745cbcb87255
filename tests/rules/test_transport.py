"""TRN: the tensors of one request, published whole or not at all."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import threading
from collections import UserDict, deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import torch

from tests.rules.toy import UNKNOWN_ERROR, Make, Toy, bytes_of
from vmmref import FeatureTransport
from vmmref.driver import calls, streams
from vmmref.errors import (
    AlreadyReleased,
    ArgumentError,
    DriverError,
    FieldError,
    MissingProcessor,
    PoolFailed,
    StaleLease,
    TensorError,
)
from vmmref.packed import PackedTensorProxy
from vmmref.proxy import TensorProxy
from vmmref.simcuda import Simulator
from vmmref.transport import holds_tensors
from vmmref_models.reasons import Reason

WAIT_SECONDS = 30.0


def transport_of(pool: Toy) -> FeatureTransport:
    return FeatureTransport(pool.pool, processor="a processor")


def request_of(*sizes: int) -> dict[str, Any]:
    """A request with tensors of these sizes, a to z, and two fields without a tensor."""
    tensors = {chr(ord("a") + number): bytes_of(number + 1, size) for number, size in enumerate(sizes)}
    return {"modality": "image", **tensors, "precomputed_embeddings": None}


def same(fields: dict[str, Any], others: dict[str, Any]) -> bool:
    """Whether every field holds the very same object, in the same order."""
    return list(fields) == list(others) and all(fields[name] is others[name] for name in others)


def equal(fields: dict[str, Any], others: dict[str, Any]) -> bool:
    """Whether every field holds an equal value of the same kind."""

    def pair(one: Any, other: Any) -> bool:
        if isinstance(other, torch.Tensor):
            return isinstance(one, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
        return bool(one == other)

    return list(fields) == list(others) and all(pair(fields[name], others[name]) for name in others)


def sent(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields as another process gets them."""
    copied: dict[str, Any] = pickle.loads(pickle.dumps(fields))
    return copied


def consume(pool: Toy, fields: dict[str, Any], expected: dict[str, Any], leases: int) -> None:
    """Every rank gets the expected fields, and one pass then takes all leases back."""
    for rank in range(pool.consumers):
        assert equal(FeatureTransport.receive(sent(fields), "sim", pool.consumers, rank), expected)
    pool.drain()
    assert pool.pool.recycle() == leases
    pool.check_home()


# A processor


@pytest.mark.rule("TRN-1")
def test_trn_1_no_processor_is_refused(toy: Make) -> None:
    """
    A transport needs a processor that knows the fields of a request.

    Given: a pool.
    When: a transport is made without a processor, and with one.
    Then: the first is refused at once with BAD_ARGUMENT and has taken nothing; the second keeps the processor.
    """
    pool = toy()
    before = pool.state()
    message = r"^A CUDA VMM-enabled model must provide a multimodal processor.*\[TRN-1\]$"
    with pytest.raises(MissingProcessor, match=message) as refusal:
        FeatureTransport(pool.pool)
    assert (refusal.value.reason, refusal.value.rule) == (Reason.BAD_ARGUMENT, "TRN-1")
    assert isinstance(refusal.value, ValueError)
    assert isinstance(refusal.value, RuntimeError)
    assert pool.state() == before
    assert transport_of(pool).processor == "a processor"


# Whole or not at all


@pytest.mark.rule("TRN-2")
@pytest.mark.parametrize(
    ("single", "leases"), [((), 1), (("b",), 2), (("a", "b", "c"), 3), (("a", "modality"), 2)], ids=str
)
def test_trn_2_a_request_is_published_whole(toy: Make, single: tuple[str, ...], leases: int) -> None:
    """
    The tensors of a request share one lease, unless a lease of its own is asked for.

    Given: a request with three tensors and two fields without, for two ranks.
    When: it is published, some of its fields singly, and received.
    Then: every tensor is a proxy of its kind, every rank gets equal fields, and all leases come back in one pass.
    """
    pool = toy(slots=3, consumers=2)
    transport, fields = transport_of(pool), request_of(100, 200, 300)
    tensors = dict(fields)
    published = transport.publish(fields, single=single)
    alone = {name for name in "abc" if name in single or leases == 3}
    assert {name: type(fields[name]) for name in "abc"} == {
        name: TensorProxy if name in alone else PackedTensorProxy for name in "abc"
    }
    assert (len(set(published.leases)), pool.pool.active_lease_count) == (leases, leases)
    assert transport.stats() == (1, 3, 0, 0, 0)
    consume(pool, fields, tensors, leases)


@pytest.mark.rule("TRN-2")
@pytest.mark.parametrize("single", [(), ("a", "b", "c")], ids=["packed", "single"])
def test_trn_2_third_of_three_fails(toy: Make, simulator: Simulator, single: tuple[str, ...]) -> None:
    """
    A request that fails at its third tensor costs nothing and can be sent again as it is.

    Given: 256, 512 and 256 bytes, and an error when the third copy is queued.
    When: the request is published; then the same fields again.
    Then: the error is the third tensor's, the fields hold their tensors, all bytes and slots are back; the second try
    works, and a slot that is used again has generation 2.
    """
    pool = toy(slots=4, consumers=2)
    transport, fields = transport_of(pool), request_of(256, 512, 256)
    tensors = dict(fields)
    simulator.fail_call("cuMemcpyDtoDAsync", 3, UNKNOWN_ERROR)
    with pytest.raises(DriverError) as failure:
        transport.publish(fields, single=single)
    assert (failure.value.call, getattr(failure.value, "__notes__", [])) == ("cuMemcpyDtoDAsync", [])
    assert same(fields, tensors)
    assert transport.stats() == (0, 0, 0, 0, 0)
    pool.drain()
    assert pool.pool.recycle() == 0
    pool.check_home()
    used = pool.pool.stats().generations
    published = transport.publish(fields, single=single)
    assert [lease.generation for lease in published.leases] == [used[lease.slot] + 1 for lease in published.leases]
    consume(pool, fields, tensors, len(published.leases))


@pytest.mark.rule("TRN-2")
def test_trn_2_whatever_call_fails(toy: Make, simulator: Simulator) -> None:
    """
    No driver call's failure leaves half a request.

    Given: a request of two packed tensors and a single one, and each driver call of its publication in turn.
    When: that call fails.
    Then: its error is reported, the fields hold their tensors and no lease is left; the next try works.
    """
    for number in itertools.count(1):
        pool = toy(slots=2)
        transport, fields = transport_of(pool), request_of(100, 200, 300)
        tensors = dict(fields)
        simulator.fail_any(number, UNKNOWN_ERROR)
        told = None
        try:
            transport.publish(fields, single=["b"])
        except DriverError as failure:
            told = failure.result
        complete = bool(simulator.armed())
        simulator.clear_faults()
        assert told == (None if complete else UNKNOWN_ERROR), number
        if complete:
            break
        assert same(fields, tensors), number
        if pool.pool.failure is None:
            pool.drain()
            pool.pool.recycle()
            pool.check_home()
            assert transport.stats() == (0, 0, 0, 0, 0)
            transport.publish(fields)
            consume(pool, fields, tensors, 1)
        else:
            # LIFE-3: the pool does not know what the device still does, and refuses the next request whole.
            with pytest.raises(PoolFailed):
                transport.publish(fields)
            assert same(fields, tensors), number
        pool.close()
    consume(pool, fields, tensors, 2)
    assert number > 8


@pytest.mark.rule("TRN-2")
def test_trn_2_a_rollback_that_fails_is_tried_again(toy: Make, simulator: Simulator) -> None:
    """
    A failed clean-up hides neither the first error nor the leases that it could not cancel.

    Given: three single tensors; the third copy fails, and so does the retire store of the first lease's rollback.
    When: the request is published; roll_back is called while the store still fails, then again.
    Then: the copy's error with the store's as its note; one lease stays until the last call, which takes it back.
    """
    pool = toy(slots=3)
    transport, fields = transport_of(pool), request_of(256, 256, 256)
    tensors = dict(fields)
    simulator.fail_call("cuMemcpyDtoDAsync", 3, UNKNOWN_ERROR)
    # Two ready stores come before it.
    simulator.fail_call("cuStreamWriteValue32", 3, UNKNOWN_ERROR)
    with pytest.raises(DriverError) as failure:
        transport.publish(fields, single=fields)
    assert failure.value.call == "cuMemcpyDtoDAsync"
    (note,) = failure.value.__notes__
    assert "rolling the request back failed too: DriverError: cuStreamWriteValue32 failed" in note
    assert same(fields, tensors)
    assert (transport.stats().unfinished, pool.pool.active_lease_count) == (1, 1)
    simulator.fail_call("cuStreamWriteValue32", 1, UNKNOWN_ERROR)
    with pytest.raises(DriverError, match="cuStreamWriteValue32"):
        transport.roll_back()
    assert (transport.stats().unfinished, pool.pool.active_lease_count) == (1, 1)
    transport.roll_back()
    assert transport.stats().unfinished == 0
    pool.check_home()


@pytest.mark.rule("TRN-2")
def test_trn_2_the_next_publication_finishes_a_rollback(
    toy: Make, simulator: Simulator, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A lease whose rollback failed is not lost for an engine that only ever publishes.

    Given: one slot, held by a cancelled request whose retire store failed.
    When: a request is published while the store still fails, and once more.
    Then: a host copy and a warning; then the slot is used again under its next generation.
    """
    pool = toy()
    transport, first, second, third = transport_of(pool), request_of(256), request_of(256), request_of(256)
    published = transport.publish(first)
    simulator.fail_call("cuStreamWriteValue32", 1, UNKNOWN_ERROR)
    with pytest.raises(DriverError):
        transport.cancel(published)
    assert published.leases == pool.pool.stats().leases
    simulator.fail_call("cuStreamWriteValue32", 1, UNKNOWN_ERROR)
    transport.publish(second)
    assert isinstance(second["a"], torch.Tensor)
    assert "an earlier rollback is still unfinished" in caplog.text
    transport.publish(third)
    assert third["a"].lease.generation == 2
    transport.cancel(published)
    consume(pool, third, request_of(256), 1)


class Reluctant(UserDict[str, Any]):
    """Fields of which one takes a proxy and then says that it does not, and does not take its tensor back at once."""

    refusals = 2

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "b" and self.refusals and isinstance(value, torch.Tensor) and "b" in self:
            self.refusals -= 1
            raise OSError("not taken back")
        super().__setitem__(name, value)
        if name == "b" and not isinstance(value, torch.Tensor):
            raise KeyError("not taken")


@pytest.mark.rule("TRN-2")
def test_trn_2_a_field_that_cannot_be_set(toy: Make) -> None:
    """
    An assignment that fails undoes those before it, and what cannot be undone yet stays noted.

    Given: fields of which the second raises at its proxy, and twice when its tensor is put back.
    When: they are published; roll_back is called, twice.
    Then: the first error is reported, the other fields are right and no lease is left; the last call mends the field.
    """
    pool = toy()
    transport, tensors = transport_of(pool), request_of(100, 200, 300)
    fields = Reluctant(tensors)
    with pytest.raises(KeyError, match="not taken") as failure:
        transport.publish(fields)
    assert failure.value.__notes__ == ["rolling the request back failed too: OSError: not taken back"]
    assert [fields[name] is tensors[name] for name in "abc"] == [True, False, True]
    pool.check_home()
    with pytest.raises(OSError, match="not taken back"):
        transport.roll_back()
    transport.roll_back()
    assert same(dict(fields), tensors)
    assert transport.stats() == (0, 0, 0, 0, 0)


@pytest.mark.rule("TRN-2")
def test_trn_2_cancelling_a_published_request(toy: Make) -> None:
    """
    A request that was published and not sent is taken back whole, once.

    Given: a published request whose second field its owner has set since, and a copy of the fields.
    When: it is cancelled, a newer request is published in its slots, and it is cancelled again.
    Then: the other fields hold their tensors; a late reader of the copy is refused; the newer request is untouched.
    """
    pool = toy(slots=2)
    transport, fields = transport_of(pool), request_of(100, 200, 300)
    tensors = dict(fields)
    published = transport.publish(fields, single=["c"])
    late = sent(fields)
    fields["b"] = "set since"
    transport.cancel(published)
    assert same(fields, {**tensors, "b": "set since"})
    pool.check_home()
    newer = dict(tensors)
    transport.publish(newer, single=["c"])
    transport.cancel(published)
    with pytest.raises(StaleLease):
        FeatureTransport.receive(late, "sim")
    consume(pool, newer, tensors, 2)


@pytest.mark.rule("TRN-2")
def test_trn_2_leases_that_have_ended_need_no_cancelling(toy: Make) -> None:
    """
    Cancelling means that no lease is left, not that this call has ended them all.

    Given: two published requests of two leases each; one lease was revoked.
    When: the first request is cancelled, the pool is shut down, and the second one is cancelled.
    Then: neither fails, all fields hold their tensors, and nothing is left to try again.
    """
    pool = toy(slots=4)
    transport, requests = transport_of(pool), [request_of(100, 200), request_of(100, 200)]
    tensors = [dict(fields) for fields in requests]
    first, second = [transport.publish(fields, single=["a", "b"]) for fields in requests]
    pool.pool.revoke(first.leases[0])
    transport.cancel(first)
    assert pool.pool.stats().leases == second.leases
    pool.pool.shutdown()
    transport.cancel(second)
    assert all(same(fields, due) for fields, due in zip(requests, tensors, strict=True))
    assert transport.stats().unfinished == 0


@pytest.mark.rule("TRN-2")
def test_trn_2_requests_that_cannot_be_published(toy: Make) -> None:
    """
    What is wrong with a request is said before anything is taken.

    Given: a pool.
    When: fields that hold a proxy, that are no mapping, a name that is no field, or an empty tensor are published.
    Then: refused, naming what is wrong; the fields and the pool are as they were.
    """
    pool = toy(slots=3)
    transport, fields = transport_of(pool), request_of(10, 20)
    published = transport.publish(fields)
    before, proxies = pool.state(), dict(fields)
    refused: list[tuple[Any, Any, str]] = [
        (fields, (), "field 'a' holds a proxy"),
        ([bytes_of(1, 1)], (), "must be a mutable mapping, got list"),
        (request_of(1), ["z"], r"single must name fields of the request, got \['z'\]"),
        (request_of(1), "a", r"single must name fields of the request, got \['a'\]"),
    ]
    for wrong, single, message in refused:
        with pytest.raises(ArgumentError, match=message) as refusal:
            transport.publish(wrong, single=single)
        assert refusal.value.reason is Reason.BAD_ARGUMENT
    assert same(fields, proxies)
    for single in ((), ("a", "b", "c")):
        unusable = request_of(1, 2, 0)
        tensors = dict(unusable)
        with pytest.raises(TensorError, match="empty"):
            transport.publish(unusable, single=single)
        assert same(unusable, tensors)
    assert pool.state()[0][:2] == before[0][:2]
    transport.cancel(published)


# Containers


@pytest.mark.rule("TRN-3")
@pytest.mark.parametrize(
    "wrap",
    [
        lambda tensor: [tensor],
        lambda tensor: (1, tensor),
        lambda tensor: {"image": tensor},
        lambda tensor: UserDict(image=tensor),
        lambda tensor: deque([tensor]),
        lambda tensor: {tensor},
        lambda tensor: [1, [2, (3, {"deep": [tensor]})]],
    ],
    ids=["list", "tuple", "dict", "mapping", "deque", "set", "nested"],
)
def test_trn_3_a_container_of_tensors_is_refused(toy: Make, wrap: Callable[[torch.Tensor], Any]) -> None:
    """
    Tensors in a container do not slip through to be pickled by value.

    Given: a request whose first field is a tensor and whose second is a container with a tensor in it.
    When: it is published.
    Then: a TypeError that says "single tensor" and names the field; nothing was taken and no field was changed.
    """
    pool = toy()
    fields = {**request_of(10), "several": wrap(bytes_of(1, 1))}
    values, before = dict(fields), pool.state()
    with pytest.raises(FieldError, match=r"single tensor: field 'several' holds a \w+ of tensors") as refusal:
        transport_of(pool).publish(fields)
    assert isinstance(refusal.value, TypeError)
    assert (refusal.value.reason, refusal.value.rule) == (Reason.BAD_ARGUMENT, "TRN-3")
    assert same(fields, values)
    assert pool.state() == before


@pytest.mark.rule("TRN-3")
def test_trn_3_other_containers_stay_as_they_are(toy: Make) -> None:
    """
    A container without a tensor is a value like any other.

    Given: token numbers, a mapping of sizes, and a list that holds itself.
    When: they are published beside a tensor.
    Then: they stay the very same objects.
    """
    itself: list[Any] = [1]
    itself.append(itself)
    others: dict[str, Any] = {"tokens": [1, 2, 3], "sizes": {"image": (3, 4)}, "itself": itself}
    pool = toy()
    fields = {**request_of(10), **others}
    transport_of(pool).publish(fields)
    assert all(fields[name] is value for name, value in others.items())
    assert not holds_tensors(others)
    FeatureTransport.abort(fields)
    pool.drain()
    assert pool.pool.recycle() == 1


# A full pool


@pytest.mark.rule("TRN-4")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(2048, dtype=torch.float32).reshape(32, 64).t(),
        lambda: torch.arange(300).to(torch.complex64).conj(),
        lambda: torch.arange(300).to(torch.complex64).conj().imag,
        lambda: torch.ones(1, dtype=torch.bfloat16).expand(2000),
        lambda: torch.ones(2000, requires_grad=True),
    ],
    ids=["strided", "conjugated", "negated", "expanded", "requires grad"],
)
def test_trn_4_a_host_copy_equals_its_source(toy: Make, make: Callable[[], torch.Tensor]) -> None:
    """
    The fallback sends what the pool would have sent.

    Given: a tensor that is larger than the pool.
    When: it is published; its source is then overwritten.
    Then: the field holds an own, plain, contiguous tensor on the host with the bytes of the moment of publishing.
    """
    pool = toy()
    tensor = make()
    fields: dict[str, Any] = {"image": tensor}
    due = tensor.detach().clone()
    transport_of(pool).publish(fields)
    copy = fields["image"]
    torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).zero_()
    assert (copy.device.type, copy.dtype, copy.shape) == ("cpu", due.dtype, due.shape)
    assert (copy.is_contiguous(), copy.is_conj(), copy.is_neg(), copy.requires_grad) == (True, False, False, False)
    assert torch.equal(copy, due)
    assert equal(FeatureTransport.receive(sent(fields), "sim", 1, 0), {"image": due.resolve_conj()})
    pool.check_home()


@pytest.mark.rule("TRN-4")
def test_trn_4_a_full_pool_is_counted_and_warned_about_once(toy: Make, caplog: pytest.LogCaptureFixture) -> None:
    """
    What does not fit travels over the host, and an operator can see how much.

    Given: 1,024 bytes, and a request of 512, 256 and 512 bytes.
    When: it is published three times.
    Then: the first uses the pool for as many as fit, the others for none; five host copies of 2,816 bytes in all are
    counted, one warning is logged, and every rank gets equal fields.
    """
    pool = toy(slots=4, consumers=2)
    transport, sizes = transport_of(pool), (512, 256, 512)
    requests = [request_of(*sizes) for _ in range(3)]
    for fields in requests:
        transport.publish(fields)
    assert [[type(fields[name]) for name in "abc"] for fields in requests] == [
        [TensorProxy, TensorProxy, torch.Tensor],
        [torch.Tensor, TensorProxy, torch.Tensor],
        [torch.Tensor, torch.Tensor, torch.Tensor],
    ]
    assert transport.stats() == (3, 3, 6, 512 + 1024 + 1280, 0)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["CUDA VMM pool is full"]
    for fields in requests:
        for rank in range(2):
            assert equal(FeatureTransport.receive(sent(fields), "sim", 2, rank), request_of(*sizes))
    pool.drain()
    assert pool.pool.recycle() == 3
    pool.check_home()


# Consumers


@pytest.mark.rule("CON-4")
@pytest.mark.parametrize("failed_call", ["cuMemcpyDtoDAsync", "cuMemcpyDtoHAsync"])
def test_one_rank_fails_in_the_middle(toy: Make, simulator: Simulator, failed_call: str) -> None:
    """
    A rank that fails releases the rest of the request for itself, and disturbs nobody.

    Given: three leases of 256 bytes in one request for two ranks.
    When: rank 0 receives it and fails at the second; a pass; rank 1 receives it; a pass.
    Then: rank 0 is told that error and has acknowledged each lease once; 0 leases come back, then 3; rank 1 gets equal
    fields; rank 0's retry is refused, and the next request is served.
    """
    pool = toy(slots=3, consumers=2)
    transport, fields, tensors = transport_of(pool), request_of(256, 256, 256), request_of(256, 256, 256)
    transport.publish(fields, single=["a", "b", "c"])
    mine, other = sent(fields), sent(fields)
    simulator.fail_call(failed_call, 2, UNKNOWN_ERROR)
    stores = simulator.call_count("cuMemsetD32Async")
    with pytest.raises(DriverError) as failure:
        FeatureTransport.receive(mine, "sim", 2, 0)
    assert (failure.value.call, getattr(failure.value, "__notes__", [])) == (failed_call, [])
    assert simulator.call_count("cuMemsetD32Async") == stores + 3
    FeatureTransport.abort(mine, 2, 0)
    with pytest.raises(AlreadyReleased):
        FeatureTransport.receive(mine, "sim", 2, 0)
    assert simulator.call_count("cuMemsetD32Async") == stores + 3
    pool.drain()
    assert pool.words() == ((2, 1, 0), (2, 1, 0), (2, 1, 0))
    assert pool.pool.recycle() == 0
    assert equal(FeatureTransport.receive(other, "sim", 2, 1), tensors)
    pool.drain()
    assert pool.pool.recycle() == 3
    pool.check_home()
    transport.publish(tensors)
    consume(pool, tensors, request_of(256, 256, 256), 1)


@pytest.mark.rule("CON-2")
def test_receiving_twice_gives_the_same_tensors(toy: Make, simulator: Simulator) -> None:
    """
    The second call answers from the first one's tensors, and an abort after it does nothing.

    Given: a request of a pack, a single tensor and a host copy.
    When: a rank receives it twice and then aborts it.
    Then: the same tensors; no copy and no acknowledgement more than the first call's.
    """
    pool = toy(slots=2)
    fields = request_of(100, 200, 300, 2000)
    tensors = dict(fields)
    transport_of(pool).publish(fields, single=["c"])
    arrived = sent(fields)

    def calls_made() -> list[int]:
        return [simulator.call_count(name) for name in ("cuMemcpyDtoDAsync", "cuMemsetD32Async")]

    first = FeatureTransport.receive(arrived, "sim")
    made = calls_made()
    second = FeatureTransport.receive(arrived, "sim")
    FeatureTransport.abort(arrived)
    assert equal(first, tensors)
    assert equal(second, tensors)
    assert first["c"] is second["c"]
    assert calls_made() == made
    pool.drain()
    assert pool.pool.recycle() == pool.pool.stats().generations.count(1)


@pytest.mark.rule("CON-3")
def test_aborting_before_anyone_reads(toy: Make, simulator: Simulator) -> None:
    """
    An abort is one acknowledgement a lease and rank, and no read.

    Given: a request in two leases that two ranks were told of.
    When: rank 0 aborts, again, also another copy; then rank 1; a pass after each; rank 1 receives.
    Then: 0, 0, 0 and 2 leases come back; the reception is refused and no byte is read.
    """
    pool = toy(slots=2, consumers=2)
    fields = request_of(100, 200, 300)
    transport_of(pool).publish(fields, single=["c"])
    mine, copy = sent(fields), sent(fields)
    copies, freed = simulator.call_count("cuMemcpyDtoDAsync"), []
    for arrived, rank in ((mine, 0), (mine, 0), (copy, 0), (mine, 1)):
        FeatureTransport.abort(arrived, 2, rank)
        pool.drain()
        freed.append(pool.pool.recycle())
    assert freed == [0, 0, 0, 2]
    for arrived in (mine, copy, fields):
        with pytest.raises(AlreadyReleased):
            FeatureTransport.receive(arrived, "sim", 2, 1)
    assert simulator.call_count("cuMemcpyDtoDAsync") == copies
    pool.check_home()


@pytest.mark.rule("ERR-2")
def test_an_abort_that_fails_goes_on_and_can_be_repeated(toy: Make, simulator: Simulator) -> None:
    """
    One lease's failure keeps no other lease of the request.

    Given: three leases for one rank that has acted before; the acknowledgements of the first and the third fail.
    When: the request is aborted, and again.
    Then: the first error with the other as its note, and one lease is back; then the other two.
    """
    pool = toy(slots=3)
    transport, fields = transport_of(pool), request_of(256)
    transport.publish(fields)
    consume(pool, fields, request_of(256), 1)
    fields = request_of(256, 256, 256)
    transport.publish(fields, single=["a", "b", "c"])
    for number in (1, 3):
        simulator.fail_call("cuMemsetD32Async", number, UNKNOWN_ERROR)
    with pytest.raises(DriverError) as failure:
        FeatureTransport.abort(fields)
    assert [note.partition(":")[0] for note in failure.value.__notes__] == ["failed too"]
    pool.drain()
    assert pool.pool.recycle() == 1
    FeatureTransport.abort(fields)
    pool.drain()
    assert pool.pool.recycle() == 2
    pool.check_home()


@pytest.mark.rule("ACK-4")
@pytest.mark.parametrize(
    ("device", "count", "rank"), [("sim", 2, 2), ("sim", 2, None), ("sim", 3, 0), ("gpu", 2, 0)], ids=str
)
def test_a_wrong_rank_or_device_releases_nothing(toy: Make, device: str, count: int, rank: int | None) -> None:
    """
    A call that cannot be meant is refused before any write, and can be made again.

    Given: a request for two ranks.
    When: it is received with a rank, a count or a device that cannot be.
    Then: refused without a note, and no word changes; both ranks then receive it.
    """
    pool = toy(slots=2, consumers=2)
    fields = request_of(100, 200, 300)
    tensors = dict(fields)
    transport_of(pool).publish(fields, single=["a"])
    before = pool.state()
    with pytest.raises(ArgumentError) as refusal:
        FeatureTransport.receive(fields, device, count, rank)
    assert not hasattr(refusal.value, "__notes__")
    pool.drain()
    assert pool.state() == before
    consume(pool, fields, tensors, 2)


# asyncio


class Gate:
    """Once closed, holds back every thread that waits for the device, until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.opened.set()

    def close(self) -> None:
        """To be called when the pool stands, which waits for the device too."""
        self.reached.clear()
        self.opened.clear()

    def __call__(self, event: int) -> None:
        self.reached.set()
        assert self.opened.wait(WAIT_SECONDS), "nobody has opened the gate"
        calls.synchronize_event(event)


@pytest.fixture
def gate(simulator: Simulator) -> Iterator[Gate]:
    """A gate in the way of every wait for the device."""
    made = Gate()
    with streams.progress(made):
        yield made
        made.opened.set()


def run(steps: Awaitable[None]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await steps

    asyncio.run(in_time())


async def until(event: threading.Event) -> None:
    """Wait for an event of another thread."""
    assert await asyncio.to_thread(event.wait, WAIT_SECONDS)


@pytest.mark.rule("TRN-2")
def test_trn_2_publishing_does_not_hold_up_the_loop(toy: Make, gate: Gate) -> None:
    """
    The waiting is done in a thread, and the fields change only when all is published.

    Given: a request whose publication waits for the device.
    When: the loop goes on; then the device does.
    Then: the fields still hold their tensors in between, and proxies afterwards.
    """
    pool = toy(slots=2)
    transport, fields = transport_of(pool), request_of(100, 200, 300)
    tensors = dict(fields)

    async def steps() -> None:
        gate.close()
        task = asyncio.create_task(transport.publish_async(fields, single=["c"]))
        await until(gate.reached)
        assert same(fields, tensors)
        gate.opened.set()
        published = await task
        assert len(published.leases) == 2

    run(steps())
    consume(pool, fields, tensors, 2)


@pytest.mark.rule("TRN-2")
def test_trn_2_a_cancelled_publication_is_rolled_back(toy: Make, gate: Gate) -> None:
    """
    A publication that ends after its task was cancelled leaks nothing.

    Given: one publication that waits for the device and a second one behind it.
    When: both tasks are cancelled; then the device goes on, and a third request is published.
    Then: the fields of both hold their tensors at once; the first one's leases are back, the second has taken none.
    """
    pool = toy(slots=4)
    transport, requests = transport_of(pool), [request_of(100, 200), request_of(300, 10)]
    tensors = [dict(fields) for fields in requests]
    third = request_of(50)

    async def steps() -> None:
        gate.close()
        tasks = [asyncio.create_task(transport.publish_async(fields)) for fields in requests]
        await until(gate.reached)
        for task in tasks:
            task.cancel()
        assert [type(end) for end in await asyncio.gather(*tasks, return_exceptions=True)] == [
            asyncio.CancelledError
        ] * 2
        assert all(same(fields, due) for fields, due in zip(requests, tensors, strict=True))
        gate.opened.set()
        await transport.publish_async(third)

    run(steps())
    assert all(same(fields, due) for fields, due in zip(requests, tensors, strict=True))
    assert sum(pool.pool.stats().generations) == 2
    assert transport.stats() == (1, 1, 0, 0, 0)
    consume(pool, third, request_of(50), 1)


@pytest.mark.rule("TRN-2")
def test_trn_2_cancelled_when_all_is_published(toy: Make) -> None:
    """
    A task that is cancelled between the end of the publication and its own next step leaks nothing either.

    Given: a publication that has ended, whose task has not gone on yet.
    When: the task is cancelled.
    Then: the fields hold their tensors, and the leases are back.
    """
    pool = toy()
    transport, fields = transport_of(pool), request_of(100, 200)
    tensors = dict(fields)

    async def steps() -> None:
        task = asyncio.create_task(transport.publish_async(fields))
        await asyncio.sleep(0)
        # In this turn of the loop: the thread gets to the end, the task does not.
        transport._thread.submit(lambda: None).result(WAIT_SECONDS)
        assert pool.pool.active_lease_count == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await transport.publish_async({})

    run(steps())
    assert same(fields, tensors)
    pool.check_home()


@pytest.mark.rule("TRN-2")
def test_trn_2_a_failed_publication_in_the_thread(toy: Make, simulator: Simulator) -> None:
    """
    The task gets the first error, as publish would raise it.

    Given: a request whose third copy fails, and one with a container.
    When: each is published by a task.
    Then: that error and TRN-3's refusal; the fields hold their tensors and no lease is left.
    """
    pool = toy(slots=3)
    transport, fields = transport_of(pool), request_of(100, 200, 300)
    tensors = dict(fields)

    async def steps() -> None:
        simulator.fail_call("cuMemcpyDtoDAsync", 3, UNKNOWN_ERROR)
        with pytest.raises(DriverError, match="cuMemcpyDtoDAsync"):
            await transport.publish_async(fields, single=["a", "b", "c"])
        with pytest.raises(FieldError):
            await transport.publish_async({"several": [tensors["a"]]})

    run(steps())
    assert same(fields, tensors)
    pool.check_home()
