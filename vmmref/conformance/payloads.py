"""Payload specifications made real: bytes and digests by the standard library alone, tensors where torch is asked for.

The bytes of a payload are SHAKE-128 of its dtype, shape and seed, so that a port in any language can make the same
ones. Drawing, digests and sizes need no torch; only `source` and `digest` touch tensors.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import warnings
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING

from vmmref_models.operations import Payload

if TYPE_CHECKING:
    import torch

LAYOUTS: tuple[str, ...] = ("contiguous", "transposed", "expanded")
"""How a source may lie in memory before it is published; what a reader gets back is always the same values."""

ELEMENT_BYTES: dict[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "uint32": 4,
    "int32": 4,
    "float32": 4,
    "complex32": 4,
    "uint64": 8,
    "int64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes of one element of each dtype that a payload may have, by torch's name for it."""


def element_bytes(dtype: str) -> int:
    """Bytes of one element; raises ValueError for a dtype that no payload can have."""
    try:
        return ELEMENT_BYTES[dtype]
    except KeyError:
        raise ValueError(f'no payload has dtype "{dtype}"; known are {", ".join(sorted(ELEMENT_BYTES))}') from None


def nbytes(payload: Payload) -> int:
    """Bytes of the payload's values: product of its shape times the element size."""
    return math.prod(payload.shape) * element_bytes(payload.dtype)


@lru_cache(maxsize=8192)
def values(payload: Payload) -> bytes:
    """The payload's values as contiguous little-endian bytes, in row-major order of its shape."""
    rows = payload.shape[0] if payload.layout == "expanded" and payload.shape else 1
    distinct = nbytes(payload) // rows if rows else 0
    name = f"{payload.dtype}{list(payload.shape)}{payload.seed}"
    stream = hashlib.shake_128(name.encode()).digest(distinct)
    if payload.dtype == "bool":
        # Any other byte than 0 and 1 is no bool: reading it is undefined.
        stream = bytes(byte & 1 for byte in stream)
    return stream * rows


def digest_of_bytes(dtype: str, shape: tuple[int, ...], contiguous: bytes | memoryview) -> int:
    """CRC-32 over dtype name, shape and contiguous bytes: what `Publish.digest` and `Outcome.digest` mean."""
    return zlib.crc32(contiguous, _header(dtype, shape))


@lru_cache(maxsize=4096)
def _header(dtype: str, shape: tuple[int, ...]) -> int:
    return zlib.crc32(f"{dtype}{list(shape)}".encode())


@lru_cache(maxsize=8192)
def expected_digest(payload: Payload) -> int:
    """The digest that every reader of this payload must report."""
    return digest_of_bytes(payload.dtype, payload.shape, values(payload))


@lru_cache(maxsize=8192)
def source(payload: Payload, device: str = "cpu") -> torch.Tensor:
    """The payload as a tensor on a torch device, laid out as it says. Shared between calls: never write to it.

    Raises ValueError for a dtype or layout that no payload can have.
    """
    import torch

    if payload.layout not in LAYOUTS:
        raise ValueError(f'no payload has layout "{payload.layout}"; known are {", ".join(LAYOUTS)}')
    with warnings.catch_warnings():
        # torch calls complex32 experimental, once a process; a pool only moves its bytes.
        warnings.filterwarnings("ignore", message="ComplexHalf support is experimental")
        flat = torch.frombuffer(bytearray(values(payload)), dtype=torch.uint8)
        return _laid_out(flat.view(getattr(torch, payload.dtype)).reshape(payload.shape).to(device), payload)


def _laid_out(tensor: torch.Tensor, payload: Payload) -> torch.Tensor:
    import torch

    if payload.layout == "expanded" and payload.shape:
        return tensor[:1].clone().expand(payload.shape)
    if payload.layout == "transposed" and len(payload.shape) >= 2:
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    if payload.layout == "transposed" and payload.shape:
        return torch.stack((tensor, tensor), dim=1)[:, 0]
    return tensor


def digest(tensor: torch.Tensor) -> int:
    """CRC-32 of a tensor's dtype name, shape and contiguous bytes, wherever it lies."""
    import torch

    if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        held = tensor.detach().cpu().resolve_conj().resolve_neg()
        tensor = held.clone(memory_format=torch.contiguous_format)
    # Not through numpy or a byte view: both refuse some dtypes, and both cost more than the checksum.
    contiguous = ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.nbytes else b""
    return digest_of_bytes(_dtype_name(tensor.dtype), tuple(tensor.shape), contiguous)


@lru_cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
