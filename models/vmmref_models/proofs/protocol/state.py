"""The state of the protocol retire, validate, max, for any number of slots, ranks, processes, leases, blocks, readings.

A lease, a process and a reading (one use of one copy of a proxy, by one process) are things that exist from the start
with fixed attributes; the actions say when they come into play. So every choice of slot, range and generation is
covered, and no counter bounds how many leases there ever are. A range is a set of blocks of any shape; the tiling
has its own proof. Copies move block by block, in any order, so that torn bytes are seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vmmref_models.proofs.system import System
from vmmref_models.proofs.terms import And, Function, Not, Term, Truth
from vmmref_models.proofs.world import flag, number, thing

LIMIT = 2**31 - 1
"""The last generation of a slot (GEN-3), true to scale."""

STAGES = ("FRESH", "READING", "CHECKED", "BORROWING", "ASKED", "VIEWING", "ENDED")
FRESH, READING, CHECKED, BORROWING, ASKED, VIEWING, ENDED = range(len(STAGES))
"""Stages of a reading. FRESH: not begun. READING: in the table, its copy-out runs. CHECKED: R was read, the host has
not judged it. BORROWING, ASKED, VIEWING: the same without a copy; in VIEWING the bytes are read in place. ENDED:
accepted, stale, failed, given back or released, and nothing of it runs any more but its acknowledgement."""


@dataclass(frozen=True)
class State:
    """Fields are functions of things; `slot_of(lease)` is the slot of a lease."""

    # What a lease, a process and a reading are for ever.
    slot_of: Function = field(metadata=thing("Slot", "Lease"))
    generation_of: Function = field(metadata=number("Lease"))
    covers: Function = field(metadata=flag("Lease", "Block"))
    speaker_of: Function = field(metadata=thing("Rank", "Lease", "Rank"))
    """Who acknowledges for a rank: the speaker of its group in that lease (ACK-4)."""
    borrowable: Function = field(metadata=flag("Lease"))
    rank_of: Function = field(metadata=thing("Rank", "Process"))
    lease_of: Function = field(metadata=thing("Lease", "Reading"))
    process_of: Function = field(metadata=thing("Process", "Reading"))

    # The producer's book.
    generation: Function = field(metadata=number("Slot"))
    """The last one issued."""
    slot_free: Function = field(metadata=flag("Slot"))
    slot_used_up: Function = field(metadata=flag("Slot"))
    """It has used its last generation."""
    slot_holder: Function = field(metadata=thing("Lease", "Slot"))
    """The lease that was granted last."""
    block_free: Function = field(metadata=flag("Block"))
    block_holder: Function = field(metadata=thing("Lease", "Block"))
    issued: Function = field(metadata=flag("Lease"))
    dispatched: Function = field(metadata=flag("Lease"))
    claimed: Function = field(metadata=flag("Lease"))
    recycled: Function = field(metadata=flag("Lease"))
    """It was claimed because it was seen complete."""
    freed: Function = field(metadata=flag("Lease"))
    late: Function = field(metadata=flag("Lease"))
    """Past its deadline, and told as set aside."""
    times_claimed: Function = field(metadata=number("Lease"))
    times_freed: Function = field(metadata=number("Lease"))
    seen_word: Function = field(metadata=flag("Lease", "Rank"))
    """Some look found that rank's word equal to this lease's generation. Looks are never forgotten, so old ones act."""
    failed: Function = field(metadata=flag())
    """A failure left the state of the device unknown."""
    closed: Function = field(metadata=flag())
    unmapped: Function = field(metadata=flag())

    # The producer's device work.
    copy_queued: Function = field(metadata=flag("Lease"))
    written: Function = field(metadata=flag("Lease", "Block"))
    copied: Function = field(metadata=flag("Lease"))
    ready_queued: Function = field(metadata=flag("Lease"))
    ready_stored: Function = field(metadata=flag("Lease"))
    retire_queued: Function = field(metadata=flag("Lease"))
    retire_stored: Function = field(metadata=flag("Lease"))

    # The memory.
    ready_word: Function = field(metadata=number("Slot"))
    ack_word: Function = field(metadata=number("Slot", "Rank"))
    content: Function = field(metadata=thing("Lease", "Block"))
    """Whose bytes lie in a block."""

    # Processes and what the producer knows of them.
    born: Function = field(metadata=flag("Process"))
    dead: Function = field(metadata=flag("Process"))
    work_gone: Function = field(metadata=flag("Process"))
    """No device work of it runs any more."""
    current: Function = field(metadata=thing("Process", "Rank"))
    vacant: Function = field(metadata=flag("Rank"))
    """The reaper has counted its process as dead, and no other has joined."""
    excused: Function = field(metadata=flag("Lease", "Rank"))
    """The lease does not wait for that rank's word."""
    awaited: Function = field(metadata=thing("Process", "Lease", "Rank"))
    """The process that acted for the rank when the lease was issued."""

    # The consumers.
    imported: Function = field(metadata=flag("Process"))
    table: Function = field(metadata=number("Process", "Slot"))
    table_entry: Function = field(metadata=thing("Reading", "Process", "Lease"))
    """The reading by which a process entered a lease in its table."""
    issued_before: Function = field(metadata=number("Process", "Slot"))
    """The last generation that the slot had issued when the process joined; 0 for who was there at the start."""
    stage: Function = field(metadata=number("Reading", names=STAGES))
    fetched: Function = field(metadata=flag("Reading", "Block"))
    got: Function = field(metadata=thing("Lease", "Reading", "Block"))
    """Whose bytes a reading has copied from a block."""
    seen_ready: Function = field(metadata=number("Reading"))
    """The R that it read."""
    accepted: Function = field(metadata=flag("Reading"))
    view_reads: Function = field(metadata=flag("Reading"))
    """The view was given back, and reads through it may still be queued before the acknowledgement."""
    ack_queued: Function = field(metadata=flag("Reading"))
    ack_stored: Function = field(metadata=flag("Reading"))
    ticket: Function = field(metadata=number("Reading"))
    """The place of its acknowledgement in its process's one stream."""
    next_ticket: Function = field(metadata=number("Process"))
    acknowledged: Function = field(metadata=flag("Lease", "Rank"))
    """A reading of that lease by a process of that rank has stored its acknowledgement."""
    ack_source: Function = field(metadata=thing("Reading", "Slot", "Rank"))
    """The reading whose acknowledgement that word holds."""


