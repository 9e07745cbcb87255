"""One function a driver call that the project uses: plain integers in, plain integers out, `DriverError` on failure.

Handles (contexts, streams, events, allocations) are passed as integers, which every version of the bindings from 12.9
on accepts. Enumerations are always the generated ones: 13.0 refuses plain integers for some of them.
"""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver as cuda

from vmmref.errors import DriverError, UnsupportedError
from vmmref_models.reasons import Reason

HANDLE_POSIX_FD = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
HANDLE_FABRIC = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_FABRIC
ATTRIBUTE = cuda.CUdevice_attribute
FABRIC_HANDLE_BYTES = 64
"""Size of CUmemFabricHandle, fixed by the driver's interface."""

_NOT_READY = int(cuda.CUresult.CUDA_ERROR_NOT_READY)
_EVENT_FLAGS = int(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING)
_NON_BLOCKING = int(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)
_READ_WRITE = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
_MINIMUM = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM


def failure(call: str, result: Any) -> DriverError:
    """The error for a call that answered `result`; also when the driver cannot name that result."""
    code = int(result)
    named, text = cuda.cuGetErrorName(result)
    return DriverError(call, code, text.decode() if not named else f"CUresult {code}")


def initialize() -> None:
    """cuInit; raises UnsupportedError with the loader's sentence where the process finds no driver at all."""
    try:
        (result,) = cuda.cuInit(0)
    except RuntimeError as error:
        message = f"no CUDA driver can be loaded: {str(error).splitlines()[0]}"
        raise UnsupportedError(Reason.NOT_SUPPORTED, "LIFE-1", message) from error
    if result:
        raise failure("cuInit", result)


def driver_version() -> int:
    """The driver's CUDA version, 13000 for 13.0."""
    result, version = cuda.cuDriverGetVersion()
    if result:
        raise failure("cuDriverGetVersion", result)
    return int(version)


def device_count() -> int:
    """Number of devices that the driver shows to this process."""
    result, count = cuda.cuDeviceGetCount()
    if result:
        raise failure("cuDeviceGetCount", result)
    return int(count)


def device_name(ordinal: int) -> str:
    """The device's own name."""
    result, name = cuda.cuDeviceGetName(128, ordinal)
    if result:
        raise failure("cuDeviceGetName", result)
    return bytes(name).split(b"\0", 1)[0].decode()


def device_attribute(ordinal: int, attribute: Any) -> int:
    """One attribute of a device (a member of ATTRIBUTE)."""
    result, value = cuda.cuDeviceGetAttribute(attribute, ordinal)
    if result:
        raise failure("cuDeviceGetAttribute", result)
    return int(value)


def retain_primary_context(ordinal: int) -> int:
    """Count one user more of the device's primary context and return it."""
    result, context = cuda.cuDevicePrimaryCtxRetain(ordinal)
    if result:
        raise failure("cuDevicePrimaryCtxRetain", result)
    return int(context)


def release_primary_context(ordinal: int) -> None:
    """Count one user of the primary context less."""
    (result,) = cuda.cuDevicePrimaryCtxRelease(ordinal)
    if result:
        raise failure("cuDevicePrimaryCtxRelease", result)


def current_context() -> int:
    """The context that is current in this thread, 0 = none."""
    result, context = cuda.cuCtxGetCurrent()
    if result:
        raise failure("cuCtxGetCurrent", result)
    return int(context)


def set_context(context: int) -> None:
    """Make `context` current in this thread in place of the one that is; 0 = none."""
    (result,) = cuda.cuCtxSetCurrent(context)
    if result:
        raise failure("cuCtxSetCurrent", result)


def push_context(context: int) -> None:
    """Make `context` current in this thread until it is popped."""
    (result,) = cuda.cuCtxPushCurrent(context)
    if result:
        raise failure("cuCtxPushCurrent", result)


def pop_context() -> None:
    """Make the context current again that was so before the last push."""
    result, _ = cuda.cuCtxPopCurrent()
    if result:
        raise failure("cuCtxPopCurrent", result)


def allocation_properties(ordinal: int, handle_type: Any) -> Any:
    """Pinned device memory on `ordinal` that can be exported as `handle_type` (fixed when it is created)."""
    properties = cuda.CUmemAllocationProp()
    properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = ordinal
    properties.requestedHandleTypes = handle_type
    return properties


