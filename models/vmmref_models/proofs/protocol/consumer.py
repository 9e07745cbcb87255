"""The consumers: enter the table, copy out, read R, judge, acknowledge; borrow; die, be counted, join."""

from __future__ import annotations

from dataclasses import replace

from vmmref_models.proofs.protocol.state import (
    ASKED,
    BORROWING,
    CHECKED,
    ENDED,
    FRESH,
    PROTOCOL,
    READING,
    VIEWING,
    State,
    ack_pending,
    generation_of,
    held,
    live,
    rank_of,
    slot_of,
)
from vmmref_models.proofs.system import Step
from vmmref_models.proofs.terms import TRUE, And, If, Implies, Not, Or, Term, Truth, put, put_where
from vmmref_models.proofs.world import World


def able(state: State, reading: Term) -> Truth:
    """A live process that acts for its rank, has imported the pool, and was handed a proxy that its rank may use."""
    process, lease = state.process_of(reading), state.lease_of(reading)
    rank = state.rank_of(process)
    return And(
        state.stage(reading) == FRESH,
        state.born(process),
        Not(state.dead(process)),
        state.current(rank) == process,
        state.imported(process),
        state.dispatched(lease),
        state.speaker_of(lease, rank) == rank,
    )


def is_newer(state: State, reading: Term) -> Truth:
    """The table of the process has no entry for this lease or a newer one of its slot."""
    return generation_of(state, reading) > state.table(state.process_of(reading), slot_of(state, reading))


def is_last(state: State, reading: Term) -> Truth:
    """The table's newest entry for the slot is this reading's lease."""
    return state.table(state.process_of(reading), slot_of(state, reading)) == generation_of(state, reading)


def entered(state: State, reading: Term, stage: int) -> State:
    """The lease stands in the process's table, before any device work."""
    process, lease = state.process_of(reading), state.lease_of(reading)
    return replace(
        state,
        table=put(state.table, (process, state.slot_of(lease)), state.generation_of(lease)),
        table_entry=put(state.table_entry, (process, lease), reading),
        stage=put(state.stage, (reading,), stage),
    )


def queue_ack(state: State, reading: Term, wanted: Truth) -> State:
    """Where wanted, A[r] := n goes to the end of the process's one stream."""
    process = state.process_of(reading)
    next_ticket = state.next_ticket(process)
    return replace(
        state,
        ack_queued=put(state.ack_queued, (reading,), Or(state.ack_queued(reading), wanted)),
        ticket=put(state.ticket, (reading,), If(wanted, next_ticket, state.ticket(reading))),
        next_ticket=put(state.next_ticket, (process,), If(wanted, next_ticket + 1, next_ticket)),
    )


def end(state: State, reading: Term) -> State:
    """Nothing of the reading runs any more but its acknowledgement."""
    return replace(state, stage=put(state.stage, (reading,), ENDED))


@PROTOCOL.action("Process")
def import_pool(world: World, state: State, process: Term) -> Step[State]:
    """A live process imports the pool's memory."""
    return Step(
        And(state.born(process), Not(state.dead(process))),
        replace(state, imported=put(state.imported, (process,), True)),
    )


def idle(world: World, state: State, process: Term) -> Truth:
    """No reading of the process runs, no view is out, no acknowledgement is queued."""
    return world.all(
        "Reading",
        lambda reading: Implies(
            state.process_of(reading) == process,
            And(Or(state.stage(reading) == FRESH, state.stage(reading) == ENDED), Not(ack_pending(state, reading))),
        ),
    )


@PROTOCOL.action("Process")
def drop_import(world: World, state: State, process: Term) -> Step[State]:
    """A live process drops its import when nothing of its own uses it."""
    return Step(
        And(Not(state.dead(process)), idle(world, state, process)),
        replace(state, imported=put(state.imported, (process,), False)),
    )


@PROTOCOL.action("Reading")
def begin_reading(world: World, state: State, reading: Term) -> Step[State]:
    """Enter the table and queue the copy-out."""
    return Step(And(able(state, reading), is_newer(state, reading)), entered(state, reading, READING))


