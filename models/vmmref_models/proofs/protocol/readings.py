"""What holds of the consumers' side: processes, tables, acknowledgement words."""

from __future__ import annotations

from vmmref_models.proofs.protocol.state import (
    ASKED,
    CHECKED,
    ENDED,
    FRESH,
    PROTOCOL,
    State,
    ack_pending,
    generation_of,
    live,
    rank_of,
    slot_of,
)
from vmmref_models.proofs.terms import And, Implies, Not, Or, Term, Truth
from vmmref_models.proofs.world import World


@PROTOCOL.invariant("REAP-1")
def one_process_a_rank(world: World, state: State) -> Truth:
    """A rank's process is its own, and of every process before it the device work is gone."""
    return world.all(
        "Rank",
        "Process",
        lambda rank, process: And(
            state.born(state.current(rank)),
            state.rank_of(state.current(rank)) == rank,
            Implies(state.work_gone(process), state.dead(process)),
            Implies(state.dead(process), state.born(process)),
            Implies(
                And(state.born(process), state.current(state.rank_of(process)) != process), state.work_gone(process)
            ),
        ),
    )


@PROTOCOL.invariant("REAP-1")
def only_the_dead_are_excused(world: World, state: State) -> Truth:
    """A lease does without a rank's word only if the process that it waited for is dead."""
    return world.all(
        "Lease",
        "Rank",
        lambda lease, rank: And(
            Implies(state.vacant(rank), state.dead(state.current(rank))),
            Implies(And(state.issued(lease), state.excused(lease, rank)), state.dead(state.awaited(lease, rank))),
        ),
    )


@PROTOCOL.invariant("REAP-1")
def awaited_processes_act_for_their_rank(world: World, state: State) -> Truth:
    """The process that a lease waits for was its rank's when the lease was granted."""
    return world.all(
        "Lease",
        "Rank",
        lambda lease, rank: Implies(
            state.issued(lease),
            And(state.born(state.awaited(lease, rank)), state.rank_of(state.awaited(lease, rank)) == rank),
        ),
    )


@PROTOCOL.invariant("CON-6", "REAP-1")
def younger_leases_wait_for_the_newcomer(world: World, state: State) -> Truth:
    """A lease with a generation above what its slot had issued when a rank's process joined waits for that process."""

    def waits(lease: Term, rank: Term) -> Truth:
        process, slot = state.current(rank), state.slot_of(lease)
        younger = state.generation_of(lease) > state.issued_before(process, slot)
        return Implies(And(state.issued(lease), younger), state.awaited(lease, rank) == process)

    return world.all("Lease", "Rank", waits)


def begun(state: State, reading: Term) -> Truth:
    """It has entered the table."""
    return state.stage(reading) != FRESH


@PROTOCOL.invariant("ACK-4")
def readings_are_entitled(world: World, state: State) -> Truth:
    """A reading that has begun is of a dispatched lease, by a process that was born, for a rank that speaks."""
    return world.all(
        "Reading",
        lambda reading: Implies(
            begun(state, reading),
            And(
                state.dispatched(state.lease_of(reading)),
                state.born(state.process_of(reading)),
                state.speaker_of(state.lease_of(reading), rank_of(state, reading)) == rank_of(state, reading),
            ),
        ),
    )


@PROTOCOL.invariant("CON-3")
def the_table_knows_every_reading(world: World, state: State) -> Truth:
    """A reading that has begun stands in its process's table, or a newer lease of the slot does."""
    return world.all(
        "Reading",
        lambda reading: Implies(
            begun(state, reading),
            generation_of(state, reading) <= state.table(state.process_of(reading), slot_of(state, reading)),
        ),
    )


@PROTOCOL.invariant("CON-3")
def tables_name_granted_leases(world: World, state: State) -> Truth:
    """No table is ahead of the generations that were issued."""
    return world.all("Process", "Slot", lambda process, slot: state.table(process, slot) <= state.generation(slot))


