"""Which leases a rank of this process has taken part in: what refuses a second copy of a proxy on the host alone."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from vmmref.errors import ArgumentError
from vmmref.lease import PoolLease
from vmmref_models.reasons import Reason


class RankTable:
    """The last generation that one rank of one pool has entered, by slot. It outlives the imports of the pool.

    A rank acts through one stream of one process (ACK-2), hence on one device: the first one that it is used on.
    """

    __slots__ = ("_last", "_lock", "device", "rank", "started", "unreleased")

    def __init__(self, rank: int, device: str) -> None:
        self._lock = threading.Lock()
        self._last: dict[int, int] = {}
        self.rank = rank
        self.device = device
        self.started = False
        """Whether it knows what the rank's words say, so that the rank may take part in leases."""
        self.unreleased: set[tuple[int, int]] = set()
        """(slot, generation) of leases whose acknowledgement could not be queued; a release tries again (CON-4)."""

    def start(self, words: Iterable[int]) -> None:
        """Take for entered what the rank has acknowledged according to its words, slot by slot."""
        with self._lock:
            for slot, generation in enumerate(words):
                if generation > self._last.get(slot, 0):
                    self._last[slot] = generation
            self.started = True

    def enter(self, lease: PoolLease) -> bool:
        """Note that the rank takes part in `lease`; False when it, or a newer lease of the slot, is there already."""
        with self._lock:
            if lease.generation <= self._last.get(lease.slot, 0):
                return False
            self._last[lease.slot] = lease.generation
            return True

    def is_last(self, lease: PoolLease) -> bool:
        """Whether the rank has entered `lease` and no newer one of its slot."""
        return self._last.get(lease.slot) == lease.generation

    def owes(self, lease: PoolLease) -> bool:
        """Whether the rank has taken part in `lease` and could not say so."""
        return (lease.slot, lease.generation) in self.unreleased

    def check_device(self, device: str) -> None:
        """Raise ArgumentError unless `device` is the one that the rank acts on."""
        if device != self.device:
            # ACK-2: two devices would be two streams that store into one word.
            message = (
                f"rank {self.rank} of this pool acts on {self.device} in this process and cannot act on {device} too"
            )
            raise ArgumentError(Reason.BAD_RANK, "ACK-2", message)