def runs(state: State, reading: Term, stage: int) -> Truth:
    """The reading is in this stage, and its process's device work runs still, also after the process's death."""
    return And(state.stage(reading) == stage, Not(state.work_gone(state.process_of(reading))))


def judged_by_host(state: State, reading: Term, stage: int) -> Truth:
    """The reading is in this stage, and its process lives to go on."""
    return And(state.stage(reading) == stage, Not(state.dead(state.process_of(reading))))


@PROTOCOL.action("Reading", "Block")
def copy_out(world: World, state: State, reading: Term, block: Term) -> Step[State]:
    """A copy-out reads one block."""
    return Step(
        And(runs(state, reading, READING), state.covers(state.lease_of(reading), block)),
        replace(
            state,
            got=put(state.got, (reading, block), state.content(block)),
            fetched=put(state.fetched, (reading, block), True),
        ),
    )


def read_word(state: State, reading: Term, stage: int) -> State:
    """R as it is now is kept for the host to judge."""
    return replace(
        state,
        seen_ready=put(state.seen_ready, (reading,), state.ready_word(slot_of(state, reading))),
        stage=put(state.stage, (reading,), stage),
    )


@PROTOCOL.action("Reading")
def read_ready(world: World, state: State, reading: Term) -> Step[State]:
    """R is read after the last byte has arrived."""
    lease = state.lease_of(reading)
    whole = world.all("Block", lambda block: Implies(state.covers(lease, block), state.fetched(reading, block)))
    return Step(And(runs(state, reading, READING), whole), read_word(state, reading, CHECKED))


def verdict(state: State, reading: Term) -> Truth:
    """R was 2n: the lease was live when it was read."""
    return state.seen_ready(reading) == live(state, state.lease_of(reading))


def may_acknowledge(state: State, reading: Term) -> Truth:
    """A good reading acknowledges, and a stale one of a borrowable lease, whose range waits for it."""
    return Or(verdict(state, reading), state.borrowable(state.lease_of(reading)))


def judged(state: State, reading: Term) -> State:
    """Accepted where R was 2n, thrown away where not."""
    return replace(end(state, reading), accepted=put(state.accepted, (reading,), verdict(state, reading)))


@PROTOCOL.action("Reading")
def judge(world: World, state: State, reading: Term) -> Step[State]:
    """The host judges R and acknowledges, unless its table has a newer lease of the slot."""
    wanted = And(may_acknowledge(state, reading), is_last(state, reading))
    return Step(judged_by_host(state, reading, CHECKED), queue_ack(judged(state, reading), reading, wanted))


@PROTOCOL.action("Reading")
def fail_reading(world: World, state: State, reading: Term) -> Step[State]:
    """A reconstruction fails: it waits for its queued work, then acknowledges."""
    running = Or(judged_by_host(state, reading, READING), judged_by_host(state, reading, CHECKED))
    return Step(running, queue_ack(end(state, reading), reading, is_last(state, reading)))


@PROTOCOL.action("Reading")
def release(world: World, state: State, reading: Term) -> Step[State]:
    """Release without reading: enter the table and acknowledge."""
    after = queue_ack(entered(state, reading, ENDED), reading, TRUE)
    return Step(And(able(state, reading), is_newer(state, reading)), after)


def first_in_stream(world: World, state: State, reading: Term) -> Truth:
    """No acknowledgement of its process was queued before and is still to be stored."""
    return world.all(
        "Reading",
        lambda other: Implies(
            And(state.process_of(other) == state.process_of(reading), ack_pending(state, other)),
            state.ticket(reading) <= state.ticket(other),
        ),
    )


def store_ack(state: State, reading: Term) -> State:
    """A[r] := n, a plain store into the rank's own word, behind all that the reading queued before."""
    place = (slot_of(state, reading), rank_of(state, reading))
    return replace(
        state,
        ack_word=put(state.ack_word, place, generation_of(state, reading)),
        ack_source=put(state.ack_source, place, reading),
        ack_stored=put(state.ack_stored, (reading,), True),
        view_reads=put(state.view_reads, (reading,), False),
        acknowledged=put(state.acknowledged, (state.lease_of(reading), rank_of(state, reading)), True),
    )