@PROTOCOL.invariant("CON-3", "ACK-3")
def one_use_a_process(world: World, state: State) -> Truth:
    """A process uses a lease once, through one copy of its proxy: no read after a release, no second read."""
    return world.all(
        "Reading",
        "Reading",
        lambda one, other: Implies(
            And(
                begun(state, one),
                begun(state, other),
                state.lease_of(one) == state.lease_of(other),
                state.process_of(one) == state.process_of(other),
            ),
            one == other,
        ),
    )


@PROTOCOL.invariant("ACK-2")
def the_table_is_ahead_of_the_word(world: World, state: State) -> Truth:
    """A rank's word holds nothing newer than the table of the rank's process."""
    return world.all(
        "Slot",
        "Rank",
        lambda slot, rank: And(
            state.ack_word(slot, rank) <= state.table(state.current(rank), slot), state.ack_word(slot, rank) >= 0
        ),
    )


@PROTOCOL.invariant("ACK-2")
def queued_acknowledgements_rise(world: World, state: State) -> Truth:
    """A queued acknowledgement is not below its word, nor below one that was queued before it for the same word."""
    return world.all(
        "Reading",
        "Reading",
        lambda one, other: And(
            Implies(
                ack_pending(state, one),
                state.ack_word(slot_of(state, one), rank_of(state, one)) <= generation_of(state, one),
            ),
            Implies(
                And(
                    ack_pending(state, one),
                    ack_pending(state, other),
                    state.process_of(one) == state.process_of(other),
                    slot_of(state, one) == slot_of(state, other),
                    state.ticket(one) < state.ticket(other),
                ),
                generation_of(state, one) <= generation_of(state, other),
            ),
        ),
    )


@PROTOCOL.invariant("ACK-2")
def one_stream_a_process(world: World, state: State) -> Truth:
    """The acknowledgements of a process have one order."""
    return world.all(
        "Reading",
        "Reading",
        lambda one, other: Implies(
            state.ack_queued(one),
            And(
                state.ticket(one) < state.next_ticket(state.process_of(one)),
                Implies(
                    And(
                        state.ack_queued(other),
                        state.process_of(one) == state.process_of(other),
                        state.ticket(one) == state.ticket(other),
                    ),
                    one == other,
                ),
            ),
        ),
    )


@PROTOCOL.law("ACK-2")
def words_never_fall(world: World, before: State, after: State) -> Truth:
    """No step lowers an acknowledgement word."""
    return world.all("Slot", "Rank", lambda slot, rank: after.ack_word(slot, rank) >= before.ack_word(slot, rank))


@PROTOCOL.invariant("CTL-4")
def each_word_has_its_writer(world: World, state: State) -> Truth:
    """What a rank's word holds was stored there by a reading of that rank, for that slot and generation."""

    def written(slot: Term, rank: Term) -> Truth:
        source = state.ack_source(slot, rank)
        return Implies(
            state.ack_word(slot, rank) != 0,
            And(
                state.ack_stored(source),
                rank_of(state, source) == rank,
                slot_of(state, source) == slot,
                generation_of(state, source) == state.ack_word(slot, rank),
            ),
        )

    return world.all("Slot", "Rank", written)


@PROTOCOL.invariant("ACK-5", "GEN-4")
def an_acknowledgement_is_for_its_lease(world: World, state: State) -> Truth:
    """A word equal to a lease's generation, now or in some look, was stored by a reading of that lease and rank."""
    return world.all(
        "Lease",
        "Rank",
        lambda lease, rank: And(
            Implies(
                And(
                    state.issued(lease),
                    state.ack_word(state.slot_of(lease), rank) == state.generation_of(lease),
                ),
                state.acknowledged(lease, rank),
            ),
            Implies(state.seen_word(lease, rank), state.acknowledged(lease, rank)),
        ),
    )


