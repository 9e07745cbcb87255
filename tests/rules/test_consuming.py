"""CON: from a proxy to a private tensor, once a rank."""

from __future__ import annotations

import re
import warnings

import pytest
import torch

from tests.rules.toy import UNKNOWN_ERROR, Make, another
from vmmref import wire
from vmmref.conformance import payloads
from vmmref.errors import AlreadyReleased, DriverError, StaleLease
from vmmref.imports import IMPORTS
from vmmref.simcuda import Simulator
from vmmref_models.operations import Payload
from vmmref_models.reasons import Reason


def torch_dtypes() -> list[str]:
    """Every dtype of this torch that a tensor of plain numbers can have, by name."""
    found = {str(value).removeprefix("torch.") for value in vars(torch).values() if isinstance(value, torch.dtype)}
    # Left out: quantised dtypes, and those of parts of a byte, which have no tensors of their own.
    return sorted(name for name in found if not re.fullmatch(r"u?int[1-7]|q.*|bits.*", name))


@pytest.mark.rule("CON-1")
@pytest.mark.parametrize("dtype", torch_dtypes())
@pytest.mark.parametrize("shape", [(), (5,), (3, 4)], ids=str)
def test_con_1_the_reader_gets_the_published_tensor(toy: Make, dtype: str, shape: tuple[int, ...]) -> None:
    """
    Bytes, shape and dtype are equal, for every dtype.

    Given: a tensor of this dtype and shape with pseudo-random bytes.
    When: it is published, its proxy travels, and a rank reconstructs it.
    Then: dtype and shape are equal, and so is every byte.
    """
    assert dtype in wire.ELEMENT_BYTES
    count = wire.ELEMENT_BYTES[dtype]
    for length in shape:
        count *= length
    raw = payloads.values(Payload("bool" if dtype == "bool" else "uint8", (count,), 7))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="ComplexHalf support is experimental")
        tensor = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(getattr(torch, dtype)).reshape(shape)
        proxy = toy().pool.wrap_tensor(tensor)
        assert proxy is not None
        got = another(proxy).reconstruct_on_target_device("sim")
    assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape)
    assert payloads.digest(got) == payloads.digest(tensor)
    assert got.data_ptr() != tensor.data_ptr()


@pytest.mark.rule("CON-1")
@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(4, dtype=torch.int16).expand(3, 4),
        torch.arange(10, dtype=torch.uint8)[::3],
        (torch.arange(3.0) * (1 + 2j)).conj(),
        (torch.arange(3.0) * (1 + 2j)).conj().imag,
        torch.stack((torch.arange(4), torch.arange(4)), dim=1)[:1, 0],
        torch.ones(3, requires_grad=True),
    ],
    ids=["transposed", "expanded", "strided", "conjugate", "negative", "one-element-strided", "with-gradient"],
)
def test_con_1_sources_that_lie_otherwise(toy: Make, tensor: torch.Tensor) -> None:
    """
    How a source lies in memory does not show.

    Given: a tensor that is no plain row of bytes.
    When: it is published and read.
    Then: the reader gets the same values.
    """
    proxy = toy().pool.wrap_tensor(tensor)
    assert proxy is not None
    got = proxy.reconstruct_on_target_device("sim")
    assert torch.equal(got, tensor.detach().resolve_conj().resolve_neg())
    assert got.is_contiguous()


@pytest.mark.rule("CON-2")
def test_con_2_asking_again_answers_from_the_cache(toy: Make, simulator: Simulator) -> None:
    """
    The same tensor comes back, without a pool read and without a second acknowledgement.

    Given: a proxy that was reconstructed, and whose lease was recycled and its bytes leased again since.
    When: the same copy of the proxy is asked again.
    Then: the same tensor object; no piece of work was queued or run, and no word changed.
    """
    pool = toy()
    proxy = pool.wrap(0xA1)
    tensor = proxy.reconstruct_on_target_device("sim")
    pool.drain()
    assert pool.pool.recycle() == 1
    pool.wrap(0xB2)
    before = pool.words(), simulator.piece_count()
    again = proxy.begin_reconstruction("sim:0", 1, 0)
    assert again.cached
    assert again.finish() is tensor
    pool.drain()
    assert (pool.words(), simulator.piece_count()) == before


@pytest.mark.rule("CON-3")
def test_con_3_a_released_lease_is_not_read(toy: Make, simulator: Simulator) -> None:
    """
    After a release without a tensor nothing is read, through no copy of the proxy in that rank.

    Given: a proxy that rank 0 has released.
    When: rank 0 reads through the same and through another copy, before and after the slot was leased again.
    Then: ALREADY_RELEASED without any device work; rank 1 is not affected.
    """
    pool = toy(consumers=2)
    proxy = pool.wrap(0xA1)
    copies = [another(proxy), another(proxy)]
    pool.release(proxy, rank=0)
    pool.drain()
    for copy in (proxy, copies[0]):
        calls = simulator.call_count("cuMemcpyDtoDAsync")
        with pytest.raises(AlreadyReleased) as refusal:
            pool.start(copy, rank=0)
        assert (refusal.value.reason, refusal.value.rule) == (Reason.ALREADY_RELEASED, "CON-3")
        assert simulator.call_count("cuMemcpyDtoDAsync") == calls
    assert pool.read(copies[0], rank=1) == b"\xa1" * 256
    pool.drain()
    assert pool.pool.recycle() == 1
    pool.wrap(0xB2)
    with pytest.raises(AlreadyReleased):
        pool.start(copies[1], rank=0)
    assert pool.words() == ((4, 1, 1),)


