"""The producer: publish, copy, ready; claim, retire, free; deadline and shutdown."""

from __future__ import annotations

from dataclasses import replace

from vmmref_models.proofs.protocol.state import LIMIT, PROTOCOL, State, active, held, live
from vmmref_models.proofs.system import Step
from vmmref_models.proofs.terms import TRUE, And, If, Implies, Not, Or, Term, Truth, put, put_where
from vmmref_models.proofs.world import World


def grant(state: State, lease: Term) -> State:
    """Range, slot and generation taken, and the awaited ranks fixed (ACK-4)."""
    slot = state.slot_of(lease)
    return replace(
        state,
        issued=put(state.issued, (lease,), True),
        generation=put(state.generation, (slot,), state.generation_of(lease)),
        slot_free=put(state.slot_free, (slot,), False),
        slot_holder=put(state.slot_holder, (slot,), lease),
        block_free=put_where(state.block_free, lambda block: state.covers(lease, block), lambda block: False),
        block_holder=put_where(state.block_holder, lambda block: state.covers(lease, block), lambda block: lease),
        excused=put_where(state.excused, lambda one, rank: one == lease, lambda one, rank: state.vacant(rank)),
        awaited=put_where(state.awaited, lambda one, rank: one == lease, lambda one, rank: state.current(rank)),
    )


def room_for(world: World, state: State, lease: Term) -> Truth:
    """Its blocks and its slot are free, and the pool is open and has not failed."""
    return And(
        Not(state.closed()),
        Not(state.failed()),
        Not(state.issued(lease)),
        state.slot_free(state.slot_of(lease)),
        world.all("Block", lambda block: Implies(state.covers(lease, block), state.block_free(block))),
    )


def is_next(state: State, lease: Term) -> Truth:
    """The lease has its slot's next generation, and there is one."""
    last = state.generation(state.slot_of(lease))
    return And(state.generation_of(lease) == last + 1, last < LIMIT)


@PROTOCOL.action("Lease")
def publish(world: World, state: State, lease: Term) -> Step[State]:
    """Take a free range, a free slot and its next generation."""
    return Step(And(room_for(world, state, lease), is_next(state, lease)), grant(state, lease))


@PROTOCOL.action("Lease")
def queue_copy(world: World, state: State, lease: Term) -> Step[State]:
    """Queue the copy into the range."""
    return Step(
        And(active(state, lease), Not(state.copy_queued(lease))),
        replace(state, copy_queued=put(state.copy_queued, (lease,), True)),
    )


@PROTOCOL.action("Lease", "Block")
def copy_block(world: World, state: State, lease: Term, block: Term) -> Step[State]:
    """A queued copy writes one block."""
    return Step(
        And(state.copy_queued(lease), Not(state.copied(lease)), state.covers(lease, block)),
        replace(
            state,
            content=put(state.content, (block,), lease),
            written=put(state.written, (lease, block), True),
        ),
    )


@PROTOCOL.action("Lease")
def copy_ends(world: World, state: State, lease: Term) -> Step[State]:
    """A copy is over when every block is written."""
    every_block = world.all("Block", lambda block: Implies(state.covers(lease, block), state.written(lease, block)))
    return Step(
        And(state.copy_queued(lease), Not(state.copied(lease)), every_block),
        replace(state, copied=put(state.copied, (lease,), True)),
    )


@PROTOCOL.action("Lease")
def queue_ready(world: World, state: State, lease: Term) -> Step[State]:
    """Queue R := 2n behind the copy, on its stream."""
    return Step(
        And(active(state, lease), state.copy_queued(lease), Not(state.ready_queued(lease))),
        replace(state, ready_queued=put(state.ready_queued, (lease,), True)),
    )


def store_ready(state: State, lease: Term) -> State:
    """R := 2n."""
    return replace(
        state,
        ready_word=put(state.ready_word, (state.slot_of(lease),), live(state, lease)),
        ready_stored=put(state.ready_stored, (lease,), True),
    )


@PROTOCOL.action("Lease")
def ready_store(world: World, state: State, lease: Term) -> Step[State]:
    """The ready store runs, after the copy."""
    return Step(
        And(state.ready_queued(lease), Not(state.ready_stored(lease)), state.copied(lease)),
        store_ready(state, lease),
    )


@PROTOCOL.action("Lease")
def dispatch(world: World, state: State, lease: Term) -> Step[State]:
    """The host has seen R = 2n: the proxy leaves."""
    return Step(
        And(active(state, lease), state.ready_stored(lease)),
        replace(state, dispatched=put(state.dispatched, (lease,), True)),
    )


@PROTOCOL.action("Lease", "Rank")
def look(world: World, state: State, lease: Term, rank: Term) -> Step[State]:
    """A look finds one acknowledgement word of a lease equal to its generation."""
    word = state.ack_word(state.slot_of(lease), rank)
    return Step(
        And(held(state, lease), word == state.generation_of(lease)),
        replace(state, seen_word=put(state.seen_word, (lease, rank), True)),
    )


def not_waited_for(state: State, lease: Term, rank: Term) -> Truth:
    """The rank's speaker was seen to have acknowledged, or is excused."""
    speaker = state.speaker_of(lease, rank)
    return Or(state.seen_word(lease, speaker), state.excused(lease, speaker))


def complete(world: World, state: State, lease: Term) -> Truth:
    """No rank is waited for any more."""
    return world.all("Rank", lambda rank: not_waited_for(state, lease, rank))


