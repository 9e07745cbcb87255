"""How the data area starts, and what holds of it: the tiling, the alignment, best fit and merging."""

from __future__ import annotations

from vmmref_models.proofs.ranges.area import ALIGNMENT, RANGES, Area, free, length
from vmmref_models.proofs.terms import And, Implies, Not, Or, Term, Truth
from vmmref_models.proofs.world import World


@RANGES.fact
def an_aligned_area(world: World, area: Area) -> Truth:
    """The data area begins and ends on the alignment (CTL-1, RNG-1), and has room."""
    aligned = And(area.low() % ALIGNMENT == 0, area.high() % ALIGNMENT == 0)
    return And(aligned, area.low() >= 0, area.low() < area.high())


@RANGES.start
def one_free_range(world: World, area: Area) -> Truth:
    """The whole area is one free piece."""
    whole = And(area.start(area.first()) == area.low(), area.end(area.first()) == area.high())
    pieces = world.all(
        "Piece",
        lambda piece: And(
            area.present(piece) == (piece == area.first()), Not(area.leased(piece)), Not(area.owed(piece))
        ),
    )
    return And(whole, pieces, world.all("Byte", lambda byte: area.home(byte) == area.first()))


@RANGES.invariant("RNG-1")
def no_overlap(world: World, area: Area) -> Truth:
    """No two ranges share a byte."""
    return world.all(
        "Piece",
        "Piece",
        lambda one, other: Implies(
            And(area.present(one), area.present(other), one != other),
            Or(area.end(one) <= area.start(other), area.end(other) <= area.start(one)),
        ),
    )


@RANGES.invariant("RNG-1", "CTL-1")
def inside_the_area(world: World, area: Area) -> Truth:
    """A range has bytes and lies in the data area, behind the control words."""
    return world.all(
        "Piece",
        lambda piece: Implies(
            area.present(piece),
            And(area.low() <= area.start(piece), area.start(piece) < area.end(piece), area.end(piece) <= area.high()),
        ),
    )


@RANGES.invariant("RNG-1")
def no_gap(world: World, area: Area) -> Truth:
    """A range starts at the low end, and where a range ends another starts, up to the high end."""
    starts = And(area.present(area.first()), area.start(area.first()) == area.low())

    def goes_on(piece: Term) -> Truth:
        following = area.following(piece)
        adjoins = And(area.present(following), area.start(following) == area.end(piece))
        return Implies(And(area.present(piece), area.end(piece) != area.high()), adjoins)

    return And(starts, world.all("Piece", goes_on))


@RANGES.invariant("RNG-1")
def every_byte_has_a_range(world: World, area: Area) -> Truth:
    """Each byte of the data area lies in a range."""

    def lies(byte: Term) -> Truth:
        position, home = area.position(byte), area.home(byte)
        inside = And(area.low() <= position, position < area.high())
        return Implies(inside, And(area.present(home), area.start(home) <= position, position < area.end(home)))

    return world.all("Byte", lies)


@RANGES.invariant("RNG-1", "REC-5")
def leases_keep_their_range(world: World, area: Area) -> Truth:
    """What was granted stays as it was granted until its holder gives it back; nothing else is leased."""
    return world.all(
        "Piece",
        lambda piece: And(
            Implies(
                area.owed(piece),
                And(
                    area.present(piece),
                    area.leased(piece),
                    area.start(piece) == area.granted_start(piece),
                    area.end(piece) == area.granted_end(piece),
                ),
            ),
            Implies(And(area.present(piece), area.leased(piece)), area.owed(piece)),
        ),
    )


@RANGES.invariant("RNG-2")
def ranges_are_aligned(world: World, area: Area) -> Truth:
    """Every range starts and ends on the alignment."""
    return world.all(
        "Piece",
        lambda piece: Implies(
            area.present(piece), And(area.start(piece) % ALIGNMENT == 0, area.end(piece) % ALIGNMENT == 0)
        ),
    )


@RANGES.invariant("RNG-2")
def leases_waste_little(world: World, area: Area) -> Truth:
    """A lease holds what was asked for and less than one alignment more."""
    return world.all(
        "Piece",
        lambda piece: Implies(
            And(area.present(piece), area.leased(piece)),
            And(area.nbytes(piece) <= length(area, piece), length(area, piece) < area.nbytes(piece) + ALIGNMENT),
        ),
    )


@RANGES.law("RNG-3")
def the_best_fit_is_taken(world: World, before: Area, after: Area) -> Truth:
    """A lease is cut from the smallest free range that fits, of equals from the lowest."""

    def chosen(piece: Term, other: Term) -> Truth:
        granted = And(after.owed(piece), Not(before.owed(piece)))
        would_do = And(free(before, other), length(before, other) >= length(after, piece))
        larger = length(before, other) > length(before, piece)
        equal = length(before, other) == length(before, piece)
        higher = before.start(other) >= before.start(piece)
        return Implies(And(granted, would_do), Or(larger, And(equal, higher)))

    return world.all("Piece", "Piece", chosen)


@RANGES.invariant("RNG-4")
def free_ranges_do_not_touch(world: World, area: Area) -> Truth:
    """No free range ends where another begins."""
    return world.all(
        "Piece",
        "Piece",
        lambda one, other: Implies(And(free(area, one), free(area, other)), area.end(one) != area.start(other)),
    )


@RANGES.law("RNG-5", "ERR-1")
def a_refusal_changes_nothing(world: World, before: Area, after: Area) -> Truth:
    """Where no lease is granted or given back, every range stays as it is."""
    no_lease = world.all("Piece", lambda piece: after.owed(piece) == before.owed(piece))
    unchanged = world.all(
        "Piece",
        lambda piece: And(
            after.present(piece) == before.present(piece),
            after.leased(piece) == before.leased(piece),
            after.start(piece) == before.start(piece),
            after.end(piece) == before.end(piece),
        ),
    )
    return Implies(no_lease, unchanged)
