"""Every condition of a system, and how the solver decides one.

"No such state" with any number of things is a proof. A break is looked for among a few things with names, because then
it can be printed; what has few things is also a state of the system with any number.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import z3

from vmmref_models.proofs.counterexample import Counterexample, Scene
from vmmref_models.proofs.questions import Condition, Setting, Sizes
from vmmref_models.proofs.system import Action, System, Wrong

S = TypeVar("S")

QUICK_SECONDS = 2.0
"""So long a proof is tried before a counterexample is: a false condition may keep the solver busy for ever."""

PROVED: Literal["proved"] = "proved"
REFUTED: Literal["refuted"] = "refuted"
UNKNOWN: Literal["unknown"] = "unknown"
Answer = Literal["proved", "refuted", "unknown"]


@dataclass(frozen=True)
class Verdict(Generic[S]):
    """What the solver found about a condition."""

    condition: Condition[S]
    answer: Answer
    seconds: float
    counterexample: Counterexample | None = None
    """For a refuted condition, unless it takes more things than are tried."""


def conditions(system: System[S], wrong: Wrong[S] | None = None) -> Iterator[Condition[S]]:
    """Every condition of a system; with `wrong`, those of the wrong action alone, since all others stay as they are."""
    if wrong is not None:
        yield from (Condition(system.family, proposed, wrong.action) for proposed in system.properties)
        return
    yield from (Condition(system.family, proposed, None) for proposed in system.properties if not proposed.step)
    for action in system.actions:
        yield from (Condition(system.family, proposed, action) for proposed in system.properties)


class Prover(Generic[S]):
    """Decides the conditions of one system. What they share is built once for each world."""

    def __init__(self, system: System[S], timeout_seconds: float = 30.0) -> None:
        self.system = system
        self.timeout_seconds = timeout_seconds
        self._setting: dict[Sizes | None, Setting[S]] = {}

    def decide(self, condition: Condition[S]) -> Verdict[S]:
        """Prove or refute; what the solver cannot decide in time stays unknown."""
        started = time.monotonic()
        answer, _ = self.ask(condition, None, QUICK_SECONDS)
        if answer == PROVED:
            return Verdict(condition, PROVED, time.monotonic() - started)
        found = self._search(condition)
        if found is not None:
            return Verdict(condition, REFUTED, time.monotonic() - started, found)
        if answer == UNKNOWN:
            answer, _ = self.ask(condition, None)
        return Verdict(condition, answer, time.monotonic() - started)

    def refute(self, condition: Condition[S]) -> Verdict[S]:
        """As `decide`, for a condition that is thought to be false: looks for a counterexample first."""
        started = time.monotonic()
        found = self._search(condition)
        if found is None:
            return self.decide(condition)
        return Verdict(condition, REFUTED, time.monotonic() - started, found)

    def _search(self, condition: Condition[S]) -> Counterexample | None:
        for sizes in self.system.few:
            _, counterexample = self.ask(condition, sizes)
            if counterexample is not None:
                return counterexample
        return None

    def ask(
        self, condition: Condition[S], sizes: Sizes | None, at_most_seconds: float = math.inf
    ) -> tuple[Answer, Counterexample | None]:
        """Whether the condition holds in a world with few things, or with any number (None)."""
        setting = self.setting(sizes)
        question = setting.question(condition)
        if question.is_trivial:
            return PROVED, None
        solver = self.solver(at_most_seconds)
        solver.add(*question.demands)
        result = solver.check()
        if result == z3.unsat:
            return PROVED, None
        if result != z3.sat:
            return UNKNOWN, None
        if sizes is None:
            return REFUTED, None
        scene = Scene(setting.world, solver.model(), setting.before, question.step.after)
        return REFUTED, scene.tell(condition.action_name, question.arguments, condition.wanted)

    def smt2(self, condition: Condition[S]) -> str | None:
        """The question as SMT-LIB 2 for another solver, whose answer must be "unsat"; None for a trivial one."""
        question = self.setting(None).question(condition)
        if question.is_trivial:
            return None
        solver = z3.Solver()
        solver.add(*question.demands)
        text: str = solver.to_smt2()
        return text

    def possible(self, action: Action[S]) -> bool:
        """Whether some state with every invariant lets the action happen; if not, its conditions say nothing."""
        setting = self.setting(self.system.few[-1])
        step = action.take(setting.world, setting.before, *setting.arguments(action))
        solver = self.solver()
        solver.add(*setting.assumed, step.guard)
        return bool(solver.check() == z3.sat)

    def setting(self, sizes: Sizes | None) -> Setting[S]:
        """What all questions in one world share."""
        if sizes not in self._setting:
            self._setting[sizes] = Setting(self.system, sizes)
        return self._setting[sizes]

    def solver(self, at_most_seconds: float = math.inf) -> z3.Solver:
        """A new solver with this prover's time limit, or a shorter one. Its random choices have a fixed seed."""
        solver = z3.Solver()
        solver.set("timeout", max(1, round(min(self.timeout_seconds, at_most_seconds) * 1000)))
        solver.set("random_seed", 0)
        return solver
