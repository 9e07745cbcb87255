"""The published sglang pool's allocator as a baseline for `vmmref bench`.

vmmref bench --baseline examples.subjects.sglang_bench:allocator
"""

from __future__ import annotations

from typing import Any

from examples.subjects.sglang_boundary import load


class SglangAllocator:
    """Allocate and release under the pool's own lock, as the package does; merging waits for its recycle pass."""

    def __init__(self, slots: int, data_size: int) -> None:
        control = slots * 2 * 4
        self._pool = load().make_pool(control + 256 + data_size, 3600.0, 1, slots)._pool

    def allocate(self, nbytes: int) -> Any:
        """A lease, or None when full."""
        pool = self._pool
        with pool._lock:
            return pool._allocate_locked(nbytes)

    def release(self, lease: Any) -> None:
        """Give it back, and merge as a pass does, without which the ranges would fall apart at the second lease."""
        pool = self._pool
        with pool._lock:
            pool._release_locked(lease)
            pool._merge_ranges_locked()


def allocator(slots: int, data_size: int) -> SglangAllocator:
    """The factory that `vmmref bench` calls."""
    return SglangAllocator(slots, data_size)