@pytest.mark.rule("CON-3")
def test_con_3_a_second_copy_after_a_reading_one(toy: Make) -> None:
    """
    One copy of a proxy reads; the others of its rank are refused.

    Given: a proxy that was reconstructed.
    When: another copy of it is read in the same rank.
    Then: ALREADY_RELEASED; the first one still answers from its cache.
    """
    pool = toy()
    proxy = pool.wrap(0xA1)
    assert pool.read(proxy) == b"\xa1" * 256
    with pytest.raises(AlreadyReleased):
        pool.start(another(proxy))
    assert pool.read(proxy) == b"\xa1" * 256


@pytest.mark.rule("CON-4")
@pytest.mark.parametrize("call", ["cuMemcpyDtoDAsync", "cuMemcpyDtoHAsync", "cuEventRecord"])
def test_con_4_a_failed_reconstruction_acknowledges_once(toy: Make, simulator: Simulator, call: str) -> None:
    """
    The rank takes part once, also when its reading fails.

    Given: a lease of two ranks, and a call of rank 0's reconstruction that fails.
    When: rank 0 reads, reads again through a copy, and releases.
    Then: the driver's error, then ALREADY_RELEASED; rank 0's word becomes n behind its queued work, rank 1 still reads
    right bytes, and the lease comes back.
    """
    pool = toy(consumers=2)
    pool.join()
    proxy = pool.wrap(0xA1)
    copy = another(proxy)
    simulator.fail_call(call, 1, UNKNOWN_ERROR)
    with pytest.raises(DriverError) as failure:
        pool.start(proxy, rank=0)
    assert failure.value.call == call
    assert pool.words() == ((2, 0, 0),)
    # The acknowledgement is the last piece of the rank's stream, whatever was queued before it.
    while simulator.pending(pool.rank_stream(0)) > 1:
        simulator.step(pool.rank_stream(0))
        assert pool.words() == ((2, 0, 0),)
    simulator.step(pool.rank_stream(0))
    assert pool.words() == ((2, 1, 0),)
    with pytest.raises(AlreadyReleased):
        pool.start(copy, rank=0)
    pool.release(proxy, rank=0)
    assert pool.pool.recycle() == 0
    assert pool.read(copy, rank=1) == b"\xa1" * 256
    pool.drain()
    assert pool.pool.recycle() == 1


@pytest.mark.rule("CON-4")
def test_con_4_a_failing_acknowledgement_is_told(toy: Make, simulator: Simulator) -> None:
    """
    When the acknowledgement cannot be queued either, nobody is left in the dark.

    Given: a reconstruction whose copy fails and whose acknowledgement fails.
    When: it is asked for.
    Then: the first error, with a note that the lease stays leased; the rank lists it as unreleased.
    """
    pool = toy()
    proxy = pool.wrap(0xA1)
    simulator.fail_call("cuMemcpyDtoDAsync", 1, UNKNOWN_ERROR)
    simulator.fail_call("cuMemsetD32Async", 1, UNKNOWN_ERROR)
    with pytest.raises(DriverError, match="cuMemcpyDtoDAsync") as failure:
        pool.start(proxy)
    assert "cuMemsetD32Async" in failure.value.__notes__[0]
    (imported,) = IMPORTS.find(pool.pool.card.nonce)
    assert imported.rank(0).unreleased == {(0, 1)}
    pool.drain()
    assert pool.pool.recycle() == 0
    assert len(pool.pool.stats().leases) == 1


@pytest.mark.rule("CON-5")
@pytest.mark.parametrize(("pieces", "stale"), [(0, True), (1, True), (2, False)], ids=["before", "copied", "checked"])
def test_con_5_a_reader_of_a_retired_lease_is_told(toy: Make, pieces: int, stale: bool) -> None:
    """
    R is read after the copy; the reader of a lease that was retired before that is told so.

    Given: a reader of which no piece, its copy, or its copy and its read of R have run.
    When: the lease is revoked, its bytes are leased again, and the reader goes on.
    Then: STALE_LEASE, and no word of the newer lease has changed; a reader that had passed the check has right bytes.
    """
    pool = toy()
    proxy = pool.wrap(0xA1)
    reading = pool.start(proxy)
    for _ in range(pieces):
        pool.step(pool.rank_stream())
    pool.pool.revoke(proxy.lease)
    new = pool.wrap(0xB2)
    assert (new.lease.slot, new.lease.start) == (proxy.lease.slot, proxy.lease.start)
    if stale:
        with pytest.raises(StaleLease) as refusal:
            reading.finish()
        assert (refusal.value.reason, refusal.value.rule) == (Reason.STALE_LEASE, "CON-5")
        pool.drain()
        assert pool.words() == ((4, 0),)
    else:
        assert reading.finish().tolist() == [0xA1] * 256
        pool.drain()
        assert pool.words() == ((4, 1),)
    assert pool.read(new) == b"\xb2" * 256


@pytest.mark.rule("CON-5")
def test_con_5_the_check_is_queued_behind_the_copy(toy: Make, simulator: Simulator) -> None:
    """
    The read of R is the piece after the copy, on the same stream.

    Given: a reader with nothing run.
    When: its stream runs piece by piece.
    Then: first the bytes of the lease, then one word from R's address.
    """
    pool = toy()
    proxy = pool.wrap(0xA1)
    reading = pool.start(proxy)
    (imported,) = IMPORTS.find(pool.pool.card.nonce)
    pieces = [pool.step(pool.rank_stream()) for _ in range(2)]
    assert [(piece.source - imported.address, piece.nbytes) for piece in pieces] == [(256, 256), (0, 4)]
    assert pieces[0].order < pieces[1].order
    reading.finish()
