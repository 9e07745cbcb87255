"""Put the simulated driver into this process, before cuda.bindings looks for a driver.

cuda.bindings binds the first libcuda.so.1 that the process has. So the choice between the simulator and a real driver
is made once per process, before the first driver call; a spawned child makes it again.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from pathlib import Path

from vmmref.simcuda import build
from vmmref.simcuda.native import Native, Option
from vmmref.simcuda.simulator import QUARANTINE_BYTES, Simulator, SimulatorError, mode_number

_PACKAGE_DIRECTORY = Path(__file__).resolve().parent
_lock = threading.Lock()
_simulator: Simulator | None = None


class SimulatorLoadError(SimulatorError):
    """The simulated driver cannot come into this process; the message says why."""


def library_path() -> Path:
    """The simulated driver's file, compiled now when it is missing or was made from other sources.

    Raises: SimulatorBuildError when it must be compiled and cannot be.
    """
    installed = _PACKAGE_DIRECTORY / build.LIBRARY_NAME
    if build.is_current(installed):
        return installed
    directory = _PACKAGE_DIRECTORY if os.access(_PACKAGE_DIRECTORY, os.W_OK) else _cache_directory()
    cached = directory / build.LIBRARY_NAME
    return cached if build.is_current(cached) else build.build(directory)


def _cache_directory() -> Path:
    """For a package that may not be written: a folder of the user, named by the package's place."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "vmmref" / hashlib.sha256(str(_PACKAGE_DIRECTORY).encode()).hexdigest()[:16]


def load(
    *,
    mode: str | None = None,
    devices: int | None = None,
    memory_bytes: int | None = None,
    granularity: int | None = None,
    driver_version: int | None = None,
    strict: bool | None = None,
    quarantine: bool | int | None = None,
    time_limit_seconds: float | None = None,
    handle_types: int | None = None,
    wait_on_imported: bool | None = None,
) -> Simulator:
    """Load the simulated driver into this process, or reconfigure the one that is loaded.

    A setting left out keeps its value; the first load starts from the environment (VMMSIM_DEVICES and so on) or from
    these: mode "threads", 1 device of 4 GiB, granularity 2 MiB, driver version 13000, strict, quarantine of 16 GiB of
    addresses, no time limit, handle types POSIX_FILE_DESCRIPTOR | FABRIC, waits on imported memory allowed.

    ``memory_bytes`` is that of each device. Devices that have a context or memory cannot go, granularity changes only
    while nothing exists, driver_version only before the first driver call. ``quarantine`` may be the number of bytes of
    addresses to keep. ``time_limit_seconds`` (0: none) is for synchronising calls in threads mode, which then answer
    CUDA_ERROR_LAUNCH_TIMEOUT.

    Raises: ValueError for a bad value, SimulatorLoadError when another driver is in the process, SimulatorBuildError
    when the library must be compiled and cannot be, SimulatorError when a setting cannot change now.
    """
    wanted = _wanted(
        mode=None if mode is None else mode_number(mode),
        devices=devices,
        memory_bytes=memory_bytes,
        granularity=granularity,
        driver_version=driver_version,
        strict=strict,
        quarantine_bytes=_quarantine_bytes(quarantine),
        time_limit_ms=_milliseconds(time_limit_seconds),
        handle_types=handle_types,
        wait_on_imported=wait_on_imported,
    )
    global _simulator
    with _lock:
        if _simulator is None:
            _simulator = _bring_in()
        _simulator.configure(wanted)
        return _simulator


def loaded() -> Simulator | None:
    """The simulated driver of this process, also when the environment brought it in; None when there is none."""
    global _simulator
    with _lock:
        if _simulator is None:
            _simulator = _present()
        return _simulator


def _wanted(**values: int | None) -> dict[Option, int]:
    wanted = {}
    for name, value in values.items():
        if value is None:
            continue
        if not 0 <= value < 2**64:
            raise ValueError(f"{name} is {value}, which is out of range")
        wanted[Option[name.upper()]] = int(value)
    return wanted


def _quarantine_bytes(quarantine: bool | int | None) -> int | None:
    if quarantine is True:
        return QUARANTINE_BYTES
    return None if quarantine is None else int(quarantine)


def _milliseconds(seconds: float | None) -> int | None:
    # A limit below the resolution must not become "none".
    return None if seconds is None else -int(-seconds * 1000 // 1)


def _bring_in() -> Simulator:
    present = _present()
    if present is not None:
        return present
    other = _other_driver()
    if other is not None:
        raise SimulatorLoadError(
            f"the simulated driver cannot be loaded: this process already has another CUDA driver ({other}); "
            "load the simulator before the first driver call, in a process of its own"
        )
    path = library_path()
    try:
        native = Native(path)
    except (OSError, AttributeError) as error:
        raise SimulatorLoadError(f"the simulated driver {path} cannot be loaded: {error}") from error
    return Simulator(native, path)


def _present() -> Simulator | None:
    """The simulator, when LD_PRELOAD, LD_LIBRARY_PATH or another copy of this module brought it in."""
    try:
        ctypes.CDLL(build.LIBRARY_NAME, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        return Simulator(Native(build.LIBRARY_NAME), Path(_file_of_driver()))
    except (OSError, AttributeError):
        return None


def _other_driver() -> str | None:
    try:
        ctypes.CDLL(build.LIBRARY_NAME, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None
    return _file_of_driver()


def _file_of_driver() -> str:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if Path(path).name.startswith("libcuda.so"):
                return "/" + path
    return build.LIBRARY_NAME
