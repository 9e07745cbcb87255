"""Settings for all tests: Hypothesis profiles, and no vmmref setting of the caller's environment."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# Examples must not depend on how busy the machine is, nor on what an earlier run has left in a database.
settings.register_profile(
    "quick",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("full", settings.get_profile("quick"), max_examples=1000, derandomize=False)
settings.load_profile(os.environ.get("VMMREF_TEST_PROFILE", "quick"))


def pytest_configure(config: pytest.Config) -> None:
    """Take settings that would change what the tests do out of the environment, also for spawned children."""
    # Bindings 13.0 read any text here, also "0", as "yes" and then change the meaning of the default stream.
    os.environ.pop("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", None)
    # Colour and width would change the text that tests of the command line look at.
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS"):
        os.environ.pop(name, None)
