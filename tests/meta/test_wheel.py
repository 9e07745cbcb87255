"""What a wheel carries: both packages, the rules, the simulated driver and its sources; and nothing else."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the working tree, built by the installed build backend without asking an index for anything."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling, the build backend, is not installed here")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_a_wheel_carries_everything_that_runs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "vmmref").rglob("*.py")}
    sources |= {path.relative_to(ROOT / "models").as_posix() for path in (ROOT / "models").rglob("*.py")}
    sources |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "vmmref" / "simcuda" / "src").iterdir()}
    sources |= {f"vmmref/specs/{path.name}" for path in (ROOT / "specs").glob("*.md")}
    assert sorted(sources - names) == []
    assert {"vmmref/simcuda/libcuda.so.1", "vmmref/py.typed", "vmmref_models/py.typed"} <= names


@pytest.mark.slow
def test_a_wheel_carries_nothing_else(wheel: Path) -> None:
    """No tests, and no `models` package: it would be a second copy of every class in it."""
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"vmmref", "vmmref_models"}


@pytest.mark.slow
def test_a_wheel_is_for_its_platform_and_any_python(wheel: Path) -> None:
    """The simulated driver is machine code; nothing in it depends on the version of Python."""
    python, abi, platform = wheel.stem.split("-")[-3:]
    assert (python, abi) == ("py3", "none")
    assert platform.startswith("linux_")
