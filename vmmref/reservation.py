"""A reserved span of device address space, and the allocations mapped into it."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from vmmref.driver import calls
from vmmref.driver.device import Device
from vmmref.errors import ArgumentError, ReservationError
from vmmref.layout import align_up
from vmmref.unwind import Unwind, note_failure
from vmmref_models.reasons import Reason


class VmmReservation:
    """`size` bytes of address space on one device, rounded up to the granularity of memory exported as `handle_type`.

    `map` makes physical memory and maps it, `map_existing` maps an allocation that exists (an import). `close` unmaps
    everything and gives address space and handles back, each exactly once (HND-1); the caller has seen to it that no
    queued work uses them any more. Raises ArgumentError for bad sizes and offsets, ReservationError after `close`,
    DriverError where the driver refuses; a failing call leaves nothing taken.
    """

    def __init__(self, device: Device, size: int, handle_type: Any = calls.HANDLE_POSIX_FD) -> None:
        if not isinstance(device, Device):
            raise ArgumentError(Reason.BAD_ARGUMENT, "HND-3", f"a Device is needed, got {device!r}")
        if type(size) is not int or size <= 0:
            raise ArgumentError(Reason.BAD_ARGUMENT, "HND-3", f"reservation size must be positive, got {size!r}")
        self._device = device
        self._properties = calls.allocation_properties(device.ordinal, handle_type)
        self.granularity = calls.granularity(self._properties)
        self.size = align_up(size, self.granularity)
        self._mapped: dict[int, int] = {}
        self._unwind = Unwind()
        self._closed = False
        self.address = calls.reserve_address(self.size, self.granularity)
        self._unwind.push(self._free_address)

    def map(self, offset: int, size: int) -> int:
        """Make `size` bytes of memory, map them at `offset` and return the allocation's handle, which stays ours."""
        self._check("map", offset, size)
        handle = calls.create_memory(size, self._properties)
        try:
            self._map(handle, offset, size)
        except BaseException as error:
            _release_after(handle, error)
            raise
        # Unmapping comes first at the end: the step pushed last runs first.
        self._keep(offset, size, lambda: calls.release_memory(handle))
        return handle

    def map_existing(self, handle: int, offset: int, size: int) -> None:
        """Map an allocation that the caller holds a handle of; its reference stays the caller's."""
        self._check("map_existing", offset, size)
        self._map(handle, offset, size)
        self._keep(offset, size, None)

    def _check(self, call: str, offset: int, size: int) -> None:
        if self._closed:
            # HND-2
            raise ReservationError(Reason.RESERVATION_CLOSED, "HND-2", f"VmmReservation.{call} after close")
        if type(offset) is not int or type(size) is not int:
            message = f"mapping [{offset!r}, + {size!r}) is outside reservation [0, {self.size}): no whole numbers"
            raise ArgumentError(Reason.OUTSIDE_RESERVATION, "HND-3", message)
        # HND-3: before the driver is asked, which would answer no more than INVALID_VALUE.
        aligned = offset % self.granularity == 0 and size % self.granularity == 0
        if offset < 0 or size <= 0 or offset + size > self.size or not aligned:
            message = (
                f"mapping [{offset}, {offset + size}) is outside reservation [0, {self.size}) "
                f"or not in multiples of {self.granularity}"
            )
            raise ArgumentError(Reason.OUTSIDE_RESERVATION, "HND-3", message)
        for start, mapped in self._mapped.items():
            if offset < start + mapped and start < offset + size:
                message = f"mapping [{offset}, {offset + size}) overlaps the mapping [{start}, {start + mapped})"
                raise ArgumentError(Reason.OUTSIDE_RESERVATION, "HND-3", message)

    def _map(self, handle: int, offset: int, size: int) -> None:
        address = self.address + offset
        calls.map_memory(address, size, handle)
        self._mapped[offset] = size
        try:
            # A new mapping allows nobody anything, and the exporter's access does not travel.
            calls.allow_access(address, size, self._device.ordinal)
        except BaseException as error:
            unwind = Unwind()
            # It stays known as mapped where that fails: its addresses must not be freed then.
            unwind.push(lambda: self._unmap(offset, size))
            unwind.run(cause=error)
            raise

    def _keep(self, offset: int, size: int, release: Any) -> None:
        if release is not None:
            self._unwind.push(release)
        self._unwind.push(lambda: self._unmap(offset, size))

    def _unmap(self, offset: int, size: int) -> None:
        calls.unmap_memory(self.address + offset, size)
        del self._mapped[offset]

    def _free_address(self) -> None:
        # Addresses that are still mapped must not be freed; whoever closes is told of the unmap that failed.
        if not self._mapped:
            calls.free_address(self.address, self.size)

    def close(self) -> None:
        """Unmap, release and free everything; a failing step does not keep the others, the first failure is raised."""
        self._closed = True
        self._unwind.run()

    def __enter__(self) -> VmmReservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except BaseException as second:
            if error is None:
                raise
            note_failure(error, second, "clean-up failed too")


def _release_after(handle: int, error: BaseException) -> None:
    unwind = Unwind()
    unwind.push(lambda: calls.release_memory(handle))
    unwind.run(cause=error)
