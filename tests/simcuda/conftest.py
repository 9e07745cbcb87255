"""The simulator, fresh for each test, with two devices and the context of device 0 current."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cuda.bindings import driver as cuda

from tests.simcuda.support import use_device
from vmmref.simcuda import Simulator, load


def _fresh(mode: str) -> Iterator[Simulator]:
    simulator = load(mode=mode, devices=2, strict=True, quarantine=True, time_limit_seconds=0)
    simulator.reset()
    use_device(0)
    yield simulator
    simulator.reset()
    simulator.set_mode("threads")
    load(
        strict=True, quarantine=True, time_limit_seconds=0, memory_bytes=4 << 30, wait_on_imported=True, handle_types=9
    )
    cuda.cuCtxSetCurrent(0)
    cuda.cuDevicePrimaryCtxRelease(0)


@pytest.fixture
def stepping() -> Iterator[Simulator]:
    """Streams run only when told."""
    yield from _fresh("stepping")


@pytest.fixture
def threads() -> Iterator[Simulator]:
    """Each stream has a thread."""
    yield from _fresh("threads")


@pytest.fixture(params=["threads", "stepping"])
def either(request: pytest.FixtureRequest) -> Iterator[Simulator]:
    """A test that must hold in both modes."""
    yield from _fresh(request.param)
