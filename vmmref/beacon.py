"""A sign of life that ends with its owner: an abstract socket that listens exactly as long as a pool lives."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import weakref

from vmmref.errors import BrokerError
from vmmref_models.reasons import Reason

_PREFIX = b"\0vmmref-life-"
LONGEST_NAME_BYTES = 107
"""What a socket address has room for (struct sockaddr_un)."""
_CREDENTIALS = struct.Struct("3i")
"""struct ucred: process, user and group of the peer, filled in by the kernel."""
_strange: set[bytes] = set()
"""Names that another user has listened to: a name is random and used once, so its pool has ended for good."""


def is_beacon_name(name: bytes) -> bool:
    """Whether a name from outside may be asked: an abstract one, so that no file is ever touched."""
    return name[:1] == b"\0" and 1 < len(name) <= LONGEST_NAME_BYTES


def peer_user(connected: socket.socket) -> int:
    """The user id of a connected socket's other end; for a client, of who listens. Raises OSError."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(credentials)[1]
    return user


class Beacon:
    """Listens under `name`, random, until `close` or the end of the process; nobody is ever accepted.

    The kernel refuses a connection to a name that nobody listens to, at once, also after the process was killed and its
    number given to another one. So who asks needs no answer: that the connection is not refused is the answer. Both
    sides have to share a network namespace. Raises BrokerError where no socket can be had.
    """

    def __init__(self) -> None:
        self.name = _PREFIX + secrets.token_hex(16).encode()
        try:
            self._listener = self._listen()
        except OSError as error:
            message = f"no socket can be had for a pool's sign of life: {error}"
            raise BrokerError(Reason.BROKER_FAILED, "HND-4", message) from error
        _lit.add(self)

    def _listen(self) -> socket.socket:
        with contextlib.ExitStack() as taken:
            listener = taken.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC))
            listener.bind(self.name)
            # No queue to speak of: a full one says "alive" as well, and holds no more than one visitor's socket.
            listener.listen(0)
            taken.pop_all()
        return listener

    def close(self) -> None:
        """Stop listening; the second time does nothing."""
        # A forked child that still holds the socket would keep it listening.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def leave_to_parent(self) -> None:
        """In a forked child: let go of the socket, which is the parent's sign of life and not the child's."""
        self._listener.close()


_lit: weakref.WeakSet[Beacon] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for beacon in tuple(_lit):
        beacon.leave_to_parent()


# HND-7: else a helper that was forked before the producer died would hide its death for as long as it runs.
os.register_at_fork(after_in_child=_leave_all_to_parent)


def is_dark(name: bytes) -> bool:
    """Whether nobody of this user listens to a beacon's name. Never waits; where it cannot be told, it is not."""
    if name in _strange:
        return True
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as visitor:
            visitor.setblocking(False)
            visitor.connect(name)
            # BRK-1: the names of dead producers are free again, and listed for every user while they live.
            strange = peer_user(visitor) != os.geteuid()
    except ConnectionRefusedError:
        return True
    except OSError:
        # A full queue (somebody listens), or no descriptor left for asking.
        return False
    if strange:
        # Nobody empties its queue: the next visitor may not be told who listens.
        _strange.add(name)
    return strange
