"""Broken packs: how several tensors share a lease, and how one of them ends it for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vmmref.conformance.faulty.broken import broken
from vmmref.groups import Groups, Ranks
from vmmref.packed import PackedTensorProxy
from vmmref.pool import VmmMemoryPool
from vmmref.proxy import TensorProxy


@broken("PACK-1", flavour="packs")
class LeasesForTheFirst(VmmMemoryPool):
    """Leases each tensor of a pack by itself and answers with the first lease: the others are nobody's."""

    def wrap_tensors(self, tensors: Sequence[Any], groups: Groups | None = None) -> list[PackedTensorProxy] | None:
        packs = [super(LeasesForTheFirst, self).wrap_tensors([tensor], groups) for tensor in tensors]
        return None if None in packs else [pack[0] for pack in packs if pack is not None]


@broken("PACK-2", flavour="packs")
class PacksTightly(PackedTensorProxy):
    """Puts each tensor of a pack right behind the one before, whatever the size of its elements."""

    @staticmethod
    def offsets(sizes: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
        places = [sum(nbytes for nbytes, _ in sizes[:index]) for index in range(len(sizes))]
        return places, sum(nbytes for nbytes, _ in sizes)


@broken("PACK-3", flavour="packs")
class AcknowledgesForItsSiblings(PackedTensorProxy):
    """Lets one tensor's own acknowledgement end the pack for its rank, with the others still to be read."""

    def acknowledge_consumption(
        self, consumer_count: int | None = None, consumer_rank: Ranks = None, device: Any = None
    ) -> None:
        self.release_without_reconstruction(consumer_count, consumer_rank, device)


@broken("PACK-4", flavour="packs")
class CancelsASlotAgain(VmmMemoryPool):
    """Cancels, for the second tensor of a pack, whatever lease has the pack's slot by then."""

    def cancel_proxy(self, proxy: TensorProxy | PackedTensorProxy) -> None:
        if isinstance(proxy, PackedTensorProxy):
            for lease in self.stats().leases:
                if lease.slot == proxy.lease.slot:
                    self.cancel_lease(lease)
            return
        super().cancel_proxy(proxy)


@broken("PACK-4", flavour="packs")
class RefusesTheSecondCancel(VmmMemoryPool):
    """Treats the tensors of a pack as leases of their own: a clean-up that cancels each of them fails at the second."""

    def cancel_proxy(self, proxy: TensorProxy | PackedTensorProxy) -> None:
        self.cancel_lease(proxy.lease)
