"""Feature transport: the tensors of one request, published whole or not at all, and given back to each rank (TRN).

A request is a mapping of named fields. Publishing puts a proxy, or a host copy when the pool is full, in place of each
tensor; the mapping then travels to the ranks by whatever road the engine has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import torch

from vmmref.driver.device import parse_device
from vmmref.errors import ArgumentError, FieldError, LeaseError, MissingProcessor, PoolClosing
from vmmref.forks import fork_count, refuse_after_fork
from vmmref.groups import Groups, Ranks, declared_speakers
from vmmref.lease import PoolLease
from vmmref.packed import PackedTensorProxy
from vmmref.pool import Publication, VmmMemoryPool
from vmmref.proxy import TensorProxy, device_name
from vmmref.unwind import note_failure
from vmmref_models.reasons import Reason

_log = logging.getLogger("vmmref")

Fields = MutableMapping[str, Any]
"""Name -> tensor to publish, or any other value, which stays as it is."""

_PROXIES = (TensorProxy, PackedTensorProxy)
_CONTAINERS = (list, tuple, set, frozenset, deque)
_Item = TypeVar("_Item")


class TransportStats(NamedTuple):
    """What a transport has published so far; a request that was rolled back does not count."""

    requests: int
    pooled: int
    """Tensors that travelled through the pool."""
    host_copies: int
    """Tensors that travelled as host copies, because the pool was full (TRN-4)."""
    host_bytes: int
    unfinished: int
    """Requests whose rollback has failed in part and will be tried again."""


class _Terms(NamedTuple):
    """How a request is published: which fields get a lease each, and who acknowledges for whom."""

    single: Collection[str]
    groups: Groups | None


class _Placed(NamedTuple):
    """A field whose tensor was replaced."""

    fields: Fields
    name: str
    tensor: torch.Tensor
    value: Any

    def restore(self) -> None:
        """Put the tensor back, unless somebody has put something else there since."""
        if self.fields.get(self.name) is self.value:
            self.fields[self.name] = self.tensor


class PublishedRequest:
    """A request in the pool. Give it to `FeatureTransport.cancel` while its fields have not been handed on.

    Holds on to the tensors for that; drop it once the fields have left.
    """

    def __init__(self, pool: VmmMemoryPool, tensors: Mapping[str, torch.Tensor]) -> None:
        self._pool = pool
        self._tensors = tensors
        self._lock = threading.Lock()
        self._leases: list[PoolLease] = []
        self._placed: list[_Placed] = []
        self._values: dict[str, Any] = {}

    @property
    def leases(self) -> tuple[PoolLease, ...]:
        """The leases that the request was published in, less those that were cancelled."""
        return tuple(self._leases)

    def _place(self, fields: Fields) -> None:
        for name, value in self._values.items():
            # Noted first: an assignment that fails may have been made all the same.
            self._placed.append(_Placed(fields, name, self._tensors[name], value))
            fields[name] = value

    def _undo(self) -> list[BaseException]:
        """Set the fields back and cancel the leases; what failed stays noted for the next call, and why is returned."""
        failures: list[BaseException] = []
        with self._lock:
            self._placed = _each(self._placed, _Placed.restore, failures)
            self._leases = _each(self._leases, self._cancel, failures)
        return failures

    def _cancel(self, lease: PoolLease) -> None:
        try:
            self._pool.cancel_lease(lease)
        except PoolClosing:
            # The shutdown ends every lease itself.
            return
        except LeaseError as error:
            # Ended already is what was wanted; the pool ends a lease itself when waiting for it failed (PUB-3).
            if error.reason is not Reason.INACTIVE_LEASE:
                raise

    @property
    def _undone(self) -> bool:
        return not self._leases and not self._placed


class FeatureTransport:
    """Publishes requests through `pool`, on the producer's side; `receive` and `abort` are the consumers' side.

    `processor` is the model's multimodal processor, which knows the fields of a request: the transport only insists
    that there is one, and keeps it for its owner. Raises MissingProcessor without one (TRN-1). The pool stays the
    caller's, who shuts it down. Thread-safe, as long as no two threads or tasks publish the same fields at a time.
    """

    def __init__(self, pool: VmmMemoryPool, *, processor: Any = None) -> None:
        if processor is None:
            # TRN-1: without its list of features everything would silently travel as host copies.
            message = "A CUDA VMM-enabled model must provide a multimodal processor, got None"
            raise MissingProcessor(Reason.BAD_ARGUMENT, "TRN-1", message)
        self.processor = processor
        self._forks = fork_count()
        self._pool = pool
        self._lock = threading.Lock()
        self._unfinished: dict[PublishedRequest, None] = {}
        self._counts = TransportStats(0, 0, 0, 0, 0)
        self._warned = False
        # One thread: what is given to it for an abandoned request then runs after that request's publication.
        self._thread = ThreadPoolExecutor(1, "vmmref-transport")

    # ---- producer

    def publish(
        self, fields: Fields, *, single: Collection[str] = (), groups: Groups | None = None
    ) -> PublishedRequest:
        """Replace every tensor of `fields` by its proxy, or by a host copy where the pool is full (TRN-4).

        The tensors share one lease, since they are read or aborted together (PACK-1); those named in `single` get one
        each. Where the pool has no room for all together, each is tried on its own. Values that hold no tensor stay.
        `groups` as for `VmmMemoryPool.wrap_tensor`.

        All or nothing (TRN-2): when anything fails the leases are cancelled, every field holds its tensor, and the
        first error is raised with later ones as notes. Raises FieldError for a container of tensors (TRN-3),
        ArgumentError for fields that hold a proxy already, names that do not exist and bad groups, all before anything
        is taken; else as `VmmMemoryPool.wrap_tensor`.
        """
        terms = _Terms(single, groups)
        tensors = self._check(fields, terms)
        return self._place(self._take(tensors, terms), fields)

    async def publish_async(
        self, fields: Fields, *, single: Collection[str] = (), groups: Groups | None = None
    ) -> PublishedRequest:
        """As `publish`, with the waiting done in a thread; only this task touches `fields`.

        Cancelled, it leaves the fields as they were, and what the thread publishes all the same is cancelled there.
        """
        terms = _Terms(single, groups)
        tensors = self._check(fields, terms)
        future = self._thread.submit(self._take_on, self._torch_stream(), tensors, terms)
        try:
            request = await asyncio.wrap_future(future)
        except BaseException:
            # TRN-2: whatever was thrown in here; a publication that has failed by itself has undone itself.
            failed = future.done() and not future.cancelled() and future.exception() is not None
            if not failed and not future.cancel():
                self._thread.submit(self._abandon, future)
            raise
        return self._place(request, fields)

    def cancel(self, request: PublishedRequest) -> None:
        """Take a request back that was not handed on: its leases are cancelled, its fields hold their tensors again.

        The second time does nothing. Goes on behind a failure and raises the first one, with later ones as notes; what
        failed can be tried again, by this call or by `roll_back`.
        """
        _raise_first(self._undo(request))

    def roll_back(self) -> None:
        """Try again what earlier rollbacks could not do; raises as `cancel`. Each publication begins with this."""
        _raise_first(self._undo_unfinished())

    def stats(self) -> TransportStats:
        """What was published so far, and how many rollbacks are unfinished."""
        with self._lock:
            return self._counts._replace(unfinished=len(self._unfinished))

    def _check(self, fields: Fields, terms: _Terms) -> dict[str, torch.Tensor]:
        """The tensors of `fields`, by name; everything that is refused is refused here, before anything is taken."""
        # HND-7: the thread of `publish_async` stayed with the parent, so nobody would ever answer.
        refuse_after_fork(self._forks, "feature transport")
        if not isinstance(fields, MutableMapping):
            raise _refused(f"the fields of a request must be a mutable mapping, got {type(fields).__name__}")
        tensors = {}
        for name, value in fields.items():
            if isinstance(value, torch.Tensor):
                tensors[name] = value
            elif isinstance(value, _PROXIES):
                raise _refused(f"field {name!r} holds a proxy: the request was published before")
            elif holds_tensors(value):
                # TRN-3: it would be pickled by value, slowly and uncounted.
                message = (
                    f"{self._pool.transport_name} feature transport requires each feature field to contain a "
                    f"single tensor: field {name!r} holds a {type(value).__name__} of tensors"
                )
                raise FieldError(Reason.BAD_ARGUMENT, "TRN-3", message)
        single = terms.single
        unknown = [single] if isinstance(single, str) else [name for name in single if name not in fields]
        if unknown:
            raise _refused(f"single must name fields of the request, got {unknown!r}")
        declared_speakers(terms.groups, self._pool.card.consumers)
        return tensors

    def _take(self, tensors: Mapping[str, torch.Tensor], terms: _Terms) -> PublishedRequest:
        """Get every tensor into the pool, or onto the host; the fields are not touched yet."""
        for failure in self._undo_unfinished():
            _log.warning("an earlier rollback is still unfinished: %s", failure)
        request = PublishedRequest(self._pool, tensors)
        with self._whole_or_not(request):
            self._pack(request, [name for name in tensors if name not in terms.single], terms.groups)
            queued: dict[str, Publication] = {}
            for name, tensor in tensors.items():
                if name in request._values:
                    continue
                publication = self._pool.begin_publish(tensor, groups=terms.groups)
                if publication is not None:
                    request._leases.append(publication.lease)
                    queued[name] = publication
            # All copies are queued by now, so the host waits for the slowest and not for each.
            for name, publication in queued.items():
                request._values[name] = self._pool.finish_publish(publication)
            for name, tensor in tensors.items():
                if name not in request._values:
                    request._values[name] = self._host_copy(tensor)
        return request

    def _pack(self, request: PublishedRequest, names: Sequence[str], groups: Groups | None) -> None:
        """Put the named tensors into one lease, if it is worth one and the pool has the room."""
        if len(names) < 2:
            return
        proxies = self._pool.wrap_tensors([request._tensors[name] for name in names], groups)
        if proxies is not None:
            request._leases.append(proxies[0].lease)
            request._values.update(zip(names, proxies, strict=True))

    def _host_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        with self._lock:
            warn, self._warned = not self._warned, True
        if warn:
            _log.warning(
                "%s pool is full: a tensor of %d bytes travels as a host copy; later ones are only counted [TRN-4]",
                self._pool.transport_name,
                tensor.nbytes,
            )
        return host_copy(tensor)

    def _place(self, request: PublishedRequest, fields: Fields) -> PublishedRequest:
        with self._whole_or_not(request):
            request._place(fields)
        copied = [value for value in request._values.values() if isinstance(value, torch.Tensor)]
        with self._lock:
            counts = self._counts
            self._counts = counts._replace(
                requests=counts.requests + 1,
                pooled=counts.pooled + len(request._values) - len(copied),
                host_copies=counts.host_copies + len(copied),
                host_bytes=counts.host_bytes + sum(value.nbytes for value in copied),
            )
        return request

    # ---- rolling back

    @contextlib.contextmanager
    def _whole_or_not(self, request: PublishedRequest) -> Iterator[None]:
        """TRN-2: whatever fails inside undoes the request, and stays the error that is reported."""
        try:
            yield
        except BaseException as error:
            for failure in self._undo(request):
                note_failure(error, failure, "rolling the request back failed too")
            raise

    def _undo(self, request: PublishedRequest) -> list[BaseException]:
        failures = request._undo()
        with self._lock:
            # Kept here as well as by the caller, who may drop it: its leases would be nobody's.
            self._unfinished.pop(request, None)
            if not request._undone:
                self._unfinished[request] = None
        return failures

    def _undo_unfinished(self) -> list[BaseException]:
        with self._lock:
            unfinished = tuple(self._unfinished)
        return [failure for request in unfinished for failure in self._undo(request)]

    # ---- the thread of publish_async

    def _torch_stream(self) -> torch.cuda.Stream | None:
        """The stream on which torch makes the caller's tensors: another thread's current stream is another one."""
        kind, ordinal = parse_device(self._pool.card.device_name)
        return None if kind == "sim" else torch.cuda.current_stream(ordinal)

    def _take_on(
        self, stream: torch.cuda.Stream | None, tensors: Mapping[str, torch.Tensor], terms: _Terms
    ) -> PublishedRequest:
        with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
            return self._take(tensors, terms)

    def _abandon(self, publication: Future[PublishedRequest]) -> None:
        """Cancel what was published for a task that does not wait for it any more; runs behind the publication."""
        error = publication.exception()
        failures = self._undo(publication.result()) if error is None else [error]
        for failure in failures:
            _log.warning("a publication that nobody waits for any more: %s", failure)

    # ---- consumers

    @staticmethod
    def receive(
        fields: Mapping[str, Any], device: Any, consumer_count: int | None = None, consumer_rank: Ranks = None
    ) -> dict[str, Any]:
        """The request's fields with tensors on `device` in place of proxies and host copies; `fields` stays as it is.

        Acknowledges every lease for `consumer_rank`, a rank or a group (see
        `TensorProxy.reconstruct_on_target_device`). Asking again gives the same tensors; they live as long as the
        proxies. When one field fails, the rest is released for this rank, so that no lease waits for it, and the error
        is raised with later ones as notes. Raises ArgumentError for a rank or device that cannot be, and releases
        nothing then: call again with the right one.
        """
        home = _torch_device(device)
        holders = _holders(fields, consumer_count, consumer_rank)
        try:
            return {
                name: _arrived(value, device, home, consumer_count, consumer_rank) for name, value in fields.items()
            }
        except BaseException as error:
            for failure in _release(holders, consumer_count, consumer_rank, device):
                note_failure(error, failure, "releasing the rest failed too")
            raise

    @staticmethod
    def abort(
        fields: Mapping[str, Any],
        consumer_count: int | None = None,
        consumer_rank: Ranks = None,
        device: Any = None,
    ) -> None:
        """Acknowledge for one rank, without reading, whatever of the request it has not read or released before.

        `device` as for `TensorProxy.release_without_reconstruction`. Goes on behind a failure and raises the first one,
        with later ones as notes; calling again tries those again.
        """
        holders = _holders(fields, consumer_count, consumer_rank)
        _raise_first(_release(holders, consumer_count, consumer_rank, device))


def holds_tensors(value: Any) -> bool:
    """Whether a list, tuple, set, deque or mapping has a tensor or a proxy in it, at any depth."""
    seen: set[int] = set()
    inside = [value]
    while inside:
        each = inside.pop()
        if isinstance(each, (torch.Tensor, *_PROXIES)):
            return True
        if id(each) in seen or not isinstance(each, (*_CONTAINERS, Mapping)):
            continue
        # A container may hold itself.
        seen.add(id(each))
        inside.extend(each.values() if isinstance(each, Mapping) else each)
    return False


def host_copy(tensor: torch.Tensor) -> torch.Tensor:
    """An own, contiguous copy of `tensor` on the host, complete when this returns, whatever becomes of the source."""
    # TRN-4: not "non_blocking": the copy would be handed on before its bytes are there.
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _refused(message: str) -> ArgumentError:
    return ArgumentError(Reason.BAD_ARGUMENT, "TRN-2", message)


def _torch_device(device: Any) -> str:
    """Where torch keeps the tensors of `device`; a simulated device's memory is host memory."""
    name = device_name(device)
    return "cpu" if name.startswith("sim") else name


