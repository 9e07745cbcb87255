"""How the book starts, and what holds of generations and words of any width, with overflow."""

from __future__ import annotations

from z3 import UGE, ULE, ULT

from vmmref_models.proofs.terms import And, Implies, Not, Or, Term, Truth
from vmmref_models.proofs.words.book import WORDS_32, Book, half_limit, held, limit
from vmmref_models.proofs.world import World


@WORDS_32.start
def fresh_book(world: World, book: Book) -> Truth:
    """Words are zero, everything is free. A slot may begin at any generation: what holds then holds near the limit."""
    slots = world.all(
        "Slot",
        "Rank",
        lambda slot, rank: And(
            ULT(book.generation(slot), limit(world)),
            book.slot_free(slot),
            Not(book.used_up(slot)),
            book.ready_word(slot) == 0,
            book.ack_word(slot, rank) == 0,
        ),
    )
    leases = world.all(
        "Lease",
        "Rank",
        lambda lease, rank: Not(
            Or(
                book.issued(lease),
                book.ready(lease),
                book.retired(lease),
                book.freed(lease),
                book.acknowledged(lease, rank),
            )
        ),
    )
    return And(slots, leases, world.all("Unit", lambda unit: book.unit_free(unit)))


@WORDS_32.invariant("GEN-1")
def generations_count_from_one(world: World, book: Book) -> Truth:
    """A lease has a generation from 1 to the last one that its slot has issued."""
    return world.all(
        "Lease",
        lambda lease: Implies(
            book.issued(lease),
            And(
                UGE(book.generation_of(lease), world.value(1)),
                ULE(book.generation_of(lease), book.generation(book.slot_of(lease))),
            ),
        ),
    )


@WORDS_32.law("GEN-1")
def the_next_generation(world: World, before: Book, after: Book) -> Truth:
    """A new lease has its slot's next generation."""
    return world.all(
        "Lease",
        lambda lease: Implies(
            And(after.issued(lease), Not(before.issued(lease))),
            after.generation(after.slot_of(lease)) == before.generation(before.slot_of(lease)) + 1,
        ),
    )


@WORDS_32.invariant("GEN-2")
def no_name_twice(world: World, book: Book) -> Truth:
    """Two leases of one slot have different generations."""
    return world.all(
        "Lease",
        "Lease",
        lambda one, other: Implies(
            And(
                book.issued(one),
                book.issued(other),
                book.slot_of(one) == book.slot_of(other),
                book.generation_of(one) == book.generation_of(other),
            ),
            one == other,
        ),
    )


@WORDS_32.invariant("GEN-2", "GEN-3")
def never_above_the_limit(world: World, book: Book) -> Truth:
    """No generation is above the limit, as an unsigned word; so none has wrapped."""
    return world.all("Slot", lambda slot: ULE(book.generation(slot), limit(world)))


@WORDS_32.invariant("GEN-3")
def used_up_at_the_limit(world: World, book: Book) -> Truth:
    """A free slot is below the limit; a slot out of service is at it."""
    return world.all(
        "Slot",
        lambda slot: And(
            Implies(book.slot_free(slot), ULT(book.generation(slot), limit(world))),
            Implies(book.used_up(slot), book.generation(slot) == limit(world)),
        ),
    )


@WORDS_32.law("GEN-3", "RNG-5")
def a_refusal_costs_no_range(world: World, before: Book, after: Book) -> Truth:
    """A range leaves the free list only for a lease that is granted in that step."""
    return world.all(
        "Unit",
        lambda unit: Implies(
            And(before.unit_free(unit), Not(after.unit_free(unit))),
            And(after.issued(after.unit_holder(unit)), Not(before.issued(after.unit_holder(unit)))),
        ),
    )


@WORDS_32.law("RNG-5", "GEN-3")
def a_refusal_costs_no_slot(world: World, before: Book, after: Book) -> Truth:
    """A slot leaves the free list only for a lease that is granted in that step."""
    return world.all(
        "Slot",
        lambda slot: Implies(
            And(before.slot_free(slot), Not(after.slot_free(slot))),
            And(after.issued(after.slot_holder(slot)), Not(before.issued(after.slot_holder(slot)))),
        ),
    )


@WORDS_32.invariant("SLOT-1")
def slots_are_in_one_state(world: World, book: Book) -> Truth:
    """A slot is free, or out of service, or has its last lease; and exactly one of these."""

    def one_of_three(slot: Term) -> Truth:
        holder = book.slot_holder(slot)
        leased = And(held(book, holder), book.slot_of(holder) == slot)
        free_or_out = Or(book.slot_free(slot), book.used_up(slot))
        return And(Not(And(book.slot_free(slot), book.used_up(slot))), leased == Not(free_or_out))

    return world.all("Slot", one_of_three)


@WORDS_32.invariant("SLOT-2")
def slots_carry_one_lease(world: World, book: Book) -> Truth:
    """A lease that is out is the last one of its slot, and has its newest generation."""
    return world.all(
        "Lease",
        lambda lease: Implies(
            held(book, lease),
            And(
                book.slot_holder(book.slot_of(lease)) == lease,
                book.generation_of(lease) == book.generation(book.slot_of(lease)),
            ),
        ),
    )


