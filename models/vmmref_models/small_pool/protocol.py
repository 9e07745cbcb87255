"""Lease protocols as a few switches: the right one, its near misses, and the simpler ones that engines have used.

They are run by `vmmref_models.small_pool`, and every wrong one is refuted by `vmmref_models.explore` with the shortest
sequence that breaks it. A switch has the value of the right protocol as its default, so that a protocol reads as what
it leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Wait(StrEnum):
    """How a consumer learns that a lease is ready."""

    HOST = "host"
    """The proxy leaves the producer when the host has seen R."""
    AT_LEAST = "at least"
    """The proxy leaves at once; the reader's stream waits until R is at least the lease's value."""
    EQUAL = "equal"
    """The same, and waits until R is exactly the lease's value."""


class Check(StrEnum):
    """When a reader compares R with the lease's value."""

    NEVER = "never"
    BEFORE = "before the copy"
    MIDDLE = "in the middle of the copy"
    AFTER = "after the copy"
    BEFORE_AND_AFTER = "before and after the copy"


class Acknowledge(StrEnum):
    """How a rank's word is written."""

    MAX = "atomic max"
    STORE = "store of n"
    LOAD_THEN_STORE = "max as a load, a comparison and a store"
    FLAG = "store of 1; the words are zeroed at publishing"


class Table(StrEnum):
    """When a consumer process notes that it has used (slot, n); what is noted is refused from then on."""

    NEVER = "never"
    ENQUEUE = "at enqueue"
    COMPLETION = "when the acknowledgement is done"


class Ended(StrEnum):
    """What of a lease's own publication must have ended."""

    READY = "copy and ready store"
    COPY = "copy"
    NOTHING = "nothing"


class Late(StrEnum):
    """What a deadline does to a lease."""

    KEPT = "reported, and served as before"
    RETIRED = "retired, and back when every rank has acknowledged"


class Group(StrEnum):
    """What the leader of a group writes when it acknowledges for all."""

    OWN_WORD = "its own word, which the recycler expands"
    EVERY_WORD = "each member's word"


class Reaper(StrEnum):
    """What is done about the leases that a dead rank has not acknowledged."""

    COUNTS = "counted on the host when the device work is gone"
    COUNTS_EARLY = "counted on the host at once"
    FORGES = "its words are written at once"


@dataclass(frozen=True, slots=True)
class Protocol:
    """One way to hand leases over; every default is what retire-validate-max does."""

    name: str
    sentence: str
    """What it does that the right protocol does not, or what it is."""
    wait: Wait = Wait.HOST
    check: Check = Check.AFTER
    acknowledge: Acknowledge = Acknowledge.MAX
    acknowledges_first: bool = False
    """The acknowledgement may run before the copy-out."""
    host_judges: bool = False
    """The host compares R when the copy has ended, and enqueues the acknowledgement then."""
    leaves_out_late: bool = True
    """A host that judges leaves the acknowledgement out when its rank has entered a newer lease of the slot."""
    table: Table = Table.ENQUEUE
    streams: int = 1
    """Streams of one rank for this pool."""
    retires: bool = True
    """R = 2n + 1 is stored before a lease is freed; without it R = n is all that R ever says."""
    retires_unsent: bool = True
    """Also for a lease that was never dispatched."""
    claims: bool = True
    """Who retires a lease takes it first, under the lock; without it everybody acts on what he saw."""
    retire_waits_for: Ended = Ended.READY
    free_waits_for: Ended = Ended.READY
    early_range: bool = False
    """The range is given back when the retire store is queued."""
    early_slot: bool = False
    """The slot is given back when the retire store is queued."""
    late: Late = Late.KEPT
    stale_acknowledges: bool = False
    """A reader that finds its lease stale acknowledges it, too."""
    failed_acknowledges: bool = True
    """A reader whose work failed acknowledges when what it had queued has ended."""
    borrow_holds: bool = True
    """Revoking a lease that may be borrowed holds its range until every rank has acknowledged or is dead."""
    holds_unsent: bool = False
    """A lease that was never dispatched is held in the same way."""
    group: Group = Group.OWN_WORD
    reaper: Reaper = Reaper.COUNTS
    rejoin_waits: bool = True
    """A dead rank's number is given to a new process only when its device work is gone."""
    unmap_waits: bool = True
    """The producer unmaps only when its queued work has ended."""
    drop_waits: bool = True
    """A consumer drops its import only when nothing that it queued, and no borrowed view, can touch it any more."""

    def live(self, generation: int) -> int:
        """What R says while lease `generation` is live."""
        return 2 * generation if self.retires else generation
