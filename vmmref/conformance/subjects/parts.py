"""The classes that a reference pool under test is made of; a broken pool has another one in the place of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from vmmref.beacon import Beacon
from vmmref.book import LeaseBook
from vmmref.broker import DescriptorBroker
from vmmref.imported import PoolImport
from vmmref.life import Life
from vmmref.packed import PackedTensorProxy
from vmmref.pool import VmmMemoryPool
from vmmref.proxy import TensorProxy
from vmmref.publisher import Publisher
from vmmref.ranges import FreeRanges
from vmmref.reader import RankReader
from vmmref.reaper import Reaper
from vmmref.recycler import Look, Recycler
from vmmref.reservation import VmmReservation
from vmmref.slots import Slots
from vmmref.transport import FeatureTransport

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class Parts:
    """One class a role, on the producer's side and on the consumers'. What a pool is made of is said by its class."""

    pool: type[VmmMemoryPool] = VmmMemoryPool
    pool_import: type[PoolImport] = PoolImport
    reader: type[RankReader] = RankReader
    proxy: type[TensorProxy] = TensorProxy
    packed: type[PackedTensorProxy] = PackedTensorProxy
    reservation: type[VmmReservation] = VmmReservation
    broker: type[DescriptorBroker] = DescriptorBroker
    reaper: type[Reaper] = Reaper
    transport: type[FeatureTransport] = FeatureTransport
    broken: type | None = None
    """The part that was put in the place of its base class; None in the reference pool."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The pool's class is made here and has no name that another process could find; the broken part has.
        return parts_with, (self.broken,)


def parts_with(broken: type | None = None) -> Parts:
    """The reference pool's classes with `broken` in the place of the one that it is a subclass of."""
    if broken is None:
        return Parts()
    return Parts(
        pool_with(broken),
        chosen(PoolImport, broken),
        chosen(RankReader, broken),
        chosen(TensorProxy, broken),
        chosen(PackedTensorProxy, broken),
        chosen(VmmReservation, broken),
        chosen(DescriptorBroker, broken),
        chosen(Reaper, broken),
        chosen(FeatureTransport, broken),
        broken,
    )


def chosen(kind: type[Part], part: type) -> type[Part]:
    """The class to use for one part of the pool: the broken one where it is of this kind, otherwise the kind itself."""
    return part if issubclass(part, kind) else kind


def pool_with(part: type) -> type[VmmMemoryPool]:
    """The reference pool with `part` in its place."""
    book = {"ranges_type": chosen(FreeRanges, part), "slots_type": chosen(Slots, part)}
    places = {
        "book_type": type("Book", (chosen(LeaseBook, part),), book),
        "publisher_type": chosen(Publisher, part),
        "recycler_type": type("Recycler", (chosen(Recycler, part),), {"look_type": chosen(Look, part)}),
        "life_type": chosen(Life, part),
        "proxy_type": chosen(TensorProxy, part),
        "packed_type": chosen(PackedTensorProxy, part),
        "reaper_type": chosen(Reaper, part),
        "broker_type": chosen(DescriptorBroker, part),
        "beacon_type": chosen(Beacon, part),
        "reservation_type": chosen(VmmReservation, part),
    }
    return type("Pool", (chosen(VmmMemoryPool, part),), places)
