"""A reader on its rank's stream: what it is called, where it is queued, and what each of its pieces does."""

from __future__ import annotations

from itertools import pairwise

from vmmref_models.small_pool.fields import Field, Fields, Step
from vmmref_models.small_pool.pool import ACKNOWLEDGE, CHECK, HALF, LOAD, STORE, Reader, SmallPool
from vmmref_models.small_pool.protocol import Acknowledge, Table


def own_fields(pool: SmallPool, rank: int) -> tuple[Field, ...]:
    """What a rank's host knows: its readers, its table, its streams, and whether it lives."""
    known: list[Field] = [("dead", rank), ("dropped", rank)]
    known += [("reader", lease, copy, rank) for lease, copy in pool.readers(rank)]
    known += [("table", slot, rank) for slot in pool.slots]
    for place in pool.places[: pool.protocol.streams]:
        known += queue_fields(pool, rank, place)
    return tuple(known)


def queue_fields(pool: SmallPool, rank: int, place: int) -> tuple[Field, ...]:
    """The readers queued on one stream, oldest first."""
    return tuple(("queue", place, position, rank) for position in range(len(pool.readers(rank))))


def lease_names(pool: SmallPool) -> tuple[Field, ...]:
    """Slot, unit and generation of every lease."""
    return tuple(name for lease in pool.leases for name in pool.names(lease))


def item(pool: SmallPool, rank: int, lease: int, copy: int, only_acknowledges: bool) -> int:
    """The number of a reader in a queue; 0 is no reader."""
    return 1 + 2 * pool.readers(rank).index((lease, copy)) + only_acknowledges


