"""Where the control words lie, for any number of slots and ranks and both sizes of a word."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from vmmref_models.proofs.system import Step, System
from vmmref_models.proofs.terms import TRUE, And, Function, Implies, Not, Or, Term, Truth
from vmmref_models.proofs.world import World, flag, number

ALIGNMENT = 256
"""Bytes; the data area begins on it (CTL-1)."""


@dataclass(frozen=True)
class Layout:
    """Addresses are byte offsets in the pool's memory."""

    slots: Function = field(metadata=number())
    ranks: Function = field(metadata=number())
    word_bytes: Function = field(metadata=number())
    slot_number: Function = field(metadata=number("Slot"))
    rank_number: Function = field(metadata=number("Rank"))

    laid_out: Function = field(metadata=flag())
    data_start: Function = field(metadata=number())
    ready_address: Function = field(metadata=number("Slot"))
    ack_address: Function = field(metadata=number("Slot", "Rank"))


LAYOUT: System[Layout] = System(
    family="layout",
    sentence="addresses of the control words, for any number of slots and ranks",
    sorts=("Slot", "Rank"),
    state=Layout,
    few=((1, 1), (2, 1), (2, 2)),
)


def addresses(layout: Layout) -> Layout:
    """A row of 1 + C words for each slot, and the data area behind the rows, on the alignment."""
    row_bytes = (1 + layout.ranks()) * layout.word_bytes()
    size_bytes = layout.slots() * row_bytes
    rounded = (size_bytes + (ALIGNMENT - 1)) / ALIGNMENT * ALIGNMENT

    def ready_address(slot: Term) -> Term:
        return layout.slot_number(slot) * row_bytes

    def ack_address(slot: Term, rank: Term) -> Term:
        return ready_address(slot) + (1 + layout.rank_number(rank)) * layout.word_bytes()

    return replace(
        layout,
        laid_out=lambda: TRUE,
        data_start=lambda: rounded,
        ready_address=ready_address,
        ack_address=ack_address,
    )


@LAYOUT.action()
def lay_out(world: World, layout: Layout) -> Step[Layout]:
    """The pool is created."""
    return Step(Not(layout.laid_out()), addresses(layout))


@LAYOUT.fact
def numbered_things(world: World, layout: Layout) -> Truth:
    """There are S slots, C ranks, and words of 4 or 8 bytes; numbers are unique and from 0 on."""
    sizes = And(layout.slots() >= 1, layout.ranks() >= 1, Or(layout.word_bytes() == 4, layout.word_bytes() == 8))
    slot_numbers = world.all(
        "Slot",
        "Slot",
        lambda one, other: And(
            layout.slot_number(one) >= 0,
            layout.slot_number(one) < layout.slots(),
            Implies(layout.slot_number(one) == layout.slot_number(other), one == other),
        ),
    )
    rank_numbers = world.all(
        "Rank",
        "Rank",
        lambda one, other: And(
            layout.rank_number(one) >= 0,
            layout.rank_number(one) < layout.ranks(),
            Implies(layout.rank_number(one) == layout.rank_number(other), one == other),
        ),
    )
    return And(sizes, slot_numbers, rank_numbers)


@LAYOUT.start
def nothing_yet(world: World, layout: Layout) -> Truth:
    """No pool has been created."""
    return Not(layout.laid_out())


@LAYOUT.invariant("CTL-1")
def words_before_the_data(world: World, layout: Layout) -> Truth:
    """Every byte of every word lies in [0, data_start), and data_start is aligned."""

    def inside(address: Term) -> Truth:
        return And(address >= 0, address + layout.word_bytes() <= layout.data_start())

    def both(slot: Term, rank: Term) -> Truth:
        return And(inside(layout.ready_address(slot)), inside(layout.ack_address(slot, rank)))

    return Implies(layout.laid_out(), And(world.all("Slot", "Rank", both), layout.data_start() % ALIGNMENT == 0))


@LAYOUT.invariant("CTL-2")
def acknowledgement_words_are_apart(world: World, layout: Layout) -> Truth:
    """Two acknowledgement words that share a byte are one: of one slot and one rank."""

    def apart(slot: Term, rank: Term, other_slot: Term, other_rank: Term) -> Truth:
        one, other = layout.ack_address(slot, rank), layout.ack_address(other_slot, other_rank)
        same_word = And(slot == other_slot, rank == other_rank)
        return Or(same_word, one + layout.word_bytes() <= other, other + layout.word_bytes() <= one)

    return Implies(layout.laid_out(), world.all("Slot", "Rank", "Slot", "Rank", apart))


@LAYOUT.invariant("CTL-2")
def ready_words_are_apart(world: World, layout: Layout) -> Truth:
    """A ready word shares no byte with another word."""

    def apart(slot: Term, other_slot: Term, rank: Term) -> Truth:
        one, width = layout.ready_address(slot), layout.word_bytes()
        ready, ack = layout.ready_address(other_slot), layout.ack_address(other_slot, rank)
        from_ready = Or(slot == other_slot, one + width <= ready, ready + width <= one)
        return And(from_ready, Or(one + width <= ack, ack + width <= one))

    return Implies(layout.laid_out(), world.all("Slot", "Slot", "Rank", apart))


@LAYOUT.invariant("CTL-2")
def words_are_aligned(world: World, layout: Layout) -> Truth:
    """A word's address is a multiple of its size, so it is stored and loaded whole."""

    def aligned(slot: Term, rank: Term) -> Truth:
        width = layout.word_bytes()
        return And(layout.ready_address(slot) % width == 0, layout.ack_address(slot, rank) % width == 0)

    return Implies(layout.laid_out(), world.all("Slot", "Rank", aligned))


@LAYOUT.wrong("lay-out", breaks="CTL-2")
def first_rank_on_the_ready_word(world: World, layout: Layout) -> Step[Layout]:
    """The ranks' words begin where R lies."""
    right = addresses(layout)

    def ack_address(slot: Term, rank: Term) -> Term:
        return right.ready_address(slot) + layout.rank_number(rank) * layout.word_bytes()

    return Step(Not(layout.laid_out()), replace(right, ack_address=ack_address))


@LAYOUT.wrong("lay-out", breaks="CTL-2")
def rows_and_columns_mixed(world: World, layout: Layout) -> Step[Layout]:
    """The consumer lays the words out by rank first, the producer by slot first."""

    def ack_address(slot: Term, rank: Term) -> Term:
        row = (1 + layout.rank_number(rank)) * layout.slots()
        return (row + layout.slot_number(slot)) * layout.word_bytes()

    return Step(Not(layout.laid_out()), replace(addresses(layout), ack_address=ack_address))


@LAYOUT.wrong("lay-out", breaks="CTL-1")
def data_over_the_last_words(world: World, layout: Layout) -> Step[Layout]:
    """The end of the control words is rounded down."""
    size_bytes = layout.slots() * (1 + layout.ranks()) * layout.word_bytes()
    rounded_down = size_bytes / ALIGNMENT * ALIGNMENT
    return Step(Not(layout.laid_out()), replace(addresses(layout), data_start=lambda: rounded_down))
