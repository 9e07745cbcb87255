"""The state of the model: one pool, its memory, its streams and its consumers, as plain values that compare and hash.

Three parts, after who may change them: the `Allocator` is what the producer writes down under its lock, the `Device`
is what memory holds and what is still queued, the `Consumers` are what each rank's process remembers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias, TypeVar

from vmmref_models.observation import Shape
from vmmref_models.operations import PUBLISH, RETIRE, Groups, LeaseView, rank_stream

T = TypeVar("T")

Range: TypeAlias = tuple[int, int]
"""Bytes [start, end)."""

EVERY_CAPABILITY = frozenset(
    {
        "stepping",
        "split",
        "words",
        "ranges",
        "slots",
        "faults",
        "revoke",
        "release-lease",
        "tamper",
        "preset",
        "leaks",
        "groups",
        "borrow",
        "processes",
        "set-aside",
        "imports",
    }
)
"""What the model itself can show and do; a pool under test declares a subset."""

RETIRE_VALIDATE_MAX = "retire-validate-max"
"""The one protocol whose words the model predicts: R = 2n live, 2n + 1 retired, A[r] = last generation acknowledged."""


@dataclass(frozen=True, slots=True)
class Policies:
    """What a pool may choose freely, as it declares it. With "any" the model follows the choice it is shown."""

    protocol: str = RETIRE_VALIDATE_MAX
    fit: str = "best"
    """"best" (RNG-3) or "any"."""
    slot_order: str = "fifo"
    """"fifo" (SLOT-3) or "any"."""
    capabilities: frozenset[str] = EVERY_CAPABILITY


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that was granted, with the token that names it and the digest of the payload it carries."""

    token: int
    view: LeaseView
    digest: int
    groups: Groups = ()
    """Who acknowledges for whom; () = each rank for itself."""
    borrowable: bool = False
    digests: tuple[int, ...] = ()
    """Of a pack: the digest of each of its tensors; of any other lease ()."""

    @property
    def slot(self) -> int:
        """The slot whose words belong to this lease."""
        return self.view.slot

    @property
    def generation(self) -> int:
        """The generation n of that slot."""
        return self.view.generation

    @property
    def is_pack(self) -> bool:
        """Whether several tensors share it (PACK-1)."""
        return bool(self.digests)

    def is_led_by(self, rank: int) -> bool:
        """Whether `rank` acknowledges for itself, or leads a group that it acknowledges for (ACK-4)."""
        return not self.groups or any(group[0] == rank for group in self.groups)

    def speakers(self, consumers: int) -> tuple[int, ...]:
        """The ranks whose words the lease waits for."""
        return tuple([group[0] for group in self.groups]) if self.groups else tuple(range(consumers))

    def digest_of(self, part: int) -> int:
        """The digest of one tensor of a pack; of any other lease the lease's own."""
        return self.digests[part] if self.digests else self.digest


@dataclass(frozen=True, slots=True)
class Allocator:
    """Who holds which range and slot. Nothing here waits for the device (REC-4)."""

    free_ranges: tuple[Range, ...]
    """Sorted by start; no two touch (RNG-4)."""
    free_slots: tuple[int, ...]
    """In the order of reuse."""
    retired_slots: tuple[int, ...]
    """Slots that have used their last generation, sorted."""
    generations: tuple[int, ...]
    """Last generation issued per slot, 0 = none."""
    held: tuple[Lease | None, ...]
    """Per slot the lease that holds it, active or retiring."""
    retiring: tuple[int, ...] = ()
    """Slots of the leases that were claimed and not yet freed, in the order in which they may be freed."""
    vacant: tuple[int, ...] = ()
    """Ranks whose process was counted dead and has no successor, sorted (REAP-1)."""
    excused: frozenset[tuple[int, int]] = frozenset()
    """Pairs of slot and rank: the lease in the slot does not wait for the word of the rank."""
    guarded: tuple[int, ...] = ()
    """Slots among `retiring` whose lease was ended while ranks might look at its bytes; they are not freed before a
    claim has seen the lease complete (CON-6)."""
    set_aside: tuple[int, ...] = ()
    """Slots among `retiring` that were ready to be freed and were held back instead, in that order."""


