"""The story that every killing interrupts: leases read, released, revoked, borrowed, packed and cancelled by all.

It is told the same way each time. When a consumer dies the story goes on without it, and at its end a new process joins
for its rank; when the producer dies the consumers come home on their own, and a new producer serves them.
"""

from __future__ import annotations

import contextlib
import signal
import time
from typing import Any, NamedTuple

from vmmref.conformance import payloads
from vmmref.conformance.kills.actors import DATA_BYTES, RANKS, payload
from vmmref.conformance.kills.executioner import Point
from vmmref.conformance.kills.stage import ANYTHING, NOTHING, Hopeless, ProducerDied, Stage
from vmmref.handles import HandleType
from vmmref_models.reasons import Reason

NOBODY = "nobody dies"

PLAIN, RELEASED, REVOKED, BORROWED, HELD, PACKED, SIBLING, CANCELLED, WITHOUT, AFTER, LAST = range(1, 12)
"""The leases by the seed of their bytes. HELD is revoked while views of it are out; SIBLING is the second tensor of the
pack. WITHOUT is published when a rank has just died, AFTER when its new process has joined, LAST when all have gone."""
SPOKEN = range(12, 12 + RANKS)
"""Leases that one rank acknowledges for all: the first one by rank 0."""

_STALE: tuple[Any, ...] = (Reason.STALE_LEASE,)
_OVER: tuple[Any, ...] = (Reason.ALREADY_RELEASED, Reason.STALE_LEASE)


def bytes_of(seed: int) -> tuple[int]:
    """Expected of reading lease `seed`: the digest of its bytes."""
    return (payloads.expected_digest(payload(seed)),)


class Killing(NamedTuple):
    """What came of one killing."""

    role: str
    point: str
    reached: bool
    problems: tuple[str, ...]
    """What was not as it must be, a sentence each."""
    longest_step_seconds: float
    seconds: float

    @property
    def passed(self) -> bool:
        """The point was reached and nothing was wrong."""
        return self.reached and not self.problems


