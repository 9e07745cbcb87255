"""Who acknowledges for whom: a lease is published for groups of ranks, each led by one that speaks for it (ACK-4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from vmmref.errors import ArgumentError
from vmmref_models.reasons import Reason

Groups: TypeAlias = Sequence[Sequence[int]]
"""Groups of ranks as a publisher declares them: disjoint, together all ranks, none empty; the first rank speaks."""

Ranks: TypeAlias = int | Sequence[int] | None
"""Who a consumer acts for: one rank, a declared group with its speaker first, or (None) the one group of all ranks."""

Speakers: TypeAlias = tuple[int, ...]
"""By rank, who acknowledges for it; () where each rank acknowledges for itself.

In this form groups are disjoint and complete whatever the numbers are, which a reader of foreign bytes profits from.
"""


def _refused(message: str) -> ArgumentError:
    return ArgumentError(Reason.BAD_RANK, "ACK-4", message)


def check_ranks(ranks: object, consumers: int, what: str) -> tuple[int, ...]:
    """`ranks` as a tuple; raises ArgumentError unless they are some ranks of the pool, each once."""
    if not isinstance(ranks, Sequence) or isinstance(ranks, str | bytes | bytearray):
        raise _refused(f"{what} must be a sequence of ranks, got {ranks!r}")
    if not ranks:
        raise _refused(f"{what} must name at least one rank, got {ranks!r}")
    seen: set[int] = set()
    for rank in ranks:
        # No bool, which is an int to Python: True would be rank 1.
        if type(rank) is not int or not 0 <= rank < consumers:
            raise _refused(f"{what} must be one of 0 ... {consumers - 1}, got {rank!r}")
        if rank in seen:
            raise _refused(f"{what} names rank {rank} twice")
        seen.add(rank)
    return tuple(ranks)


def declared_speakers(groups: Groups | None, consumers: int) -> Speakers:
    """The speakers of the groups that a lease is to be published for; None: each rank for itself.

    Raises ArgumentError for groups that overlap, leave a rank out, are empty, or name what is no rank.
    """
    if groups is None:
        return ()
    if not isinstance(groups, Sequence) or isinstance(groups, str | bytes | bytearray):
        raise _refused(f"groups must be a sequence of sequences of ranks, got {groups!r}")
    speakers: dict[int, int] = {}
    for group in groups:
        members = check_ranks(group, consumers, "a rank of a group")
        for rank in members:
            if rank in speakers:
                raise _refused(f"rank {rank} is in two groups")
            speakers[rank] = members[0]
    if len(speakers) != consumers:
        missing = next(rank for rank in range(consumers) if rank not in speakers)
        raise _refused(f"groups must have all of the ranks 0 ... {consumers - 1}, but {missing} is in none")
    each_alone = all(rank == speaker for rank, speaker in speakers.items())
    return () if each_alone else tuple([speakers[rank] for rank in range(consumers)])


def are_speakers(speakers: Speakers, consumers: int) -> bool:
    """Whether numbers from outside are the speakers of some groups of `consumers` ranks, in their one form."""
    if not speakers:
        return True
    complete = len(speakers) == consumers and max(speakers) < consumers
    grouped = any(rank != speaker for rank, speaker in enumerate(speakers))
    return complete and grouped and all(speakers[speaker] == speaker for speaker in speakers)


def awaited_ranks(speakers: Speakers) -> tuple[int, ...]:
    """The ranks whose words a lease of these (not empty) speakers waits for, ascending."""
    return tuple(sorted(set(speakers)))


def group_of(speaker: int, speakers: Speakers) -> frozenset[int]:
    """The ranks that `speaker` acknowledges for, itself among them; none where another rank speaks for it."""
    if not speakers:
        return frozenset((speaker,))
    return frozenset([rank for rank, other in enumerate(speakers) if other == speaker])


def check_speaker(ranks: Ranks, consumers: int, speakers: Speakers) -> int:
    """The rank that acknowledges for `ranks`, which are exactly a group that the lease was published for.

    Raises ArgumentError for everything else: a part of a group, more than a group, or one led by another rank.
    """
    if type(ranks) is int and not speakers and 0 <= ranks < consumers:
        return ranks
    if ranks is None:
        ranks = range(consumers)
        what = "consumer_rank, left out, means all ranks as one group led by rank 0:"
    else:
        what = f"consumer_rank {ranks!r} is no group of the lease led by its first rank:"
    members = check_ranks([ranks] if isinstance(ranks, int) else ranks, consumers, "consumer_rank")
    group = group_of(members[0], speakers)
    if group != frozenset(members):
        # ACK-4: also on a retry: a changed set would complete the lease for ranks that still read.
        led = f"acknowledges for {sorted(group)}" if group else f"is spoken for by rank {speakers[members[0]]}"
        raise _refused(f"{what} rank {members[0]} {led} in it")
    return members[0]
