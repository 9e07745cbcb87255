"""One episode: a pool under test and the model in lock step, judged after every operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from vmmref.conformance.answers import leftovers_problem, observation_problem, outcome_problem, session_problem
from vmmref.conformance.failure import Failure
from vmmref.conformance.loading import describe_error
from vmmref.conformance.subject import Session, Subject
from vmmref.conformance.tokens import Tokens
from vmmref_models import (
    Impossible,
    Monitor,
    Observation,
    Operation,
    Outcome,
    Policies,
    Run,
    Shape,
    State,
    Step,
    difference,
    enabled,
    initial,
    observe,
    runnable,
    settle,
    shows_the_same,
    step,
)
from vmmref_models.operations import (
    Advance,
    Cancel,
    Collect,
    Deliver,
    Dispatch,
    Recycle,
    Release,
    Return,
    Revoke,
    Shutdown,
)
from vmmref_models.state import Lease

MOST_PIECES = 10_000
"""More than any episode queues: a stream that never empties ends here instead of never (LIFE-5)."""


class SubjectError(Exception):
    """The subject itself, not the pool behind it, does not keep to its interface: nothing can be judged."""


class Rig:
    """A subject with what all of its episodes share: its description, the monitor, and who follows along.

    `follow` is called with the shape before a pool is opened and with each operation before it is done.
    """

    def __init__(self, subject: Subject, follow: Callable[[Shape | Operation], None] | None = None) -> None:
        self.subject = subject
        self.description = subject.describe()
        described = self.description
        self.policies = Policies(described.protocol, described.fit, described.slot_order, described.capabilities)
        self.monitor = Monitor(self.policies)
        self.follow = follow
        self.stepping = "stepping" in described.capabilities
        self.operations = 0
        """Done so far, over all episodes."""

    def counts(self) -> dict[str, int]:
        """How often each rule was exercised so far, and by "RULE/name" each thing reached that some run must reach."""
        return {**self.monitor.exercised, **self.monitor.reached}


@dataclass(frozen=True, slots=True)
class Ended:
    """How an episode was brought to its end."""

    last: Observation
    state: State
    driven_home: bool
    stuck: tuple[str, ...] = ()


class Episode:
    """One pool from its making to its end. `failures` are the rules that its last operation, or its end, broke."""

    def __init__(self, rig: Rig, shape: Shape) -> None:
        """Raises ValueError where the subject cannot have that shape, SubjectError where it misbehaves."""
        self.rig = rig
        self.shape = shape
        self.state: State = initial(shape, rig.policies)
        self.tokens = Tokens(shape.consumers, shape.apart)
        self.operations: list[Operation] = []
        self.failures: list[Failure] = []
        self.ended: Ended | None = None
        self._agreed = False
        """Whether pool and model have been compared and showed the same."""
        if rig.follow is not None:
            rig.follow(shape)
        self.session = _opened(rig.subject, shape)
        rig.monitor.start()
        self.observed = Observation("open")
        self.observed = self._look()

    def do(self, operation: Operation) -> bool:
        """Do one operation on pool and model and judge it; False when it broke a rule: model and pool have parted."""
        rig, past, before = self.rig, self.state, self.observed
        self.operations.append(operation)
        rig.operations += 1
        if rig.follow is not None:
            rig.follow(operation)
        try:
            outcome = self.session.apply(operation)
        except Exception as error:
            # An adapter turns errors into outcomes; one that got past it is no refusal (ERR-2).
            outcome = Outcome("crashed", message=f"apply() raised {describe_error(error)}")
        problem = outcome_problem(outcome)
        if problem is not None:
            raise SubjectError(f"apply({operation}) answered {problem}")
        seen = self.observed = self._look()
        broken = rig.monitor.judge(Step(before, seen, operation, outcome, past))
        if broken:
            self.failures = [self._failure(rule.id, b.expected, b.got, before, outcome) for rule, b in broken]
            return False
        self.tokens.note(operation, outcome)
        return self._compare(before, operation, outcome)

    def _compare(self, before: Observation, operation: Operation, outcome: Outcome) -> bool:
        """What the rules say nothing of, the model still knows: pool and model show the same."""
        seen = self.observed
        try:
            after, expected = step(self.state, operation, outcome, seen)
        except Impossible as impossible:
            allowed = "an end that the rules allow"
            self.failures = [self._failure(impossible.rule, allowed, str(impossible), before, outcome)]
            return False
        past, self.state = self.state, after if self.rig.stepping else settle(after)
        if self._agreed and seen is before and expected == outcome and shows_the_same(past, self.state):
            return True  # Neither has changed since they were compared.
        shown = observe(self.state)
        if shown != seen or expected != outcome:
            differs = difference(shown, seen, operation, expected, outcome, self.rig.policies)
            if differs is not None:
                expected_text, got_text = f"{differs.what} {differs.expected}", f"{differs.what} {differs.got}"
                self.failures = [self._failure(differs.rule, expected_text, got_text, before, outcome)]
                return False
        self._agreed = True
        return True

    def _look(self) -> Observation:
        when = f"after {self.operations[-1]}" if self.operations else "of a new pool"
        try:
            seen = self.session.observe()
        except Exception as error:
            raise SubjectError(f"observe() {when} raised {describe_error(error)}") from error
        problem = observation_problem(seen) if seen is not self.observed else None
        if problem is not None:
            raise SubjectError(f"observe() {when} answered {problem}")
        return seen

    def _failure(
        self, rule: str, expected: str, got: str, before: Observation | None = None, outcome: Outcome | None = None
    ) -> Failure:
        return Failure(rule, self.shape, tuple(self.operations), expected, got, before, outcome, before is None)

    def drive_home(self) -> bool:
        """Let everybody finish, recycle, shut down; False when that broke a rule.

        Outstanding reads are collected, borrowed views are given back, leases that never left the producer are
        cancelled, a live rank that owes an acknowledgement releases a copy that it has not used, queued work runs, and
        one pass takes everything back.
        """
        if self.failures:
            return False
        if self.state.life != "open":
            self.ended = Ended(self.observed, self.state, driven_home=False)
            return self._do_all(self._finish_reading())
        if not self._do_all(self._finish_reading()) or not self._do_all(self._finish_leases()):
            return False
        home = not any(lease is not None for lease in self.state.allocator.held) or self._understands("Recycle")
        if not self._do_all(self._settle()) or not self._do_all(self._take_back()):
            return False
        self.ended = Ended(self.observed, self.state, home and self.state.life == "open", self._stuck())
        return self._do_all([Shutdown()] if self._understands("Shutdown") else [])

    def _stuck(self) -> tuple[str, ...]:
        """What is still queued though every stream that could run has run."""
        queued = [piece for queue in self.state.device.queues for piece in queue]
        return tuple(f"{piece.kind} of slot {piece.lease.slot} generation {piece.lease.generation}" for piece in queued)

    def _understands(self, name: str) -> bool:
        return name in self.rig.description.operations

    def _do_all(self, operations: Iterator[Operation] | Sequence[Operation]) -> bool:
        return all(not enabled(self.state, operation) or self.do(operation) for operation in operations)

    def _finish_reading(self) -> Iterator[Operation]:
        for reader in tuple(self.tokens.readers):
            yield Collect(reader.token)
        for view in tuple(self.tokens.views):
            yield Return(view.token)

    def _finish_leases(self) -> Iterator[Operation]:
        consumes = self._understands("Deliver") and self._understands("Release")
        for lease in self.state.allocator.held:
            if lease is None:
                continue
            dispatched = lease.token in self.state.dispatched
            if self.state.is_active(lease) and not dispatched:
                yield Cancel(lease.token, wait=True) if self._understands("Cancel") else Dispatch(lease.token)
            elif self.state.is_active(lease) and not consumes:
                yield Revoke(lease.token, wait=True) if self._understands("Revoke") else Cancel(lease.token, wait=True)
            elif dispatched and consumes and self._is_waited_for(lease):
                yield from self._acknowledge(lease)

    def _is_waited_for(self, lease: Lease) -> bool:
        """Whether it is out, or was ended while ranks might look at its bytes (CON-6)."""
        return self.state.is_active(lease) or lease.slot in self.state.allocator.guarded

    def _acknowledge(self, lease: Lease) -> Iterator[Operation]:
        """Every live rank that acknowledges for itself or others and has not done it yet releases the lease."""
        consumers = self.state.consumers
        for rank in lease.speakers(self.shape.consumers):
            if rank not in consumers.dead and consumers.tables[rank][lease.slot] < lease.generation:
                yield from self._release(lease.token, rank)

    def _release(self, lease: int, rank: int) -> Iterator[Operation]:
        """Release by a copy that this rank has not used, or by a new one."""
        for copy in self.tokens.fresh:
            if (copy.lease, copy.rank) == (lease, rank):
                yield Release(copy.token)
                return
        proxy = self.tokens.new()
        yield Deliver(lease, proxy, rank)
        yield Release(proxy)

    def _settle(self) -> Iterator[Operation]:
        for _ in range(MOST_PIECES):
            streams = runnable(self.state) if self.rig.stepping else ()
            if not streams:
                return
            yield Advance(streams[0])

    def _take_back(self) -> Iterator[Operation]:
        if self._understands("Recycle"):
            yield Recycle()
        if self._understands("Recycle") and self.state.allocator.guarded:
            # The first pass has only now seen it retired; the next one sees that nobody looks at it any more (CON-6).
            yield Recycle()

    def close(self, judge: bool = True) -> bool:
        """End the pool in whatever state it is, and judge its whole life; False when that broke a rule."""
        try:
            leftovers = self.session.close()
        except Exception as error:
            # What it broke before is known, and a pool that has broken a rule may be beyond ending.
            if judge and not self.failures:
                got = f"close() raised {describe_error(error)}"
                self.failures = [self._failure("LIFE-2", "a pool can be ended", got)]
            return not self.failures
        problem = leftovers_problem(leftovers)
        if problem is not None:
            raise SubjectError(f"close() answered {problem}")
        if self.failures or not judge:
            return not self.failures
        ended = self.ended or Ended(self.observed, self.state, driven_home=False)
        counts = None if leftovers is None else {kind: count for kind, count in leftovers.counts.items() if count}
        run = Run(ended.last, ended.state, ended.driven_home, ended.stuck, counts)
        self.failures = [self._failure(rule.id, b.expected, b.got) for rule, b in self.rig.monitor.finish(run)]
        return not self.failures


def _opened(subject: Subject, shape: Shape) -> Session:
    try:
        session = subject.open(shape)
    except ValueError:
        raise
    except Exception as error:
        raise SubjectError(f"open({shape}) raised {describe_error(error)}") from error
    problem = session_problem(session)
    if problem is not None:
        raise SubjectError(f"open() answered {problem}")
    return session


def replay(rig: Rig, shape: Shape, operations: Sequence[Operation], home: bool = True) -> list[Failure]:
    """Do operations on a fresh pool, skipping those that are not enabled; the rules that broke, [] when none did.

    `home` brings the pool to its proper end afterwards, which the whole-run rules are judged by.
    """
    episode = Episode(rig, shape)
    episode.tokens.keep_clear_of(operations)
    for operation in operations:
        if enabled(episode.state, operation) and not episode.do(operation):
            break
    if home:
        episode.drive_home()
    episode.close(judge=home)
    return episode.failures
