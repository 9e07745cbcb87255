"""Broken brokers: who gets a descriptor, who has to wait, and what is said of a broker's end."""

from __future__ import annotations

import contextlib
import socket

from vmmref.broker import DescriptorBroker
from vmmref.conformance.faulty.broken import broken
from vmmref.errors import BrokerError


@broken("BRK-1", flavour="brokers")
class ServesWhoeverConnects(DescriptorBroker):
    """Takes the socket's random name for a secret, and asks for no token."""

    def _answer(self, client: socket.socket) -> bool:
        self._token = _first_message(client)
        return super()._answer(client)


def _first_message(client: socket.socket) -> bytes:
    with contextlib.suppress(OSError):
        return client.recv(64, socket.MSG_PEEK)[:33]
    return b""


@broken("BRK-1", flavour="brokers")
class ComparesHalfATokenOnly(DescriptorBroker):
    """Compares as many bytes as it was shown: an empty token is right, and the rest can be guessed byte by byte."""

    def _answer(self, client: socket.socket) -> bool:
        token, shown = self._token, _first_message(client)
        self._token = token[: len(shown)]
        try:
            return super()._answer(client)
        finally:
            self._token = token


@broken("BRK-2", flavour="brokers")
class ServesOneAtATime(DescriptorBroker):
    """Waits for each client's token before it looks at the next one: a silent client stops the service."""

    def _answer(self, client: socket.socket) -> bool:
        client.settimeout(1.6)
        with contextlib.suppress(OSError):
            client.recv(1, socket.MSG_PEEK)
        client.setblocking(False)
        return super()._answer(client)


@broken("BRK-3", flavour="brokers")
class SaysNothingOfItsEnd(DescriptorBroker):
    """Keeps to itself that its thread has not ended: the pool's memory goes away under it."""

    def close(self, timeout_seconds: float) -> None:
        with contextlib.suppress(BrokerError):
            super().close(timeout_seconds)
