"""Hands a pool's descriptor to consumer processes: one a request, to the same user with the token only."""

from __future__ import annotations

import array
import contextlib
import errno
import hmac
import os
import secrets
import selectors
import socket
import struct
import threading
import time

from vmmref.beacon import peer_user
from vmmref.errors import BrokerError
from vmmref.forks import fork_count, refuse_after_fork
from vmmref_models.reasons import Reason

TOKEN_BYTES = 32
MOST_CLIENTS = 64
"""Connected clients at a time: each costs the producer a descriptor. The next ones wait in the socket's queue."""
_QUEUE = 128
"""Clients that wait for the broker; the ones behind them wait inside their own connect."""
_CLIENT_SECONDS = 2.0
"""A client that has connected has this long to show its token."""
_GRACE_SECONDS = 0.02
"""The least that a client gets when others wait: time enough to be scheduled once, and short enough for a full queue
of silent ones to pass in a tenth of a second."""
_REQUEST_SECONDS = 10.0
"""A consumer waits this long for the producer's answer, all its attempts together."""
_PAUSE_SECONDS = 0.01
_ASK_AGAIN = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN)
"""Hung up on before the token was read, in a crowd or by a broker that is closing; a signal in the midst of connect."""
_TIMEVAL = struct.Struct("2l")
_GIVEN, _LATER = b"\1", b"\0"
"""The broker's answers to the token: with the descriptor, and "ask again" where the kernel would not take it."""


class DescriptorBroker:
    """Serves copies of `descriptor` (the caller's own) over an abstract socket, from a thread that `start` begins.

    `locator` is what a client needs: the token, then the socket's name. The name is random, too, but anybody in the
    network namespace can list it, so the token is what counts (BRK-1). One thread serves all clients and waits for
    none of them: whoever stalls, floods or vanishes costs the others nothing (BRK-2).

    Raises BrokerError when the socket cannot be made. A thread that has died of an unexpected error serves nobody any
    more, and says so: its socket is closed, so clients are refused at once, and `start` and `close` raise (BRK-3).
    """

    def __init__(self, descriptor: int, transport_name: str) -> None:
        self._descriptor = descriptor
        self._transport_name = transport_name
        self._token = secrets.token_bytes(TOKEN_BYTES)
        name = b"\0vmmref-" + secrets.token_hex(16).encode()
        self.locator = self._token + name
        self._forks = fork_count()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, float] = {}
        """When each was accepted; the oldest first."""
        self._paused_until: float | None = None
        """Until when no client is accepted, None while the listener is watched."""
        self._failure: BaseException | None = None
        """What the thread has died of."""
        self._told = False
        try:
            self._taken = self._open(name)
        except OSError as error:
            raise self._failed(error) from error

    def _open(self, name: bytes) -> contextlib.ExitStack:
        """Take the descriptors that serving needs; what gives them back. Raises OSError, with nothing taken."""
        with contextlib.ExitStack() as taken:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            taken.callback(os.close, self._wake)
            self._selector = taken.enter_context(selectors.DefaultSelector())
            self._listener = _new_socket()
            taken.callback(self._stop_listening)
            self._listener.bind(name)
            self._listener.listen(_QUEUE)
            self._listener.setblocking(False)
            self._selector.register(self._wake, selectors.EVENT_READ)
            self._selector.register(self._listener, selectors.EVENT_READ)
            return taken.pop_all()

    def _failed(self, why: object) -> BrokerError:
        if isinstance(why, BaseException):
            why = f"{type(why).__name__}: {why}"
        return BrokerError(Reason.BROKER_FAILED, "BRK-3", f"{self._transport_name} POSIX FD broker failed: {why}")

    def start(self) -> None:
        """Begin to serve; the second time, and after `close`, does nothing.

        Raises BrokerError when no thread can be started (another call may succeed) or the one there was has died, and
        ForkError in a fork of the producer.
        """
        refuse_after_fork(self._forks, f"{self._transport_name} POSIX FD broker")
        with self._lock:
            if self._wake < 0:
                return
            if self._failure is not None:
                self._told = True
                raise self._failed(self._failure) from self._failure
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="vmmref-broker", daemon=True)
                try:
                    thread.start()
                except Exception as error:
                    raise self._failed(error) from error
                self._thread = thread

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            self._failure = error
            # BRK-3: who waits in the queue, and whoever comes, gets an answer now and not at the end of its patience.
            self._stop_listening()
        finally:
            while self._clients:
                self._clients.popitem()[0].close()

    def _stop_listening(self) -> None:
        # A forked child that still holds the socket would keep it listening, and clients waiting in its queue.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            ready = [key.fileobj for key, _ in self._selector.select(self._patience())]
            if self._wake in ready:
                return
            for client in ready:
                if isinstance(client, socket.socket) and client is not self._listener:
                    self._answer_and_hang_up(client)
            now = time.monotonic()
            while self._clients and self._oldest()[1] + _CLIENT_SECONDS <= now:
                self._answer_and_hang_up(self._oldest()[0])
            if self._listener in ready:
                self._accept(now)
            elif self._paused_until is not None and self._paused_until <= now:
                self._paused_until = None
                self._selector.register(self._listener, selectors.EVENT_READ)

    def _oldest(self) -> tuple[socket.socket, float]:
        """The client that has waited longest, and since when."""
        return next(iter(self._clients.items()))

    def _patience(self) -> float | None:
        """Seconds until the oldest client is late or the pause ends; None where there is nothing to wait for."""
        ends = [] if self._paused_until is None else [self._paused_until]
        if self._clients:
            ends.append(self._oldest()[1] + _CLIENT_SECONDS)
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _pause(self, until: float) -> None:
        """Leave whoever asks in the queue until then: to be told of it again at once would keep a processor busy."""
        self._selector.unregister(self._listener)
        self._paused_until = until

    def _accept(self, now: float) -> None:
        """Take the next client; serve it if it has spoken already, or else let it have its time."""
        if len(self._clients) == MOST_CLIENTS:
            oldest, since = self._oldest()
            if now < since + _GRACE_SECONDS:
                # BRK-2: a flood does not push out who has only just come and is about to show its token.
                self._pause(since + _GRACE_SECONDS)
                return
            self._answer_and_hang_up(oldest)
        try:
            client, _ = self._listener.accept()
        except OSError as error:
            # BRK-2: a client that has vanished again is no matter; without a descriptor left, all wait in the queue.
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._pause(now + _PAUSE_SECONDS)
            return
        self._clients[client] = now
        self._selector.register(client, selectors.EVENT_READ)
        client.setblocking(False)
        # BRK-1: another user is hung up on without a word, whatever token it has.
        if peer_user(client) != os.geteuid() or self._answer(client):
            self._hang_up(client)

    def _answer(self, client: socket.socket) -> bool:
        """Send the descriptor to a client that shows the token; the others learn nothing.

        False while it has said nothing: otherwise it has had its answer.
        """
        try:
            # No room for descriptors: the kernel drops the ones that a client sends.
            shown = client.recv(TOKEN_BYTES + 1)
        except BlockingIOError:
            return False
        except OSError:
            return True
        if hmac.compare_digest(shown, self._token):
            _give(client, self._descriptor)
        return True

    def _answer_and_hang_up(self, client: socket.socket) -> None:
        # BRK-2: also a client that is late or in the way, which may have spoken at the last moment.
        self._answer(client)
        self._hang_up(client)

    def _hang_up(self, client: socket.socket) -> None:
        del self._clients[client]
        self._selector.unregister(client)
        client.close()

    def close(self, timeout_seconds: float) -> None:
        """Stop serving, hang up on every client and close the socket; the second time does nothing.

        The thread waits for nobody, so it ends at once. Raises BrokerError if it has not within `timeout_seconds`, and
        then nothing is closed; or, with everything closed, if it had died before and nobody has been told (BRK-3).
        """
        with self._lock:
            if self._thread is not None:
                os.eventfd_write(self._wake, 1)
                self._thread.join(timeout_seconds)
                if self._thread.is_alive():
                    raise self._failed("its thread has not ended in time")
                self._thread = None
            if self._wake >= 0:
                self._wake = -1
                self._taken.close()
            if self._failure is not None and not self._told:
                self._told = True
                raise self._failed(self._failure) from self._failure