def meant(pool: SmallPool, rank: int, number: int) -> tuple[int, int, bool]:
    """Lease, copy, and whether only the acknowledgement is queued."""
    lease, copy = pool.readers(rank)[(number - 1) // 2]
    return lease, copy, (number - 1) % 2 == 1


def name(pool: SmallPool, rank: int, lease: int, copy: int) -> str:
    """Who reads what, in words."""
    second = ", second copy," if copy else ""
    return f"rank {rank}{second} lease {lease}"


def enqueued(pool: SmallPool, rank: int, place: int, number: int, now: Fields) -> dict[Field, int]:
    """The change that puts a reader behind the others of one stream."""
    for field in queue_fields(pool, rank, place):
        if now[field] == 0:
            return {field: number}
    raise AssertionError("a stream has room for every reader of its rank")


def without_head(pool: SmallPool, rank: int, place: int, now: Fields) -> dict[Field, int]:
    """The change that takes the oldest reader off one stream, and forgets how far it was."""
    queue = queue_fields(pool, rank, place)
    shifted = {field: now[behind] for field, behind in pairwise(queue)}
    empty: dict[Field, int] = {queue[-1]: 0, ("done", place, rank): 0, ("foreign", place, rank): 0}
    return {**shifted, **empty}


def refused(pool: SmallPool, rank: int, lease: int, now: Fields) -> bool:
    """Whether this rank's table says that (slot, n) or a newer lease of the slot has been used."""
    if pool.protocol.table is Table.NEVER:
        return False
    return now["generation", lease] <= now["table", now["slot", lease], rank]


def entered(pool: SmallPool, rank: int, lease: int, now: Fields, when: Table) -> dict[Field, int]:
    """The table's new entry, if this protocol makes it at this moment."""
    if pool.protocol.table is not when:
        return {}
    field: Field = ("table", now["slot", lease], rank)
    return {field: max(now[field], now["generation", lease])}


class Turn:
    """One piece of one reader, at the head of a stream."""

    def __init__(
        self, pool: SmallPool, rank: int, place: int, lease: int, copy: int, program: tuple[str, ...], done: int
    ) -> None:
        self.pool = pool
        self.rank = rank
        self.place = place
        self.lease = lease
        self.copy = copy
        self.program = program
        self.done = done
        self.reader: Field = ("reader", lease, copy, rank)
        self.who = name(pool, rank, lease, copy)

    def run(self, now: Fields, of_dead: bool) -> Step:
        """Run the piece; `of_dead`: its process is dead, and nobody is told anything any more."""
        piece = self.program[self.done]
        if piece == HALF:
            return self.copy_half(now)
        if piece == CHECK:
            return self.check(now, of_dead)
        return self.load(now) if piece == LOAD else self.acknowledge(now)

    def copy_half(self, now: Fields) -> Step:
        """Copy the next half out to private memory."""
        half = self.program[: self.done].count(HALF)
        content = now["holds", now["unit", self.lease], half]
        part = "whole" if self.pool.scope.halves == 1 else f"part {half + 1} of {self.pool.scope.halves}"
        changes = self.moved_on(now)
        if content != self.lease:
            changes["foreign", self.place, self.rank] = 1
        whose = f"bytes of {content}" if content else "bytes that nobody wrote"
        return Step(now.changed(changes), f"{self.who}: copy out, {part}: {whose}")

    def check(self, now: Fields, of_dead: bool) -> Step:
        """Read R: the copy is good, or it is thrown away."""
        slot = now["slot", self.lease]
        live = self.pool.protocol.live(now["generation", self.lease])
        if now["R", slot] != live:
            return self.stale(now, of_dead)
        text = f"{self.who}: R[{slot}] = {live}, right"
        if self.pool.protocol.host_judges:
            return self.handed(now, text, self.left(now, Reader.ARRIVED))
        return self.handed(now, text, self.moved_on(now))

    def stale(self, now: Fields, of_dead: bool) -> Step:
        """The lease is not live any more: nothing is accepted."""
        slot = now["slot", self.lease]
        copies = self.pool.copies(self.rank)
        finished = any(now["reader", self.lease, copy, self.rank] == Reader.FINISHED for copy in copies)
        # Judged for a rank, not for a copy: a second copy may find out late that its rank has released.
        broken = () if now["excused", self.lease] or finished or of_dead else ("CON-5",)
        if not self.pool.stale_acknowledge:
            changes = self.left(now, Reader.OVER)
        elif self.pool.protocol.host_judges:
            changes = self.left(now, Reader.ARRIVED)
        else:
            changes = {("foreign", self.place, self.rank): 0, ("done", self.place, self.rank): self.pool.first_word}
        return Step(now.changed(changes), f"{self.who}: R[{slot}] = {now['R', slot]}, stale", broken)

    def load(self, now: Fields) -> Step:
        """The first part of a max that is not atomic."""
        slot = now["slot", self.lease]
        word = now["A", slot, self.rank]
        changes = {("loaded", self.place, self.rank): word, **self.moved_on(now)}
        return self.handed(now, f"{self.who}: load A[{self.rank}] of slot {slot} = {word}", changes)

    def acknowledge(self, now: Fields) -> Step:
        """Write the rank's word; the leader of a group that stores writes every member's, one after the other."""
        slot = now["slot", self.lease]
        written = self.program[: self.done].count(ACKNOWLEDGE)
        rank = written if self.pool.stores_for_others else self.rank
        before = now["A", slot, rank]
        word = self.value(now, before)
        changes: dict[Field, int] = {("A", slot, rank): word}
        if self.program[self.done] == STORE:
            changes["loaded", self.place, self.rank] = 0
        if self.done == len(self.program) - 1:
            changes |= entered(self.pool, self.rank, self.lease, now, Table.COMPLETION)
        changes |= self.moved_on(now)
        if self.program[self.done + 1 :] and self.program[self.done + 1] == ACKNOWLEDGE:
            # It has read; what is left to do is for the other members.
            changes[self.reader] = Reader.FINISHED
        step = self.handed(now, f"{self.who}: A[{rank}] of slot {slot} = {word}", changes)
        return step._replace(broken=(*step.broken, "ACK-2")) if word < before else step

    def handed(self, now: Fields, text: str, changes: dict[Field, int]) -> Step:
        """A step with which the rank may be handed its copy, which must then be the lease's own bytes, all of them."""
        if self.program is not self.pool.program or self.done != self.pool.handing:
            return Step(now.changed(changes), text)
        foreign: Field = ("foreign", self.place, self.rank)
        # What was copied is of no further interest; equal states shall be equal.
        return Step(now.changed({**changes, foreign: 0}), text, ("CON-1",) if now[foreign] else ())

    def value(self, now: Fields, before: int) -> int:
        """What the acknowledgement writes over `before`."""
        word = self.pool.word(now["generation", self.lease])
        if self.pool.protocol.acknowledge is Acknowledge.MAX:
            return max(word, before)
        if self.pool.protocol.acknowledge is Acknowledge.LOAD_THEN_STORE:
            return max(word, now["loaded", self.place, self.rank])
        return word

    def moved_on(self, now: Fields) -> dict[Field, int]:
        """The change that makes the next piece the reader's turn."""
        if self.done == len(self.program) - 1:
            return self.left(now, Reader.FINISHED)
        return {("done", self.place, self.rank): self.done + 1}

    def left(self, now: Fields, fate: Reader) -> dict[Field, int]:
        """The change that takes this reader off its stream."""
        return {**without_head(self.pool, self.rank, self.place, now), self.reader: fate}
