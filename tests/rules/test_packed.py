"""PACK: tensors with one lifetime that share one lease."""

from __future__ import annotations

import pickle
import threading

import pytest
import torch

from tests.rules.toy import Make
from vmmref.errors import AlreadyReleased, DriverError, LeaseError, StaleLease, TensorError, WireFormError
from vmmref.packed import PackedTensorProxy
from vmmref.proxy import TensorProxy
from vmmref_models.reasons import Reason

TENSORS = [
    torch.arange(3, dtype=torch.uint8),
    torch.arange(5, dtype=torch.float64),
    torch.tensor(7, dtype=torch.int16),
    torch.arange(6).to(torch.complex64).reshape(2, 3).t(),
    torch.tensor([True, False, True]),
]
"""0-dim, strided and odd sizes, so that every child but the first needs its place to be aligned."""


def sent(proxy: PackedTensorProxy) -> PackedTensorProxy:
    """A copy as another process gets it."""
    return PackedTensorProxy.from_bytes(bytes(proxy))


@pytest.mark.rule("PACK-1")
def test_pack_1_tensors_share_one_lease_and_one_acknowledgement(toy: Make) -> None:
    """
    All children of a pack have one slot, generation and range, and one acknowledgement word tells of them all.

    Given: five tensors packed for two ranks.
    When: each rank reads them, one rank through copies that came separately.
    Then: the bytes are right, and the pack is one lease that one pass takes back.
    """
    pool = toy(consumers=2)
    proxies = pool.pool.wrap_tensors(TENSORS)
    assert proxies is not None
    assert {proxy.lease for proxy in proxies} == {proxies[0].lease}
    assert pool.pool.active_lease_count == 1
    for rank in range(2):
        for proxy, tensor in zip([sent(proxy) for proxy in proxies] if rank else proxies, TENSORS, strict=True):
            got = proxy.reconstruct_on_target_device("sim", 2, rank)
            assert got.dtype == tensor.dtype
            assert torch.equal(got, tensor)
    pool.drain()
    assert pool.pool.recycle() == 1
    pool.check_home()


@pytest.mark.rule("PACK-1")
def test_pack_1_one_failure_publishes_none(toy: Make) -> None:
    """
    A pack is published whole or not at all.

    Given: a pool.
    When: one tensor of a pack is unusable, or the copy of one of them fails.
    Then: no lease is left, and the next pack is published.
    """
    pool = toy()
    with pytest.raises(TensorError) as refusal:
        pool.pool.wrap_tensors([TENSORS[0], torch.empty(0)])
    assert refusal.value.reason is Reason.UNUSABLE_TENSOR
    pool.simulator.fail_call("cuMemcpyDtoDAsync", 2, 999)
    with pytest.raises(DriverError):
        pool.pool.wrap_tensors(TENSORS)
    pool.check_home()
    proxies = pool.pool.wrap_tensors(TENSORS)
    assert proxies is not None
    pool.pool.cancel_proxy(proxies[0])
    pool.check_home()


@pytest.mark.rule("PACK-1")
def test_pack_1_a_full_pool_says_so(toy: Make) -> None:
    """
    A pack that does not fit is answered as a single tensor would be.

    Given: a pool of 1,024 bytes.
    When: a pack of more is wrapped, and a pack of no tensors.
    Then: the first answer is None, the second a refusal.
    """
    pool = toy()
    assert pool.pool.wrap_tensors([torch.zeros(1000, dtype=torch.uint8), torch.zeros(30, dtype=torch.uint8)]) is None
    with pytest.raises(ValueError, match="at least one tensor"):
        pool.pool.wrap_tensors([])
    pool.check_home()


@pytest.mark.rule("PACK-2")
def test_pack_2_children_begin_at_a_multiple_of_their_element_size() -> None:
    """
    A child can be viewed as its dtype where it lies.

    Given: tensors of (bytes, element bytes).
    When: their places are chosen.
    Then: each is a multiple of the element size, they do not overlap, and no more than needed is left between.
    """
    assert PackedTensorProxy.offsets([(3, 1), (40, 8), (2, 2), (48, 16), (3, 1)]) == ([0, 8, 48, 64, 112], 115)


