"""Hands a pool's descriptor to consumer processes: one a request, to the same user with the token only."""

from __future__ import annotations

import array
import contextlib
import hmac
import os
import secrets
import selectors
import socket
import struct
import threading

from vmmref.errors import BrokerError
from vmmref_models.reasons import Reason

TOKEN_BYTES = 32
_CLIENT_SECONDS = 1.0
"""A client has this long to send its token and to take its answer; then the next one is served."""
_REQUEST_SECONDS = 10.0
"""A consumer waits this long for the producer's answer."""
_CREDENTIALS = struct.Struct("3i")
"""struct ucred: process, user and group of the peer, filled in by the kernel."""


class DescriptorBroker:
    """Serves copies of `descriptor` (the caller's own) over an abstract socket, from a thread that `start` begins.

    `locator` is what a client needs: the token, then the socket's name. The name is random, too, but anybody in the
    network namespace can list it, so the token is what counts (BRK-1).
    """

    def __init__(self, descriptor: int, transport_name: str) -> None:
        self._descriptor = descriptor
        self._transport_name = transport_name
        self._token = secrets.token_bytes(TOKEN_BYTES)
        name = b"\0vmmref-" + secrets.token_hex(16).encode()
        self.locator = self._token + name
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except BaseException:
            self._listener.close()
            raise
        try:
            self._listener.bind(name)
            self._listener.listen(128)
            self._listener.settimeout(0)
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
                ready = {key.fd for key, _ in selector.select()}
                if self._wake in ready:
                    return
                # BRK-2: whatever one client does ends with that client.
                with contextlib.suppress(OSError):
                    client, _ = self._listener.accept()
                    with client:
                        self._answer(client)

    def _answer(self, client: socket.socket) -> None:
        client.settimeout(_CLIENT_SECONDS)
        credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, _ = _CREDENTIALS.unpack(credentials)
        token = client.recv(TOKEN_BYTES + 1)
        # BRK-1: the same user and the token; everybody else is hung up on without a word.
        if user != os.geteuid() or not hmac.compare_digest(token, self._token):
            return
        descriptors = array.array("i", [self._descriptor])
        client.sendmsg([b"\1"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])

    def close(self, timeout_seconds: float) -> bool:
        """Stop serving and close the socket; False when the thread is still with a client after `timeout_seconds`."""
        with self._lock:
            thread = self._thread
            if thread is not None:
                os.eventfd_write(self._wake, 1)
                thread.join(timeout_seconds)
                if thread.is_alive():
                    return False
                self._thread = None
            if self._wake >= 0:
                self._listener.close()
                os.close(self._wake)
                self._wake = -1
        return True


def request_descriptor(locator: bytes, transport_name: str) -> int:
    """A descriptor of the pool from its producer's broker; the caller closes it. Close-on-exec.

    Raises BrokerError in bounded time when the broker is gone, does not answer, or answers with no descriptor.
    """
    message = f"{transport_name} POSIX FD broker returned no file descriptor"
    token, name = locator[:TOKEN_BYTES], locator[TOKEN_BYTES:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as client:
            client.settimeout(_REQUEST_SECONDS)
            client.connect(name)
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
