"""Exporting a pool's allocation and importing it: a POSIX descriptor, or 64 FABRIC bytes where the device has them."""

from __future__ import annotations

import fcntl
import os
from enum import StrEnum
from typing import Any

from vmmref.driver import calls
from vmmref.driver.device import Device
from vmmref.errors import DriverError
from vmmref.unwind import Unwind


class HandleType(StrEnum):
    """How an allocation crosses the process border; fixed when it is created."""

    POSIX_FD = "posix_fd"
    FABRIC = "fabric"

    @property
    def driver_type(self) -> Any:
        """The generated enumeration member; combined types cannot be expressed in the bindings."""
        return calls.HANDLE_POSIX_FD if self is HandleType.POSIX_FD else calls.HANDLE_FABRIC


HANDLE_TYPES = ("auto", *HandleType)
"""What a pool may be asked for."""


def choose_handle_type(wanted: str, device: Device) -> HandleType:
    """The handle type that `wanted` (of HANDLE_TYPES) means on this device; "auto" is fabric if it works.

    Whether it works is found by creating, exporting and importing one granule: the attribute may say yes on a machine
    whose import service is not usable.
    """
    if wanted != "auto":
        return HandleType(wanted)
    return HandleType.FABRIC if _fabric_works(device) else HandleType.POSIX_FD


def _fabric_works(device: Device) -> bool:
    properties = calls.allocation_properties(device.ordinal, calls.HANDLE_FABRIC)
    unwind = Unwind()
    try:
        handle = calls.create_memory(calls.granularity(properties), properties)
        unwind.push(lambda: calls.release_memory(handle))
        imported = calls.import_fabric(calls.export_fabric(handle))
        unwind.push(lambda: calls.release_memory(imported))
    except DriverError as refusal:
        unwind.run(cause=refusal)
        return False
    unwind.run()
    return True


def export_descriptor(handle: int) -> int:
    """A descriptor of the allocation, close-on-exec; the caller closes it."""
    descriptor = calls.export_descriptor(handle)
    # HND-6: the driver promises nothing about the flag, and an inherited descriptor would pin the pool.
    os.set_inheritable(descriptor, False)
    return descriptor


def duplicate_descriptor(descriptor: int) -> int:
    """One more descriptor of the same allocation, close-on-exec (HND-6)."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 0)
