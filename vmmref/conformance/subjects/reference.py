"""vmmref's own pool as a pool under test: on the simulated driver piece by piece, on a real one as fast as it runs."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from vmmref import errors, simcuda
from vmmref.conformance import payloads
from vmmref.conformance.subject import CAPABILITIES, Description, Leftovers
from vmmref.driver import calls, streams
from vmmref.driver.device import Device
from vmmref.imports import IMPORTS, PoolImport, close_imports
from vmmref.lease import PoolLease
from vmmref.pool import Publication, VmmMemoryPool
from vmmref.proxy import Reconstruction, TensorProxy
from vmmref.reader import RankReader
from vmmref.recycler import Look as PoolLook
from vmmref_models import operations as op
from vmmref_models.observation import Observation, Shape
from vmmref_models.operations import DONE, FULL, LeaseView, Operation, Outcome, refused
from vmmref_models.reasons import Reason

_UNKNOWN_ERROR = 999
"""CUDA_ERROR_UNKNOWN: what an injected fault answers, since no code of ours treats it specially."""
_TIMEOUT_ERROR = 702
"""CUDA_ERROR_LAUNCH_TIMEOUT: what the simulator answers to a wait that nothing can end."""
_SETTLE_SECONDS = 30.0
_GIVE_BACK = {
    "cuMemRelease": "handles",
    "cuMemUnmap": "mappings",
    "cuMemAddressFree": "reservations",
    "cuStreamDestroy": "streams",
    "cuEventDestroy": "events",
    "cuMemFreeHost": "pinned",
}
"""Calls that give something back, and what is left when the driver refuses one."""
_NOT_ON_HARDWARE = frozenset({"stepping", "faults", "leaks"})


def make(device: str = "sim") -> ReferenceSubject:
    """The factory for `vmmref check`; raises VmmRefError where there is no such device."""
    return ReferenceSubject(device)


def make_as_on_hardware(device: str = "sim") -> ReferenceSubject:
    """The same pool less what hardware lacks: a rehearsal of a run on a GPU, where streams run by themselves."""
    return ReferenceSubject(device, stepping=False)


class ReferenceSubject:
    """Makes `VmmMemoryPool`s of one granule on one device."""

    def __init__(
        self,
        device: str,
        pool_type: type[VmmMemoryPool] = VmmMemoryPool,
        reader_type: type[RankReader] = RankReader,
        stepping: bool = True,
    ) -> None:
        # A check drives hundreds of pools to the end of their generations; each says so, once, to whoever listens.
        logging.getLogger("vmmref").addHandler(logging.NullHandler())
        opened = Device(device)
        try:
            self._device = opened.name
            self._simulated = opened.simulated
            self._stepping = opened.simulated and stepping
            self._device_name = calls.device_name(opened.ordinal)
            properties = calls.allocation_properties(opened.ordinal, calls.HANDLE_POSIX_FD)
            self._granularity = calls.granularity(properties)
        finally:
            opened.close()
        self._pool_type = pool_type
        self._reader_type = reader_type

    def describe(self) -> Description:
        """Everything that the rules can ask for; without stepping, faults and counting on real hardware."""
        missing = frozenset() if self._stepping else _NOT_ON_HARDWARE
        operations = {kind.__name__ for kind in _HANDLERS} | {"Faulty"}
        without = set() if self._stepping else {"Advance", "Faulty"}
        return Description(
            name="vmmref.VmmMemoryPool",
            device=self._device_name,
            simulated=self._simulated,
            level="C" if self._simulated else "D",
            capabilities=frozenset(CAPABILITIES) - missing,
            operations=frozenset(operations - without),
            word_bytes=(4, 8),
        )

    def open(self, shape: Shape) -> ReferenceSession:
        """A pool of `shape`, and the ranks of one consumer process beside it."""
        return ReferenceSession(
            self._device, self._granularity, shape, self._pool_type, self._reader_type, self._stepping
        )


class ReferenceSession:
    """One pool and its consumers in one process. Every rank has its own stream and table, all share one import."""

    def __init__(
        self,
        device: str,
        granularity: int,
        shape: Shape,
        pool_type: type[VmmMemoryPool],
        reader_type: type[RankReader],
        stepping: bool,
    ) -> None:
        self._device_name = device
        self._granularity = granularity
        self._shape = shape
        self._simulator = simcuda.loaded()
        self._stepping = stepping
        if self._simulator is not None:
            self._simulator.set_mode("stepping" if stepping else "threads")
        self._usage_before = self._usage()
        self._publications: dict[int, Publication] = {}
        self._leases: dict[int, PoolLease] = {}
        self._proxies: dict[int, TensorProxy] = {}
        self._wires: dict[int, bytes] = {}
        self._copies: dict[int, tuple[TensorProxy, int]] = {}
        self._readers: dict[int, Reconstruction] = {}
        self._looks: dict[int, PoolLook] = {}
        self._kept: Counter[str] = Counter()
        self._last: Observation | None = None
        self._raw = b""
        self._surroundings = contextlib.ExitStack()
        with self._surroundings:
            self._surroundings.enter_context(streams.progress(_drain if stepping else None))
            # The consumers of this process are this session's; a broken kind of them is in place for its time only.
            self._surroundings.callback(setattr, PoolImport, "reader_type", PoolImport.reader_type)
            PoolImport.reader_type = reader_type
            self.pool = pool_type(
                max(granularity, shape.data_end),
                device,
                shape.consumers,
                None,
                shape.slots,
                # Both roads to an import are used, by no choice of the harness's.
                handle_type="posix_fd" if self._simulator is None or shape.consumers == 3 else "fabric",
                word_bytes=shape.word_bytes,
                generation_limit=shape.generation_limit,
                issued_generations=shape.issued,
                data_size=shape.data_size,
            )
            self._book = self.pool.stats()
            self._surroundings = self._surroundings.pop_all()

    def apply(self, operation: Operation) -> Outcome:
        """Do it on the pool; refusals and failures become outcomes."""
        try:
            if type(operation) is op.Faulty:
                return self._faulty(operation)
            outcome = _HANDLERS[type(operation)](self, operation)
            if not self._stepping:
                self._settle()
            return outcome
        except errors.VmmRefError as error:
            return self._outcome_of(error)
        except Exception as error:
            return Outcome("crashed", message=f"{type(error).__name__}: {error}")

    def _settle(self) -> None:
        """Let all queued work end: streams that run by themselves are compared with the model when they are empty."""
        if self.pool.life == "open":
            self.pool.synchronize()
        for imported in IMPORTS.find(self.pool.card.nonce):
            imported.synchronize(_SETTLE_SECONDS)

    def _outcome_of(self, error: errors.VmmRefError) -> Outcome:
        message = "\n".join([str(error), *getattr(error, "__notes__", ())])
        if isinstance(error, errors.DriverError | errors.WaitTimeout):
            if isinstance(error, errors.DriverError) and error.call in _GIVE_BACK:
                # What the driver refuses to take back stays, and is no leak of the pool's.
                self._kept[_GIVE_BACK[error.call]] += 1
            failed = self.pool.failure is error
            return Outcome("failed", Reason.POOL_FAILED if failed else error.reason, message=message)
        return refused(error.reason, message)

    # ---- producer

    def _publish(self, operation: op.Publish) -> Outcome:
        publication = self.pool.begin_publish(payloads.source(operation.payload, self._torch_device))
        if publication is None:
            return FULL
        self._publications[operation.lease] = publication
        self._leases[operation.lease] = publication.lease
        return Outcome("done", lease=_view(publication.lease))

    def _dispatch(self, operation: op.Dispatch) -> Outcome:
        self._proxies[operation.lease] = self.pool.finish_publish(self._publications[operation.lease])
        return DONE

    def _wrap(self, operation: op.Wrap) -> Outcome:
        proxy = self.pool.wrap_tensor(payloads.source(operation.payload, self._torch_device))
        if proxy is None:
            return FULL
        self._proxies[operation.lease] = proxy
        self._leases[operation.lease] = proxy.lease
        return Outcome("done", lease=_view(proxy.lease))

    def _publish_unusable(self, operation: op.PublishUnusable) -> Outcome:
        unusable = torch.empty(0) if operation.what == "empty" else torch.empty(4, device="meta")
        return DONE if self.pool.wrap_tensor(unusable) else FULL

    def _cancel(self, operation: op.Cancel) -> Outcome:
        end = self.pool.cancel_lease if operation.wait else self.pool.begin_cancel
        end(self._leases[operation.lease])
        return DONE

    def _revoke(self, operation: op.Revoke) -> Outcome:
        end = self.pool.revoke if operation.wait else self.pool.begin_cancel
        end(self._leases[operation.lease])
        return DONE

    def _release_lease(self, operation: op.ReleaseLease) -> Outcome:
        self.pool.release_lease(self._leases[operation.lease])
        return DONE

    def _tamper(self, operation: op.Tamper) -> Outcome:
        lease = self._leases[operation.lease]
        altered = {
            "generation": lambda: lease._replace(generation=lease.generation - 1),
            "offset": lambda: lease._replace(start=lease.start + 256, end=lease.end + 256),
            "pool": lambda: lease._replace(nonce=bytes(byte ^ 1 for byte in lease.nonce)),
        }
        self.pool.cancel_lease(altered[operation.how]())
        return DONE

    def _look(self, operation: op.Look) -> Outcome:
        self._looks[operation.look] = self.pool.look()
        return DONE

    def _claim(self, operation: op.Claim) -> Outcome:
        return Outcome("done", count=self.pool.claim(self._looks.pop(operation.look)))

    def _reclaim(self, operation: op.Reclaim) -> Outcome:
        return Outcome("done", count=self.pool.reclaim(operation.wait))

    def _recycle(self, _: op.Recycle) -> Outcome:
        return Outcome("done", count=self.pool.recycle())

    def _shutdown(self, _: op.Shutdown) -> Outcome:
        self.pool.shutdown()
        return DONE

    # ---- consumers

    def _deliver(self, operation: op.Deliver) -> Outcome:
        wire = self._wires.get(operation.lease)
        if wire is None:
            wire = self._wires[operation.lease] = bytes(self._proxies[operation.lease])
        copy = self.pool.proxy_type.from_bytes(wire)
        self._copies[operation.proxy] = (copy, operation.rank)
        return DONE

    def _read(self, operation: op.Read) -> Outcome:
        reading = self._readers[operation.reader] = self._begin(operation.proxy)
        return Outcome("done", cached=reading.cached)

    def _begin(self, proxy: int) -> Reconstruction:
        copy, rank = self._copies[proxy]
        return copy.begin_reconstruction(self._device_name, self._shape.consumers, rank)

    def _collect(self, operation: op.Collect) -> Outcome:
        return Outcome("done", digest=payloads.digest(self._readers.pop(operation.reader).finish()))

    def _fetch(self, operation: op.Fetch) -> Outcome:
        reading = self._begin(operation.proxy)
        return Outcome("done", digest=payloads.digest(reading.finish()), cached=reading.cached)

    def _release(self, operation: op.Release) -> Outcome:
        copy, rank = self._copies[operation.proxy]
        copy.release_without_reconstruction(self._shape.consumers, rank)
        return DONE

    # ---- the device

    @property
    def _torch_device(self) -> str:
        return "cpu" if self._simulator is not None else self._device_name

    def _advance(self, operation: op.Advance) -> Outcome:
        assert self._simulator is not None, "Advance is declared for the simulator only"
        handle = self._stream(operation.stream)
        if handle and self._simulator.step_memory_raw(handle) == simcuda.BLOCKED:
            # LIV-2: by the protocol it could run now, and nobody else is told that it cannot.
            message = f"the {operation.stream} stream is stuck: {self._simulator.peek(handle)}"
            return Outcome("failed", Reason.TIMED_OUT, message=message)
        return DONE

    def _stream(self, name: str) -> int:
        if name == op.PUBLISH:
            return self.pool.publish_stream
        if name == op.RETIRE:
            return self.pool.retire_stream
        return self._copies_stream(int(name.removeprefix("rank:")))

    def _copies_stream(self, rank: int) -> int:
        imported = IMPORTS.find(self.pool.card.nonce)
        return imported[0].rank(rank).stream.handle if imported else 0

    def _faulty(self, operation: op.Faulty) -> Outcome:
        assert self._simulator is not None, "Faulty is declared for the simulator only"
        inner = operation.operation
        copy, rank = self._copies[inner.proxy] if isinstance(inner, op.Read | op.Fetch) else (None, 0)
        took_part = copy is not None and copy.took_part(rank)
        self._simulator.fail_any(operation.call, _UNKNOWN_ERROR)
        try:
            outcome = self.apply(inner)
        finally:
            self._simulator.clear_faults()
        if outcome.kind != "failed":
            return outcome
        self._simulator.drain_all()
        if copy is None:
            return outcome
        # CON-4: whether the failed reconstruction has made the rank take part in the lease all the same.
        return dataclasses.replace(outcome, count=int(copy.took_part(rank) and not took_part))

    def _construct(self, operation: op.Construct) -> Outcome:
        before = self._usage()
        try:
            outcome = self._construct_pool(operation.what)
        except errors.VmmRefError as error:
            failed = isinstance(error, errors.DriverError)
            outcome = Outcome("failed" if failed else "refused", error.reason, message=str(error))
        after = self._usage()
        left = sum(max(0, after[kind] - before[kind]) for kind in after)
        return Outcome(outcome.kind, outcome.reason, leftovers=left, message=outcome.message)

    def _construct_pool(self, what: str) -> Outcome:
        arguments: dict[str, Any] = {
            "memory_size": self._granularity,
            "device": self._device_name,
            "recycle_interval": None,
            "max_inflight_slices": 1,
            "handle_type": "posix_fd",
        }
        arguments.update(_bad_arguments(what, self._granularity, self._torch_device))
        pool = self.pool.__class__(**arguments)
        if self._simulator is not None:
            # LIFE-4 speaks of the constructor; a call that fails at the end of a pool leaves what it did not free.
            self._simulator.clear_faults()
        pool.shutdown()
        return DONE

    def _usage(self) -> dict[str, int]:
        if self._simulator is None:
            return {}
        usage = self._simulator.usage()
        kinds = ("handles", "mappings", "reservations", "descriptors", "streams", "events", "pinned")
        return {kind: getattr(usage, kind) for kind in kinds}

    # ---- looking

    def observe(self) -> Observation:
        """The pool's own book, and the words as they lie in memory; equal parts are the same objects as last time."""
        life, raw, last = self.pool.life, b"", self._last
        if life == "open" or (life == "failed" and self._simulator is not None):
            raw = self._control_bytes()
        book = self.pool.stats()
        if last is not None and last.life == life and raw == self._raw and book == self._book:
            return last
        if last is None or book.leases != self._book.leases:
            self._leases_seen = tuple([_view(lease) for lease in book.leases])
        self._last = Observation(
            life,
            book.free_ranges,
            self._leases_seen,
            book.retiring_slots,
            book.free_slots,
            book.retired_slots,
            book.generations,
            last.words if last is not None and raw == self._raw else self._words(raw),
            book.generations_left,
        )
        self._book, self._raw = book, raw
        return self._last

    def _words(self, raw: bytes) -> tuple[tuple[int, ...], ...] | None:
        if not raw:
            return None
        words = iter(memoryview(raw).cast("I" if self._shape.word_bytes == 4 else "Q").tolist())
        # One iterator, as often as a slot has words: each tuple takes the next so many.
        return tuple(zip(*[words] * (1 + self._shape.consumers), strict=True))

    def _control_bytes(self) -> bytes:
        if self._simulator is not None:
            return self._simulator.read_bytes(self.pool.address, self._shape.control_bytes)
        return self.pool.look().raw

    def close(self) -> Leftovers | None:
        """Drop the consumers' import, end the pool, count what is left."""
        with self._surroundings:
            close_imports(self.pool.card.nonce)
            self.pool.shutdown()
        if self._simulator is None:
            return None
        after = self._usage()
        counts = {kind: after[kind] - self._usage_before[kind] - self._kept[kind] for kind in after}
        return Leftovers({kind: count for kind, count in counts.items() if count})


