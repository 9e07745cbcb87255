"""The hunt for one broken pool: the harness's walk until the pool's own rule is named, and the shortest sequence.

What is found counts only if the same sequence leaves the unbroken pool in peace.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import FrameType

from vmmref import simcuda
from vmmref.conformance.failure import Failure
from vmmref.conformance.faulty.broken import FaultyPool
from vmmref.conformance.flavours import NEEDED, Flavour, usable
from vmmref.conformance.loading import describe_error
from vmmref.conformance.run import Rig, SubjectError, replay
from vmmref.conformance.shrink import Budget, shrink
from vmmref.conformance.subjects.reference import ReferenceSubject
from vmmref.conformance.walk import Unit
from vmmref_models import RULES, Operation, Shape
from vmmref_models.monitor import judges
from vmmref_models.operations import Attempt, Faulty

HANG_SECONDS = {True: 0.5, False: 10.0}
"""An operation that takes longer hangs; on the simulated driver (True) it takes microseconds."""
OUTSIDE_SECONDS = 10.0
"""The same for operations in which other processes take part."""
REPLAYS = 400
"""The most replays that shortening one sequence may take."""


@dataclass(frozen=True, slots=True)
class Catch:
    """What came of the hunt for one broken pool."""

    pool: FaultyPool
    failure: Failure | None = None
    """The shortest sequence that breaks the pool's own rule; None when the rule was not named."""
    others: tuple[str, ...] = ()
    """Other rules that were broken, in the order in which they were."""
    seconds: float = 0.0
    operations: int = 0
    note: str = ""
    """Why the hunt ended early, if it did."""

    @property
    def caught(self) -> bool:
        """Whether any rule was broken."""
        return self.named or bool(self.others)

    @property
    def named(self) -> bool:
        """Whether the pool's own rule was."""
        return self.failure is not None

    @property
    def steps(self) -> int | None:
        """Operations in the shortest sequence."""
        return None if self.failure is None else len(self.failure.operations)


class Hung(BaseException):
    """An operation did not come back. No Exception: a pool must not take it for an error of its own."""


