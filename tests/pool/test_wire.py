"""The wire form of a proxy: what is written comes back, and no bytes at all do more than be refused."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmmref import wire
from vmmref.errors import WireFormError
from vmmref.groups import Speakers, declared_speakers, group_of
from vmmref.handles import HandleType
from vmmref.layout import ALIGNMENT, ControlLayout, align_up
from vmmref.lease import PoolCard, PoolLease
from vmmref_models.reasons import Reason

HEAD = struct.calcsize("<8sH16sIQQIHBBIQQQBQBBBBBB")
DATA_BYTES = 64 * ALIGNMENT


@st.composite
def proxies(draw: st.DrawFn) -> wire.Content:
    """Everything a proxy carries, of some lease of some pool."""
    layout = ControlLayout(draw(st.integers(1, 64)), draw(st.integers(1, 8)), draw(st.sampled_from([4, 8])))
    nonce, data_end = draw(st.binary(min_size=16, max_size=16)), layout.data_start + DATA_BYTES
    card = PoolCard(
        nonce, draw(st.text(max_size=20)), draw(st.integers(1, 2**31 - 1)), align_up(data_end, 2**21), data_end,
        layout.slots, layout.consumers, layout.word_bytes, draw(st.sampled_from(list(HandleType))),
        b"", b"\0" + draw(st.binary(min_size=1, max_size=106)), draw(st.sampled_from(["sim:0", "cuda:7"])),
    )  # fmt: skip
    card = replace(card, locator=draw(locators(card.handle_type)))
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
    borrowable = not packed and draw(st.booleans())
    return wire.Content(card, lease, dtype, shape, offset, borrowable, draw(speakers(layout.consumers)))


def locators(handle_type: HandleType) -> st.SearchStrategy[bytes]:
    """Roads to a pool."""
    if handle_type is HandleType.FABRIC:
        return st.binary(min_size=64, max_size=64)
    return st.builds(lambda token, name: token + b"\0" + name, st.binary(min_size=32, max_size=32), st.just(b"broker"))


@st.composite
def speakers(draw: st.DrawFn, consumers: int) -> Speakers:
    """Groups of some ranks, in the form in which they travel."""
    ranks = draw(st.permutations(range(consumers)))
    cuts = sorted(draw(st.sets(st.integers(1, consumers))))
    groups = [ranks[start:end] for start, end in zip([0, *cuts], [*cuts, consumers], strict=True) if start < end]
    return declared_speakers(groups, consumers)


SAMPLE = wire.Content(
    PoolCard(b"n" * 16, "CUDA VMM", 4242, 2**21, 1280, 4, 2, 4, HandleType.POSIX_FD, b"t" * 32 + b"\0broker",
             b"\0beacon", "sim:0"),
    PoolLease(b"n" * 16, 1, 7, 512, 768, 24),
    "float32",
    (2, 3),
    None,
)  # fmt: skip


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
        ("version", 8, "<H", 1),
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
        ("length of the locator", 93, "<B", 33),
        ("length of the beacon", 94, "<B", 0),
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


GROUPED = SAMPLE._replace(card=replace(SAMPLE.card, consumers=4), speakers=(1, 1, 2, 1))
"""As SAMPLE, with the ranks 0 and 3 spoken for by 1. The lease lies behind the words of four ranks, too."""
SPEAKERS = HEAD + 8 * len(GROUPED.shape)
"""Where its speakers begin."""


def test_groups_cost_nothing_where_there_are_none() -> None:
    alone = GROUPED._replace(speakers=())
    assert len(wire.pack(GROUPED)) == len(wire.pack(alone)) + 2 * 4
    assert [wire.unpack(wire.pack(content)) for content in (alone, GROUPED)] == [alone, GROUPED]


@pytest.mark.parametrize(
    "speakers",
    [(0, 1, 2, 3), (1, 0, 2, 1), (4, 1, 2, 1), (1, 1, 2, 65535), (1, 2, 2, 2), (3, 3, 3, 0)],
    ids=["each alone", "a speaker is spoken for", "no rank", "no rank at all", "in a row", "led in a circle"],
)
def test_impossible_groups_are_refused(speakers: tuple[int, ...]) -> None:
    body = bytearray(wire.pack(GROUPED)[:-4])
    struct.pack_into("<4H", body, SPEAKERS, *speakers)
    with pytest.raises(WireFormError) as refusal:
        wire.unpack(sealed(bytes(body)))
    assert refusal.value.reason is Reason.BAD_WIRE_FORM


@given(st.lists(st.integers(0, 5), min_size=4, max_size=4))
def test_whatever_groups_are_accepted_are_groups(speakers: list[int]) -> None:
    body = bytearray(wire.pack(GROUPED)[:-4])
    struct.pack_into("<4H", body, SPEAKERS, *speakers)
    try:
        accepted = wire.unpack(sealed(bytes(body))).speakers
    except WireFormError:
        return
    groups = {speaker: sorted(group_of(speaker, accepted)) for speaker in set(accepted)}
    assert all(speaker in group for speaker, group in groups.items())
    assert sorted(rank for group in groups.values() for rank in group) == [0, 1, 2, 3]


@pytest.mark.parametrize("consumers", [1, 2, 3, 5, 65535])
def test_groups_of_another_number_of_ranks_are_refused(consumers: int) -> None:
    body = bytearray(wire.pack(GROUPED)[:-4])
    struct.pack_into("<H", body, 50, consumers)
    with pytest.raises(WireFormError):
        wire.unpack(sealed(bytes(body)))


@pytest.mark.parametrize(
    "change",
    [
        {"locator": b"t" * 32}, {"locator": b"t" * 32 + b"\0"}, {"locator": b"t" * 32 + b"/run/x"}, {"locator": b""},
        {"locator": b"t" * 32 + b"\0" + b"x" * 107}, {"beacon": b""}, {"beacon": b"/run/x"}, {"beacon": b"\0" * 108},
        {"locator": b"h" * 63, "handle_type": HandleType.FABRIC},
        {"locator": b"h" * 65, "handle_type": HandleType.FABRIC},
    ],
)  # fmt: skip
def test_roads_that_lead_to_no_pool_are_refused(change: dict[str, Any]) -> None:
    """No file is connected to, and no handle is given to the driver that it would read beyond the end of."""
    with pytest.raises(WireFormError) as refusal:
        wire.unpack(wire.pack(SAMPLE._replace(card=replace(SAMPLE.card, **change))))
    assert refusal.value.reason is Reason.BAD_WIRE_FORM


@pytest.mark.parametrize(
    "card", [replace(SAMPLE.card, transport_name="<name>"), replace(SAMPLE.card, device_name="<name>")]
)
def test_names_that_are_no_text_are_refused(card: PoolCard) -> None:
    body = wire.pack(SAMPLE._replace(card=card))[:-4]
    assert body.count(b"<name>") == 1
    with pytest.raises(WireFormError):
        wire.unpack(sealed(body.replace(b"<name>", b"\xff\xfe\xfd\xfc\xfb\xfa")))
