"""Addresses of the control words, over every small layout and some large ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmmref.layout import ALIGNMENT, ControlLayout, align_up, largest_generation, live_word, retired_word

layouts = st.builds(ControlLayout, st.integers(1, 64), st.integers(1, 16), st.sampled_from([4, 8]))


def addresses(layout: ControlLayout) -> list[int]:
    return [
        address
        for slot in range(layout.slots)
        for address in (
            layout.ready_offset(slot),
            *(layout.ack_offset(slot, rank) for rank in range(layout.consumers)),
        )
    ]


@pytest.mark.rule("CTL-2")
@given(layouts)
def test_ctl_2_no_two_words_share_a_byte(layout: ControlLayout) -> None:
    """
    Every control word has bytes of its own.

    Given: any layout.
    When: the addresses of all its words are listed.
    Then: they are whole words one behind the other, without gap or overlap.
    """
    assert sorted(addresses(layout)) == list(range(0, layout.control_bytes, layout.word_bytes))


@pytest.mark.rule("CTL-1")
@given(layouts)
def test_ctl_1_data_begins_behind_the_last_word(layout: ControlLayout) -> None:
    """
    Control words and data do not overlap, and the data begins on 256.

    Given: any layout.
    When: the end of its last word is compared with the start of the data.
    Then: the data begins at the next multiple of 256 bytes.
    """
    end = max(addresses(layout)) + layout.word_bytes
    assert layout.data_start % ALIGNMENT == 0
    assert 0 <= layout.data_start - end < ALIGNMENT


def test_one_slot_lies_together() -> None:
    layout = ControlLayout(slots=3, consumers=2, word_bytes=4)
    assert addresses(layout) == [0, 4, 8, 12, 16, 20, 24, 28, 32]
    assert (layout.control_bytes, layout.data_start) == (36, 256)


@given(st.integers(0, 2**60), st.integers(1, 2**30))
def test_align_up(value: int, alignment: int) -> None:
    aligned = align_up(value, alignment)
    assert aligned % alignment == 0
    assert 0 <= aligned - value < alignment


@pytest.mark.parametrize("word_bytes", [4, 8])
def test_every_value_of_r_fits_its_word(word_bytes: int) -> None:
    last = largest_generation(word_bytes)
    assert retired_word(last) == live_word(last) + 1 < 2 ** (8 * word_bytes)
