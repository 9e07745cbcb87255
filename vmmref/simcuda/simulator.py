"""What a test can ask of the simulated driver: stepping, faults, observation."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import SupportsInt

from vmmref.simcuda.native import BLOCKED, EMPTY, INVALID, RAN, Native, Option, PieceInfo, UsageCounts

CUDA_SUCCESS = 0
QUARANTINE_BYTES = 16 << 30
"""Addresses kept by quarantine=True: far more than a test reserves, far less than the address space."""

_MODES = ("threads", "stepping")
_NO_LIMIT = 2**64 - 1
_LONGEST_VIOLATION = 512


class SimulatorError(RuntimeError):
    """The simulated driver refused a request of its user; the message says why."""


class PieceKind(StrEnum):
    """What a queued piece of work does."""

    COPY = "copy"
    MEMSET = "memset"
    WRITE = "write"
    WAIT = "wait"
    EVENT_RECORD = "event record"
    EVENT_WAIT = "event wait"
    HOST_FUNCTION = "host function"


_KINDS = (None, *PieceKind)


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of work of a stream.

    ``order`` numbers pieces over all streams in the order of the calls. ``destination`` is the address written (copy,
    memset, write) or watched (wait), ``source`` the address read by a copy, both 0 where there is none. ``result`` is
    the CUresult of a piece that has run: 0, or why it had no effect.
    """

    kind: PieceKind
    destination: int
    source: int
    nbytes: int
    value: int
    stream: int
    order: int
    result: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """The oldest piece of a stream cannot run yet: a wait that is not satisfied, an event that has not come."""

    piece: Piece


@dataclass(frozen=True, slots=True)
class Usage:
    """What exists in this process.

    ``handles`` counts references (create, import and retain add one, release drops one). ``descriptors`` are open file
    descriptors of simulated memory, exported, duplicated or received. ``allocations`` are those of cuMemAlloc.
    ``bytes`` is the memory that handles and mappings keep, imported memory too.
    """

    handles: int
    mappings: int
    reservations: int
    descriptors: int
    streams: int
    events: int
    pinned: int
    allocations: int
    bytes: int

    @property
    def is_empty(self) -> bool:
        """Nothing is left."""
        return not any(getattr(self, field.name) for field in fields(self))


@lru_cache(maxsize=256)
def _buffer_of(size: int) -> type[ctypes.Array[ctypes.c_char]]:
    """The type of a buffer: making one anew for every look costs more than the look."""
    return ctypes.c_char * size


