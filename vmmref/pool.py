"""The pool: one exported allocation, cut into leases, handed to N consumer ranks through proxies."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from vmmref.arguments import (
    check_clock,
    check_counts,
    check_data,
    check_generations,
    check_names,
    check_seconds,
    refused,
)
from vmmref.book import Holding, LeaseBook
from vmmref.broker import DescriptorBroker
from vmmref.driver import calls
from vmmref.driver.device import Device
from vmmref.errors import ArgumentError, DriverError, LeaseError, UnsupportedError, VmmRefError
from vmmref.handles import HandleType, choose_handle_type, duplicate_descriptor, export_descriptor
from vmmref.imports import forget_exporter, register_exporter
from vmmref.layout import ControlLayout, align_up
from vmmref.lease import PoolCard, PoolLease
from vmmref.life import Life, State
from vmmref.packed import PackedTensorProxy, offsets
from vmmref.proxy import TensorProxy
from vmmref.publisher import Part, Publisher
from vmmref.reaper import Reaper
from vmmref.recycler import Look, Recycler, RecyclerThread
from vmmref.reservation import VmmReservation
from vmmref.stats import PoolStats
from vmmref.tensors import check_backing, dtype_name, publishable, unusable_backing, view_of_memory
from vmmref.unwind import Unwind
from vmmref_models.reasons import Reason

_LAST_PATIENCE_SECONDS = 30.0
"""However short the caller's patience: so long is waited for the device before memory is given up for lost."""


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


