"""How the protocol starts: an empty book, zeroed words, a live process for each rank."""

from __future__ import annotations

from vmmref_models.proofs.protocol.state import FRESH, PROTOCOL, State
from vmmref_models.proofs.terms import And, Implies, Not, Or, Truth
from vmmref_models.proofs.world import World


@PROTOCOL.fact
def speakers_speak_for_themselves(world: World, state: State) -> Truth:
    """Groups are disjoint, and a group's speaker is one of its members."""
    return world.all(
        "Lease",
        "Rank",
        lambda lease, rank: state.speaker_of(lease, state.speaker_of(lease, rank)) == state.speaker_of(lease, rank),
    )


@PROTOCOL.start
def empty_book(world: World, state: State) -> Truth:
    """No lease was granted; every slot and block is free."""
    no_lease = world.all(
        "Lease",
        lambda lease: And(
            Not(Or(state.issued(lease), state.dispatched(lease), state.claimed(lease), state.recycled(lease))),
            Not(Or(state.freed(lease), state.late(lease), state.copy_queued(lease), state.copied(lease))),
            Not(Or(state.ready_queued(lease), state.ready_stored(lease))),
            Not(Or(state.retire_queued(lease), state.retire_stored(lease))),
            state.times_claimed(lease) == 0,
            state.times_freed(lease) == 0,
        ),
    )
    slots = world.all(
        "Slot",
        lambda slot: And(state.slot_free(slot), Not(state.slot_used_up(slot)), state.generation(slot) == 0),
    )
    blocks = world.all(
        "Lease", "Block", lambda lease, block: And(state.block_free(block), Not(state.written(lease, block)))
    )
    return And(no_lease, slots, blocks, Not(Or(state.failed(), state.closed(), state.unmapped())))


@PROTOCOL.start
def zeroed_words(world: World, state: State) -> Truth:
    """Every word is zero (CTL-3), and nobody has acknowledged."""
    words = world.all(
        "Slot", "Rank", lambda slot, rank: And(state.ready_word(slot) == 0, state.ack_word(slot, rank) == 0)
    )
    nobody = world.all(
        "Lease",
        "Rank",
        lambda lease, rank: Not(
            Or(state.acknowledged(lease, rank), state.seen_word(lease, rank), state.excused(lease, rank))
        ),
    )
    return And(words, nobody)


@PROTOCOL.start
def fresh_consumers(world: World, state: State) -> Truth:
    """Each rank has one live process with an empty table; no reading has begun."""
    ranks = world.all(
        "Rank",
        lambda rank: And(
            state.born(state.current(rank)), state.rank_of(state.current(rank)) == rank, Not(state.vacant(rank))
        ),
    )
    processes = world.all(
        "Process",
        "Slot",
        lambda process, slot: And(
            Implies(state.born(process), state.current(state.rank_of(process)) == process),
            Not(Or(state.dead(process), state.work_gone(process), state.imported(process))),
            state.table(process, slot) == 0,
            state.issued_before(process, slot) == 0,
            state.next_ticket(process) == 0,
        ),
    )
    readings = world.all(
        "Reading",
        "Block",
        lambda reading, block: And(
            state.stage(reading) == FRESH,
            Not(Or(state.accepted(reading), state.ack_queued(reading), state.ack_stored(reading))),
            Not(Or(state.fetched(reading, block), state.view_reads(reading))),
        ),
    )
    return And(ranks, processes, readings)
