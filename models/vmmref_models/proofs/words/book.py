"""Slots, generations and words as machine words: 32 and 64 bits, with the true limits and true overflow.

Here 2n is a shift in a register and may lose its top bit, and words are compared as unsigned bit patterns. The limit
is looked at before anything is taken, and every slot at its limit leaves service.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from z3 import UGT, ULT

from vmmref_models.proofs.system import Step, System
from vmmref_models.proofs.terms import And, Function, Not, Or, Term, Truth, put
from vmmref_models.proofs.world import World, flag, thing, word

LIMITS = {32: 2**31 - 1, 64: 2**62}
"""The last generation, by the width of a word (GEN-3)."""


@dataclass(frozen=True)
class Book:
    """Fields are functions of things. A unit stands for a range, whose length does not matter here."""

    slot_of: Function = field(metadata=thing("Slot", "Lease"))
    unit_of: Function = field(metadata=thing("Unit", "Lease"))
    generation_of: Function = field(metadata=word("Lease"))

    generation: Function = field(metadata=word("Slot"))
    """The last one issued."""
    slot_free: Function = field(metadata=flag("Slot"))
    used_up: Function = field(metadata=flag("Slot"))
    slot_holder: Function = field(metadata=thing("Lease", "Slot"))
    unit_free: Function = field(metadata=flag("Unit"))
    unit_holder: Function = field(metadata=thing("Lease", "Unit"))
    issued: Function = field(metadata=flag("Lease"))
    ready: Function = field(metadata=flag("Lease"))
    retired: Function = field(metadata=flag("Lease"))
    freed: Function = field(metadata=flag("Lease"))

    ready_word: Function = field(metadata=word("Slot"))
    ack_word: Function = field(metadata=word("Slot", "Rank"))
    acknowledged: Function = field(metadata=flag("Lease", "Rank"))


def _system(width: int) -> System[Book]:
    return System(
        family=f"words-{width}",
        sentence=f"generations and control words of {width} bits, up to generation {LIMITS[width]}",
        sorts=("Slot", "Unit", "Rank", "Lease"),
        state=Book,
        few=((1, 1, 1, 1), (1, 2, 1, 2), (2, 1, 1, 2)),
        width=width,
    )


WORDS_32 = _system(32)
WORDS_64 = replace(WORDS_32, family=_system(64).family, sentence=_system(64).sentence, width=64)
"""The same actions and properties as WORDS_32: the lists are shared."""


def limit(world: World) -> Term:
    """The last generation for this width."""
    return world.value(LIMITS[world.width])


def half_limit(world: World) -> Term:
    """The last generation for which 2n and 2n + 1 keep the sign bit free, so that GEQ and signed words are right."""
    return world.value(2 ** (world.width - 2) - 1)


def held(book: Book, lease: Term) -> Truth:
    """It has its slot and its unit."""
    return And(book.issued(lease), Not(book.freed(lease)))


def there_is_room(world: World, book: Book, lease: Term) -> Truth:
    """The lease is new, its slot and its unit are free."""
    return And(Not(book.issued(lease)), book.slot_free(book.slot_of(lease)), book.unit_free(book.unit_of(lease)))


def grant(book: Book, lease: Term) -> Book:
    """Slot, unit and generation taken."""
    slot, unit = book.slot_of(lease), book.unit_of(lease)
    return replace(
        book,
        issued=put(book.issued, (lease,), True),
        generation=put(book.generation, (slot,), book.generation_of(lease)),
        slot_free=put(book.slot_free, (slot,), False),
        slot_holder=put(book.slot_holder, (slot,), lease),
        unit_free=put(book.unit_free, (unit,), False),
        unit_holder=put(book.unit_holder, (unit,), lease),
    )


@WORDS_32.action("Lease")
def lease_slot(world: World, book: Book, lease: Term) -> Step[Book]:
    """The limit is looked at, then slot and range are taken under the next generation."""
    last = book.generation(book.slot_of(lease))
    following = And(ULT(last, limit(world)), book.generation_of(lease) == last + 1)
    return Step(And(there_is_room(world, book, lease), following), grant(book, lease))


@WORDS_32.action()
def refuse_exhausted(world: World, book: Book) -> Step[Book]:
    """Every slot has used its last generation: refused, and nothing is taken."""
    return Step(world.all("Slot", lambda slot: book.used_up(slot)), book)


@WORDS_32.action()
def answer_full(world: World, book: Book) -> Step[Book]:
    """No slot is free, or no range: "pool full", and nothing is taken."""
    no_slot = world.all("Slot", lambda slot: Not(book.slot_free(slot)))
    no_unit = world.all("Unit", lambda unit: Not(book.unit_free(unit)))
    return Step(Or(no_slot, no_unit), book)


@WORDS_32.action("Lease")
def ready_store(world: World, book: Book, lease: Term) -> Step[Book]:
    """R := 2n."""
    due = And(held(book, lease), Not(book.ready(lease)), Not(book.retired(lease)))
    return Step(
        due,
        replace(
            book,
            ready_word=put(book.ready_word, (book.slot_of(lease),), book.generation_of(lease) << 1),
            ready=put(book.ready, (lease,), True),
        ),
    )


def store_ack(book: Book, lease: Term, rank: Term) -> Book:
    """A[r] := n."""
    return replace(
        book,
        ack_word=put(book.ack_word, (book.slot_of(lease), rank), book.generation_of(lease)),
        acknowledged=put(book.acknowledged, (lease, rank), True),
    )


@WORDS_32.action("Lease", "Rank")
def ack_store(world: World, book: Book, lease: Term, rank: Term) -> Step[Book]:
    """A rank acknowledges a lease that was ready once, unless its word is as new."""
    newer = UGT(book.generation_of(lease), book.ack_word(book.slot_of(lease), rank))
    return Step(And(book.ready(lease), newer), store_ack(book, lease, rank))


@WORDS_32.action("Lease")
def retire_store(world: World, book: Book, lease: Term) -> Step[Book]:
    """R := 2n + 1, for any reason: recycled, cancelled or revoked."""
    retired_word = (book.generation_of(lease) << 1) + 1
    return Step(
        And(held(book, lease), Not(book.retired(lease))),
        replace(
            book,
            ready_word=put(book.ready_word, (book.slot_of(lease),), retired_word),
            retired=put(book.retired, (lease,), True),
        ),
    )


def let_go(book: Book, lease: Term, leaves_service: Truth) -> Book:
    """Unit and slot go back; the slot to the free list or out of service."""
    slot = book.slot_of(lease)
    return replace(
        book,
        freed=put(book.freed, (lease,), True),
        unit_free=put(book.unit_free, (book.unit_of(lease),), True),
        slot_free=put(book.slot_free, (slot,), Not(leaves_service)),
        used_up=put(book.used_up, (slot,), leaves_service),
    )


@WORDS_32.action("Lease")
def free(world: World, book: Book, lease: Term) -> Step[Book]:
    """A retired lease is freed; a slot at its limit leaves service."""
    at_the_limit = book.generation(book.slot_of(lease)) == limit(world)
    return Step(And(held(book, lease), book.retired(lease)), let_go(book, lease, at_the_limit))
