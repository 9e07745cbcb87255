"""Where the control words of a pool lie, and where its data begins (CTL-1, CTL-2)."""

from __future__ import annotations

from dataclasses import dataclass

ALIGNMENT = 256
"""Bytes. Every lease starts and ends on a multiple (RNG-2): what CUDA allocations are aligned to."""


def align_up(value: int, alignment: int) -> int:
    """The smallest multiple of `alignment` that is not below `value`; both in bytes, `alignment` positive."""
    # Integer arithmetic and no masks: symbolic execution confirms this form over all paths.
    return (value + alignment - 1) // alignment * alignment


@dataclass(frozen=True, slots=True)
class ControlLayout:
    """Addresses of R and A[r] for `slots` slots and `consumers` ranks, words of `word_bytes` (4 or 8) bytes.

    One slot's words lie side by side: R, then A[0] ... A[consumers - 1]. Offsets are from the start of the pool.
    """

    slots: int
    consumers: int
    word_bytes: int = 4

    @property
    def words_per_slot(self) -> int:
        """R and one acknowledgement word a rank."""
        return 1 + self.consumers

    @property
    def control_bytes(self) -> int:
        """Bytes that the words of all slots take, before rounding."""
        return self.slots * self.words_per_slot * self.word_bytes

    @property
    def data_start(self) -> int:
        """Offset of the first byte that a lease may hold."""
        return align_up(self.control_bytes, ALIGNMENT)

    def ready_offset(self, slot: int) -> int:
        """Offset of R(slot), the producer's word."""
        # CTL-2: injective because a slot's stride is exactly the bytes of its own words.
        return slot * self.words_per_slot * self.word_bytes

    def ack_offset(self, slot: int, rank: int) -> int:
        """Offset of A[rank] of `slot`, written by that rank only (CTL-4)."""
        return self.ready_offset(slot) + (1 + rank) * self.word_bytes


def live_word(generation: int) -> int:
    """What R holds while lease `generation` may be read."""
    return 2 * generation


def retired_word(generation: int) -> int:
    """What R holds once lease `generation` may not be read any more."""
    return 2 * generation + 1


def largest_generation(word_bytes: int) -> int:
    """The last generation whose R values are unique: 2^31-1 for 4-byte words, 2^62 for 8-byte words.

    R is compared for equality as an unsigned pattern, so 2n+1 must fit: 2*(2^31-1)+1 = 2^32-1 (GEN-3).
    """
    return 2**31 - 1 if word_bytes == 4 else 2**62
