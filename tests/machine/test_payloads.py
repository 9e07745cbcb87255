"""Payloads: the same values by standard library and by torch, for every dtype and layout."""

from __future__ import annotations

import pytest
import torch

from vmmref.conformance import payloads
from vmmref_models.operations import Payload, Publish


def published(lease: int, seed: int) -> Publish:
    """A publication of one byte."""
    payload = Payload("uint8", (1,), seed)
    return Publish(lease, payload, payloads.nbytes(payload), payloads.expected_digest(payload))


@pytest.mark.parametrize("dtype", sorted(payloads.ELEMENT_BYTES))
def test_tensor_and_digest_agree(dtype: str) -> None:
    for shape in ((), (1,), (3,), (2, 3), (4, 1, 2)):
        for layout in payloads.LAYOUTS:
            payload = Payload(dtype, shape, 5, layout)
            tensor = payloads.source(payload)
            assert tuple(tensor.shape) == shape
            assert str(tensor.dtype) == f"torch.{dtype}"
            assert tensor.nbytes == payloads.nbytes(payload) == len(payloads.values(payload))
            assert payloads.digest(tensor) == payloads.expected_digest(payload)


def test_layouts_are_what_they_say() -> None:
    assert payloads.source(Payload("int16", (3, 4), 0)).is_contiguous()
    assert not payloads.source(Payload("int16", (3, 4), 0, "transposed")).is_contiguous()
    assert payloads.source(Payload("int16", (3, 4), 0, "expanded")).stride() == (0, 1)
    assert not payloads.source(Payload("int16", (5,), 0, "transposed")).is_contiguous()


def test_digest_tells_payloads_apart() -> None:
    every = [
        Payload(dtype, shape, seed)
        for dtype in ("uint8", "int8", "float32")
        for shape in ((64,), (8, 8), (4, 16))
        for seed in range(8)
    ]
    assert len({payloads.expected_digest(payload) for payload in every}) == len(every)
    plain = torch.arange(12, dtype=torch.int32)
    assert payloads.digest(plain.reshape(3, 4)) != payloads.digest(plain.reshape(4, 3))
    assert payloads.digest(plain) != payloads.digest(plain.view(torch.float32))


def test_conjugate_view_has_the_digest_of_its_values() -> None:
    tensor = payloads.source(Payload("complex64", (6,), 1))
    assert payloads.digest(tensor.conj()) == payloads.digest(tensor.conj().resolve_conj().clone())
    assert payloads.digest(tensor.conj()) != payloads.digest(tensor)


def test_unknown_dtype_and_layout_are_refused() -> None:
    with pytest.raises(ValueError, match="float13"):
        payloads.nbytes(Payload("float13", (1,), 0))
    with pytest.raises(ValueError, match="folded"):
        payloads.source(Payload("uint8", (1,), 0, "folded"))


def test_values_are_fixed_for_ports_in_other_languages() -> None:
    assert payloads.values(Payload("uint8", (4,), 0)).hex() == "967bd1db"
    assert payloads.expected_digest(Payload("uint8", (4,), 0)) == 4026221475
