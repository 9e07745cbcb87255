"""The shortest sequence that ends in a given refusal, found by breadth-first search over the model's steps.

`python -m vmmref_models.shortest` prints one line an ending, in the short form that specs/messages.md has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from vmmref_models.attempts import ATTEMPTS
from vmmref_models.observation import Shape
from vmmref_models.operations import (
    Advance,
    Attempt,
    Borrow,
    Cancel,
    Confirm,
    Construct,
    Crash,
    Deliver,
    Dispatch,
    DropImport,
    Faulty,
    Fetch,
    Join,
    Operation,
    Outcome,
    Payload,
    Publish,
    PublishUnusable,
    Recycle,
    Release,
    ReleaseAs,
    Shutdown,
    Tamper,
    Wrap,
    WrapPack,
)
from vmmref_models.reasons import Reason
from vmmref_models.state import State, initial
from vmmref_models.step import enabled, runnable, step

SMALL = Shape(slots=1, consumers=1, data_size=256)
"""One slot, one rank and room for one lease: whatever can be refused is refused early."""
WORN = replace(SMALL, generation_limit=1)
PAIR = replace(SMALL, consumers=2)
APART = replace(SMALL, apart=True)
POOLS: dict[Shape, str] = {
    SMALL: "",
    WORN: " (on a pool whose slot can be leased once)",
    PAIR: " (on a pool of two ranks)",
    APART: " (with each rank in a process of its own)",
}
"""The pools that a sequence may begin with, and how that is said."""
MOST_LEASES = 2
MOST_COPIES = 2
MOST_OPERATIONS = 5
"""An ending that no sequence of so many operations has is none that the operations of a pool can produce."""
BAD_CONSTRUCTIONS = (
    "memory_size", "consumer_count", "max_inflight_slices", "recycle_interval", "below-granule", "control-only",
    "backing-dtype", "backing-size", "backing-strided",
)  # fmt: skip
REFUSED_ATTEMPTS = tuple(what for what, due in ATTEMPTS.items() if due.outcome.kind == "refused")


class Move(NamedTuple):
    """One operation and, where it is the environment that decides, what the pool answers to it."""

    operation: Operation
    answer: Outcome | None = None


MoveSequence = tuple[Move, ...]


class Ending(NamedTuple):
    """How the last operation of a sequence is answered."""

    reason: Reason
    last: str = ""
    """What the last operation is, as far as its short form says so; "" = any."""
    kind: str = "refused"
    """"refused", "full" or "failed", as in `Outcome.kind`."""
    shape: Shape = SMALL
    """The pool that the sequence begins with."""

    def is_met_by(self, move: Move, outcome: Outcome) -> bool:
        """Whether an operation that was answered like this is the last one."""
        return (outcome.kind, outcome.reason) == (self.kind, self.reason) and self.last in short(move)


def shortest(ending: Ending) -> MoveSequence | None:
    """The shortest sequence with that ending on a fresh pool, the first one in the order of `moves`; None without one.

    Every state is visited once, in the order of its distance, so nothing shorter has been left out.
    """
    start = initial(ending.shape)
    level: dict[State, MoveSequence] = {start: ()}
    seen = {start}
    for _ in range(MOST_OPERATIONS):
        following: dict[State, MoveSequence] = {}
        for state, before in level.items():
            for move in moves(state):
                after, outcome = step(state, move.operation, move.answer)
                if ending.is_met_by(move, outcome):
                    return (*before, move)
                if after not in seen:
                    seen.add(after)
                    following[after] = (*before, move)
        level = following
    return None


# --- what may be asked for --------------------------------------------------------------------------------------------


def moves(state: State) -> Iterator[Move]:
    """Everything that may be asked for in a state, what callers do most first; tokens follow from the state."""
    for operation in (*_of_leases(state), *_of_copies(state), *_of_the_pool(state), *_rarely(state)):
        if enabled(state, operation):
            yield Move(operation)
    if len(state.published) == MOST_LEASES or state.closed:
        return
    disturbed = Faulty(_wrap(state), 1)
    if enabled(state, disturbed):
        for reason in (Reason.DRIVER_CALL_FAILED, Reason.POOL_FAILED):
            yield Move(disturbed, Outcome("failed", reason))


def _wrap(state: State) -> Wrap:
    """Publish the next lease: 256 bytes, as many as there are. Nobody compares digests here."""
    token = len(state.published) + 1
    return Wrap(token, Payload("uint8", (256,), token), 256, 0)


def _of_leases(state: State) -> Iterator[Operation]:
    """Publish, hand on and take back."""
    if len(state.published) < MOST_LEASES:
        yield _wrap(state)
    copies = len(state.consumers.proxies)
    for lease in state.published:
        if copies < MOST_COPIES:
            yield Deliver(lease.token, copies + 1, 0)
        yield Dispatch(lease.token)
        yield Cancel(lease.token, wait=True)
        # Other altered handles are refused as inactive, and are nobody's usual way to that.
        yield Tamper(lease.token, "pool")


def _of_copies(state: State) -> Iterator[Operation]:
    """What a rank does with a copy of a proxy."""
    for proxy in state.consumers.proxies:
        yield Release(proxy.token)
        yield Fetch(proxy.token, proxy.token)
        yield Borrow(proxy.token, proxy.token)
        yield Confirm(proxy.token)
        yield ReleaseAs(proxy.token, (0, 1))


def _of_the_pool(state: State) -> Iterator[Operation]:
    """What concerns no single lease."""
    yield Recycle()
    for stream in runnable(state):
        yield Advance(stream)
    yield DropImport(0)
    yield Crash(0)
    yield Join(0)
    yield Shutdown()


def _rarely(state: State) -> Iterator[Operation]:
    """Other ways to publish, and what is done beside the pool."""
    if len(state.published) < MOST_LEASES:
        wrap = _wrap(state)
        yield Publish(wrap.lease, wrap.payload, wrap.nbytes, wrap.digest)
        yield replace(wrap, borrowable=True)
        yield WrapPack(wrap.lease, (wrap.payload,), (wrap.nbytes,), (wrap.digest,))
    for what in ("empty", "wrong-device"):
        yield PublishUnusable(what)
    for what in BAD_CONSTRUCTIONS:
        yield Construct(what)
    for what in REFUSED_ATTEMPTS:
        yield Attempt(what)


# --- for people -------------------------------------------------------------------------------------------------------


def line(ending: Ending, sequence: MoveSequence) -> str:
    """A sequence in one line, "wrap L1; cancel L1; cancel L1 again": L is a lease, P a copy of its proxy.

    The pool is said where it is no ordinary one.
    """
    said: list[str] = []
    for move in sequence:
        text = short(move)
        said.append(f"{text} again" if text in said else text)
    return "; ".join(said) + POOLS[ending.shape]


def short(move: Move) -> str:
    """The short form of one operation."""
    operation = move.operation
    match operation:
        case Wrap(borrowable=True):
            return f"wrap L{operation.lease} borrowable"
        case Deliver():
            return f"deliver L{operation.lease} as P{operation.proxy}"
        case ReleaseAs():
            return f"release P{operation.proxy} as ranks {', '.join(map(str, operation.ranks))}"
        case Tamper():
            return f"cancel L{operation.lease} with the handle of another {operation.how}"
        case Wrap() | Publish() | WrapPack() | Dispatch() | Cancel():
            return f"{_verb(operation)} L{operation.lease}"
        case Fetch() | Release() | Borrow() | Confirm():
            return f"{_verb(operation)} P{operation.proxy}"
        case Advance():
            return f"advance {operation.stream}"
        case PublishUnusable() | Construct() | Attempt():
            return f"{_verb(operation)} {operation.what}"
        case Faulty():
            lost = move.answer is not None and move.answer.reason is Reason.POOL_FAILED
            unknown = " that leaves the device state unknown" if lost else ""
            return f"{short(Move(operation.operation))} with a failing driver call{unknown}"
        case _:
            return _verb(operation)


def _verb(operation: Operation) -> str:
    """The name of an operation in small letters: "drop import"."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", type(operation).__name__).lower()


