"""Flavours of episodes: what an episode is mostly about, how large its pool is and how long it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from vmmref.conformance.subject import Description
from vmmref_models.attempts import ATTEMPTS
from vmmref_models.observation import ALIGNMENT, Shape

Pick = Callable[[int], int]
"""A source of choices: `pick(n)` answers a number in [0, n)."""

BASIC: Mapping[str, int] = {
    "Wrap": 10,
    "Publish": 6,
    "Dispatch": 7,
    "Deliver": 14,
    "Fetch": 10,
    "Read": 6,
    "Collect": 7,
    "Release": 5,
    "Advance": 18,
    "Look": 3,
    "Claim": 4,
    "Reclaim": 3,
    "Recycle": 8,
    "Cancel": 2,
    "Revoke": 2,
    "CancelProxy": 1,
    "Confirm": 1,
    "ReleaseLease": 1,
    "Tamper": 1,
    "PublishUnusable": 1,
}
"""How often each operation is drawn where nothing else is said; relative weights."""


HANDLES: tuple[str, ...] = ("map-after-close", "map-existing-after-close", "map-outside", "descriptors")
BROKERS: tuple[str, ...] = ("ask", "ask-without-token", "ask-among-bad-clients", "ask-the-dead", "broken-broker")
REQUESTS: tuple[str, ...] = tuple(what for what in ATTEMPTS if what.startswith("request"))
WITH_PROCESSES: tuple[str, ...] = ("exporter-killed", "producer-killed", "use-after-fork", "ask-as-another-user")
"""Experiments by what they take; the last ones start a process each."""

_ALONE: Mapping[str, int] = {
    **dict.fromkeys(BASIC, 0),
    "Attempt": 40,
    "Wrap": 3,
    "Publish": 1,
    "Fetch": 2,
    "Advance": 4,
}
"""The weights of a flavour that is about experiments beside a pool in which not much goes on."""


@dataclass(frozen=True, slots=True)
class Flavour:
    """One kind of episode. `weights` are merged over BASIC; 0 leaves an operation out.

    `stale` is how many of 16 choices of a lease or proxy are made among all ever handed out, old ones too, where the
    others take one that still has something to do.
    """

    name: str
    weights: Mapping[str, int] = field(default_factory=dict)
    slots: tuple[int, int] = (1, 6)
    consumers: tuple[int, int] = (1, 4)
    units: tuple[int, int] = (1, 16)
    """Size of the data area in multiples of ALIGNMENT, smallest and largest."""
    length: tuple[int, int] = (40, 160)
    stale: int = 3
    faulty: tuple[str, ...] = ()
    """The operations that a driver call is made to fail in; () = all."""
    near_limit: bool = False
    whole_dtypes: bool = False
    """Draw payloads over all dtypes and layouts rather than mostly by size."""
    grouped: int = 0
    """How many of 16 leases are published for groups of ranks that one of them speaks for."""
    borrowable: int = 0
    """How many of 16 leases may be looked at in place."""
    apart: bool = False
    """Each rank has a process of its own."""
    attempts: tuple[str, ...] = ()
    """The experiments that it is about."""
    costly: bool = False
    """It takes processes, and so a hundred times as long as the others: it comes less often."""


FLAVOURS: tuple[Flavour, ...] = (
    Flavour("general"),
    Flavour("tiny", slots=(1, 1), consumers=(1, 1), units=(1, 2), length=(4, 24), weights={"Cancel": 3, "Revoke": 3}),
    Flavour("full pool", slots=(1, 4), units=(1, 4), consumers=(1, 2), weights={"Wrap": 20, "Publish": 12}),
    Flavour("ranges", slots=(4, 6), consumers=(1, 1), units=(6, 16), weights={"Wrap": 20, "Cancel": 10, "Release": 14}),
    Flavour("duplicates", slots=(1, 2), consumers=(1, 2), weights={"Deliver": 24, "Fetch": 16}, stale=9),
    Flavour(
        "old handles", slots=(1, 2), consumers=(1, 1), weights={"Tamper": 4, "ReleaseLease": 6, "Cancel": 6}, stale=10
    ),
    Flavour("parts", slots=(1, 3), consumers=(1, 2), weights={"Wrap": 2, "Fetch": 2, "Recycle": 1, "Advance": 26}),
    Flavour("revoke", slots=(1, 2), consumers=(1, 2), units=(1, 3), weights={"Revoke": 8, "Cancel": 4, "Read": 10}),
    Flavour("payloads", slots=(1, 2), consumers=(1, 1), units=(2, 16), whole_dtypes=True, weights={"Recycle": 14}),
    Flavour(
        "limit", slots=(1, 3), consumers=(1, 1), units=(1, 4), near_limit=True, weights={"Release": 10, "Recycle": 14}
    ),
    Flavour("faults", slots=(1, 3), consumers=(1, 2), units=(1, 4), length=(10, 60), weights={"Faulty": 14}),
    Flavour(
        "failing publishes",
        slots=(2, 4),
        consumers=(1, 1),
        units=(4, 8),
        length=(10, 40),
        faulty=("Publish", "Wrap"),
        weights={"Faulty": 40, "Cancel": 12, "Wrap": 4, "Publish": 3},
    ),
    Flavour(
        "failing reads",
        slots=(2, 3),
        consumers=(1, 2),
        units=(2, 4),
        length=(10, 40),
        stale=1,
        faulty=("Read", "Fetch"),
        weights={"Faulty": 30, "Wrap": 14, "Publish": 0, "Deliver": 20, "Fetch": 3, "Read": 2, "Recycle": 12},
    ),
    Flavour(
        "construct",
        length=(6, 20),
        faulty=("Construct",),
        weights={"Construct": 20, "Faulty": 12, "PublishUnusable": 6},
    ),
    Flavour("shutdown", slots=(1, 3), consumers=(1, 2), units=(1, 4), length=(8, 40), weights={"Shutdown": 5}),
    Flavour(
        "packs",
        slots=(1, 3),
        consumers=(1, 3),
        units=(2, 12),
        whole_dtypes=True,
        grouped=2,
        weights={"WrapPack": 16, "Wrap": 2, "Publish": 1, "Deliver": 22, "Fetch": 14, "Confirm": 7, "CancelProxy": 4},
    ),
    Flavour(
        "failing packs",
        slots=(2, 4),
        consumers=(1, 1),
        units=(4, 8),
        length=(10, 40),
        faulty=("WrapPack",),
        weights={"Faulty": 40, "WrapPack": 6, "Wrap": 2, "Publish": 0, "Cancel": 12, "CancelProxy": 6},
    ),
    Flavour(
        "groups",
        slots=(1, 3),
        consumers=(2, 4),
        units=(1, 6),
        grouped=12,
        borrowable=2,
        weights={"Wrap": 14, "WrapPack": 2, "Deliver": 26, "Release": 8, "ReleaseAs": 6, "Confirm": 3, "Recycle": 12},
    ),
    Flavour(
        "borrow",
        slots=(1, 2),
        consumers=(1, 3),
        units=(1, 4),
        stale=2,
        grouped=3,
        borrowable=13,
        weights={
            "Borrow": 18,
            "Peek": 12,
            "Return": 8,
            "Revoke": 8,
            "Deliver": 20,
            "Recycle": 10,
            "Fetch": 4,
            "Read": 2,
            "DropImport": 1,
            "Shutdown": 1,
        },
    ),
    Flavour(
        "failing borrows",
        slots=(1, 3),
        consumers=(1, 2),
        units=(2, 4),
        length=(10, 40),
        stale=1,
        borrowable=14,
        faulty=("Borrow",),
        weights={"Faulty": 30, "Wrap": 14, "Publish": 0, "Deliver": 20, "Borrow": 6, "Peek": 3, "Return": 8},
    ),
    Flavour(
        "late",
        slots=(1, 3),
        consumers=(1, 3),
        units=(1, 6),
        grouped=2,
        borrowable=2,
        weights={"Expire": 7, "Recycle": 12, "Deliver": 18, "Release": 8},
    ),
    Flavour(
        "imports",
        slots=(1, 3),
        consumers=(1, 3),
        units=(1, 4),
        borrowable=3,
        weights={"Import": 6, "DropImport": 8, "Borrow": 3, "Return": 3, "Read": 10, "Shutdown": 1},
    ),
    Flavour(
        "deaths",
        slots=(1, 2),
        consumers=(1, 3),
        units=(1, 4),
        length=(30, 90),
        stale=6,
        grouped=9,
        borrowable=4,
        apart=True,
        costly=True,
        weights={
            "Wrap": 8,
            "Publish": 2,
            "WrapPack": 2,
            "Deliver": 24,
            "Fetch": 12,
            "Release": 8,
            "Crash": 3,
            "Join": 8,
            "Reap": 4,
            "Borrow": 4,
            "Peek": 2,
            "Return": 3,
            "Import": 1,
            "DropImport": 1,
            "Recycle": 10,
            "PublishUnusable": 0,
            "Tamper": 0,
        },
    ),
    Flavour("reservations", length=(20, 40), attempts=HANDLES, weights=_ALONE),
    Flavour("brokers", length=(6, 12), attempts=BROKERS, weights=_ALONE),
    Flavour("requests", length=(10, 20), attempts=REQUESTS, faulty=("Attempt",), weights={**_ALONE, "Faulty": 20}),
    Flavour("forks and kills", length=(3, 5), attempts=WITH_PROCESSES, costly=True, weights=_ALONE),
)
"""Every flavour; those that need what a subject cannot do are left out by `usable`."""

NEEDED: Mapping[str, str] = {
    "limit": "preset",
    "faults": "faults",
    "failing publishes": "faults",
    "failing reads": "faults",
    "failing packs": "faults",
    "failing borrows": "faults",
    "parts": "split",
    "groups": "groups",
    "borrow": "borrow",
    "late": "set-aside",
    "imports": "imports",
    "deaths": "processes",
}
"""Capability without which a flavour says nothing new."""
ABOUT: Mapping[str, str] = {
    "construct": "Construct",
    "shutdown": "Shutdown",
    "packs": "WrapPack",
    "failing packs": "WrapPack",
    "failing borrows": "Borrow",
}
"""Operation without which a flavour says nothing new."""

UNRULY: frozenset[str] = frozenset(
    {"faults", "failing publishes", "failing reads", "failing packs", "failing borrows", "old handles", "limit", "late",
     "deaths", "brokers", "forks and kills"}
)  # fmt: skip
"""Flavours that a well-behaved client leaves out."""


def usable(description: Description, client: str) -> tuple[Flavour, ...]:
    """The flavours worth running on a subject; a well-behaved client causes no faults."""
    return tuple(
        flavour
        for flavour in FLAVOURS
        if NEEDED.get(flavour.name, "") in {"", *description.capabilities}
        and not (client == "well-behaved" and flavour.name in UNRULY)
        and ABOUT.get(flavour.name, "") in {"", *description.operations}
        and (not flavour.attempts or not description.attempts.isdisjoint(flavour.attempts))
    )


def draw_shape(flavour: Flavour, description: Description, pick: Pick) -> Shape:
    """A pool of a size that suits the flavour; generations preset near their limit where it is about that."""
    slots = _between(flavour.slots, pick)
    consumers = _between(flavour.consumers, pick)
    units = _between(flavour.units, pick)
    word_bytes = description.word_bytes[pick(len(description.word_bytes))]
    shape = Shape(slots, consumers, units * ALIGNMENT, word_bytes, apart=flavour.apart)
    if not flavour.near_limit:
        return shape
    # The last generation, the one before it and the one before that: each slot on its own.
    issued = tuple(shape.generation_limit - pick(4) for _ in range(slots))
    return Shape(slots, consumers, units * ALIGNMENT, word_bytes, shape.generation_limit, issued)


def draw_length(flavour: Flavour, pick: Pick) -> int:
    """How many operations an episode of this flavour has before its ending."""
    return _between(flavour.length, pick)


def _between(bounds: tuple[int, int], pick: Pick) -> int:
    low, high = bounds
    return low + pick(high - low + 1)
