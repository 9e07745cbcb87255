"""What holds of the bytes that consumers get: accepted copies, borrowed views, and the imports that both need."""

from __future__ import annotations

from vmmref_models.proofs.protocol.readings import begun
from vmmref_models.proofs.protocol.state import (
    ASKED,
    BORROWING,
    CHECKED,
    ENDED,
    PROTOCOL,
    READING,
    VIEWING,
    State,
    ack_pending,
    live,
    rank_of,
)
from vmmref_models.proofs.terms import And, Implies, Not, Or, Term, Truth
from vmmref_models.proofs.world import World


@PROTOCOL.invariant("CON-5")
def nothing_is_fetched_before_the_table(world: World, state: State) -> Truth:
    """A reading that has not begun has copied nothing."""
    return world.all(
        "Reading",
        "Block",
        lambda reading, block: Implies(state.fetched(reading, block), begun(state, reading)),
    )


@PROTOCOL.invariant("CON-5")
def a_copy_is_good_until_retired(world: World, state: State) -> Truth:
    """What a reading has fetched is its lease's own as long as the lease is not retired."""
    return world.all(
        "Reading",
        "Block",
        lambda reading, block: Implies(
            And(
                state.stage(reading) == READING,
                state.fetched(reading, block),
                state.covers(state.lease_of(reading), block),
                Not(state.retire_stored(state.lease_of(reading))),
            ),
            state.got(reading, block) == state.lease_of(reading),
        ),
    )


@PROTOCOL.invariant("CON-5")
def a_good_check_means_good_bytes(world: World, state: State) -> Truth:
    """Where R was 2n after the last byte, every byte of the copy is the lease's own."""
    return world.all(
        "Reading",
        "Block",
        lambda reading, block: Implies(
            And(
                state.stage(reading) == CHECKED,
                state.seen_ready(reading) == live(state, state.lease_of(reading)),
                state.covers(state.lease_of(reading), block),
            ),
            state.got(reading, block) == state.lease_of(reading),
        ),
    )


@PROTOCOL.invariant("CON-5", "GEN-4", "CAN-3", "CON-1")
def accepted_bytes_are_its_own(world: World, state: State) -> Truth:
    """No foreign byte is accepted: every block of an accepted copy is from the lease that was read."""
    return world.all(
        "Reading",
        "Block",
        lambda reading, block: And(
            Implies(state.accepted(reading), state.stage(reading) == ENDED),
            Implies(
                And(state.accepted(reading), state.covers(state.lease_of(reading), block)),
                state.got(reading, block) == state.lease_of(reading),
            ),
        ),
    )


def borrows(state: State, reading: Term) -> Truth:
    """A live process has a view, or has asked for one, or reads through one that was given back are still queued."""
    asking = Or(*[state.stage(reading) == stage for stage in (BORROWING, ASKED, VIEWING)])
    return And(Or(asking, state.view_reads(reading)), Not(state.dead(state.process_of(reading))))


def sees(state: State, reading: Term) -> Truth:
    """A live process has a view, or queued reads of one, or will have one as soon as it judges the R that it read."""
    promised = And(state.stage(reading) == ASKED, state.seen_ready(reading) == live(state, state.lease_of(reading)))
    return And(Or(state.stage(reading) == VIEWING, promised, state.view_reads(reading)), borrows(state, reading))


@PROTOCOL.invariant("CON-6")
def borrowers_are_waited_for(world: World, state: State) -> Truth:
    """Who borrows has a borrowable lease that waits for this very process."""
    return world.all(
        "Reading",
        lambda reading: Implies(
            borrows(state, reading),
            And(
                state.borrowable(state.lease_of(reading)),
                state.awaited(state.lease_of(reading), rank_of(state, reading)) == state.process_of(reading),
            ),
        ),
    )


@PROTOCOL.invariant("CON-6")
def a_view_holds_its_range(world: World, state: State) -> Truth:
    """While a view is out, its lease is not freed, but by a shutdown, after which nothing is granted."""
    return world.all(
        "Reading",
        lambda reading: Implies(
            And(sees(state, reading), Not(state.closed())), Not(state.freed(state.lease_of(reading)))
        ),
    )


@PROTOCOL.invariant("CON-6")
def a_view_shows_its_lease(world: World, state: State) -> Truth:
    """Every byte under a view is its lease's own, also when the lease was revoked or the pool shut down."""
    return world.all(
        "Reading",
        "Block",
        lambda reading, block: Implies(
            And(sees(state, reading), state.covers(state.lease_of(reading), block)),
            And(state.content(block) == state.lease_of(reading), state.block_holder(block) == state.lease_of(reading)),
        ),
    )


@PROTOCOL.invariant("CON-6", "LIV-1")
def acknowledgements_of_views_are_never_left_out(world: World, state: State) -> Truth:
    """No newer lease of the slot exists while a view is out, so the table's last entry is the view's."""

    def is_newest(reading: Term) -> Truth:
        lease = state.lease_of(reading)
        entry = state.table(state.process_of(reading), state.slot_of(lease))
        newest = state.generation(state.slot_of(lease)) == state.generation_of(lease)
        return Implies(sees(state, reading), And(newest, entry == state.generation_of(lease)))

    return world.all("Reading", is_newest)


@PROTOCOL.invariant("CON-6", "ACK-1")
def queued_reads_of_a_view_come_first(world: World, state: State) -> Truth:
    """Reads of a view that was given back are queued before its acknowledgement."""
    return world.all(
        "Reading",
        lambda reading: Implies(
            state.view_reads(reading),
            And(state.stage(reading) == ENDED, state.ack_queued(reading), Not(state.ack_stored(reading))),
        ),
    )


@PROTOCOL.invariant("HND-4")
def imports_outlast_their_use(world: World, state: State) -> Truth:
    """No queued copy-out, read of R or acknowledgement, and no view, is left without its process's import."""
    return world.all(
        "Reading",
        lambda reading: Implies(
            And(
                Not(state.work_gone(state.process_of(reading))),
                Or(And(begun(state, reading), state.stage(reading) != ENDED), ack_pending(state, reading)),
            ),
            state.imported(state.process_of(reading)),
        ),
    )
