"""Broken requests: what becomes of a request of many tensors when one of them fails, or finds no room."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from vmmref.conformance.faulty.broken import broken
from vmmref.groups import Ranks
from vmmref.packed import PackedTensorProxy
from vmmref.pool import VmmMemoryPool
from vmmref.proxy import TensorProxy
from vmmref.transport import FeatureTransport, PublishedRequest


@broken("TRN-1", flavour="requests")
class NeedsNoProcessor(FeatureTransport):
    """Does without a processor: no field is a feature then, and all of them travel by value."""

    def __init__(self, pool: VmmMemoryPool, *, processor: Any = None) -> None:
        super().__init__(pool, processor=processor or object())


@broken("TRN-2", flavour="requests")
class LeavesWhatItHas(FeatureTransport):
    """Raises at the first tensor that fails, and leaves the leases of those before."""

    @contextmanager
    def _whole_or_not(self, request: PublishedRequest) -> Iterator[None]:
        yield


@broken("TRN-2", flavour="requests")
class LeavesProxiesInTheFields(FeatureTransport):
    """Cancels the leases of a request that is taken back, and leaves its fields as they are."""

    def _undo(self, request: PublishedRequest) -> list[BaseException]:
        request._placed.clear()
        return super()._undo(request)


@broken("TRN-2", flavour="requests")
class KeepsTheRest(FeatureTransport):
    """Does not release the rest of a request of which one field could not be received: its leases never come back."""

    @staticmethod
    def receive(
        fields: Mapping[str, Any], device: Any, consumer_count: int | None = None, consumer_rank: Ranks = None
    ) -> dict[str, Any]:
        return {
            name: value.reconstruct_on_target_device(device, consumer_count, consumer_rank)
            if isinstance(value, TensorProxy | PackedTensorProxy)
            else value
            for name, value in fields.items()
        }


@broken("TRN-3", flavour="requests")
class LetsContainersPass(FeatureTransport):
    """Passes a list of tensors on as it is: it travels by value, slowly and uncounted."""

    def _check(self, fields: Any, terms: Any) -> dict[str, torch.Tensor]:
        plain = {name: value for name, value in fields.items() if isinstance(value, torch.Tensor)}
        return super()._check(plain, terms)


@broken("TRN-4", flavour="requests")
class LendsTheTensorItself(FeatureTransport):
    """Hands the caller's own tensor on when the pool is full: what is written to it afterwards travels, too."""

    def _host_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        super()._host_copy(tensor)
        return tensor


@broken("TRN-4", flavour="requests")
class WarnsEveryTime(FeatureTransport):
    """Warns of every tensor that finds no room: a busy pool fills the log."""

    def _host_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        self._warned = False
        return super()._host_copy(tensor)
