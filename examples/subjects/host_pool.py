"""The smallest pool worth checking, and how it is plugged in: everything in host memory, nothing queued.

    vmmref check --subject examples.subjects.host_pool:make

A pool of your own takes the place of `HostPool`; `HostSession` is what you write for it. What your pool does not have
you leave out: an operation from OPERATIONS, a capability from CAPABILITIES, a field of the observation (None).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from vmmref.conformance import payloads
from vmmref.conformance.subject import Description, Leftovers
from vmmref_models.observation import ALIGNMENT, Observation, Shape
from vmmref_models.operations import DONE, FULL, LeaseView, Operation, Outcome, refused
from vmmref_models.reasons import Reason

OPERATIONS = frozenset({"Wrap", "Deliver", "Fetch", "Release", "Recycle", "Cancel", "ReleaseLease", "Shutdown"})
CAPABILITIES = frozenset({"words", "ranges", "slots", "preset", "release-lease"})


class Refusal(Exception):
    """What `HostPool` says no with."""


class HostPool:
    """Ranges, slots and words in one bytearray; retire, validate, max."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.memory = bytearray(shape.data_end)
        self.free = [(shape.data_start, shape.data_end)]
        self.generations = list(shape.issued) or [0] * shape.slots
        self.slots = [slot for slot in range(shape.slots) if self.generations[slot] < shape.generation_limit]
        self.leases: dict[int, LeaseView] = {}
        self.closed = False

    def word(self, slot: int, column: int) -> int:
        """R (column 0) or A[column - 1] of a slot."""
        return int(struct.unpack_from("<I", self.memory, 4 * (slot * (1 + self.shape.consumers) + column))[0])

    def store(self, slot: int, column: int, value: int) -> None:
        """Write one word."""
        struct.pack_into("<I", self.memory, 4 * (slot * (1 + self.shape.consumers) + column), value)

    def publish(self, data: bytes) -> LeaseView | None:
        """Lease, copy, ready; None when full."""
        if self.closed:
            raise Refusal(Reason.POOL_CLOSING)
        if not self.slots and min(self.generations) >= self.shape.generation_limit:
            raise Refusal(Reason.GENERATION_EXHAUSTED)
        need = -(-len(data) // ALIGNMENT) * ALIGNMENT
        fitting = [(end - start, start) for start, end in self.free if end - start >= need]
        if not self.slots or not fitting:
            return None
        size, start = min(fitting)
        self.free.remove((start, start + size))
        if size > need:
            self.free.append((start + need, start + size))
        slot = self.slots.pop(0)
        self.generations[slot] += 1
        lease = self.leases[slot] = LeaseView(slot, self.generations[slot], start, start + need, len(data))
        self.memory[start : start + len(data)] = data
        self.store(slot, 0, 2 * lease.generation)
        return lease

    def end(self, lease: LeaseView) -> None:
        """Retire and free the active lease of a slot; refused for any other."""
        if self.closed:
            raise Refusal(Reason.POOL_CLOSING)
        if self.leases.get(lease.slot) != lease:
            raise Refusal(Reason.INACTIVE_LEASE)
        self.store(lease.slot, 0, 2 * lease.generation + 1)
        del self.leases[lease.slot]
        start, end = lease.start, lease.end
        for other in list(self.free):
            if other[1] == start or other[0] == end:
                self.free.remove(other)
                start, end = min(start, other[0]), max(end, other[1])
        self.free.append((start, end))
        if lease.generation < self.shape.generation_limit:
            self.slots.append(lease.slot)

    def recycle(self) -> int:
        """End every lease that all ranks have acknowledged."""
        done = [
            lease
            for slot, lease in sorted(self.leases.items())
            if all(self.word(slot, 1 + rank) == lease.generation for rank in range(self.shape.consumers))
        ]
        for lease in done:
            self.end(lease)
        return len(done)


class HostSession:
    """One pool and its ranks, as the harness drives them."""

    def __init__(self, shape: Shape) -> None:
        self.pool = HostPool(shape)
        self.leases: dict[int, LeaseView] = {}
        self.payloads: dict[int, Any] = {}
        self.proxies: dict[int, tuple[int, int]] = {}
        self.cached: dict[int, int] = {}
        self.entered: dict[tuple[int, int], int] = {}

    def apply(self, operation: Operation) -> Outcome:
        """Do it; a refusal is an answer."""
        try:
            return HANDLERS[type(operation).__name__](self, operation)
        except Refusal as refusal:
            return refused(refusal.args[0], f"the host pool refuses: {refusal.args[0]}")

    def wrap(self, operation: Any) -> Outcome:
        lease = self.pool.publish(payloads.values(operation.payload))
        if lease is None:
            return FULL
        self.leases[operation.lease], self.payloads[operation.lease] = lease, operation.payload
        return Outcome("done", lease=lease)

    def deliver(self, operation: Any) -> Outcome:
        self.proxies[operation.proxy] = (operation.lease, operation.rank)
        return DONE

    def enter(self, lease: LeaseView, rank: int) -> bool:
        """Whether the rank may take part: only in a newer lease of the slot than any before (CON-3)."""
        if self.entered.get((rank, lease.slot), 0) >= lease.generation:
            return False
        self.entered[rank, lease.slot] = lease.generation
        return True

    def is_gone_for(self, rank: int) -> bool:
        """Whether the pool has ended before this rank first used it."""
        return self.pool.closed and not any(other == rank for other, _ in self.entered)

    def fetch(self, operation: Any) -> Outcome:
        token, rank = self.proxies[operation.proxy]
        lease, payload = self.leases[token], self.payloads[token]
        if operation.proxy in self.cached:
            return Outcome("done", digest=self.cached[operation.proxy], cached=True)
        if self.is_gone_for(rank):
            raise Refusal(Reason.PRODUCER_GONE)
        if not self.enter(lease, rank):
            raise Refusal(Reason.ALREADY_RELEASED)
        data = bytes(self.pool.memory[lease.start : lease.start + lease.nbytes])
        if self.pool.word(lease.slot, 0) != 2 * lease.generation:
            raise Refusal(Reason.STALE_LEASE)
        self.pool.store(lease.slot, 1 + rank, lease.generation)
        digest = self.cached[operation.proxy] = payloads.digest_of_bytes(payload.dtype, payload.shape, data)
        return Outcome("done", digest=digest)

    def release(self, operation: Any) -> Outcome:
        token, rank = self.proxies[operation.proxy]
        lease = self.leases[token]
        if not self.is_gone_for(rank) and self.enter(lease, rank):
            self.pool.store(lease.slot, 1 + rank, lease.generation)
        return DONE

    def recycle(self, operation: Any) -> Outcome:
        if self.pool.closed:
            raise Refusal(Reason.POOL_CLOSING)
        return Outcome("done", count=self.pool.recycle())

    def end(self, operation: Any) -> Outcome:
        self.pool.end(self.leases[operation.lease])
        return DONE

    def shutdown(self, operation: Any) -> Outcome:
        for lease in () if self.pool.closed else tuple(self.pool.leases.values()):
            self.pool.end(lease)
        self.pool.closed = True
        return DONE

    def observe(self) -> Observation:
        """Everything this pool can show."""
        pool, shape = self.pool, self.pool.shape
        columns = range(1 + shape.consumers)
        left = [shape.generation_limit - used for used in pool.generations]
        retired = [slot for slot in range(shape.slots) if not left[slot] and slot not in pool.leases]
        return Observation(
            life="closed" if pool.closed else "open",
            free_ranges=tuple(sorted(pool.free)),
            leases=tuple(pool.leases[slot] for slot in sorted(pool.leases)),
            free_slots=tuple(pool.slots),
            retired_slots=tuple(retired),
            generations=tuple(pool.generations),
            generations_left=min((used for slot, used in enumerate(left) if slot not in retired), default=0),
            words=None if pool.closed else tuple(tuple(pool.word(s, c) for c in columns) for s in range(shape.slots)),
        )

    def close(self) -> Leftovers | None:
        """Nothing outlives the object, and nothing can be counted."""
        return None


HANDLERS: dict[str, Callable[[HostSession, Any], Outcome]] = {
    "Wrap": HostSession.wrap,
    "Deliver": HostSession.deliver,
    "Fetch": HostSession.fetch,
    "Release": HostSession.release,
    "Recycle": HostSession.recycle,
    "Cancel": HostSession.end,
    "ReleaseLease": HostSession.end,
    "Shutdown": HostSession.shutdown,
}


class HostSubject:
    """What `--subject` makes."""

    def describe(self) -> Description:
        """A pool in host memory, without streams, descriptors or a driver."""
        return Description("examples HostPool", "host memory", True, "C", CAPABILITIES, OPERATIONS)

    def open(self, shape: Shape) -> HostSession:
        """A fresh pool."""
        return HostSession(shape)


def make() -> HostSubject:
    """The factory."""
    return HostSubject()
