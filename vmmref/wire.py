"""The wire form of a proxy: fixed fields, a version, a checksum. Parsing it executes nothing and trusts nothing.

Little-endian. Version 2:

    magic 8 · version u16 · nonce 16 · producer pid u32 · memory size u64 · data end u64 · slots u32 · consumers u16 ·
    word bytes u8 · handle type u8 · slot u32 · generation u64 · start u64 · nbytes u64 · flags u8 · offset u64 ·
    dtype u8 · dimensions u8 ·
    locator length u8 · beacon length u8 · transport name length u8 · device name length u8 · shape u64 each ·
    where the lease has groups: by rank, who acknowledges for it, u16 each ·
    locator · beacon · transport name · device name · CRC-32 of all before
"""

from __future__ import annotations

import dataclasses
import math
import struct
import zlib
from typing import NamedTuple

from vmmref.beacon import is_beacon_name
from vmmref.broker import TOKEN_BYTES
from vmmref.driver.calls import FABRIC_HANDLE_BYTES
from vmmref.driver.device import is_device_name
from vmmref.errors import WireFormError
from vmmref.groups import Speakers, are_speakers
from vmmref.handles import HandleType
from vmmref.layout import ALIGNMENT, align_up, largest_generation
from vmmref.lease import PoolCard, PoolLease
from vmmref_models.reasons import Reason

MAGIC = b"VMMREFPX"
VERSION = 2
_HEAD = struct.Struct("<8sH16sIQQIHBBIQQQBQBBBBBB")
_PACKED, _BORROWABLE, _GROUPED = 1, 2, 4
_HANDLE_TYPES = (HandleType.POSIX_FD, HandleType.FABRIC)
_MOST_DIMENSIONS = 64
"""As many as torch's own tensors may have."""

ELEMENT_BYTES: dict[str, int] = {
    "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "float16": 2, "float32": 4, "float64": 8,
    "complex32": 4, "complex64": 8, "complex128": 16, "bool": 1, "bfloat16": 2, "float8_e4m3fn": 1,
    "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1, "uint16": 2, "uint32": 4,
    "uint64": 8, "float4_e2m1fn_x2": 1,
}  # fmt: skip
"""Bytes an element of every dtype that may travel, by torch's name. The order is the wire form's: append only."""

_DTYPES = tuple(ELEMENT_BYTES)


def _bad(message: str) -> WireFormError:
    return WireFormError(Reason.BAD_WIRE_FORM, "GEN-5", message)


def refuse_contradiction(card: PoolCard, known: PoolCard) -> None:
    """Raise WireFormError unless a pool's card is the one that this process knows under the same nonce.

    One of the two is forged. A reader that takes the one's numbers into the other's memory is outside the layout.
    """
    if card is known or card == known:
        return
    names = [field.name for field in dataclasses.fields(card)]
    pairs = [(name, getattr(card, name), getattr(known, name)) for name in names]
    # BRK-1: a locator has the token in it, and no error's text may show that.
    told = [
        f"their {name} differ" if isinstance(one, bytes) else f"{name} is {one!r} and {other!r}"
        for name, one, other in pairs
        if one != other
    ]
    raise _bad(f"two proxies of one pool contradict each other: {', '.join(told)}")


class Content(NamedTuple):
    """What a proxy says: the tensor of `dtype` (a name in ELEMENT_BYTES) and `shape` that lies in a lease.

    `offset` is None for a tensor that has the lease for itself; for one of a pack, its place in the lease.
    `borrowable` says whether consumers may look at the bytes in place (CON-6). `speakers` says by rank who acknowledges
    for it, () = each rank for itself (ACK-4).
    """

    card: PoolCard
    lease: PoolLease
    dtype: str
    shape: tuple[int, ...]
    offset: int | None = None
    borrowable: bool = False
    speakers: Speakers = ()


def pack(content: Content) -> bytes:
    """The bytes of a proxy."""
    card, lease, dtype, shape, offset, borrowable, speakers = content
    flags = (_PACKED if offset is not None else 0) | (_BORROWABLE if borrowable else 0)
    flags |= _GROUPED if speakers else 0
    name, device = card.transport_name.encode(), card.device_name.encode()
    head = _HEAD.pack(
        MAGIC, VERSION, card.nonce, card.producer_pid, card.memory_size, card.data_end, card.slots, card.consumers,
        card.word_bytes, _HANDLE_TYPES.index(card.handle_type), lease.slot, lease.generation, lease.start, lease.nbytes,
        flags, offset or 0, _DTYPES.index(dtype), len(shape), len(card.locator), len(card.beacon), len(name),
        len(device),
    )  # fmt: skip
    numbers = struct.pack(f"<{len(shape)}Q{len(speakers)}H", *shape, *speakers)
    body = head + numbers + card.locator + card.beacon + name + device
    return body + struct.pack("<I", zlib.crc32(body))