class Watch:
    """Follows a rig and interrupts an operation that hangs. For the main thread only: it lives on a signal."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.shape = Shape(1, 1, 256)
        self.operations: list[Operation] = []

    def follow(self, what: Shape | Operation) -> None:
        """Note what is about to be done; an operation gets its time."""
        if isinstance(what, Shape):
            self.shape, self.operations = what, []
        else:
            self.operations.append(what)
            inner = what.operation if isinstance(what, Faulty) else what
            outside = isinstance(inner, Attempt) or self.shape.apart
            signal.setitimer(signal.ITIMER_REAL, OUTSIDE_SECONDS if outside else self.seconds)

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """Raise Hung in this block when the operation noted last takes too long."""
        before = signal.signal(signal.SIGALRM, self._interrupt)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        raise Hung

    def failure(self) -> Failure:
        """The failure that a hanging operation is (LIFE-5)."""
        got = f"the operation did not come back within {self.seconds} s"
        return Failure("LIFE-5", self.shape, tuple(self.operations), "it comes back", got)


class Hunt:
    """One broken pool under the walk of the harness. A simulated driver is reset after every episode."""

    def __init__(self, pool: FaultyPool, device: str = "sim", seed: int = 0) -> None:
        """Raises VmmRefError where there is no such device."""
        self.pool = pool
        self.seed = seed
        self.subject = pool(device)
        self.watch = Watch(HANG_SECONDS[self.subject.describe().simulated])
        self.rig = Rig(self.subject, self.watch.follow)
        self.sound = Rig(ReferenceSubject(device), self.watch.follow)
        self.simulator = simcuda.loaded()
        self.flavours = usable(self.rig.description, "any")
        self.gains: Counter[str] = Counter()
        """By flavour, how often its episodes exercised the pool's rule, in how many operations (`spent`)."""
        self.spent: Counter[str] = Counter()
        self.others: dict[str, None] = {}

    def run(self, seconds: float, shrink_seconds: float) -> Catch:
        """Hunt for about `seconds`, then shorten what was found for at most `shrink_seconds`."""
        started, failure, note = time.monotonic(), None, ""
        try:
            failure = self._search(started + seconds)
            failure = self._shortened(failure, shrink_seconds) if failure is not None else None
        except Exception as error:
            # A pool so broken that the harness cannot go on with it is no reason to lose the other hunts.
            note = describe_error(error)
        finally:
            if self.simulator is not None:
                self.simulator.set_mode("threads")
        others = tuple(rule for rule in self.others if rule != self.pool.rule)
        return Catch(self.pool, failure, others, time.monotonic() - started, self.rig.operations, note)

    def _search(self, end: float) -> Failure | None:
        """The first failure of the pool's rule that the unbroken pool does not share."""
        index = 0
        while time.monotonic() < end:
            flavour = self._flavour(index)
            failures = self._episode(Unit(self.seed, index, flavour, "any"))
            self.others.update(dict.fromkeys(failure.rule for failure in failures))
            for failure in failures:
                if failure.rule == self.pool.rule and self._is_its_own(failure):
                    return failure
            index += 1
        return None

    def _flavour(self, index: int) -> Flavour:
        """All flavours in turn, and every other time the one that exercises the pool's rule most, or is made for it."""
        turn, steered = divmod(index, 2)
        named = [flavour for flavour in self.flavours if flavour.name == self.pool.flavour]
        if steered and not named and any(self.gains.values()):
            return max(self.flavours, key=lambda flavour: self.gains[flavour.name] / (1 + self.spent[flavour.name]))
        needs = RULES[self.pool.rule].needs
        made_for = named or [flavour for flavour in self.flavours if NEEDED.get(flavour.name) in needs]
        return made_for[0] if steered and made_for else self.flavours[turn % len(self.flavours)]

    def _episode(self, unit: Unit) -> list[Failure]:
        rule, name = self.pool.rule, unit.flavour.name
        exercised, operations = self.rig.monitor.exercised.get(rule, 0), self.rig.operations
        failures = self._guarded(lambda: unit.run(self.rig))
        self.gains[name] += self.rig.monitor.exercised.get(rule, 0) - exercised
        self.spent[name] += self.rig.operations - operations
        return failures

    def _guarded(self, run: Callable[[], list[Failure]]) -> list[Failure]:
        """What `run` finds; LIFE-5 for an operation that hangs, [] for a pool that cannot be made or, whole, ended."""
        try:
            with self.watch.interrupting():
                return run()
        except (ValueError, SubjectError):
            return []
        except Hung:
            self.subject.end()
            return [self.watch.failure()]
        finally:
            # What a broken pool still holds must not be in the way of the next one.
            self.subject.give_back()
            if self.simulator is not None:
                self.simulator.reset()

    def _again(self, rig: Rig, failure: Failure, shape: Shape, operations: Sequence[Operation]) -> Failure | None:
        found = self._guarded(lambda: replay(rig, shape, operations, home=failure.at_end))
        return next((other for other in found if other.rule == failure.rule), None)

    def _is_its_own(self, failure: Failure) -> bool:
        """Whether the unbroken pool keeps the rule in the same sequence."""
        return self._again(self.sound, failure, failure.shape, failure.operations) is None

    def _shortened(self, failure: Failure, seconds: float) -> Failure:
        shortest = shrink(
            failure,
            lambda shape, operations: self._again(self.rig, failure, shape, operations),
            Budget(REPLAYS, seconds),
        )
        return shortest if self._is_its_own(shortest) else failure


def hunt(pool: FaultyPool, device: str, seeds: int, seconds: float, shrink_seconds: float) -> Catch:
    """Hunt under the seeds 0 ... `seeds` - 1: named is a pool whose rule was named under each of them."""
    catches = [Hunt(pool, device, seed).run(seconds, shrink_seconds) for seed in range(seeds)]
    worst = min(catches, key=lambda catch: (catch.named, catch.caught))
    shortest = min(catches, key=lambda catch: catch.steps or 0)
    missed = [str(seed) for seed, catch in enumerate(catches) if not catch.named]
    return replace(
        worst,
        failure=shortest.failure if worst.named else None,
        note=worst.note or (f"missed with seed {', '.join(missed)} of {seeds}" if missed and seeds > 1 else ""),
        seconds=sum(catch.seconds for catch in catches),
        operations=sum(catch.operations for catch in catches),
    )


def judged(subject: ReferenceSubject) -> tuple[str, ...]:
    """The rules that can be judged of the reference pool on its device, in the order of the specification."""
    policies = Rig(subject).policies
    return tuple(name for name, rule in RULES.items() if judges(rule, policies))


def unproven(rules: Sequence[str], catches: Sequence[Catch]) -> tuple[str, ...]:
    """The rules among `rules` that no broken pool was caught by: nobody has seen their check fail."""
    proven = {catch.pool.rule for catch in catches if catch.named}
    return tuple(rule for rule in rules if rule not in proven)
