"""The payloads that an episode draws from: a few dozen a size of data area, the simplest first."""

from __future__ import annotations

from functools import lru_cache

from vmmref.conformance import payloads
from vmmref_models.observation import ALIGNMENT
from vmmref_models.operations import Payload


@lru_cache(maxsize=256)
def deck(dtypes: tuple[str, ...], data_size: int, whole: bool, ordinary: bool = False) -> tuple[Payload, ...]:
    """Payloads without seeds, simplest first, for a data area: some smaller, some that fill it, one that never fits.

    `whole` deals every dtype in every layout, 0-dim too; otherwise sizes count most.
    `ordinary` leaves out 0-dim tensors and strided ones with a dimension of one element, which torch calls contiguous.
    """
    units = data_size // ALIGNMENT
    bytes_wide = next((dtype for dtype in dtypes if payloads.element_bytes(dtype) == 1), dtypes[0])
    size = payloads.element_bytes(bytes_wide)
    lengths = [1, ALIGNMENT, ALIGNMENT + size, ALIGNMENT // 2 * 3]
    lengths += [n * ALIGNMENT for n in range(2, units + 2)] if units <= 6 else [data_size // 4, data_size // 2]
    lengths += [data_size, data_size - size, data_size + size]
    sized = [Payload(bytes_wide, (max(1, length // size),), 0) for length in lengths]
    typed = [
        _shaped(dtype, shape, layout)
        for dtype in dtypes
        for shape in _shapes(data_size)
        for layout in payloads.LAYOUTS
        if not ordinary or (shape and not (layout == "transposed" and 1 in shape))
    ]
    fitting = [payload for payload in dict.fromkeys(typed) if payloads.nbytes(payload) <= data_size + ALIGNMENT]
    return tuple(dict.fromkeys([*sized[:1], *fitting])) if whole else (*sized, *fitting[:: max(1, len(fitting) // 6)])


@lru_cache(maxsize=256)
def small_cards(dtypes: tuple[str, ...], data_size: int, whole: bool, ordinary: bool = False) -> tuple[int, ...]:
    """The numbers of the payloads of `deck` of which a data area holds several: what packs are made of."""
    cards = deck(dtypes, data_size, whole, ordinary)
    return tuple([index for index, card in enumerate(cards) if payloads.nbytes(card) <= data_size // 4]) or (0,)


def _shapes(data_size: int) -> tuple[tuple[int, ...], ...]:
    return ((), (1,), (3,), (2, 3), (3, 1, 5), (8, 8), (2, 3, 2, 7), (data_size // 16, 2))


def _shaped(dtype: str, shape: tuple[int, ...], layout: str) -> Payload:
    return Payload(dtype, shape, 0, layout if len(shape) > (layout == "transposed") or shape == (3,) else "contiguous")


@lru_cache(maxsize=16384)
def dealt(
    dtypes: tuple[str, ...], data_size: int, whole: bool, ordinary: bool, index: int, seed: int
) -> tuple[Payload, int, int]:
    """One payload of `deck` with a seed, its bytes, and its digest."""
    plain = deck(dtypes, data_size, whole, ordinary)[index]
    payload = Payload(plain.dtype, plain.shape, seed, plain.layout)
    return payload, payloads.nbytes(payload), payloads.expected_digest(payload)
