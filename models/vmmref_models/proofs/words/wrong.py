"""Generations and words with one mistake, each breaking the rule that it is named for."""

from __future__ import annotations

from dataclasses import replace

from vmmref_models.proofs.system import Step
from vmmref_models.proofs.terms import FALSE, And, Or, Term, put
from vmmref_models.proofs.words.book import (
    WORDS_32,
    Book,
    answer_full,
    grant,
    held,
    let_go,
    refuse_exhausted,
    retire_store,
    store_ack,
    there_is_room,
)
from vmmref_models.proofs.world import World


@WORDS_32.wrong("lease-slot", breaks="GEN-2")
def generation_wraps(world: World, book: Book, lease: Term) -> Step[Book]:
    """Nobody looks at the limit, and a slot at the limit stays in service."""
    slot = book.slot_of(lease)
    in_service = replace(book, slot_free=lambda one: Or(book.slot_free(one), book.used_up(one)))
    following = book.generation_of(lease) == book.generation(slot) + 1
    return Step(And(there_is_room(world, in_service, lease), following), grant(book, lease))


@WORDS_32.wrong("lease-slot", breaks="GEN-1")
def generation_kept(world: World, book: Book, lease: Term) -> Step[Book]:
    """The slot's last generation is handed out again."""
    again = book.generation_of(lease) == book.generation(book.slot_of(lease))
    return Step(And(there_is_room(world, book, lease), again), grant(book, lease))


@WORDS_32.wrong("refuse-exhausted", breaks="GEN-3")
def range_before_limit(world: World, book: Book) -> Step[Book]:
    """The range is taken before the limit is looked at, and the refusal forgets it."""
    right = refuse_exhausted(world, book)
    return Step(right.guard, replace(book, unit_free=lambda unit: FALSE))


@WORDS_32.wrong("answer-full", breaks="RNG-5")
def slot_taken_when_full(world: World, book: Book) -> Step[Book]:
    """The slot is taken before the range is looked for, and "pool full" forgets it."""
    right = answer_full(world, book)
    return Step(right.guard, replace(book, slot_free=lambda slot: FALSE))


@WORDS_32.wrong("free", breaks="GEN-3")
def used_up_slot_stays_in_service(world: World, book: Book, lease: Term) -> Step[Book]:
    """A slot at its limit returns to the free list."""
    return Step(And(held(book, lease), book.retired(lease)), let_go(book, lease, FALSE))


@WORDS_32.wrong("ack-store", breaks="ACK-2")
def unguarded_ack(world: World, book: Book, lease: Term, rank: Term) -> Step[Book]:
    """A late acknowledgement is stored whatever the word holds."""
    return Step(book.ready(lease), store_ack(book, lease, rank))


@WORDS_32.wrong("retire-store", breaks="GEN-3")
def retired_as_the_next_live_word(world: World, book: Book, lease: Term) -> Step[Book]:
    """Retired is stored as 2n + 2, which is what the next lease of the slot stores as live."""
    right = retire_store(world, book, lease)
    value = (book.generation_of(lease) << 1) + 2
    return Step(right.guard, replace(right.after, ready_word=put(book.ready_word, (book.slot_of(lease),), value)))
