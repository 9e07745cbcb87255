"""How the simulator comes into a process, is compiled, and is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from tests.simcuda.support import CHILD_SECONDS, python
from vmmref.simcuda import Simulator, SimulatorBuildError, SimulatorError, build, library_path, load, loaded

pytestmark = pytest.mark.simulator

FAKE_DRIVER = """
int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *status)
{
    (void)name, (void)version, (void)flags, (void)status;
    *function = 0;
    return 0;
}
"""


def other_driver(directory: Path) -> Path:
    """A library with the driver's name that is not the simulator."""
    source = directory / "fake.c"
    source.write_text(FAKE_DRIVER)
    library = directory / build.LIBRARY_NAME
    command = [*build.find_compiler(), "-shared", "-fPIC", *build.LINK_FLAGS, "-o", str(library), str(source)]
    subprocess.run(command, check=True, timeout=CHILD_SECONDS)
    return library


def test_loading_twice_is_one_simulator(stepping: Simulator) -> None:
    assert load() is stepping
    assert loaded() is stepping
    assert load(strict=False) is stepping
    assert stepping.mode == "stepping", "a setting left out keeps its value"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"devices": 0}, "1 to 16 devices"),
        ({"devices": 17}, "1 to 16 devices"),
        ({"granularity": 3 << 20}, "power of two"),
        ({"memory_bytes": 0}, "memory"),
        ({"handle_types": 2}, "handle types"),
        ({"driver_version": 13020}, "after the first driver call"),
    ],
)
def test_settings_that_cannot_be(stepping: Simulator, change: dict[str, int], text: str) -> None:
    before = stepping.settings
    with pytest.raises(SimulatorError, match=text):
        load(mode="threads", **change)  # type: ignore[arg-type]
    assert stepping.settings == before


@pytest.mark.parametrize("change", [{"mode": "fast"}, {"devices": -1}, {"time_limit_seconds": -1.0}])
def test_values_that_make_no_sense(stepping: Simulator, change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"the mode is one of|out of range"):
        load(**change)  # type: ignore[arg-type]


def test_another_driver_in_the_process_is_not_replaced(tmp_path: Path) -> None:
    library = other_driver(tmp_path)
    program = (
        "import ctypes, sys; ctypes.CDLL(sys.argv[1])\n"
        "from vmmref.simcuda import load, loaded, SimulatorLoadError\n"
        "assert loaded() is None\n"
        "try: load()\n"
        "except SimulatorLoadError as error: print(error)"
    )
    run = python(["-c", program, str(library)])
    assert run.stderr == ""
    assert f"this process already has another CUDA driver ({library})" in run.stdout


def test_bindings_bound_to_another_driver(tmp_path: Path) -> None:
    other_driver(tmp_path)
    program = (
        "from cuda.bindings import driver\n"
        "try: driver.cuInit(0)\n"
        "except RuntimeError: pass\n"
        "from vmmref.simcuda import load, SimulatorLoadError\n"
        "try: load()\n"
        "except SimulatorLoadError as error: print('refused:', error)"
    )
    run = python(["-c", program], LD_LIBRARY_PATH=str(tmp_path))
    assert run.stdout.startswith("refused: the simulated driver cannot be loaded")


def test_a_failed_call_before_loading_does_no_harm() -> None:
    program = (
        "from cuda.bindings import driver\n"
        "try: driver.cuInit(0)\n"
        "except RuntimeError: print('no driver')\n"
        "from vmmref.simcuda import load\n"
        "load()\n"
        "print(int(driver.cuInit(0)[0]))"
    )
    run = python(["-c", program], LD_LIBRARY_PATH="")
    if "no driver" not in run.stdout:
        pytest.skip("this machine has a driver of its own")
    assert run.stdout.split("\n")[1] == "0", run.stderr


@pytest.mark.parametrize("variable", ["LD_PRELOAD", "LD_LIBRARY_PATH"])
def test_the_environment_brings_it_in(variable: str) -> None:
    path = library_path()
    program = (
        "from cuda.bindings import driver\n"
        "print(int(driver.cuInit(0)[0]), int(driver.cuDeviceGetCount()[1]))\n"
        "from vmmref.simcuda import loaded, load\n"
        "print(loaded().mode, loaded().library, load() is loaded())"
    )
    value = str(path if variable == "LD_PRELOAD" else path.parent)
    run = python(["-c", program], **{variable: value}, VMMSIM_DEVICES="3", VMMSIM_MODE="stepping")
    assert run.stdout.split() == ["0", "3", "stepping", str(path), "True"], run.stderr


def test_bad_environment_is_reported_and_ignored() -> None:
    run = python(["-c", "from vmmref.simcuda import load; print(load().settings)"], VMMSIM_DEVICES="99")
    assert "VMMSIM_DEVICES=99 is ignored: there are 1 to 16 devices" in run.stderr


def test_it_is_on_no_default_library_path() -> None:
    program = "import ctypes, vmmref.simcuda\nctypes.CDLL('libcuda.so.1').vmmsim_reset"
    assert python(["-c", program], LD_LIBRARY_PATH="").returncode != 0


def test_processes_that_compile_at_once(tmp_path: Path) -> None:
    """Both succeed, one whole library is left, and it says which sources it was made from."""
    library = tmp_path / "new" / build.LIBRARY_NAME
    assert not build.is_current(library)
    builders = [threading.Thread(target=build.build, args=(library.parent,)) for _ in range(2)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join(CHILD_SECONDS)
    assert [path.name for path in library.parent.iterdir()] == [build.LIBRARY_NAME]
    assert build.is_current(library)
    library.write_bytes(library.read_bytes().replace(build.identity(), b"x" * len(build.identity())))
    assert not build.is_current(library)


def test_sources_compile_without_a_warning(tmp_path: Path) -> None:
    command = [*build.find_compiler(), *build.COMPILE_FLAGS, "-Werror", *build.LINK_FLAGS]
    command += ["-o", str(tmp_path / "library"), *map(str, build.sources())]
    run = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_SECONDS, check=False)
    assert run.stderr == ""


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(
        SimulatorBuildError, match="no C compiler found: tried no-such-compiler; install one, or set CC"
    ):
        build.build(tmp_path)
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SimulatorBuildError, match="tried cc, gcc, clang"):
        build.build(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "false")
    with pytest.raises(SimulatorBuildError, match="the C compiler false failed"):
        build.build(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_may_not_be_written_uses_the_users_cache(tmp_path: Path) -> None:
    """A plain checkout is built on demand, beside its sources or, where that is not allowed, in the user's cache."""
    checkout = tmp_path / "checkout" / "vmmref"
    package = build.SOURCE_DIRECTORY.parent
    shutil.copytree(package, checkout / "simcuda", ignore=shutil.ignore_patterns("*.so.1", "__pycache__"))
    (checkout / "__init__.py").touch()
    program = (
        "import os, sys\n"
        "real = os.access\n"
        "os.access = lambda path, mode: False if mode == os.W_OK else real(path, mode)\n"
        "from vmmref.simcuda import library_path\n"
        "print(library_path(), library_path())"
    )
    environment = {"PYTHONPATH": str(checkout.parent), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    run = python(["-c", program], tmp_path, **environment)
    first, second = run.stdout.split()
    assert first == second
    assert Path(first).is_relative_to(tmp_path / "cache")
    assert os.access(first, os.R_OK)
    run = python(["-c", "from vmmref.simcuda import library_path; print(library_path())"], tmp_path, **environment)
    assert run.stdout.split() == [str(checkout / "simcuda" / build.LIBRARY_NAME)]
