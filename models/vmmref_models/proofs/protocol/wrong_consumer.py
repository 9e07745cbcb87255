"""The consumers and the reaper with one guard or one order left out, each breaking the rule that it is named for."""

from __future__ import annotations

from dataclasses import replace

from vmmref_models.proofs.protocol import consumer
from vmmref_models.proofs.protocol.state import (
    BORROWING,
    CHECKED,
    ENDED,
    PROTOCOL,
    READING,
    State,
    ack_pending,
    generation_of,
    rank_of,
    slot_of,
)
from vmmref_models.proofs.system import Step
from vmmref_models.proofs.terms import TRUE, And, Not, Term, put, put_where
from vmmref_models.proofs.world import World


@PROTOCOL.wrong("release", breaks="CON-3")
def no_table(world: World, state: State, reading: Term) -> Step[State]:
    """Each copy of a proxy has a flag of its own, and no table is asked."""
    after = consumer.queue_ack(consumer.entered(state, reading, ENDED), reading, TRUE)
    return Step(consumer.able(state, reading), after)


@PROTOCOL.wrong("read-ready", breaks="CON-5")
def checked_before_the_last_byte(world: World, state: State, reading: Term) -> Step[State]:
    """R is read while the copy-out still runs."""
    return Step(consumer.runs(state, reading, READING), consumer.read_word(state, reading, CHECKED))


@PROTOCOL.wrong("judge", breaks="CON-5")
def never_judges(world: World, state: State, reading: Term) -> Step[State]:
    """The copy is accepted whatever R was."""
    right = consumer.judge(world, state, reading)
    return Step(right.guard, replace(right.after, accepted=put(state.accepted, (reading,), True)))


@PROTOCOL.wrong("judge", breaks="ACK-2")
def late_judged_acknowledgement(world: World, state: State, reading: Term) -> Step[State]:
    """The host acknowledges a good copy although its table has a newer lease of the slot by now."""
    right = consumer.judged(state, reading)
    wanted = consumer.may_acknowledge(state, reading)
    return Step(consumer.judged_by_host(state, reading, CHECKED), consumer.queue_ack(right, reading, wanted))


@PROTOCOL.wrong("fail-reading", breaks="ACK-1")
def acknowledged_under_the_copy(world: World, state: State, reading: Term) -> Step[State]:
    """A failed reconstruction acknowledges while its copy-out is queued."""
    return Step(
        consumer.judged_by_host(state, reading, READING),
        consumer.queue_ack(state, reading, consumer.is_last(state, reading)),
    )


@PROTOCOL.wrong("fail-reading", breaks="CON-4")
def fails_in_silence(world: World, state: State, reading: Term) -> Step[State]:
    """A failed reconstruction does not acknowledge."""
    right = consumer.fail_reading(world, state, reading)
    return Step(right.guard, consumer.end(state, reading))


@PROTOCOL.wrong("judge", breaks="LIV-1")
def stale_and_silent(world: World, state: State, reading: Term) -> Step[State]:
    """A stale reader of a lease whose range is set aside for it writes nothing."""
    wanted = And(consumer.verdict(state, reading), consumer.is_last(state, reading))
    after = consumer.queue_ack(consumer.judged(state, reading), reading, wanted)
    return Step(consumer.judged_by_host(state, reading, CHECKED), after)


@PROTOCOL.wrong("ack-store", breaks="ACK-2")
def two_streams_a_rank(world: World, state: State, reading: Term) -> Step[State]:
    """A process's acknowledgements run on several streams, in any order."""
    return Step(ack_pending(state, reading), consumer.store_ack(state, reading))


@PROTOCOL.wrong("ack-store", breaks="GEN-4")
def acknowledges_the_newest(world: World, state: State, reading: Term) -> Step[State]:
    """An old handle acknowledges whatever lease its slot carries."""
    right = consumer.ack_store(world, state, reading)
    place = (slot_of(state, reading), rank_of(state, reading))
    newest = put(state.ack_word, place, state.generation(slot_of(state, reading)))
    return Step(right.guard, replace(right.after, ack_word=newest))


