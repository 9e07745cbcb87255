"""The example of the feature transport runs as its first lines say, and every rank gets what was sent."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_example_runs() -> None:
    """Two ranks get equal sums of three requests; the last one travels over the host; every lease comes back."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "models")))}
    command = (sys.executable, "-m", "examples.feature_transport")
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT, env=environment)
    assert ran.returncode == 0, ran.stderr
    *lines, end = ran.stdout.splitlines()
    told = [re.fullmatch(r"(\d+) image\(s\), (\d+) lease\(s\), rank (\d) got (.*)", line) for line in lines]
    assert [match and match.group(1, 2, 3) for match in told] == [
        (str(images), "1", str(rank)) for images in (1, 4, 8192) for rank in range(2)
    ]
    sums = [ast.literal_eval(match[4]) for match in told if match is not None]
    assert sums[:4] == [{"feature": sum(range(images * 192)), "grid": images * 24} for images in (1, 1, 4, 4)]
    assert sums[4] == sums[5]
    assert end.startswith("0 lease(s) left; TransportStats(requests=3, pooled=5, host_copies=1, ")
