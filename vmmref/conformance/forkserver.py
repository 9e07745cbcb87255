"""The fork server's side: import everything once, then fork a process a request. It never speaks to a driver."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import traceback
from typing import Any, NamedTuple, NoReturn

from vmmref.conformance.processes import Link, ProcessGone, receive_with_descriptors

_PRELOADED = ("torch", "cuda.bindings.driver", "vmmref", "vmmref.transport")
_PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


def main() -> None:
    """Serve requests on the socket that the first argument names, until the parent hangs up."""
    # The parent ends its processes when it is interrupted; a traceback of theirs would only confuse.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Standard output is the parent's report; what a process prints goes where messages go.
    os.dup2(2, 1)
    for name in _PRELOADED:
        importlib.import_module(name)
    # Pages that the collector does not touch stay shared with the parent.
    gc.collect()
    gc.freeze()
    control = socket.socket(fileno=int(sys.argv[1]))
    # pass_fds has made it inheritable; nothing that is started from here on needs it.
    control.set_inheritable(False)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        control.sendall(b"true")
        Server(control).serve()
    # os._exit: nothing here needs an end of its own, and torch's takes a while.
    os._exit(0)


class Running(NamedTuple):
    """A process that was forked and has not been seen to end."""

    process_id: int
    serial: int
    """Its number among all that were forked: process numbers come back."""


class Server:
    """Forks, and waits for what it has forked: nobody sees a process that has ended linger on."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._forked = 0
        self._running: dict[int, Running] = {}
        """The process behind each pidfd."""
        self._statuses: dict[int, int] = {}
        """By serial number, how each process ended."""

    def serve(self) -> None:
        """Until the parent hangs up."""
        while True:
            ready = [descriptor for descriptor, _ in self._poll.poll()]
            for descriptor in ready:
                if descriptor in self._running:
                    self._reap(descriptor)
            if self._control.fileno() in ready and not self._answer():
                return

    def _reap(self, descriptor: int) -> None:
        ended = self._running.pop(descriptor)
        self._poll.unregister(descriptor)
        os.close(descriptor)
        self._statuses[ended.serial] = os.waitstatus_to_exitcode(os.waitpid(ended.process_id, 0)[1])

    def _answer(self) -> bool:
        data, descriptors = receive_with_descriptors(self._control)
        if not data:
            return False
        request = json.loads(data)
        if "status" in request:
            self._tell_status(request["status"])
        else:
            self._start(request["target"], request["arguments"], descriptors[0])
        return True

    def _tell_status(self, serial: int) -> None:
        """Of a process that the parent has seen end."""
        for descriptor, running in tuple(self._running.items()):
            if running.serial == serial:
                self._reap(descriptor)
        self._control.sendall(json.dumps({"status": self._statuses[serial]}).encode())

    def _start(self, target: str, arguments: list[Any], descriptor: int) -> None:
        # Imported once here, and not in every process of the kind; what cannot be found is the process's to report.
        with contextlib.suppress(Exception):
            pkgutil.resolve_name(target)
        process_id = self._fork(target, arguments, descriptor)
        os.close(descriptor)
        pidfd = os.pidfd_open(process_id)
        self._forked += 1
        self._running[pidfd] = Running(process_id, self._forked)
        self._poll.register(pidfd, select.POLLIN)
        answer = {"process": process_id, "serial": self._forked}
        socket.send_fds(self._control, [json.dumps(answer).encode()], [pidfd])

    def _fork(self, target: str, arguments: list[Any], descriptor: int) -> int:
        server = os.getpid()
        process_id = os.fork()
        if not process_id:
            self._control.close()
            for pidfd in self._running:
                os.close(pidfd)
            run(server, target, arguments, descriptor)
        return process_id


def run(server: int, target: str, arguments: list[Any], descriptor: int) -> NoReturn:
    """The body of a forked process; does not return."""
    status = 1
    try:
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        # A server that died before the call has sent no signal.
        if os.getppid() == server:
            with contextlib.suppress(ProcessGone):
                pkgutil.resolve_name(target)(Link(socket.socket(fileno=descriptor)), *arguments)
            status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # No exit handlers: they are the server's.
        os._exit(status)