ENDINGS: tuple[Ending, ...] = (
    Ending(Reason.POOL_FULL, kind="full"),
    Ending(Reason.GENERATION_EXHAUSTED, shape=WORN),
    Ending(Reason.ALREADY_RELEASED),
    Ending(Reason.STALE_LEASE),
    Ending(Reason.INACTIVE_LEASE, "cancel"),
    Ending(Reason.INACTIVE_LEASE, "dispatch"),
    Ending(Reason.FOREIGN_POOL),
    Ending(Reason.BAD_RANK, "release"),
    Ending(Reason.BAD_RANK, "release", shape=PAIR),
    Ending(Reason.BAD_RANK, "join", shape=APART),
    Ending(Reason.NOT_RECONSTRUCTED),
    Ending(Reason.NOT_BORROWABLE),
    Ending(Reason.STILL_BORROWED),
    Ending(Reason.PRODUCER_GONE, "fetch"),
    Ending(Reason.UNUSABLE_TENSOR, "empty"),
    Ending(Reason.UNUSABLE_TENSOR, "wrong-device"),
    Ending(Reason.POOL_CLOSING),
    Ending(Reason.POOL_FAILED),
    Ending(Reason.DRIVER_CALL_FAILED, kind="failed"),
    *(Ending(Reason.BAD_ARGUMENT, what) for what in BAD_CONSTRUCTIONS[:5]),
    Ending(Reason.POOL_TOO_SMALL),
    Ending(Reason.UNUSABLE_BACKING),
    Ending(Reason.RESERVATION_CLOSED, "map-after"),
    Ending(Reason.RESERVATION_CLOSED, "map-existing"),
    Ending(Reason.OUTSIDE_RESERVATION),
    Ending(Reason.FORKED),
    Ending(Reason.BROKER_FAILED),
    Ending(Reason.NO_DESCRIPTOR, "ask-the-dead"),
    Ending(Reason.PRODUCER_GONE, "producer-killed"),
    Ending(Reason.BAD_ARGUMENT, "request-without-processor"),
    Ending(Reason.BAD_ARGUMENT, "request-of-containers"),
)
"""Every ending that the model's operations have. Other messages take calls of which the model does not speak."""


def main() -> None:
    """Print the shortest sequence of every ending."""
    for ending in ENDINGS:
        sequence = shortest(ending)
        print(f"{ending.reason}: {'none' if sequence is None else line(ending, sequence)}")


if __name__ == "__main__":
    main()