def granularity(properties: Any) -> int:
    """Bytes: sizes, addresses and offsets of mappings with these properties are multiples of it."""
    result, value = cuda.cuMemGetAllocationGranularity(properties, _MINIMUM)
    if result:
        raise failure("cuMemGetAllocationGranularity", result)
    return int(value)


def create_memory(size: int, properties: Any) -> int:
    """Physical memory of `size` bytes (a multiple of the granularity), mapped nowhere yet; returns its handle."""
    result, handle = cuda.cuMemCreate(size, properties, 0)
    if result:
        raise failure("cuMemCreate", result)
    return int(handle)


def release_memory(handle: int) -> None:
    """Give one reference to an allocation back; its memory lives while it is mapped anywhere."""
    (result,) = cuda.cuMemRelease(handle)
    if result:
        raise failure("cuMemRelease", result)


def retain_handle(address: int) -> int:
    """One reference more to the allocation that is mapped at `address`; fails for memory that is not VMM memory."""
    result, handle = cuda.cuMemRetainAllocationHandle(address)
    if result:
        raise failure("cuMemRetainAllocationHandle", result)
    return int(handle)


def mapping_at(address: int) -> tuple[int, int]:
    """Start and size in bytes of the mapping that holds `address`; fails where nothing is mapped."""
    result, base, size = cuda.cuMemGetAddressRange(address)
    if result:
        raise failure("cuMemGetAddressRange", result)
    return int(base), int(size)


def reserve_address(size: int, alignment: int) -> int:
    """Reserve `size` bytes of address space; nothing is mapped there yet."""
    result, address = cuda.cuMemAddressReserve(size, alignment, 0, 0)
    if result:
        raise failure("cuMemAddressReserve", result)
    return int(address)


def free_address(address: int, size: int) -> None:
    """Give a whole reservation back, after everything in it was unmapped."""
    (result,) = cuda.cuMemAddressFree(address, size)
    if result:
        raise failure("cuMemAddressFree", result)


def map_memory(address: int, size: int, handle: int) -> None:
    """Map a whole allocation; the offset into it is zero, which is the only one that every driver takes."""
    (result,) = cuda.cuMemMap(address, size, 0, handle, 0)
    if result:
        raise failure("cuMemMap", result)


def unmap_memory(address: int, size: int) -> None:
    """Unmap whole mappings. Does not wait for work that still uses them: the caller has."""
    (result,) = cuda.cuMemUnmap(address, size)
    if result:
        raise failure("cuMemUnmap", result)


def allow_access(address: int, size: int, ordinal: int) -> None:
    """Let device `ordinal` read and write a mapped range; a new mapping allows nobody anything."""
    access = cuda.CUmemAccessDesc()
    access.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = ordinal
    access.flags = _READ_WRITE
    (result,) = cuda.cuMemSetAccess(address, size, [access], 1)
    if result:
        raise failure("cuMemSetAccess", result)


def export_descriptor(handle: int) -> int:
    """A new file descriptor for an allocation, owned by the caller; an open one keeps the memory alive."""
    result, descriptor = cuda.cuMemExportToShareableHandle(handle, HANDLE_POSIX_FD, 0)
    if result:
        raise failure("cuMemExportToShareableHandle", result)
    return int(descriptor)


def export_fabric(handle: int) -> bytes:
    """The 64 bytes of an allocation's FABRIC handle. They keep nothing alive."""
    result, exported = cuda.cuMemExportToShareableHandle(handle, HANDLE_FABRIC, 0)
    if result:
        raise failure("cuMemExportToShareableHandle", result)
    return bytes(exported.data)


def import_descriptor(descriptor: int) -> int:
    """A handle for the allocation behind a descriptor, which stays the caller's to close."""
    result, handle = cuda.cuMemImportFromShareableHandle(descriptor, HANDLE_POSIX_FD)
    if result:
        raise failure("cuMemImportFromShareableHandle", result)
    return int(handle)


def import_fabric(exported: bytes) -> int:
    """A handle for the allocation behind 64 FABRIC bytes, while its exporter lives."""
    result, handle = cuda.cuMemImportFromShareableHandle(exported, HANDLE_FABRIC)
    if result:
        raise failure("cuMemImportFromShareableHandle", result)
    return int(handle)


def allocate_pinned(size: int) -> int:
    """Page-locked host memory of `size` bytes: copies into it stay asynchronous."""
    result, address = cuda.cuMemHostAlloc(size, 0)
    if result:
        raise failure("cuMemHostAlloc", result)
    return int(address)


