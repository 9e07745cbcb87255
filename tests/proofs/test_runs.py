"""Runs from the start: the protocol can do its work, and wrong actions lead to what the rules forbid."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from vmmref_models.proofs.protocol import PROTOCOL, State
from vmmref_models.proofs.runs import CannotPlay, Played, play
from vmmref_models.proofs.terms import And, Not, Truth
from vmmref_models.proofs.world import World

Wish = Callable[[World, State], Truth]

Sizes = tuple[int, int, int, int, int, int]
"""Slots, ranks, processes, leases, blocks, readings."""
ONE_RANK: Sizes = (1, 1, 1, 2, 1, 2)
ONE_RANK_TWO_SLOTS: Sizes = (2, 1, 1, 2, 1, 2)
TWO_RANKS: Sizes = (1, 2, 2, 1, 1, 2)
TWO_RANKS_AND_A_NEWCOMER: Sizes = (1, 2, 3, 2, 1, 2)


def publish(lease: str) -> list[str]:
    """A lease of one block, from its grant to its dispatch."""
    granted = [f"publish {lease}", f"queue-copy {lease}", f"copy-block {lease} block0", f"copy-ends {lease}"]
    return [*granted, f"queue-ready {lease}", f"ready-store {lease}", f"dispatch {lease}"]


def copy_out(reading: str) -> list[str]:
    """A reading up to its read of R."""
    return [f"begin-reading {reading}", f"copy-out {reading} block0", f"read-ready {reading}"]


def read(reading: str) -> list[str]:
    """A reading up to its stored acknowledgement."""
    return [*copy_out(reading), f"judge {reading}", f"ack-store {reading}"]


def retire(lease: str) -> list[str]:
    """What follows every claim."""
    return [f"queue-retire {lease}", f"retire-store {lease}", f"free {lease}"]


def recycle(lease: str, *ranks: str) -> list[str]:
    """A pass that takes one lease back."""
    return [*(f"look {lease} {rank}" for rank in ranks), f"claim-complete {lease}", *retire(lease)]


def in_turn(world: World, state: State) -> Truth:
    """Every lease lies in the one block; the n-th reading is of the n-th lease, where there are so many."""
    block, leases = world.things["Block"][0], world.things["Lease"]
    pairs = zip(world.things["Reading"], leases, strict=False)
    return And(*[state.covers(lease, block) for lease in leases], *[state.lease_of(one) == two for one, two in pairs])


def accepted(world: World, state: State) -> Truth:
    """Every copy was good."""
    return world.all("Reading", lambda reading: state.accepted(reading))


def freed(world: World, state: State) -> Truth:
    """Every lease came back."""
    return world.all("Lease", lambda lease: state.freed(lease))


def breaks(name: str) -> Wish:
    """The invariant of that name does not hold any more."""
    (found,) = [proposed for proposed in PROTOCOL.properties if proposed.name == name]
    return lambda world, state: Not(found.formula(world, state))


def test_a_slot_and_a_range_are_used_again() -> None:
    """Nothing was assumed that keeps the protocol from working."""
    cycles = [*publish("lease0"), *read("reading0"), *recycle("lease0", "rank0")]
    cycles += [*publish("lease1"), *read("reading1"), *recycle("lease1", "rank0")]
    played = play(PROTOCOL, ONE_RANK, ["import-pool process0", *cycles], in_turn)
    assert played.possible(accepted, freed)
    for proposed in PROTOCOL.properties:
        assert proposed.step or not played.possible(breaks(proposed.name)), proposed.name


def test_a_late_reader_of_a_revoked_lease_is_told() -> None:
    late = [*publish("lease0"), "begin-reading reading0", "revoke lease0", *retire("lease0"), *publish("lease1")]
    script = ["import-pool process0", *late, "copy-out reading0 block0", "read-ready reading0", "judge reading0"]
    played = play(PROTOCOL, ONE_RANK, script, in_turn)
    stale = played.world.things["Reading"][0]
    assert played.possible()
    assert not played.possible(lambda world, state: state.accepted(stale))


def test_a_lease_waits_for_every_rank_that_lives() -> None:
    """One rank reads, the other is silent: nothing is recycled until the reaper has counted its death."""
    script = ["import-pool process0", *publish("lease0"), *read("reading0"), "look lease0 rank0"]
    reaped = ["die process1", "reap rank1"]
    for died in ([], reaped):
        ended = play(PROTOCOL, TWO_RANKS, [*script, *died, "claim-complete lease0"], own_ranks)
        assert ended.possible() == (died == reaped)


def own_ranks(world: World, state: State) -> Truth:
    """Process n acts for rank n, each speaks for itself, and the n-th reading is the n-th process's."""
    processes, ranks = world.things["Process"], world.things["Rank"]
    acting = [state.current(rank) == process for rank, process in zip(ranks, processes, strict=False)]
    reading = [state.process_of(one) == two for one, two in zip(world.things["Reading"], processes, strict=False)]
    alone = world.all("Lease", "Rank", lambda lease, rank: state.speaker_of(lease, rank) == rank)
    every_block = world.all("Lease", "Block", lambda lease, block: state.covers(lease, block))
    return And(*acting, *reading, alone, every_block)


