"""Compile the simulated driver.

The build hook of the package loads this file by its path, so it imports nothing of vmmref.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

LIBRARY_NAME = "libcuda.so.1"
"""File name and SONAME: the name under which cuda.bindings looks for the driver."""

SOURCE_DIRECTORY = Path(__file__).resolve().parent / "src"

COMPILE_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra", "-D_GNU_SOURCE")
LINK_FLAGS = ("-shared", f"-Wl,-soname,{LIBRARY_NAME}")

_COMPILERS = ("cc", "gcc", "clang")
_COMPILE_SECONDS = 300


class SimulatorBuildError(RuntimeError):
    """The simulated driver could not be compiled."""


def find_compiler() -> list[str]:
    """The C compiler as the start of a command: $CC if it is set, else the first of cc, gcc and clang.

    Raises: SimulatorBuildError when there is none.
    """
    chosen = shlex.split(os.environ.get("CC", ""))
    candidates = [chosen] if chosen else [[name] for name in _COMPILERS]
    for command in candidates:
        if shutil.which(command[0]):
            return command
    tried = ", ".join(command[0] for command in candidates)
    raise SimulatorBuildError(f"no C compiler found: tried {tried}; install one, or set CC")


def sources() -> list[Path]:
    """The files that are compiled, in a fixed order."""
    return sorted(SOURCE_DIRECTORY.glob("*.c"))


def identity() -> bytes:
    """What the sources and flags are, as the library carries it."""
    digest = hashlib.sha256(" ".join((*COMPILE_FLAGS, *LINK_FLAGS)).encode())
    for path in sorted([*SOURCE_DIRECTORY.glob("*.[ch]"), *SOURCE_DIRECTORY.glob("*.def")]):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return f"vmmsim-build:{digest.hexdigest()}".encode()


def is_current(library: Path) -> bool:
    """Whether the library exists and was made from these sources (times of files say little after an install)."""
    try:
        return identity() in library.read_bytes()
    except FileNotFoundError:
        return False


def build(target_directory: Path) -> Path:
    """Compile the simulated driver into a directory, which is made if needed, and return the library's path.

    The library appears under its name in one step, so processes that build at once do not disturb each other.

    Raises: SimulatorBuildError when there is no compiler, or with the compiler's words when it fails.
    """
    compiler = find_compiler()
    target_directory.mkdir(parents=True, exist_ok=True)
    library = target_directory / LIBRARY_NAME
    with tempfile.TemporaryDirectory(dir=target_directory, prefix=".build-") as scratch:
        made = Path(scratch) / LIBRARY_NAME
        named = f'-DVMMSIM_BUILD="{identity().decode()}"'
        command = [*compiler, *COMPILE_FLAGS, named, *LINK_FLAGS, "-o", str(made), *map(str, sources())]
        _compile(command)
        os.replace(made, library)
    return library


def _compile(command: list[str]) -> None:
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SimulatorBuildError(f"the C compiler {command[0]} could not be run: {error}") from error
    if run.returncode != 0:
        raise SimulatorBuildError(f"the C compiler {command[0]} failed:\n{run.stderr.strip()}")
