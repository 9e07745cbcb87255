"""PUB: from the producer's tensor to a proxy that may leave."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.rules.toy import GRANULE, UNKNOWN_ERROR, Make, bytes_of, content
from vmmref import tensors
from vmmref.driver import calls, streams
from vmmref.driver.device import Device
from vmmref.errors import ArgumentError, DriverError, LeaseError, PoolFailed, TensorError, WaitTimeout
from vmmref.pool import VmmMemoryPool
from vmmref.reservation import VmmReservation
from vmmref.simcuda import Simulator
from vmmref_models.reasons import Reason


@pytest.mark.rule("PUB-1")
def test_pub_1_ready_comes_after_the_bytes(toy: Make) -> None:
    """
    R = 2n becomes visible only after every byte of the lease is.

    Given: a lease whose copy and ready store are queued.
    When: the publish stream runs piece by piece.
    Then: R is 0 while the bytes are not there, still 0 when they are, and 2 after the next piece.
    """
    pool = toy()
    lease = pool.begin(0xA1).lease
    assert (pool.words(), pool.held_bytes(lease)) == (((0, 0),), bytes(256))
    pool.step(pool.pool.publish_stream)
    assert (pool.words(), pool.held_bytes(lease)) == (((0, 0),), b"\xa1" * 256)
    pool.step(pool.pool.publish_stream)
    assert pool.words() == ((2, 0),)


@pytest.mark.rule("PUB-2")
def test_pub_2_a_proxy_leaves_when_ready_is_visible(toy: Make) -> None:
    """
    There is no proxy before R = 2n.

    Given: a publication whose stream does not run.
    When: its proxy is asked for, with an end to the wait; and for another one, whose stream runs.
    Then: the first ends in TIMED_OUT and its lease is on its way back; the second gives a proxy and R is 2n.
    """
    pool = toy(slots=2, wait_timeout=0.01)
    stuck = pool.begin(1)
    with streams.progress(None), pytest.raises(WaitTimeout) as failure:
        pool.pool.finish_publish(stuck)
    assert failure.value.reason is Reason.TIMED_OUT
    assert pool.pool.stats().retiring_slots == (stuck.lease.slot,)
    proxy = pool.wrap(2)
    assert pool.words()[proxy.lease.slot][0] == 2
    assert pool.pool.reclaim() == 1


@pytest.mark.rule("PUB-2")
def test_pub_2_a_cancelled_publication_gives_no_proxy(toy: Make) -> None:
    """
    A lease that was cancelled before it was ready is not handed out.

    Given: a publication that was cancelled.
    When: its proxy is asked for.
    Then: INACTIVE_LEASE.
    """
    pool = toy()
    publication = pool.begin(1)
    pool.pool.cancel_lease(publication.lease)
    with pytest.raises(LeaseError) as refusal:
        pool.pool.finish_publish(publication)
    assert refusal.value.reason is Reason.INACTIVE_LEASE


@pytest.mark.rule("PUB-3")
@pytest.mark.parametrize(
    ("call", "copied", "ready"),
    [("cuMemcpyDtoDAsync", False, 0), ("cuStreamWriteValue32", True, 0), ("cuEventRecord", True, 3)],
)
def test_pub_3_a_failed_publication_returns_its_lease(
    toy: Make, simulator: Simulator, call: str, copied: bool, ready: int
) -> None:
    """
    The lease goes back when what was queued has ended, and the error reaches the caller.

    Given: a pool whose next copy, ready store or event fails when it is queued.
    When: a tensor is published.
    Then: the driver's error; the range is free and nothing queued can touch it any more; R is retired if the ready
    store had been queued; the next publication works.
    """
    pool = toy()
    simulator.fail_call(call, 1, UNKNOWN_ERROR)
    with pytest.raises(DriverError) as failure:
        pool.begin(0xA1)
    assert (failure.value.call, failure.value.result) == (call, UNKNOWN_ERROR)
    pool.check_home()
    assert simulator.pending(pool.pool.publish_stream) == 0
    first = simulator.read_bytes(pool.pool.address + pool.first, 256)
    assert first == (b"\xa1" * 256 if copied else bytes(256))
    assert pool.words() == ((ready, 0),)
    assert pool.read(pool.wrap(0xB2)) == b"\xb2" * 256


@pytest.mark.rule("PUB-3")
def test_pub_3_an_unknown_device_state_fails_the_pool(toy: Make, simulator: Simulator) -> None:
    """
    When nobody knows whether the copy has ended, its range is never used again.

    Given: a ready store that fails, and then the wait for the copy behind it fails too.
    When: a tensor is published.
    Then: the first error, with the second as a note; the pool has failed and keeps the lease.
    """
    pool = toy()
    simulator.fail_call("cuStreamWriteValue32", 1, UNKNOWN_ERROR)
    simulator.fail_call("cuEventRecord", 1, UNKNOWN_ERROR)
    with pytest.raises(DriverError, match="cuStreamWriteValue32") as failure:
        pool.begin(1)
    assert "cuEventRecord" in failure.value.__notes__[0]
    assert pool.pool.life == "failed"
    assert len(pool.pool.stats().leases) == 1
    with pytest.raises(PoolFailed):
        pool.begin(2)


@pytest.mark.rule("PUB-4")
@pytest.mark.parametrize(
    "unusable",
    [
        torch.empty(0),
        torch.empty(3, 0, 2),
        torch.empty(4, device="meta"),
        torch.eye(3).to_sparse(),
        b"bytes",
        None,
    ],
    ids=["empty", "empty-dimension", "wrong-device", "sparse", "bytes", "none"],
)
def test_pub_4_unusable_tensors_are_refused_first(toy: Make, unusable: Any) -> None:
    """
    What cannot be published takes nothing.

    Given: a tensor that is empty, elsewhere, not strided, or none at all.
    When: it is published.
    Then: UNUSABLE_TENSOR, and ranges, slots, generations and words are as before.
    """
    pool = toy()
    before = pool.state()
    for publish in (pool.pool.wrap_tensor, pool.pool.begin_publish, pool.pool.copy_tensor):
        with pytest.raises(TensorError) as refusal:
            publish(unusable)
        assert (refusal.value.reason, refusal.value.rule) == (Reason.UNUSABLE_TENSOR, "PUB-4")
    assert pool.state() == before


@pytest.mark.rule("PUB-4")
def test_pub_4_non_contiguous_tensors_are_made_contiguous(toy: Make) -> None:
    """
    A tensor that does not lie in one piece is published all the same.

    Given: a transposed, an expanded and a strided tensor.
    When: each is published and read.
    Then: each lease holds exactly the elements, and the reader gets the same values.
    """
    base = torch.arange(12, dtype=torch.int16).reshape(3, 4)
    for tensor in (base.t(), base[:1].expand(5, 4), base[:, ::2]):
        pool = toy()
        proxy = pool.pool.wrap_tensor(tensor)
        assert proxy is not None
        assert proxy.nbytes == tensor.numel() * 2
        assert torch.equal(proxy.reconstruct_on_target_device("sim"), tensor)


@pytest.mark.rule("PUB-5")
@pytest.mark.parametrize(
    "backing",
    [
        torch.empty(GRANULE, dtype=torch.int8),
        torch.empty(GRANULE - 1, dtype=torch.uint8),
        torch.empty(1, dtype=torch.uint8).expand(GRANULE),
        torch.empty(GRANULE, dtype=torch.uint8, device="meta"),
        bytearray(GRANULE),
        torch.empty(GRANULE, dtype=torch.uint8),
    ],
    ids=["dtype", "size", "strided", "wrong-device", "bytes", "not of the device"],
)
def test_pub_5_backing_memory_is_checked_at_construction(simulator: Simulator, backing: Any) -> None:
    """
    Memory from outside must be one contiguous piece of enough bytes on the pool's device.

    Given: memory that is not.
    When: a pool is to be built on it.
    Then: UNUSABLE_BACKING, and nothing is left behind.
    """
    with pytest.raises(ArgumentError) as refusal:
        VmmMemoryPool(GRANULE, "sim", 1, None, 4, byte_tensor=backing, handle_type="fabric")
    assert (refusal.value.reason, refusal.value.rule) == (Reason.UNUSABLE_BACKING, "PUB-5")
    assert simulator.usage().is_empty


@pytest.mark.rule("PUB-5")
@pytest.mark.parametrize("start", [0, GRANULE])
def test_pub_5_given_memory_is_a_whole_allocation(simulator: Simulator, start: int) -> None:
    """
    A consumer maps the whole allocation from its start, so a part of one is no memory for a pool.

    Given: an allocation of two granules.
    When: a pool is to be built on its first or its second half.
    Then: UNUSABLE_BACKING, and no handle is kept.
    """
    device = Device("sim")
    with VmmReservation(device, 2 * GRANULE, calls.HANDLE_POSIX_FD) as reservation:
        reservation.map(0, 2 * GRANULE)
        handles = simulator.usage().handles
        half = tensors.view_of_memory(reservation.address + start, GRANULE, device)
        with pytest.raises(ArgumentError, match="of a mapping of") as refusal:
            VmmMemoryPool(GRANULE, "sim", 1, None, 4, byte_tensor=half, handle_type="posix_fd")
        assert refusal.value.reason is Reason.UNUSABLE_BACKING
        assert simulator.usage().handles == handles
    device.close()


@pytest.mark.rule("PUB-5")
def test_pub_5_a_pool_on_given_memory_works(simulator: Simulator) -> None:
    """
    A pool on the caller's VMM memory is a pool like any other, and leaves that memory to its owner.

    Given: a mapped reservation, seen as a tensor.
    When: a pool is built on it, used and shut down.
    Then: the tensor travels through the caller's memory, which is still there afterwards.
    """
    device = Device("sim")
    reservation = VmmReservation(device, GRANULE, calls.HANDLE_POSIX_FD)
    reservation.map(0, GRANULE)
    backing = tensors.view_of_memory(reservation.address, GRANULE, device)
    with VmmMemoryPool(GRANULE, "sim", 1, None, 4, byte_tensor=backing, handle_type="posix_fd") as pool:
        lease, view = pool.copy_tensor(bytes_of(0xA1, 300))
        assert lease is not None
        assert view is not None
        assert content(view) == b"\xa1" * 300
        assert simulator.read_bytes(reservation.address + lease.start, 300) == b"\xa1" * 300
    assert simulator.read_bytes(reservation.address, 4) == (3).to_bytes(4, "little")
    reservation.close()
    device.close()
