"""The pool: one exported allocation, cut into leases, handed to N consumer ranks through proxies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vmmref.arguments import refused
from vmmref.book import Holding
from vmmref.errors import DriverError, LeaseError
from vmmref.frame import PoolFrame
from vmmref.groups import Groups, declared_speakers
from vmmref.lease import PoolLease
from vmmref.packed import PackedTensorProxy
from vmmref.proxy import TensorProxy
from vmmref.publisher import Part
from vmmref.recycler import Look
from vmmref.tensors import dtype_name, publishable, view_of_memory
from vmmref.unwind import note_failure
from vmmref_models.reasons import Reason


class Publication:
    """A tensor on its way into the pool: leased, copy and ready store queued. `finish_publish` makes it a proxy."""

    __slots__ = ("_holding", "dtype", "shape")

    def __init__(self, holding: Holding, dtype: str, shape: tuple[int, ...]) -> None:
        self._holding = holding
        self.dtype = dtype
        self.shape = shape

    @property
    def lease(self) -> PoolLease:
        """The lease that was taken."""
        return self._holding.lease


class VmmMemoryPool(PoolFrame):
    """A bounded pool of device memory that one producer process leases to `consumer_count` consumer ranks.

    memory_size              bytes of device memory, at least one granule of the device (2 MiB on most)
    device                   "sim" for the simulated driver, "cuda:0" for a real one
    consumer_count           ranks; each, or one for its group, acknowledges every lease once
    recycle_interval         seconds between recycle passes of a background thread; None: passes only when asked
    max_inflight_slices      slots: most leases at a time
    transport_name           stands in front of every message
    handle_type              "posix_fd", "fabric", or "auto": fabric where creating, exporting and importing works
    word_bytes               4 or 8: size of a control word; 8 where 2^31-1 leases of one slot are too few
    generation_limit         last generation of a slot; default: the largest that the words can tell apart
    issued_generations       generations already used up per slot, to test near the limit
    data_size                bytes behind the control words that leases may use, a multiple of 256; default: all
    byte_tensor              memory to build on in place of an own allocation: contiguous uint8 over VMM memory
    lease_deadline           seconds after which a lease that ranks have not acknowledged is reported as set aside
    clock                    seconds, rising; what the deadline is measured with
    wait_timeout             seconds after which any wait for the device is reported as WaitTimeout

    Every argument is checked before anything is taken (ArgumentError); a constructor that fails later gives back all
    that it took (LIFE-4). Thread-safe. Leave it by `shutdown`, or as a context manager.

    A pool that is dropped without either is reported by a ResourceWarning. Its threads and its broker end then, and to
    its consumers it has ended; but nobody knows what the device still does with its memory, which therefore stays
    taken, as do tensors whose copy was queued, until the process ends.
    """

    # ---- publishing

    def wrap_tensor(self, tensor: Any, borrowable: bool = False, groups: Groups | None = None) -> TensorProxy | None:
        """Copy `tensor` into the pool and return its proxy, once consumers may read it; None when the pool is full.

        The caller falls back to a host copy then (RNG-5). With `borrowable`, consumers may look at the bytes in place;
        the price is that a revoked lease comes back only when they all have acknowledged (CON-6). `groups` says which
        ranks acknowledge together, by their first one, as `[[0, 1], [2]]`; by default each for itself (ACK-4).

        Raises TensorError for a tensor that cannot be published (PUB-4), ArgumentError for groups that are none of
        this pool, GenerationExhausted, PoolClosing, PoolFailed, DriverError, WaitTimeout; none of them takes anything.
        """
        with self._life:
            publication = self._begin(tensor, borrowable, groups)
            return None if publication is None else self._finish(publication)

    def begin_publish(self, tensor: Any, borrowable: bool = False, groups: Groups | None = None) -> Publication | None:
        """The first half of `wrap_tensor`: lease and queue, and do not wait. None when the pool is full.

        The lease is the caller's until `finish_publish` or `cancel_lease`, also when the publication is dropped.
        """
        with self._life:
            return self._begin(tensor, borrowable, groups)

    def finish_publish(self, publication: Publication) -> TensorProxy:
        """The second half of `wrap_tensor`: wait until the bytes and the ready word are visible, and make the proxy.

        Raises LeaseError when the lease was cancelled meanwhile. When waiting fails the lease is taken back (PUB-3).
        """
        if not isinstance(publication, Publication):
            raise refused("PUB-2", f"finish_publish needs a Publication, got {type(publication).__name__}")
        self._book.check_pool(publication.lease.nonce, "the publication")
        with self._life:
            return self._finish(publication)

    def wrap_tensors(self, tensors: Sequence[Any], groups: Groups | None = None) -> list[PackedTensorProxy] | None:
        """Copy several tensors with one lifetime into one lease; their proxies in order, or None when the pool is full.

        One range, slot, generation, ready store and acknowledgement for all; a failure publishes none (PACK-1).
        Raises as `wrap_tensor`, and ArgumentError for no tensors.
        """
        if not isinstance(tensors, list | tuple) or not tensors:
            got = "none" if isinstance(tensors, list | tuple) else type(tensors).__name__
            raise refused("PACK-1", f"wrap_tensors needs a list of at least one tensor, got {got}")
        with self._life:
            sources = [publishable(tensor, self._device) for tensor in tensors]
            places, total = self.packed_type.offsets([(source.nbytes, source.element_size()) for source in sources])
            holding = self._take(total, False, groups)
            if holding is None:
                return None
            parts = [
                Part(source, source.data_ptr(), place, source.nbytes)
                for source, place in zip(sources, places, strict=True)
            ]
            self._publisher.queue_copy(holding, parts)
            whole = self._finish(Publication(holding, "uint8", (total,)))
            return [
                self.packed_type(whole, dtype_name(source.dtype), tuple(tensor.shape), place)
                for tensor, source, place in zip(tensors, sources, places, strict=True)
            ]

    def _take(self, nbytes: int, borrowable: bool, groups: Groups | None) -> Holding | None:
        """A lease whose terms are fixed; None when the pool is full."""
        speakers = declared_speakers(groups, self._layout.consumers)
        holding = self._book.take(nbytes)
        if holding is not None:
            holding.declare(speakers, borrowable)
        return holding

    def _begin(self, tensor: Any, borrowable: bool = False, groups: Groups | None = None) -> Publication | None:
        source = publishable(tensor, self._device)
        holding = self._take(source.nbytes, borrowable, groups)
        if holding is None:
            return None
        self._publisher.queue_copy(holding, [Part(source, source.data_ptr(), 0, source.nbytes)])
        return Publication(holding, dtype_name(source.dtype), tuple(tensor.shape))

    def _finish(self, publication: Publication) -> TensorProxy:
        holding = publication._holding
        self._wait_published(holding)
        proxy = self.proxy_type(
            self._card, holding.lease, publication.dtype, publication.shape, holding.borrowable, holding.speakers
        )
        proxy._on_serialize = self._broker.start if self._broker is not None else None
        return proxy

    def _wait_published(self, holding: Holding) -> None:
        try:
            self._publisher.wait_published(holding)
        except LeaseError:
            # Whoever cancelled it gives it back.
            raise
        except BaseException as error:
            # PUB-3: nobody has its handle, and its range goes back behind the queued work, in a later pass.
            try:
                self._recycler.retire(self._book.claim(holding.lease, "PUB-3"))
            except BaseException as second:
                note_failure(error, second, "taking the lease back failed too")
                self._life.fail(error)
            raise

    def copy_tensor(self, tensor: Any) -> tuple[PoolLease, Any] | tuple[None, None]:
        """Lower level: copy a tensor into the pool; its lease and a uint8 view of the leased bytes, or (None, None).

        The view is of pool memory: it must not be used after the lease has ended. Raises as `wrap_tensor`.
        """
        with self._life:
            publication = self._begin(tensor)
            if publication is None:
                return None, None
            self._wait_published(publication._holding)
            lease = publication.lease
            return lease, view_of_memory(self._address + lease.start, lease.nbytes, self._device)

    # ---- ending leases before every rank has acknowledged

    def cancel_proxy(self, proxy: TensorProxy | PackedTensorProxy) -> None:
        """Cancel the lease of a proxy that was never handed on (CAN-1); as `cancel_lease`.

        Any child of a pack cancels the whole pack, once; cancelling another child after that does nothing (PACK-4).
        """
        if not isinstance(proxy, TensorProxy | PackedTensorProxy):
            raise refused("CAN-2", f"cancel_proxy needs a proxy, got {type(proxy).__name__}")
        try:
            self.cancel_lease(proxy.lease)
        except LeaseError as error:
            if not isinstance(proxy, PackedTensorProxy) or error.reason is not Reason.INACTIVE_LEASE:
                raise

    def cancel_lease(self, lease: PoolLease) -> None:
        """End an active lease: retire it on the device, wait, give range and slot back.

        A rank that reads it later gets StaleLease, never other bytes. Raises LeaseError, and changes nothing, for a
        lease that is not active: ended before, of another pool, or altered (CAN-2).
        """
        self._end(lease, "CAN-2")

    def revoke(self, lease: PoolLease) -> None:
        """End an active lease whose proxy has been handed on; goes the same way as `cancel_lease` (CAN-3).

        A borrowable one is set aside until every rank has acknowledged it or is dead (CON-6).
        """
        self._end(lease, "CAN-3")

    def release_lease(self, lease: PoolLease) -> None:
        """The low-level end of a lease by its handle; refused for anything but the active lease (REC-6)."""
        self._end(lease, "REC-6")

    def _end(self, lease: PoolLease, rule: str) -> None:
        with self._life:
            self._recycler.end_lease(self._book.claim(lease, rule))

    def begin_cancel(self, lease: PoolLease) -> None:
        """The first half of `cancel_lease`: claim and queue the retire store; `reclaim` or a recycle pass frees it."""
        with self._life:
            self._recycler.retire(self._book.claim(lease, "CAN-2"))

    # ---- recycling

    def watch_consumer(self, rank: int, process_id: int) -> None:
        """Let the pool know which process, now alive, acts for `rank`, so that it counts its death (REAP-1).

        When the process is gone, every pass counts the rank for the leases that are out, and new leases do not wait for
        it until another process is watched in its place. A process that execs another program keeps its number and
        lives on. Raises ArgumentError for a bad rank, a rank whose process is not dead yet, and a process that does not
        exist.
        """
        with self._life, self._counting:
            self._reaper.watch(rank, process_id)
            self._book.expect(rank)

    def reap(self) -> list[int]:
        """Count the consumer processes that have died since the last time; their ranks. Part of every pass."""
        with self._life:
            return self._reap()

    def _reap(self) -> list[int]:
        # REAP-1: in one step with the book, or a new process that is watched in between would be counted as dead.
        with self._counting:
            dead = self._reaper.collect()
            for rank in dead:
                self._book.excuse(rank)
            return dead

    def recycle(self) -> int:
        """One whole pass: reap, look, claim, reclaim; the number of leases taken back."""
        with self._life:
            self._reap()
            self._recycler.claim(self._recycler.look())
            return self._recycler.reclaim(wait=True)

    def look(self) -> Look:
        """First part of a pass: a snapshot of every acknowledgement."""
        with self._life:
            return self._recycler.look()

    def claim(self, look: Look) -> int:
        """Second part: claim what the look, however old, saw acknowledged by all ranks; how many leases."""
        if not isinstance(look, Look):
            raise refused("REC-3", f"claim needs a Look, got {type(look).__name__}")
        with self._life:
            return self._recycler.claim(look)

    def reclaim(self, wait: bool = True) -> int:
        """Third part: free what the host has seen retired; how many leases."""
        with self._life:
            return self._recycler.reclaim(wait)

    def synchronize(self) -> None:
        """Wait for everything that the producer has queued so far: copies, ready and retire stores."""
        with self._life:
            try:
                self._publisher.synchronize(self._timeout)
            except DriverError as error:
                # LIFE-3: a queued piece failed.
                self._life.fail(error)
                raise
