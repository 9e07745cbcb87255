"""The look-up of functions: by name and version of the interface."""

from __future__ import annotations

import ctypes
import re

import pytest

from tests.simcuda.support import INVALID_VALUE, NOT_SUPPORTED, SUCCESS, python
from vmmref.simcuda import Simulator, build

pytestmark = pytest.mark.simulator

FOUND, NO_SYMBOL, TOO_OLD = range(3)
DRIVER_VERSION = 13000


def look_up(simulator: Simulator, name: str, version: int) -> tuple[int, int | None, int]:
    """Result, address and status of cuGetProcAddress_v2."""
    library = ctypes.CDLL(str(simulator.library))
    function, status = ctypes.c_void_p(), ctypes.c_int(-1)
    result = library.cuGetProcAddress_v2(
        name.encode(), ctypes.byref(function), version, ctypes.c_uint64(0), ctypes.byref(status)
    )
    return result, function.value, status.value


def rows() -> list[tuple[str, int, int, str]]:
    """The rows of functions.def."""
    text = (build.SOURCE_DIRECTORY / "functions.def").read_text()
    found = re.findall(r"^FUNCTION\((\w+), (\d+), (\w+), (\w+)\)$", text, re.MULTILINE)
    return [
        (name, int(first), DRIVER_VERSION if last == "LATEST" else int(last), symbol)
        for name, first, last, symbol in found
    ]


def test_every_row_answers_its_own_function(stepping: Simulator) -> None:
    library = ctypes.CDLL(str(stepping.library))
    assert len(rows()) > 80
    for name, first, last, symbol in rows():
        address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
        for version in {first, min(last, DRIVER_VERSION)}:
            if first <= DRIVER_VERSION:
                assert look_up(stepping, name, version) == (SUCCESS, address, FOUND), (name, version)


def test_one_name_with_two_signatures(stepping: Simulator) -> None:
    """The function with a context parameter is only for callers that ask for the interface that has it."""
    old = look_up(stepping, "cuCtxSynchronize", 12080)[1]
    new = look_up(stepping, "cuCtxSynchronize", 13000)[1]
    assert old != new


def test_requests_beyond_the_driver(stepping: Simulator) -> None:
    assert look_up(stepping, "cuLaunchHostFunc", 13020) == (INVALID_VALUE, None, NO_SYMBOL)
    assert look_up(stepping, "cuMemCreate", 10010) == (SUCCESS, None, TOO_OLD)
    assert look_up(stepping, "cuNoSuchCall", 12000) == (SUCCESS, None, NO_SYMBOL)


def test_known_names_answer_not_supported(stepping: Simulator) -> None:
    text = (build.SOURCE_DIRECTORY / "known_names.def").read_text()
    names = re.findall(r"^KNOWN\((\w+), (\d+)\)$", text, re.MULTILINE)
    assert len(names) > 400
    for name, first in names:
        result, address, status = look_up(
            stepping, name, max(int(first), 2000) if int(first) <= DRIVER_VERSION else 13000
        )
        if int(first) <= DRIVER_VERSION:
            assert (result, status) == (SUCCESS, FOUND), name
            assert ctypes.CFUNCTYPE(ctypes.c_int)(address or 0)() == NOT_SUPPORTED


def test_the_bindings_find_every_name_they_ask_for() -> None:
    """
    A driver as new as the newest bindings leaves no name unknown: whatever they offer can be called.

    Given: the simulator with a driver version beyond the bindings.
    When: each function of cuda.bindings.driver without parameters is called.
    Then: none raises "function not found".
    """
    program = (
        "from vmmref.simcuda import load\n"
        "load(driver_version=13090)\n"
        "from cuda.bindings import driver\n"
        "print(int(driver.cuInit(0)[0]), int(driver.cuDriverGetVersion()[1]))\n"
        "for name in ('cuProfilerStart', 'cuProfilerStop', 'cuCtxGetFlags', 'cuCtxGetSharedMemConfig'):\n"
        "    print(int(getattr(driver, name)()[0]))\n"
    )
    run = python(["-c", program])
    assert run.stdout.split() == ["0", "13090", "801", "801", "801", "801"], run.stderr
