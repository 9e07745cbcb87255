"""The book of a pool's leases: ranges, slots and who holds what. Host memory only; it never waits for the device."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from vmmref.errors import ArgumentError, GenerationExhausted, LeaseError
from vmmref.groups import Speakers, awaited_ranks
from vmmref.layout import ControlLayout
from vmmref.lease import PoolLease
from vmmref.ranges import FreeRanges
from vmmref.slots import Slots
from vmmref.stats import PoolStats
from vmmref_models.reasons import Reason

_log = logging.getLogger("vmmref")

_WARN_GENERATIONS_LEFT = 2**20
"""Per slot. With 4,096 slots used in turn at 1,000 leases/s this is some 50 days before the end (GEN-6)."""


class Phase(Enum):
    """Where a lease is between being taken and being free again."""

    ACTIVE = "active"
    RETIRING = "retiring"


class Holding:
    """One lease that holds a range and a slot, with the device work that belongs to it.

    `published` stands for its copy and ready store, `retired` for its retire store (events, None = not queued).
    `source` keeps the published tensor alive until the copy has ended. `excused` are the ranks that are dead and need
    not acknowledge. A `borrowable` lease may be looked at in place: ended before all have `acknowledged`, it is `held`
    back until they have (CON-6). `awaited` are the ranks whose words it waits for: the speakers of its groups (ACK-4).
    """

    __slots__ = (
        "acknowledged",
        "awaited",
        "borrowable",
        "dispatched",
        "dispatched_at",
        "excused",
        "held",
        "lease",
        "phase",
        "published",
        "ready_queued",
        "retire_queued",
        "retired",
        "source",
        "speakers",
    )

    def __init__(self, lease: PoolLease, awaited: Sequence[int]) -> None:
        self.lease = lease
        self.awaited = awaited
        self.speakers: Speakers = ()
        self.phase = Phase.ACTIVE
        self.ready_queued = False
        self.retire_queued = False
        self.dispatched = False
        self.dispatched_at = 0.0
        self.published: int | None = None
        self.retired: int | None = None
        self.source: Any = None
        self.excused: frozenset[int] = frozenset()
        self.borrowable = False
        self.acknowledged = False
        self.held = False

    def declare(self, speakers: Speakers, borrowable: bool) -> None:
        """Fix who acknowledges for whom, and whether ranks may look at the bytes, before anybody knows the lease."""
        # ACK-4: fixed here; what an acknowledgement claims later is compared with it and changes nothing.
        if speakers:
            self.speakers = speakers
            self.awaited = awaited_ranks(speakers)
        self.borrowable = borrowable

    @property
    def outlives_its_end(self) -> bool:
        """Whether some rank may be looking at the bytes of this claimed lease, so that they must stay."""
        return self.borrowable and self.dispatched and not self.acknowledged

    @property
    def is_out(self) -> bool:
        """Whether ranks have it and nobody has ended it."""
        return self.dispatched and self.phase is Phase.ACTIVE

    def is_set_aside(self, overdue_before: float) -> bool:
        """Whether it is held back, or ranks have had it since before `overdue_before` seconds and it is not claimed."""
        return (self.dispatched_at < overdue_before and self.is_out) or self.held


class LeaseBook:
    """Free ranges, free slots and the lease of every other slot, under one lock that is held for microseconds only.

    REC-3: a lease leaves ACTIVE by `claim` or `claim_where`, exactly once, and whoever claimed it retires it on the
    device and then frees it. Everything else that wants to end the lease is refused.
    """

    ranges_type: type[FreeRanges] = FreeRanges
    slots_type: type[Slots] = Slots

    def __init__(
        self,
        nonce: bytes,
        layout: ControlLayout,
        data_end: int,
        generation_limit: int,
        transport_name: str,
        issued: Sequence[int] = (),
    ) -> None:
        self.nonce = nonce
        self._transport_name = transport_name
        self._usable_size = data_end - layout.data_start
        self._lock = threading.Lock()
        # CTL-1: leases can only come from behind the control words.
        self._ranges = self.ranges_type(layout.data_start, data_end)
        self._slots = self.slots_type(layout.slots, generation_limit, issued)
        self._holdings: dict[int, Holding] = {}
        self._everyone = tuple(range(layout.consumers))
        self._dead: frozenset[int] = frozenset()
        self._warn_above = generation_limit - min(_WARN_GENERATIONS_LEFT, generation_limit // 8)
        self._warned = False

    def take(self, nbytes: int) -> Holding | None:
        """Lease `nbytes` (> 0): a range, a slot and its next generation. None when the pool is full (RNG-5).

        Raises GenerationExhausted when no slot can ever be leased again. A refusal takes nothing (GEN-3).
        """
        with self._lock:
            slots = self._slots
            if not slots.any_free:
                if slots.exhausted:
                    message = (
                        f"{self._transport_name} pool slot generation exhausted: "
                        f"all {slots.count} slots have used generation {slots.limit}"
                    )
                    raise GenerationExhausted(Reason.GENERATION_EXHAUSTED, "GEN-3", message)
                return None
            # The range first: with a free slot at hand nothing can fail after it has been taken.
            span = self._ranges.allocate(nbytes)
            if span is None:
                return None
            slot, generation = slots.lease()
            lease = PoolLease(self.nonce, slot, generation, span[0], span[1], nbytes)
            # SLOT-2: a slot's only lease, which its words and its bytes belong to.
            holding = self._holdings[slot] = Holding(lease, self._everyone)
            holding.excused = self._dead
        if generation > self._warn_above and not self._warned:
            self._warn()
        return holding

    def _warn(self) -> None:
        self._warned = True
        _log.warning(
            "%s pool: a slot has %d generations left; restart it in time [GEN-6]",
            self._transport_name,
            self.generations_left,
        )

    def check_pool(self, nonce: bytes, what: str) -> None:
        """Raise LeaseError unless `what` belongs to the pool of this book; everything else may coincide (GEN-5)."""
        if nonce != self.nonce:
            message = f"{what} belongs to another pool than this {self._transport_name} pool"
            raise LeaseError(Reason.FOREIGN_POOL, "GEN-5", message)

    def claim(self, lease: PoolLease, rule: str) -> Holding:
        """Move the lease from active to retiring; the caller must then retire and free it.

        Raises LeaseError, naming `rule`, and changes nothing, when it is not the active lease of its slot (REC-6).
        """
        if not isinstance(lease, PoolLease):
            raise ArgumentError(Reason.BAD_ARGUMENT, rule, f"a PoolLease is needed, got {type(lease).__name__}")
        self.check_pool(lease.nonce, f"lease (slot={lease.slot}, generation={lease.generation})")
        with self._lock:
            holding = self._holdings.get(lease.slot)
            # GEN-4, CAN-2: the whole handle is compared, so neither an old generation nor an altered offset passes.
            if holding is None or holding.lease != lease or holding.phase is not Phase.ACTIVE:
                message = (
                    f"Cannot release inactive {self._transport_name} pool lease "
                    f"(slot={lease.slot}, generation={lease.generation})"
                )
                raise LeaseError(Reason.INACTIVE_LEASE, rule, message)
            holding.phase = Phase.RETIRING
            return holding

    def claim_where(self, finished: Callable[[Holding], bool]) -> list[Holding]:
        """Claim every dispatched active lease for which `finished` is true, by slot."""
        with self._lock:
            claimed = [
                holding
                for holding in self._holdings.values()
                if holding.dispatched and holding.phase is Phase.ACTIVE and finished(holding)
            ]
            # Retired in an order that anybody can tell: it shows in the control words.
            claimed.sort(key=lambda holding: holding.lease.slot)
            for holding in claimed:
                holding.phase = Phase.RETIRING
                holding.acknowledged = True
        return claimed

    def excuse(self, rank: int) -> None:
        """Let no lease wait for `rank`, whose process is dead: none of those that are out, and none that follow."""
        with self._lock:
            self._dead |= {rank}
            for holding in self._holdings.values():
                holding.excused |= {rank}

    def expect(self, rank: int) -> None:
        """Let the leases from now on wait for `rank`: a new process acts for it. Those that are out still do not."""
        with self._lock:
            self._dead -= {rank}

    def claim_all(self) -> list[Holding]:
        """Claim every active lease: the pool ends."""
        with self._lock:
            claimed = [holding for holding in self._holdings.values() if holding.phase is Phase.ACTIVE]
            for holding in claimed:
                holding.phase = Phase.RETIRING
        return claimed

    def unclaim(self, holding: Holding) -> None:
        """Make a claimed lease active again, because nothing of its retirement could be queued (ERR-1)."""
        with self._lock:
            holding.phase = Phase.ACTIVE

    def require_active(self, holding: Holding) -> None:
        """Raise LeaseError when the lease was claimed meanwhile."""
        if holding.phase is not Phase.ACTIVE:
            lease = holding.lease
            message = (
                f"{self._transport_name} pool lease (slot={lease.slot}, generation={lease.generation}) "
                "was cancelled before it was ready"
            )
            raise LeaseError(Reason.INACTIVE_LEASE, "REC-3", message)

    def dispatch(self, holding: Holding, now: float) -> None:
        """Let the lease's proxy leave, at `now` seconds; raises LeaseError when the lease was claimed meanwhile."""
        with self._lock:
            self.require_active(holding)
            holding.dispatched_at = now
            holding.dispatched = True

    def free(self, holding: Holding) -> None:
        """Give range and slot of a claimed lease back; its retire store has been seen complete (REC-2)."""
        lease = holding.lease
        with self._lock:
            # REC-5: only the one claimer comes here, and only once.
            del self._holdings[lease.slot]
            self._ranges.release(lease.start, lease.end)
            self._slots.release(lease.slot)
        holding.source = None

    def is_active(self, lease: PoolLease) -> bool:
        """Whether this very lease is active now."""
        with self._lock:
            holding = self._holdings.get(lease.slot)
            return holding is not None and holding.lease == lease and holding.phase is Phase.ACTIVE

    def snapshot(
        self, overdue_before: float, unacknowledged: Callable[[Holding], tuple[int, ...]] = lambda _: ()
    ) -> PoolStats:
        """Everything at one moment; a lease dispatched before `overdue_before` seconds counts as set aside.

        `unacknowledged` tells the ranks that a lease waits for.
        """
        with self._lock:
            slots = self._slots
            held = [self._holdings[slot] for slot in sorted(self._holdings)]
            return PoolStats(
                self._ranges.ranges(),
                tuple([holding.lease for holding in held]),
                tuple([holding.lease.slot for holding in held if holding.phase is Phase.RETIRING]),
                # REAP-2: a late lease keeps its range, its slot and R = 2n; only what is reported of it changes.
                # CON-6: a held one has been retired, and is not reissued either.
                tuple([holding.lease.slot for holding in held if holding.is_set_aside(overdue_before)]),
                slots.free,
                slots.retired,
                slots.generations,
                slots.generations_left,
                self._usable_size,
                tuple([(holding.lease.slot, unacknowledged(holding)) for holding in held if holding.is_out]),
            )

    @property
    def generations_left(self) -> int:
        """The smallest number of generations left over the slots still in use (GEN-6)."""
        with self._lock:
            return self._slots.generations_left

    @property
    def active_count(self) -> int:
        """Leases that hold a range and a slot, retiring ones included."""
        return len(self._holdings)
