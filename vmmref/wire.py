"""The wire form of a proxy: fixed fields, a version, a checksum. Parsing it executes nothing and trusts nothing.

Little-endian. Version 1:

    magic 8 · version u16 · nonce 16 · producer pid u32 · memory size u64 · data end u64 · slots u32 · consumers u16 ·
    word bytes u8 · handle type u8 · slot u32 · generation u64 · start u64 · nbytes u64 · flags u8 · offset u64 ·
    dtype u8 · dimensions u8 ·
    locator length u8 · transport name length u8 · device name length u8 · shape u64 each · locator · transport name ·
    device name · CRC-32 of all before
"""

from __future__ import annotations

import math
import struct
import zlib
from typing import NamedTuple

from vmmref.errors import WireFormError
from vmmref.handles import HandleType
from vmmref.layout import ALIGNMENT, align_up, largest_generation
from vmmref.lease import PoolCard, PoolLease
from vmmref_models.reasons import Reason

MAGIC = b"VMMREFPX"
VERSION = 1
_HEAD = struct.Struct("<8sH16sIQQIHBBIQQQBQBBBBB")
_PACKED, _BORROWABLE = 1, 2
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


class Content(NamedTuple):
    """What a proxy says: the tensor of `dtype` (a name in ELEMENT_BYTES) and `shape` that lies in a lease.

    `offset` is None for a tensor that has the lease for itself; for one of a pack, its place in the lease.
    `borrowable` says whether consumers may look at the bytes in place (CON-6).
    """

    card: PoolCard
    lease: PoolLease
    dtype: str
    shape: tuple[int, ...]
    offset: int | None = None
    borrowable: bool = False


def pack(content: Content) -> bytes:
    """The bytes of a proxy."""
    card, lease, dtype, shape, offset, borrowable = content
    flags = (_PACKED if offset is not None else 0) | (_BORROWABLE if borrowable else 0)
    name, device = card.transport_name.encode()[:255], card.device_name.encode()
    head = _HEAD.pack(
        MAGIC, VERSION, card.nonce, card.producer_pid, card.memory_size, card.data_end, card.slots, card.consumers,
        card.word_bytes, _HANDLE_TYPES.index(card.handle_type), lease.slot, lease.generation, lease.start, lease.nbytes,
        flags, offset or 0, _DTYPES.index(dtype), len(shape), len(card.locator), len(name), len(device),
    )  # fmt: skip
    body = head + struct.pack(f"<{len(shape)}Q", *shape) + card.locator + name + device
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
        start, nbytes, flags, offset, dtype, dimensions, locator_length, name_length, device_length,
    ) = _HEAD.unpack_from(data)  # fmt: skip
    if version != VERSION:
        raise _bad(f"proxy of version {version}; this vmmref knows version {VERSION}")
    length = _HEAD.size + 8 * dimensions + locator_length + name_length + device_length
    if len(data) != length + 4 or struct.unpack_from("<I", data, length)[0] != zlib.crc32(data[:length]):
        raise _bad(f"proxy of {len(data)} bytes is cut off or altered")
    packed = bool(flags & _PACKED)
    if flags & ~(_PACKED | _BORROWABLE) or (offset and not packed):
        raise _bad(f"proxy with flags {flags} and offset {offset}: not known here")
    if handle_type >= len(_HANDLE_TYPES) or dtype >= len(_DTYPES) or dimensions > _MOST_DIMENSIONS:
        raise _bad(f"proxy names handle type {handle_type}, dtype {dtype}, {dimensions} dimensions: not known here")
    shape = struct.unpack_from(f"<{dimensions}Q", data, _HEAD.size)
    tail = data[_HEAD.size + 8 * dimensions : length]
    locator, names = tail[:locator_length], tail[locator_length:]
    card = PoolCard(
        nonce, _text(names[:name_length]), pid, memory_size, data_end, slots, consumers, word_bytes,
        _HANDLE_TYPES[handle_type], locator, _text(names[name_length:]),
    )  # fmt: skip
    lease = PoolLease(nonce, slot, generation, start, start + align_up(nbytes, ALIGNMENT), nbytes)
    content = Content(card, lease, _DTYPES[dtype], shape, offset if packed else None, bool(flags & _BORROWABLE))
    _check(content)
    return content


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _check(content: Content) -> None:
    """Refuse fields that would make a reader touch bytes outside the pool or another lease's words."""
    card, lease, dtype, shape, offset, _ = content
    if card.word_bytes not in (4, 8) or not card.consumers or not card.slots:
        raise _bad(f"proxy of a pool with {card.slots} slots, {card.consumers} ranks, {card.word_bytes}-byte words")
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
