"""Short names for driver calls, for tests that look at one call at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda.bindings import driver as cuda

ROOT = Path(__file__).resolve().parents[2]
CHILD_SECONDS = 30

MIB = 1 << 20
SIZE = 2 * MIB
"""One granule: the smallest memory."""

SUCCESS = 0
INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
INVALID_DEVICE = 101
INVALID_CONTEXT = 201
INVALID_HANDLE = 400
NOT_READY = 600
ILLEGAL_ADDRESS = 700
LAUNCH_TIMEOUT = 702
CONTEXT_IS_DESTROYED = 709
NOT_PERMITTED = 800
NOT_SUPPORTED = 801
UNKNOWN = 999

POSIX = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
FABRIC = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_FABRIC
NO_HANDLE = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
READ = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
READ_WRITE = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
NO_ACCESS = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE

GEQ, EQ, AND, NOR = range(4)
NON_BLOCKING = 1


def code(answer: tuple[Any, ...]) -> int:
    """The CUresult of an answer of the bindings."""
    return int(answer[0])


def ok(answer: tuple[Any, ...]) -> Any:
    """The value of a successful answer: None, one value, or a tuple of values."""
    if int(answer[0]) != SUCCESS:
        raise AssertionError(f"the driver answered {answer[0]!r}")
    values = answer[1:]
    return values[0] if len(values) == 1 else (values or None)


def properties(device: int = 0, handle_type: Any = POSIX) -> Any:
    """Properties of exportable memory of a device."""
    wanted = cuda.CUmemAllocationProp()
    wanted.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = device
    wanted.requestedHandleTypes = handle_type
    return wanted


def create(size: int = SIZE, device: int = 0, handle_type: Any = POSIX) -> int:
    """A handle of new memory."""
    return int(ok(cuda.cuMemCreate(size, properties(device, handle_type), 0)))


def reserve(size: int = SIZE) -> int:
    """Reserved addresses."""
    return int(ok(cuda.cuMemAddressReserve(size, 0, 0, 0)))


def allow(address: int, size: int = SIZE, device: int = 0, flags: Any = READ_WRITE) -> tuple[Any, ...]:
    """The answer of cuMemSetAccess for one device."""
    wanted = cuda.CUmemAccessDesc()
    wanted.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = device
    wanted.flags = flags
    return cuda.cuMemSetAccess(address, size, [wanted], 1)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Memory:
    """Mapped memory."""

    handle: int
    address: int
    size: int

    def unmap(self) -> None:
        """Give everything back."""
        ok(cuda.cuMemUnmap(self.address, self.size))
        ok(cuda.cuMemAddressFree(self.address, self.size))
        ok(cuda.cuMemRelease(self.handle))


def map_handle(handle: int, size: int = SIZE, device: int = 0) -> Memory:
    """Map memory at new addresses with access for a device."""
    address = reserve(size)
    ok(cuda.cuMemMap(address, size, 0, handle, 0))
    ok(allow(address, size, device))
    return Memory(handle, address, size)


def memory(size: int = SIZE, device: int = 0, handle_type: Any = POSIX) -> Memory:
    """New memory, mapped."""
    return map_handle(create(size, device, handle_type), size, device)


def stream(flags: int = NON_BLOCKING) -> int:
    """A new stream."""
    return int(ok(cuda.cuStreamCreate(flags)))


def event() -> int:
    """A new event without timing."""
    return int(ok(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING)))


def use_device(device: int = 0) -> None:
    """Initialise the driver and make the device's primary context current."""
    ok(cuda.cuInit(0))
    ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(device))))


def python(program: list[str], directory: Path = ROOT, /, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python on its own, with the project importable; the caller looks at the answer."""
    return subprocess.run(
        [sys.executable, *program],
        env=child_environment(**environment),
        capture_output=True,
        text=True,
        timeout=CHILD_SECONDS,
        check=False,
        cwd=directory,
    )


def child_environment(**changes: str) -> dict[str, str]:
    """The environment of a child: the project importable, no simulator setting of the caller's."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VMMSIM_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "models")])
    return environment | changes
