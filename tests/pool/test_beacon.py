"""The sign of life of a pool: it ends with its owner, however that ends, and asking it waits for nobody."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vmmref.beacon import LONGEST_NAME_BYTES, Beacon, is_beacon_name, is_dark
from vmmref.errors import BrokerError
from vmmref_models.reasons import Reason

ROOT = Path(__file__).resolve().parents[2]
_LIGHT = """
import os, sys
from vmmref.beacon import Beacon
beacon = Beacon()
ready, report = os.pipe()
child = os.fork() if "fork" in sys.argv else -1
if not child:
    # It has run its hooks: only now is the parent's socket no longer open here.
    os.write(report, b"x")
    # Outlives its parent, and holds whatever it has inherited; ends with the test, which holds the other end.
    sys.stdout.close()
    os.close(1)
    sys.stdin.read()
    os._exit(0)
if child > 0:
    os.read(ready, 1)
print(beacon.name.hex(), flush=True)
sys.stdin.read()
"""


def test_it_is_dark_from_its_end_on() -> None:
    beacon = Beacon()
    assert not is_dark(beacon.name)
    beacon.close()
    beacon.close()
    assert is_dark(beacon.name)


def test_asking_never_waits_and_takes_nothing() -> None:
    beacon = Beacon()
    before = os.listdir("/proc/self/fd")
    started = time.monotonic()
    assert [is_dark(beacon.name) for _ in range(1000)] == [False] * 1000
    assert time.monotonic() - started < 5.0
    assert os.listdir("/proc/self/fd") == before
    beacon.close()


def test_who_stays_connected_keeps_nobody_from_asking() -> None:
    beacon = Beacon()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as visitor:
        visitor.connect(beacon.name)
        # The queue is full by now.
        assert [is_dark(beacon.name) for _ in range(3)] == [False] * 3
        beacon.close()
        assert is_dark(beacon.name)


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_it_is_dark_when_its_process_was_killed(how: str) -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "models")])
    process = subprocess.Popen(
        [sys.executable, "-c", _LIGHT, how],
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        name = bytes.fromhex(process.stdout.readline())
        assert not is_dark(name)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        # A child that was forked from it still runs here, and is no sign of life.
        assert is_dark(name)


def test_a_fork_does_not_put_it_out() -> None:
    beacon = Beacon()
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    assert not is_dark(beacon.name)
    beacon.close()


def test_without_a_descriptor_nothing_can_be_told() -> None:
    name = Beacon()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert not is_dark(b"\0nobody listens here")
        with pytest.raises(BrokerError) as failure:
            Beacon()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert failure.value.reason is Reason.BROKER_FAILED
    assert is_dark(b"\0nobody listens here")
    name.close()


@pytest.mark.parametrize(
    ("name", "right"),
    [
        (b"\0x", True), (b"\0" * LONGEST_NAME_BYTES, True), (b"", False), (b"\0", False), (b"/run/x", False),
        (b"\0" * (LONGEST_NAME_BYTES + 1), False),
    ],
)  # fmt: skip
def test_only_abstract_names_are_asked(name: bytes, right: bool) -> None:
    assert is_beacon_name(name) is right