@PROTOCOL.action("Reading")
def ack_store(world: World, state: State, reading: Term) -> Step[State]:
    """The oldest queued acknowledgement of a process is stored."""
    return Step(
        And(ack_pending(state, reading), first_in_stream(world, state, reading)),
        store_ack(state, reading),
    )


def is_awaited(state: State, reading: Term) -> Truth:
    """The lease was granted after the process had joined, so it waits for this process and not for one before it."""
    return generation_of(state, reading) > state.issued_before(state.process_of(reading), slot_of(state, reading))


@PROTOCOL.action("Reading")
def begin_borrowing(world: World, state: State, reading: Term) -> Step[State]:
    """Enter the table for a borrow; the lease must be borrowable and wait for this process."""
    allowed = And(state.borrowable(state.lease_of(reading)), is_awaited(state, reading))
    return Step(And(able(state, reading), allowed, is_newer(state, reading)), entered(state, reading, BORROWING))


@PROTOCOL.action("Reading")
def ask_ready(world: World, state: State, reading: Term) -> Step[State]:
    """R is read for a borrow."""
    return Step(runs(state, reading, BORROWING), read_word(state, reading, ASKED))


@PROTOCOL.action("Reading")
def open_view(world: World, state: State, reading: Term) -> Step[State]:
    """R was 2n: the view is out. Else the borrower is stale, and acknowledges, for the range waits for it."""
    stale = Not(verdict(state, reading))
    after = replace(state, stage=put(state.stage, (reading,), If(stale, ENDED, VIEWING)))
    return Step(
        judged_by_host(state, reading, ASKED),
        queue_ack(after, reading, And(stale, is_last(state, reading))),
    )


@PROTOCOL.action("Reading")
def return_view(world: World, state: State, reading: Term) -> Step[State]:
    """The view is given back; the acknowledgement follows the reads that were queued before it."""
    after = replace(end(state, reading), view_reads=put(state.view_reads, (reading,), True))
    return Step(judged_by_host(state, reading, VIEWING), queue_ack(after, reading, is_last(state, reading)))


@PROTOCOL.action("Process")
def die(world: World, state: State, process: Term) -> Step[State]:
    """A process dies; its device work may run on."""
    return Step(
        And(state.born(process), Not(state.dead(process))),
        replace(state, dead=put(state.dead, (process,), True)),
    )


@PROTOCOL.action("Process")
def work_ends(world: World, state: State, process: Term) -> Step[State]:
    """The device work of a dead process is gone."""
    return Step(state.dead(process), replace(state, work_gone=put(state.work_gone, (process,), True)))


def excuse(state: State, rank: Term) -> State:
    """The leases that are out do not wait for the rank's word any more, nor do new ones until another joins."""
    return replace(
        state,
        vacant=put(state.vacant, (rank,), True),
        excused=put_where(
            state.excused, lambda lease, one: And(one == rank, held(state, lease)), lambda lease, one: True
        ),
    )


@PROTOCOL.action("Rank")
def reap(world: World, state: State, rank: Term) -> Step[State]:
    """The reaper counts a rank whose process is dead, on the host; it writes no word."""
    return Step(state.dead(state.current(rank)), excuse(state, rank))


def takes_over(state: State, process: Term) -> State:
    """A new process acts for its rank. Its table starts with what the rank's words say, and it is told what each slot
    has issued so far."""
    rank = state.rank_of(process)
    return replace(
        state,
        born=put(state.born, (process,), True),
        current=put(state.current, (rank,), process),
        vacant=put(state.vacant, (rank,), False),
        table=put_where(state.table, lambda one, slot: one == process, lambda one, slot: state.ack_word(slot, rank)),
        issued_before=put_where(
            state.issued_before, lambda one, slot: one == process, lambda one, slot: state.generation(slot)
        ),
    )


@PROTOCOL.action("Process")
def join(world: World, state: State, process: Term) -> Step[State]:
    """A new process takes a vacant rank, after the device work of the old one is gone."""
    rank = state.rank_of(process)
    return Step(
        And(Not(state.born(process)), state.vacant(rank), state.work_gone(state.current(rank))),
        takes_over(state, process),
    )