def a_newcomer_reads_the_old_lease(world: World, state: State) -> Truth:
    """Process 2 is to act for rank 0 after process 0; it and process 1 read lease 0."""
    ranks, processes = world.things["Rank"], world.things["Process"]
    first, second = world.things["Reading"]
    return And(
        state.current(ranks[0]) == processes[0],
        state.current(ranks[1]) == processes[1],
        state.rank_of(processes[2]) == ranks[0],
        state.process_of(first) == processes[2],
        state.process_of(second) == processes[1],
        world.all("Reading", lambda reading: state.lease_of(reading) == world.things["Lease"][0]),
        world.all("Lease", "Rank", lambda lease, rank: state.speaker_of(lease, rank) == rank),
        world.all("Lease", "Block", lambda lease, block: state.covers(lease, block)),
        state.borrowable(world.things["Lease"][0]),
    )


def same_slot_other_reader(world: World, state: State) -> Truth:
    """As `in_turn`, in one slot."""
    return And(in_turn(world, state), world.all("Lease", lambda lease: state.slot_of(lease) == world.things["Slot"][0]))


def other_slot_same_block(world: World, state: State) -> Truth:
    """As `in_turn`, each lease in a slot of its own."""
    one, other = world.things["Lease"]
    return And(in_turn(world, state), state.slot_of(one) != state.slot_of(other))


def borrowed(world: World, state: State) -> Truth:
    """As `in_turn`, and the first lease may be borrowed."""
    return And(in_turn(world, state), state.borrowable(world.things["Lease"][0]))


class Disaster(NamedTuple):
    """A run in which one action is wrong, and the invariant that it breaks in the end."""

    wrong: str
    right: str
    breaks: str
    sizes: Sizes
    given: Wish
    script: list[str]


COPY_OF_THE_NEXT = ["publish lease1", "queue-copy lease1", "copy-block lease1 block0"]
DISASTERS = (
    Disaster(
        "range-before-retire",
        "free",
        "accepted-bytes-are-its-own",
        ONE_RANK_TWO_SLOTS,
        other_slot_same_block,
        [
            *["import-pool process0", *publish("lease0"), "begin-reading reading0", "revoke lease0"],
            *["queue-retire lease0", "range-before-retire lease0", *COPY_OF_THE_NEXT],
            *["copy-out reading0 block0", "read-ready reading0", "judge reading0"],
        ],
    ),
    Disaster(
        "checked-before-the-last-byte",
        "read-ready",
        "accepted-bytes-are-its-own",
        ONE_RANK,
        in_turn,
        [
            *["import-pool process0", *publish("lease0"), "begin-reading reading0"],
            *["checked-before-the-last-byte reading0", "revoke lease0", *retire("lease0"), *COPY_OF_THE_NEXT],
            "judge reading0",
        ],
    ),
    Disaster(
        "late-judged-acknowledgement",
        "judge",
        "the-word-is-not-below-what-counts",
        ONE_RANK,
        in_turn,
        [
            *["import-pool process0", *publish("lease0"), *copy_out("reading0"), "revoke lease0", *retire("lease0")],
            *[*publish("lease1"), *read("reading1"), "late-judged-acknowledgement reading0", "ack-store reading0"],
        ],
    ),
    Disaster(
        "borrow-freed-on-revoke",
        "free",
        "a-view-shows-its-lease",
        ONE_RANK,
        borrowed,
        [
            *["import-pool process0", *publish("lease0"), "begin-borrowing reading0", "ask-ready reading0"],
            *["open-view reading0", "revoke lease0", "queue-retire lease0", "retire-store lease0"],
            *["borrow-freed-on-revoke lease0", *COPY_OF_THE_NEXT],
        ],
    ),
    Disaster(
        "newcomer-borrows-an-older-lease",
        "begin-borrowing",
        "a-view-shows-its-lease",
        TWO_RANKS_AND_A_NEWCOMER,
        a_newcomer_reads_the_old_lease,
        [
            *["import-pool process1", *publish("lease0"), "die process0", "work-ends process0", "reap rank0"],
            *["join process2", "import-pool process2", "newcomer-borrows-an-older-lease reading0"],
            *["ask-ready reading0", "open-view reading0", *read("reading1"), *recycle("lease0", "rank1")],
            *COPY_OF_THE_NEXT,
        ],
    ),
    Disaster(
        "no-claim",
        "claim-complete",
        "one-claim",
        ONE_RANK,
        in_turn,
        [
            *["import-pool process0", *publish("lease0"), *read("reading0"), "look lease0 rank0"],
            *["revoke lease0", "no-claim lease0"],
        ],
    ),
    Disaster(
        "acknowledged-under-the-copy",
        "fail-reading",
        "acknowledged-means-over",
        ONE_RANK,
        in_turn,
        [
            *["import-pool process0", *publish("lease0"), "begin-reading reading0"],
            *["acknowledged-under-the-copy reading0", "ack-store reading0"],
        ],
    ),
)


@pytest.mark.parametrize("disaster", DISASTERS, ids=lambda disaster: disaster.wrong)
def test_a_wrong_action_leads_to_a_disaster(disaster: Disaster) -> None:
    played = play(PROTOCOL, disaster.sizes, disaster.script, disaster.given)
    assert played.possible(breaks(disaster.breaks))
    assert not repaired(disaster).possible(breaks(disaster.breaks))


def repaired(disaster: Disaster) -> Played[State]:
    """The same run with the right action."""
    script = [line.replace(disaster.wrong, disaster.right) for line in disaster.script]
    return play(PROTOCOL, disaster.sizes, script, disaster.given)


@pytest.mark.parametrize("line", ["fly lease0", "free lease7"])
def test_a_script_names_what_is_there(line: str) -> None:
    with pytest.raises(CannotPlay, match=line.split()[0] if "fly" in line else "lease7"):
        play(PROTOCOL, ONE_RANK, [line])
