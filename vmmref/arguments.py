"""The arguments of a pool, each checked before anything is taken; every refusal is one sentence with the value."""

from __future__ import annotations

import operator
import threading
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


def whole_number(value: object) -> int | None:
    """An integer of any kind that has an exact one (numpy's too, no bool), or None."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    return operator.index(value)


def _count(rule: str, name: str, value: object, most: int) -> int:
    number = whole_number(value)
    if number is None or number <= 0:
        raise refused(rule, f"{name} must be positive, a whole number, got {value!r}")
    if number > most:
        raise refused(rule, f"{name} must be at most {most}, got {value!r}")
    return number


def check_counts(memory_size: object, consumer_count: object, max_inflight_slices: object) -> tuple[int, int, int]:
    """LIFE-1: sizes and counts as positive integers, not larger than anybody can address."""
    return (
        _count("LIFE-1", "memory_size", memory_size, MOST_MEMORY_BYTES),
        _count("LIFE-1", "consumer_count", consumer_count, MOST_CONSUMERS),
        _count("LIFE-1", "max_inflight_slices", max_inflight_slices, MOST_SLOTS),
    )


def check_names(transport_name: object, handle_type: object) -> None:
    """LIFE-1 for texts."""
    named = isinstance(transport_name, str) and transport_name.isprintable()
    if not named or not 0 < len(str(transport_name).encode()) <= LONGEST_NAME_BYTES:
        raise refused(
            "LIFE-1", f"transport_name must be printable, of 1 to {LONGEST_NAME_BYTES} bytes, got {transport_name!r}"
        )
    if handle_type not in HANDLE_TYPES:
        raise refused("LIFE-1", f'handle_type must be "auto", "posix_fd" or "fabric", got {handle_type!r}')


def check_seconds(name: str, value: object, least: float | None = None) -> None:
    """LIFE-1 for a time: a positive number (or from `least` on) that a wait can be given."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not value <= threading.TIMEOUT_MAX or (value <= 0 if least is None else value < least):  # type: ignore[operator]
        limit = f"positive, at most {threading.TIMEOUT_MAX:.0f} seconds"
        raise refused("LIFE-1", f"{name} must be {limit}, got {value!r}")


def check_clock(clock: object) -> None:
    """LIFE-1 for the clock."""
    if not callable(clock):
        raise refused("LIFE-1", f"clock must be callable and answer seconds, got {clock!r}")


def check_generations(word_bytes: object, limit: object, issued: object, slots: int) -> int:
    """GEN-3: the limit in force; refused where the words could not tell that many generations apart."""
    if word_bytes not in (4, 8):
        raise refused("CTL-1", f"word_bytes must be 4 or 8, got {word_bytes!r}")
    largest = largest_generation(4 if word_bytes == 4 else 8)
    last = largest if limit is None else whole_number(limit)
    if last is None or not 0 < last <= largest:
        raise refused(
            "GEN-3", f"generation_limit must be in [1, {largest}] with {word_bytes}-byte words, got {limit!r}"
        )
    known = isinstance(issued, Sequence) and len(issued) in (0, slots)
    if not known or any(type(used) is not int or not 0 <= used <= last for used in issued):  # type: ignore[attr-defined]
        raise refused("GEN-3", f"issued_generations must be {slots} numbers in [0, {last}], got {issued!r}")
    return last


def check_data(memory_size: int, data_size: object, layout: ControlLayout, transport_name: str) -> int:
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
    size = whole_number(data_size)
    if size is None or size <= 0 or size % ALIGNMENT or size > room:
        raise refused(
            "RNG-1", f"data_size must be a positive multiple of {ALIGNMENT}, at most {room}, got {data_size!r}"
        )
    return layout.data_start + size
