"""A pool from its construction to its end: what it takes, how that is given back, and what it shows of itself."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from vmmref.abandoned import HostSide, weak_pass
from vmmref.arguments import (
    check_clock,
    check_counts,
    check_data,
    check_generations,
    check_names,
    check_seconds,
)
from vmmref.beacon import Beacon
from vmmref.book import LeaseBook
from vmmref.broker import DescriptorBroker
from vmmref.driver import calls
from vmmref.driver.device import Device
from vmmref.errors import ArgumentError, DriverError, UnsupportedError, VmmRefError
from vmmref.forks import fork_count
from vmmref.handles import HandleType, choose_handle_type, duplicate_descriptor, export_descriptor
from vmmref.imported import forget_exporter, register_exporter
from vmmref.layout import ControlLayout, align_up
from vmmref.lease import PoolCard
from vmmref.life import Life, State
from vmmref.packed import PackedTensorProxy
from vmmref.proxy import TensorProxy
from vmmref.publisher import Publisher
from vmmref.reaper import Reaper
from vmmref.recycler import Recycler, RecyclerThread
from vmmref.reservation import VmmReservation
from vmmref.stats import PoolStats
from vmmref.tensors import check_backing, unusable_backing
from vmmref.unwind import Unwind, note_failure
from vmmref_models.reasons import Reason

_LAST_PATIENCE_SECONDS = 30.0
"""However short the caller's patience: so long is waited for the device before memory is given up for lost."""


class PoolFrame:
    """What a `VmmMemoryPool` is made of, and the two ways out: `shutdown`, and being dropped.

    The parts are classes of their own, so that the check of the checker can put a broken one in place of each.
    """

    book_type: type[LeaseBook] = LeaseBook
    publisher_type: type[Publisher] = Publisher
    recycler_type: type[Recycler] = Recycler
    life_type: type[Life] = Life
    proxy_type: type[TensorProxy] = TensorProxy
    packed_type: type[PackedTensorProxy] = PackedTensorProxy
    reaper_type: type[Reaper] = Reaper
    broker_type: type[DescriptorBroker] = DescriptorBroker
    beacon_type: type[Beacon] = Beacon
    reservation_type: type[VmmReservation] = VmmReservation

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
        self._drain_failed = False
        try:
            self._device = Device(device)
            self._unwind.push(self._device.close)
            with self._device:
                self._build(memory_size, handle_type, limit, issued_generations, byte_tensor)
            self._recycler_thread: RecyclerThread | None = None
            if recycle_interval is not None:
                self._recycler_thread = RecyclerThread(weak_pass(self), recycle_interval, self._life.fail)
            self._end_if_dropped = self._watch_for_being_dropped()
            # The first step of the way back: nothing may be closed twice, least of all a descriptor's number.
            self._unwind.push(self._end_if_dropped.detach)
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
        self._reaper = self.reaper_type(self._layout.consumers)
        self._counting = threading.Lock()
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
        self._byte_tensor = byte_tensor
        if byte_tensor is not None:
            self._address = check_backing(byte_tensor, size, self._device)
            self._handle = self._adopt(self._address, size)
            self._unwind.push(partial(calls.release_memory, self._handle))
            return size
        reservation = self.reservation_type(self._device, size, self.handle_type.driver_type)
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
                note_failure(error, second, "its memory stays mapped")
            raise

    def _export(self, nonce: bytes) -> None:
        self._broker: DescriptorBroker | None = None
        self._descriptor: int | None = None
        if self.handle_type is HandleType.FABRIC:
            locator = calls.export_fabric(self._handle)
        else:
            descriptor = export_descriptor(self._handle)
            self._unwind.push(partial(os.close, descriptor))
            self._descriptor = descriptor
            register_exporter(nonce, partial(duplicate_descriptor, descriptor))
            self._unwind.push(partial(forget_exporter, nonce))
            self._broker = broker = self.broker_type(descriptor, self.transport_name)
            self._unwind.push(partial(broker.close, self._timeout))
            locator = broker.locator
        # HND-4: of its own, so that a broker that has died does not make a living pool look gone.
        self._beacon = beacon = self.beacon_type()
        self._unwind.push(beacon.close)
        self._card = PoolCard(
            nonce, self.transport_name, os.getpid(), self._memory_size, self._data_end, self._layout.slots,
            self._layout.consumers, self._layout.word_bytes, self.handle_type, locator, beacon.name, self._device.name,
        )  # fmt: skip

    def _watch_for_being_dropped(self) -> weakref.finalize[[], Self]:
        """Let the host side end when the pool is collected without having been shut down.

        No step of the way back refers to the pool, so it is collected as soon as its last user lets go of it, and not
        in whatever thread the collector of cycles runs.
        """
        in_use = (self._book, self._byte_tensor)
        host_side = HostSide(
            self.transport_name, self._card.nonce, self._beacon, self._reaper, self._broker, self._descriptor,
            self._recycler_thread, fork_count(), in_use,
        )  # fmt: skip
        end = weakref.finalize(self, host_side.end)
        # The end of the process gives everything back by itself.
        end.atexit = False
        return end

    # ---- figures

    def stats(self) -> PoolStats:
        """What is free, leased and retired, and how far the generations are; also after the pool has ended."""
        overdue = self._clock() - self._lease_deadline if self._lease_deadline is not None else float("-inf")
        return self._book.snapshot(overdue, self._recycler.unacknowledged)

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
            self._drain_or_fail(deadline)
            # Also when the driver refuses to take something back: it is not asked twice (HND-1).
            closed = True
            self._unwind.run()
        finally:
            self._life.end_close(closed)

    def _drain_or_fail(self, deadline: float) -> None:
        try:
            self._drain(deadline)
        except DriverError as error:
            if not self._drain_failed:
                self._drain_failed = True
                raise
            # LIFE-2: the second time it is no passing refusal but a lost context: what is queued may end if it can, and
            # the pool ends without the device's consent.
            self._life.fail(error)
            self._drain(deadline)

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.shutdown()
        except BaseException as second:
            if error is None:
                raise
            note_failure(error, second, "the shutdown failed too")
