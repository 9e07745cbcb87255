"""Broken parts of the producer's side: control words, copy and ready store, retire store, what may be published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vmmref.book import Holding
from vmmref.conformance.faulty.broken import broken
from vmmref.driver import calls
from vmmref.driver.streams import Stream
from vmmref.groups import Groups
from vmmref.lease import PoolLease
from vmmref.pool import Publication, VmmMemoryPool
from vmmref.publisher import Part, Publisher


@broken("CTL-3", seen="boolean-ack")
class ZeroesAtReuse(Publisher):
    """Sets the acknowledgement words to zero when a slot is leased again: an old acknowledgement looks new."""

    def _queue_bytes(self, holding: Holding, parts: Sequence[Part]) -> None:
        lease, layout = holding.lease, self._layout
        if lease.generation > 1:
            words = self._address + layout.ack_offset(lease.slot, 0)
            calls.fill_bytes(words, 0, layout.consumers * layout.word_bytes, self.publish_stream.handle)
        super()._queue_bytes(holding, parts)


@broken("CTL-6", seen="retire-overtakes-ready")
class RetireOvertakesReady(Publisher):
    """Queues the retire store behind nothing: a ready store that runs later makes the cancelled lease live again."""

    def retire(self, holding: Holding) -> None:
        published, holding.published = holding.published, None
        try:
            super().retire(holding)
        finally:
            holding.published = published


@broken("SLOT-2")
class ReadyOfTheNextSlot(Publisher):
    """Stores into R of the next slot: a lease's words and bytes do not belong to the same slot."""

    def _store(self, lease: PoolLease, value: int, stream: Stream) -> None:
        super()._store(lease._replace(slot=(lease.slot + 1) % self._layout.slots), value, stream)


@broken("PUB-1")
class ReadyBeforeTheCopy(Publisher):
    """Queues the ready store in front of the copy: a consumer reads the bytes that lay there before."""

    def _queue_bytes(self, holding: Holding, parts: Sequence[Part]) -> None:
        super()._queue_ready(holding)
        super()._queue_bytes(holding, parts)

    def _queue_ready(self, holding: Holding) -> None:
        pass


@broken("PUB-2", seen="device-wait")
class LeavesBeforeReady(Publisher):
    """Lets the proxy leave without waiting for the ready store: its reader has to wait for a producer that may die."""

    def wait_published(self, holding: Holding) -> None:
        self._book.require_active(holding)
        self._book.dispatch(holding, self._clock())


@broken("PUB-3", seen="failure-forgets-ready")
class FailureForgetsReady(Publisher):
    """Takes a lease back after a failed publish and forgets that its ready store was queued: R stays live."""

    def _abandon(self, holding: Holding, error: BaseException) -> None:
        holding.ready_queued = False
        super()._abandon(holding, error)


@broken("PUB-3", seen="failure-forgets-copy")
class FailureWaitsForNothing(Publisher):
    """Gives range and slot back at once when publishing fails: copy and ready store run into the next lease."""

    def _abandon(self, holding: Holding, error: BaseException) -> None:
        self._book.claim(holding.lease, "PUB-3")
        self._book.free(holding)


@broken("REC-2", seen="range-before-retire, slot-before-retire")
class FreesBeforeRetired(Publisher):
    """Gives range and slot back while the retire store is queued: a late reader takes the next lease for its own."""

    def wait_retired(self, holding: Holding) -> None:
        pass

    def is_retired(self, holding: Holding) -> bool:
        return True


@broken("REC-4")
class PublishWaits(Publisher):
    """Waits for the device in the middle of publishing: one stuck copy stops every publisher."""

    def _queue_ready(self, holding: Holding) -> None:
        super()._queue_ready(holding)
        self.publish_stream.synchronize(self._timeout_seconds)


@broken("LIV-2", seen="eq-wait, device-wait")
class RetireWaitsOnTheDevice(Publisher):
    """Lets the retire stream wait for the ranks' acknowledgements: after a revoke that stream is stuck for ever."""

    def retire(self, holding: Holding) -> None:
        lease, layout = holding.lease, self._layout
        for rank in range(layout.consumers):
            word = self._address + layout.ack_offset(lease.slot, rank)
            wait_for_word(word, lease.generation, layout.word_bytes, self.retire_stream.handle)
        super().retire(holding)


def wait_for_word(address: int, value: int, word_bytes: int, stream: int) -> None:
    """Let `stream` wait until the word at `address` is at least `value`. The pool never does."""
    from cuda.bindings import driver as cuda

    wait = cuda.cuStreamWaitValue32 if word_bytes == 4 else cuda.cuStreamWaitValue64
    (result,) = wait(stream, address, value, int(cuda.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ))
    if result:
        raise calls.failure(wait.__name__, result)


@broken("HND-1")
class ForgetsTheRetireStream(Publisher):
    """Destroys one of its two streams at the end of the pool."""

    def close(self) -> None:
        self.publish_stream.close()


@broken("PUB-4")
class PublishesTheEmpty(VmmMemoryPool):
    """Publishes one byte for a tensor without elements: the consumer makes an empty tensor of it, or fails."""

    def _begin(self, tensor: Any, borrowable: bool = False, groups: Groups | None = None) -> Publication | None:
        tensor = tensor if tensor.numel() else torch.zeros(1, device=self._device.torch_device)
        return super()._begin(tensor, borrowable, groups)


@broken("ERR-1")
class TakesBeforeItChecks(VmmMemoryPool):
    """Takes a lease before it looks at the tensor, and keeps it when the tensor cannot be published."""

    def _begin(self, tensor: Any, borrowable: bool = False, groups: Groups | None = None) -> Publication | None:
        if not tensor.numel():
            self._book.take(1)
        return super()._begin(tensor, borrowable, groups)


@broken("CON-1")
class CopiesInStorageOrder(VmmMemoryPool):
    """Copies the bytes behind a tensor's address whatever its strides say: transposed tensors arrive scrambled."""

    def _begin(self, tensor: Any, borrowable: bool = False, groups: Groups | None = None) -> Publication | None:
        dense = torch.empty(tensor.shape, device="meta").stride()
        return super()._begin(tensor.as_strided(tensor.shape, dense), borrowable, groups)


@broken("CON-1")
class ScalarsBecomeVectors(VmmMemoryPool):
    """Publishes a 0-dim tensor as one with a dimension of 1: the bytes are right and the shape is not."""

    def _begin(self, tensor: Any, borrowable: bool = False, groups: Groups | None = None) -> Publication | None:
        return super()._begin(tensor if tensor.dim() else tensor.reshape(1), borrowable, groups)
