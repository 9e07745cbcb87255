"""Cutting and merging: any number of ranges of any length, split by best fit and merged when they come back.

A piece is a range of the data area, free or leased. Pieces are named and not numbered: a split brings a new one into
being, a merge ends one. `home` says in which piece a byte lies, so that "no gap" is said of every byte.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from vmmref_models.proofs.system import Step, System
from vmmref_models.proofs.terms import And, Function, Implies, Not, Or, Term, Truth, put, put_where
from vmmref_models.proofs.world import NUMBER, World, flag, number, thing

ALIGNMENT = 256
"""Bytes; ranges begin and end on it (RNG-2)."""


@dataclass(frozen=True)
class Area:
    """Fields are functions of pieces and bytes; positions are byte offsets in the pool's memory."""

    low: Function = field(metadata=number())
    high: Function = field(metadata=number())
    """The data area is [low, high)."""
    first: Function = field(metadata=thing("Piece"))
    """The piece that was the whole area at the start."""
    position: Function = field(metadata=number("Byte"))

    present: Function = field(metadata=flag("Piece"))
    leased: Function = field(metadata=flag("Piece"))
    start: Function = field(metadata=number("Piece"))
    end: Function = field(metadata=number("Piece"))
    following: Function = field(metadata=thing("Piece", "Piece"))
    """The piece that begins where this one ends."""
    home: Function = field(metadata=thing("Piece", "Byte"))

    owed: Function = field(metadata=flag("Piece"))
    """A lease was granted on this piece, and its holder has not given it back."""
    nbytes: Function = field(metadata=number("Piece"))
    """What the holder asked for."""
    granted_start: Function = field(metadata=number("Piece"))
    granted_end: Function = field(metadata=number("Piece"))


RANGES: System[Area] = System(
    family="ranges",
    sentence="the data area cut by best fit and merged, for any number of ranges of any length",
    sorts=("Piece", "Byte"),
    state=Area,
    few=((1, 1), (2, 1), (3, 2), (4, 2)),
)


def free(area: Area, piece: Term) -> Truth:
    """It is there and nobody has it."""
    return And(area.present(piece), Not(area.leased(piece)))


def length(area: Area, piece: Term) -> Term:
    """Its bytes."""
    return area.end(piece) - area.start(piece)


def rounded(nbytes: Term) -> Term:
    """`nbytes` rounded up to the alignment."""
    return (nbytes + (ALIGNMENT - 1)) / ALIGNMENT * ALIGNMENT


def best(world: World, area: Area, piece: Term, size: Term) -> Truth:
    """The smallest free piece of at least `size` bytes, of equals the lowest."""

    def no_better(other: Term) -> Truth:
        fits = And(free(area, other), length(area, other) >= size)
        larger = length(area, other) > length(area, piece)
        equal_and_higher = And(length(area, other) == length(area, piece), area.start(other) >= area.start(piece))
        return Implies(fits, Or(larger, equal_and_higher))

    return And(free(area, piece), length(area, piece) >= size, world.all("Piece", no_better))


def take(area: Area, piece: Term, nbytes: Term, end: Term) -> Area:
    """A lease on [start of the piece, end)."""
    return replace(
        area,
        leased=put(area.leased, (piece,), True),
        end=put(area.end, (piece,), end),
        owed=put(area.owed, (piece,), True),
        nbytes=put(area.nbytes, (piece,), nbytes),
        granted_start=put(area.granted_start, (piece,), area.start(piece)),
        granted_end=put(area.granted_end, (piece,), end),
    )


@RANGES.action("Piece", NUMBER)
def take_whole(world: World, area: Area, piece: Term, nbytes: Term) -> Step[Area]:
    """The best fit has exactly the size that is needed."""
    size = rounded(nbytes)
    return Step(
        And(nbytes >= 1, best(world, area, piece, size), length(area, piece) == size),
        take(area, piece, nbytes, area.end(piece)),
    )


def split(area: Area, piece: Term, rest: Term, nbytes: Term, end: Term, rest_start: Term) -> Area:
    """A lease on the front of a piece; what is behind it becomes a free piece of its own."""
    taken = take(area, piece, nbytes, end)
    behind = put_where(
        area.home,
        lambda byte: And(area.home(byte) == piece, area.position(byte) >= rest_start),
        lambda byte: rest,
    )
    return replace(
        taken,
        present=put(area.present, (rest,), True),
        leased=put(taken.leased, (rest,), False),
        start=put(area.start, (rest,), rest_start),
        end=put(taken.end, (rest,), area.end(piece)),
        following=put(put(area.following, (rest,), area.following(piece)), (piece,), rest),
        home=behind,
    )


