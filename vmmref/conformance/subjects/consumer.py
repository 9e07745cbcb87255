"""The ranks of one pool in one process: what they do with the proxies that reach them, and what comes of it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch

from vmmref import simcuda
from vmmref.conformance import payloads
from vmmref.conformance.subjects import simulation
from vmmref.conformance.subjects.outcomes import outcome_of
from vmmref.conformance.subjects.parts import Parts
from vmmref.errors import WireFormError
from vmmref.groups import Ranks, group_of
from vmmref.imported import PoolImport
from vmmref.imports import IMPORTS, close_imports
from vmmref.packed import PackedTensorProxy
from vmmref.proxy import Reconstruction, TensorProxy
from vmmref_models import operations as op
from vmmref_models.operations import DONE, Operation, Outcome
from vmmref_models.reasons import Reason

_SETTLE_SECONDS = 30.0

AnyProxy: TypeAlias = TensorProxy | PackedTensorProxy


class Copy(NamedTuple):
    """One copy of a proxy in a rank."""

    proxy: AnyProxy
    rank: int
    acting: Ranks
    """Whom the rank names when it uses this copy: the group that it speaks for, or itself alone (ACK-4)."""

    @property
    def whole(self) -> TensorProxy:
        """What the rank takes part in: the proxy itself, or the whole pack that it is a part of."""
        return self.proxy._whole if isinstance(self.proxy, PackedTensorProxy) else self.proxy


def copy_of(proxy: AnyProxy, rank: int) -> Copy:
    """A copy of a proxy as rank `rank` uses it."""
    copy = Copy(proxy, rank, rank)
    group = group_of(rank, copy.whole.speakers)
    return copy if len(group) < 2 else copy._replace(acting=(rank, *sorted(group - {rank})))


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """The pool that the ranks of a process consume, and the classes that do it for them."""

    device: str
    """Name of the device that they act on, "sim:0"."""
    nonce: bytes
    consumers: int
    stepping: bool
    """Whether a stream advances one piece at a time, when told."""
    parts: Parts


class Consumer:
    """Ranks that share one import of the pool. Every one of them has a stream and a table of its own.

    While it is open its classes are in place for all imports of this process: one at a time, please.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.kept: Counter[str] = Counter()
        """What the driver has refused to take back, by kind."""
        self._copies: dict[int, Copy] = {}
        self._readers: dict[int, Reconstruction] = {}
        self._views: dict[int, tuple[Copy, torch.Tensor]] = {}
        self._types_before = PoolImport.reader_type, IMPORTS.import_type
        PoolImport.reader_type, IMPORTS.import_type = setting.parts.reader, setting.parts.pool_import

    def apply(self, operation: Operation, form: bytes = b"") -> Outcome:
        """Do one of OPERATIONS; refusals and failures become outcomes.

        `form` is a proxy's wire form: the one that a Deliver brings; for Import any one of the pool.
        """
        try:
            if type(operation) is op.Faulty:
                return self._faulty(operation)
            if type(operation) is op.Deliver:
                return self._deliver(operation, form)
            if type(operation) is op.Import:
                return self._import(form)
            return _HANDLERS[type(operation)](self, operation)
        except Exception as error:
            return outcome_of(error, self.kept)

    def _deliver(self, operation: op.Deliver, form: bytes) -> Outcome:
        self._copies[operation.proxy] = copy_of(self._parsed(form), operation.rank)
        return DONE

    def _parsed(self, form: bytes) -> AnyProxy:
        parts = self.setting.parts
        try:
            return parts.proxy.from_bytes(form)
        except WireFormError:
            return parts.packed.from_bytes(form)

    # ---- reading

    def _read(self, operation: op.Read) -> Outcome:
        reading = self._readers[operation.reader] = self._begin(operation.proxy)
        return Outcome("done", cached=reading.cached)

    def _begin(self, proxy: int) -> Reconstruction:
        copy = self._copies[proxy]
        assert isinstance(copy.proxy, TensorProxy), "a pack is not read in parts"
        return copy.proxy.begin_reconstruction(self.setting.device, self.setting.consumers, copy.acting)

    def _collect(self, operation: op.Collect) -> Outcome:
        return Outcome("done", digest=payloads.digest(self._readers.pop(operation.reader).finish()))

    def _fetch(self, operation: op.Fetch) -> Outcome:
        copy = self._copies[operation.proxy]
        if isinstance(copy.proxy, PackedTensorProxy):
            return self._fetch_part(copy)
        reading = self._begin(operation.proxy)
        return Outcome("done", digest=payloads.digest(reading.finish()), cached=reading.cached)

    def _fetch_part(self, copy: Copy) -> Outcome:
        # A pack is copied out by the first read of any of its tensors: a rank that took part before has its tensor.
        cached = copy.whole.took_part(copy.rank)
        tensor = copy.proxy.reconstruct_on_target_device(self.setting.device, self.setting.consumers, copy.acting)
        return Outcome("done", digest=payloads.digest(tensor), cached=cached)

    # ---- looking in place

    def _borrow(self, operation: op.Borrow) -> Outcome:
        copy = self._copies[operation.proxy]
        setting = self.setting
        tensor = copy.whole.borrow_on_target_device(setting.device, setting.consumers, copy.acting)
        self._views[operation.view] = (copy, tensor)
        return DONE

    def _peek(self, operation: op.Peek) -> Outcome:
        return Outcome("done", digest=payloads.digest(self._views[operation.view][1]))

    def _return(self, operation: op.Return) -> Outcome:
        copy, _ = self._views.pop(operation.view)
        copy.whole.release_borrowed(self.setting.consumers, copy.acting)
        return DONE

    # ---- acknowledging without reading

    def _release(self, operation: op.Release) -> Outcome:
        copy = self._copies[operation.proxy]
        copy.proxy.release_without_reconstruction(self.setting.consumers, copy.acting)
        return DONE

    def _confirm(self, operation: op.Confirm) -> Outcome:
        copy = self._copies[operation.proxy]
        copy.proxy.acknowledge_consumption(self.setting.consumers, copy.acting)
        return DONE

    def _release_as(self, operation: op.ReleaseAs) -> Outcome:
        copy = self._copies[operation.proxy]
        copy.proxy.release_without_reconstruction(self.setting.consumers, operation.ranks)
        return DONE

    # ---- the import, and the device

    def _import(self, form: bytes) -> Outcome:
        IMPORTS.open(self._parsed(form).card, self.setting.device)
        return DONE

    def _drop_import(self, _: op.DropImport) -> Outcome:
        before = self.imports()
        close_imports(self.setting.nonce)
        return Outcome("done", count=before - self.imports())

    def _advance(self, operation: op.Advance) -> Outcome:
        imported = IMPORTS.find(self.setting.nonce)
        rank = int(operation.stream.removeprefix("rank:"))
        stuck = simulation.step(imported[0].rank(rank).stream.handle if imported else 0, operation.stream)
        # LIV-2: by the protocol it could run now, and nobody else is told that it cannot.
        return Outcome("failed", Reason.TIMED_OUT, message=stuck) if stuck else DONE

    def _faulty(self, operation: op.Faulty) -> Outcome:
        simulator = simcuda.loaded()
        assert simulator is not None, "Faulty is declared for the simulator only"
        inner = operation.operation
        assert isinstance(inner, op.Read | op.Fetch | op.Borrow), "of a rank's operations only these are made to fail"
        copy = self._copies[inner.proxy]
        took_part = copy.whole.took_part(copy.rank)
        simulator.fail_any(operation.call, simulation.UNKNOWN_ERROR)
        try:
            outcome = self.apply(inner)
        finally:
            simulator.clear_faults()
        if outcome.kind != "failed":
            return outcome
        simulator.drain_all()
        # CON-4: whether the failed reconstruction has made the rank take part in the lease all the same.
        return dataclasses.replace(outcome, count=int(copy.whole.took_part(copy.rank) and not took_part))

    def imports(self) -> int:
        """How many imports of the pool this process holds."""
        return len(IMPORTS.find(self.setting.nonce))

    def settle(self) -> None:
        """Let everything queued so far end."""
        for imported in IMPORTS.find(self.setting.nonce):
            imported.synchronize(_SETTLE_SECONDS)

    def close(self) -> None:
        """Drop the import; raises what that raises."""
        try:
            close_imports(self.setting.nonce)
        finally:
            PoolImport.reader_type, IMPORTS.import_type = self._types_before


_HANDLERS: dict[type, Callable[[Consumer, Any], Outcome]] = {
    op.Read: Consumer._read,
    op.Collect: Consumer._collect,
    op.Fetch: Consumer._fetch,
    op.Borrow: Consumer._borrow,
    op.Peek: Consumer._peek,
    op.Return: Consumer._return,
    op.Release: Consumer._release,
    op.Confirm: Consumer._confirm,
    op.ReleaseAs: Consumer._release_as,
    op.DropImport: Consumer._drop_import,
    op.Advance: Consumer._advance,
}

OPERATIONS: frozenset[type] = frozenset(_HANDLERS) | {op.Deliver, op.Import}
"""What a consumer does: every operation that concerns a rank, less the life of its process. Advance of its stream."""
