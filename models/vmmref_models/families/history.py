"""What predicates ask of a step: what changed, who acted, and what the past says about it."""

from __future__ import annotations

import math

from vmmref_models.observation import ALIGNMENT
from vmmref_models.operations import (
    PUBLISH,
    RETIRE,
    Advance,
    Borrow,
    Cancel,
    CancelProxy,
    Claim,
    Collect,
    Confirm,
    Dispatch,
    DropImport,
    Faulty,
    Fetch,
    Join,
    LeaseView,
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
)
from vmmref_models.reasons import Reason
from vmmref_models.rules import HELD, Broken, Change, Step, Verdict, Words
from vmmref_models.state import ACK, RETIRE_VALIDATE_MAX, Lease, Piece, Proxy, Range, State, stream_names

POOL_USES = (
    Publish,
    Dispatch,
    Wrap,
    Look,
    Claim,
    Reclaim,
    Recycle,
    Cancel,
    Revoke,
    ReleaseLease,
    Tamper,
    PublishUnusable,
    WrapPack,
    CancelProxy,
    Reap,
    Join,
)
"""What only an open pool does; consumers and a second pool are not asked here."""

PUBLISHES = (Publish, Wrap, WrapPack)
TAKES_BACK = (Reclaim, Recycle, Cancel, Revoke, CancelProxy, ReleaseLease, Shutdown)
BY_HANDLE = (Cancel, Revoke, ReleaseLease)
BY_PROXY = (Read, Fetch, Release, Confirm, ReleaseAs, Borrow)
"""What a rank does with a copy of a proxy."""


def word_name(slot: int, column: int) -> str:
    """A control word by its name in the specification."""
    return f"R of slot {slot}" if column == 0 else f"A[{column - 1}] of slot {slot}"


def word(words: tuple[tuple[int, ...], ...] | None, slot: int, column: int) -> int | None:
    """One control word as it was shown; None where nothing was."""
    if words is None or not 0 <= slot < len(words) or column >= len(words[slot]):
        return None
    return words[slot][column]


def is_open(step: Step) -> bool:
    """Whether the pool was neither closed nor failed before the step."""
    return not step.past.closed and not step.past.failed


def granted(step: Step) -> LeaseView | None:
    """The lease that a publish was granted, as it was answered."""
    return step.outcome.lease if step.outcome.kind == "done" else None


def inner(step: Step) -> Operation:
    """The operation, or the one that a fault was put into."""
    return step.operation.operation if isinstance(step.operation, Faulty) else step.operation


def proxy_used(past: State, operation: Operation) -> Proxy | None:
    """The proxy copy that a consumer's operation uses."""
    if isinstance(operation, BY_PROXY):
        return past.proxy(operation.proxy)
    if isinstance(operation, Collect):
        reader = past.reader(operation.reader)
        return past.proxy(reader.proxy) if reader is not None else None
    if isinstance(operation, Peek | Return):
        view = past.view(operation.view)
        return past.proxy(view.proxy) if view is not None else None
    return None


def speaks(proxy: Proxy) -> bool:
    """Whether the proxy's rank acknowledges for itself or its group; else it takes no part in the lease (ACK-4)."""
    return not proxy.lease.groups or proxy.lease.is_led_by(proxy.rank)


