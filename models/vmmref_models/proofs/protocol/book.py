"""What holds of the producer's side: generations, slots, ranges, the order of a lease's events, R, and the bytes."""

from __future__ import annotations

from vmmref_models.proofs.protocol.state import LIMIT, PROTOCOL, State, held, live
from vmmref_models.proofs.terms import And, If, Implies, Not, Or, Truth
from vmmref_models.proofs.world import World


@PROTOCOL.invariant("GEN-1")
def generations_count_from_one(world: World, state: State) -> Truth:
    """A lease has a generation from 1 to the last one that its slot has issued."""
    return world.all(
        "Lease",
        lambda lease: Implies(
            state.issued(lease),
            And(
                state.generation_of(lease) >= 1,
                state.generation_of(lease) <= state.generation(state.slot_of(lease)),
            ),
        ),
    )


@PROTOCOL.law("GEN-1")
def the_next_generation(world: World, before: State, after: State) -> Truth:
    """A slot's generation rises by one when a lease is granted, and never else."""
    return world.all(
        "Lease",
        "Slot",
        lambda lease, slot: And(
            Implies(
                And(after.issued(lease), Not(before.issued(lease))),
                after.generation(after.slot_of(lease)) == before.generation(before.slot_of(lease)) + 1,
            ),
            after.generation(slot) >= before.generation(slot),
            after.generation(slot) <= before.generation(slot) + 1,
        ),
    )


@PROTOCOL.invariant("GEN-2")
def no_name_twice(world: World, state: State) -> Truth:
    """Two leases of one slot have different generations."""
    return world.all(
        "Lease",
        "Lease",
        lambda one, other: Implies(
            And(
                state.issued(one),
                state.issued(other),
                state.slot_of(one) == state.slot_of(other),
                state.generation_of(one) == state.generation_of(other),
            ),
            one == other,
        ),
    )


@PROTOCOL.invariant("GEN-2")
def generations_have_bounds(world: World, state: State) -> Truth:
    """No generation is negative or above the limit."""
    return world.all("Slot", lambda slot: And(state.generation(slot) >= 0, state.generation(slot) <= LIMIT))


@PROTOCOL.invariant("GEN-3")
def used_up_at_the_limit(world: World, state: State) -> Truth:
    """A free slot has a generation left; a slot out of service has none."""
    return world.all(
        "Slot",
        lambda slot: And(
            Implies(state.slot_free(slot), state.generation(slot) < LIMIT),
            Implies(state.slot_used_up(slot), state.generation(slot) == LIMIT),
        ),
    )


@PROTOCOL.invariant("SLOT-1")
def slots_are_in_one_state(world: World, state: State) -> Truth:
    """A slot is free, or out of service, or has its last lease; and exactly one of these."""

    def one_of_three(slot: object) -> Truth:
        holder = state.slot_holder(slot)
        leased = And(held(state, holder), state.slot_of(holder) == slot)
        free, used_up = state.slot_free(slot), state.slot_used_up(slot)
        return And(Not(And(free, used_up)), leased == Not(Or(free, used_up)))

    return world.all("Slot", one_of_three)


@PROTOCOL.invariant("SLOT-2")
def slots_carry_one_lease(world: World, state: State) -> Truth:
    """A lease that is out is the last one of its slot, and has its newest generation."""
    return world.all(
        "Lease",
        lambda lease: Implies(
            held(state, lease),
            And(
                state.slot_holder(state.slot_of(lease)) == lease,
                state.generation_of(lease) == state.generation(state.slot_of(lease)),
            ),
        ),
    )


@PROTOCOL.invariant("RNG-1")
def ranges_have_one_owner(world: World, state: State) -> Truth:
    """A block of a lease that is out is not free, and is that lease's alone."""
    return world.all(
        "Lease",
        "Block",
        lambda lease, block: Implies(
            And(held(state, lease), state.covers(lease, block)),
            And(Not(state.block_free(block)), state.block_holder(block) == lease),
        ),
    )