def splits(world: World, area: Area, piece: Term, rest: Term, nbytes: Term) -> Truth:
    """The best fit is larger than what is needed."""
    size = rounded(nbytes)
    larger = length(area, piece) > size
    return And(nbytes >= 1, Not(area.present(rest)), best(world, area, piece, size), larger)


@RANGES.action("Piece", "Piece", NUMBER)
def take_part(world: World, area: Area, piece: Term, rest: Term, nbytes: Term) -> Step[Area]:
    """The best fit is larger: its front is leased, the rest stays free."""
    cut = area.start(piece) + rounded(nbytes)
    return Step(splits(world, area, piece, rest, nbytes), split(area, piece, rest, nbytes, cut, cut))


@RANGES.action(NUMBER)
def answer_full(world: World, area: Area, nbytes: Term) -> Step[Area]:
    """No free piece is large enough: "pool full", and nothing changes."""
    none_fits = world.all("Piece", lambda piece: Implies(free(area, piece), length(area, piece) < rounded(nbytes)))
    return Step(And(nbytes >= 1, none_fits), area)


def given_back(area: Area, piece: Term) -> Area:
    """The piece is free again."""
    return replace(area, leased=put(area.leased, (piece,), False), owed=put(area.owed, (piece,), False))


def absorb(area: Area, left: Term, right: Term) -> Area:
    """`right` becomes a part of `left`."""
    return replace(
        area,
        present=put(area.present, (right,), False),
        end=put(area.end, (left,), area.end(right)),
        following=put(area.following, (left,), area.following(right)),
        home=put_where(area.home, lambda byte: area.home(byte) == right, lambda byte: left),
    )


def comes_back(area: Area, piece: Term) -> Truth:
    """Its holder gives it back."""
    return And(area.present(piece), area.owed(piece))


def free_before(area: Area, piece: Term, left: Term) -> Truth:
    """`left` is free and ends where the piece starts."""
    return And(free(area, left), area.end(left) == area.start(piece))


def free_behind(area: Area, piece: Term, right: Term) -> Truth:
    """`right` is free and starts where the piece ends."""
    return And(free(area, right), area.start(right) == area.end(piece))


def none_before(world: World, area: Area, piece: Term) -> Truth:
    """No free piece ends where this one starts."""
    return world.all("Piece", lambda left: Not(free_before(area, piece, left)))


def none_behind(world: World, area: Area, piece: Term) -> Truth:
    """No free piece starts where this one ends."""
    return world.all("Piece", lambda right: Not(free_behind(area, piece, right)))


@RANGES.action("Piece")
def give_back_alone(world: World, area: Area, piece: Term) -> Step[Area]:
    """No neighbour is free."""
    alone = And(none_before(world, area, piece), none_behind(world, area, piece))
    return Step(And(comes_back(area, piece), alone), given_back(area, piece))


@RANGES.action("Piece", "Piece")
def give_back_to_the_left(world: World, area: Area, piece: Term, left: Term) -> Step[Area]:
    """The neighbour before it is free."""
    only_left = And(free_before(area, piece, left), none_behind(world, area, piece))
    return Step(And(comes_back(area, piece), only_left), absorb(given_back(area, piece), left, piece))


@RANGES.action("Piece", "Piece")
def give_back_to_the_right(world: World, area: Area, piece: Term, right: Term) -> Step[Area]:
    """The neighbour behind it is free."""
    only_right = And(none_before(world, area, piece), free_behind(area, piece, right))
    return Step(And(comes_back(area, piece), only_right), absorb(given_back(area, piece), piece, right))


@RANGES.action("Piece", "Piece", "Piece")
def give_back_between(world: World, area: Area, piece: Term, left: Term, right: Term) -> Step[Area]:
    """Both neighbours are free."""
    both = And(free_before(area, piece, left), free_behind(area, piece, right))
    merged = absorb(absorb(given_back(area, piece), piece, right), left, piece)
    return Step(And(comes_back(area, piece), both), merged)