COPY = "copy"
READY = "ready"
RETIRED = "retired"
COPY_OUT = "copy-out"
READ_READY = "read-ready"
ACK = "ack"


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of work in a stream.

    COPY writes the lease's bytes, READY stores R = 2n, RETIRED stores R = 2n + 1, COPY_OUT reads the lease's range for
    `reader`, READ_READY reads R for it, ACK stores A[rank] = n.
    """

    kind: str
    lease: Lease
    rank: int = -1
    reader: int = -1


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a reader has received so far."""

    reader: int
    content: Lease | None
    """The lease whose bytes lay whole in the range at the time of the copy-out; None: bytes of no lease."""
    ready: int | None = None
    """The value of R that READ_READY found; None while it is queued."""


@dataclass(frozen=True, slots=True)
class Device:
    """Memory and streams. Only a piece that runs changes words, bytes or arrivals."""

    words: tuple[tuple[int, ...], ...]
    """Per slot (R, A[0], ..., A[C-1])."""
    queues: tuple[tuple[Piece, ...], ...]
    """Per stream, in the order of `stream_names`, the pieces that have not run, oldest first."""
    whole: tuple[Lease, ...] = ()
    """The leases whose bytes lie undamaged in memory. Ranges begin on ALIGNMENT and waste less than one, so two ranges
    that share a block share that block's first byte: a copy damages every lease that it overlaps."""
    arrivals: tuple[Arrival, ...] = ()


FRESH = "fresh"
READING = "reading"
CACHED = "cached"
BORROWED = "borrowed"
RETURNED = "returned"
RELEASED = "released"
ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Proxy:
    """One copy of a lease's proxy in a rank: FRESH, READING, CACHED, BORROWED, RETURNED (after it), RELEASED, or
    ENDED (stale, failed, given up). The proxies of a pack in one rank have one state in common.
    """

    token: int
    lease: Lease
    rank: int
    state: str = FRESH
    part: int = 0
    """Of a pack: which of its tensors."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A read that was begun and not yet collected."""

    token: int
    proxy: int


@dataclass(frozen=True, slots=True)
class View:
    """A look at a lease's bytes in place that has not been given back."""

    token: int
    proxy: int


