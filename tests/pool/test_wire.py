"""The wire form of a proxy: what is written comes back, and no bytes at all do more than be refused."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmmref import wire
from vmmref.errors import WireFormError
from vmmref.handles import HandleType
from vmmref.layout import ALIGNMENT, ControlLayout, align_up
from vmmref.lease import PoolCard, PoolLease
from vmmref_models.reasons import Reason

HEAD = struct.calcsize("<8sH16sIQQIHBBIQQQBBBBB")
DATA_BYTES = 64 * ALIGNMENT


@st.composite
def proxies(draw: st.DrawFn) -> wire.Content:
    """Everything a proxy carries, of some lease of some pool."""
    layout = ControlLayout(draw(st.integers(1, 64)), draw(st.integers(1, 8)), draw(st.sampled_from([4, 8])))
    nonce, data_end = draw(st.binary(min_size=16, max_size=16)), layout.data_start + DATA_BYTES
    card = PoolCard(
        nonce, draw(st.text(max_size=20)), draw(st.integers(1, 2**31 - 1)), align_up(data_end, 2**21), data_end,
        layout.slots, layout.consumers, layout.word_bytes, draw(st.sampled_from(list(HandleType))),
        draw(st.binary(max_size=80)), draw(st.sampled_from(["sim:0", "cuda:7"])),
    )  # fmt: skip
    dtype = draw(st.sampled_from(sorted(wire.ELEMENT_BYTES)))
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=4)))
    nbytes = wire.ELEMENT_BYTES[dtype]
    for length in shape:
        nbytes *= length
    packed = draw(st.booleans())
    offset = draw(st.integers(0, 8)) * wire.ELEMENT_BYTES[dtype] if packed else None
    nbytes += (offset or 0) + (draw(st.integers(0, 40)) if packed else 0)
    first = draw(st.integers(0, (DATA_BYTES - align_up(nbytes, ALIGNMENT)) // ALIGNMENT))
    start = layout.data_start + first * ALIGNMENT
    slot, generation = draw(st.integers(0, layout.slots - 1)), draw(st.integers(1, 2**31 - 1))
    lease = PoolLease(nonce, slot, generation, start, start + align_up(nbytes, ALIGNMENT), nbytes)
    return wire.Content(card, lease, dtype, shape, offset, draw(st.booleans()))


SAMPLE = wire.Content(
    PoolCard(b"n" * 16, "CUDA VMM", 4242, 2**21, 1280, 4, 2, 4, HandleType.POSIX_FD, b"locator", "sim:0"),
    PoolLease(b"n" * 16, 1, 7, 512, 768, 24),
    "float32",
    (2, 3),
    None,
)


def sealed(body: bytes) -> bytes:
    """Bytes with a right checksum: only the fields themselves can give them away."""
    return body + struct.pack("<I", zlib.crc32(body))


def altered(offset: int, form: str, value: int) -> bytes:
    body = bytearray(wire.pack(SAMPLE)[:-4])
    struct.pack_into(form, body, offset, value)
    return sealed(bytes(body))


@given(proxies())
def test_round_trip(proxy: wire.Content) -> None:
    assert wire.unpack(wire.pack(proxy)) == proxy


def test_the_sample_is_well_formed() -> None:
    assert wire.unpack(sealed(wire.pack(SAMPLE)[:-4])) == SAMPLE


@pytest.mark.parametrize("length", range(0, len(wire.pack(SAMPLE)), 7))
def test_every_truncation_is_refused(length: int) -> None:
    with pytest.raises(WireFormError) as refusal:
        wire.unpack(wire.pack(SAMPLE)[:length])
    assert refusal.value.reason is Reason.BAD_WIRE_FORM


@given(st.integers(0, len(wire.pack(SAMPLE)) * 8 - 1))
def test_every_flipped_bit_is_refused(bit: int) -> None:
    data = bytearray(wire.pack(SAMPLE))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(WireFormError):
        wire.unpack(bytes(data))


@given(st.binary(max_size=400))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    for attempt in (data, wire.MAGIC + data, sealed(wire.MAGIC + struct.pack("<H", wire.VERSION) + data)):
        with pytest.raises(WireFormError):
            wire.unpack(attempt)


@given(st.binary(min_size=HEAD - 10, max_size=HEAD + 60))
def test_hostile_fields_with_a_right_checksum(data: bytes) -> None:
    """What passes all the same must be a lease inside its pool: nothing else may reach a driver call."""
    body = wire.MAGIC + struct.pack("<H", wire.VERSION) + data
    try:
        card, lease, *_ = wire.unpack(sealed(body))
    except WireFormError:
        return
    assert card.layout.data_start <= lease.start < lease.end <= card.data_end <= card.memory_size
    assert lease.slot < card.slots


@given(st.integers(8, HEAD - 1), st.binary(min_size=1, max_size=8))
def test_hostile_changes_of_a_good_proxy(offset: int, change: bytes) -> None:
    body = bytearray(wire.pack(SAMPLE)[:-4])
    body[offset : offset + len(change)] = change
    try:
        card, lease, dtype, *_ = wire.unpack(sealed(bytes(body)))
    except WireFormError:
        return
    assert card.layout.data_start <= lease.start < lease.end <= card.data_end <= card.memory_size
    assert (lease.slot < card.slots, dtype in wire.ELEMENT_BYTES) == (True, True)


@pytest.mark.parametrize(
    ("field", "offset", "form", "value"),
    [
        ("version", 8, "<H", 2),
        ("slots", 46, "<I", 0),
        ("slots below the lease's", 46, "<I", 1),
        ("consumers", 50, "<H", 0),
        ("word bytes", 52, "<B", 16),
        ("handle type", 53, "<B", 2),
        ("generation 0", 58, "<Q", 0),
        ("generation above the words", 58, "<Q", 2**31),
        ("start in the control words", 66, "<Q", 0),
        ("start off its alignment", 66, "<Q", 520),
        ("start behind the end", 66, "<Q", 2**63),
        ("nbytes", 74, "<Q", 25),
        ("flags", 82, "<B", 4),
        ("offset of what is not packed", 83, "<Q", 4),
        ("dtype", 91, "<B", 255),
        ("dimensions", 92, "<B", 65),
        ("data behind the memory", 38, "<Q", 2**40),
    ],
)
def test_each_impossible_field_is_refused(field: str, offset: int, form: str, value: int) -> None:
    with pytest.raises(WireFormError) as refusal:
        wire.unpack(altered(offset, form, value))
    assert refusal.value.reason is Reason.BAD_WIRE_FORM, field


@pytest.mark.parametrize("what", [None, "VMMREFPX", 7, [1, 2]])
def test_what_is_no_bytes_is_refused(what: object) -> None:
    with pytest.raises(WireFormError, match="wire form is bytes"):
        wire.unpack(what)  # type: ignore[arg-type]
