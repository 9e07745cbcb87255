"""What names a lease, and what names a pool to a consumer that has never seen it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from vmmref.handles import HandleType
from vmmref.layout import ControlLayout


class PoolLease(NamedTuple):
    """A handle of one lease: slot, generation and the bytes [start, end) it holds, `nbytes` of them used.

    Offsets are from the start of the pool. A handle stays a handle of that lease only: once the lease is over it is
    refused everywhere, also after the slot was leased again (GEN-4), also by another pool (GEN-5).
    """

    nonce: bytes
    slot: int
    generation: int
    start: int
    end: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class PoolCard:
    """All that a consumer process must know about a pool to import it; part of every proxy's wire form.

    `nonce` is 16 random bytes: two pools are the same pool only if it is the same (GEN-5). `memory_size` bytes are
    mapped, a multiple of the granularity. `locator` is the FABRIC handle, or the broker's token and socket name.
    `beacon` is the name of the socket that listens as long as the pool lives; it is no secret.
    """

    nonce: bytes
    transport_name: str
    producer_pid: int
    memory_size: int
    data_end: int
    slots: int
    consumers: int
    word_bytes: int
    handle_type: HandleType
    locator: bytes
    beacon: bytes
    device_name: str
    """The producer's name for its device: where a consumer imports the pool that names no device of its own."""

    @property
    def layout(self) -> ControlLayout:
        """Addresses of the pool's control words."""
        return ControlLayout(self.slots, self.consumers, self.word_bytes)