def _drain(event: int) -> None:
    """Let a stepping simulator run what an event stands for: nobody else does while the host waits."""
    try:
        calls.synchronize_event(event)
    except errors.DriverError as error:
        if error.result != _TIMEOUT_ERROR:
            raise
        raise errors.WaitTimeout(Reason.TIMED_OUT, "LIFE-5", f"nothing queued can end this wait: {error}") from error


def _view(lease: PoolLease) -> LeaseView:
    return LeaseView(lease.slot, lease.generation, lease.start, lease.end, lease.nbytes)


def _bad_arguments(what: str, granularity: int, torch_device: str) -> dict[str, Any]:
    """The one argument that is wrong with a pool to be refused; none for "valid"."""
    memory = {"memory_size": granularity}
    wrong: dict[str, Callable[[], dict[str, Any]]] = {
        "valid": dict,
        "memory_size": lambda: {"memory_size": 0},
        "consumer_count": lambda: {"consumer_count": 0},
        "max_inflight_slices": lambda: {"max_inflight_slices": -1},
        "recycle_interval": lambda: {"recycle_interval": 0},
        "below-granule": lambda: {"memory_size": granularity // 2},
        "control-only": lambda: {"max_inflight_slices": granularity // 8},
        "backing-dtype": lambda: memory | {"byte_tensor": torch.empty(8, dtype=torch.int32, device=torch_device)},
        "backing-size": lambda: memory | {"byte_tensor": torch.empty(8, dtype=torch.uint8, device=torch_device)},
        "backing-strided": lambda: memory | {"byte_tensor": _strided_bytes(granularity, torch_device)},
    }
    return wrong[what]()


def _strided_bytes(size: int, torch_device: str) -> Any:
    """A uint8 tensor of enough elements that all lie on one byte."""
    return torch.zeros(1, dtype=torch.uint8, device=torch_device).expand(size)


_HANDLERS: dict[type, Callable[[ReferenceSession, Any], Outcome]] = {
    op.Publish: ReferenceSession._publish,
    op.Dispatch: ReferenceSession._dispatch,
    op.Wrap: ReferenceSession._wrap,
    op.Deliver: ReferenceSession._deliver,
    op.Read: ReferenceSession._read,
    op.Collect: ReferenceSession._collect,
    op.Fetch: ReferenceSession._fetch,
    op.Release: ReferenceSession._release,
    op.Advance: ReferenceSession._advance,
    op.Look: ReferenceSession._look,
    op.Claim: ReferenceSession._claim,
    op.Reclaim: ReferenceSession._reclaim,
    op.Recycle: ReferenceSession._recycle,
    op.Cancel: ReferenceSession._cancel,
    op.Revoke: ReferenceSession._revoke,
    op.ReleaseLease: ReferenceSession._release_lease,
    op.Tamper: ReferenceSession._tamper,
    op.PublishUnusable: ReferenceSession._publish_unusable,
    op.Construct: ReferenceSession._construct,
    op.Shutdown: ReferenceSession._shutdown,
}
