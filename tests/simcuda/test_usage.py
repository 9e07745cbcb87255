"""Leak accounting: each kind of thing is counted while it exists, and only then."""

from __future__ import annotations

import os

import pytest
from cuda.bindings import driver as cuda

from tests.simcuda.support import POSIX, SIZE, create, event, map_handle, ok, reserve, stream
from vmmref.simcuda import Simulator, Usage

pytestmark = pytest.mark.simulator

NOTHING = Usage(0, 0, 0, 0, 0, 0, 0, 0, 0)


def test_each_thing_is_counted(stepping: Simulator) -> None:
    assert stepping.usage() == NOTHING
    handle = create()
    assert stepping.usage() == Usage(1, 0, 0, 0, 0, 0, 0, 0, SIZE)
    block = map_handle(handle)
    assert stepping.usage() == Usage(1, 1, 1, 0, 0, 0, 0, 0, SIZE)
    queue, happened = stream(), event()
    pinned = int(ok(cuda.cuMemHostAlloc(64, 0)))
    plain = int(ok(cuda.cuMemAlloc(4096)))
    empty = reserve()
    assert stepping.usage() == Usage(1, 1, 2, 0, 1, 1, 1, 1, SIZE + 4096)
    ok(cuda.cuMemAddressFree(empty, SIZE))
    ok(cuda.cuMemFree(plain))
    ok(cuda.cuMemFreeHost(pinned))
    ok(cuda.cuEventDestroy(happened))
    ok(cuda.cuStreamDestroy(queue))
    block.unmap()
    assert stepping.usage() == NOTHING
    assert stepping.usage().is_empty


def test_every_reference_counts(stepping: Simulator) -> None:
    block = map_handle(create())
    ok(cuda.cuMemRetainAllocationHandle(block.address))
    assert stepping.usage().handles == 2
    descriptor = ok(cuda.cuMemExportToShareableHandle(block.handle, POSIX, 0))
    imported = int(ok(cuda.cuMemImportFromShareableHandle(descriptor, POSIX)))
    os.close(descriptor)
    assert imported != block.handle
    assert stepping.usage() == Usage(3, 1, 1, 0, 0, 0, 0, 0, SIZE)


def test_descriptors_count_while_they_are_open(stepping: Simulator) -> None:
    handle = create()
    descriptors = [ok(cuda.cuMemExportToShareableHandle(handle, POSIX, 0)) for _ in range(3)]
    descriptors.append(os.dup(descriptors[0]))
    assert stepping.usage().descriptors == 4
    assert not any(os.get_inheritable(descriptor) for descriptor in descriptors)
    ok(cuda.cuMemRelease(handle))
    assert stepping.usage() == Usage(0, 0, 0, 4, 0, 0, 0, 0, 0)
    imported = int(ok(cuda.cuMemImportFromShareableHandle(descriptors[3], POSIX)))
    assert stepping.usage().bytes == SIZE, "an open descriptor keeps the memory"
    ok(cuda.cuMemRelease(imported))
    for descriptor in descriptors:
        os.close(descriptor)
    assert stepping.usage().is_empty
