"""Broken lives: what a constructor accepts and leaves behind, what a failed or closed pool still does."""

from __future__ import annotations

from typing import Any

from vmmref.conformance.faulty.broken import broken
from vmmref.driver import calls
from vmmref.groups import Groups
from vmmref.layout import ALIGNMENT
from vmmref.life import Life, State
from vmmref.pool import VmmMemoryPool
from vmmref.proxy import TensorProxy


@broken("CTL-5")
class FewerSlotsThanAsked(VmmMemoryPool):
    """Takes as many slots as there is room for, and does not say that they are fewer than asked."""

    def __init__(
        self,
        memory_size: int,
        device: str,
        consumer_count: int = 1,
        recycle_interval: float | None = 0.05,
        max_inflight_slices: int = 4096,
        *arguments: Any,
        **options: Any,
    ) -> None:
        room = (memory_size - 2 * ALIGNMENT) // (8 * (1 + consumer_count))
        slots = min(max_inflight_slices, room)
        super().__init__(memory_size, device, consumer_count, recycle_interval, slots, *arguments, **options)


@broken("LIFE-1")
class ZeroMeansNever(VmmMemoryPool):
    """Takes a recycle interval of zero for none: nothing is recycled, and nobody was told."""

    def __init__(
        self,
        memory_size: int,
        device: str,
        consumer_count: int = 1,
        recycle_interval: float | None = 0.05,
        *arguments: Any,
        **options: Any,
    ) -> None:
        super().__init__(memory_size, device, consumer_count, recycle_interval or None, *arguments, **options)


@broken("PUB-5")
class IgnoresTheBacking(VmmMemoryPool):
    """Takes memory of its own whatever it was given: the caller believes that its tensor is used."""

    def _map_memory(self, memory_size: int, byte_tensor: Any) -> int:
        return super()._map_memory(memory_size, None)


@broken("LIFE-4")
class KeepsItsProbe(VmmMemoryPool):
    """Tries an allocation before it makes its own, and gives it back only if everything after it goes well."""

    def _map_memory(self, memory_size: int, byte_tensor: Any) -> int:
        properties = calls.allocation_properties(self._device.ordinal, self.handle_type.driver_type)
        probe = calls.create_memory(calls.granularity(properties), properties)
        size = super()._map_memory(memory_size, byte_tensor)
        calls.release_memory(probe)
        return size


@broken("LIFE-2")
class FullWhenClosed(VmmMemoryPool):
    """Answers "full" after its end: callers fall back to host copies for ever and report nothing."""

    def wrap_tensor(self, tensor: Any, borrowable: bool = False, groups: Groups | None = None) -> TensorProxy | None:
        return None if self.life == "closed" else super().wrap_tensor(tensor, borrowable, groups)


@broken("LIFE-3")
class GoesOnAfterFailure(Life):
    """Lets callers in after a failure that left the device in an unknown state: ranges are reused that it may write."""

    def _refuse(self) -> None:
        if self.state is not State.OPEN:
            super()._refuse()
