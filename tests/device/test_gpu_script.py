"""The script for a GPU machine, rehearsed on the simulator: the same steps, shorter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(ROOT / "ci" / "gpu.sh"), *arguments],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.mark.slow
def test_every_step_runs_and_leaves_its_report(tmp_path: Path) -> None:
    """
    The script does its steps one by one and writes what each found.

    Given: a checkout, and the simulator in place of a device, without what hardware lacks.
    When: the script runs with eight seconds for the check, too few to exercise every rule.
    Then: every other step ends with 0, no rule is broken, and all reports are there.
    """
    done = run(str(tmp_path), "sim", "8")
    assert done.stdout.count("\n") > 4, done.stderr
    statuses = dict(line.split("\t") for line in (tmp_path / "steps.tsv").read_text().splitlines())
    check = json.loads((tmp_path / "check.json").read_text())
    assert {**statuses, "check": "-"} == {"doctor": "0", "processes": "0", "check": "-", "bench": "0"}
    assert check["summary"]["fail"] == 0
    assert check["summary"]["pass"] > 20
    assert statuses["check"] in ("0", "2")
    assert done.returncode == int(statuses["check"])
    assert json.loads((tmp_path / "bench.json").read_text())["rows"]
    assert (tmp_path / "check.xml").stat().st_size > 0
    assert json.loads((tmp_path / "doctor.json").read_text())["capabilities"]


def test_a_folder_is_needed() -> None:
    done = run()
    assert done.returncode != 0
    assert "usage: ci/gpu.sh REPORT_FOLDER" in done.stderr
