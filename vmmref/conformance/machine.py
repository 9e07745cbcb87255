"""The same operations and the same checks as a Hypothesis state machine, which finds and shrinks on its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from vmmref.conformance.draw import Drawer
from vmmref.conformance.failure import Failure
from vmmref.conformance.flavours import Flavour, Pick, draw_shape
from vmmref.conformance.kinds import CHOICES, drawable
from vmmref.conformance.run import Episode, Rig

STEPS = 60
"""Operations of one example. Fewer find little: it is depth that breaks pools, not the number of examples."""


class RuleBroken(AssertionError):
    """A step broke a rule; a class a rule, so that Hypothesis shrinks each rule's failure by itself."""


@dataclass(slots=True)
class Findings:
    """What a run of the machine found: the shortest failure of each rule, and the rules that end an example quietly."""

    known: frozenset[str] = frozenset()
    failures: dict[str, Failure] = field(default_factory=dict)
    examples: int = 0
    stop: Callable[[], bool] = field(default=lambda: False)
    """Asked before each example and step; True ends the search quietly."""

    def add(self, failures: list[Failure]) -> Failure | None:
        """Keep the shortest failure of each new rule; the one to raise, or None when all are known."""
        new = [failure for failure in failures if failure.rule not in self.known]
        for failure in new:
            kept = self.failures.get(failure.rule)
            if kept is None or len(failure.operations) < len(kept.operations):
                self.failures[failure.rule] = failure
        return new[0] if new else None


class PoolMachine(RuleBasedStateMachine):
    """Drives one pool under test; `machine_for` binds it to a subject."""

    rig: ClassVar[Rig]
    flavours: ClassVar[tuple[Flavour, ...]]
    client: ClassVar[str]
    findings: ClassVar[Findings]

    def __init__(self) -> None:
        super().__init__()
        self.episode: Episode | None = None
        self.drawer: Drawer | None = None
        self.findings.examples += 1

    @initialize(which=st.integers(0, 255), sizes=st.tuples(*[st.integers(0, 255)] * 10))
    def open_pool(self, which: int, sizes: tuple[int, ...]) -> None:
        """Make a pool whose shape is drawn; a shape that the subject refuses ends the example."""
        if self.findings.stop():
            return
        flavour = self.flavours[which % len(self.flavours)]
        shape = draw_shape(flavour, self.rig.description, _picks(sizes))
        with contextlib.suppress(ValueError):
            self.episode = Episode(self.rig, shape)
            self.drawer = Drawer(self.rig.description, shape, flavour, self.episode.tokens, self.client)
            self.drawer.state = self.episode.state

    def active(self) -> bool:
        """Whether the example goes on."""
        return self.episode is not None and not self.episode.failures and not self._ended()

    def may(self, kind: str) -> bool:
        """Whether the example goes on and an operation of this kind may well be possible."""
        return self.active() and self.drawer is not None and self.drawer.promising(kind)

    def _ended(self) -> bool:
        return self.client == "well-behaved" and self.episode is not None and self.episode.tokens.ended

    @precondition(lambda self: not self.active())
    @rule()
    def idle(self) -> None:
        """Nothing more to do: a known rule was broken, or there is no pool."""

    def perform(self, kind: str, choices: tuple[int, ...]) -> None:
        """Draw one operation of a kind and do it; does nothing where none of the kind is possible."""
        if self.episode is None or self.drawer is None or self.findings.stop():
            return
        operation = self.drawer.build(kind, _picks(choices))
        if operation is not None and not self.episode.do(operation):
            self._report(self.episode)
        self.drawer.state = self.episode.state

    def _report(self, episode: Episode) -> None:
        failure = self.findings.add(episode.failures)
        if failure is not None:
            raise broken(failure.rule)(f"{failure.rule}: expected {failure.expected}, got {failure.got}")

    def teardown(self) -> None:
        """Bring the pool home and judge its whole run, unless a step has failed before."""
        if self.episode is None:
            return
        failed = bool(self.episode.failures)
        if not failed:
            self.episode.drive_home()
        self.episode.close()
        if not failed:
            self._report(self.episode)


def _picks(choices: tuple[int, ...]) -> Pick:
    left: Iterator[int] = iter(choices)
    return lambda n: next(left, 0) % n


_BROKEN: dict[str, type[RuleBroken]] = {}


def broken(identifier: str) -> type[RuleBroken]:
    """The exception class of one rule."""
    return _BROKEN.setdefault(identifier, type(f"Broken {identifier}", (RuleBroken,), {}))


def _rule_for(kind: str) -> Any:
    def perform(self: PoolMachine, choices: tuple[int, ...]) -> None:
        self.perform(kind, choices)

    perform.__name__ = kind
    drawn = st.tuples(*[st.integers(0, 255)] * CHOICES[kind])
    return precondition(lambda self: self.may(kind))(rule(choices=drawn)(perform))


def machine_for(
    rig: Rig, flavours: tuple[Flavour, ...], client: str = "any", findings: Findings | None = None
) -> type[PoolMachine]:
    """The state machine of one subject: one Hypothesis rule for each kind of operation that it understands."""
    rules = {kind: _rule_for(kind) for kind in sorted(drawable(rig.description, client))}
    bound = {"rig": rig, "flavours": flavours, "client": client, "findings": findings or Findings()}
    return type("Pool", (PoolMachine,), {**bound, **rules})


def search(machine: type[PoolMachine], seed: int, examples: int, steps: int = STEPS) -> Findings:
    """Run seeded examples; what was found, shortest first found by Hypothesis' own shrinking. Raises SubjectError."""
    settings = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize=False,
        print_blob=False,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=True,
    )
    seeded = hypothesis.seed(seed)(machine)
    # What broke is in the findings already; Hypothesis says it once more in exceptions, in a group where several broke.
    try:
        _run(seeded, settings)
    except* RuleBroken:
        pass
    return machine.findings


def _run(machine: type[PoolMachine], settings: hypothesis.settings) -> None:
    try:
        run_state_machine_as_test(machine, settings=settings)
    except hypothesis.errors.Flaky:
        # The search was told to stop while Hypothesis was still replaying what it had found.
        if not machine.findings.stop():
            raise
