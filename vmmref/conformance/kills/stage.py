"""The stage of a story: who plays, how a step is asked for, and what is made of an answer, or of a death."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

from vmmref.conformance.kills.actors import RANKS
from vmmref.conformance.kills.executioner import Point
from vmmref.conformance.processes import SERVER, Process, ProcessGone
from vmmref_models.reasons import Reason

STEP_SECONDS = 10.0
"""No step may take longer, whoever has died: a descriptor is asked for no longer than this (BRK-3)."""
PRODUCER = "producer"
ROLES: tuple[str, ...] = (PRODUCER, *(f"consumer-{rank}" for rank in range(RANKS)))
_ACTORS = "vmmref.conformance.kills.actors:"
_VICTIM = "victim"

DONE: tuple[Any, ...] = (None,)
NOTHING: tuple[Any, ...] = ({},)
ANYTHING: tuple[Any, ...] = ()
"""Expected of a step whose answer does not matter, as long as it is not refused."""


class ProducerDied(Exception):
    """The story cannot go on."""


class Hopeless(Exception):
    """Somebody is not there who should be, or did not answer in time; it is among the problems."""


_kept: dict[str, Process] = {}
"""By part, processes that have survived a story and held nothing at its end: they play the part in the next one."""


@atexit.register
def dismiss() -> None:
    """End the processes that were kept."""
    while _kept:
        _kept.popitem()[1].end()


def _again(part: str) -> Process | None:
    """Who has played the part before; None when there is nobody any more."""
    kept = _kept.pop(part, None)
    if kept is not None and not kept.alive:
        kept.kill()
        return None
    return kept


def _open_files() -> int:
    """How many files this process has open, those of kept processes aside."""
    return len(os.listdir("/proc/self/fd")) - sum(len(process.descriptors) for process in _kept.values())


class Stage:
    """A producer and its consumers, of whom one may die at a point, or nobody.

    `broken` names a class to put in the place of one of the pool's.
    """

    def __init__(self, role: str, point: Point | None, broken: str | None = None) -> None:
        self._role = role
        self._point = point
        self._broken = broken
        self._cast: list[tuple[str, Process]] = []
        """Everybody who has played, and the part."""
        self._problems: list[str] = []
        self._longest_seconds = 0.0
        self._orphaned = False
        """Whether the producer has died, and the consumers know what to expect."""
        self._dead_rank: int | None = None

    @contextlib.contextmanager
    def filled(self) -> Iterator[Process]:
        """Everybody is there; the one who is to die. Afterwards only those are kept who have come through it clean."""
        SERVER.start()
        files = _open_files()
        try:
            self._producer = self._start_producer(self._role)
            self._consumers = [self._start_consumer(rank, self._role) for rank in range(RANKS)]
            yield [self._producer, *self._consumers][ROLES.index(self._role)]
        finally:
            for part, process in self._cast:
                if self._problems or self._broken is not None or part == _VICTIM or not process.alive:
                    process.kill()
                else:
                    _kept[part] = process
        if _open_files() != files:
            self._problems.append("the teller has other open files than before")

    def mourn(self, rank: int) -> None:
        """What is done when the process of `rank` has died."""
        raise NotImplementedError

    def _start_producer(self, victim: str) -> Process:
        return self._start(PRODUCER, victim, "produce", self._broken)

    def _start_consumer(self, rank: int, victim: str) -> Process:
        return self._start(ROLES[1 + rank], victim, "consume", rank)

    def _start(self, part: str, victim: str, actor: str, argument: int | str | None) -> Process:
        """Somebody who plays `part`: new when it is the victim's, else one who has played it before, if there is."""
        if part == victim:
            part, process = _VICTIM, Process(_ACTORS + actor, self._point, argument)
        else:
            kept = _again(part) if self._broken is None else None
            process = kept or Process(_ACTORS + actor, None, argument)
        self._cast.append((part, process))
        return process

    def _ask(self, process: Process, who: str, step: str, action: str, *arguments: Any) -> Any:
        """What somebody answers to a step: a value, or the reason of a refusal. Raises ProcessGone."""
        started = time.monotonic()
        try:
            answer = process.ask([step, action, arguments], STEP_SECONDS)
        except TimeoutError:
            self._problems.append(f'{who} did not end the step "{step}" within {STEP_SECONDS:g} s')
            raise Hopeless from None
        self._longest_seconds = max(self._longest_seconds, time.monotonic() - started)
        return Reason(answer["refused"]) if "refused" in answer else answer["answer"]

    def _produce(self, step: str, action: str, *arguments: Any, expected: tuple[Any, ...] = ANYTHING) -> Any:
        """Let the producer do a step; `expected` has the answers that are right."""
        try:
            answer = self._ask(self._producer, PRODUCER, step, action, *arguments)
        except ProcessGone:
            if self._role == PRODUCER and not self._orphaned and self._producer.wait() == -signal.SIGKILL:
                raise ProducerDied from None
            self._problems.append(f'the producer broke down in the step "{step}"')
            raise Hopeless from None
        self._judge(PRODUCER, step, answer, expected)
        return answer

    def _consume(self, rank: int, step: str, action: str, *arguments: Any, expected: tuple[Any, ...] = DONE) -> None:
        """Let a rank do a step, unless it is dead; `expected` has the answers that are right."""
        if rank == self._dead_rank:
            return
        role, process = ROLES[1 + rank], self._consumers[rank]
        try:
            answer = self._ask(process, role, step, action, *arguments)
        except ProcessGone:
            if self._role != role or process.wait() != -signal.SIGKILL:
                self._problems.append(f'{role} broke down in the step "{step}"')
                raise Hopeless from None
            self.mourn(rank)
            return
        if answer is Reason.PRODUCER_GONE and self._role == PRODUCER and not self._orphaned:
            # The files of a process that is being killed are closed a little before it is seen to have ended.
            with contextlib.suppress(TimeoutError):
                self._producer.wait(STEP_SECONDS)
                raise ProducerDied
        self._judge(role, step, answer, expected)

    def _judge(self, who: str, step: str, answer: Any, expected: tuple[Any, ...]) -> None:
        right = answer in expected if expected else not isinstance(answer, Reason)
        if not right:
            wanted = " or ".join(map(str, expected)) or "it to be done"
            self._problems.append(f'{who} answered {answer} to the step "{step}", expected {wanted}')

    def _everybody(self, step: str, action: str, expected: tuple[Any, ...] = DONE) -> None:
        for rank in range(RANKS):
            self._consume(rank, step, action, expected=expected)