class VmmMemoryPool:
    """A bounded pool of device memory that one producer process leases to `consumer_count` consumer ranks.

    memory_size              bytes of device memory, at least one granule of the device (2 MiB on most)
    device                   "sim" for the simulated driver, "cuda:0" for a real one
    consumer_count           ranks; each acknowledges every lease once
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

    The parts are classes of their own, so that the check of the checker can put a broken one in place of each.
    """

    book_type: type[LeaseBook] = LeaseBook
    publisher_type: type[Publisher] = Publisher
    recycler_type: type[Recycler] = Recycler
    life_type: type[Life] = Life
    proxy_type: type[TensorProxy] = TensorProxy

    def __init__(
        self,
        memory_size: int,
        device: str = "cuda:0",
        consumer_count: int = 1,
        recycle_interval: float | None = 0.05,
        max_inflight_slices: int = 4096,
        transport_name: str = "CUDA VMM",
        handle_type: str = "auto",
        *,
        word_bytes: int = 4,
        generation_limit: int | None = None,
        issued_generations: Sequence[int] = (),
        data_size: int | None = None,
        byte_tensor: Any = None,
        lease_deadline: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait_timeout: float = 30.0,
    ) -> None:
        check_names(transport_name, handle_type)
        memory_size, consumer_count, max_inflight_slices = check_counts(
            memory_size, consumer_count, max_inflight_slices
        )
        check_seconds("wait_timeout", wait_timeout)
        if recycle_interval is not None:
            check_seconds("recycle_interval", recycle_interval)
        if lease_deadline is not None:
            check_seconds("lease_deadline", lease_deadline)
        check_clock(clock)
        limit = check_generations(word_bytes, generation_limit, issued_generations, max_inflight_slices)
        self.transport_name = transport_name
        self._layout = ControlLayout(max_inflight_slices, consumer_count, word_bytes)
        self._timeout = wait_timeout
        self._lease_deadline = lease_deadline
        self._clock = clock
        self._data_end = check_data(memory_size, data_size, self._layout, transport_name)
        self._unwind = Unwind()
        try:
            self._device = Device(device)
            self._unwind.push(self._device.close)
            with self._device:
                self._build(memory_size, handle_type, limit, issued_generations, byte_tensor)
            self._recycler_thread: RecyclerThread | None = None
            if recycle_interval is not None:
                self._recycler_thread = RecyclerThread(self.recycle, recycle_interval, self._life.fail)
        except BaseException as error:
            # LIFE-4
            self._unwind.run(cause=error)
            raise

    def _build(self, memory_size: int, handle_type: str, limit: int, issued: Sequence[int], byte_tensor: Any) -> None:
        """Take everything that a pool needs, noting each piece for the way back."""
        device = self._device
        if self._layout.word_bytes == 8 and not device.attribute(
            calls.ATTRIBUTE.CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
        ):
            message = f"device {device.name} has no 64-bit stream memory operations: use word_bytes=4"
            raise UnsupportedError(Reason.NOT_SUPPORTED, "CTL-1", message)
        self.handle_type = choose_handle_type(handle_type, device)
        self._memory_size = self._map_memory(memory_size, byte_tensor)
        self._life = self.life_type(device, self.transport_name)
        nonce = secrets.token_bytes(16)
        self._book = self.book_type(nonce, self._layout, self._data_end, limit, self.transport_name, issued)
        self._publisher = self.publisher_type(
            device, self._address, self._layout, self._book, self._life, self._timeout, self._clock
        )
        self._unwind.push(self._publisher.close)
        self._recycler = self.recycler_type(self._address, self._layout, self._book, self._publisher, self._timeout)
        self._unwind.push(self._recycler.close)
        self._zero_words()
        self._reaper = Reaper(self._layout.consumers)
        self._unwind.push(self._reaper.close)
        self._export(nonce)

    def _map_memory(self, memory_size: int, byte_tensor: Any) -> int:
        """Map the pool's memory (or adopt the caller's) and return its whole size."""
        properties = calls.allocation_properties(self._device.ordinal, self.handle_type.driver_type)
        granularity = calls.granularity(properties)
        if memory_size < granularity:
            message = (
                f"memory_size {memory_size} is smaller than one granule of {granularity} bytes of {self._device.name}"
            )
            raise ArgumentError(Reason.BAD_ARGUMENT, "LIFE-1", message)
        size = align_up(memory_size, granularity)
        if byte_tensor is not None:
            self._address = check_backing(byte_tensor, size, self._device)
            self._byte_tensor = byte_tensor
            self._handle = self._adopt(self._address, size)
            self._unwind.push(lambda: calls.release_memory(self._handle))
            return size
        reservation = VmmReservation(self._device, size, self.handle_type.driver_type)
        self._unwind.push(reservation.close)
        self._handle = reservation.map(0, size)
        self._address = reservation.address
        return size

    def _adopt(self, address: int, size: int) -> int:
        """A handle of the caller's allocation; refused unless it is VMM memory that begins and ends with the pool.

        A consumer maps the whole allocation and knows no offset into it (PUB-5).
        """
        try:
            whole = calls.mapping_at(address)
            handle = calls.retain_handle(address)
        except DriverError as error:
            raise unusable_backing(self._device, size, f"memory that cannot be exported ({error.call})") from error
        if whole != (address, size):
            calls.release_memory(handle)
            raise unusable_backing(
                self._device, size, f"{size} bytes at {address - whole[0]} of a mapping of {whole[1]}"
            )
        return handle

    def _zero_words(self) -> None:
        """CTL-3: once, here, and never again: a zeroed word would make an old generation look new."""
        stream = self._publisher.publish_stream
        try:
            calls.fill_bytes(self._address, 0, self._layout.data_start, stream.handle)
            stream.synchronize(self._timeout)
        except BaseException as error:
            # LIFE-4: the fill may be queued all the same, and unmapping would not wait for it.
            try:
                stream.synchronize(max(self._timeout, _LAST_PATIENCE_SECONDS))
            except BaseException as second:
                # Memory that the device may still write is not unmapped: it is lost, which is the lesser harm.
                self._unwind = Unwind()
                error.add_note(f"its memory stays mapped: {type(second).__name__}: {second}")
            raise

    def _export(self, nonce: bytes) -> None:
        self._broker: DescriptorBroker | None = None
        if self.handle_type is HandleType.FABRIC:
            locator = calls.export_fabric(self._handle)
        else:
            descriptor = export_descriptor(self._handle)
            self._unwind.push(lambda: os.close(descriptor))
            self._descriptor = descriptor
            self._broker = broker = DescriptorBroker(descriptor, self.transport_name)
            self._unwind.push(lambda: broker.close(self._timeout))
            locator = broker.locator
        self._card = PoolCard(
            nonce, self.transport_name, os.getpid(), self._memory_size, self._data_end, self._layout.slots,
            self._layout.consumers, self._layout.word_bytes, self.handle_type, locator, self._device.name,
        )  # fmt: skip
        register_exporter(nonce, lambda: duplicate_descriptor(self._descriptor))
        self._unwind.push(lambda: forget_exporter(nonce))

    # ---- publishing

    def wrap_tensor(self, tensor: Any, borrowable: bool = False) -> TensorProxy | None:
        """Copy `tensor` into the pool and return its proxy, once consumers may read it; None when the pool is full.

        The caller falls back to a host copy then (RNG-5). With `borrowable`, consumers may look at the bytes in place;
        the price is that a revoked lease comes back only when they all have acknowledged (CON-6).

        Raises TensorError for a tensor that cannot be published (PUB-4), GenerationExhausted, PoolClosing, PoolFailed,
        DriverError, WaitTimeout; none of them takes anything.
        """
        with self._life:
            publication = self._begin(tensor)
            if publication is None:
                return None
            publication._holding.borrowable = borrowable
            return self._finish(publication)

    def begin_publish(self, tensor: Any) -> Publication | None:
        """The first half of `wrap_tensor`: lease and queue, and do not wait. None when the pool is full."""
        with self._life:
            return self._begin(tensor)

    def finish_publish(self, publication: Publication) -> TensorProxy:
        """The second half of `wrap_tensor`: wait until the bytes and the ready word are visible, and make the proxy.

        Raises LeaseError when the lease was cancelled meanwhile. When waiting fails the lease is taken back (PUB-3).
        """
        if not isinstance(publication, Publication):
            raise refused("PUB-2", f"finish_publish needs a Publication, got {type(publication).__name__}")
        self._book.check_pool(publication.lease.nonce, "the publication")
        with self._life:
            return self._finish(publication)

    def wrap_tensors(self, tensors: Sequence[Any]) -> list[PackedTensorProxy] | None:
        """Copy several tensors with one lifetime into one lease; their proxies in order, or None when the pool is full.

        One range, slot, generation, ready store and acknowledgement for all; a failure publishes none (PACK-1).
        Raises as `wrap_tensor`, and ArgumentError for no tensors.
        """
        if not isinstance(tensors, list | tuple) or not tensors:
            got = "none" if isinstance(tensors, list | tuple) else type(tensors).__name__
            raise refused("PACK-1", f"wrap_tensors needs a list of at least one tensor, got {got}")
        with self._life:
            sources = [publishable(tensor, self._device) for tensor in tensors]
            places, total = offsets([(source.nbytes, source.element_size()) for source in sources])
            holding = self._book.take(total)
            if holding is None:
                return None
            parts = [
                Part(source, source.data_ptr(), place, source.nbytes)
                for source, place in zip(sources, places, strict=True)
            ]
            self._publisher.queue_copy(holding, parts)
            whole = self._finish(Publication(holding, "uint8", (total,)))
            return [
                PackedTensorProxy(whole, dtype_name(source.dtype), tuple(tensor.shape), place)
                for tensor, source, place in zip(tensors, sources, places, strict=True)
            ]

    def _begin(self, tensor: Any) -> Publication | None:
        source = publishable(tensor, self._device)
        holding = self._book.take(source.nbytes)
        if holding is None:
            return None
        self._publisher.queue_copy(holding, [Part(source, source.data_ptr(), 0, source.nbytes)])
        return Publication(holding, dtype_name(source.dtype), tuple(tensor.shape))

    def _finish(self, publication: Publication) -> TensorProxy:
        holding = publication._holding
        self._wait_published(holding)
        proxy = self.proxy_type(self._card, holding.lease, publication.dtype, publication.shape, holding.borrowable)
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
                error.add_note(f"taking the lease back failed too: {type(second).__name__}: {second}")
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
        it until another process is watched in its place. Raises ArgumentError for a bad rank, a rank whose process is
        not dead yet, and a process that does not exist.
        """
        with self._life:
            self._reaper.watch(rank, process_id)
            self._book.expect(rank)

    def reap(self) -> list[int]:
        """Count the consumer processes that have died since the last time; their ranks. Part of every pass."""
        with self._life:
            return self._reap()

    def _reap(self) -> list[int]:
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
            self._publisher.synchronize(self._timeout)

    # ---- figures

    def stats(self) -> PoolStats:
        """What is free, leased and retired, and how far the generations are; also after the pool has ended."""
        overdue = self._clock() - self._lease_deadline if self._lease_deadline is not None else float("-inf")
        return self._book.snapshot(overdue)

    @property
    def usable_size(self) -> int:
        """Bytes that leases may use: what lies behind the control words."""
        return self._data_end - self._layout.data_start

    @property
    def active_lease_count(self) -> int:
        """Leases that hold a range and a slot now, retiring ones included."""
        return self._book.active_count

    @property
    def life(self) -> str:
        """ "open", "closing", "closed" or "failed"."""
        return "failed" if self._life.failure is not None and self._life.state is State.OPEN else self._life.state.value

    @property
    def failure(self) -> BaseException | None:
        """What left the device state unknown, if anything has (LIFE-3)."""
        return self._life.failure

    @property
    def address(self) -> int:
        """Where the pool's memory is mapped in the producer; the control words come first."""
        return self._address

    @property
    def publish_stream(self) -> int:
        """Handle of the stream with the copies and ready stores; for harnesses that hold streams back."""
        return self._publisher.publish_stream.handle

    @property
    def retire_stream(self) -> int:
        """Handle of the stream with the retire stores."""
        return self._publisher.retire_stream.handle

    @property
    def card(self) -> PoolCard:
        """What consumers need to know of this pool; its nonce names the pool."""
        return self._card

    # ---- the end

    def shutdown(self, timeout: float | None = None) -> None:
        """End the pool: refuse newcomers, let callers and queued work end, retire every lease, give everything back.

        Does not wait for consumers: one that holds an import of its own reads right bytes or gets StaleLease. Twice,
        from two threads, and again after WaitTimeout are all safe (LIFE-2). `timeout` in seconds, by default the
        pool's `wait_timeout`; at its end WaitTimeout says what is outstanding, and nothing has been unmapped.
        """
        if timeout is not None:
            check_seconds("timeout", timeout, least=0.0)
        patience = self._timeout if timeout is None else timeout
        deadline = time.monotonic() + patience
        if not self._life.begin_close(patience):
            return
        closed = False
        try:
            self._drain(deadline)
            # Also when the driver refuses to take something back: it is not asked twice (HND-1).
            closed = True
            self._unwind.run()
        finally:
            self._life.end_close(closed)

    def _drain(self, deadline: float) -> None:
        """Wait for all that could still touch the memory, until `deadline`; after this it may be unmapped."""

        def left() -> float:
            return max(0.0, deadline - time.monotonic())

        if self._recycler_thread is not None and self._recycler_thread.stop(left()):
            self._recycler_thread = None
        self._life.wait_until_empty(left())
        # The look stream too: a pass that failed may have left its snapshot queued.
        streams = (self._publisher.publish_stream, self._publisher.retire_stream, self._recycler.look_stream)
        with self._device:
            if self._life.failure is not None:
                # LIFE-3: no lease is touched any more, and what the device does not answer is not waited for twice.
                for stream in streams:
                    with contextlib.suppress(VmmRefError):
                        stream.synchronize(left())
                return
            self._recycler.retire_all(self._book.claim_all())
            # LIFE-5: the streams first, within what is left of the caller's patience; then nothing is waited for.
            for stream in streams:
                stream.synchronize(left())
            self._recycler.reclaim(wait=True)
            self._recycler.abandon_held()

    def __enter__(self) -> VmmMemoryPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
