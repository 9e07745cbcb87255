"""Processes of our own, from a fork server that has torch and the pool loaded and has never spoken to a driver.

A new process costs a fork instead of an import of torch. Parent and child talk in JSON over one socket; every answer
has a deadline, and a process that dies is noticed at once. When the parent ends, however it ends, so do all others.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple

ANSWER_SECONDS = 60.0
"""A process that has not answered for so long is taken for hung (LIFE-5)."""
_START_SECONDS = 120.0
"""Time for the fork server to import torch."""
_MESSAGE_BYTES = 128 << 10
"""A message is one packet of the socket; the kernel's default send buffer holds one of this size."""
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from vmmref.conformance.forkserver import main; main()"
)


class ProcessGone(RuntimeError):
    """The process at the other end of a link has died, or has ended without an answer."""


class Link:
    """One end of a connection between two processes: JSON messages, whole or not at all."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._buffer = bytearray(_MESSAGE_BYTES)

    def send(self, message: Any, seconds: float = ANSWER_SECONDS) -> None:
        """Send what JSON can express.

        Raises ProcessGone, TimeoutError, or ValueError for a message that is too long.
        """
        data = json.dumps(message).encode()
        if len(data) > _MESSAGE_BYTES:
            raise ValueError(f"a message has at most {_MESSAGE_BYTES} bytes, this one has {len(data)}")
        self._end.settimeout(seconds)
        try:
            self._end.send(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ProcessGone(f"the process hung up: {error}") from error

    def receive(self, seconds: float | None = ANSWER_SECONDS) -> Any:
        """The next message; None for `seconds` waits for ever, which only a process that serves its parent may.

        Raises ProcessGone when there will be none, TimeoutError at the deadline.
        """
        self._end.settimeout(seconds)
        try:
            size = self._end.recv_into(self._buffer)
        except ConnectionResetError as error:
            raise ProcessGone(f"the process hung up: {error}") from error
        if not size:
            raise ProcessGone("the process hung up without an answer")
        return json.loads(memoryview(self._buffer)[:size].tobytes())

    def fileno(self) -> int:
        """The descriptor, to wait on with others."""
        return self._end.fileno()

    def close(self) -> None:
        """Hang up."""
        self._end.close()


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets that keep messages whole."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def receive_with_descriptors(end: socket.socket) -> tuple[bytes, list[int]]:
    """A message, b"" when there will be none, and the descriptors that came with it, close-on-exec."""
    data, ancillary, _, _ = end.recvmsg(_MESSAGE_BYTES, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
    received = array.array("i")
    for _, _, content in ancillary:
        received.frombytes(content[: len(content) - len(content) % received.itemsize])
    return data, list(received)


class Forked(NamedTuple):
    """A process as the fork server hands it over."""

    process_id: int
    serial: int
    """Its number among all that the server has forked."""
    pidfd: int
    """A descriptor of the process, readable when it has ended; the receiver closes it."""
    server_id: int
    """The server's own process number."""


class ForkServer:
    """The process that the others are forked from. Started by its first use; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def _started(self) -> socket.socket:
        """The control socket; the lock is held."""
        if self._control is not None and self._server is not None and self._server.poll() is None:
            return self._control
        self._close()
        ours, theirs = pair()
        with theirs:
            arguments = [sys.executable, "-c", _BOOT, str(theirs.fileno()), json.dumps(sys.path)]
            self._server = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        self._control = ours
        try:
            Link(ours).receive(_START_SECONDS)
        except BaseException:
            self._close()
            raise
        return ours

    def start(self) -> None:
        """Start it now, and not only when the first process is asked for."""
        with self._lock:
            self._started()

    def fork(self, target: str, arguments: list[Any], end: socket.socket) -> Forked:
        """Fork a process that calls `target` ("module:function") with a link over `end` and `arguments`."""
        request = json.dumps({"target": target, "arguments": arguments}).encode()
        with self._lock, self._whole():
            control = self._started()
            socket.send_fds(control, [request], [end.fileno()])
            control.settimeout(ANSWER_SECONDS)
            answer, descriptors = receive_with_descriptors(control)
            if not answer:
                raise ProcessGone("the fork server has died")
            assert self._server is not None, "a server that answers was started"
            told = json.loads(answer)
            return Forked(told["process"], told["serial"], descriptors[0], self._server.pid)

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """A question and its answer. After half of that nobody knows whose answer comes next: the server is ended."""
        try:
            yield
        except BaseException:
            self._close()
            raise

    def status(self, forked: Forked) -> int:
        """How a process that has ended did so, as `os.waitstatus_to_exitcode`."""
        with self._lock, contextlib.suppress(ProcessGone), self._whole():
            if self._control is not None and self._server is not None and self._server.pid == forked.server_id:
                link = Link(self._control)
                link.send({"status": forked.serial})
                return int(link.receive()["status"])
        # Its server has died, and taken it along.
        return -signal.SIGKILL

    def close(self) -> None:
        """End the server, and with it every process that came from it."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._server is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(5)
            if self._server.poll() is None:
                self._server.kill()
                self._server.wait(5)
            self._server = None


SERVER = ForkServer()
"""The one of this process."""
atexit.register(SERVER.close)


class Process:
    """A process from the fork server, and the link to it. `with` ends it, whatever it is doing."""

    def __init__(self, target: str, *arguments: Any) -> None:
        """Start `target` ("module:function", called with its link and `arguments`, all plain data)."""
        ours, theirs = pair()
        try:
            with theirs:
                self._forked = SERVER.fork(target, list(arguments), theirs)
        except BaseException:
            ours.close()
            raise
        self.process_id = self._forked.process_id
        self.link = Link(ours)
        self.status: int | None = None
        """How it ended: the exit status, or minus the number of the signal; None before `wait` has seen its end."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The open files that this process has for it."""
        return (self.link.fileno(), self._forked.pidfd) if self.status is None else ()

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.status is None and not select.select([self._forked.pidfd], [], [], 0)[0]

    def ask(self, message: Any, seconds: float = ANSWER_SECONDS) -> Any:
        """Send a message and receive the answer.

        Raises ProcessGone and TimeoutError. A process that was interrupted between the two is killed: its next answer
        would be taken for another one's.
        """
        try:
            self.link.send(message, seconds)
            return self.link.receive(seconds)
        except BaseException:
            self.kill()
            raise

    def wait(self, seconds: float = ANSWER_SECONDS) -> int:
        """Wait for its end; how it ended. Raises TimeoutError."""
        if self.status is None:
            if not select.select([self._forked.pidfd], [], [], seconds)[0]:
                raise TimeoutError(f"process {self.process_id} has not ended after {seconds} s")
            self.status = SERVER.status(self._forked)
            os.close(self._forked.pidfd)
        return self.status

    def kill(self) -> None:
        """End it without any clean-up of its own, and wait until it is gone."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._forked.pidfd, signal.SIGKILL)
            self.wait()
        self.link.close()

    def end(self, seconds: float = 5.0) -> int:
        """Hang up and wait for its end; kill it when it does not come. How it ended."""
        self.link.close()
        with contextlib.suppress(TimeoutError):
            return self.wait(seconds)
        self.kill()
        assert self.status is not None, "a killed process has ended"
        return self.status

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
