"""A pool under test, as the harness sees it: not our classes, but a few questions that any pool can answer.

A subject is made by a factory (`--subject package.module:factory`); `open` makes one fresh pool of a given shape and
`apply` asks it for one operation of `vmmref_models.operations`. Nothing here imports the reference pool.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from vmmref_models.observation import Observation, Shape
from vmmref_models.operations import Operation, Outcome

CAPABILITIES: dict[str, str] = {
    "stepping": "queued stream work runs one piece at a time, when told (Advance)",
    "split": "publish, read and recycle can be asked for in parts (Publish/Dispatch, Read/Collect, Look/Claim/Reclaim)",
    "words": "the control words can be observed",
    "ranges": "the free ranges can be observed",
    "slots": "the free slots can be observed",
    "faults": "the k-th driver call of an operation can be made to fail",
    "revoke": "a dispatched lease can be revoked",
    "release-lease": "the producer's low-level release can be called",
    "tamper": "altered handles can be presented",
    "preset": "generations can be preset near their limit",
    "groups": "a lease can be published for groups of ranks, of which one speaks for all",
    "borrow": "ranks can look at a lease's bytes in place, and give the view back",
    "processes": "each rank can have a process of its own, which can be killed and replaced",
    "set-aside": "leases that are held back can be observed, and time can be made to pass",
    "imports": "the imports of the pool in each consumer process can be observed, made and dropped",
    "leaks": "handles, mappings, reservations, descriptors, streams and events can be counted",
}
"""Every capability a subject may declare, with the sentence a report shows where it is missing."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a subject says of itself before it is asked anything."""

    name: str
    device: str
    """Device name as the driver reports it; a simulator says so in it."""
    simulated: bool
    level: str
    """Highest level of rules: "A" allocator, "B" lease words, "C" transport, "D" device."""
    capabilities: frozenset[str]
    operations: frozenset[str]
    """Class names of the operations it understands ("Wrap", "Fetch", ...)."""
    protocol: str = "retire-validate-max"
    """How its words are used; the model predicts words only for "retire-validate-max"."""
    fit: str = "best"
    """"best" (RNG-3) or "any": then the model follows the pool's choice."""
    slot_order: str = "fifo"
    """"fifo" (SLOT-3) or "any": then the model follows the pool's choice."""
    alignment: int = 256
    replaced: str = ""
    """Which boundary of the pool under test was replaced, in a sentence ("" = none)."""
    payload_dtypes: tuple[str, ...] = ("uint8", "int16", "float32", "float64", "bool", "bfloat16", "complex64")
    word_bytes: tuple[int, ...] = (4,)
    """Sizes of control words it can be made with."""
    attempts: frozenset[str] = frozenset()
    """The experiments of `vmmref_models.attempts` that it can do."""


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What a closed pool still holds, counted by kind; an empty mapping is what HND-1 asks for."""

    counts: dict[str, int] = field(default_factory=dict)


class Session(Protocol):
    """One pool, from its making to its end."""

    def apply(self, operation: Operation) -> Outcome:
        """Do one operation and say what came of it. Never raises for a refusal or a failure: those are outcomes."""

    def observe(self) -> Observation:
        """Look, without any side effect."""

    def close(self) -> Leftovers | None:
        """End the pool and its consumers, whatever state they are in; None = this subject cannot count leftovers."""


class Subject(Protocol):
    """Makes pools under test."""

    def describe(self) -> Description:
        """Level, policies and capabilities; constant for one subject."""

    def open(self, shape: Shape) -> Session:
        """Make one fresh pool; raises ValueError with a sentence where it cannot have that shape."""
