"""What hostile, broken and unlucky processes do to a descriptor broker; each kind is one function, drawn by seed."""

from __future__ import annotations

import array
import contextlib
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Callable

from vmmref.broker import MOST_CLIENTS, TOKEN_BYTES

ANSWER_SECONDS = 15.0
"""Longer than a broker lets any client wait; a client that waits for so long has found a hang."""
_HELD = 100
"""Connections that one hostile thread leaves open at a time; more, and it closes the oldest."""
_GIFTS = 200
"""Descriptors a message; the kernel takes at most 253."""
_NOBODY = 65534
_PROCESS_SECONDS = 30.0
_PROCESS = """
import os, signal, socket, sys
token, name = (bytes.fromhex(text) for text in sys.argv[1:3])
client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
client.settimeout(15)
try:
    client.connect(name)
    client.sendall(token)
    if sys.argv[3] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    print(client.recvmsg(64, socket.CMSG_SPACE(64))[:2])
except OSError:
    print((b"", []))
"""


class Served(Exception):
    """A client without the right to it got an answer or a descriptor: BRK-1 is broken."""


class Target:
    """The broker that one thread of hostile clients has in mind, with what the thread draws from and leaves open."""

    def __init__(self, locator: bytes, randomness: random.Random) -> None:
        self.token, self.name = locator[:TOKEN_BYTES], locator[TOKEN_BYTES:]
        self.randomness = randomness
        self._held: deque[socket.socket] = deque()

    def connect(self) -> socket.socket:
        """A connected client, which waits for a place in the queue where that is full."""
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        limit = struct.pack("2l", int(ANSWER_SECONDS), 0)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        try:
            client.connect(self.name)
        except BaseException:
            client.close()
            raise
        return client

    def hold(self, client: socket.socket) -> None:
        """Leave a connection open for a while."""
        self._held.append(client)
        if len(self._held) > _HELD:
            self._held.popleft().close()

    def close(self) -> None:
        """Close what was left open."""
        while self._held:
            self._held.popleft().close()

    def noise(self, most: int) -> bytes:
        """Between one and `most` random bytes."""
        return self.randomness.randbytes(self.randomness.randint(1, most))


def expect_nothing(client: socket.socket) -> None:
    """Wait for the broker to hang up; raises Served where it says or gives anything, TimeoutError where it does not."""
    try:
        answer, ancillary, _, _ = client.recvmsg(64, socket.CMSG_SPACE(64), socket.MSG_CMSG_CLOEXEC)
    except (ConnectionResetError, BrokenPipeError):
        return
    except BlockingIOError as error:
        raise TimeoutError(f"the broker has not hung up for {ANSWER_SECONDS} s") from error
    for _, _, data in ancillary:
        for descriptor in array.array("i", data[: len(data) - len(data) % 4]):
            os.close(descriptor)
    if answer or ancillary:
        raise Served(f"answer {answer!r} and {len(ancillary)} message(s) with descriptors, without the token")


