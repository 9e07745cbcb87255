"""Hands a pool's descriptor to consumer processes: one a request, to the same user with the token only."""

from __future__ import annotations

import array
import contextlib
import errno
import hmac
import os
import secrets
import select
import selectors
import socket
import struct
import threading
import time

from vmmref.errors import BrokerError
from vmmref_models.reasons import Reason

TOKEN_BYTES = 32
_CLIENT_SECONDS = 2.0
"""A client that has connected has this long to show its token."""
_MOST_CLIENTS = 64
"""Connected clients at a time; one more, and the one that has waited longest is hung up on."""
_REQUEST_SECONDS = 10.0
"""A consumer waits this long for the producer's answer."""
_PAUSE_SECONDS = 0.01
_CREDENTIALS = struct.Struct("3i")
"""struct ucred: process, user and group of the peer, filled in by the kernel."""


class DescriptorBroker:
    """Serves copies of `descriptor` (the caller's own) over an abstract socket, from a thread that `start` begins.

    `locator` is what a client needs: the token, then the socket's name. The name is random, too, but anybody in the
    network namespace can list it, so the token is what counts (BRK-1). One thread serves all clients and waits for
    none of them: whoever stalls, floods or vanishes costs the others nothing (BRK-2).
    """

    def __init__(self, descriptor: int, transport_name: str) -> None:
        self._descriptor = descriptor
        self._transport_name = transport_name
        self._token = secrets.token_bytes(TOKEN_BYTES)
        name = b"\0vmmref-" + secrets.token_hex(16).encode()
        self.locator = self._token + name
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, float] = {}
        """Until when each may show its token; the oldest first, because every one gets the same time."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except BaseException:
            self._listener.close()
            raise
        try:
            self._listener.bind(name)
            self._listener.listen(128)
            self._listener.setblocking(False)
        except BaseException:
            self.close(0.0)
            raise

    def start(self) -> None:
        """Begin to serve; the second time, and after `close`, does nothing."""
        with self._lock:
            if self._thread is None and self._wake >= 0:
                self._thread = threading.Thread(target=self._serve, name="vmmref-broker", daemon=True)
                self._thread.start()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select(self._patience())]
                if self._wake in ready:
                    break
                for connection in ready:
                    if connection is self._listener:
                        self._accept(selector)
                    elif isinstance(connection, socket.socket):
                        self._answer(connection)
                        self._hang_up(selector, connection)
                self._drop_late(selector)
            while self._clients:
                self._hang_up(selector, next(iter(self._clients)))

    def _patience(self) -> float | None:
        """Seconds until the first client is late; None while there is none."""
        for deadline in self._clients.values():
            return max(0.0, deadline - time.monotonic())
        return None

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError as error:
            # BRK-2: a client that has vanished again is no matter. Without a descriptor left, the one that is asking
            # stays in the queue; asking for it again at once would keep a processor busy.
            if error.errno in (errno.EMFILE, errno.ENFILE):
                select.select([self._wake], [], [], _PAUSE_SECONDS)
            return
        client.setblocking(False)
        peer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        # BRK-1: another user is hung up on without a word, whatever token it has.
        if _CREDENTIALS.unpack(peer)[1] != os.geteuid():
            client.close()
            return
        if len(self._clients) == _MOST_CLIENTS:
            self._hang_up(selector, next(iter(self._clients)))
        selector.register(client, selectors.EVENT_READ)
        self._clients[client] = time.monotonic() + _CLIENT_SECONDS

    def _answer(self, client: socket.socket) -> None:
        """Send the descriptor to a client that shows the token; the others learn nothing."""
        with contextlib.suppress(OSError):
            if hmac.compare_digest(client.recv(TOKEN_BYTES + 1), self._token):
                descriptors = array.array("i", [self._descriptor])
                # One byte into an empty buffer: it never has to wait.
                client.sendmsg([b"\1"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])

    def _hang_up(self, selector: selectors.BaseSelector, client: socket.socket) -> None:
        # A client that was dropped for a newer one may still be among those that were ready.
        if self._clients.pop(client, None) is not None:
            selector.unregister(client)
            client.close()

    def _drop_late(self, selector: selectors.BaseSelector) -> None:
        now = time.monotonic()
        for client in [client for client, deadline in self._clients.items() if deadline <= now]:
            self._hang_up(selector, client)

    def close(self, timeout_seconds: float) -> None:
        """Stop serving, hang up on every client and close the socket; the second time does nothing.

        The thread waits for nobody, so it ends at once; BrokerError if it has not within `timeout_seconds` (BRK-3).
        """
        with self._lock:
            thread = self._thread
            if thread is not None:
                os.eventfd_write(self._wake, 1)
                thread.join(timeout_seconds)
                if thread.is_alive():
                    message = f"{self._transport_name} POSIX FD broker failed: its thread has not ended in time"
                    raise BrokerError(Reason.BROKER_FAILED, "BRK-3", message)
                self._thread = None
            if self._wake >= 0:
                self._listener.close()
                os.close(self._wake)
                self._wake = -1


def _connect(client: socket.socket, name: bytes) -> None:
    """Connect; a broker whose queue is full for the moment is asked again, until the client's patience ends."""
    deadline = time.monotonic() + _REQUEST_SECONDS
    while True:
        try:
            return client.connect(name)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_PAUSE_SECONDS)


def request_descriptor(locator: bytes, transport_name: str) -> int:
    """A descriptor of the pool from its producer's broker; the caller closes it. Close-on-exec.

    Raises BrokerError in bounded time when the broker is gone, does not answer, or answers with no descriptor.
    """
    message = f"{transport_name} POSIX FD broker returned no file descriptor"
    token, name = locator[:TOKEN_BYTES], locator[TOKEN_BYTES:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as client:
            client.settimeout(_REQUEST_SECONDS)
            _connect(client, name)
            client.sendall(token)
            # HND-6: recv_fds of the standard library ignores the flag, so recvmsg it is.
            answer, ancillary, _, _ = client.recvmsg(1, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
    except OSError as error:
        raise BrokerError(Reason.NO_DESCRIPTOR, "BRK-3", f"{message}: {error}") from error
    received = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
    if answer != b"\1" or len(received) != 1:
        for descriptor in received:
            os.close(descriptor)
        raise BrokerError(Reason.NO_DESCRIPTOR, "BRK-3", message)
    return received[0]
