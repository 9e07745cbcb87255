"""How large a small pool is, and what may go wrong in it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

FAULTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "dup": "so many ranks get two copies of each proxy and may use both",
        "foreign": "somebody else acknowledges a dispatched lease for every rank",
        "late-delivery": "a proxy is handed on after its lease was cancelled",
        "cancel": "a lease is cancelled before it was dispatched",
        "revoke": "a lease is taken back after it was dispatched",
        "deadline": "a dispatched lease passes its deadline",
        "copy-fail": "publishing fails after the copy was queued",
        "reader-fail": "a reader's queued work fails",
        "crash": "a consumer process dies; what it queued may run on for a while",
        "rejoin": "a new process takes a dead rank's number",
        "producer-crash": "the producer dies; what it queued may run on for a while",
        "shutdown": "the pool is shut down",
        "borrow": "every lease may be borrowed: read in place, acknowledged at release",
        "group": "rank 0 reads and acknowledges for all",
    }
)
"""What may go wrong, each with what it means; a search allows each of them a number of times."""

OBLIGATIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "used-once": ("dup",),
        "own-ack-only": ("foreign",),
        "no-cancel-after-delivery": ("revoke",),
        "no-delivery-after-cancel": ("cancel", "late-delivery"),
    }
)
"""The environment obligations, each with the faults by which an environment breaks it."""


@dataclass(frozen=True)
class Scope:
    """The bounds of one search."""

    slots: int = 2
    units: int = 2
    """Ranges of equal size, shared by all slots; a lease takes one."""
    consumers: int = 2
    leases: int = 2
    """Leases that are published in one run."""
    halves: int = 2
    """Pieces in which bytes are copied."""
    generations: int = 0
    """The last generation of a slot; 0: it is not reached."""
    faults: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """How often each may happen; for "dup", in how many ranks; "borrow" and "group" are on or off."""

    def __post_init__(self) -> None:
        sizes = ("slots", "units", "consumers", "leases", "halves")
        for name, least in (*((size, 1) for size in sizes), ("generations", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)} is less than {least}")
        for name, budget in self.faults.items():
            if name not in FAULTS:
                raise ValueError(f'there is no fault "{name}"')
            if budget < 0:
                raise ValueError(f"{name} = {budget} is negative")
        if self.allowed("dup") > self.consumers:
            raise ValueError(f"dup = {self.allowed('dup')} is more than {self.consumers} ranks")

        for name, needed in (("rejoin", "crash"), ("late-delivery", "cancel")):
            if self.allowed(name) and not self.allowed(needed):
                raise ValueError(f"{name} cannot happen without {needed}")

    def least_states(self, exchangeable: bool) -> int:
        """A number of states that the search of any protocol in this scope surely has: an estimate from below.

        With one lease out, each rank that reads is on its own at one of so many places: not begun, begun, each half
        copied, R read, acknowledged. Where ranks are `exchangeable`, only how many are at each place counts.
        """
        places, ranks = self.halves + 4, 1 if self.allowed("group") else self.consumers
        return math.comb(ranks + places - 1, ranks) if exchangeable else places**ranks

    def allowed(self, fault: str) -> int:
        """How often a fault may happen."""
        return self.faults.get(fault, 0)


def faults_from(text: str) -> Mapping[str, int]:
    """Read "dup,revoke:2": each fault with how often it may happen, once unless said. Raises ValueError."""
    faults: dict[str, int] = {}
    for part in (part.strip() for part in text.split(",")):
        if not part:
            continue
        name, colon, count = part.partition(":")
        if name not in FAULTS:
            raise ValueError(f'there is no fault "{name}"; there are {", ".join(FAULTS)}')
        if colon and not count.isdecimal():
            raise ValueError(f'"{part}": how often is a whole number')
        if name in faults:
            raise ValueError(f"{name} is given twice")
        faults[name] = int(count) if colon else 1
    return MappingProxyType(faults)


def without_obligations(obligations: Iterable[str], scope: Scope) -> Scope:
    """The scope in an environment that does not keep these obligations. Raises ValueError."""
    faults = dict(scope.faults)
    for obligation in obligations:
        if obligation not in OBLIGATIONS:
            raise ValueError(f'there is no obligation "{obligation}"; there are {", ".join(OBLIGATIONS)}')
        for fault in OBLIGATIONS[obligation]:
            faults[fault] = max(1, faults.get(fault, 0))
    return replace(scope, faults=MappingProxyType(faults))
