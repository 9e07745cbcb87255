"""The arguments of a pool, each checked before anything is taken; every refusal is one sentence with the value."""

from __future__ import annotations

from collections.abc import Sequence

from vmmref.errors import ArgumentError
from vmmref.handles import HANDLE_TYPES
from vmmref.layout import ALIGNMENT, ControlLayout, largest_generation
from vmmref_models.reasons import Reason

MOST_MEMORY_BYTES = 2**48
"""The address space of the devices we know; offsets are packed into so many bits (`vmmref.ranges`)."""
MOST_CONSUMERS = 2**16 - 1
MOST_SLOTS = 2**32 - 1
"""What the wire form of a proxy has room for."""
LONGEST_NAME_BYTES = 255


def refused(rule: str, message: str, reason: Reason = Reason.BAD_ARGUMENT) -> ArgumentError:
    """The error for an argument."""
    return ArgumentError(reason, rule, message)


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0


def check_counts(memory_size: int, consumer_count: int, max_inflight_slices: int) -> None:
    """LIFE-1: sizes and counts are positive integers, and not larger than anybody can address."""
    for name, value, most in (
        ("memory_size", memory_size, MOST_MEMORY_BYTES),
        ("consumer_count", consumer_count, MOST_CONSUMERS),
        ("max_inflight_slices", max_inflight_slices, MOST_SLOTS),
    ):
        if not _is_count(value):
            raise refused("LIFE-1", f"{name} must be positive, got {value!r}")
        if value > most:
            raise refused("LIFE-1", f"{name} must be at most {most}, got {value!r}")


def check_names(transport_name: object, handle_type: object) -> None:
    """LIFE-1 for texts."""
    if not isinstance(transport_name, str) or not 0 < len(transport_name.encode()) <= LONGEST_NAME_BYTES:
        raise refused(
            "LIFE-1", f"transport_name must be a text of 1 to {LONGEST_NAME_BYTES} bytes, got {transport_name!r}"
        )
    if handle_type not in HANDLE_TYPES:
        raise refused("LIFE-1", f'handle_type must be "auto", "posix_fd" or "fabric", got {handle_type!r}')


def check_seconds(**seconds: float | None) -> None:
    """LIFE-1 for times; None means that there is none."""
    for name, value in seconds.items():
        if value is not None and not (isinstance(value, int | float) and 0 < value < float("inf")):
            raise refused("LIFE-1", f"{name} must be positive, got {value!r}")


def check_generations(word_bytes: int, limit: int | None, issued: Sequence[int], slots: int) -> int:
    """GEN-3: the limit in force; refused where the words could not tell that many generations apart."""
    if word_bytes not in (4, 8):
        raise refused("CTL-1", f"word_bytes must be 4 or 8, got {word_bytes!r}")
    largest = largest_generation(word_bytes)
    limit = largest if limit is None else limit
    if not _is_count(limit) or limit > largest:
        raise refused(
            "GEN-3", f"generation_limit must be in [1, {largest}] with {word_bytes}-byte words, got {limit!r}"
        )
    wrong = not isinstance(issued, Sequence) or len(issued) not in (0, slots)
    if wrong or any(type(used) is not int or not 0 <= used <= limit for used in issued):
        raise refused("GEN-3", f"issued_generations must be {slots} numbers in [0, {limit}], got {issued!r}")
    return limit


def check_data(memory_size: int, data_size: int | None, layout: ControlLayout, transport_name: str) -> int:
    """End of the data area; refused where no room is left behind the control words (CTL-5)."""
    room = (memory_size - layout.data_start) // ALIGNMENT * ALIGNMENT
    if room <= 0:
        message = (
            f"{transport_name} pool is too small after control metadata: "
            f"pool={memory_size}, control={layout.data_start}"
        )
        raise refused("CTL-5", message, Reason.POOL_TOO_SMALL)
    if data_size is None:
        return layout.data_start + room
    if not _is_count(data_size) or data_size % ALIGNMENT or data_size > room:
        raise refused(
            "RNG-1", f"data_size must be a positive multiple of {ALIGNMENT}, at most {room}, got {data_size!r}"
        )
    return layout.data_start + data_size
