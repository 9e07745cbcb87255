"""What a producer sends to its consumers in place of a tensor, and what each rank does with it."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import torch

from vmmref import tensors, wire
from vmmref.driver.device import parse_device
from vmmref.errors import AlreadyReleased, ArgumentError, LeaseError, ProducerGone, WireFormError
from vmmref.groups import Ranks, Speakers, check_speaker
from vmmref.imported import PoolImport
from vmmref.imports import IMPORTS
from vmmref.lease import PoolCard, PoolLease
from vmmref.reader import CopyOut, RankReader
from vmmref_models.reasons import Reason


class Reconstruction:
    """A reconstruction whose device work is queued; `finish` waits for it."""

    __slots__ = ("_copy", "_lock", "_owner", "_proxy", "_reader", "_tensor", "cached")

    def __init__(
        self,
        proxy: TensorProxy,
        tensor: Any,
        owner: PoolImport | None = None,
        reader: RankReader | None = None,
        copy: CopyOut | None = None,
    ) -> None:
        self._proxy = proxy
        self._tensor = tensor
        self._owner = owner
        self._reader = reader
        self._copy = copy
        self._lock = threading.Lock()
        self.cached = copy is None
        """Whether the tensor was there already: nothing was queued, nothing will be acknowledged (CON-2)."""

    def finish(self) -> Any:
        """The tensor, also when asked again.

        Raises StaleLease, WaitTimeout or DriverError, and AlreadyReleased when asked again after one of them.
        """
        with self._lock:
            if self._tensor is None:
                self._tensor = self._finish()
            return self._tensor

    def _finish(self) -> Any:
        # Taken out first: what a copy-out has borrowed of the reader is given back once.
        copy, self._copy = self._copy, None
        if copy is None:
            lease = self._proxy.lease
            message = f"this reading of lease (slot={lease.slot}, generation={lease.generation}) has failed before"
            raise AlreadyReleased(Reason.ALREADY_RELEASED, "CON-4", message)
        assert self._owner is not None, "a copy-out belongs to an import"
        assert self._reader is not None, "a copy-out belongs to a rank"
        with self._owner:
            tensor = self._reader.finish(copy)
        self._proxy._remember(self._owner.device.name, self._reader.rank, tensor)
        return tensor


class TensorProxy:
    """One copy of the proxy of one lease: the tensor's dtype and shape, and where its bytes lie in which pool.

    Any number of copies may exist, in any number of processes: `bytes(proxy)` and pickling make more of them, and every
    one of them is refused in a rank once one of them was read or released there. Thread-safe.
    """

    def __init__(
        self,
        card: PoolCard,
        lease: PoolLease,
        dtype: str,
        shape: tuple[int, ...],
        borrowable: bool = False,
        speakers: Speakers = (),
    ) -> None:
        self.card = card
        self.lease = lease
        self.borrowable = borrowable
        """Whether `borrow_on_target_device` may be used; said by the producer when it published."""
        self.speakers = speakers
        """By rank, who acknowledges for it, as the producer has fixed it; () = each rank for itself (ACK-4)."""
        self.dtype = dtype
        """Name of the torch dtype, "float32"."""
        self.shape = shape
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._tensors: dict[tuple[str, int], Any] = {}
        self._done: set[int] = set()
        self._on_serialize: Any = None

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.lease.nbytes

    def reconstruct_on_target_device(
        self, device: Any, consumer_count: int | None = None, consumer_rank: Ranks = None
    ) -> Any:
        """A private copy of the tensor on `device` ("sim", "cuda:0", torch.device) for rank `consumer_rank`.

        Acknowledges the lease for that rank. Asking again returns the same tensor (CON-2). Where the lease was
        published for groups, `consumer_rank` is a whole group, its speaker first; it may be left out where all ranks
        are one group led by rank 0, as in a pool of one consumer.

        Raises AlreadyReleased after a release, or from a second copy of the proxy in the rank (CON-3), StaleLease when
        the lease was revoked (CON-5), ProducerGone, BrokerError, DriverError, WaitTimeout, and ArgumentError for ranks
        that are no group of the lease (ACK-4).
        """
        rank = self.check_rank(consumer_count, consumer_rank)
        name = device_name(device)
        with self._reading:
            # CON-2 for two threads, too: the second waits for the first one's tensor.
            cached = self._tensors.get((name, rank))
            if cached is not None:
                return cached
            # HND-4: whoever drops the import waits until the tensor is out.
            with IMPORTS.inside(self.card, name) as owner:
                return self._begin(owner, rank).finish()

    def begin_reconstruction(
        self, device: Any, consumer_count: int | None = None, consumer_rank: Ranks = None
    ) -> Reconstruction:
        """The first half of `reconstruct_on_target_device`: queue the copy-out and do not wait for it."""
        rank = self.check_rank(consumer_count, consumer_rank)
        name = device_name(device)
        cached = self._tensors.get((name, rank))
        if cached is not None:
            return Reconstruction(self, cached)
        with IMPORTS.inside(self.card, name) as owner:
            return self._begin(owner, rank)

    def _begin(self, owner: PoolImport, rank: int) -> Reconstruction:
        reader = owner.rank(rank)
        destination = tensors.private_tensor(self.dtype, self.shape, owner.device)
        with owner.device:
            reader.enter(self.lease)
            self._done.add(rank)
            copy = reader.begin(self.lease, destination, destination.data_ptr(), self.borrowable)
        return Reconstruction(self, None, owner, reader, copy)

    def _remember(self, device: str, rank: int, tensor: Any) -> None:
        with self._lock:
            self._tensors[device, rank] = tensor

    def borrow_on_target_device(
        self, device: Any, consumer_count: int | None = None, consumer_rank: Ranks = None
    ) -> Any:
        """The tensor in the pool's own memory, without a copy, until `release_borrowed` (CON-6).

        It must not be written to, nor used after the release. Raises LeaseError when the lease was not published to be
        borrowed, and as `reconstruct_on_target_device`.
        """
        rank = self.check_rank(consumer_count, consumer_rank)
        if not self.borrowable:
            lease = self.lease
            message = f"lease (slot={lease.slot}, generation={lease.generation}) was not published to be borrowed"
            raise LeaseError(Reason.NOT_BORROWABLE, "CON-6", message)
        with IMPORTS.inside(self.card, device_name(device)) as owner, owner.device:
            reader = owner.rank(rank)
            reader.enter(self.lease)
            self._done.add(rank)
            address = reader.borrow(self.lease)
        data = tensors.view_of_memory(address, self.lease.nbytes, owner.device)
        return tensors.as_tensor(data, self.dtype, self.shape)

    def release_borrowed(
        self, consumer_count: int | None = None, consumer_rank: Ranks = None, device: Any = None
    ) -> None:
        """Give a borrowed view back: acknowledges behind the reads queued before. Nothing where nothing is borrowed."""
        rank = self.check_rank(consumer_count, consumer_rank)
        IMPORTS.check(self.card)
        for owner in IMPORTS.find(self.card.nonce):
            if IMPORTS.device_of(self.card.nonce, rank) == owner.device.name:
                # An import that was dropped meanwhile had no view out (CON-6).
                with contextlib.suppress(ProducerGone), owner, owner.device:
                    owner.rank(rank).release_borrowed(self.lease)

    def release_without_reconstruction(
        self, consumer_count: int | None = None, consumer_rank: Ranks = None, device: Any = None
    ) -> None:
        """Acknowledge for one rank or group without reading: an abort. Nothing happens when it took part already.

        Where an earlier acknowledgement could not be made, of a release or of a failed reading, it is tried again.
        `device` is where the rank acts; by default where it has acted before, or else this process's current device.
        """
        rank = self.check_rank(consumer_count, consumer_rank)
        if rank in self._done and not IMPORTS.owes(self.lease, rank):
            return
        if device is None:
            device = IMPORTS.device_of(self.card.nonce, rank) or current_device(self.card.device_name)
        # With the producer gone nobody waits for this acknowledgement any more.
        with contextlib.suppress(ProducerGone), IMPORTS.inside(self.card, device_name(device)) as owner, owner.device:
            owner.rank(rank).release(self.lease)
        self._done.add(rank)

    def acknowledge_consumption(
        self, consumer_count: int | None = None, consumer_rank: Ranks = None, device: Any = None
    ) -> None:
        """As `release_without_reconstruction`: a rank counts once for a lease, whichever call it makes (ACK-3)."""
        self.release_without_reconstruction(consumer_count, consumer_rank, device)

    def took_part(self, consumer_rank: int) -> bool:
        """Whether this copy was read or released for that rank, or has failed to be: it will not be read again."""
        known = 0 <= consumer_rank < len(self.speakers)
        return (self.speakers[consumer_rank] if known else consumer_rank) in self._done

    def check_rank(self, consumer_count: int | None, consumer_rank: Ranks) -> int:
        """The rank that acknowledges for those meant, a group that the lease was published for.

        Anything else is refused before any write (ACK-4).
        """
        consumers = self.card.consumers
        if consumer_count is not None and consumer_count != consumers:
            message = f"consumer_count {consumer_count!r} is not the {consumers} that the lease was published for"
            raise ArgumentError(Reason.BAD_RANK, "ACK-4", message)
        return check_speaker(consumer_rank, consumers, self.speakers)

    def prepare_to_travel(self) -> None:
        """Called before the wire form leaves: another process may soon ask the producer for a descriptor."""
        if self._on_serialize is not None:
            self._on_serialize()

    def __bytes__(self) -> bytes:
        self.prepare_to_travel()
        content = wire.Content(self.card, self.lease, self.dtype, self.shape, None, self.borrowable, self.speakers)
        return wire.pack(content)

    @classmethod
    def from_bytes(cls, data: bytes) -> TensorProxy:
        """A new copy of the proxy from its wire form; raises WireFormError for anything else. Executes nothing."""
        card, lease, dtype, shape, offset, borrowable, speakers = wire.unpack(data)
        if offset is not None:
            message = "the wire form of a packed tensor: use PackedTensorProxy.from_bytes"
            raise WireFormError(Reason.BAD_WIRE_FORM, "PACK-1", message)
        return cls(card, lease, dtype, shape, borrowable, speakers)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_bytes, (bytes(self),)

    def __repr__(self) -> str:
        lease = self.lease
        return (
            f"TensorProxy({self.dtype}, {self.shape}, slot={lease.slot}, generation={lease.generation}, "
            f"bytes=[{lease.start}, {lease.start + lease.nbytes}))"
        )


def current_device(producers: str) -> str:
    """The device that this process would use for a pool whose producer calls its own `producers`."""
    kind, _ = parse_device(producers)
    if kind == "sim":
        return producers
    return f"cuda:{torch.cuda.current_device()}"


def device_name(device: Any) -> str:
    """The name of a device given as "sim", "cuda", "cuda:1" or a torch.device, in the one form used as a key."""
    kind, ordinal = parse_device(str(device) if isinstance(device, torch.device) else device)
    return f"{kind}:{ordinal}"
