"""The control functions of the simulated driver, as ctypes sees them (src/vmmsim.h documents them)."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from enum import IntEnum
from pathlib import Path
from typing import Any

EMPTY, RAN, BLOCKED, INVALID = range(4)
"""Answers of the raw step functions."""


class Option(IntEnum):
    """Settings, numbered as in vmmsim.h."""

    MODE = 0
    DEVICES = 1
    MEMORY_BYTES = 2
    GRANULARITY = 3
    DRIVER_VERSION = 4
    STRICT = 5
    QUARANTINE_BYTES = 6
    TIME_LIMIT_MS = 7
    HANDLE_TYPES = 8
    WAIT_ON_IMPORTED = 9


class PieceInfo(ctypes.Structure):
    """struct vmmsim_piece."""

    _fields_ = (
        ("kind", c_uint32),
        ("result", ctypes.c_int32),
        ("stream", c_uint64),
        ("order", c_uint64),
        ("destination", c_uint64),
        ("source", c_uint64),
        ("bytes", c_uint64),
        ("value", c_uint64),
    )


class UsageCounts(ctypes.Structure):
    """struct vmmsim_usage_counts."""

    _fields_ = tuple(
        (name, c_uint64)
        for name in (
            "handles",
            "mappings",
            "reservations",
            "descriptors",
            "streams",
            "events",
            "pinned",
            "allocations",
            "bytes",
        )
    )


_INFO = ctypes.POINTER(PieceInfo)

# Calls that may wait let other Python threads run; short ones keep the interpreter, which is several times faster.
_WAITING: dict[str, tuple[Any, list[Any]]] = {
    "vmmsim_configure": (c_int, [c_int, c_uint64]),
    "vmmsim_setting": (c_uint64, [c_int]),
    "vmmsim_last_error": (c_char_p, []),
    "vmmsim_drain": (c_int64, [c_uint64]),
    "vmmsim_drain_all": (c_int64, []),
    "vmmsim_usage": (None, [ctypes.POINTER(UsageCounts)]),
    "vmmsim_reset": (c_int, []),
}
_SHORT: dict[str, tuple[Any, list[Any]]] = {
    "vmmsim_step": (c_int, [c_uint64, _INFO]),
    "vmmsim_step_memory": (c_int, [c_uint64, _INFO]),
    "vmmsim_step_submission": (c_int, [_INFO]),
    "vmmsim_peek": (c_int, [c_uint64, _INFO]),
    "vmmsim_pending": (c_int64, [c_uint64]),
    "vmmsim_fail_call": (c_int, [c_char_p, c_uint64, c_int]),
    "vmmsim_fail_piece": (c_int, [c_uint64, c_int, c_int]),
    "vmmsim_limit_memory": (c_int, [c_uint64]),
    "vmmsim_clear_faults": (None, []),
    "vmmsim_armed": (c_uint64, []),
    "vmmsim_call_count": (c_int64, [c_char_p]),
    "vmmsim_piece_count": (c_uint64, []),
    "vmmsim_violation_count": (c_size_t, []),
    "vmmsim_violation": (c_size_t, [c_size_t, c_char_p, c_size_t]),
    "vmmsim_clear_violations": (None, []),
    "vmmsim_read": (c_int, [c_uint64, c_void_p, c_size_t]),
}


class Native:
    """The loaded library: one attribute per control function, without the prefix vmmsim_."""

    def __init__(self, library: str | Path) -> None:
        """Load the library (a path, or the name of one that the process has already).

        Raises: OSError when it cannot be loaded, AttributeError when it is not the simulator.
        """
        for loader, functions in ((ctypes.CDLL, _WAITING), (ctypes.PyDLL, _SHORT)):
            loaded = loader(str(library))
            for name, (answer, arguments) in functions.items():
                function = getattr(loaded, name)
                function.restype = answer
                function.argtypes = arguments
                setattr(self, name.removeprefix("vmmsim_"), function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the simulated driver has no control function vmmsim_{name}")
