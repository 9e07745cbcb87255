"""Contracts of rounding, of packs and of groups."""

from __future__ import annotations

from vmmref.groups import are_speakers, awaited_ranks, group_of
from vmmref.layout import align_up
from vmmref.packed import PackedTensorProxy

ELEMENT_SIZES = (1, 2, 4, 8, 16)
"""Bytes: of every dtype that may travel."""


def rounding_up_finds_the_next_multiple(value: int, alignment: int) -> None:
    """RNG-2: the smallest multiple that is not below the value."""
    assert value >= 0
    assert alignment > 0
    rounded = align_up(value, alignment)
    assert rounded % alignment == 0
    assert value <= rounded < value + alignment


def tensors_of_a_pack_are_aligned_and_apart(nbytes: int, element_bytes: int, second: int, second_element: int) -> None:
    """PACK-2: each tensor begins on a multiple of its element size behind the one before, and ends inside."""
    assert nbytes > 0
    assert second > 0
    assert element_bytes in ELEMENT_SIZES
    assert second_element in ELEMENT_SIZES
    places, end = PackedTensorProxy.offsets([(nbytes, element_bytes), (second, second_element)])
    assert places[0] == 0
    assert places[1] % second_element == 0
    assert nbytes <= places[1] < nbytes + second_element
    assert end == places[1] + second


def a_speaker_speaks_for_itself(first: int, second: int, third: int) -> None:
    """ACK-4: numbers from outside pass as speakers of three ranks only where they are groups, in their one form."""
    assert first >= 0
    assert second >= 0
    assert third >= 0
    speakers = (first, second, third)
    ranks = range(3)
    is_grouping = all(speaker < 3 and speakers[speaker] == speaker for speaker in speakers)
    each_alone = all(speakers[rank] == rank for rank in ranks)
    assert are_speakers(speakers, 3) == (is_grouping and not each_alone)


def every_rank_is_in_one_group(first: int, second: int, third: int) -> None:
    """ACK-4: three ranks' groups are disjoint and have all ranks, and a lease waits for their speakers."""
    assert 0 <= first < 3
    assert 0 <= second < 3
    assert 0 <= third < 3
    speakers = (first, second, third)
    groups = [group_of(speaker, speakers) for speaker in range(3)]
    for rank in range(3):
        assert [rank in group for group in groups].count(True) == 1
    if are_speakers(speakers, 3):
        assert list(awaited_ranks(speakers)) == [speaker for speaker in range(3) if groups[speaker]]