@dataclass(frozen=True, slots=True)
class Consumers:
    """What the ranks remember. They share a process, and so an import of the pool, or have one each."""

    tables: tuple[tuple[int, ...], ...]
    """Per rank and slot the newest generation that the rank has entered (read, borrowed or released); never lowered."""
    imported: tuple[bool | None, ...]
    """Per process, whether it holds an import of the pool. None: nobody can tell; a call failed or was refused before
    or after it had imported the pool."""
    proxies: tuple[Proxy, ...] = ()
    readers: tuple[Reader, ...] = ()
    views: tuple[View, ...] = ()
    dead: tuple[int, ...] = ()
    """Ranks whose process was killed and not replaced, sorted; the pool may not know yet."""
    late: tuple[int, ...] = ()
    """Ranks that had not taken part in any lease when the pool ended: where imports are not shown they may have one of
    their own, or none, instead of the one that all ranks share."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A look: the words as they were in memory."""

    token: int
    words: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class State:
    """Everything that decides what a pool answers next."""

    shape: Shape
    policies: Policies
    allocator: Allocator
    device: Device
    consumers: Consumers
    published: tuple[Lease, ...] = ()
    """Every lease ever granted, oldest first: handles and proxies of old ones stay in use."""
    dispatched: tuple[int, ...] = ()
    """Tokens of the leases whose proxies may be delivered, in that order."""
    looks: tuple[Snapshot, ...] = ()
    failed: bool = False
    """A failure left the device state unknown (LIFE-3)."""
    closed: bool = False
    overdue: int = 0
    """How many of the `dispatched` leases are past their deadline, from the first on (REAP-2)."""

    def having(
        self,
        *,
        allocator: Allocator | None = None,
        device: Device | None = None,
        consumers: Consumers | None = None,
        published: tuple[Lease, ...] | None = None,
        dispatched: tuple[int, ...] | None = None,
    ) -> State:
        """This state with some parts exchanged; as `dataclasses.replace`, which is too slow for every step."""
        return State(
            self.shape,
            self.policies,
            allocator or self.allocator,
            device or self.device,
            consumers or self.consumers,
            self.published if published is None else published,
            self.dispatched if dispatched is None else dispatched,
            self.looks,
            self.failed,
            self.closed,
            self.overdue,
        )

    @property
    def life(self) -> str:
        """ "open", "failed" or "closed"; a failed pool that was shut down is closed."""
        return "closed" if self.closed else "failed" if self.failed else "open"

    def lease(self, token: int) -> Lease | None:
        """The lease that was granted under this token."""
        for lease in reversed(self.published):
            if lease.token == token:
                return lease
        return None

    def proxy(self, token: int) -> Proxy | None:
        """The proxy copy that was delivered under this token."""
        for proxy in reversed(self.consumers.proxies):
            if proxy.token == token:
                return proxy
        return None

    def reader(self, token: int) -> Reader | None:
        """The read that was begun under this token and not yet collected."""
        for reader in self.consumers.readers:
            if reader.token == token:
                return reader
        return None

    def view(self, token: int) -> View | None:
        """The borrowed view that was handed out under this token and not yet given back."""
        for view in self.consumers.views:
            if view.token == token:
                return view
        return None

    def process_of(self, rank: int) -> int:
        """Which process acts for this rank: each has its own, or all share process 0."""
        return rank if self.shape.apart else 0

    def ranks_of(self, process: int) -> tuple[int, ...]:
        """The ranks that a process acts for."""
        return (process,) if self.shape.apart else tuple(range(self.shape.consumers))

    def is_held(self, lease: Lease) -> bool:
        """Whether this lease still holds its range and slot."""
        holder = self.allocator.held[lease.slot]
        return holder is not None and holder.token == lease.token

    def is_active(self, lease: Lease) -> bool:
        """Whether this lease holds its slot and nobody has claimed it."""
        return self.is_held(lease) and lease.slot not in self.allocator.retiring


class Impossible(Exception):
    """What was seen lies outside every freedom that the pool has: rule `rule` is broken."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{message} [{rule}]")
        self.rule = rule


@lru_cache(maxsize=64)
def stream_names(consumers: int) -> tuple[str, ...]:
    """Every stream of a pool with that many consumer ranks, in the order of `Device.queues`."""
    return (PUBLISH, RETIRE, *(rank_stream(rank) for rank in range(consumers)))


def replaced(values: Sequence[T], index: int, value: T) -> tuple[T, ...]:
    """`values` with one item changed."""
    return (*values[:index], value, *values[index + 1 :])


def initial(shape: Shape, policies: Policies | None = None) -> State:
    """A pool that was just made: words zero (CTL-3), one free range, slots in order.

    Raises ValueError for a shape that no pool can have.
    """
    issued = shape.issued or (0,) * shape.slots
    if shape.slots < 1 or shape.consumers < 1 or shape.data_size < 1 or shape.generation_limit < 1:
        raise ValueError(f"a pool needs at least one slot, consumer, data byte and generation: {shape}")
    if len(issued) != shape.slots or not all(0 <= generation <= shape.generation_limit for generation in issued):
        raise ValueError(f"issued must name a generation from 0 to {shape.generation_limit} for each slot: {issued}")
    allocator = Allocator(
        free_ranges=((shape.data_start, shape.data_end),),
        free_slots=tuple(slot for slot in range(shape.slots) if issued[slot] < shape.generation_limit),
        retired_slots=tuple(slot for slot in range(shape.slots) if issued[slot] == shape.generation_limit),
        generations=issued,
        held=(None,) * shape.slots,
    )
    device = Device(words=((0,) * (1 + shape.consumers),) * shape.slots, queues=((),) * (2 + shape.consumers))
    processes = shape.consumers if shape.apart else 1
    consumers = Consumers(((0,) * shape.slots,) * shape.consumers, (False,) * processes)
    return State(shape, policies or Policies(), allocator, device, consumers)