def unpack(data: bytes) -> Content:
    """The inverse of `pack`; raises WireFormError, with what is wrong, for anything that `pack` cannot have written."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise _bad(f"a proxy's wire form is bytes, not {type(data).__name__}")
    data = bytes(data)
    if len(data) < _HEAD.size + 4 or data[:8] != MAGIC:
        raise _bad(f"{len(data)} bytes that are no vmmref proxy")
    (
        _, version, nonce, pid, memory_size, data_end, slots, consumers, word_bytes, handle_type, slot, generation,
        start, nbytes, flags, offset, dtype, dimensions, *lengths,
    ) = _HEAD.unpack_from(data)  # fmt: skip
    if version != VERSION:
        raise _bad(f"proxy of version {version}; this vmmref knows version {VERSION}")
    grouped = consumers if flags & _GROUPED else 0
    texts = _HEAD.size + 8 * dimensions + 2 * grouped
    length = texts + sum(lengths)
    if len(data) != length + 4 or struct.unpack_from("<I", data, length)[0] != zlib.crc32(data[:length]):
        raise _bad(f"proxy of {len(data)} bytes is cut off or altered")
    packed = bool(flags & _PACKED)
    # CON-6: the children of a pack are one copy; none of them can be borrowed.
    if flags & ~(_PACKED | _BORROWABLE | _GROUPED) or (offset and not packed) or (packed and flags & _BORROWABLE):
        raise _bad(f"proxy with flags {flags} and offset {offset}: not known here")
    if handle_type >= len(_HANDLE_TYPES) or dtype >= len(_DTYPES) or dimensions > _MOST_DIMENSIONS:
        raise _bad(f"proxy names handle type {handle_type}, dtype {dtype}, {dimensions} dimensions: not known here")
    numbers = struct.unpack_from(f"<{dimensions}Q{grouped}H", data, _HEAD.size)
    shape, speakers = numbers[:dimensions], numbers[dimensions:]
    locator, beacon, name, device = _texts(data, texts, lengths)
    card = PoolCard(
        nonce, _text(name), pid, memory_size, data_end, slots, consumers, word_bytes, _HANDLE_TYPES[handle_type],
        locator, beacon, _text(device),
    )  # fmt: skip
    lease = PoolLease(nonce, slot, generation, start, start + align_up(nbytes, ALIGNMENT), nbytes)
    place = offset if packed else None
    content = Content(card, lease, _DTYPES[dtype], shape, place, bool(flags & _BORROWABLE), speakers)
    _check(content)
    return content


def _texts(data: bytes, start: int, lengths: list[int]) -> list[bytes]:
    """Consecutive pieces of `data` from `start` on, of so many bytes each."""
    pieces = []
    for length in lengths:
        pieces.append(data[start : start + length])
        start += length
    return pieces


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _bad(f"proxy with a name that is no text: {error}") from error


def _check(content: Content) -> None:
    """Refuse fields that would make a reader touch bytes outside the pool or another lease's words."""
    card, lease, dtype, shape, offset, _, speakers = content
    _check_roads(card)
    if card.word_bytes not in (4, 8) or not card.consumers or not card.slots:
        raise _bad(f"proxy of a pool with {card.slots} slots, {card.consumers} ranks, {card.word_bytes}-byte words")
    if not are_speakers(speakers, card.consumers):
        raise _bad(f"proxy with groups of {card.consumers} ranks in which a speaker is spoken for: {speakers[:8]} ...")
    if lease.slot >= card.slots or not 0 < lease.generation <= largest_generation(card.word_bytes):
        raise _bad(f"proxy of lease (slot={lease.slot}, generation={lease.generation}) in a pool of {card.slots} slots")
    inside = card.layout.data_start <= lease.start and lease.end <= card.data_end <= card.memory_size
    if lease.start % ALIGNMENT or not inside or not lease.nbytes:
        raise _bad(f"proxy of bytes [{lease.start}, {lease.end}) outside its pool's data [.., {card.data_end})")
    nbytes, element = math.prod(shape) * ELEMENT_BYTES[dtype], ELEMENT_BYTES[dtype]
    if offset is None and nbytes != lease.nbytes:
        raise _bad(f"proxy of {lease.nbytes} bytes for a {dtype} tensor of shape {shape}")
    # PACK-2
    if offset is not None and (not nbytes or offset % element or offset + nbytes > lease.nbytes):
        raise _bad(f"proxy of a {dtype} tensor of shape {shape} at {offset} of a pack of {lease.nbytes} bytes")


def _check_roads(card: PoolCard) -> None:
    """Refuse ways to the pool that could not be a pool's: a file's name, or a handle that the driver reads beyond."""
    locator, fabric = card.locator, card.handle_type is HandleType.FABRIC
    socket_name = locator[TOKEN_BYTES:]
    if len(locator) != FABRIC_HANDLE_BYTES if fabric else not is_beacon_name(socket_name):
        raise _bad(f"proxy with a {card.handle_type} locator of {len(locator)} bytes")
    if not is_beacon_name(card.beacon):
        raise _bad(f"proxy with a beacon of {len(card.beacon)} bytes, or one that is a file's")
    if not is_device_name(card.device_name):
        # A consumer that names no device acts on the producer's, and finds its import by this very name.
        raise _bad(f"proxy of a pool on {card.device_name!r}, which names no device")