def _say(client: socket.socket, *messages: bytes) -> None:
    """Send, as far as the broker has not hung up already."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for message in messages:
            client.send(message)


# ---- kinds


def vanish(target: Target) -> None:
    target.connect().close()


def garbage(target: Target) -> None:
    with target.connect() as client:
        _say(client, target.noise(4096))
        expect_nothing(client)


def wrong_token(target: Target) -> None:
    bit = target.randomness.randrange(8 * TOKEN_BYTES)
    token = bytearray(target.token)
    token[bit // 8] ^= 1 << bit % 8
    with target.connect() as client:
        _say(client, bytes(token))
        expect_nothing(client)


def too_long(target: Target) -> None:
    with target.connect() as client:
        _say(client, target.token + target.noise(60_000))
        expect_nothing(client)


def empty_message(target: Target) -> None:
    with target.connect() as client:
        _say(client, b"", target.token)
        expect_nothing(client)


def token_in_pieces(target: Target) -> None:
    cut = target.randomness.randint(1, TOKEN_BYTES - 1)
    with target.connect() as client:
        _say(client, target.token[:cut], target.token[cut:])
        expect_nothing(client)


def token_byte_by_byte(target: Target) -> None:
    with target.connect() as client:
        _say(client, *(bytes([byte]) for byte in target.token))
        expect_nothing(client)


def half_open(target: Target) -> None:
    with target.connect() as client:
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_WR)
        expect_nothing(client)


def deaf(target: Target) -> None:
    """Cannot be sent to, and asks all the same."""
    with target.connect() as client:
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RD)
        _say(client, target.token)


def silent(target: Target) -> None:
    target.hold(target.connect())


def asks_and_never_reads(target: Target) -> None:
    client = target.connect()
    _say(client, target.token)
    target.hold(client)


def asks_and_vanishes(target: Target) -> None:
    with target.connect() as client:
        _say(client, target.token)


def asks_again_and_again(target: Target) -> None:
    client = target.connect()
    _say(client, *[target.token] * 20)
    target.hold(client)


def gives_descriptors(target: Target) -> None:
    """Sends descriptors, which must not stay open in the producer."""
    with target.connect() as client, open(os.devnull, "rb") as gift:
        gifts = array.array("i", [gift.fileno()] * _GIFTS)
        with contextlib.suppress(OSError):
            for _ in range(target.randomness.randint(1, 4)):
                client.sendmsg([target.noise(64)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, gifts)])
        expect_nothing(client)


def gives_descriptors_and_asks(target: Target) -> None:
    """With the token itself: this one may have its answer, and what it sends must not stay open."""
    with target.connect() as client, open(os.devnull, "rb") as gift:
        gifts = array.array("i", [gift.fileno()] * _GIFTS)
        with contextlib.suppress(OSError):
            client.sendmsg([target.token], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, gifts)])


def lies_about_itself(target: Target) -> None:
    """Sends credentials: its own, or another process's, which the kernel refuses to all but root."""
    process = target.randomness.choice([os.getpid(), 1])
    credentials = struct.pack("3i", process, os.getuid(), os.getgid())
    with target.connect() as client:
        with contextlib.suppress(OSError):
            client.sendmsg([target.noise(64)], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials)])
        _say(client, b"")
        expect_nothing(client)


def wrong_kind_of_socket(target: Target) -> None:
    kind = target.randomness.choice([socket.SOCK_STREAM, socket.SOCK_DGRAM])
    with socket.socket(socket.AF_UNIX, kind) as client:
        try:
            client.connect(target.name)
        except OSError:
            return
    raise Served(f"a socket of {kind!r} was connected")


def many_at_once(target: Target) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(target.connect()) for _ in range(target.randomness.randint(20, 60))]
        for client in clients:
            if target.randomness.random() < 0.5:
                _say(client, target.noise(100))


def silent_crowd(target: Target) -> None:
    """More connections at a time than the broker keeps, none of which says anything."""
    with contextlib.ExitStack() as stack:
        for _ in range(target.randomness.randint(MOST_CLIENTS, 2 * MOST_CLIENTS)):
            stack.enter_context(target.connect())


def killed_after_asking(target: Target) -> None:
    """A process of its own, killed between its request and the answer."""
    _process(target, "die", user=None)


def another_user(target: Target) -> None:
    """A process of another user that knows the token; only root can play it."""
    if os.geteuid() != 0:
        return
    # A system interpreter: another user often may not start ours.
    interpreter = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if interpreter is not None:
        said = _process(target, "ask", user=_NOBODY, interpreter=interpreter)
        if said not in ("", "(b'', [])"):
            raise Served(f"another user got {said}")


def _process(target: Target, what: str, user: int | None, interpreter: str = sys.executable) -> str:
    arguments = [interpreter, "-I", "-S", "-c", _PROCESS, target.token.hex(), target.name.hex(), what]
    child = subprocess.run(
        arguments, user=user, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_PROCESS_SECONDS, cwd="/"
    )
    return child.stdout.decode().strip()


KINDS: dict[Callable[[Target], None], int] = {
    vanish: 10, garbage: 8, wrong_token: 8, too_long: 6, empty_message: 4, token_in_pieces: 6, token_byte_by_byte: 6,
    half_open: 6, deaf: 6, silent: 14, asks_and_never_reads: 6, asks_and_vanishes: 6, asks_again_and_again: 4,
    gives_descriptors: 6, gives_descriptors_and_asks: 6, lies_about_itself: 4, wrong_kind_of_socket: 3,
    many_at_once: 3, silent_crowd: 3, killed_after_asking: 1, another_user: 1,
}  # fmt: skip
"""Every kind and its share."""


def draw(randomness: random.Random) -> Callable[[Target], None]:
    """One kind."""
    return randomness.choices(tuple(KINDS), weights=tuple(KINDS.values()))[0]
