"""What a public operation is to a test that lets it fail, and what such operations are made with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.rules.toy import Toy, another, bytes_of
from vmmref import FeatureTransport
from vmmref.packed import PackedTensorProxy
from vmmref.proxy import TensorProxy

Act = Callable[[], object]


def nothing() -> None:
    """The end of an operation that leaves nothing for its caller to do."""


class Prepared(NamedTuple):
    """An operation about to be called, and what its caller does afterwards, without faults, whatever came of it."""

    act: Act
    after: Act = nothing


Prepare = Callable[[Toy], Prepared]


def pack(pool: Toy) -> list[PackedTensorProxy]:
    """Two tensors in one lease."""
    children = pool.pool.wrap_tensors([bytes_of(1, 100), bytes_of(2, 60)])
    assert children is not None, "the pool is full"
    return children


def lent(pool: Toy) -> TensorProxy:
    """A lease that may be borrowed."""
    proxy = pool.pool.wrap_tensor(bytes_of(1, 256), borrowable=True)
    assert proxy is not None, "the pool is full"
    return proxy


def give_view_back(pool: Toy, proxy: TensorProxy) -> None:
    """Release what rank 0 may have borrowed, or has failed to."""
    proxy.release_borrowed(2, 0)
    pool.release(another(proxy))


def transport_of(pool: Toy) -> FeatureTransport:
    return FeatureTransport(pool.pool, processor="a processor")


def request() -> dict[str, Any]:
    """Two tensors that share a lease, one that has its own, and what is no tensor."""
    return {"a": bytes_of(1, 100), "b": bytes_of(2, 60), "single": bytes_of(3, 256), "text": "as it is"}


def settle(transport: FeatureTransport) -> None:
    """Try again what a rollback could not do."""
    transport.roll_back()
    assert transport.stats().unfinished == 0