PROTOCOL: System[State] = System(
    family="protocol",
    sentence="publish, read, acknowledge, look, claim, retire, free; borrow, revoke, deadline, death, shutdown",
    sorts=("Slot", "Rank", "Process", "Lease", "Block", "Reading"),
    state=State,
    # A rank needs a second process before one can join.
    few=((1, 1, 1, 1, 1, 1), (1, 1, 2, 2, 1, 2), (2, 2, 3, 2, 2, 2), (2, 2, 3, 3, 2, 3)),
)


def active(state: State, lease: Term) -> Truth:
    """Granted and claimed by nobody."""
    return And(state.issued(lease), Not(state.claimed(lease)))


def held(state: State, lease: Term) -> Truth:
    """It has its slot and its range."""
    return And(state.issued(lease), Not(state.freed(lease)))


def live(state: State, lease: Term) -> Term:
    """The value of R that says that the lease is live: 2n."""
    return 2 * state.generation_of(lease)


def rank_of(state: State, reading: Term) -> Term:
    """The rank for which a reading is made."""
    return state.rank_of(state.process_of(reading))


def slot_of(state: State, reading: Term) -> Term:
    """The slot whose words a reading uses."""
    return state.slot_of(state.lease_of(reading))


def generation_of(state: State, reading: Term) -> Term:
    """The generation that a reading acknowledges."""
    return state.generation_of(state.lease_of(reading))


def ack_pending(state: State, reading: Term) -> Truth:
    """Its acknowledgement is queued and may still be stored."""
    return And(
        state.ack_queued(reading),
        Not(state.ack_stored(reading)),
        Not(state.work_gone(state.process_of(reading))),
    )
