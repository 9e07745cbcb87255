"""vmmref's own pool as a pool under test: on the simulated driver piece by piece, on a real one as fast as it runs."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from vmmref import simcuda
from vmmref.conformance import payloads
from vmmref.conformance.subject import CAPABILITIES, Description, Leftovers
from vmmref.conformance.subjects import consumer, simulation
from vmmref.conformance.subjects.apart import Apart
from vmmref.conformance.subjects.construction import construct
from vmmref.conformance.subjects.consumer import AnyProxy, Setting
from vmmref.conformance.subjects.experiments import Ground, attempt, possible
from vmmref.conformance.subjects.outcomes import outcome_of
from vmmref.conformance.subjects.parts import Parts
from vmmref.conformance.subjects.ranks import Ranks, Together
from vmmref.driver import calls, streams
from vmmref.driver.device import Device
from vmmref.lease import PoolLease
from vmmref.pool import Publication
from vmmref.recycler import Look as PoolLook
from vmmref_models import operations as op
from vmmref_models.observation import Observation, Shape
from vmmref_models.operations import DONE, FULL, LeaseView, Operation, Outcome
from vmmref_models.reasons import Reason

_DEADLINE_SECONDS = 1.0
"""By the pool's own clock, which only Expire moves."""
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
        parts: Parts | None = None,
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
        self._parts = parts or Parts()

    def describe(self) -> Description:
        """Everything that the rules can ask for; without stepping, faults and counting on real hardware."""
        missing = frozenset() if self._stepping else _NOT_ON_HARDWARE
        operations = {kind.__name__ for kind in _HANDLERS.keys() | consumer.OPERATIONS} | {"Faulty"}
        without = set() if self._stepping else {"Advance", "Faulty"}
        return Description(
            name="vmmref.VmmMemoryPool",
            device=self._device_name,
            simulated=self._simulated,
            level="C" if self._simulated else "D",
            capabilities=frozenset(CAPABILITIES) - missing,
            operations=frozenset(operations - without),
            word_bytes=(4, 8),
            attempts=possible(),
        )

    def open(self, shape: Shape) -> ReferenceSession:
        """A pool of `shape`, and the ranks of one consumer process beside it."""
        return ReferenceSession(self._device, self._granularity, shape, self._parts, self._stepping)


