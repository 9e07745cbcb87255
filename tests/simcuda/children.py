"""Programs that tests run in processes of their own: python -m tests.simcuda.children NAME ARGUMENTS.

Parent and child talk over an inherited socket, one line of JSON at a time, with descriptors beside it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver as cuda

from tests.simcuda.support import (
    CHILD_SECONDS,
    FABRIC,
    GEQ,
    POSIX,
    ROOT,
    SIZE,
    child_environment,
    code,
    map_handle,
    memory,
    ok,
    stream,
    use_device,
)
from vmmref.simcuda import load


class Peer:
    """The other end of a socket, and the process behind it when this is the parent."""

    def __init__(self, connection: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self._connection = connection
        self._connection.settimeout(CHILD_SECONDS)
        self.process = process

    def send(self, message: Any, *descriptors: int) -> None:
        """One message, with descriptors."""
        socket.send_fds(self._connection, [json.dumps(message).encode()], list(descriptors))

    def receive(self) -> tuple[Any, list[int]]:
        """One message and its descriptors; AssertionError when the other end is gone."""
        data, descriptors, _, _ = socket.recv_fds(self._connection, 65536, 4)
        if not data:
            raise AssertionError("the other process ended without an answer")
        return json.loads(data), descriptors

    def ask(self, message: Any, *descriptors: int) -> Any:
        """Send and receive."""
        self.send(message, *descriptors)
        return self.receive()[0]

    def kill(self) -> None:
        """End the child at once and wait for it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(CHILD_SECONDS)

    def close(self) -> None:
        """End the conversation; a child that does not end by itself is killed."""
        self._connection.close()
        if self.process is None:
            return
        try:
            self.process.wait(CHILD_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()


def start(name: str, *arguments: str) -> Peer:
    """Run a program of this module in a fresh process."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.simcuda.children", name, str(there.fileno()), *arguments],
        pass_fds=[there.fileno()],
        env=child_environment(),
        cwd=ROOT,
    )
    there.close()
    return Peer(here, process)


def _import(message: dict[str, Any], descriptors: list[int]) -> tuple[int, int]:
    """The result and handle of an import of what the message describes."""
    if "fabric" in message:
        answer = cuda.cuMemImportFromShareableHandle(bytes.fromhex(message["fabric"]), FABRIC)
    else:
        answer = cuda.cuMemImportFromShareableHandle(descriptors[0], POSIX)
        os.close(descriptors[0])
    return code(answer), int(answer[1]) if code(answer) == 0 else 0


def importer(peer: Peer) -> None:
    """Import, map, read a word, write a word; the parent says when to go on."""
    simulator = load(mode="threads")
    use_device(0)
    message, descriptors = peer.receive()
    result, handle = _import(message, descriptors)
    if result:
        peer.send({"result": result})
        return
    size = message.get("size", SIZE)
    block = map_handle(handle, size)
    ok(cuda.cuMemRelease(handle))
    kept = ok(cuda.cuMemGetAllocationPropertiesFromHandle(ok(cuda.cuMemRetainAllocationHandle(block.address))))
    word = simulator.read_word(block.address)
    peer.ask({"result": 0, "word": word, "device": int(kept.location.id)})
    ok(cuda.cuMemsetD32(block.address + 4, 77, 1))
    peer.ask({"word": simulator.read_word(block.address)})


def exporter(peer: Peer, kind: str) -> None:
    """Make memory that holds 55, export it, and stay until the parent says otherwise."""
    load(mode="threads")
    use_device(0)
    handle_type = FABRIC if kind == "fabric" else POSIX
    block = memory(handle_type=handle_type)
    ok(cuda.cuMemsetD32(block.address, 55, 1))
    shared = ok(cuda.cuMemExportToShareableHandle(block.handle, handle_type, 0))
    if kind == "fabric":
        peer.ask({"fabric": bytes(shared.data).hex()})
        block.unmap()
        peer.ask({"released": True})
    else:
        peer.send({}, shared)
        peer.receive()


def ping_pong(peer: Peer, rounds: str) -> None:
    """Answer each round: wait for its number, copy the payload away, write the number back. All on one stream."""
    simulator = load(mode="threads")
    use_device(0)
    message, descriptors = peer.receive()
    _, handle = _import(message, descriptors)
    block, private = map_handle(handle), memory()
    queue = stream()
    wrong = 0
    for number in range(1, int(rounds) + 1):
        ok(cuda.cuStreamWaitValue32(queue, block.address, number, GEQ))
        ok(cuda.cuMemcpyDtoDAsync(private.address, block.address + 4096, 64, queue))
        ok(cuda.cuStreamSynchronize(queue))
        wrong += simulator.read_bytes(private.address, 64) != number.to_bytes(4, "little") * 16
        ok(cuda.cuStreamWriteValue32(queue, block.address + 64, number, 0))
    ok(cuda.cuStreamSynchronize(queue))
    peer.ask({"wrong": wrong})


def main() -> None:
    """Run one program."""
    name, descriptor, *arguments = sys.argv[1:]
    peer = Peer(socket.socket(fileno=int(descriptor)))
    programs: dict[str, Callable[..., None]] = {"importer": importer, "exporter": exporter, "ping_pong": ping_pong}
    programs[name](peer, *arguments)


if __name__ == "__main__":
    main()