@PROTOCOL.invariant("GEN-4", "ACK-5")
def stored_acknowledgements_count(world: World, state: State) -> Truth:
    """A stored acknowledgement counts for its reading's own lease and rank; the word is not below it."""
    return world.all(
        "Reading",
        lambda reading: And(
            Implies(state.ack_stored(reading), state.ack_queued(reading)),
            Implies(state.ack_stored(reading), state.acknowledged(state.lease_of(reading), rank_of(state, reading))),
        ),
    )


@PROTOCOL.invariant("ACK-5")
def the_word_is_not_below_what_counts(world: World, state: State) -> Truth:
    """Once a rank has acknowledged a lease, its word is at least that generation."""
    return world.all(
        "Lease",
        "Rank",
        lambda lease, rank: Implies(
            state.acknowledged(lease, rank),
            And(state.ack_word(state.slot_of(lease), rank) >= state.generation_of(lease), state.dispatched(lease)),
        ),
    )


@PROTOCOL.invariant("ACK-1", "CON-4")
def acknowledged_when_ended(world: World, state: State) -> Truth:
    """An acknowledgement is queued when the reading has ended: nothing of it reads the range any more."""
    return world.all("Reading", lambda reading: Implies(state.ack_queued(reading), state.stage(reading) == ENDED))


@PROTOCOL.invariant("ACK-1")
def acknowledged_means_over(world: World, state: State) -> Truth:
    """While a word counts for a lease, no device work of that rank reads the lease."""
    return world.all(
        "Reading",
        lambda reading: Implies(
            And(
                state.acknowledged(state.lease_of(reading), rank_of(state, reading)),
                Not(state.work_gone(state.process_of(reading))),
            ),
            And(
                Or(state.stage(reading) == FRESH, state.stage(reading) == ENDED),
                Not(state.view_reads(reading)),
            ),
        ),
    )


@PROTOCOL.invariant("REC-1")
def recycled_when_complete(world: World, state: State) -> Truth:
    """A recycled lease was acknowledged by the speaker of every rank, or the process that it waited for is dead."""

    def answered(lease: Term, rank: Term) -> Truth:
        speaker = state.speaker_of(lease, rank)
        return Or(state.acknowledged(lease, speaker), state.dead(state.awaited(lease, speaker)))

    return world.all(
        "Lease",
        "Rank",
        lambda lease, rank: Implies(state.recycled(lease), And(state.claimed(lease), answered(lease, rank))),
    )


@PROTOCOL.invariant("CON-5", "LIV-1")
def live_leases_are_never_called_stale(world: World, state: State) -> Truth:
    """R that was read for a lease which nobody has claimed was 2n."""
    return world.all(
        "Reading",
        lambda reading: Implies(
            And(
                Or(state.stage(reading) == CHECKED, state.stage(reading) == ASKED),
                Not(state.claimed(state.lease_of(reading))),
            ),
            state.seen_ready(reading) == live(state, state.lease_of(reading)),
        ),
    )


@PROTOCOL.invariant("LIV-1", "CON-4")
def no_acknowledgement_gets_lost(world: World, state: State) -> Truth:
    """A lease that waits for a live process will hear of it: the process may still enter it in its table, or its
    reading goes on, or its acknowledgement is queued or stored."""

    def heard(lease: Term, rank: Term) -> Truth:
        process = state.awaited(lease, rank)
        entry = state.table_entry(process, lease)
        may_begin = state.table(process, state.slot_of(lease)) < state.generation_of(lease)
        goes_on = And(
            state.lease_of(entry) == lease,
            state.process_of(entry) == process,
            begun(state, entry),
            Or(state.stage(entry) != ENDED, state.ack_queued(entry)),
        )
        waits = Or(Not(state.claimed(lease)), And(state.borrowable(lease), Not(state.freed(lease))))
        due = And(state.issued(lease), waits, Not(state.closed()), Not(state.dead(process)))
        return Implies(due, Or(may_begin, goes_on))

    return world.all("Lease", "Rank", heard)