@pytest.mark.rule("PACK-3")
def test_pack_3_a_child_does_not_acknowledge_for_its_siblings(toy: Make) -> None:
    """
    A child's own acknowledgement means something only when the pack was read.

    Given: a pack of two.
    When: a child acknowledges before and after its rank has read the other child.
    Then: the first is refused and writes nothing, the second is no more than a no-op.
    """
    pool = toy()
    proxies = pool.pool.wrap_tensors(TENSORS[:2])
    assert proxies is not None
    with pytest.raises(LeaseError, match=r"^Packed CUDA VMM features must be reconstructed before release") as refusal:
        proxies[0].acknowledge_consumption()
    assert (refusal.value.reason, refusal.value.rule) == (Reason.NOT_RECONSTRUCTED, "PACK-3")
    pool.drain()
    assert pool.pool.recycle() == 0
    assert torch.equal(proxies[1].reconstruct_on_target_device("sim"), TENSORS[1])
    proxies[0].acknowledge_consumption()
    pool.drain()
    assert pool.pool.recycle() == 1


@pytest.mark.rule("PACK-3")
def test_pack_3_releasing_any_child_releases_the_whole_once(toy: Make) -> None:
    """
    An abort of one child is an abort of the pack.

    Given: a pack of three, some children unpickled.
    When: two of them are released without being read.
    Then: the pack comes back in one pass, and no child can be read any more.
    """
    pool = toy()
    proxies = pool.pool.wrap_tensors(TENSORS[:3])
    assert proxies is not None
    travelled = pickle.loads(pickle.dumps(proxies))
    travelled[0].release_without_reconstruction()
    sent(proxies[2]).release_without_reconstruction()
    pool.drain()
    assert pool.pool.recycle() == 1
    with pytest.raises(AlreadyReleased):
        sent(proxies[1]).reconstruct_on_target_device("sim")
    pool.check_home()


@pytest.mark.rule("PACK-4")
def test_pack_4_cancelling_twice_touches_no_other_lease(toy: Make) -> None:
    """
    Any child cancels the whole, once.

    Given: a pack, cancelled through one child, and a newer lease in its slot.
    When: another child is cancelled.
    Then: nothing happens; the newer lease is read as published, and a late reader of the pack is refused.
    """
    pool = toy()
    proxies = pool.pool.wrap_tensors(TENSORS[:3])
    assert proxies is not None
    pool.pool.cancel_proxy(proxies[1])
    newer = pool.wrap(9, 1024)
    pool.pool.cancel_proxy(proxies[0])
    pool.pool.cancel_proxy(sent(proxies[2]))
    with pytest.raises(StaleLease):
        sent(proxies[0]).reconstruct_on_target_device("sim")
    assert pool.read(newer) == b"\x09" * 1024


def test_two_threads_of_a_rank_get_the_same_pack(toy: Make) -> None:
    """Both children are read at once by two threads; the pack is copied out once."""
    pool = toy()
    proxies = pool.pool.wrap_tensors(TENSORS[:2])
    assert proxies is not None
    got: dict[int, torch.Tensor] = {}

    def read(index: int) -> None:
        got[index] = proxies[index].reconstruct_on_target_device("sim")

    threads = [threading.Thread(target=read, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [torch.equal(got[index], TENSORS[index]) for index in range(2)] == [True, True]


def test_kinds_of_proxies_are_not_mixed_up(toy: Make) -> None:
    """The wire form says which kind of proxy it is."""
    pool = toy()
    proxies = pool.pool.wrap_tensors(TENSORS[:1])
    assert proxies is not None
    with pytest.raises(WireFormError, match="packed"):
        TensorProxy.from_bytes(bytes(proxies[0]))
    pool.pool.cancel_proxy(proxies[0])
    with pytest.raises(WireFormError, match="single"):
        PackedTensorProxy.from_bytes(bytes(pool.wrap(1)))
