"""Probes of `vmmref doctor`: each is tried in a process of its own and prints one JSON object.

`python -m vmmref.cli._probes NAME [DEVICE]` answers {"available": bool, "why": sentence} and perhaps "devices".
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

Answer = dict[str, Any]
COMPILERS: tuple[str, ...] = ("cc", "gcc", "clang")


def yes(why: str) -> Answer:
    """This works; `why` says what was seen."""
    return {"available": True, "why": why}


def no(why: str) -> Answer:
    """This does not work, for this reason."""
    return {"available": False, "why": why}


def torch() -> Answer:
    """torch, and whether its build knows CUDA."""
    import torch as installed

    build = f"built for CUDA {installed.version.cuda}" if installed.version.cuda else "built for the CPU"
    return yes(f"{installed.__version__}, {build}")


def bindings() -> Answer:
    """cuda-bindings, as far as it can be imported."""
    import cuda.bindings.driver  # noqa: F401

    return yes(importlib.metadata.version("cuda-bindings"))


def compiler() -> Answer:
    """A C compiler, which the simulated driver is built with."""
    wanted = [os.environ["CC"]] if os.environ.get("CC") else list(COMPILERS)
    found = next((path for name in wanted if (path := shutil.which(name.split()[0]))), None)
    if found is None:
        return no(f"none of {', '.join(wanted)} is on the search path; install one, or set CC")
    shown = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    return yes(shown.splitlines()[0] if shown else found)


def simulator() -> Answer:
    """The simulated driver: built where needed, loaded, and asked for its devices."""
    from vmmref import simcuda

    simcuda.load()
    return _driver_answer("sim", simulated=True)


def driver() -> Answer:
    """A real driver, as the system's loader finds it."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return no(f"libcuda.so.1 cannot be loaded: {error}")
    return _driver_answer("cuda", simulated=False)


def _driver_answer(kind: str, simulated: bool) -> Answer:
    from vmmref.driver import calls

    calls.initialize()
    version, count = calls.driver_version(), calls.device_count()
    text = f"{version // 1000}.{version % 1000 // 10}"
    if not count:
        return no(f"driver {text} shows no device")
    devices = [
        {"id": f"{kind}:{index}", "name": calls.device_name(index), "simulated": simulated, "driver": text}
        for index in range(count)
    ]
    return {**yes(f"driver {text}, {count} device(s): {devices[0]['name']}"), "devices": devices}


def vmm(device: str) -> Answer:
    """Create, map, make accessible, unmap and release one granule."""
    with _Mapped(device, 0) as mapped:
        return yes(f"one granule of {mapped.size} bytes was mapped and made accessible")


def posix(device: str) -> Answer:
    """Export one granule as a descriptor and import it again."""
    from vmmref.driver import calls

    with _Mapped(device, calls.HANDLE_POSIX_FD) as mapped:
        descriptor = calls.export_descriptor(mapped.handle)
        try:
            calls.release_memory(calls.import_descriptor(descriptor))
        finally:
            os.close(descriptor)
    return yes("exported and imported")


def fabric(device: str) -> Answer:
    """Export one granule as FABRIC bytes and import it again; the attribute alone does not tell."""
    from vmmref.driver import calls

    with _Mapped(device, calls.HANDLE_FABRIC) as mapped:
        calls.release_memory(calls.import_fabric(calls.export_fabric(mapped.handle)))
    return yes("exported and imported")


def memops32(device: str) -> Answer:
    """Write one 4-byte word by a stream operation."""
    return _memops(device, 4)


def memops64(device: str) -> Answer:
    """Write one 8-byte word by a stream operation."""
    return _memops(device, 8)


def _memops(device: str, word_bytes: int) -> Answer:
    from vmmref.driver import calls

    with _Mapped(device, 0) as mapped:
        stream, event = calls.create_stream(), calls.create_event()
        calls.write_word(mapped.address, 1, word_bytes, stream)
        calls.record_event(event, stream)
        calls.synchronize_event(event)
        calls.destroy_event(event)
        calls.destroy_stream(stream)
    return yes(f"a word of {word_bytes} bytes was written and seen complete")


class _Mapped:
    """One granule of a device's memory, mapped while the `with` block lasts."""

    def __init__(self, device: str, handle_type: Any) -> None:
        from cuda.bindings import driver as cuda

        from vmmref.driver.device import Device

        self.device = Device(device)
        self.handle_type = handle_type or cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE

    def __enter__(self) -> _Mapped:
        from vmmref.driver import calls

        self.device.__enter__()
        properties = calls.allocation_properties(self.device.ordinal, self.handle_type)
        self.size = calls.granularity(properties)
        self.handle = calls.create_memory(self.size, properties)
        self.address = calls.reserve_address(self.size, 0)
        calls.map_memory(self.address, self.size, self.handle)
        calls.allow_access(self.address, self.size, self.device.ordinal)
        return self

    def __exit__(self, *_: object) -> None:
        from vmmref.driver import calls

        calls.unmap_memory(self.address, self.size)
        calls.free_address(self.address, self.size)
        calls.release_memory(self.handle)
        self.device.__exit__(None, None, None)
        self.device.close()


PROBES: dict[str, Callable[..., Answer]] = {
    probe.__name__: probe
    for probe in (torch, bindings, compiler, simulator, driver, vmm, posix, fabric, memops32, memops64)
}


def main(arguments: list[str]) -> None:
    """Run one probe and print its answer; what it raises is the reason why it is not available."""
    try:
        answer = PROBES[arguments[0]](*arguments[1:])
    except Exception as error:
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        answer = no(text)
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1:])