class Simulator:
    """The simulated driver of this process. Get it from `vmmref.simcuda.load` or `loaded`.

    Streams are the integers of their CUstream handles, results the integers of CUresult (enums are accepted).
    """

    def __init__(self, native: Native, library: Path) -> None:
        self._native = native
        self.library = library
        """The file that is loaded."""
        self._step = native.step
        self._step_memory = native.step_memory
        self._read = native.read

    # ---- Settings ----

    def set_mode(self, mode: str) -> None:
        """Streams created from now on have a thread ("threads") or run only when told ("stepping").

        Raises: ValueError for another mode.
        """
        self.configure({Option.MODE: mode_number(mode)})

    @property
    def mode(self) -> str:
        """The mode for new streams."""
        return _MODES[self._native.setting(Option.MODE)]

    @property
    def settings(self) -> dict[Option, int]:
        """Every setting as the library's number."""
        return {option: self._native.setting(option) for option in Option}

    def configure(self, wanted: Mapping[Option, int]) -> None:
        """Change settings, all of them or none.

        Raises: SimulatorError when a value is out of range or cannot change in the present state.
        """
        before = self.settings
        for option, value in wanted.items():
            if self._native.configure(option, value) == CUDA_SUCCESS:
                continue
            reason = self._last_error()
            for changed, old in before.items():
                self._native.configure(changed, old)
            raise SimulatorError(f"{option.name.lower()} = {value}: {reason}")

    def _last_error(self) -> str:
        text = self._native.last_error()
        return text.decode() if text else "no reason given"

    # ---- Stepping ----

    def step(self, stream: int) -> Piece | Blocked | None:
        """Run the oldest piece of a stepped stream: the piece that ran, `Blocked`, or None when the queue is empty.

        Raises: SimulatorError when the stream is unknown or has a thread.
        """
        info = PieceInfo()
        return self._outcome(self._step(stream, info), info, stream)

    def step_raw(self, stream: int) -> int:
        """As `step`, without the piece: EMPTY 0, RAN 1, BLOCKED 2, INVALID 3."""
        outcome: int = self._step(stream, None)
        return outcome

    def step_memory(self, stream: int) -> Piece | Blocked | None:
        """Run one memory piece (copy, memset, write, satisfied wait) and the bookkeeping around it.

        Event records, satisfied event waits and host functions before it run first, those right behind it after it.
        Answers as `step` for the memory piece; None when the queue holds none (its bookkeeping has then run).

        Raises: SimulatorError when the stream is unknown or has a thread.
        """
        info = PieceInfo()
        return self._outcome(self._step_memory(stream, info), info, stream)

    def step_memory_raw(self, stream: int) -> int:
        """As `step_memory`, without the piece: EMPTY 0, RAN 1, BLOCKED 2, INVALID 3."""
        outcome: int = self._step_memory(stream, None)
        return outcome

    def step_submission(self) -> Piece | Blocked | None:
        """Run the oldest piece of all stepped streams, in the order of the calls; blocked streams are passed over.

        `Blocked` (of some stream) when pieces are queued and none can run, None when none is queued.
        """
        info = PieceInfo()
        return self._outcome(self._native.step_submission(info), info, 0)

    def peek(self, stream: int) -> Piece | Blocked | None:
        """The oldest piece without running it; `Blocked` when it could not run now."""
        info = PieceInfo()
        return self._outcome(self._native.peek(stream, info), info, stream)

    @staticmethod
    def _outcome(outcome: int, info: PieceInfo, stream: int) -> Piece | Blocked | None:
        if outcome == EMPTY:
            return None
        if outcome == INVALID:
            raise SimulatorError(f"stream {stream:#x} is unknown or not a stepped stream")
        piece = Piece(
            kind=_KINDS[info.kind] or PieceKind.COPY,
            destination=info.destination,
            source=info.source,
            nbytes=info.bytes,
            value=info.value,
            stream=info.stream,
            order=info.order,
            result=info.result,
        )
        return piece if outcome == RAN else Blocked(piece)

    def pending(self, stream: int) -> int:
        """Pieces queued on a stream.

        Raises: SimulatorError when the stream is unknown.
        """
        return self._left(self._native.pending(stream), stream)

    def drain(self, stream: int) -> int:
        """Run all that can run of a stepped stream, with the streams it waits for; the pieces left (blocked).

        Raises: SimulatorError when the stream is unknown or has a thread.
        """
        return self._left(self._native.drain(stream), stream)

    def drain_all(self) -> int:
        """Run all that can run of all stepped streams, in the order of the calls; the pieces left (blocked)."""
        return self._left(self._native.drain_all(), 0)

    @staticmethod
    def _left(pieces: int, stream: int) -> int:
        if pieces < 0:
            raise SimulatorError(f"stream {stream:#x} is unknown or not a stepped stream")
        return pieces

    # ---- Faults ----

    def fail_call(self, name: str, k: int, result: SupportsInt) -> None:
        """The k-th call of that name from now on (1 is the next) answers ``result`` and has no effect.

        Raises: SimulatorError when no such call is carried out, k is below 1 or the result is CUDA_SUCCESS.
        """
        self._arm(self._native.fail_call(name.encode(), _occasion(k), int(result)))

    def fail_any(self, k: int, result: SupportsInt) -> None:
        """The k-th driver call from now on, whatever its name, answers ``result`` and has no effect.

        Raises: SimulatorError when k is below 1 or the result is CUDA_SUCCESS.
        """
        self._arm(self._native.fail_call(None, _occasion(k), int(result)))

    def fail_piece(self, k: int, result: SupportsInt, sticky: bool = False) -> None:
        """The k-th memory piece to run from now on (copy, memset, write, satisfied wait) has no effect and fails.

        The next synchronising call of its stream reports ``result``, once; with ``sticky`` the context is lost, as
        after a fault of the device: every later call that uses it answers ``result``.

        Raises: SimulatorError when k is below 1 or the result is CUDA_SUCCESS.
        """
        self._arm(self._native.fail_piece(_occasion(k), int(result), int(sticky)))

    def limit_memory(self, limit_bytes: int | None) -> None:
        """Creating memory beyond this many bytes over all devices answers CUDA_ERROR_OUT_OF_MEMORY; None: no limit."""
        self._arm(self._native.limit_memory(_NO_LIMIT if limit_bytes is None else limit_bytes))

    def _arm(self, result: int) -> None:
        if result != CUDA_SUCCESS:
            raise SimulatorError(self._last_error())

    def clear_faults(self) -> None:
        """Disarm every fault and lift the memory limit."""
        self._native.clear_faults()

    def armed(self) -> int:
        """Faults armed that have not fired."""
        count: int = self._native.armed()
        return count

    def call_count(self, name: str | None = None) -> int:
        """Driver calls since the last reset: of one name, or all.

        The look-up of functions and of error names is not counted.

        Raises: SimulatorError when no call of that name is carried out.
        """
        count: int = self._native.call_count(None if name is None else name.encode())
        if count < 0:
            raise SimulatorError(f"the simulator carries out no call named {name}")
        return count

    def piece_count(self) -> int:
        """Memory pieces run since the last reset."""
        count: int = self._native.piece_count()
        return count

    # ---- Observation ----

    def usage(self) -> Usage:
        """What exists in this process now."""
        counts = UsageCounts()
        self._native.usage(counts)
        return Usage(
            counts.handles,
            counts.mappings,
            counts.reservations,
            counts.descriptors,
            counts.streams,
            counts.events,
            counts.pinned,
            counts.allocations,
            counts.bytes,
        )

    def violations(self) -> tuple[str, ...]:
        """What the program did and the real driver leaves undefined, and waits that would never end; oldest first."""
        text = ctypes.create_string_buffer(_LONGEST_VIOLATION)
        texts = []
        for index in range(self._native.violation_count()):
            self._native.violation(index, text, len(text))
            texts.append(text.value.decode(errors="replace"))
        return tuple(texts)

    def clear_violations(self) -> None:
        """Forget the violations recorded so far."""
        self._native.clear_violations()

    def read_bytes(self, address: int, n: int) -> bytes:
        """Device memory as it is now, without queueing anything and without effect.

        Raises: SimulatorError when a byte of it is not mapped.
        """
        buffer = _buffer_of(n)()
        if self._read(address, buffer, n) != CUDA_SUCCESS:
            raise SimulatorError(self._last_error())
        return buffer.raw

    def read_word(self, address: int, size: int = 4) -> int:
        """A word of 4 or 8 bytes of device memory, read whole.

        Raises: ValueError for another size, SimulatorError when it is not mapped.
        """
        if size not in (4, 8):
            raise ValueError(f"a word has 4 or 8 bytes, not {size}")
        word = ctypes.c_uint64(0)
        if self._read(address, ctypes.byref(word), size) != CUDA_SUCCESS:
            raise SimulatorError(self._last_error())
        return word.value

    def reset(self) -> None:
        """Destroy everything but the retained primary contexts: see vmmsim_reset in vmmsim.h.

        Raises: SimulatorError from a host function or a forked child.
        """
        if self._native.reset() != CUDA_SUCCESS:
            raise SimulatorError(self._last_error())


def mode_number(mode: str) -> int:
    """The library's number of a mode.

    Raises: ValueError when it is neither "threads" nor "stepping".
    """
    if mode not in _MODES:
        raise ValueError(f"the mode is one of {', '.join(_MODES)}, not {mode!r}")
    return _MODES.index(mode)


def _occasion(k: int) -> int:
    # The library counts unsigned; a negative number must not become a large one.
    return max(k, 0)


__all__ = [
    "BLOCKED",
    "EMPTY",
    "INVALID",
    "RAN",
    "Blocked",
    "Piece",
    "PieceKind",
    "Simulator",
    "SimulatorError",
    "Usage",
    "mode_number",
]
