"""Fixtures of the tests with several processes: real concurrency, no stepping."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from vmmref import simcuda
from vmmref.imports import close_imports
from vmmref.simcuda import Simulator


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    """The simulated driver with a thread a stream; this process leaves nothing behind."""
    loaded = simcuda.load()
    loaded.reset()
    loaded.set_mode("threads")
    try:
        yield loaded
        close_imports()
        assert loaded.violations() == ()
        assert loaded.usage().is_empty, f"left behind: {loaded.usage()}"
    finally:
        with contextlib.suppress(Exception):
            close_imports()
        loaded.reset()
