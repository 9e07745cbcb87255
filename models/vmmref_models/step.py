"""What each operation does. Start reading at `step`; each part of the protocol has a file of its own.

`publishing` and `taking_back` are the producer, `consuming` is a rank, `processes` are the ranks' processes, `streams`
is the device, `allocation` the ranges and slots; `faults` says what an injected failure may leave behind.

retire-validate-max, host-published. Per slot one word R (live = 2n, retired = 2n + 1) and one word A[r] per rank (last
generation that rank r acknowledged). Queuing a piece and running it are different events; an operation that waits runs
the queued pieces that it waits for.
"""

from __future__ import annotations

from vmmref_models import consuming, faults, processes, publishing, streams, taking_back
from vmmref_models.enabled import enabled, runnable
from vmmref_models.fixed_answers import CONSTRUCTIONS, TAMPERED, attempted
from vmmref_models.observation import Observation
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
    Expire,
    Faulty,
    Fetch,
    Import,
    Join,
    Look,
    Operation,
    Outcome,
    Peek,
    Publish,
    PublishUnusable,
    Read,
    Reap,
    Reclaim,
    Recycle,
    Release,
    ReleaseAs,
    ReleaseLease,
    Return,
    Revoke,
    Shutdown,
    Tamper,
    Wrap,
    WrapPack,
    refused,
)
from vmmref_models.reasons import Reason
from vmmref_models.refusals import not_open
from vmmref_models.showing import observe
from vmmref_models.state import State, stream_names

__all__ = ["enabled", "observe", "runnable", "settle", "step"]


def step(
    state: State, operation: Operation, seen: Outcome | None = None, observed: Observation | None = None
) -> tuple[State, Outcome]:
    """The state after one operation, and its answer.

    `seen` and `observed` are what the pool under test answered and showed. They decide only what is declared free: the
    place under another policy, the order of slots that end together, how a pack is laid out, and what an injected fault
    left behind.
    Raises ValueError when the operation is not enabled, Impossible when what was seen is outside every freedom.
    """
    if not enabled(state, operation):
        raise ValueError(f"not enabled in this state: {operation}")
    match operation:
        case Publish():
            return publishing.publish(state, operation, seen, operation.nbytes)
        case Dispatch():
            return publishing.dispatch(state, operation)
        case Wrap():
            return publishing.wrap(state, operation, seen, operation.nbytes)
        case Deliver():
            return consuming.deliver(state, operation)
        case Read():
            return consuming.read(state, operation.proxy, operation.reader, seen, observed)
        case Collect():
            return consuming.collect(state, operation.reader, seen)
        case Fetch():
            return consuming.fetch(state, operation, seen, observed)
        case Release():
            return consuming.release(state, operation.proxy, observed)
        case Advance():
            return advance(state, operation)
        case Look():
            return taking_back.look(state, operation)
        case Claim():
            return taking_back.claim(state, operation)
        case Reclaim():
            return taking_back.reclaim(state, operation.wait, observed)
        case Recycle():
            return taking_back.recycle(state, observed)
        case Cancel() | Revoke():
            return taking_back.cancel(state, operation.lease, operation.wait)
        case ReleaseLease():
            return taking_back.cancel(state, operation.lease, wait=True)
        case Shutdown():
            return taking_back.shutdown(state)
        case Faulty():
            return disturbed(state, operation, seen, observed)
        case _:
            return _step_rarely(state, operation, seen, observed)


def _step_rarely(
    state: State, operation: Operation, seen: Outcome | None, observed: Observation | None
) -> tuple[State, Outcome]:
    match operation:
        case WrapPack():
            return publishing.wrap_pack(state, operation, seen)
        case CancelProxy():
            return taking_back.cancel_proxy(state, operation)
        case Expire():
            return taking_back.expire(state)
        case Confirm():
            return consuming.confirm(state, operation, observed)
        case ReleaseAs():
            return consuming.release_as(state, operation)
        case Borrow():
            return consuming.borrow(state, operation, seen, observed)
        case Peek():
            return consuming.peek(state, operation)
        case Return():
            return consuming.give_back(state, operation)
        case Import():
            return processes.import_pool(state, operation, seen)
        case DropImport():
            return processes.drop_import(state, operation, seen)
        case Crash():
            return processes.crash(state, operation)
        case Reap():
            return processes.reap(state)
        case Join():
            return processes.join(state, operation)
        case Attempt():
            return processes.swept(state, observed), attempted(operation)
        case Tamper():
            reason = TAMPERED[operation.how]
            return state, not_open(state) or refused(reason, f"the handle's {operation.how} was altered [CAN-2]")
        case PublishUnusable():
            return state, not_open(state) or refused(Reason.UNUSABLE_TENSOR, f"{operation.what} tensor [PUB-4]")
        case Construct():
            return processes.swept(state, observed), CONSTRUCTIONS[operation.what]
        case _:
            raise ValueError(f"unknown operation: {operation}")


def advance(state: State, operation: Advance) -> tuple[State, Outcome]:
    """Run the oldest piece of one stream."""
    index = stream_names(state.shape.consumers).index(operation.stream)
    return state.having(device=streams.run(state.device, index, 1)), Outcome("done")


def disturbed(
    state: State, operation: Faulty, seen: Outcome | None, observed: Observation | None
) -> tuple[State, Outcome]:
    """An operation one of whose driver calls fails; as ever when the fault came after its last call."""
    if seen is None or seen.kind != "failed":
        return step(state, operation.operation, seen, observed)
    # Nothing was queued before it, and what it queued itself has ended: so nothing is in doubt.
    after, outcome = faults.failed(state, operation.operation, seen, observed)
    return settle(after), outcome


def settle(state: State) -> State:
    """The state after everything that is queued has run: publish, retire, then the ranks in order."""
    if any(state.device.queues):
        return state.having(device=streams.emptied(state.device))
    return state
