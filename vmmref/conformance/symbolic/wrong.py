"""Wrong versions of the pool's functions, beside the broken pools: what each contract must refute to be worth anything.

Every one of them is a slip that passes most tests: one off, the wrong side of equal, a mask of too few bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from vmmref.book import Holding, LeaseBook
from vmmref.groups import Speakers
from vmmref.layout import ALIGNMENT, ControlLayout
from vmmref.lease import PoolLease
from vmmref.ranges import FreeRanges
from vmmref.slots import Slots
from vmmref.table import RankTable


def adds_one_too_many(value: int, alignment: int) -> int:
    """Rounds a multiple up to the next one."""
    return (value + alignment) // alignment * alignment


def rounds_down(value: int, alignment: int) -> int:
    """Rounds to the multiple below."""
    return value // alignment * alignment


class FitsWithoutItsLastByte(FreeRanges):
    """Takes a range that is a unit too small, where no other one is left."""

    def allocate(self, nbytes: int) -> tuple[int, int] | None:
        return super().allocate(nbytes) or super().allocate(nbytes - ALIGNMENT)


class OneUnitInTheSplit(FreeRanges):
    """Leaves a unit of padding behind every lease: the pool shrinks."""

    def allocate(self, nbytes: int) -> tuple[int, int] | None:
        taken = super().allocate(nbytes + ALIGNMENT)
        return None if taken is None else (taken[0], taken[1] - ALIGNMENT)


class MergesAcrossAGap(FreeRanges):
    """Takes a neighbour for touching when one unit, somebody's lease, lies between them."""

    def release(self, start: int, end: int) -> None:
        super().release(start - ALIGNMENT if start - ALIGNMENT in self._start_of else start, end)


class MergesWithTheFrontOnly(FreeRanges):
    """Merges with the range in front and forgets the one behind."""

    def release(self, start: int, end: int) -> None:
        behind = self._end_of.pop(end, None)
        super().release(start, end)
        if behind is not None:
            self._end_of[end] = behind


class RanksFromZero(ControlLayout):
    """Counts ranks from the slot's first word, which is R."""

    def ack_offset(self, slot: int, rank: int) -> int:
        return super().ack_offset(slot, rank - 1)


class StrideWithoutR(ControlLayout):
    """Forgets R in the number of words that a slot takes."""

    @property
    def words_per_slot(self) -> int:
        return self.consumers


class DataRightBehind(ControlLayout):
    """Begins the data at the end of the words, unaligned."""

    @property
    def data_start(self) -> int:
        return self.control_bytes


class DataTooEarly(ControlLayout):
    """Rounds the size of the words down: the last of them lie in the data."""

    @property
    def data_start(self) -> int:
        return rounds_down(self.control_bytes, ALIGNMENT)


def one_limit_for_all(word_bytes: int) -> int:
    """Allows twice as many generations as R has room for in 4 bytes."""
    return 2**62 if word_bytes == 8 else 2**32 - 1


def half_of_the_limit(word_bytes: int) -> int:
    """Allows half of the generations that R has room for in 4 bytes."""
    return 2**62 if word_bytes == 8 else 2**30 - 1


def retires_with_the_next(generation: int) -> int:
    """Retires lease n with the word of the live lease n + 1."""
    return 2 * generation + 2


class GenerationsInAMask(Slots):
    """Counts in 16 bits: after 65535 comes 0, and an old handle is valid again."""

    def lease(self) -> tuple[int, int]:
        slot, generation = super().lease()
        self._generations[slot] = generation % 2**16
        return slot, self._generations[slot]


class OneBeyondTheLimit(Slots):
    """Lets a slot have one lease more than its limit."""

    def __init__(self, count: int, limit: int, issued: Sequence[int] = ()) -> None:
        super().__init__(count, limit + 1, issued)


class RangeBeforeSlot(LeaseBook):
    """Takes the range before it looks for a slot: a refusal at the limit costs the range."""

    def take(self, nbytes: int) -> Holding | None:
        if not self._slots.any_free:
            self._ranges.allocate(nbytes)
        return super().take(nbytes)


class EntersTwice(RankTable):
    """Compares with "smaller" where "smaller or equal" is needed: the same lease is entered again."""

    def enter(self, lease: PoolLease) -> bool:
        return self._last.get(lease.slot, 0) == lease.generation or super().enter(lease)


class LastWhenEntered(RankTable):
    """Calls every lease the last that is not newer than it: a late reader's acknowledgement makes the word fall."""

    def is_last(self, lease: PoolLease) -> bool:
        return self._last.get(lease.slot, 0) >= lease.generation


class StartsWithNothing(RankTable):
    """Does not look at the words of its rank."""

    def start(self, words: object) -> None:
        self.started = True


def any_rank_speaks(speakers: Speakers, consumers: int) -> bool:
    """Does not ask whether a speaker is spoken for."""
    return not speakers or (len(speakers) == consumers and max(speakers) < consumers)


def the_speaker_alone(speaker: int, speakers: Speakers) -> frozenset[int]:
    """Lets a rank always speak for itself and for nobody else."""
    return frozenset((speaker,)) if not speakers or speakers[speaker] == speaker else frozenset()
