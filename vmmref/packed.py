"""Tensors with one lifetime that share one lease: one range, one slot, one copy out, one acknowledgement (PACK)."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from vmmref import wire
from vmmref.errors import LeaseError, WireFormError
from vmmref.groups import Ranks, Speakers
from vmmref.layout import align_up
from vmmref.lease import PoolCard, PoolLease
from vmmref.proxy import TensorProxy
from vmmref.wire import ELEMENT_BYTES
from vmmref_models.reasons import Reason

_Key = tuple[PoolCard, PoolLease, Speakers]
_wholes: weakref.WeakValueDictionary[_Key, TensorProxy] = weakref.WeakValueDictionary()
_wholes_lock = threading.Lock()


def _renew_lock() -> None:
    global _wholes_lock
    _wholes_lock = threading.Lock()


# HND-7: a thread that has not come along into a forked child may have held it.
os.register_at_fork(after_in_child=_renew_lock)


def whole_of(card: PoolCard, lease: PoolLease, speakers: Speakers = ()) -> TensorProxy:
    """The proxy of a whole pack: one object for all children in this process, however each of them came here.

    A rank takes part in a lease once, so the first child that is read copies the pack out for all of them.
    """
    # All of it: a forged sibling that says something else of the lease or the pool must not be taken for one of these.
    key = (card, lease, speakers)
    with _wholes_lock:
        whole = _wholes.get(key)
        if whole is None:
            whole = _wholes[key] = TensorProxy(card, lease, "uint8", (lease.nbytes,), False, speakers)
        return whole


class PackedTensorProxy:
    """The proxy of one tensor of a pack, made by `VmmMemoryPool.wrap_tensors`; otherwise as TensorProxy.

    Reading any child copies the whole pack out and acknowledges for all; releasing any child releases all (PACK-3).
    """

    def __init__(self, whole: TensorProxy, dtype: str, shape: tuple[int, ...], offset: int) -> None:
        self._whole = whole
        self.dtype = dtype
        self.shape = shape
        self.offset = offset
        """Bytes from the start of the lease."""

    @staticmethod
    def offsets(sizes: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
        """Where tensors of (nbytes, element bytes) begin in a pack, one behind the other, and how long the pack is."""
        places, end = [], 0
        for nbytes, element_bytes in sizes:
            # PACK-2: a child is viewed as its dtype where it lies.
            start = align_up(end, element_bytes)
            places.append(start)
            end = start + nbytes
        return places, end

    @property
    def lease(self) -> PoolLease:
        """The lease of the whole pack."""
        return self._whole.lease

    @property
    def card(self) -> PoolCard:
        """The pool."""
        return self._whole.card

    def reconstruct_on_target_device(
        self, device: Any, consumer_count: int | None = None, consumer_rank: Ranks = None
    ) -> Any:
        """This child of the rank's private copy of the pack. Raises as `TensorProxy.reconstruct_on_target_device`."""
        from vmmref.tensors import as_tensor

        data = self._whole.reconstruct_on_target_device(device, consumer_count, consumer_rank)
        nbytes = ELEMENT_BYTES[self.dtype] * math.prod(self.shape)
        return as_tensor(data[self.offset : self.offset + nbytes], self.dtype, self.shape)

    def acknowledge_consumption(
        self, consumer_count: int | None = None, consumer_rank: Ranks = None, device: Any = None
    ) -> None:
        """Nothing after the rank has read the pack, which acknowledged it; refused before that (PACK-3)."""
        speaker = self._whole.check_rank(consumer_count, consumer_rank)
        if not self._whole.took_part(speaker):
            message = (
                "Packed CUDA VMM features must be reconstructed before release: a child cannot acknowledge for its "
                f"siblings (slot={self.lease.slot}, generation={self.lease.generation}, rank={speaker})"
            )
            raise LeaseError(Reason.NOT_RECONSTRUCTED, "PACK-3", message)

    def release_without_reconstruction(
        self, consumer_count: int | None = None, consumer_rank: Ranks = None, device: Any = None
    ) -> None:
        """Acknowledge the whole pack for one rank, once, without reading."""
        self._whole.release_without_reconstruction(consumer_count, consumer_rank, device)

    def __bytes__(self) -> bytes:
        self._whole.prepare_to_travel()
        return wire.pack(
            wire.Content(self.card, self.lease, self.dtype, self.shape, self.offset, False, self._whole.speakers)
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> PackedTensorProxy:
        """A child from its wire form; raises WireFormError for anything else. Executes nothing."""
        card, lease, dtype, shape, offset, _, speakers = wire.unpack(data)
        if offset is None:
            message = "the wire form of a single tensor: use TensorProxy.from_bytes"
            raise WireFormError(Reason.BAD_WIRE_FORM, "PACK-1", message)
        return cls(whole_of(card, lease, speakers), dtype, shape, offset)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_bytes, (bytes(self),)

    def __repr__(self) -> str:
        lease = self.lease
        return (
            f"PackedTensorProxy({self.dtype}, {self.shape}, slot={lease.slot}, generation={lease.generation}, "
            f"offset={self.offset} of {lease.nbytes})"
        )
