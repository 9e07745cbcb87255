"""Which operations make sense in a state: the tokens that they name exist, the ones that they give are new."""

from __future__ import annotations

from vmmref_models import streams
from vmmref_models.attempts import ATTEMPTS
from vmmref_models.fixed_answers import CONSTRUCTIONS, TAMPERED, UNUSABLE
from vmmref_models.operations import (
    Advance,
    Attempt,
    Borrow,
    Cancel,
    CancelProxy,
    Claim,
    Collect,
    Confirm,
    Construct,
    Crash,
    Deliver,
    Dispatch,
    DropImport,
    Faulty,
    Fetch,
    Groups,
    Import,
    Join,
    Look,
    Operation,
    Peek,
    Publish,
    PublishUnusable,
    Read,
    Recycle,
    Release,
    ReleaseAs,
    ReleaseLease,
    Return,
    Revoke,
    Tamper,
    Wrap,
    WrapPack,
)
from vmmref_models.refusals import delivered
from vmmref_models.state import State, stream_names

FAULTY_ATTEMPTS = ("request",)
"""The experiments that a failing driver call may be put into."""


def enabled(state: State, operation: Operation) -> bool:
    """Whether the operation makes sense here.

    An operation that the pool must refuse is enabled: refusing is what is checked.
    """
    match operation:
        case Publish() | Wrap() | WrapPack():
            return state.lease(operation.lease) is None and _has_bytes(operation) and _divides(state, operation.groups)
        case Dispatch():
            return state.lease(operation.lease) is not None and operation.lease not in state.dispatched
        case Deliver():
            return _may_deliver(state, operation)
        case Read() | Fetch():
            proxy = state.proxy(operation.proxy)
            is_read = proxy is not None and not (proxy.lease.is_pack and isinstance(operation, Read))
            return is_read and state.reader(operation.reader) is None
        case Collect():
            return state.reader(operation.reader) is not None
        case Release() | Confirm():
            return state.proxy(operation.proxy) is not None
        case Advance():
            return operation.stream in runnable(state)
        case Look():
            return all(snapshot.token != operation.look for snapshot in state.looks)
        case Claim():
            return any(snapshot.token == operation.look for snapshot in state.looks)
        case Cancel() | Revoke() | ReleaseLease():
            return state.lease(operation.lease) is not None
        case Tamper():
            return operation.how in TAMPERED and state.lease(operation.lease) is not None
        case Faulty():
            return operation.call > 0 and not any(state.device.queues) and _may_fail(state, operation.operation)
        case _:
            return _enabled_rarely(state, operation)


def _enabled_rarely(state: State, operation: Operation) -> bool:
    match operation:
        case CancelProxy():
            lease = state.lease(operation.lease) if operation.lease in state.dispatched else None
            return lease is not None and 0 <= operation.part < max(1, len(lease.digests))
        case ReleaseAs():
            return state.proxy(operation.proxy) is not None and not _is_a_group(state, operation)
        case Borrow():
            return state.proxy(operation.proxy) is not None and _may_borrow(state, operation)
        case Peek() | Return():
            return state.view(operation.view) is not None
        case Crash():
            return state.shape.apart and _is_alive(state, operation.rank)
        case Join():
            return operation.rank in state.consumers.dead
        case Import() | DropImport():
            return _is_alive(state, operation.rank)
        case PublishUnusable():
            return operation.what in UNUSABLE
        case Construct():
            return operation.what in CONSTRUCTIONS
        case Attempt():
            return operation.what in ATTEMPTS
        case _:
            return True


def runnable(state: State) -> tuple[str, ...]:
    """The streams whose oldest piece may run now."""
    names = stream_names(state.shape.consumers)
    return tuple([names[index] for index in range(len(names)) if streams.may_run(state.device, index)])


def _has_bytes(operation: Publish | Wrap | WrapPack) -> bool:
    if not isinstance(operation, WrapPack):
        return operation.nbytes > 0
    counts = {len(operation.payloads), len(operation.sizes), len(operation.digests)}
    return len(counts) == 1 and bool(operation.sizes) and min(operation.sizes) > 0


def _divides(state: State, groups: Groups) -> bool:
    """Whether every rank is in exactly one group, or there are no groups; no group is empty."""
    if not groups:
        return True
    ranks = [rank for group in groups for rank in group]
    return all(groups) and sorted(ranks) == list(range(state.shape.consumers))


def _is_alive(state: State, rank: int) -> bool:
    return 0 <= rank < state.shape.consumers and rank not in state.consumers.dead


def _may_deliver(state: State, operation: Deliver) -> bool:
    if operation.lease not in state.dispatched or not _is_alive(state, operation.rank):
        return False
    lease = state.lease(operation.lease)
    parts = len(lease.digests) if lease is not None else 0
    return 0 <= operation.part < max(1, parts) and state.proxy(operation.proxy) is None


def _may_borrow(state: State, operation: Borrow) -> bool:
    """A view is new; and a process that came after its rank had been given up does not borrow what was out before.

    Nobody waits for its word in such a lease, so the bytes could go away under the view: an obligation of the engine,
    which has lost the dead process's requests together with it.
    """
    if state.view(operation.view) is not None:
        return False
    proxy = delivered(state, operation.proxy)
    lease = proxy.lease
    return not (state.is_held(lease) and (lease.slot, proxy.rank) in state.allocator.excused)


def _is_a_group(state: State, operation: ReleaseAs) -> bool:
    """Whether the ranks are one that the lease waits for, with all that it acknowledges for."""
    lease, ranks = delivered(state, operation.proxy).lease, operation.ranks
    groups = lease.groups or tuple((rank,) for rank in range(state.shape.consumers))
    return any(ranks[:1] == group[:1] and sorted(ranks) == sorted(group) for group in groups)


def _may_fail(state: State, operation: Operation) -> bool:
    if isinstance(operation, Attempt) and operation.what not in FAULTY_ATTEMPTS:
        return False
    if (
        isinstance(operation, Attempt)
        and state.closed
        and any(known is not False for known in state.consumers.imported)
    ):
        # What it imports first drops the imports of ended pools, and there the failing call would be no matter of its.
        return False
    if isinstance(operation, Recycle) and not set(state.consumers.dead) <= set(state.allocator.vacant):
        # A pass counts the dead before it looks, and nobody could tell whether it had failed before or behind that.
        return False
    return enabled(state, operation)