@WORDS_32.invariant("RNG-1")
def units_have_one_owner(world: World, book: Book) -> Truth:
    """A unit is free, or the one lease that holds it is out."""

    def owned(lease: Term, unit: Term) -> Truth:
        holder = book.unit_holder(unit)
        its_own = And(Not(book.unit_free(book.unit_of(lease))), book.unit_holder(book.unit_of(lease)) == lease)
        return And(
            Implies(held(book, lease), its_own),
            Or(book.unit_free(unit), And(held(book, holder), book.unit_of(holder) == unit)),
        )

    return world.all("Lease", "Unit", owned)


@WORDS_32.invariant("CTL-6")
def the_order_of_a_lease(world: World, book: Book) -> Truth:
    """A lease is granted, ready, retired and freed in this order; it may be retired without having been ready."""
    return world.all(
        "Lease",
        lambda lease: And(
            Implies(book.freed(lease), book.retired(lease)),
            Implies(Or(book.ready(lease), book.retired(lease)), book.issued(lease)),
        ),
    )


@WORDS_32.invariant("CTL-6")
def ready_word_has_a_bound(world: World, book: Book) -> Truth:
    """R is at most 2n + 1 for the last generation n, and above 2n - 1 only once lease n is ready or retired."""

    def bound(lease: Term, slot: Term) -> Truth:
        ready_word = book.ready_word(book.slot_of(lease))
        lowest = book.generation_of(lease) << 1
        not_yet = And(book.issued(lease), Not(book.ready(lease)), Not(book.retired(lease)))
        return And(
            ULE(book.ready_word(slot), (book.generation(slot) << 1) + 1), Implies(not_yet, ULT(ready_word, lowest))
        )

    return world.all("Lease", "Slot", bound)


@WORDS_32.invariant("GEN-3", "CON-5")
def equality_never_errs(world: World, book: Book) -> Truth:
    """R equals 2n, as a bit pattern, exactly while lease n is ready and not retired."""

    def told(lease: Term) -> Truth:
        is_live = book.ready_word(book.slot_of(lease)) == book.generation_of(lease) << 1
        return Implies(book.issued(lease), is_live == And(book.ready(lease), Not(book.retired(lease))))

    return world.all("Lease", told)


@WORDS_32.invariant("GEN-3")
def retired_words_are_above(world: World, book: Book) -> Truth:
    """R of a retired lease n is at least 2n + 1, unsigned."""
    return world.all(
        "Lease",
        lambda lease: Implies(
            book.retired(lease),
            UGE(book.ready_word(book.slot_of(lease)), (book.generation_of(lease) << 1) + 1),
        ),
    )


def greater_or_equal_is_right(world: World, book: Book, last: Term) -> Truth:
    """As long as a slot has issued nothing above generation `last`, the device's cyclic comparison of its R with any of
    its leases' 2n (signed(R - 2n) >= 0) is the true one, and R is not negative as a signed word."""

    def right(lease: Term) -> Truth:
        ready_word, value = book.ready_word(book.slot_of(lease)), book.generation_of(lease) << 1
        small = ULE(book.generation(book.slot_of(lease)), last)
        cyclic = ready_word - value >= 0
        return Implies(And(book.issued(lease), small), And(cyclic == UGE(ready_word, value), ready_word >= 0))

    return world.all("Lease", right)


@WORDS_32.invariant("GEN-3")
def greater_or_equal_up_to_half(world: World, book: Book) -> Truth:
    """Up to generation 2^(w-2) - 1 a wait for "greater or equal" errs about no lease, however old."""
    return greater_or_equal_is_right(world, book, half_limit(world))


@WORDS_32.law("CTL-6")
def ready_word_never_falls(world: World, before: Book, after: Book) -> Truth:
    """No step lowers R, as an unsigned word."""
    return world.all("Slot", lambda slot: UGE(after.ready_word(slot), before.ready_word(slot)))


@WORDS_32.law("ACK-2")
def ack_words_never_fall(world: World, before: Book, after: Book) -> Truth:
    """No step lowers an acknowledgement word, unsigned or signed: the last generation fits into a signed word too."""
    return world.all(
        "Slot",
        "Rank",
        lambda slot, rank: And(
            UGE(after.ack_word(slot, rank), before.ack_word(slot, rank)),
            after.ack_word(slot, rank) >= before.ack_word(slot, rank),
        ),
    )


@WORDS_32.invariant("ACK-5")
def ack_words_name_issued_leases(world: World, book: Book) -> Truth:
    """A word is at most the slot's last generation, and equal to a lease's only if that rank acknowledged it."""

    def counts(lease: Term, rank: Term) -> Truth:
        ack_word = book.ack_word(book.slot_of(lease), rank)
        equal = And(book.issued(lease), ack_word == book.generation_of(lease))
        return Implies(equal, book.acknowledged(lease, rank))

    return And(
        world.all("Lease", "Rank", counts),
        world.all("Slot", "Rank", lambda slot, rank: ULE(book.ack_word(slot, rank), book.generation(slot))),
    )