def _holders(fields: Mapping[str, Any], consumer_count: int | None, consumer_rank: Ranks) -> list[TensorProxy]:
    """One proxy for each lease of the request; raises ArgumentError for a rank that one of the leases does not have."""
    proxies = [value for value in fields.values() if isinstance(value, _PROXIES)]
    holders = [proxy._whole if isinstance(proxy, PackedTensorProxy) else proxy for proxy in proxies]
    for holder in holders:
        holder.check_rank(consumer_count, consumer_rank)
    return list(dict.fromkeys(holders))


def _arrived(value: Any, device: Any, home: str, consumer_count: int | None, consumer_rank: Ranks) -> Any:
    """A field's value as the consumer gets it."""
    if isinstance(value, _PROXIES):
        return value.reconstruct_on_target_device(device, consumer_count, consumer_rank)
    return value.to(home) if isinstance(value, torch.Tensor) else value


def _release(
    holders: list[TensorProxy], consumer_count: int | None, consumer_rank: Ranks, device: Any
) -> list[BaseException]:
    failures: list[BaseException] = []
    # A lease that the rank has taken part in is not acknowledged again (ACK-3).
    _each(holders, lambda proxy: proxy.release_without_reconstruction(consumer_count, consumer_rank, device), failures)
    return failures


def _each(items: list[_Item], step: Callable[[_Item], object], failures: list[BaseException]) -> list[_Item]:
    """Run `step` on every item, whatever fails; the items for which it failed, with the errors added to `failures`."""
    left = []
    for item in items:
        try:
            step(item)
        except BaseException as error:
            left.append(item)
            failures.append(error)
    return left


def _raise_first(failures: list[BaseException]) -> None:
    """Raise the first failure, if there is one, with the others as notes."""
    if failures:
        first, *later = failures
        for failure in later:
            note_failure(first, failure, "failed too")
        raise first