def _new_socket() -> socket.socket:
    # HND-6
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def _give(client: socket.socket, descriptor: int) -> None:
    """Send a descriptor. One byte into an empty buffer: it never has to wait."""
    try:
        client.sendmsg([_GIVEN], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))])
    except OSError:
        # The kernel bounds the descriptors that a user has under way, whoever sent them; or the client has vanished.
        with contextlib.suppress(OSError):
            client.send(_LATER)


def request_descriptor(locator: bytes, transport_name: str) -> int:
    """A descriptor of the pool from its producer's broker; the caller closes it. Close-on-exec.

    Raises BrokerError in bounded time when the broker is gone, does not answer, or answers with no descriptor.
    """
    message = f"{transport_name} POSIX FD broker returned no file descriptor"
    deadline = time.monotonic() + _REQUEST_SECONDS
    try:
        while (answered := _ask_once(locator[:TOKEN_BYTES], locator[TOKEN_BYTES:], deadline)) is None:
            time.sleep(_PAUSE_SECONDS)
    except OSError as error:
        raise BrokerError(Reason.NO_DESCRIPTOR, "BRK-3", f"{message}: {error}") from error
    answer, received = answered
    if answer != _GIVEN or len(received) != 1:
        for descriptor in received:
            os.close(descriptor)
        raise BrokerError(Reason.NO_DESCRIPTOR, "BRK-3", message)
    return received[0]


def _refuse_another_user(client: socket.socket) -> None:
    """Raise PermissionError unless who listens is this process's user."""
    user = peer_user(client)
    if user != os.geteuid():
        # BRK-1: the token would serve whoever listens under a dead producer's name to make others read its memory.
        raise PermissionError(errno.EPERM, f"user {user} listens there, not user {os.geteuid()}")


def _ask_once(token: bytes, name: bytes, deadline: float) -> tuple[bytes, array.array[int]] | None:
    """The broker's answer and the descriptors with it; None where it is worth asking again. Raises OSError."""
    with _new_socket() as client:
        left = max(_PAUSE_SECONDS, deadline - time.monotonic())
        limit = _TIMEVAL.pack(int(left), int(left % 1 * 1_000_000))
        # And no time-out of Python's: its connect does not wait for a place in the queue, where the kernel keeps order.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        try:
            client.connect(name)
            _refuse_another_user(client)
            client.sendall(token)
            # HND-6: recv_fds of the standard library ignores the flag, so recvmsg it is.
            answer, ancillary, _, _ = client.recvmsg(1, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            if error.errno in _ASK_AGAIN and time.monotonic() < deadline:
                return None
            raise
    received = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
    if answer == _LATER and not received and time.monotonic() < deadline:
        return None
    return answer, received