def claim(state: State, lease: Term) -> State:
    """Active to retiring: one winner, under the lock."""
    return replace(
        state,
        claimed=put(state.claimed, (lease,), True),
        times_claimed=put(state.times_claimed, (lease,), state.times_claimed(lease) + 1),
    )


def recycle(state: State, lease: Term) -> State:
    """The recycler's claim, on the ground that every rank has acknowledged."""
    return replace(claim(state, lease), recycled=put(state.recycled, (lease,), True))


@PROTOCOL.action("Lease")
def claim_complete(world: World, state: State, lease: Term) -> Step[State]:
    """The recycler claims an active lease of which a look, however old, has seen every awaited word."""
    return Step(And(active(state, lease), complete(world, state, lease)), recycle(state, lease))


@PROTOCOL.action("Lease")
def cancel(world: World, state: State, lease: Term) -> Step[State]:
    """Claim an active lease, whether or not its proxy was handed on."""
    return Step(active(state, lease), claim(state, lease))


@PROTOCOL.action("Lease")
def revoke(world: World, state: State, lease: Term) -> Step[State]:
    """Claim a dispatched lease."""
    return Step(And(active(state, lease), state.dispatched(lease)), claim(state, lease))


@PROTOCOL.action("Lease")
def fail_publication(world: World, state: State, lease: Term) -> Step[State]:
    """A wait of the publication fails, with its copy or its ready store perhaps still queued: claim the lease."""
    return Step(And(active(state, lease), Not(state.dispatched(lease))), claim(state, lease))


def own_work_over(state: State, lease: Term) -> Truth:
    """The lease's copy and ready store have ended, or were never queued."""
    return And(
        Implies(state.copy_queued(lease), state.copied(lease)),
        Implies(state.ready_queued(lease), state.ready_stored(lease)),
    )


@PROTOCOL.action("Lease")
def queue_retire(world: World, state: State, lease: Term) -> Step[State]:
    """Queue R := 2n + 1 for a claimed lease, behind its own copy and ready store."""
    return Step(
        And(state.claimed(lease), Not(state.retire_queued(lease)), own_work_over(state, lease)),
        replace(state, retire_queued=put(state.retire_queued, (lease,), True)),
    )


def store_retired(state: State, lease: Term) -> State:
    """R := 2n + 1."""
    return replace(
        state,
        ready_word=put(state.ready_word, (state.slot_of(lease),), live(state, lease) + 1),
        retire_stored=put(state.retire_stored, (lease,), True),
    )


@PROTOCOL.action("Lease")
def retire_store(world: World, state: State, lease: Term) -> Step[State]:
    """The retire store runs."""
    return Step(
        And(state.retire_queued(lease), Not(state.retire_stored(lease))),
        store_retired(state, lease),
    )


def let_go(state: State, lease: Term) -> State:
    """Range and slot return to the free lists; a slot at its last generation leaves service."""
    slot = state.slot_of(lease)
    at_the_limit = state.generation(slot) == LIMIT
    return replace(
        state,
        freed=put(state.freed, (lease,), True),
        times_freed=put(state.times_freed, (lease,), state.times_freed(lease) + 1),
        block_free=put_where(state.block_free, lambda block: state.covers(lease, block), lambda block: True),
        slot_free=put(state.slot_free, (slot,), Not(at_the_limit)),
        slot_used_up=put(state.slot_used_up, (slot,), at_the_limit),
    )


def may_go(world: World, state: State, lease: Term) -> Truth:
    """A borrowable lease that was dispatched waits for every rank, except at shutdown, where nothing is reissued."""
    waits = And(state.borrowable(lease), state.dispatched(lease), Not(state.closed()))
    return Implies(waits, complete(world, state, lease))


@PROTOCOL.action("Lease")
def free(world: World, state: State, lease: Term) -> Step[State]:
    """The host has seen R = 2n + 1: range and slot go back."""
    retired = And(state.retire_stored(lease), Not(state.freed(lease)), Not(state.failed()))
    return Step(And(retired, may_go(world, state, lease)), let_go(state, lease))


@PROTOCOL.action("Lease")
def expire(world: World, state: State, lease: Term) -> Step[State]:
    """A dispatched lease passes its deadline: it is told as set aside, and nothing else changes."""
    return Step(
        And(active(state, lease), state.dispatched(lease)),
        replace(state, late=put(state.late, (lease,), True)),
    )


@PROTOCOL.action()
def fail_pool(world: World, state: State) -> Step[State]:
    """A failure leaves the state of the device unknown. What is queued may run on, and readers go on."""
    return Step(Not(state.failed()), replace(state, failed=lambda: TRUE))


@PROTOCOL.action()
def close(world: World, state: State) -> Step[State]:
    """Shutdown begins: no more leases, and every active one is claimed."""
    return Step(
        Not(state.closed()),
        replace(
            state,
            closed=lambda: TRUE,
            claimed=lambda lease: Or(state.claimed(lease), state.issued(lease)),
            times_claimed=lambda lease: If(
                active(state, lease), state.times_claimed(lease) + 1, state.times_claimed(lease)
            ),
        ),
    )


@PROTOCOL.action()
def unmap(world: World, state: State) -> Step[State]:
    """Shutdown ends: every retire store was seen, so every copy and ready store before it has ended too."""
    all_retired = world.all("Lease", lambda lease: Implies(state.issued(lease), state.retire_stored(lease)))
    return Step(
        And(state.closed(), Not(state.unmapped()), all_retired),
        replace(state, unmapped=lambda: TRUE),
    )
