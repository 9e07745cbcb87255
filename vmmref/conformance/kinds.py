"""The kinds of operations that can be drawn: what a subject must be able to do for each, and how a choice is made."""

from __future__ import annotations

from vmmref.conformance.subject import Description

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

CHOICES: dict[str, int] = {
    "Wrap": 4,
    "Publish": 4,
    "WrapPack": 6,
    "Dispatch": 1,
    "Deliver": 4,
    "Read": 2,
    "Fetch": 2,
    "Collect": 1,
    "Release": 2,
    "Confirm": 2,
    "ReleaseAs": 3,
    "Borrow": 2,
    "Peek": 1,
    "Return": 1,
    "Advance": 1,
    "Look": 0,
    "Claim": 1,
    "Reclaim": 1,
    "Recycle": 0,
    "Cancel": 3,
    "Revoke": 3,
    "CancelProxy": 3,
    "ReleaseLease": 2,
    "Tamper": 3,
    "Expire": 0,
    "Crash": 1,
    "Reap": 0,
    "Join": 1,
    "Import": 1,
    "DropImport": 1,
    "PublishUnusable": 1,
    "Shutdown": 0,
    "Construct": 1,
    "Attempt": 2,
    "Faulty": 6,
}
"""Every kind, and about how many choices it takes to draw one; a choice that is not made is the simplest."""

SPLIT: frozenset[str] = frozenset({"Publish", "Dispatch", "Read", "Collect", "Look", "Claim", "Reclaim"})
"""Operations that only a subject with the capability "split" is asked for."""

CAPABILITY_OF: dict[str, str] = {
    **dict.fromkeys(SPLIT, "split"),
    "Advance": "stepping",
    "Faulty": "faults",
    "Revoke": "revoke",
    "ReleaseLease": "release-lease",
    "Tamper": "tamper",
    "ReleaseAs": "groups",
    "Borrow": "borrow",
    "Peek": "borrow",
    "Return": "borrow",
    "Crash": "processes",
    "Join": "processes",
    "Reap": "processes",
    "Import": "imports",
    "DropImport": "imports",
    "Expire": "set-aside",
}
FAULTY: tuple[str, ...] = ("Wrap", "Fetch", "Recycle", "Cancel", "Construct", "Publish", "Read")
"""Kinds that may be done with a failing driver call, where a flavour says nothing else."""
MOST_CALLS: dict[str, int] = {
    "Publish": 6,
    "Wrap": 9,
    "WrapPack": 14,
    "Recycle": 9,
    "Cancel": 10,
    "Read": 20,
    "Fetch": 26,
    "Borrow": 26,
    "Construct": 20,
    "Attempt": 120,
}
"""Largest number of the driver call that is made to fail, by operation. A rank's first read imports the pool; a pool
that was made is closed again, whose calls are not meant (LIFE-4)."""

UNRULY: frozenset[str] = frozenset(
    {"Faulty", "Tamper", "ReleaseLease", "Revoke", "ReleaseAs", "Crash", "Join", "Expire", "DropImport"}
)
"""What a client that keeps the environment obligations never does."""
UNRULY_ATTEMPTS: frozenset[str] = frozenset(
    {"ask-without-token", "ask-as-another-user", "ask-among-bad-clients", "use-after-fork", "map-after-close",
     "map-existing-after-close", "map-outside", "request-of-containers", "request-without-processor"}
)  # fmt: skip
"""Experiments in which somebody does what no such client does."""


def drawable(description: Description, client: str) -> frozenset[str]:
    """Kinds of operations that this subject can be asked for by this client."""
    kinds = {
        kind
        for kind in CHOICES
        if CAPABILITY_OF.get(kind, "") in {"", *description.capabilities}
        and (kind in description.operations or kind in {"Advance", "Faulty"})
        and (kind != "Attempt" or description.attempts)
    }
    return frozenset(kinds - UNRULY if client == "well-behaved" else kinds)


def attempts(description: Description, client: str) -> frozenset[str]:
    """The experiments that this subject can be asked for by this client."""
    return description.attempts - UNRULY_ATTEMPTS if client == "well-behaved" else description.attempts