class Story(Stage):
    """One telling, with a victim or without. `broken` names a class to put in the place of one of the pool's."""

    def __init__(
        self, role: str, point: Point | None, broken: str | None = None, handle_type: str = HandleType.POSIX_FD
    ) -> None:
        super().__init__(role, point, broken)
        self._handle_type = str(handle_type)
        self._forms: dict[int, str] = {}
        """Wire forms that have reached the teller, by seed."""
        self._begun: set[int] = set()
        """Ranks with a reading of REVOKED under way."""
        self._views: set[tuple[int, int]] = set()
        """Rank and seed of every view that is out."""
        self._dead_words: list[int] = []

    def tell(self) -> Killing:
        """Tell it to its end; every process is gone afterwards."""
        started = time.monotonic()
        with self.filled() as victim:
            with contextlib.suppress(Hopeless):
                try:
                    self._tell_it()
                except ProducerDied:
                    self._come_home()
            reached = self._point is None or (not victim.alive and victim.wait() == -signal.SIGKILL)
        name = NOBODY if self._point is None else self._point.name
        seconds = time.monotonic() - started
        return Killing(self._role, name, reached, tuple(self._problems), self._longest_seconds, seconds)

    # ---- the story

    def _tell_it(self) -> None:
        self._produce("construct", "construct", self._handle_type)
        for rank, process in enumerate(self._consumers):
            self._produce("watch", "watch", rank, process.process_id)
        self._read_and_release()
        self._revoke()
        self._borrow()
        self._pack()
        self._speak_for_all()
        self._publish(CANCELLED)
        self._produce("cancel", "cancel", CANCELLED)
        self._produce("pass", "recycle", False)
        self._everybody("drop", "drop")
        self._come_back()
        self._everybody("the end", "drop")
        self._everybody("the end", "left", expected=NOTHING)
        self._publish(LAST)
        self._produce("shut down", "shut_down")
        self._produce("the end", "left", expected=NOTHING)

    def _publish(self, seed: int, borrowable: bool = False, speaker: int | None = None) -> None:
        answer = self._produce("publish", "publish", seed, borrowable, speaker)
        if isinstance(answer, str):
            self._forms[seed] = answer

    def _deliver(self, rank: int, seed: int) -> None:
        if seed not in self._forms:
            # It was not published, which is among the problems.
            raise Hopeless
        action = "deliver_packed" if seed in (PACKED, SIBLING) else "deliver"
        self._consume(rank, "deliver", action, seed, self._forms[seed])

    def _read_and_release(self) -> None:
        """Read one lease, release another, and be refused the first one through a second copy."""
        self._publish(PLAIN)
        for rank in range(RANKS):
            self._deliver(rank, PLAIN)
            self._consume(rank, "first read", "read", PLAIN, expected=bytes_of(PLAIN))
            self._consume(rank, "acknowledge", "run", expected=ANYTHING)
        self._publish(RELEASED)
        for rank in range(RANKS):
            self._deliver(rank, RELEASED)
            self._consume(rank, "release", "release", RELEASED)
            self._consume(rank, "acknowledge the release", "run", expected=ANYTHING)
            self._deliver(rank, PLAIN)
            self._consume(rank, "duplicate", "read", PLAIN, expected=(Reason.ALREADY_RELEASED,))

    def _revoke(self) -> None:
        """Revoke a lease that every rank has begun to read."""
        dead_before = self._dead_rank
        self._publish(REVOKED)
        for rank in range(RANKS):
            self._deliver(rank, REVOKED)
            self._consume(rank, "begin", "begin", REVOKED)
            self._begun.add(rank)
        self._produce("revoke", "revoke", REVOKED)
        # Those who mourn let all their work run: then their readings have ended before the revocation.
        ends = _STALE if self._dead_rank == dead_before else (*_STALE, *bytes_of(REVOKED))
        for rank in range(RANKS):
            self._consume(rank, "finish", "finish", REVOKED, expected=ends)
            self._begun.discard(rank)

    def _borrow(self) -> None:
        """Look at two leases in place; one is revoked meanwhile, and keeps its range until nobody looks any more."""
        for seed in (BORROWED, HELD):
            self._publish(seed, borrowable=True)
            for rank in range(RANKS):
                self._deliver(rank, seed)
                self._consume(rank, "borrow", "borrow", seed, expected=bytes_of(seed))
                self._views.add((rank, seed))
        self._produce("revoke in place", "revoke", HELD)
        for rank in range(RANKS):
            for seed in (BORROWED, HELD):
                self._consume(rank, "look in place", "peek", seed, expected=bytes_of(seed))
                self._consume(rank, "give back", "give_back", seed)
                self._views.discard((rank, seed))
            self._produce("pass in place", "recycle", False)
            self._produce("pass in place", "is_out", HELD, expected=(True,))
            self._consume(rank, "acknowledge the view", "run", expected=ANYTHING)

    def _pack(self) -> None:
        forms = self._produce("publish a pack", "pack", PACKED)
        if isinstance(forms, list):
            self._forms.update(zip((PACKED, SIBLING), forms, strict=True))
        for rank in range(RANKS):
            self._deliver(rank, PACKED)
            self._deliver(rank, SIBLING)
            self._consume(rank, "read a pack", "read", SIBLING, expected=bytes_of(SIBLING))
            self._consume(rank, "read its sibling", "read", PACKED, expected=bytes_of(PACKED))
            self._consume(rank, "acknowledge the pack", "run", expected=ANYTHING)

    def _speak_for_all(self) -> None:
        """Each rank in turn reads a lease in the name of all."""
        for rank, seed in enumerate(SPOKEN):
            self._publish(seed, speaker=rank)
            self._deliver(rank, seed)
            self._consume(rank, "read for all", "read_for_all", seed, expected=bytes_of(seed))
            self._consume(rank, "acknowledge for all", "run", expected=ANYTHING)

    # ---- a consumer has died

    def mourn(self, rank: int) -> None:
        """A consumer is dead and the pool has not counted it: its words stay, and its leases are waited for."""
        self._dead_rank = rank
        self._dead_words = self._produce("mourn", "words", rank)
        self._publish(WITHOUT)
        for other in range(RANKS):
            self._deliver(other, WITHOUT)
            self._consume(other, "read without the dead", "read", WITHOUT, expected=bytes_of(WITHOUT))
            self._consume(other, "read without the dead", "run", expected=ANYTHING)
        self._produce("mourn", "recycle", False)
        self._produce("mourn", "is_out", WITHOUT, expected=(True,))

    def _come_back(self) -> None:
        """The dead are counted, every lease comes back, and a new process acts for the dead one's rank."""
        self._produce("reap", "reap", expected=([] if self._dead_rank is None else [self._dead_rank],))
        self._everything_is_back()
        rank, self._dead_rank = self._dead_rank, None
        if rank is not None:
            # REAP-1: no word is written for the dead.
            self._produce("reap", "words", rank, expected=(self._dead_words,))
            self._consumers[rank] = self._start_consumer(rank, victim="")
            self._produce("watch", "watch", rank, self._consumers[rank].process_id)
        self._publish(AFTER)
        last = 0 if rank is None else rank
        for each in sorted(range(RANKS), key=lambda each: each == last):
            self._produce("mourn", "recycle", True)
            self._produce("mourn", "is_out", AFTER, expected=(True,))
            self._deliver(each, AFTER)
            self._consume(each, "read after", "read", AFTER, expected=bytes_of(AFTER))
            self._consume(each, "read after", "run", expected=ANYTHING)
        # GEN-4: whatever the rank's former process has done with it, an old copy reads nothing.
        self._deliver(last, PLAIN)
        self._consume(last, "an old copy", "read", PLAIN, expected=_OVER)
        self._everything_is_back()

    def _everything_is_back(self) -> None:
        self._produce("reap", "recycle", True)
        self._produce("reap", "leases", expected=([0, DATA_BYTES],))

    # ---- the producer has died

    def _come_home(self) -> None:
        """Every consumer ends what it has begun, and a new producer serves them all."""
        self._orphaned = True
        for rank in range(RANKS):
            self._end_alone(rank)
        self._producer = self._start_producer(victim="")
        self._forms.clear()
        self._produce("start again", "construct", self._handle_type)
        self._publish(PLAIN)
        for rank in range(RANKS):
            self._deliver(rank, PLAIN)
            self._consume(rank, "read from the new one", "read", PLAIN, expected=bytes_of(PLAIN))
            self._consume(rank, "read from the new one", "run", expected=ANYTHING)
        self._everything_is_back()
        self._everybody("the end", "drop")
        self._everybody("the end", "left", expected=NOTHING)
        self._produce("the end", "shut_down")
        self._produce("the end", "left", expected=NOTHING)

    def _end_alone(self, rank: int) -> None:
        """What is begun comes to an end, every proxy to an answer, and nothing is left."""
        if rank in self._begun:
            self._consume(rank, "finish alone", "finish", REVOKED, expected=(*bytes_of(REVOKED), *_OVER))
        for _, seed in sorted(view for view in self._views if view[0] == rank):
            self._consume(rank, "look alone", "peek", seed, expected=bytes_of(seed))
            self._consume(rank, "give back alone", "give_back", seed)
        for seed in self._forms:
            action = "read" if seed not in SPOKEN else "read_for_all"
            if action == "read" or seed == SPOKEN[rank]:
                self._deliver(rank, seed)
                ends = (*bytes_of(seed), *_OVER, Reason.PRODUCER_GONE)
                self._consume(rank, "read alone", action, seed, expected=ends)
        self._consume(rank, "drop alone", "drop")
        self._consume(rank, "drop alone", "left", expected=NOTHING)
