"""Cutting and merging with one mistake, each breaking the rule that it is named for."""

from __future__ import annotations

from dataclasses import replace

from vmmref_models.proofs.ranges.area import (
    ALIGNMENT,
    RANGES,
    Area,
    absorb,
    answer_full,
    comes_back,
    free,
    give_back_between,
    given_back,
    length,
    none_before,
    rounded,
    split,
    splits,
    take,
)
from vmmref_models.proofs.system import Step
from vmmref_models.proofs.terms import And, Not, Term, put
from vmmref_models.proofs.world import World


@RANGES.wrong("take-part", breaks="RNG-1")
def off_by_one_split(world: World, area: Area, piece: Term, rest: Term, nbytes: Term) -> Step[Area]:
    """The rest begins one byte too late."""
    cut = area.start(piece) + rounded(nbytes)
    return Step(splits(world, area, piece, rest, nbytes), split(area, piece, rest, nbytes, cut, cut + 1))


@RANGES.wrong("take-part", breaks="RNG-1")
def loses_the_tail(world: World, area: Area, piece: Term, rest: Term, nbytes: Term) -> Step[Area]:
    """What a split leaves over is forgotten."""
    cut = area.start(piece) + rounded(nbytes)
    return Step(splits(world, area, piece, rest, nbytes), take(area, piece, nbytes, cut))


@RANGES.wrong("take-part", breaks="RNG-2")
def not_rounded_up(world: World, area: Area, piece: Term, rest: Term, nbytes: Term) -> Step[Area]:
    """A lease ends with its last byte."""
    cut = area.start(piece) + nbytes
    return Step(splits(world, area, piece, rest, nbytes), split(area, piece, rest, nbytes, cut, cut))


@RANGES.wrong("take-part", breaks="RNG-2")
def rounds_up_twice(world: World, area: Area, piece: Term, rest: Term, nbytes: Term) -> Step[Area]:
    """A lease gets one alignment more than it needs."""
    larger = nbytes + ALIGNMENT
    cut = area.start(piece) + rounded(larger)
    return Step(splits(world, area, piece, rest, larger), split(area, piece, rest, nbytes, cut, cut))


@RANGES.wrong("take-part", breaks="RNG-3")
def first_fit(world: World, area: Area, piece: Term, rest: Term, nbytes: Term) -> Step[Area]:
    """Any free range that is large enough is taken."""
    fits = And(nbytes >= 1, free(area, piece), length(area, piece) > rounded(nbytes), Not(area.present(rest)))
    cut = area.start(piece) + rounded(nbytes)
    return Step(fits, split(area, piece, rest, nbytes, cut, cut))


@RANGES.wrong("answer-full", breaks="RNG-5")
def range_lost_by_a_refusal(world: World, area: Area, nbytes: Term) -> Step[Area]:
    """A refusal comes after the first range has been taken off the free list."""
    right = answer_full(world, area, nbytes)
    return Step(right.guard, replace(area, present=put(area.present, (area.first(),), area.leased(area.first()))))


@RANGES.wrong("give-back-alone", breaks="RNG-4")
def never_merges(world: World, area: Area, piece: Term) -> Step[Area]:
    """Nobody looks at the neighbours."""
    return Step(comes_back(area, piece), given_back(area, piece))


@RANGES.wrong("give-back-to-the-right", breaks="RNG-1")
def merges_a_leased_neighbour(world: World, area: Area, piece: Term, right: Term) -> Step[Area]:
    """The neighbour is taken in whether or not it is free."""
    adjoins = And(area.present(right), area.start(right) == area.end(piece))
    return Step(
        And(comes_back(area, piece), none_before(world, area, piece), adjoins),
        absorb(given_back(area, piece), piece, right),
    )


@RANGES.wrong("give-back-between", breaks="RNG-4")
def merges_one_side_only(world: World, area: Area, piece: Term, left: Term, right: Term) -> Step[Area]:
    """Of two free neighbours only the left one is merged."""
    right_step = give_back_between(world, area, piece, left, right)
    return Step(right_step.guard, absorb(given_back(area, piece), left, piece))
