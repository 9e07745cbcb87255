"""A small pool under one protocol: its fields, and what follows from its protocol and scope alone."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from vmmref_models.small_pool.fields import Field, Fields, Layout
from vmmref_models.small_pool.protocol import Acknowledge, Check, Group, Protocol, Reaper, Wait
from vmmref_models.small_pool.scope import FAULTS, Scope

HALF: Final = "half"
CHECK: Final = "check"
ACKNOWLEDGE: Final = "acknowledge"
LOAD: Final = "load"
STORE: Final = "store"


class Phase(IntEnum):
    """How far a lease is on its way back, as the producer's host sees it."""

    NONE = 0
    ACTIVE = 1
    LOOKED = 2
    """Active, and the recycler has seen it complete."""
    CLAIMED = 3
    QUEUED = 4
    """Its retire store is queued."""
    RETIRED = 5
    """Its retire store is done."""
    FREED = 6


class Reader(IntEnum):
    """What became of one copy of a proxy in its rank."""

    IDLE = 0
    QUEUED = 1
    FINISHED = 2
    """It has read, or given up reading, and has acknowledged."""
    OVER = 3
    """Refused, stale or lost with its process."""
    ARRIVED = 4
    """Its queued work has ended; the host has still to enqueue the acknowledgement."""
    BORROWED = 5
    VIEWED = 6
    """Borrowed, and the view has been read."""


class Closing(IntEnum):
    """How far the pool's end is."""

    OPEN = 0
    CLOSING = 1
    UNMAPPED = 2


