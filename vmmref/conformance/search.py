"""What one process does of a check: walk and machine on one subject, shrinking what breaks; tells what it finds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vmmref.conformance.failure import Failure
from vmmref.conformance.flavours import FLAVOURS, Flavour, usable
from vmmref.conformance.machine import Findings, machine_for
from vmmref.conformance.machine import search as search_machine
from vmmref.conformance.run import Rig, replay
from vmmref.conformance.shrink import Budget, shrink
from vmmref.conformance.walk import Schedule, Unit
from vmmref_models import Operation, Shape

EXAMPLES = 25
"""Examples of one batch of the machine; between batches it is asked whether time is up."""
TELL_SECONDS = 0.2
REFUSED_SHAPES = 200
"""So many shapes in a row that a subject refuses mean that it can have none."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to search for, how and for how long. Everything that a run depends on, beside the pool itself."""

    seed: int = 0
    client: str = "any"
    """"any", or "well-behaved": keeps the environment obligations."""
    walk_seconds: float = 25.0
    walk_episodes: int | None = None
    """None = as many as the time allows; a number makes a run repeatable on any machine."""
    machine_seconds: float = 15.0
    machine_batches: int | None = None
    least: int = 100
    """The schedule steers until each rule was exercised so often."""
    shrink_replays: int = 1000
    shrink_seconds: float = 6.0
    hang_seconds: float = 30.0
    """An operation that has not come back by then never will (LIFE-5): no pool waits that long."""


@dataclass(frozen=True, slots=True)
class Started:
    """A unit of work begins: an episode of the walk or a batch of the machine."""

    phase: str
    index: int
    flavour: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """So far, in this process."""

    phase: str
    operations: int
    exercised: dict[str, int]
    """By rule, and by "RULE/name" for what some run must reach."""


@dataclass(frozen=True, slots=True)
class Found:
    """A rule is broken; a later one of the same rule is shorter."""

    failure: Failure


Event = Started | Progress | Found
Tell = Callable[[Event], None]


class CannotRun(Exception):
    """Nothing can be searched, for the reason in the text."""


class Search:
    """Searches one subject in this process. `known` are the rules that end an episode quietly."""

    def __init__(
        self, rig: Rig, plan: Plan, tell: Tell = lambda event: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rig = rig
        self.plan = plan
        self.tell = tell
        self.clock = clock
        self.flavours = usable(rig.description, plan.client)
        self.failures: dict[str, Failure] = {}
        self.phase = ""
        self._told = clock()

    def walk(self, first: int = 0) -> None:
        """Episodes from number `first` on, until the time or the number of the plan is used up."""
        plan, schedule = self.plan, Schedule(self.flavours, self.plan.least)
        end, index, refused, reason = self.clock() + plan.walk_seconds, first, 0, ValueError()
        self.phase = "walk"
        while self.clock() < end and (plan.walk_episodes is None or index < first + plan.walk_episodes):
            before, done = self.rig.counts(), self.rig.operations
            flavour = schedule.choose(index, before)
            self.tell(Started("walk", index, flavour.name))
            try:
                self._keep(self.one_episode(index, flavour))
                refused = 0
            except ValueError as error:
                refused, reason = refused + 1, error
                if refused >= REFUSED_SHAPES:
                    break
            schedule.learn(flavour, self.rig.operations - done, before, self.rig.counts())
            self._progress()
            index += 1
        self._progress(force=True)
        if refused >= REFUSED_SHAPES or (refused and not self.rig.operations):
            raise CannotRun(f"the subject refused {refused} shapes in a row, the last one with: {reason}")

    def one_episode(self, index: int, flavour: Flavour) -> list[Failure]:
        """One episode of the walk by itself."""
        return Unit(self.plan.seed, index, flavour, self.plan.client).run(self.rig)

    def machine(self, first: int = 0) -> None:
        """Batches of Hypothesis examples from number `first` on, until the time or the number is used up."""
        plan, end, index = self.plan, self.clock() + self.plan.machine_seconds, first
        self.phase = "machine"
        while self.clock() < end and (plan.machine_batches is None or index < first + plan.machine_batches):
            self.tell(Started("machine", index))
            self.one_batch(index, end)
            self._progress()
            index += 1
        self._progress(force=True)

    def one_batch(self, index: int, late: float = math.inf) -> None:
        """One batch of the machine by itself, ended early at the time `late`."""

        def stop() -> bool:
            self._progress()
            return self.clock() > late

        findings = Findings(frozenset(self.failures), stop=stop)
        machine = machine_for(self.rig, self.flavours, self.plan.client, findings)
        search_machine(machine, self.plan.seed * 1_000_003 + index, EXAMPLES)
        self._keep(list(findings.failures.values()))

    def _keep(self, failures: Sequence[Failure]) -> None:
        for failure in failures:
            if failure.rule not in self.failures:
                self.failures[failure.rule] = failure
                self.tell(Found(failure))
                self.failures[failure.rule] = self.shortest(failure)
                self.tell(Found(self.failures[failure.rule]))

    def shortest(self, failure: Failure) -> Failure:
        """The shortest sequence that breaks the rule of a failure on this subject."""

        def again(shape: Shape, operations: Sequence[Operation]) -> Failure | None:
            self._progress()
            try:
                found = replay(self.rig, shape, operations, home=failure.at_end)
            except ValueError:
                return None
            return next((other for other in found if other.rule == failure.rule), None)

        return shrink(failure, again, Budget(self.plan.shrink_replays, self.plan.shrink_seconds, self.clock))

    def _progress(self, force: bool = False) -> None:
        now = self.clock()
        if force or now - self._told >= TELL_SECONDS:
            self._told = now
            self.tell(Progress(self.phase, self.rig.operations, self.rig.counts()))


def flavour_named(name: str) -> Flavour:
    """The flavour of that name."""
    return next(flavour for flavour in FLAVOURS if flavour.name == name)