class ReferenceSession:
    """One pool and its consumers. The producer's side is here, the ranks live where `self._ranks` keeps them."""

    def __init__(
        self,
        device: str,
        granularity: int,
        shape: Shape,
        parts: Parts,
        stepping: bool,
    ) -> None:
        self._device_name = device
        self._granularity = granularity
        self._parts = parts
        self._now = 0.0
        """The pool's clock, in seconds; it stands still until a deadline is to pass."""
        self._shape = shape
        self._simulator = simcuda.loaded()
        self._stepping = stepping
        if self._simulator is not None:
            self._simulator.set_mode("stepping" if stepping else "threads")
        self._usage_before = simulation.usage()
        self._publications: dict[int, Publication] = {}
        self._leases: dict[int, PoolLease] = {}
        self._proxies: dict[int, list[AnyProxy]] = {}
        """By lease, of each of its tensors: one, or all of a pack."""
        self._wires: dict[tuple[int, int], bytes] = {}
        self._looks: dict[int, PoolLook] = {}
        self._kept: Counter[str] = Counter()
        self._last: Observation | None = None
        self._raw = b""
        self._surroundings = contextlib.ExitStack()
        with self._surroundings:
            self._surroundings.enter_context(streams.progress(simulation.drain if stepping else None))
            self.pool = parts.pool(
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
                lease_deadline=_DEADLINE_SECONDS,
                clock=lambda: self._now,
            )
            self._book = self.pool.stats()
            setting = Setting(device, self.pool.card.nonce, shape.consumers, stepping, parts)
            self._ranks = self._start_ranks(setting)
            self._surroundings = self._surroundings.pop_all()

    def _start_ranks(self, setting: Setting) -> Ranks:
        if not self._shape.apart:
            return Together(setting)
        try:
            return Apart(setting, self.pool.watch_consumer)
        except BaseException:
            self.pool.shutdown()
            raise

    def apply(self, operation: Operation) -> Outcome:
        """Do it on the pool; refusals and failures become outcomes."""
        try:
            outcome = self._do(operation)
            if not self._stepping:
                self._settle()
            return outcome
        except Exception as error:
            return outcome_of(error, self._kept, failed=self.pool.failure is error)

    def _do(self, operation: Operation) -> Outcome:
        if type(operation) in (op.Deliver, op.Import):
            return _HANDLERS[type(operation)](self, operation)
        if self._concerns_a_rank(operation):
            return self._ranks.apply(operation)
        if type(operation) is op.Faulty:
            return self._faulty(operation)
        return _HANDLERS[type(operation)](self, operation)

    @staticmethod
    def _concerns_a_rank(operation: Operation) -> bool:
        if type(operation) is op.Advance:
            return operation.stream not in (op.PUBLISH, op.RETIRE)
        return type(operation.operation if type(operation) is op.Faulty else operation) in consumer.OPERATIONS

    def _settle(self) -> None:
        """Let all queued work end: streams that run by themselves are compared with the model when they are empty."""
        if self.pool.life == "open":
            self.pool.synchronize()
        self._ranks.settle()

    # ---- producer

    def _publish(self, operation: op.Publish) -> Outcome:
        source = payloads.source(operation.payload, self._torch_device)
        publication = self.pool.begin_publish(source, operation.borrowable, operation.groups or None)
        if publication is None:
            return FULL
        self._publications[operation.lease] = publication
        self._leases[operation.lease] = publication.lease
        return Outcome("done", lease=_view(publication.lease))

    def _dispatch(self, operation: op.Dispatch) -> Outcome:
        self._proxies[operation.lease] = [self.pool.finish_publish(self._publications[operation.lease])]
        return DONE

    def _wrap(self, operation: op.Wrap) -> Outcome:
        source = payloads.source(operation.payload, self._torch_device)
        proxy = self.pool.wrap_tensor(source, operation.borrowable, operation.groups or None)
        if proxy is None:
            return FULL
        self._proxies[operation.lease] = [proxy]
        self._leases[operation.lease] = proxy.lease
        return Outcome("done", lease=_view(proxy.lease))

    def _wrap_pack(self, operation: op.WrapPack) -> Outcome:
        sources = [payloads.source(payload, self._torch_device) for payload in operation.payloads]
        proxies = self.pool.wrap_tensors(sources, operation.groups or None)
        if proxies is None:
            return FULL
        self._proxies[operation.lease] = [*proxies]
        self._leases[operation.lease] = proxies[0].lease
        return Outcome("done", lease=_view(proxies[0].lease), places=tuple(proxy.offset for proxy in proxies))

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

    def _cancel_proxy(self, operation: op.CancelProxy) -> Outcome:
        self.pool.cancel_proxy(self._proxies[operation.lease][operation.part])
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

    def _reap(self, _: op.Reap) -> Outcome:
        return Outcome("done", count=len(self.pool.reap()))

    def _expire(self, _: op.Expire) -> Outcome:
        self._now += 2 * _DEADLINE_SECONDS
        return DONE

    def _attempt(self, operation: op.Attempt, failing_call: int = 0) -> Outcome:
        return attempt(self._ground, operation, self._kept, failing_call)

    @property
    def _ground(self) -> Ground:
        """Where pools beside this one are made."""
        return Ground(self._device_name, self._torch_device, self._granularity, self._parts, self._simulator)

    # ---- consumers

    def _deliver(self, operation: op.Deliver) -> Outcome:
        key = (operation.lease, operation.part)
        wire = self._wires.get(key)
        if wire is None:
            wire = self._wires[key] = bytes(self._proxies[operation.lease][operation.part])
        return self._ranks.apply(operation, wire)

    def _import(self, operation: op.Import) -> Outcome:
        return self._ranks.apply(operation, self._any_form())

    def _any_form(self) -> bytes:
        """The wire form of a proxy of this pool, of whichever lease: all that an import asks of it is the pool."""
        for wire in self._wires.values():
            return wire
        card = self.pool.card
        start = card.layout.data_start
        proxy = self._parts.proxy(card, PoolLease(card.nonce, 0, 1, start, start + 256, 256), "uint8", (256,))
        # Nothing was sent yet, and the first proxy to leave is what starts the broker.
        proxy._on_serialize = self.pool._broker.start if self.pool._broker is not None else None
        return bytes(proxy)

    def _crash(self, operation: op.Crash) -> Outcome:
        self._ranks.crash(operation.rank)
        return DONE

    def _join(self, operation: op.Join) -> Outcome:
        self._ranks.join(operation.rank)
        return DONE

    # ---- the device

    @property
    def _torch_device(self) -> str:
        return "cpu" if self._simulator is not None else self._device_name

    def _advance(self, operation: op.Advance) -> Outcome:
        stream = self.pool.publish_stream if operation.stream == op.PUBLISH else self.pool.retire_stream
        stuck = simulation.step(stream, operation.stream)
        # LIV-2: by the protocol it could run now, and nobody else is told that it cannot.
        return Outcome("failed", Reason.TIMED_OUT, message=stuck) if stuck else DONE

    def _faulty(self, operation: op.Faulty) -> Outcome:
        assert self._simulator is not None, "Faulty is declared for the simulator only"
        if type(operation.operation) is op.Attempt:
            # An experiment knows itself from where on its calls are meant.
            return self._attempt(operation.operation, operation.call)
        self._simulator.fail_any(operation.call, simulation.UNKNOWN_ERROR)
        try:
            outcome = self.apply(operation.operation)
        finally:
            self._simulator.clear_faults()
        if outcome.kind == "failed":
            self._simulator.drain_all()
        return outcome

    def _construct(self, operation: op.Construct) -> Outcome:
        return construct(self._ground, operation.what)

    # ---- looking

    def observe(self) -> Observation:
        """The pool's own book, and the words as they lie in memory; equal parts are the same objects as last time."""
        life, raw, last = self.pool.life, b"", self._last
        if life == "open" or (life == "failed" and self._simulator is not None):
            raw = self._control_bytes()
        book, imports = self.pool.stats(), self._ranks.imports()
        if (
            last is not None
            and last.life == life
            and last.imports == imports
            and raw == self._raw
            and book == self._book
        ):
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
            book.set_aside_slots,
            imports,
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
            closed = self._ranks.close()
            self.pool.shutdown()
        if self._simulator is None:
            return None
        after = simulation.usage()
        kept, left = self._kept + closed.kept, closed.left
        counts = {kind: after[kind] - self._usage_before[kind] - kept[kind] + left[kind] for kind in after}
        return Leftovers({kind: count for kind, count in counts.items() if count})