def bytes_wanted(operation: Publish | Wrap | WrapPack) -> tuple[int, int]:
    """The least and the most bytes that the lease of this operation uses: a pack may be padded (PACK-2)."""
    if not isinstance(operation, WrapPack):
        return operation.nbytes, operation.nbytes
    pairs = zip(operation.payloads, operation.sizes, strict=True)
    padding = [nbytes // max(1, math.prod(payload.shape)) - 1 for payload, nbytes in pairs]
    return sum(operation.sizes), sum(operation.sizes) + sum(padding)


def layouts(operation: Operation) -> tuple[str, ...]:
    """How the sources of a publication lie in memory."""
    if isinstance(operation, WrapPack):
        return tuple([payload.layout for payload in operation.payloads])
    return (operation.payload.layout,) if isinstance(operation, Publish | Wrap) else ()


def lease_named(past: State, operation: Operation) -> Lease | None:
    """The lease whose handle or proxy an operation uses."""
    if isinstance(operation, Cancel | Revoke | CancelProxy | ReleaseLease | Tamper | Dispatch):
        return past.lease(operation.lease)
    proxy = proxy_used(past, operation)
    return proxy.lease if proxy is not None else None


def stream_of(past: State, operation: Advance) -> int:
    """Index of the stream that an Advance runs: 0 publish, 1 retire, 2 + r rank r."""
    return stream_names(past.shape.consumers).index(operation.stream)


def acting_columns(past: State, operation: Operation) -> tuple[int, ...]:
    """The columns of words that the party at work may write (CTL-4): 0 the producer, 1 + r rank r."""
    if isinstance(operation, Advance):
        return (0,) if operation.stream in (PUBLISH, RETIRE) else (stream_of(past, operation) - 1,)
    ranks = ranks_at_work(past, operation)
    if ranks:
        return tuple([1 + rank for rank in ranks])
    return (0,) if isinstance(operation, (*POOL_USES, Shutdown)) else ()


def ranks_at_work(past: State, operation: Operation) -> tuple[int, ...]:
    """The ranks that a consumer's operation acts for."""
    if isinstance(operation, DropImport):
        return past.ranks_of(past.process_of(operation.rank))
    proxy = proxy_used(past, operation)
    return (proxy.rank,) if proxy is not None else ()


def rank_pieces(past: State, rank: int) -> tuple[Piece, ...]:
    """What is queued on the stream of a rank."""
    return past.device.queues[2 + rank]


def is_idle(past: State) -> bool:
    """Whether nothing was queued anywhere."""
    return not any(past.device.queues)


def awaited(past: State, lease: Lease, operation: Operation | None = None) -> tuple[int, ...]:
    """The ranks whose words a lease waits for: who leads a group and is not known dead (ACK-4, REAP-1).

    A whole pass counts the dead first.
    """
    speakers = lease.speakers(past.shape.consumers)
    excused, dead = past.allocator.excused, past.consumers.dead if isinstance(operation, Recycle) else ()
    if not excused and not dead:
        return speakers
    return tuple([rank for rank in speakers if rank not in dead and (lease.slot, rank) not in excused])


def is_acknowledged(past: State, lease: Lease, words: Words, operation: Operation | None = None) -> bool:
    """Whether these words show exactly this lease acknowledged by everybody whom it waits for (REC-1, ACK-5)."""
    acks, generation = words[lease.slot][1:], lease.generation
    if not lease.groups and not past.allocator.excused and not past.consumers.dead:
        return all(word == generation for word in acks)
    return all(acks[rank] == generation for rank in awaited(past, lease, operation))


def acknowledged_by_all(step: Step, lease: Lease) -> bool:
    """The same of the words as they were in memory before the step, by the history of the streams."""
    return is_acknowledged(step.past, lease, step.past.device.words, inner(step))


def possible_acks(past: State, slot: int, rank: int) -> set[int]:
    """The generations that the rank's queued work may store into A[rank] of this slot."""
    return {
        piece.lease.generation for piece in rank_pieces(past, rank) if piece.kind == ACK and piece.lease.slot == slot
    }


def is_due_ack(step: Step, change: Change, rank: int, own: Lease | None = None) -> bool:
    """Whether a word changed as this rank's acknowledgements may change it: by what it had queued, or now for `own`.

    Under another protocol only the place of the word is known, not what stands in it.
    """
    slot, column, _, new = change
    if column != 1 + rank:
        return False
    if step.policies.protocol != RETIRE_VALIDATE_MAX:
        return True
    if own is not None and (slot, new) == (own.slot, own.generation):
        return True
    return new in possible_acks(step.past, slot, rank)


def ready_word(past: State, reader: int, lease: Lease) -> int:
    """The R that this reader's copy is judged by: what its read found, or finds when it runs now (CON-5)."""
    for arrival in past.device.arrivals:
        if arrival.reader == reader and arrival.ready is not None:
            return arrival.ready
    return past.device.words[lease.slot][0]


def is_readable(past: State, operation: Collect | Fetch) -> bool:
    """Whether the lease that this operation reads is not retired before its R is read."""
    proxy = proxy_used(past, operation)
    if proxy is None:
        return False
    found = ready_word(past, operation.reader, proxy.lease)
    return found == 2 * proxy.lease.generation


def is_live(past: State, lease: Lease) -> bool:
    """Whether R says that the lease is neither unpublished nor retired."""
    return past.device.words[lease.slot][0] == 2 * lease.generation


def has_entered(past: State, proxy: Proxy) -> bool:
    """Whether the proxy's rank has read or released this lease, or a newer one of its slot."""
    return past.consumers.tables[proxy.rank][proxy.lease.slot] >= proxy.lease.generation


def fits(free_ranges: tuple[Range, ...], nbytes: int) -> list[Range]:
    """The free ranges that hold `nbytes`, rounded up to the alignment."""
    size = -(-nbytes // ALIGNMENT) * ALIGNMENT
    return [free for free in free_ranges if free[1] - free[0] >= size]


def free_before(step: Step) -> tuple[tuple[Range, ...], tuple[int, ...]]:
    """The free ranges and slots before the step: as shown, or by history where the pool does not show them."""
    ranges, slots = step.before.free_ranges, step.before.free_slots
    allocator = step.past.allocator
    return (
        allocator.free_ranges if ranges is None else ranges,
        allocator.free_slots if slots is None else slots,
    )


def generations_before(step: Step) -> tuple[int, ...]:
    """The last generation issued per slot before the step: as shown, or by history."""
    shown = step.before.generations
    return step.past.allocator.generations if shown is None or len(shown) != step.shape.slots else shown


_SHOWN = (
    "life",
    "leases",
    "retiring",
    "free_ranges",
    "free_slots",
    "retired_slots",
    "generations",
    "set_aside",
    "words",
)
"""What decides about leases; imports do not (HND-4)."""


def first_change(step: Step, words: bool = True) -> str | None:
    """What the step changed of all that was shown, in words; None: nothing."""
    before, after = step.before, step.after
    if before is after or before == after:
        return None
    for name in _SHOWN:
        old, new = getattr(before, name), getattr(after, name)
        if old != new and old is not None and new is not None and (words or name != "words"):
            return f"{name.replace('_', ' ')} {old} became {new}"
    return None


def must_refuse(step: Step, *reasons: Reason) -> Verdict:
    """Held when the pool refused for one of these reasons and showed no change."""
    outcome = step.outcome
    names = " or ".join(reasons)
    if outcome.kind != "refused" or outcome.reason not in reasons:
        return Broken(f"refused {names}", answer(outcome))
    change = first_change(step)
    return HELD if change is None else Broken(f"refused {names}, nothing changed", change)


def answer(outcome: Outcome) -> str:
    """An outcome in a few words."""
    parts = [outcome.kind]
    if outcome.reason is not None:
        parts.append(str(outcome.reason))
    if outcome.lease is not None:
        parts.append(str(outcome.lease))
    if outcome.digest is not None:
        parts.append(f"digest {outcome.digest:#010x}")
    if outcome.kind == "crashed" and outcome.message:
        parts.append(outcome.message)
    return " ".join(parts)


def expect(kept: bool, expected: str, got: str) -> Verdict:
    """Held or broken, for tests whose texts cost nothing."""
    return HELD if kept else Broken(expected, got)
