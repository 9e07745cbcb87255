"""Whatever bytes come from outside: proxies and requests are parsed or refused, in bounded memory, and nothing else."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vmmref import wire
from vmmref.broker import TOKEN_BYTES, DescriptorBroker
from vmmref.conformance.campaigns.claims import bodies, claim_of_proxy_bytes, claim_of_requests, seal
from vmmref.errors import WireFormError
from vmmref.packed import PackedTensorProxy

BODIES = bodies()
CONTENT = b"the pool's memory"
MOST_ALLOCATED_BYTES = 64 << 10
"""For parsing one proxy of at most a few hundred bytes."""
EDGES = [value + near for value in (0, 2**7, 2**8, 2**16, 2**31, 2**32, 2**62, 2**63) for near in (-1, 0, 1)]
"""Where integers of any size go wrong."""


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """The body of a good proxy after a few changes of any kind."""
    body = bytearray(draw(st.sampled_from(BODIES)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(body)))
        change = draw(st.sampled_from(["bytes", "edge", "insert", "delete", "copy"]))
        if change == "bytes":
            body[place : place + 8] = draw(st.binary(min_size=1, max_size=8))
        elif change == "edge":
            form, mask = draw(st.sampled_from([("<B", 2**8), ("<H", 2**16), ("<I", 2**32), ("<Q", 2**64)]))
            value = struct.pack(form, draw(st.sampled_from(EDGES)) % mask)
            body[place : place + len(value)] = value
        elif change == "insert":
            body[place:place] = draw(st.binary(min_size=1, max_size=70))
        elif change == "delete":
            del body[place : place + draw(st.integers(1, 70))]
        else:
            source = draw(st.integers(0, len(body)))
            body[place : place + 8] = body[source : source + 8]
    return bytes(body)


@pytest.mark.parametrize("body", BODIES)
def test_every_sample_is_a_proxy_of_one_kind(body: bytes) -> None:
    assert claim_of_proxy_bytes(seal(body)) == 1


@settings(max_examples=300)
@given(mutations())
def test_mutated_proxies_are_refused_or_write_themselves_again(body: bytes) -> None:
    claim_of_proxy_bytes(seal(body))
    claim_of_proxy_bytes(body)


@settings(max_examples=300)
@given(st.binary(max_size=600))
def test_any_bytes_are_refused_or_write_themselves_again(data: bytes) -> None:
    for each in (data, seal(data), seal(wire.MAGIC + struct.pack("<H", wire.VERSION) + data)):
        claim_of_proxy_bytes(each)


@settings(max_examples=100)
@given(mutations())
def test_parsing_takes_bounded_memory(body: bytes) -> None:
    """Lengths and counts in the bytes are numbers of somebody else's: nothing is allocated on their word."""
    data = seal(body)
    tracemalloc.start()
    try:
        parsed_or_refused(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_ALLOCATED_BYTES


def parsed_or_refused(data: bytes) -> None:
    try:
        wire.unpack(data)
    except WireFormError:
        return


def test_a_forged_sibling_does_not_become_one_of_the_pack() -> None:
    """Same pool, slot and generation, but other bytes or another road: never the pack that this process knows."""
    sibling = next(body for body in BODIES if wire.unpack(seal(body)).offset is not None)
    known = PackedTensorProxy.from_bytes(seal(sibling))
    content = wire.unpack(seal(sibling))
    shorter = content.lease._replace(nbytes=content.lease.nbytes + 8)
    forged = wire.pack(content._replace(lease=shorter))
    try:
        proxy = PackedTensorProxy.from_bytes(forged)
    except WireFormError:
        return
    assert bytes(proxy) == forged
    assert known.lease != proxy.lease


@pytest.fixture(scope="module")
def locator() -> Iterator[bytes]:
    """A serving broker; this process has as many descriptors at the end as in the beginning."""
    before = len(os.listdir("/proc/self/fd"))
    descriptor = os.memfd_create("pool", os.MFD_CLOEXEC)
    os.write(descriptor, CONTENT)
    broker = DescriptorBroker(descriptor, "CUDA VMM")
    broker.start()
    yield broker.locator
    broker.close(10)
    os.close(descriptor)
    assert len(os.listdir("/proc/self/fd")) == before


@settings(max_examples=100)
@given(st.data())
def test_only_who_begins_with_the_token_is_served(locator: bytes, data: st.DataObject) -> None:
    token = locator[:TOKEN_BYTES]
    messages = st.one_of(
        st.just(token),
        st.binary(max_size=100),
        st.integers(0, TOKEN_BYTES).map(lambda length: token[:length]),
        st.binary(min_size=1, max_size=50).map(lambda noise: token + noise),
        st.integers(0, 8 * TOKEN_BYTES - 1).map(lambda bit: flipped(token, bit)),
    )
    requests = data.draw(st.lists(st.lists(messages, max_size=4), max_size=6))
    served = claim_of_requests(locator, CONTENT, [*requests, [token]])
    assert served > requests.count([token])


def flipped(token: bytes, bit: int) -> bytes:
    changed = bytearray(token)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