def _view(lease: PoolLease) -> LeaseView:
    return LeaseView(lease.slot, lease.generation, lease.start, lease.end, lease.nbytes)


_HANDLERS: dict[type, Callable[[ReferenceSession, Any], Outcome]] = {
    op.Publish: ReferenceSession._publish,
    op.Dispatch: ReferenceSession._dispatch,
    op.Wrap: ReferenceSession._wrap,
    op.WrapPack: ReferenceSession._wrap_pack,
    op.Deliver: ReferenceSession._deliver,
    op.Import: ReferenceSession._import,
    op.Advance: ReferenceSession._advance,
    op.Look: ReferenceSession._look,
    op.Claim: ReferenceSession._claim,
    op.Reclaim: ReferenceSession._reclaim,
    op.Recycle: ReferenceSession._recycle,
    op.Cancel: ReferenceSession._cancel,
    op.Revoke: ReferenceSession._revoke,
    op.CancelProxy: ReferenceSession._cancel_proxy,
    op.ReleaseLease: ReferenceSession._release_lease,
    op.Tamper: ReferenceSession._tamper,
    op.PublishUnusable: ReferenceSession._publish_unusable,
    op.Construct: ReferenceSession._construct,
    op.Attempt: ReferenceSession._attempt,
    op.Reap: ReferenceSession._reap,
    op.Expire: ReferenceSession._expire,
    op.Shutdown: ReferenceSession._shutdown,
    op.Crash: ReferenceSession._crash,
    op.Join: ReferenceSession._join,
}
