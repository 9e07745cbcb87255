"""From small numbers to the next operation: one decoder for Hypothesis draws, seeded walks and anything else.

`Drawer.build(kind, pick)` makes one operation of a kind out of choices `pick(n)` in [0, n); choice 0 is always the
simplest, so a shrinker that lowers numbers simplifies operations. `Drawer.next(pick)` chooses the kind too, by the
weights of the episode's flavour.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from vmmref.conformance import payloads
from vmmref.conformance.flavours import BASIC, Flavour, Pick
from vmmref.conformance.subject import Description
from vmmref.conformance.tokens import Tokens
from vmmref_models.observation import ALIGNMENT, Shape
from vmmref_models.operations import (
    Advance,
    Cancel,
    Claim,
    Collect,
    Construct,
    Deliver,
    Dispatch,
    Faulty,
    Fetch,
    Look,
    Operation,
    Payload,
    Publish,
    PublishUnusable,
    Read,
    Reclaim,
    Recycle,
    Release,
    ReleaseLease,
    Revoke,
    Shutdown,
    Tamper,
    Wrap,
)
from vmmref_models.state import State
from vmmref_models.step import enabled, runnable

CONSTRUCTS: tuple[str, ...] = (
    "valid",
    "memory_size",
    "consumer_count",
    "max_inflight_slices",
    "recycle_interval",
    "below-granule",
    "control-only",
    "backing-dtype",
    "backing-size",
    "backing-strided",
)
UNUSABLE: tuple[str, ...] = ("empty", "wrong-device")
ALTERED: tuple[str, ...] = ("generation", "offset", "pool")

SPLIT: frozenset[str] = frozenset({"Publish", "Dispatch", "Read", "Collect", "Look", "Claim", "Reclaim"})
"""Operations that only a subject with the capability "split" is asked for."""

CAPABILITY_OF: dict[str, str] = {
    **dict.fromkeys(SPLIT, "split"),
    "Advance": "stepping",
    "Faulty": "faults",
    "Revoke": "revoke",
    "ReleaseLease": "release-lease",
    "Tamper": "tamper",
}
FAULTY: tuple[str, ...] = ("Wrap", "Fetch", "Recycle", "Cancel", "Construct", "Publish", "Read")
"""Kinds that may be done with a failing driver call."""

UNRULY: frozenset[str] = frozenset({"Faulty", "Tamper", "ReleaseLease", "Revoke"})
"""What a client that keeps the environment obligations never does."""

SEEDS = 17
"""Payloads of neighbouring leases differ, and yet come from a cache."""
MOST_CALLS: dict[str, int] = {
    "Publish": 6,
    "Wrap": 9,
    "Recycle": 9,
    "Cancel": 10,
    "Read": 20,
    "Fetch": 26,
    "Construct": 20,
}
"""Largest number of the driver call that is made to fail, by operation. A rank's first read imports the pool; a pool
that was made is closed again, whose calls are not meant (LIFE-4)."""
MOST_LOOKS = 3
TRIES = 24
"""Choices of a kind before `next` falls back on one that is always possible."""
RECENT = 12
"""Old handles are drawn among this many of the latest."""


def drawable(description: Description, client: str) -> frozenset[str]:
    """Kinds of operations that this subject can be asked for by this client."""
    kinds = {
        kind
        for kind in {*BASIC, "Construct", "Faulty", "Shutdown"}
        if CAPABILITY_OF.get(kind, "") in {"", *description.capabilities}
        and (kind in description.operations or kind in {"Advance", "Faulty"})
    }
    return frozenset(kinds - UNRULY if client == "well-behaved" else kinds)


@lru_cache(maxsize=256)
def deck(dtypes: tuple[str, ...], data_size: int, whole: bool, ordinary: bool = False) -> tuple[Payload, ...]:
    """Payloads without seeds, simplest first, for a data area: some smaller, some that fill it, one that never fits.

    `whole` deals every dtype in every layout, 0-dim too; otherwise sizes count most.
    `ordinary` leaves out 0-dim tensors and strided ones with a dimension of one element, which torch calls contiguous.
    """
    units = data_size // ALIGNMENT
    bytes_wide = next((dtype for dtype in dtypes if payloads.element_bytes(dtype) == 1), dtypes[0])
    size = payloads.element_bytes(bytes_wide)
    lengths = [1, ALIGNMENT, ALIGNMENT + size, ALIGNMENT // 2 * 3]
    lengths += [n * ALIGNMENT for n in range(2, units + 2)] if units <= 6 else [data_size // 4, data_size // 2]
    lengths += [data_size, data_size - size, data_size + size]
    sized = [Payload(bytes_wide, (max(1, length // size),), 0) for length in lengths]
    typed = [
        _shaped(dtype, shape, layout)
        for dtype in dtypes
        for shape in _shapes(data_size)
        for layout in payloads.LAYOUTS
        if not ordinary or (shape and not (layout == "transposed" and 1 in shape))
    ]
    fitting = [payload for payload in dict.fromkeys(typed) if payloads.nbytes(payload) <= data_size + ALIGNMENT]
    return tuple(dict.fromkeys([*sized[:1], *fitting])) if whole else (*sized, *fitting[:: max(1, len(fitting) // 6)])


def _shapes(data_size: int) -> tuple[tuple[int, ...], ...]:
    return ((), (1,), (3,), (2, 3), (3, 1, 5), (8, 8), (2, 3, 2, 7), (data_size // 16, 2))


def _shaped(dtype: str, shape: tuple[int, ...], layout: str) -> Payload:
    return Payload(dtype, shape, 0, layout if len(shape) > (layout == "transposed") or shape == (3,) else "contiguous")


@lru_cache(maxsize=16384)
def _dealt(
    dtypes: tuple[str, ...], data_size: int, whole: bool, ordinary: bool, index: int, seed: int
) -> tuple[Payload, int, int]:
    plain = deck(dtypes, data_size, whole, ordinary)[index]
    payload = Payload(plain.dtype, plain.shape, seed, plain.layout)
    return payload, payloads.nbytes(payload), payloads.expected_digest(payload)


class Drawer:
    """Draws the operations of one episode."""

    def __init__(
        self, description: Description, shape: Shape, flavour: Flavour, tokens: Tokens, client: str = "any"
    ) -> None:
        self.shape = shape
        self.flavour = flavour
        self.well_behaved = client == "well-behaved"
        self.split = "split" in description.capabilities
        self.dtypes = description.payload_dtypes
        self.cards = len(deck(self.dtypes, shape.data_size, flavour.whole_dtypes, self.well_behaved))
        self.tokens = tokens
        self.state: State | None = None
        self.kinds = drawable(description, client)
        self.faulty_kinds = tuple(kind for kind in flavour.faulty or FAULTY if kind in self.kinds)
        weights = {**BASIC, **flavour.weights}
        self.wheel = tuple(kind for kind in sorted(self.kinds) for _ in range(weights.get(kind, 0)))
        self.builders: dict[str, Callable[[Pick], Operation | None]] = {
            "Publish": self._publish,
            "Wrap": self._wrap,
            "Dispatch": self._dispatch,
            "Deliver": self._deliver,
            "Read": self._read,
            "Fetch": self._fetch,
            "Collect": self._collect,
            "Release": self._release,
            "Advance": self._advance,
            "Look": self._look,
            "Claim": self._claim,
            "Reclaim": lambda pick: Reclaim(wait=pick(2) == 0),
            "Recycle": lambda pick: Recycle(),
            "Cancel": self._cancel,
            "Revoke": self._revoke,
            "ReleaseLease": self._release_lease,
            "Tamper": self._tamper,
            "PublishUnusable": lambda pick: PublishUnusable(UNUSABLE[pick(len(UNUSABLE))]),
            "Shutdown": lambda pick: Shutdown(),
            "Construct": lambda pick: Construct(CONSTRUCTS[pick(len(CONSTRUCTS))]),
            "Faulty": self._faulty,
        }

    def next(self, pick: Pick, state: State) -> Operation:
        """The next operation, enabled in `state`."""
        self.state = state
        wheel = self.wheel
        for _ in range(TRIES):
            operation = self.build(wheel[pick(len(wheel))], pick)
            if operation is not None:
                return operation
        return self._wrap(pick) if "Wrap" in self.kinds else self._publish(pick)

    def build(self, kind: str, pick: Pick) -> Operation | None:
        """One operation of this kind, or None where nothing of the kind is possible now."""
        operation = self.builders[kind](pick)
        if operation is None or self.state is None or not enabled(self.state, operation):
            return None
        return operation

    def promising(self, kind: str) -> bool:
        """Whether the tokens that an operation of this kind needs have been handed out. Cheaper than `build`."""
        tokens = self.tokens
        match kind:
            case "Dispatch":
                return bool(tokens.waiting)
            case "Deliver":
                return bool(tokens.dispatched)
            case "Read" | "Fetch" | "Release":
                return bool(tokens.fresh if self.well_behaved else tokens.copies)
            case "Collect":
                return bool(tokens.readers)
            case "Look":
                return len(tokens.looks) < MOST_LOOKS
            case "Claim":
                return bool(tokens.looks)
            case "Cancel" | "Revoke" | "ReleaseLease" | "Tamper":
                return bool(tokens.waiting or tokens.dispatched)
            case "Advance":
                return self.state is not None and any(self.state.device.queues)
            case _:
                return True

    # What a producer does

    def _payload(self, pick: Pick, token: int) -> tuple[Payload, int, int]:
        index = pick(self.cards)
        whole, ordinary = self.flavour.whole_dtypes, self.well_behaved
        return _dealt(self.dtypes, self.shape.data_size, whole, ordinary, index, token % SEEDS)

    def _publish(self, pick: Pick) -> Publish:
        token = self.tokens.new()
        return Publish(token, *self._payload(pick, token))

    def _wrap(self, pick: Pick) -> Wrap:
        token = self.tokens.new()
        return Wrap(token, *self._payload(pick, token))

    def _dispatch(self, pick: Pick) -> Dispatch | None:
        waiting = self.tokens.waiting
        return Dispatch(waiting[pick(len(waiting))].token) if waiting else None

    def _handle(self, pick: Pick) -> int | None:
        """A lease by its producer's handle: mostly one that still holds its slot, sometimes any old one."""
        tokens = self.tokens
        every = tokens.waiting + tokens.dispatched[-RECENT:]
        if self.well_behaved:
            every = [
                lease for lease in every if lease.token not in tokens.delivered and lease.token not in tokens.cancelled
            ]
        elif pick(16) + self.flavour.stale < 16 and self.state is not None:
            active = {held.token for held in self.state.allocator.held if held is not None}
            every = [lease for lease in every if lease.token in active] or every
        return every[pick(len(every))].token if every else None

    def _cancel(self, pick: Pick) -> Cancel | None:
        token = self._handle(pick)
        return None if token is None else Cancel(token, wait=not self.split or pick(2) == 0)

    def _revoke(self, pick: Pick) -> Revoke | None:
        token = self._handle(pick)
        return None if token is None else Revoke(token, wait=not self.split or pick(2) == 0)

    def _release_lease(self, pick: Pick) -> ReleaseLease | None:
        token = self._handle(pick)
        return None if token is None else ReleaseLease(token)

    def _tamper(self, pick: Pick) -> Tamper | None:
        token = self._handle(pick)
        return None if token is None else Tamper(token, ALTERED[pick(len(ALTERED))])

    def _look(self, pick: Pick) -> Look | None:
        return Look(self.tokens.new()) if len(self.tokens.looks) < MOST_LOOKS else None

    def _claim(self, pick: Pick) -> Claim | None:
        looks = self.tokens.looks
        return Claim(looks[pick(len(looks))]) if looks else None

    # What consumers do

    def _deliver(self, pick: Pick) -> Deliver | None:
        tokens = self.tokens
        owing = [lease for lease in tokens.dispatched if lease.owed]
        if self.well_behaved:
            owing = [lease for lease in owing if lease.token not in tokens.cancelled]
        if owing and (self.well_behaved or pick(16) + self.flavour.stale < 16):
            lease = owing[pick(len(owing))]
            return Deliver(lease.token, tokens.new(), lease.owed[pick(len(lease.owed))])
        if self.well_behaved or not tokens.dispatched:
            return None
        recent = tokens.dispatched[-RECENT:]
        return Deliver(recent[pick(len(recent))].token, tokens.new(), pick(self.shape.consumers))

    def _proxy(self, pick: Pick) -> int | None:
        tokens = self.tokens
        if tokens.fresh and (self.well_behaved or pick(16) + self.flavour.stale < 16):
            return tokens.fresh[pick(len(tokens.fresh))].token
        if self.well_behaved or not tokens.copies:
            return None
        recent = tokens.copies[-RECENT:]
        return recent[pick(len(recent))].token

    def _read(self, pick: Pick) -> Read | None:
        proxy = self._proxy(pick)
        return None if proxy is None else Read(proxy, self.tokens.new())

    def _fetch(self, pick: Pick) -> Fetch | None:
        proxy = self._proxy(pick)
        return None if proxy is None else Fetch(proxy, self.tokens.new())

    def _collect(self, pick: Pick) -> Collect | None:
        readers = self.tokens.readers
        return Collect(readers[pick(len(readers))]) if readers else None

    def _release(self, pick: Pick) -> Release | None:
        proxy = self._proxy(pick)
        return None if proxy is None else Release(proxy)

    # What the device and its driver do

    def _advance(self, pick: Pick) -> Advance | None:
        if self.state is None:
            return None
        streams = runnable(self.state)
        return Advance(streams[pick(len(streams))]) if streams else None

    def _faulty(self, pick: Pick) -> Operation | None:
        if not self.faulty_kinds:
            return None
        if self.state is not None and any(self.state.device.queues):
            # A fault wants empty streams; emptying them is the way there.
            return self._advance(pick)
        kind = self.faulty_kinds[pick(len(self.faulty_kinds))]
        # A constructor that is refused makes few calls or none.
        inner = Construct("valid") if kind == "Construct" and pick(4) else self.build(kind, pick)
        if not isinstance(inner, Publish | Wrap | Read | Fetch | Recycle | Cancel | Construct):
            return None
        # Early calls more often: most operations make fewer than the most.
        return Faulty(inner, 1 + pick(1 + pick(MOST_CALLS[type(inner).__name__])))
