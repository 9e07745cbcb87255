"""A subject for `vmmref check`: the feature pool and CUDA IPC proxy of the published sglang package.

    vmmref check --subject examples.subjects.sglang_pool:make

Everything that is judged is the package's own code; `sglang_boundary` says what is replaced below it. The package's
recycler makes its passes when the harness asks for one (`Recycle`), so that a sequence means the same every time.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from examples.subjects.sglang_boundary import Package, load, on_device, plain
from vmmref.conformance import payloads
from vmmref.conformance.subject import Description, Leftovers
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
    Shutdown,
    Tamper,
    Wrap,
    refused,
)
from vmmref_models.reasons import Reason

LIMIT = 2**31 - 1
"""Last generation that the package issues; it has no setting for it."""

INTERVAL_SECONDS = 3600.0
"""Handed to the constructor, which wants a positive one; passes are made by hand."""

REFUSALS: tuple[tuple[type[Exception], str, Reason], ...] = (
    (ValueError, "must be positive", Reason.BAD_ARGUMENT),
    (ValueError, "byte_tensor must be a sufficiently large", Reason.UNUSABLE_BACKING),
    (ValueError, "pool is too small after control metadata", Reason.POOL_TOO_SMALL),
    (ValueError, "requires a CUDA tensor", Reason.UNUSABLE_TENSOR),
    (ValueError, "cannot transport an empty tensor", Reason.UNUSABLE_TENSOR),
    (ValueError, "acknowledgements support one consumer", Reason.BAD_RANK),
    (RuntimeError, "consumer rank", Reason.BAD_RANK),
    (RuntimeError, "pool slot generation exhausted", Reason.GENERATION_EXHAUSTED),
    (RuntimeError, "Invalid CUDA IPC pool lease offsets", Reason.INACTIVE_LEASE),
    (RuntimeError, "Cannot cancel inactive", Reason.INACTIVE_LEASE),
    (RuntimeError, "proxy does not belong to this pool", Reason.FOREIGN_POOL),
)
"""The package's refusals by type and a part of the message. Any other exception is a crash."""


def outcome_of(error: Exception) -> Outcome:
    """What an exception of the package means: a refusal, a failed driver call, or a crash."""
    message = str(error)
    for kind, part, reason in REFUSALS:
        if type(error) is kind and part in message:
            return refused(reason, message)
    if type(error) is RuntimeError and message.startswith("cuStream"):
        return Outcome("failed", Reason.DRIVER_CALL_FAILED, message=message)
    return Outcome("crashed", message=f"{type(error).__name__}: {message}")


@lru_cache(maxsize=8192)
def _source(payload: Payload) -> torch.Tensor:
    return on_device(payloads.source(payload))


@dataclass(slots=True)
class _Held:
    """A proxy as its producer holds it, and the bytes that it travels as."""

    proxy: Any
    wire: bytes = b""


@dataclass(slots=True)
class _Copy:
    """One copy of a proxy, in the process of rank `rank`."""

    proxy: Any
    rank: int