@PROTOCOL.wrong("ack-store", breaks="ACK-1")
def overtakes_the_reads_of_a_view(world: World, state: State, reading: Term) -> Step[State]:
    """The acknowledgement of a view runs on another stream than the reads through it."""
    right = consumer.ack_store(world, state, reading)
    return Step(right.guard, replace(right.after, view_reads=state.view_reads))


@PROTOCOL.wrong("ack-store", breaks="CTL-4")
def acknowledges_for_the_group(world: World, state: State, reading: Term) -> Step[State]:
    """A speaker stores into the words of all members of its group."""
    right = consumer.ack_store(world, state, reading)
    lease, slot = state.lease_of(reading), slot_of(state, reading)

    def spoken_for(one: Term, rank: Term) -> Term:
        return And(one == slot, state.speaker_of(lease, rank) == rank_of(state, reading))

    members = put_where(right.after.ack_word, spoken_for, lambda one, rank: generation_of(state, reading))
    return Step(right.guard, replace(right.after, ack_word=members))


@PROTOCOL.wrong("begin-reading", breaks="ACK-4")
def members_acknowledge_themselves(world: World, state: State, reading: Term) -> Step[State]:
    """A rank that another speaks for uses the proxy too."""
    alone = replace(state, speaker_of=lambda lease, rank: rank)
    guard = And(consumer.able(alone, reading), consumer.is_newer(state, reading))
    return Step(guard, consumer.entered(state, reading, READING))


@PROTOCOL.wrong("begin-borrowing", breaks="CON-6")
def newcomer_borrows_an_older_lease(world: World, state: State, reading: Term) -> Step[State]:
    """A process that joined borrows a lease that was published before, and that does not wait for it."""
    allowed = And(state.borrowable(state.lease_of(reading)), consumer.is_newer(state, reading))
    return Step(And(consumer.able(state, reading), allowed), consumer.entered(state, reading, BORROWING))


@PROTOCOL.wrong("begin-borrowing", breaks="CON-3")
def borrow_without_the_table(world: World, state: State, reading: Term) -> Step[State]:
    """The table is entered when a borrow ends."""
    right = consumer.begin_borrowing(world, state, reading)
    return Step(right.guard, replace(right.after, table=state.table))


@PROTOCOL.wrong("drop-import", breaks="HND-4")
def import_dropped_under_a_reader(world: World, state: State, process: Term) -> Step[State]:
    """An import is dropped while a copy-out is queued."""
    return Step(Not(state.dead(process)), replace(state, imported=put(state.imported, (process,), False)))


@PROTOCOL.wrong("reap", breaks="CTL-4")
def reaper_forges(world: World, state: State, rank: Term) -> Step[State]:
    """The reaper writes the words of a dead rank."""
    forged = put_where(state.ack_word, lambda slot, one: one == rank, lambda slot, one: state.generation(slot))
    return Step(state.dead(state.current(rank)), replace(state, ack_word=forged))


@PROTOCOL.wrong("reap", breaks="REAP-1")
def reaper_counts_the_living(world: World, state: State, rank: Term) -> Step[State]:
    """A missed heartbeat is taken for death."""
    return Step(TRUE, consumer.excuse(state, rank))


@PROTOCOL.wrong("join", breaks="REAP-1")
def rejoin_early(world: World, state: State, process: Term) -> Step[State]:
    """A rank's number goes to a new process while the old one's device work runs."""
    return Step(
        And(Not(state.born(process)), state.vacant(state.rank_of(process))), consumer.takes_over(state, process)
    )


@PROTOCOL.wrong("join", breaks="ACK-2")
def newcomer_with_an_empty_table(world: World, state: State, process: Term) -> Step[State]:
    """The table of a new process starts empty, whatever the words say."""
    right = consumer.join(world, state, process)
    empty = put_where(state.table, lambda one, slot: one == process, lambda one, slot: 0)
    return Step(right.guard, replace(right.after, table=empty))


@PROTOCOL.wrong("join", breaks="CON-6")
def newcomer_trusts_the_ready_words(world: World, state: State, process: Term) -> Step[State]:
    """A new process takes R for what a slot has issued; a lease that is not ready yet is younger to it."""
    right = consumer.join(world, state, process)
    ready = put_where(
        state.issued_before, lambda one, slot: one == process, lambda one, slot: state.ready_word(slot) / 2
    )
    return Step(right.guard, replace(right.after, issued_before=ready))
