"""The producer with one guard or one order left out, each breaking the rule that it is named for.

Most of these and of the consumers' are the near misses of specs/protocols-that-fail.md, for any number of things.
"""

from __future__ import annotations

from dataclasses import replace

from vmmref_models.proofs.protocol import producer
from vmmref_models.proofs.protocol.state import LIMIT, PROTOCOL, State, active, held
from vmmref_models.proofs.system import Step
from vmmref_models.proofs.terms import FALSE, TRUE, And, If, Implies, Not, Or, Term, put, put_where
from vmmref_models.proofs.world import World


@PROTOCOL.wrong("publish", breaks="GEN-2")
def generation_wraps(world: World, state: State, lease: Term) -> Step[State]:
    """A slot at its last generation stays in service, and begins at 1 again."""
    slot = state.slot_of(lease)
    in_service = replace(state, slot_free=lambda one: Or(state.slot_free(one), state.slot_used_up(one)))
    last = state.generation(slot)
    following = state.generation_of(lease) == If(last == LIMIT, 1, last + 1)
    return Step(And(producer.room_for(world, in_service, lease), following), producer.grant(state, lease))


@PROTOCOL.wrong("publish", breaks="GEN-2")
def generation_kept(world: World, state: State, lease: Term) -> Step[State]:
    """The slot's last generation is handed out again."""
    again = state.generation_of(lease) == state.generation(state.slot_of(lease))
    return Step(And(producer.room_for(world, state, lease), again), producer.grant(state, lease))


@PROTOCOL.wrong("publish", breaks="GEN-1")
def generation_skipped(world: World, state: State, lease: Term) -> Step[State]:
    """A generation is left out."""
    skips = state.generation_of(lease) == state.generation(state.slot_of(lease)) + 2
    below = state.generation_of(lease) <= LIMIT
    return Step(And(producer.room_for(world, state, lease), skips, below), producer.grant(state, lease))


@PROTOCOL.wrong("publish", breaks="SLOT-2")
def slot_shared(world: World, state: State, lease: Term) -> Step[State]:
    """A slot that carries a lease gets another."""
    shared = replace(state, slot_free=lambda slot: TRUE)
    room = producer.room_for(world, shared, lease)
    return Step(And(room, producer.is_next(state, lease)), producer.grant(state, lease))


@PROTOCOL.wrong("publish", breaks="CTL-3")
def zeroes_at_reuse(world: World, state: State, lease: Term) -> Step[State]:
    """The words of a slot are zeroed when it is leased again."""
    right = producer.publish(world, state, lease)
    slot = state.slot_of(lease)
    zeroed = put_where(state.ack_word, lambda one, rank: one == slot, lambda one, rank: 0)
    return replace(right, after=replace(right.after, ack_word=zeroed))


@PROTOCOL.wrong("publish", breaks="LIFE-2")
def publishes_after_closing(world: World, state: State, lease: Term) -> Step[State]:
    """Nobody looks whether shutdown has begun."""
    room = producer.room_for(world, replace(state, closed=lambda: FALSE), lease)
    return Step(And(room, producer.is_next(state, lease)), producer.grant(state, lease))


@PROTOCOL.wrong("publish", breaks="LIFE-3")
def goes_on_after_failure(world: World, state: State, lease: Term) -> Step[State]:
    """A pool that has failed publishes as before."""
    room = producer.room_for(world, replace(state, failed=lambda: FALSE), lease)
    return Step(And(room, producer.is_next(state, lease)), producer.grant(state, lease))


@PROTOCOL.wrong("publish", breaks="RNG-1")
def range_taken_without_looking(world: World, state: State, lease: Term) -> Step[State]:
    """The range is not looked up in the free list."""
    room = producer.room_for(world, replace(state, block_free=lambda block: TRUE), lease)
    return Step(And(room, producer.is_next(state, lease)), producer.grant(state, lease))


@PROTOCOL.wrong("ready-store", breaks="PUB-1")
def ready_before_the_copy(world: World, state: State, lease: Term) -> Step[State]:
    """The ready store runs on another stream than the copy."""
    due = And(state.ready_queued(lease), Not(state.ready_stored(lease)))
    return Step(due, producer.store_ready(state, lease))


@PROTOCOL.wrong("dispatch", breaks="PUB-2")
def dispatched_at_once(world: World, state: State, lease: Term) -> Step[State]:
    """The proxy leaves when the ready store is queued."""
    return Step(
        And(active(state, lease), state.ready_queued(lease)),
        replace(state, dispatched=put(state.dispatched, (lease,), True)),
    )


@PROTOCOL.wrong("look", breaks="ACK-5")
def counts_newer_generations(world: World, state: State, lease: Term, rank: Term) -> Step[State]:
    """A word counts when it is not zero."""
    counts = state.ack_word(state.slot_of(lease), rank) != 0
    return Step(
        And(held(state, lease), counts),
        replace(state, seen_word=put(state.seen_word, (lease, rank), True)),
    )