@PROTOCOL.invariant("RNG-1")
def no_range_is_lost(world: World, state: State) -> Truth:
    """A block that is not free lies in the range of a lease that is out."""
    return world.all(
        "Block",
        lambda block: Or(
            state.block_free(block),
            And(held(state, state.block_holder(block)), state.covers(state.block_holder(block), block)),
        ),
    )


@PROTOCOL.invariant("PUB-2")
def dispatched_when_ready(world: World, state: State) -> Truth:
    """A proxy has left only if the ready store has run."""
    return world.all("Lease", lambda lease: Implies(state.dispatched(lease), state.ready_stored(lease)))


@PROTOCOL.invariant("PUB-1")
def ready_after_the_copy(world: World, state: State) -> Truth:
    """The ready store runs behind the copy, both for a lease that was granted."""
    return world.all(
        "Lease",
        "Block",
        lambda lease, block: And(
            Implies(state.ready_stored(lease), And(state.ready_queued(lease), state.copied(lease))),
            Implies(state.ready_queued(lease), state.copy_queued(lease)),
            Implies(state.copied(lease), state.copy_queued(lease)),
            Implies(And(state.copied(lease), state.covers(lease, block)), state.written(lease, block)),
            Implies(state.written(lease, block), state.copy_queued(lease)),
            Implies(state.copy_queued(lease), state.issued(lease)),
        ),
    )


@PROTOCOL.invariant("REC-2", "CTL-6")
def retire_after_the_ready_store(world: World, state: State) -> Truth:
    """No ready store of a lease is still to come once its retire store is queued."""
    return world.all(
        "Lease",
        lambda lease: Implies(And(state.retire_queued(lease), state.ready_queued(lease)), state.ready_stored(lease)),
    )


@PROTOCOL.invariant("PUB-3", "REC-2")
def retire_after_the_copy(world: World, state: State) -> Truth:
    """No copy of a lease still runs once its retire store is queued."""
    return world.all(
        "Lease",
        lambda lease: Implies(And(state.retire_queued(lease), state.copy_queued(lease)), state.copied(lease)),
    )


@PROTOCOL.invariant("REC-2")
def freed_when_retired(world: World, state: State) -> Truth:
    """A lease is freed after its retire store, that is queued after its claim, whoever ends it."""
    return world.all(
        "Lease",
        lambda lease: And(
            Implies(state.freed(lease), state.retire_stored(lease)),
            Implies(state.retire_stored(lease), state.retire_queued(lease)),
            Implies(state.retire_queued(lease), state.claimed(lease)),
            Implies(state.claimed(lease), state.issued(lease)),
        ),
    )


@PROTOCOL.invariant("REC-3")
def one_claim(world: World, state: State) -> Truth:
    """A lease is claimed once, by one of all who try."""
    return world.all("Lease", lambda lease: state.times_claimed(lease) == If(state.claimed(lease), 1, 0))


@PROTOCOL.invariant("REC-5")
def freed_once(world: World, state: State) -> Truth:
    """A lease is freed once."""
    return world.all("Lease", lambda lease: state.times_freed(lease) == If(state.freed(lease), 1, 0))


@PROTOCOL.invariant("CAN-3", "GEN-4")
def late_readers_find_out(world: World, state: State) -> Truth:
    """R of a lease that is freed, however it ended, is not 2n: whoever reads it late is told."""
    return world.all(
        "Lease",
        lambda lease: Implies(state.freed(lease), state.ready_word(state.slot_of(lease)) != live(state, lease)),
    )


@PROTOCOL.invariant("CTL-6")
def ready_word_tells_the_lease(world: World, state: State) -> Truth:
    """R is below 2n before lease n is ready, 2n while it is live, and never 2n again once it is retired."""

    def told(lease: object) -> Truth:
        ready = state.ready_word(state.slot_of(lease))
        retired = state.retire_stored(lease)
        return Implies(
            state.issued(lease),
            And(
                Implies(retired, ready >= live(state, lease) + 1),
                Implies(And(state.ready_stored(lease), Not(retired)), ready == live(state, lease)),
                Implies(Not(Or(state.ready_stored(lease), retired)), ready < live(state, lease)),
            ),
        )

    return world.all("Lease", told)


