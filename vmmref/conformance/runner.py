"""A whole check: workers that search a subject, watched from outside, and what they found together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait

from vmmref.conformance.failure import Failure
from vmmref.conformance.search import Found, Plan, Progress, Started
from vmmref.conformance.shrink import Budget, shrink
from vmmref.conformance.subject import Description
from vmmref.conformance.worker import Described, Ended, GaveUp, Message, Task, Worker, culprit
from vmmref_models import ALIGNMENT, Operation, Shape

RESTARTS = 8
"""So often a worker is started again after an operation hung or crashed; then the rest of its search is given up."""

CRASHES = 24
"""So many processes are spent at most on making a sequence shorter that crashes them."""


@dataclass(frozen=True, slots=True)
class Profile:
    """How long a check takes."""

    name: str
    seconds: float
    shrink_seconds: float
    """Of them for making one sequence shorter."""

    def plan(self, device: str, seed: int, client: str, most_seconds: float | None = None) -> Plan:
        """The plan of a check: both phases at once on a simulated device, one after the other on a real one.

        `most_seconds` is a limit for the whole check.
        """
        seconds = self.seconds if most_seconds is None else min(self.seconds, most_seconds)
        shrinking = min(self.shrink_seconds, seconds / 8)
        searching = seconds - shrinking
        walking, machining = (searching / 2, searching / 2) if in_turn(device) else (searching, searching)
        return Plan(seed, client, walking, None, machining, shrink_seconds=shrinking)


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile("quick", 42.0, 5.0),
        Profile("full", 600.0, 20.0),
        Profile("night", 6 * 3600.0, 60.0),
    )
}


def in_turn(device: str) -> bool:
    """Whether the phases run one after the other: two processes would fight for one real device."""
    return device.startswith("cuda")


@dataclass(slots=True)
class Result:
    """What a check found."""

    description: Description | None = None
    failures: dict[str, Failure] = field(default_factory=dict)
    exercised: dict[str, int] = field(default_factory=dict)
    operations: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    """What went wrong with the search itself, a sentence each."""
    cannot_run: str = ""
    """Why nothing, or no more, could be searched."""

    def keep(self, failure: Failure) -> None:
        """Keep the shortest failure of each rule."""
        kept = self.failures.get(failure.rule)
        if kept is None or (len(failure.operations), failure.at_end) <= (len(kept.operations), kept.at_end):
            self.failures[failure.rule] = failure


class Check:
    """One check of one subject. `watch` is called now and then with the result so far, for a progress display."""

    def __init__(
        self, subject: str, device: str, plan: Plan, watch: Callable[[Result], None] = lambda result: None
    ) -> None:
        self.subject = subject
        self.device = device
        self.plan = plan
        self.watch = watch
        self.result = Result()
        self.restarts = 0
        self._progress: dict[int, Progress] = {}
        self._before: list[Progress] = []

    def run(self) -> Result:
        """Search until the plan's time is used up. Ends by itself, whatever the subject does."""
        started = time.monotonic()
        workers = [self._worker(phases) for phases in self._phases()]
        try:
            while workers:
                ready = wait([worker.pipe for worker in workers], timeout=0.25)
                for worker in tuple(workers):
                    over = worker.pipe in ready and self._read(worker)
                    if over or (worker.silent and not worker.pipe.poll()):
                        workers.remove(worker)
                        workers.extend(self._after(worker, hung=not over, started=started))
                self._count()
                self.result.seconds = time.monotonic() - started
                self.watch(self.result)
        except KeyboardInterrupt:
            # Hours may have been spent: what was found until now is still worth a report.
            self.result.cannot_run = "the check was interrupted"
        finally:
            for worker in workers:
                worker.stop()
        self.result.seconds = time.monotonic() - started
        return self.result

    def _phases(self) -> list[tuple[str, ...]]:
        """The phases of each worker."""
        wanted = [
            phase
            for phase, seconds in (("walk", self.plan.walk_seconds), ("machine", self.plan.machine_seconds))
            if seconds > 0
        ]
        return [tuple(wanted)] if in_turn(self.device) else [(phase,) for phase in wanted]

    def _worker(self, phases: tuple[str, ...], first: int = 0, plan: Plan | None = None) -> Worker:
        known = tuple(self.result.failures.values())
        return Worker(Task(self.subject, self.device, plan or self.plan, phases, first, known=known))

    def _read(self, worker: Worker) -> bool:
        """Take in what a worker says; True when it says no more."""
        while True:
            message = worker.receive()
            if message is None or self._take(worker, message):
                return True
            if not worker.pipe.poll():
                return False

    def _take(self, worker: Worker, message: Message) -> bool:
        match message:
            case Described():
                self.result.description = message.description
            case Progress():
                self._progress[id(worker)] = message
            case Found():
                self.result.keep(message.failure)
            case GaveUp():
                self.result.cannot_run = message.reason
                worker.unit = None
                return True
            case Ended():
                worker.unit = None
                return True
        return False

    def _after(self, worker: Worker, hung: bool, started: float) -> list[Worker]:
        """Put away a worker that is over; where it hung or crashed find out why, and go on after that unit."""
        unit, how = worker.unit, "" if hung else worker.ending()
        worker.stop()
        if id(worker) in self._progress:
            self._before.append(self._progress.pop(id(worker)))
        if unit is None:
            if hung:
                self.result.cannot_run = "the subject was not ready in time"
            elif not self.result.cannot_run and how != "ended with status 0":
                self.result.cannot_run = f'the process that loads subject "{self.subject}" {how} before it had one'
            return []
        rule = "LIFE-5" if hung else "ERR-2"
        if rule not in self.result.failures:
            self.result.keep(self._culprit(worker, unit, rule, how))
        self.restarts += 1
        if self.restarts > RESTARTS:
            self.result.notes.append(f"the {unit.phase} was given up after {RESTARTS} restarts")
            return []
        spent = time.monotonic() - started
        left = replace(
            self.plan,
            walk_seconds=max(0.0, self.plan.walk_seconds - spent),
            machine_seconds=max(0.0, self.plan.machine_seconds - spent),
        )
        return [self._worker((unit.phase,), unit.index + 1, left)]

    def _culprit(self, worker: Worker, unit: Started, rule: str, how: str) -> Failure:
        """What a worker hung or crashed by; a failure without operations where a second run of the unit does not."""
        failure, end = culprit(replace(worker.task, only=unit, first=0))
        if failure is None:
            note = f"a worker {how or 'hung'} in {unit.phase} unit {unit.index}; a second run {end or 'went well'}"
            self.result.notes.append(note)
            return Failure(rule, Shape(1, 1, ALIGNMENT), (), "every operation comes back", note)
        return failure if failure.rule == "LIFE-5" else self._shortened(failure)

    def _shortened(self, failure: Failure) -> Failure:
        """A shorter sequence that crashes a process; each try costs a process of its own, so there are few."""

        def again(shape: Shape, operations: Sequence[Operation]) -> Failure | None:
            task = Task(self.subject, self.device, self.plan, sequence=(shape, tuple(operations)))
            found, _ = culprit(task)
            return found if found is not None and found.rule == failure.rule else None

        return shrink(failure, again, Budget(CRASHES, self.plan.shrink_seconds * 3))

    def _count(self) -> None:
        parts = [*self._before, *self._progress.values()]
        self.result.operations = sum(part.operations for part in parts)
        exercised: dict[str, int] = {}
        for part in parts:
            for rule, count in part.exercised.items():
                exercised[rule] = exercised.get(rule, 0) + count
        self.result.exercised = exercised


def replay_trace(
    subject: str, device: str, shape: Shape, operations: tuple[Operation, ...]
) -> tuple[list[Failure], str]:
    """Replay a sequence in a process of its own; the rules that it breaks, and why it could not run ("" = it could)."""
    task = Task(subject, device, Plan(), sequence=(shape, operations))
    worker = Worker(task)
    while not worker.silent:
        if not worker.pipe.poll(0.25):
            continue
        message = worker.receive()
        if isinstance(message, Ended):
            worker.stop()
            return list(message.failures), ""
        if isinstance(message, GaveUp):
            worker.stop()
            return [], message.reason
        if message is None:
            break
    worker.stop()
    failure, end = culprit(task)
    if failure is None:
        return [], f"the worker ended before the pool was made ({end})" if end else "it hung once and then went well"
    return [failure], ""
