"""Simpler sequences that may break the same rule: without a lease, in a smaller pool, of plainer operations.

Every function proposes; whether the rule is still broken is for the shrinker to find out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from vmmref.conformance import payloads
from vmmref.conformance.tokens import KINDS
from vmmref_models.observation import ALIGNMENT, Shape
from vmmref_models.operations import (
    Advance,
    Attempt,
    Borrow,
    Cancel,
    CancelProxy,
    Claim,
    Collect,
    Confirm,
    Crash,
    Deliver,
    Dispatch,
    DropImport,
    Faulty,
    Fetch,
    Import,
    Join,
    Look,
    Operation,
    Payload,
    Peek,
    Publish,
    Read,
    Reap,
    Reclaim,
    Recycle,
    Release,
    ReleaseAs,
    Return,
    Revoke,
    Wrap,
    WrapPack,
)

CONSUMING = (Deliver, Read, Fetch, Collect, Release, Confirm, ReleaseAs, Borrow, Peek, Return, Advance)
DYING = (Crash, Reap, Join)
SMALL_SEEDS = 10
"""An experiment that fails is tried with this many other seeds: which one it takes says nothing."""


def plainness(operation: Operation) -> int:
    """How far an operation is from the plainest of its kind."""
    if isinstance(operation, Faulty):
        return 2000 + operation.call + plainness(operation.operation)
    if isinstance(operation, Publish | Wrap):
        terms = 500 * operation.borrowable + 500 * len(operation.groups) + sum(map(len, operation.groups))
        return terms + _payload_plainness(operation.payload, operation.nbytes)
    if isinstance(operation, WrapPack):
        parts = zip(operation.payloads, operation.sizes, strict=True)
        terms = 4000 * len(operation.payloads) + 500 * len(operation.groups) + sum(map(len, operation.groups))
        return terms + sum(_payload_plainness(payload, size) for payload, size in parts)
    if isinstance(operation, Attempt):
        return operation.seed
    if isinstance(operation, ReleaseAs):
        return len(operation.ranks) + sum(operation.ranks)
    if isinstance(operation, Deliver):
        return operation.rank + operation.part
    if isinstance(operation, Crash | Join | Import | DropImport):
        return operation.rank
    if isinstance(operation, Cancel | Revoke | Reclaim):
        return 0 if operation.wait else 1
    return 0


def _payload_plainness(payload: Payload, nbytes: int) -> int:
    plain = payload.dtype == "uint8" and len(payload.shape) == 1
    return nbytes + (0 if plain else 1000) + (0 if payload.layout == "contiguous" else 1000)


def lease_tokens(operations: Sequence[Operation]) -> dict[int, int]:
    """Index of an operation -> the lease it has to do with, through proxies and readers too."""
    lease_of: dict[tuple[str, int], int] = {}
    owners: dict[int, int] = {}
    for index, operation in enumerate(operations):
        inner: Any = operation.operation if isinstance(operation, Faulty) else operation
        lease = getattr(inner, "lease", None)
        for kind in ("proxy", "reader", "view"):
            token = getattr(inner, kind, None)
            if token is not None and lease is None:
                lease = lease_of.get((kind, token))
        if lease is None:
            continue
        owners[index] = lease
        for kind in ("proxy", "reader", "view"):
            if getattr(inner, kind, None) is not None:
                lease_of[kind, getattr(inner, kind)] = lease
    return owners


def merged(operations: tuple[Operation, ...]) -> Iterator[tuple[Operation, ...]]:
    """One operation in the place of the two or three that say the same in parts."""
    for index, operation in enumerate(operations):
        rest = operations[index + 1 :]
        if isinstance(operation, Publish):
            wrap = Wrap(*[getattr(operation, entry.name) for entry in fields(operation)])
            yield (*operations[:index], wrap, *(o for o in rest if o != Dispatch(operation.lease)))
        if isinstance(operation, Read):
            fetch = Fetch(operation.proxy, operation.reader)
            collect = Collect(operation.reader)
            yield (*operations[:index], fetch, *(o for o in rest if o != collect))
            yield (*operations[:index], *(fetch if o == collect else o for o in rest))
        if isinstance(operation, Claim | Reclaim):
            looks = [o for o in operations[:index] if not isinstance(o, Look)]
            yield (*looks, Recycle(), *(o for o in rest if not isinstance(o, Look | Claim | Reclaim)))


def cancelling(operations: tuple[Operation, ...]) -> Iterator[tuple[Operation, ...]]:
    """The producer cancels a lease, in the place of all that consumers and recycling do with it."""
    owners = lease_tokens(operations)
    for index, operation in enumerate(operations):
        if not isinstance(operation, Recycle | Claim | Reclaim):
            continue
        for token in dict.fromkeys(owners.values()):
            for wait in (True, False):
                before = (o for i, o in enumerate(operations[:index]) if owners.get(i) != token or _publishes(o))
                yield (*before, Cancel(token, wait), *operations[index + 1 :])


def _publishes(operation: Operation) -> bool:
    return isinstance(operation, Publish | Wrap | WrapPack | Dispatch)


def with_less(operations: tuple[Operation, ...]) -> Iterator[tuple[Operation, ...]]:
    """The sequence as it is, with one rank, without readers, without deaths, and without any one lease."""
    yield operations
    yield tuple(o for o in operations if not (isinstance(o, Deliver) and o.rank))
    yield tuple(replace(o, rank=0) if isinstance(o, Deliver) else o for o in operations)
    yield tuple(o for o in operations if not isinstance(o, CONSUMING))
    yield tuple(o for o in operations if not isinstance(o, DYING))
    owners = lease_tokens(operations)
    for token in dict.fromkeys(owners.values()):
        yield tuple(o for index, o in enumerate(operations) if owners.get(index) != token)


def fitted(operation: Operation, consumers: int) -> Operation:
    """The operation in a pool of so many ranks: groups without those that are not there any more."""
    if isinstance(operation, Faulty):
        return replace(operation, operation=fitted(operation.operation, consumers))  # type: ignore[arg-type]
    if not isinstance(operation, Publish | Wrap | WrapPack) or not operation.groups:
        return operation
    groups = [tuple(rank for rank in group if rank < consumers) for group in operation.groups]
    return replace(operation, groups=tuple(group for group in groups if group))


def smaller(shape: Shape) -> Iterator[Shape]:
    """Pools with less of one thing."""
    if shape.apart:
        yield replace(shape, apart=False)
    if any(shape.issued):
        yield replace(shape, issued=())
        yield replace(shape, issued=(shape.generation_limit,) * shape.slots)
    for slots in range(1, shape.slots):
        yield replace(shape, slots=slots, issued=shape.issued[:slots])
    for consumers in range(1, shape.consumers):
        yield replace(shape, consumers=consumers)
    for units in range(1, shape.data_size // ALIGNMENT):
        yield replace(shape, data_size=units * ALIGNMENT)
    if shape.word_bytes > 4:
        yield replace(shape, word_bytes=4)


def plainer(operation: Operation) -> Iterator[Operation]:
    """Operations of the same meaning that are simpler in one respect."""
    if isinstance(operation, Faulty):
        yield operation.operation
        for call in range(1, operation.call):
            yield replace(operation, call=call)
        for inner in plainer(operation.operation):
            yield replace(operation, operation=inner)  # type: ignore[arg-type]
    elif isinstance(operation, Publish | Wrap):
        yield from _plainer_terms(operation)
        for payload in _plainer_payloads(operation.payload, operation.nbytes):
            size, digest = payloads.nbytes(payload), payloads.expected_digest(payload)
            yield replace(operation, payload=payload, nbytes=size, digest=digest)
    elif isinstance(operation, WrapPack):
        yield from _plainer_pack(operation)
    elif isinstance(operation, Deliver):
        if operation.part:
            yield replace(operation, part=0)
        for rank in range(operation.rank):
            yield replace(operation, rank=rank)
    elif isinstance(operation, Crash | Join | Import | DropImport):
        for rank in range(operation.rank):
            yield replace(operation, rank=rank)
    elif isinstance(operation, ReleaseAs):
        for index in range(len(operation.ranks)):
            yield replace(operation, ranks=operation.ranks[:index] + operation.ranks[index + 1 :])
    elif isinstance(operation, CancelProxy):
        yield Cancel(operation.lease, wait=True)
    elif isinstance(operation, Attempt):
        for seed in range(min(operation.seed, SMALL_SEEDS)):
            yield replace(operation, seed=seed)
    elif isinstance(operation, Cancel | Revoke | Reclaim) and not operation.wait:
        yield replace(operation, wait=True)


def _plainer_terms(operation: Publish | Wrap | WrapPack) -> Iterator[Operation]:
    """For each rank alone, for fewer groups, or for no looks in place."""
    if operation.groups:
        yield replace(operation, groups=())
        yield replace(operation, groups=(tuple(sorted(rank for group in operation.groups for rank in group)),))
    if not isinstance(operation, WrapPack) and operation.borrowable:
        yield replace(operation, borrowable=False)


def _plainer_pack(operation: WrapPack) -> Iterator[Operation]:
    """A lease of one of the tensors, a pack of fewer of them, or of plainer ones."""
    parts = tuple(zip(operation.payloads, operation.sizes, operation.digests, strict=True))
    for payload, size, digest in parts:
        yield Wrap(operation.lease, payload, size, digest, operation.groups)
    yield from _plainer_terms(operation)
    for index in range(len(parts)):
        if len(parts) > 1:
            yield _repacked(operation, [payload for payload, _, _ in parts[:index] + parts[index + 1 :]])
        for plain in _plainer_payloads(parts[index][0], parts[index][1]):
            tensors = [*operation.payloads]
            tensors[index] = plain
            yield _repacked(operation, tensors)


def _repacked(operation: WrapPack, tensors: Sequence[Payload]) -> WrapPack:
    sizes, digests = map(payloads.nbytes, tensors), map(payloads.expected_digest, tensors)
    return replace(operation, payloads=tuple(tensors), sizes=tuple(sizes), digests=tuple(digests))


def _plainer_payloads(payload: Payload, nbytes: int) -> Iterator[Payload]:
    whole = nbytes // ALIGNMENT
    for length in sorted({1, *(unit * ALIGNMENT for unit in range(1, whole + 1)), nbytes}):
        yield Payload("uint8", (length,), payload.seed)
    yield replace(payload, layout="contiguous")
    yield replace(payload, shape=())


def renumbered(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """The same operations with tokens 1, 2, ... in the order of their first use, counted for each kind.

    Payloads get their lease's number as seed, so that equal findings look equal.
    """
    names: dict[tuple[str, int], int] = {}
    given: dict[str, int] = {}

    def renamed(operation: Any) -> Any:
        if isinstance(operation, Faulty):
            return replace(operation, operation=renamed(operation.operation))
        changes: dict[str, Any] = {}
        for kind in KINDS:
            if not any(entry.name == kind for entry in fields(operation)):
                continue
            token = getattr(operation, kind)
            if (kind, token) not in names:
                given[kind] = given.get(kind, 0) + 1
                names[kind, token] = given[kind]
            changes[kind] = names[kind, token]
        if isinstance(operation, Publish | Wrap):
            payload = replace(operation.payload, seed=changes["lease"])
            changes |= {"payload": payload, "digest": payloads.expected_digest(payload)}
        if isinstance(operation, WrapPack):
            seeded = [replace(tensor, seed=changes["lease"] + part) for part, tensor in enumerate(operation.payloads)]
            repacked = _repacked(operation, seeded)
            changes |= {"payloads": repacked.payloads, "digests": repacked.digests}
        return replace(operation, **changes) if changes else operation

    return tuple(renamed(operation) for operation in operations)