class SmallPool:
    """A protocol within a scope. Raises ValueError when the two do not go together."""

    def __init__(self, protocol: Protocol, scope: Scope) -> None:
        self.protocol = protocol
        self.scope = scope
        self.slots = range(scope.slots)
        self.units = range(scope.units)
        self.ranks = range(scope.consumers)
        self.leases = range(1, scope.leases + 1)
        self.halves = range(scope.halves)
        self.may_borrow = scope.allowed("borrow") > 0
        self.in_group = scope.allowed("group") > 0
        self.program = self._program()
        """The pieces that a reader queues, in order."""
        self.acknowledging = self._acknowledging()
        """The last of them: those that acknowledge. A view that is released queues only these."""
        self.first_word = len(self.program) - len(self.acknowledging)
        """The piece with which the acknowledgement begins, where it comes last."""
        self.handing = self._handing()
        """The piece with which the rank is handed its copy: the check that follows it, else the acknowledgement."""
        self.pieces_of_lease = scope.halves + 1
        """What publishing queues: the parts of the copy, and the ready store."""
        early = not protocol.rejoin_waits and scope.allowed("rejoin") > 0
        self.places = range(protocol.streams * (2 if early else 1))
        """A rank's streams, and behind them those of the process that had its number before."""
        self.last_generation = min(scope.leases, scope.generations or scope.leases)
        self.layout = Layout()
        self._add_shared_fields()
        self.shared_bits = self.layout.bits
        for rank in self.ranks:
            self._add_fields_of(rank)
        self.rank_bits = (self.layout.bits - self.shared_bits) // scope.consumers

    def _program(self) -> tuple[str, ...]:
        check = self.protocol.check
        if self.protocol.host_judges and check is not Check.AFTER:
            raise ValueError("a host can judge only what is checked after the copy")
        copy: list[str] = [HALF] * self.scope.halves
        if check is Check.MIDDLE:
            if self.scope.halves < 2:
                raise ValueError("a check in the middle of the copy needs two halves")
            copy.insert(1, CHECK)
        if check in (Check.BEFORE, Check.BEFORE_AND_AFTER):
            copy.insert(0, CHECK)
        if check in (Check.AFTER, Check.BEFORE_AND_AFTER):
            copy.append(CHECK)
        if self.protocol.acknowledges_first:
            return (*self._acknowledging(), *copy)
        return (*copy, *self._acknowledging())

    def _acknowledging(self) -> tuple[str, ...]:
        if self.protocol.acknowledge is Acknowledge.LOAD_THEN_STORE:
            return (LOAD, STORE)
        if self.stores_for_others:
            return (ACKNOWLEDGE,) * self.scope.consumers
        return (ACKNOWLEDGE,)

    def _handing(self) -> int:
        if self.program[-1] == CHECK:
            return len(self.program) - 1
        return self.first_word - 1 if self.program[self.first_word - 1] == CHECK else self.first_word

    def _add_shared_fields(self) -> None:
        add, scope, protocol = self.layout.add, self.scope, self.protocol
        add(("closing",), Closing.UNMAPPED if scope.allowed("shutdown") else 0)
        add(("dead producer",), int(scope.allowed("producer-crash") > 0))
        for fault in FAULTS:
            add(("left", fault), scope.allowed(fault))
        for slot in self.slots:
            add(("R", slot), 2 * scope.leases + 1)
        for unit in self.units:
            for half in self.halves:
                add(("holds", unit, half), scope.leases)
        taken = any(scope.allowed(f) for f in ("cancel", "revoke", "deadline", "copy-fail", "shutdown", "foreign"))
        may_hold = taken and (self.may_borrow or scope.allowed("deadline") > 0 or protocol.holds_unsent)
        for lease in self.leases:
            add(("phase", lease), Phase.FREED)
            add(("other", lease), 0 if protocol.claims else Phase.FREED)
            add(("sent", lease), 1)
            add(("slot", lease), scope.slots - 1)
            add(("unit", lease), scope.units - 1)
            add(("generation", lease), scope.leases)
            add(("written", lease), self.pieces_of_lease)
            add(("excused", lease), int(taken))
            add(("held", lease), int(may_hold))
            add(("range back", lease), int(protocol.early_range))
            add(("slot back", lease), int(protocol.early_slot))

    def _add_fields_of(self, rank: int) -> None:
        """Every rank's fields have the same order and widths, so that ranks can be exchanged."""
        add, scope, protocol = self.layout.add, self.scope, self.protocol
        mortal = int(scope.allowed("crash") > 0)
        add(("dead", rank), mortal)
        add(("work", rank), mortal)
        add(("vacant", rank), mortal)
        add(("dropped", rank), int(scope.allowed("shutdown") > 0))
        for slot in self.slots:
            add(("A", slot, rank), scope.leases)
            add(("table", slot, rank), 0 if protocol.table == "never" else scope.leases)
        most_copies = 2 if scope.allowed("dup") else 1
        for lease in self.leases:
            add(("awaited", lease, rank), mortal)
            for copy in range(most_copies):
                add(("reader", lease, copy, rank), Reader.VIEWED)
        items = scope.leases * most_copies
        for place in self.places:
            for position in range(items):
                add(("queue", place, position, rank), 2 * items)
            add(("done", place, rank), len(self.program) - 1)
            add(("foreign", place, rank), 1)
            add(("loaded", place, rank), scope.leases if protocol.acknowledge is Acknowledge.LOAD_THEN_STORE else 0)

    def initial(self) -> int:
        """The state before anything has happened: words are zero, and every fault may still come."""
        return self.layout.packed(Fields({("left", fault): self.scope.allowed(fault) for fault in FAULTS}))

    def copies(self, rank: int) -> range:
        """The copies of each proxy that this rank gets; none when another rank reads for it."""
        if self.in_group and rank > 0:
            return range(0)
        return range(2 if rank < self.scope.allowed("dup") else 1)

    def readers(self, rank: int) -> tuple[tuple[int, int], ...]:
        """(lease, copy) of everything that this rank may read."""
        return tuple((lease, copy) for lease in self.leases for copy in self.copies(rank))

    @property
    def awaited_ranks(self) -> tuple[int, ...]:
        """The ranks whose words a lease waits for: fixed at publishing."""
        if self.in_group and self.protocol.group is Group.OWN_WORD:
            return (0,)
        return tuple(self.ranks)

    @property
    def ranks_are_alike(self) -> bool:
        """Whether exchanging two ranks everywhere changes nothing but names."""
        return not self.in_group and self.scope.allowed("dup") in (0, self.scope.consumers)

    @property
    def waits_on_device(self) -> bool:
        """Whether a proxy may leave before R says that it is ready."""
        return self.protocol.wait is not Wait.HOST

    @property
    def stale_acknowledge(self) -> bool:
        """Whether a reader that finds its lease stale acknowledges it; a held range would else never come back."""
        return self.protocol.stale_acknowledges or (self.may_borrow and self.protocol.borrow_holds)

    @property
    def stores_for_others(self) -> bool:
        """Whether a leader writes the words of its group's members."""
        return self.in_group and self.protocol.group is Group.EVERY_WORD

    @property
    def reaps_early(self) -> bool:
        """Whether a dead rank is dealt with before its device work is gone."""
        return self.protocol.reaper is not Reaper.COUNTS

    def word(self, generation: int) -> int:
        """What rank r's word says when it has acknowledged this generation."""
        return 1 if self.protocol.acknowledge is Acknowledge.FLAG else generation

    def complete(self, now: Fields, lease: int) -> bool:
        """Whether every awaited rank has acknowledged or is not waited for any more."""
        slot, generation = now["slot", lease], now["generation", lease]
        return all(
            self.acknowledged(now["A", slot, rank], generation) or not self.waits_for(now, lease, rank)
            for rank in self.awaited_ranks
        )

    def acknowledged(self, word: int, generation: int) -> bool:
        """Whether the recycler takes a word as this generation's acknowledgement."""
        return word != 0 if self.protocol.acknowledge is Acknowledge.FLAG else word == generation

    def waits_for(self, now: Fields, lease: int, rank: int) -> bool:
        """Whether the lease still waits for this rank's word."""
        return self.scope.allowed("crash") == 0 or now["awaited", lease, rank] == 1

    def names(self, lease: int) -> tuple[Field, ...]:
        """The fields that say which lease it is."""
        return (("slot", lease), ("unit", lease), ("generation", lease))

    def words(self) -> tuple[Field, ...]:
        """Every acknowledgement word."""
        return tuple(("A", slot, rank) for slot in self.slots for rank in self.ranks)

    def ready_words(self) -> tuple[Field, ...]:
        """Every ready word."""
        return tuple(("R", slot) for slot in self.slots)

    def bytes(self) -> tuple[Field, ...]:
        """Whose bytes each half of each unit holds."""
        return tuple(("holds", unit, half) for unit in self.units for half in self.halves)

    def awaited(self, lease: int) -> tuple[Field, ...]:
        """Which ranks' words the lease waits for."""
        return tuple(("awaited", lease, rank) for rank in self.ranks)