class SglangSession:
    """One `MmItemMemoryPool` with all its consumers; its ranks share one process and so one import of the pool."""

    def __init__(self, package: Package, shape: Shape) -> None:
        self._package = package
        self._shape = shape
        self._pool = package.make_pool(shape.data_end, INTERVAL_SECONDS, shape.consumers, shape.slots)
        self._inner = self._pool._pool
        if shape.issued:
            self._inner._slot_generations[:] = shape.issued
        self._held: dict[int, _Held] = {}
        self._copies: dict[int, _Copy] = {}
        self._closed = False

    def apply(self, operation: Operation) -> Outcome:
        """Do one operation; an exception of the package is an outcome too."""
        doer = DOERS.get(type(operation))
        if doer is None:
            return refused(Reason.NOT_SUPPORTED, f"the sglang pool has no {type(operation).__name__}")
        try:
            return doer(self, operation)
        except Exception as error:
            return outcome_of(error)

    def observe(self) -> Observation:
        """The pool's own books. After a shutdown it makes no statement about them, so nothing is shown."""
        if self._closed:
            return Observation("closed")
        inner = self._inner
        generations = tuple(inner._slot_generations)
        # The package keeps slots that have used their last generation among the free ones, the next on top.
        free = [slot for slot in reversed(inner._available_slots) if generations[slot] < LIMIT]
        used_up = sorted(slot for slot in inner._available_slots if generations[slot] >= LIMIT)
        return Observation(
            "open",
            free_ranges=tuple(sorted(inner._available_ranges)),
            leases=tuple(_view(inner._occupied[slot]) for slot in sorted(inner._occupied)),
            free_slots=tuple(free),
            retired_slots=tuple(used_up),
            generations=generations,
            words=tuple(tuple(word & 0xFFFFFFFF for word in row) for row in inner._control_words.tolist()),
        )

    def close(self) -> Leftovers | None:
        """End the pool and its consumers; what the package would leave to the ends of its processes goes too."""
        self._copies.clear()
        self._held.clear()
        self._pool.shutdown()
        self._package.drop(self._pool)
        return None

    # The producer

    def _wrap(self, operation: Wrap) -> Outcome:
        proxy = self._pool.wrap_tensor(_source(operation.payload), use_pool_handle_cache=True)
        if proxy is None:
            return FULL
        self._held[operation.lease] = _Held(proxy)
        return Outcome("done", lease=_view(self._inner._occupied[self._slot(proxy)]))

    def _slot(self, proxy: Any) -> int:
        return int(proxy.ready_byte_offset) // (4 * (1 + self._shape.consumers))

    def _publish_unusable(self, operation: PublishUnusable) -> Outcome:
        # A tensor of the host is the wrong device: one of another GPU is copied over as torch copies between devices.
        empty = on_device(torch.empty(0)) if operation.what == "empty" else torch.zeros(4)
        return DONE if self._pool.wrap_tensor(empty, use_pool_handle_cache=True) is not None else FULL

    def _cancel(self, operation: Cancel) -> Outcome:
        proxy = self._held[operation.lease].proxy
        self._pool.cancel_proxy(proxy)
        if operation.wait:
            self._pass_over(self._slot(proxy))
        return DONE

    def _tamper(self, operation: Tamper) -> Outcome:
        altered = pickle.loads(pickle.dumps(self._held[operation.lease].proxy))
        details = altered.proxy_state["ipc_extra"]
        if operation.how == "generation":
            altered.generation -= 1
        elif operation.how == "offset":
            details["pool_byte_offset"] += ALIGNMENT
        else:
            index, name, *rest = details["pool_handle"]
            details["pool_handle"] = (index, name + b"-of-another-pool", *rest)
        self._pool.cancel_proxy(altered)
        return DONE

    def _shutdown(self, operation: Shutdown) -> Outcome:
        self._pool.shutdown()
        self._closed = True
        return DONE

    # The recycler

    def _recycle(self, operation: Recycle) -> Outcome:
        if self._closed:
            return refused(Reason.POOL_CLOSING, "the recycler has been stopped by shutdown()")
        inner = self._inner
        with inner._lock:
            before = len(inner._occupied)
            inner._recycle_ready_leases_locked()
            return Outcome("done", count=before - len(inner._occupied))

    def _pass_over(self, slot: int) -> None:
        """The package's recycle pass over one lease only: a cancelled lease is held until a pass finds it."""
        inner = self._inner
        with inner._lock:
            occupied = inner._occupied
            inner._occupied = {slot: occupied[slot]}
            try:
                inner._recycle_ready_leases_locked()
            finally:
                if not inner._occupied:
                    del occupied[slot]
                inner._occupied = occupied

    # The consumers

    def _deliver(self, operation: Deliver) -> Outcome:
        held = self._held[operation.lease]
        held.wire = held.wire or pickle.dumps(held.proxy)
        self._copies[operation.proxy] = _Copy(pickle.loads(held.wire), operation.rank)
        return DONE

    def _fetch(self, operation: Fetch) -> Outcome:
        copy = self._copies[operation.proxy]
        calls = self._package.device.calls
        self._package.parallel.tp_rank = copy.rank
        tensor = copy.proxy.reconstruct_on_target_device(0, consumer_count=1, consumer_rank=copy.rank)
        # A reconstruction waits for the ready word; without any such call the answer came from the proxy itself.
        cached = calls == self._package.device.calls
        return Outcome("done", digest=payloads.digest(plain(tensor)), cached=cached)

    def _release(self, operation: Release) -> Outcome:
        copy = self._copies[operation.proxy]
        # This call has no argument for the rank: it asks the process for it.
        self._package.parallel.tp_rank = copy.rank
        copy.proxy.release_without_reconstruction(1)
        return DONE

    # Beside the pool

    def _construct(self, operation: Construct) -> Outcome:
        try:
            self._make_another(operation.what)
        except ValueError as error:
            outcome = outcome_of(error)
            if operation.what == "below-granule" and outcome.reason is Reason.POOL_TOO_SMALL:
                # The package has no granule: to a size of one byte it says, with both numbers, that it is too small.
                return refused(Reason.BAD_ARGUMENT, outcome.message)
            return outcome
        return DONE

    def _make_another(self, what: str) -> None:
        shape = self._shape
        if what.startswith("backing-"):
            self._package.make_inner_pool(**_bad_backing(what, shape)).shutdown()
            return
        sizes = {"below-granule": 1, "control-only": shape.data_start, "memory_size": 0}
        pool = self._package.make_pool(
            sizes.get(what, shape.data_end),
            0.0 if what == "recycle_interval" else INTERVAL_SECONDS,
            0 if what == "consumer_count" else shape.consumers,
            0 if what == "max_inflight_slices" else shape.slots,
        )
        pool.shutdown()
        self._package.drop(pool)

    def _faulty(self, operation: Faulty) -> Outcome:
        device = self._package.device
        device.fails_at = device.calls + operation.call
        try:
            return self.apply(operation.operation)
        finally:
            device.fails_at = 0


