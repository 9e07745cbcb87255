"""What holds for any input from outside, whatever it is: the fuzzer and the property tests both ask here."""

from __future__ import annotations

import array
import os
import socket
import struct
import zlib
from collections.abc import Sequence

from vmmref import wire
from vmmref.broker import TOKEN_BYTES
from vmmref.driver.device import parse_device
from vmmref.errors import WireFormError
from vmmref.handles import HandleType
from vmmref.layout import ALIGNMENT
from vmmref.lease import PoolCard, PoolLease
from vmmref.packed import PackedTensorProxy
from vmmref.proxy import TensorProxy

ANSWER_SECONDS = 15.0
"""Longer than a broker lets any client wait."""


def seal(body: bytes) -> bytes:
    """A wire form with the right checksum: only the fields themselves can give it away."""
    return body + struct.pack("<I", zlib.crc32(body))


def bodies() -> list[bytes]:
    """Well-formed proxies of every kind, less their checksums: what mutations begin with."""
    nonce = bytes(range(16))
    socket_road, fabric_road = b"t" * TOKEN_BYTES + b"\0vmmref-broker", b"f" * 64
    small = PoolCard(
        nonce, "CUDA VMM", 4242, 2 << 20, 1280, 4, 2, 4, HandleType.POSIX_FD, socket_road, b"\0life", "sim:0"
    )
    large = PoolCard(
        nonce, "é" * 100, 1, 1 << 40, 1 << 39, 4096, 8, 8, HandleType.FABRIC, fabric_road, b"\0life", "cuda:7"
    )
    first = small.layout.data_start
    lease = PoolLease(nonce, 1, 7, first, first + ALIGNMENT, 24)
    start = large.layout.data_start + ALIGNMENT
    big = PoolLease(nonce, 4095, 2**40, start, start + (1 << 30), 1 << 30)
    contents = [
        wire.Content(small, lease, "float32", (2, 3)),
        wire.Content(small, lease, "uint8", (24,), None, True, (0, 0)),
        wire.Content(small, lease, "bfloat16", (2, 2), 8),
        wire.Content(small, lease, "float64", (), 16, False, (1, 1)),
        wire.Content(large, big, "uint8", (1 << 10, 1 << 10, 1 << 10), None, False, (0, 0, 0, 0, 4, 4, 4, 4)),
        wire.Content(large, big, "complex128", (1,) * 20, 4096),
    ]
    return [wire.pack(content)[:-4] for content in contents]


def claim_of_proxy_bytes(data: bytes) -> int:
    """Bytes that are no proxy are refused by WireFormError alone; what is accepted is a proxy, and writes itself again.

    How many of the two kinds of proxies the bytes are. Raises AssertionError where a claim does not hold.
    """
    accepted = 0
    for kind in (TensorProxy, PackedTensorProxy):
        try:
            proxy = kind.from_bytes(data)
        except WireFormError:
            continue
        accepted += 1
        card, lease = proxy.card, proxy.lease
        assert bytes(proxy) == data, "what was accepted writes itself otherwise"
        assert card.layout.data_start <= lease.start < lease.end <= card.data_end <= card.memory_size, lease
        assert lease.slot < card.slots, lease
        # A consumer that names no device acts on the producer's.
        parse_device(card.device_name)
    return accepted


def claim_of_requests(locator: bytes, content: bytes, requests: Sequence[Sequence[bytes]]) -> int:
    """A connection that says the token, and no other, gets one descriptor, of the file with `content`.

    Each request is what one connection says, message by message; all are open at a time. One that says more than the
    token may be hung up on before it has its answer. How many were served. Raises AssertionError where the claim does
    not hold, TimeoutError where the broker neither answers nor hangs up.
    """
    token, name = locator[:TOKEN_BYTES], locator[TOKEN_BYTES:]
    clients: list[socket.socket] = []
    served = 0
    try:
        for request in requests:
            clients.append(_said(name, request))
        for client, request in zip(clients, requests, strict=True):
            if not request:
                continue
            answer, descriptors = _answer(client)
            contents = [_content(descriptor) for descriptor in descriptors]
            given = (answer, contents) == (b"\1", [content])
            refused = (answer, contents) == (b"", []) and list(request) != [token]
            assert refused or (given and request[0] == token), f"{request!r} got {answer!r} and {contents!r}"
            served += given
    finally:
        for client in clients:
            client.close()
    return served


def _said(name: bytes, request: Sequence[bytes]) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    client.settimeout(ANSWER_SECONDS)
    try:
        client.connect(name)
        for message in request:
            client.send(message)
    except (BrokenPipeError, ConnectionResetError):
        # Hung up on after its first message.
        pass
    except BaseException:
        client.close()
        raise
    return client


def _answer(client: socket.socket) -> tuple[bytes, list[int]]:
    try:
        answer, ancillary, _, _ = client.recvmsg(64, socket.CMSG_SPACE(64), socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return b"", []
    received = array.array("i")
    for _, _, data in ancillary:
        received.frombytes(data[: len(data) - len(data) % received.itemsize])
    return answer, list(received)


def _content(descriptor: int) -> bytes:
    try:
        return os.pread(descriptor, 4096, 0)
    finally:
        os.close(descriptor)