def free_pinned(address: int) -> None:
    """Give page-locked host memory back, after the copies that use it have ended."""
    (result,) = cuda.cuMemFreeHost(address)
    if result:
        raise failure("cuMemFreeHost", result)


def create_stream() -> int:
    """A stream that neither waits for nor holds up the legacy default stream."""
    result, stream = cuda.cuStreamCreate(_NON_BLOCKING)
    if result:
        raise failure("cuStreamCreate", result)
    return int(stream)


def destroy_stream(stream: int) -> None:
    """Destroy a stream; what is still queued on it goes on to its end."""
    (result,) = cuda.cuStreamDestroy(stream)
    if result:
        raise failure("cuStreamDestroy", result)


def stream_idle(stream: int) -> bool:
    """Whether everything queued on a stream has ended."""
    (result,) = cuda.cuStreamQuery(stream)
    if result:
        if int(result) == _NOT_READY:
            return False
        raise failure("cuStreamQuery", result)
    return True


def create_event() -> int:
    """An event without timing."""
    result, event = cuda.cuEventCreate(_EVENT_FLAGS)
    if result:
        raise failure("cuEventCreate", result)
    return int(event)


def destroy_event(event: int) -> None:
    """Destroy an event."""
    (result,) = cuda.cuEventDestroy(event)
    if result:
        raise failure("cuEventDestroy", result)


def record_event(event: int, stream: int) -> None:
    """Let `event` stand for all work queued on `stream` so far."""
    (result,) = cuda.cuEventRecord(event, stream)
    if result:
        raise failure("cuEventRecord", result)


def event_done(event: int) -> bool:
    """Whether all work that `event` stands for has ended."""
    (result,) = cuda.cuEventQuery(event)
    if result:
        if int(result) == _NOT_READY:
            return False
        raise failure("cuEventQuery", result)
    return True


def synchronize_event(event: int) -> None:
    """Block until the work that `event` stands for has ended. Without a time-out: see `vmmref.driver.streams`."""
    (result,) = cuda.cuEventSynchronize(event)
    if result:
        raise failure("cuEventSynchronize", result)


def wait_for_event(stream: int, event: int) -> None:
    """Later work of `stream` starts after the work that `event` stands for; the host does not wait."""
    (result,) = cuda.cuStreamWaitEvent(stream, event, 0)
    if result:
        raise failure("cuStreamWaitEvent", result)


def copy_on_device(destination: int, source: int, nbytes: int, stream: int) -> None:
    """Queue a copy between two pieces of device memory."""
    (result,) = cuda.cuMemcpyDtoDAsync(destination, source, nbytes, stream)
    if result:
        raise failure("cuMemcpyDtoDAsync", result)


def copy_to_host(destination: int, source: int, nbytes: int, stream: int) -> None:
    """Queue a copy into page-locked host memory."""
    (result,) = cuda.cuMemcpyDtoHAsync(destination, source, nbytes, stream)
    if result:
        raise failure("cuMemcpyDtoHAsync", result)


def copy_from_host(destination: int, source: int, nbytes: int, stream: int) -> None:
    """Queue a copy from page-locked host memory, which must not change until it has run."""
    (result,) = cuda.cuMemcpyHtoDAsync(destination, source, nbytes, stream)
    if result:
        raise failure("cuMemcpyHtoDAsync", result)


def fill_bytes(address: int, value: int, nbytes: int, stream: int) -> None:
    """Queue a fill with one byte."""
    (result,) = cuda.cuMemsetD8Async(address, value, nbytes, stream)
    if result:
        raise failure("cuMemsetD8Async", result)


def fill_word32(address: int, value: int, stream: int) -> None:
    """Queue a store of one 4-byte word as a fill: allowed on imported and peer memory, unlike a stream write."""
    (result,) = cuda.cuMemsetD32Async(address, value, 1, stream)
    if result:
        raise failure("cuMemsetD32Async", result)


def write_word(address: int, value: int, word_bytes: int, stream: int) -> None:
    """Queue a stream write: what was queued before it on `stream` is visible before the word. Local memory only."""
    if word_bytes == 4:
        (result,) = cuda.cuStreamWriteValue32(stream, address, value, 0)
        if result:
            raise failure("cuStreamWriteValue32", result)
    else:
        (result,) = cuda.cuStreamWriteValue64(stream, address, value, 0)
        if result:
            raise failure("cuStreamWriteValue64", result)
