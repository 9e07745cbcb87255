"""After a fork the child's driver is gone, as CUDA's is; it never hangs on a lock that the parent held."""

from __future__ import annotations

import pytest

from tests.simcuda.support import python

pytestmark = pytest.mark.simulator

PROGRAM = """
import os, sys, threading
from vmmref.simcuda import load, SimulatorError
from tests.simcuda.support import memory, stream, use_device
simulator = load(mode="threads")
from cuda.bindings import driver
use_device()
block, queue = memory(), stream()
stop = threading.Event()

def work():
    use_device()
    while not stop.is_set():
        driver.cuStreamWriteValue32(queue, block.address, 1, 0)

threading.Thread(target=work, daemon=True).start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        answers = {
            int(driver.cuInit(0)[0]),
            int(driver.cuDeviceGetCount()[0]),
            int(driver.cuMemRelease(block.handle)[0]),
            int(driver.cuStreamSynchronize(queue)[0]),
            int(driver.cuCtxSetCurrent(0)[0]),
            int(driver.cuMemUnmap(block.address, block.size)[0]),
            int(driver.cuProfilerStart()[0]),
        }
        named = driver.cuGetErrorName(driver.CUresult(3))[1]
        try:
            simulator.reset()
            answers.add("reset")
        except SimulatorError:
            pass
        usage_is_empty = simulator.usage().is_empty
        step = simulator.step_raw(queue)
        os._exit(0 if (answers, named, usage_is_empty, step) == ({3}, b"CUDA_ERROR_NOT_INITIALIZED", True, 3) else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
stop.set()
print(int(driver.cuStreamSynchronize(queue)[0]), simulator.read_word(block.address))
"""


def test_the_child_is_refused_and_the_parent_goes_on() -> None:
    run = python(["-W", "ignore", "-c", PROGRAM])
    assert run.stdout.split() == ["0", "1"], run.stderr


def test_a_process_with_a_stuck_wait_ends() -> None:
    program = (
        "from vmmref.simcuda import load\n"
        "load(mode='threads')\n"
        "from cuda.bindings import driver\n"
        "from tests.simcuda.support import memory, stream, use_device\n"
        "use_device()\n"
        "driver.cuStreamWaitValue32(stream(), memory().address, 1, 0)\n"
        "print('end')"
    )
    run = python(["-c", program])
    assert (run.stdout, run.returncode) == ("end\n", 0)


def test_device_memory_seen_through_a_view_dies_with_its_mapping() -> None:
    """After unmap the bytes are not there any more, for anybody: a view held too long ends the process."""
    program = (
        "import ctypes\n"
        "from vmmref.simcuda import load\n"
        "load()\n"
        "from tests.simcuda.support import memory, use_device\n"
        "use_device()\n"
        "block = memory()\n"
        "view = (ctypes.c_uint8 * 8).from_address(block.address)\n"
        "view[0] = 7\n"
        "print(view[0], flush=True)\n"
        "block.unmap()\n"
        "print(view[0])"
    )
    run = python(["-c", program])
    assert (run.stdout, run.returncode) == ("7\n", -11)
