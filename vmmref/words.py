"""Small pieces of page-locked host memory: what a control word is copied into, or from, without stopping a stream."""

from __future__ import annotations

import ctypes

from vmmref.driver import calls
from vmmref.unwind import Unwind

_CELL_BYTES = 8
"""The larger of the two word sizes, so that every cell is naturally aligned and never torn."""
_CELLS_PER_BLOCK = 512
"""One page of host memory."""


class PinnedCells:
    """A store of page-locked words. Not thread-safe; the owner's lock is held around every call."""

    __slots__ = ("_blocks", "_free", "_type")

    def __init__(self, word_bytes: int) -> None:
        self._type = ctypes.c_uint32 if word_bytes == 4 else ctypes.c_uint64
        self._blocks: list[int] = []
        self._free: list[int] = []

    def take(self) -> int:
        """Address of a cell that nobody uses."""
        if not self._free:
            block = calls.allocate_pinned(_CELL_BYTES * _CELLS_PER_BLOCK)
            self._blocks.append(block)
            self._free.extend(range(block, block + _CELL_BYTES * _CELLS_PER_BLOCK, _CELL_BYTES))
        return self._free.pop()

    def give(self, cell: int) -> None:
        """Take a cell back; no queued copy uses it any more."""
        self._free.append(cell)

    def read(self, cell: int) -> int:
        """The unsigned word in a cell."""
        return self._type.from_address(cell).value

    def write(self, cell: int, value: int) -> None:
        """Store an unsigned word into a cell."""
        self._type.from_address(cell).value = value

    def close(self) -> None:
        """Give every block back."""
        self._free.clear()
        unwind = Unwind()
        while self._blocks:
            block = self._blocks.pop()
            unwind.push(lambda block=block: calls.free_pinned(block))  # type: ignore[misc]
        unwind.run()
