"""What comes from outside in the middle of an operation: an interruption, a thrown error, a tensor that has shrunk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.rules.test_handles import in_forked_child
from tests.rules.toy import Toy, bytes_of
from vmmref.driver import streams
from vmmref.errors import ArgumentError, TensorError
from vmmref.transport import FeatureTransport
from vmmref_models.reasons import Reason

Make = Callable[..., Toy]


@pytest.mark.rule("PUB-4")
@pytest.mark.parametrize("view", [lambda tensor: tensor, lambda tensor: tensor[5:], lambda tensor: tensor.t()])
def test_pub_4_a_tensor_that_outgrows_its_storage_is_refused(
    toy: Make, view: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """
    What lies behind the end of a storage is somebody else's memory.

    Given: a tensor whose storage was made smaller after it was made.
    When: it, or a view of it, is published.
    Then: UNUSABLE_TENSOR, and nothing is taken.
    """
    pool = toy()
    tensor = torch.zeros(10, 10)
    shrunk = view(tensor)
    tensor.untyped_storage().resize_(4 * 99)
    before = pool.state()
    with pytest.raises(TensorError) as refusal:
        pool.pool.wrap_tensor(shrunk)
    assert (refusal.value.reason, refusal.value.rule) == (Reason.UNUSABLE_TENSOR, "PUB-4")
    assert pool.state() == before


@pytest.mark.rule("PUB-3")
def test_pub_3_an_interruption_from_the_keyboard_does_not_fail_the_pool(toy: Make) -> None:
    """
    Who interrupts a wait says nothing of the device.

    Given: a pool whose publisher waits for the device.
    When: the wait is interrupted from the keyboard.
    Then: the interruption leaves; the pool is open, and a pass takes the lease back.
    """
    pool = toy()

    def interrupt(event: int) -> None:
        raise KeyboardInterrupt

    with streams.progress(interrupt), pytest.raises(KeyboardInterrupt):
        pool.pool.wrap_tensor(bytes_of(1, 256))
    assert pool.pool.life == "open"
    pool.drain()
    pool.pool.recycle()
    assert pool.pool.stats().leases == ()
    assert pool.wrap(2).lease.generation == 2


@pytest.mark.rule("REAP-1")
@pytest.mark.parametrize("process_id", [True, 1.0, "1", None, -1, 2**70])
def test_reap_1_what_is_no_process_is_not_watched(toy: Make, process_id: Any) -> None:
    with pytest.raises(ArgumentError) as refusal:
        toy().pool.watch_consumer(0, process_id)
    assert (refusal.value.reason, refusal.value.rule) == (Reason.BAD_ARGUMENT, "REAP-1")


@pytest.mark.rule("TRN-2")
def test_trn_2_whatever_is_thrown_into_a_waiting_publication_rolls_it_back(toy: Make) -> None:
    """
    A framework may end a task by any error, not by a cancellation alone.

    Given: an asynchronous publication that its task waits for.
    When: a TimeoutError is thrown into it there.
    Then: it leaves, the fields hold their tensors, and what the thread has published is taken back.
    """
    pool = toy(slots=2)
    transport = FeatureTransport(pool.pool, processor=object())
    fields = {"a": bytes_of(1, 100)}
    tensor = fields["a"]

    async def steps() -> None:
        publication = transport.publish_async(fields)
        publication.send(None)
        with pytest.raises(TimeoutError):
            publication.throw(TimeoutError())
        # The transport's thread does one thing after another: this comes behind the roll-back.
        await transport.publish_async({"b": bytes_of(2, 100)})

    asyncio.run(steps())
    assert fields["a"] is tensor
    assert len(pool.pool.stats().leases) == 1


@pytest.mark.rule("HND-7")
def test_hnd_7_a_transport_is_refused_in_a_forked_child(toy: Make) -> None:
    """Its thread has stayed with the parent, so a publication would wait for ever there."""
    transport = FeatureTransport(toy().pool, processor=object())

    def publish() -> None:
        asyncio.run(asyncio.wait_for(transport.publish_async({"a": bytes_of(1, 100)}), 5.0))

    asyncio.run(transport.publish_async({"a": bytes_of(1, 100)}))
    assert in_forked_child([publish]) == [Reason.FORKED]