@PROTOCOL.invariant("CTL-6", "GEN-3")
def ready_word_has_a_bound(world: World, state: State) -> Truth:
    """R lies between 0 and 2n + 1 for the last generation n that the slot has issued."""
    return world.all(
        "Slot",
        lambda slot: And(state.ready_word(slot) >= 0, state.ready_word(slot) <= 2 * state.generation(slot) + 1),
    )


@PROTOCOL.law("CTL-6")
def ready_word_never_falls(world: World, before: State, after: State) -> Truth:
    """No step lowers R."""
    return world.all("Slot", lambda slot: after.ready_word(slot) >= before.ready_word(slot))


@PROTOCOL.law("CTL-3")
def words_stay_written(world: World, before: State, after: State) -> Truth:
    """No step makes a word zero that was not zero."""
    return world.all(
        "Slot",
        "Rank",
        lambda slot, rank: And(
            Implies(before.ready_word(slot) != 0, after.ready_word(slot) != 0),
            Implies(before.ack_word(slot, rank) != 0, after.ack_word(slot, rank) != 0),
        ),
    )


@PROTOCOL.invariant("REC-2", "PUB-3")
def bytes_stay_until_freed(world: World, state: State) -> Truth:
    """What a lease's copy has written is still there as long as the lease is out."""
    return world.all(
        "Lease",
        "Block",
        lambda lease, block: Implies(
            And(state.written(lease, block), Not(state.freed(lease)), state.covers(lease, block)),
            state.content(block) == lease,
        ),
    )


@PROTOCOL.invariant("PUB-1")
def ready_means_bytes(world: World, state: State) -> Truth:
    """While R is 2n, every byte of lease n is in its range."""
    return world.all(
        "Lease",
        "Block",
        lambda lease, block: Implies(
            And(
                state.issued(lease),
                state.ready_word(state.slot_of(lease)) == live(state, lease),
                state.covers(lease, block),
            ),
            state.content(block) == lease,
        ),
    )


@PROTOCOL.invariant("REAP-2")
def late_leases_are_kept(world: World, state: State) -> Truth:
    """A lease past its deadline that nobody has claimed keeps R = 2n, its slot and its range."""
    return world.all(
        "Lease",
        "Block",
        lambda lease, block: Implies(
            And(state.late(lease), Not(state.claimed(lease))),
            And(
                held(state, lease),
                state.ready_word(state.slot_of(lease)) == live(state, lease),
                Not(state.slot_free(state.slot_of(lease))),
                Not(And(state.covers(lease, block), state.block_free(block))),
            ),
        ),
    )


@PROTOCOL.law("LIFE-3")
def a_failed_pool_reuses_nothing(world: World, before: State, after: State) -> Truth:
    """After a failure no lease is granted and none is freed, and the failure has no end."""
    return world.all(
        "Lease",
        lambda lease: Implies(
            before.failed(),
            And(
                after.failed(),
                Implies(after.issued(lease), before.issued(lease)),
                Implies(after.freed(lease), before.freed(lease)),
            ),
        ),
    )


@PROTOCOL.law("LIFE-2")
def nothing_is_granted_after_closing(world: World, before: State, after: State) -> Truth:
    """No lease is granted once shutdown has begun, and shutdown has no end."""
    return world.all(
        "Lease",
        lambda lease: Implies(before.closed(), And(after.closed(), Implies(after.issued(lease), before.issued(lease)))),
    )


@PROTOCOL.invariant("LIFE-2")
def unmapped_without_work(world: World, state: State) -> Truth:
    """At the unmapping, no copy, ready store or retire store is queued; every lease was claimed at the closing."""
    return world.all(
        "Lease",
        lambda lease: And(
            Implies(state.unmapped(), state.closed()),
            Implies(And(state.closed(), state.issued(lease)), state.claimed(lease)),
            Implies(And(state.unmapped(), state.issued(lease)), state.retire_stored(lease)),
            Implies(And(state.unmapped(), state.copy_queued(lease)), state.copied(lease)),
            Implies(And(state.unmapped(), state.ready_queued(lease)), state.ready_stored(lease)),
        ),
    )