@PROTOCOL.wrong("claim-complete", breaks="REC-1")
def partial_group_suffices(world: World, state: State, lease: Term) -> Step[State]:
    """A rank whose word is still zero is not waited for."""
    answered = world.all(
        "Rank",
        lambda rank: Or(
            producer.not_waited_for(state, lease, rank),
            state.ack_word(state.slot_of(lease), state.speaker_of(lease, rank)) == 0,
        ),
    )
    return Step(And(active(state, lease), answered), producer.recycle(state, lease))


@PROTOCOL.wrong("claim-complete", breaks="REC-3")
def no_claim(world: World, state: State, lease: Term) -> Step[State]:
    """An old look is acted on although somebody else has claimed the lease."""
    return Step(And(state.issued(lease), producer.complete(world, state, lease)), producer.recycle(state, lease))


@PROTOCOL.wrong("free", breaks="REC-5")
def freed_by_two(world: World, state: State, lease: Term) -> Step[State]:
    """Two parties free a lease, one after the other."""
    return Step(And(state.retire_stored(lease), producer.may_go(world, state, lease)), producer.let_go(state, lease))


@PROTOCOL.wrong("queue-retire", breaks="REC-2")
def retire_overtakes_ready(world: World, state: State, lease: Term) -> Step[State]:
    """The retire store waits for the copy and not for the ready store."""
    copy_over = Implies(state.copy_queued(lease), state.copied(lease))
    return Step(
        And(state.claimed(lease), Not(state.retire_queued(lease)), copy_over),
        replace(state, retire_queued=put(state.retire_queued, (lease,), True)),
    )


@PROTOCOL.wrong("queue-retire", breaks="PUB-3")
def failure_forgets_the_copy(world: World, state: State, lease: Term) -> Step[State]:
    """A failed publication retires its lease while the copy is queued."""
    return Step(
        And(state.claimed(lease), Not(state.retire_queued(lease))),
        replace(state, retire_queued=put(state.retire_queued, (lease,), True)),
    )


@PROTOCOL.wrong("retire-store", breaks="CTL-6")
def retired_by_two(world: World, state: State, lease: Term) -> Step[State]:
    """Two parties retire a lease; the second store comes when it likes."""
    return Step(state.retire_queued(lease), producer.store_retired(state, lease))


@PROTOCOL.wrong("free", breaks="REC-2")
def range_before_retire(world: World, state: State, lease: Term) -> Step[State]:
    """The range goes back when the retire store is queued; the slot is kept."""
    right = producer.let_go(state, lease)
    range_only = replace(right, slot_free=state.slot_free, slot_used_up=state.slot_used_up)
    due = And(state.retire_queued(lease), Not(state.freed(lease)), producer.may_go(world, state, lease))
    return Step(due, range_only)


@PROTOCOL.wrong("free", breaks="REC-2")
def slot_before_retire(world: World, state: State, lease: Term) -> Step[State]:
    """The slot goes back when the retire store is queued; the range is kept."""
    right = producer.let_go(state, lease)
    due = And(state.retire_queued(lease), Not(state.freed(lease)), producer.may_go(world, state, lease))
    return Step(due, replace(right, block_free=state.block_free))


@PROTOCOL.wrong("revoke", breaks="CAN-3")
def revoke_frees_at_once(world: World, state: State, lease: Term) -> Step[State]:
    """A revoke gives range and slot back without retiring the lease."""
    return Step(
        And(active(state, lease), state.dispatched(lease)), producer.let_go(producer.claim(state, lease), lease)
    )


@PROTOCOL.wrong("free", breaks="SLOT-1")
def range_only_is_given_back(world: World, state: State, lease: Term) -> Step[State]:
    """An error path frees the range and forgets the slot."""
    right = producer.free(world, state, lease)
    return Step(right.guard, replace(right.after, slot_free=state.slot_free, slot_used_up=state.slot_used_up))


@PROTOCOL.wrong("free", breaks="GEN-3")
def used_up_slot_stays_in_service(world: World, state: State, lease: Term) -> Step[State]:
    """A slot at its last generation returns to the free list."""
    right = producer.free(world, state, lease)
    slot = state.slot_of(lease)
    return Step(
        right.guard,
        replace(right.after, slot_free=put(state.slot_free, (slot,), True), slot_used_up=state.slot_used_up),
    )


@PROTOCOL.wrong("free", breaks="CON-6")
def borrow_freed_on_revoke(world: World, state: State, lease: Term) -> Step[State]:
    """A revoke frees at once although views may be out."""
    return Step(And(state.retire_stored(lease), Not(state.freed(lease))), producer.let_go(state, lease))


@PROTOCOL.wrong("expire", breaks="REAP-2")
def deadline_frees(world: World, state: State, lease: Term) -> Step[State]:
    """A late lease is retired and its range reissued."""
    late = replace(state, late=put(state.late, (lease,), True))
    return Step(
        And(active(state, lease), state.dispatched(lease)),
        producer.let_go(producer.store_retired(late, lease), lease),
    )


@PROTOCOL.wrong("unmap", breaks="LIFE-2")
def unmap_with_queued_work(world: World, state: State) -> Step[State]:
    """The memory is unmapped as soon as shutdown has begun."""
    return Step(And(state.closed(), Not(state.unmapped())), replace(state, unmapped=lambda: TRUE))