DOERS: dict[type[Operation], Callable[[SglangSession, Any], Outcome]] = {
    Wrap: SglangSession._wrap,
    Deliver: SglangSession._deliver,
    Fetch: SglangSession._fetch,
    Release: SglangSession._release,
    Recycle: SglangSession._recycle,
    Cancel: SglangSession._cancel,
    Tamper: SglangSession._tamper,
    PublishUnusable: SglangSession._publish_unusable,
    Shutdown: SglangSession._shutdown,
    Construct: SglangSession._construct,
    Faulty: SglangSession._faulty,
}


def _view(lease: Any) -> LeaseView:
    return LeaseView(lease.slot, lease.generation, lease.start, lease.end, lease.nbytes)


def _bad_backing(what: str, shape: Shape) -> dict[str, Any]:
    size = shape.data_end
    backing = {
        "backing-dtype": lambda: torch.zeros(size, dtype=torch.int8),
        "backing-size": lambda: torch.zeros(size - 1, dtype=torch.uint8),
        "backing-strided": lambda: torch.zeros(2 * size, dtype=torch.uint8)[::2],
    }[what]()
    return {
        "memory_size": size,
        "byte_tensor": on_device(backing),
        "base_address": backing.data_ptr(),
        "device_id": 0,
        "consumer_count": shape.consumers,
        "recycle_interval": INTERVAL_SECONDS,
        "transport_name": "CUDA IPC",
        "max_inflight_slices": shape.slots,
    }


class SglangSubject:
    """Makes the package's pools on host memory."""

    def __init__(self, package: Package) -> None:
        self._package = package

    def describe(self) -> Description:
        """What the package's pool is and has; it makes passes by itself, but neither revokes nor retires."""
        return Description(
            name=f"sglang {self._package.version} MmItemMemoryPool",
            device="host memory in place of cuda:0 (no GPU, no driver)",
            simulated=True,
            level="C",
            capabilities=frozenset({"words", "ranges", "slots", "faults", "tamper", "preset"}),
            operations=frozenset(kind.__name__ for kind in DOERS),
            protocol="generation-equality",
            fit="any",
            slot_order="any",
            replaced=(
                "cuStreamWriteValue32 and cuStreamWaitValue32 act at once on host words; "
                "device memory and its IPC handles are memfds"
            ),
        )

    def open(self, shape: Shape) -> SglangSession:
        """Make one pool; raises ValueError for control words or a limit that the package does not have."""
        if shape.word_bytes != 4:
            raise ValueError(f"the sglang pool has control words of 4 bytes, not {shape.word_bytes}")
        if shape.generation_limit != LIMIT:
            raise ValueError(f"the sglang pool's last generation is {LIMIT}, not {shape.generation_limit}")
        return SglangSession(self._package, shape)


def make(device: str = "sim") -> SglangSubject:
    """The factory for `--subject`; raises ValueError, with a sentence, where sglang or the device cannot be had."""
    if device != "sim":
        raise ValueError(f'this subject puts host memory under the sglang pool: its device is "sim", not "{device}"')
    return SglangSubject(load())
