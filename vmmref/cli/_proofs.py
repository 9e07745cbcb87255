"""What `vmmref prove` has found, as tables and as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vmmref.cli._output import header, package_version
from vmmref_models.titles import RULE_TITLES

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from vmmref_models.proofs.conditions import Verdict
    from vmmref_models.proofs.questions import Condition
    from vmmref_models.proofs.system import System, Wrong

ANSWERS = ("proved", "refuted", "unknown")


@dataclass(frozen=True)
class Job:
    """Conditions of one system, with or without a wrong action in it."""

    system: System[Any]
    conditions: tuple[Condition[Any], ...]
    wrong: Wrong[Any] | None = None


@dataclass
class Report:
    """What was found so far."""

    verdicts: list[Verdict[Any]] = field(default_factory=list)
    wrongs: list[tuple[Job, tuple[Verdict[Any], ...]]] = field(default_factory=list)
    """Jobs with a wrong action, and what was found about their conditions."""
    idle: list[str] = field(default_factory=list)
    """Actions that no state with every invariant lets happen: their conditions say nothing."""
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.started

    @property
    def status(self) -> int:
        """The exit status."""
        if self.count("refuted"):
            return 1
        return 2 if self.count("unknown") or self.idle else 0

    def count(self, answer: str) -> int:
        """How many conditions got this answer."""
        return sum(verdict.answer == answer for verdict in self.verdicts)

    def find_idle(self, systems: Sequence[System[Any]], timeout_seconds: float) -> None:
        """Ask of every action whether it can happen at all."""
        from vmmref_models.proofs.conditions import Prover

        for system in systems:
            prover = Prover(system, timeout_seconds)
            self.idle += [f"{system.family} {action.name}" for action in system.actions if not prover.possible(action)]


def show(console: Console, report: Report) -> None:
    """Tables by rule and by action, everything that was not proved, and a closing line."""
    from rich.text import Text

    if report.wrongs:
        console.print(_wrong_table(report))
    else:
        order = {rule: place for place, rule in enumerate(RULE_TITLES)}
        verdicts = sorted(report.verdicts, key=lambda verdict: order[verdict.condition.rule])
        console.print(_table("rule", verdicts, lambda one: one.rule, lambda one: RULE_TITLES[one.rule]))
        console.print()
        console.print(_table("action", report.verdicts, _action_place, lambda one: ""))
    lines = [""]
    for verdict in report.verdicts:
        if verdict.answer != "proved":
            lines += [_headline(verdict), *_reason(verdict), ""]
    lines += [f"{name} can never happen: its conditions say nothing" for name in report.idle]
    console.print(Text("\n".join([*lines, _closing(report)])), soft_wrap=True)


def _action_place(condition: Condition[Any]) -> str:
    return f"{condition.family} {condition.action_name}"


def _table(
    title: str,
    verdicts: Sequence[Verdict[Any]],
    key: Callable[[Condition[Any]], str],
    text: Callable[[Condition[Any]], str],
) -> Table:
    """A row for each key: how many of its conditions were proved; other answers have columns where there are any."""
    groups: dict[str, list[Verdict[Any]]] = {}
    for verdict in verdicts:
        groups.setdefault(key(verdict.condition), []).append(verdict)
    from rich.table import Table

    others = [answer for answer in ANSWERS[1:] if any(verdict.answer == answer for verdict in verdicts)]
    table = Table(box=None, pad_edge=False)
    table.add_column(title, no_wrap=True)
    for name in ("proved", *others, "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name, group in groups.items():
        proved, *counts = (sum(verdict.answer == answer for verdict in group) for answer in ("proved", *others))
        shown = [str(count) if count else "" for count in counts]
        seconds = f"{sum(verdict.seconds for verdict in group):.2f}"
        table.add_row(name, f"{proved} of {len(group)}", *shown, seconds, text(group[0].condition))
    return table


def _wrong_table(report: Report) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("wrong action", "instead of", "breaks", "refuted"):
        table.add_column(title, no_wrap=True)
    for job, verdicts in report.wrongs:
        wrong = job.wrong
        assert wrong is not None, "only jobs with a wrong action are noted"
        answer = "[green]yes[/]" if _named(verdicts) else "[bold red]no[/]"
        place = f"{job.system.family} {wrong.replaces}"
        table.add_row(wrong.action.name, place, wrong.rule, answer)
    return table


def _named(verdicts: Sequence[Verdict[Any]]) -> bool:
    """Whether a condition of the rule that a wrong action is named for was refuted."""
    return any(verdict.answer == "refuted" for verdict in verdicts)


def _headline(verdict: Verdict[Any]) -> str:
    condition = verdict.condition
    sentence = "" if condition.action is None else condition.action.sentence
    place = f"{_action_place(condition)}: {condition.wanted.name}"
    return f"{' '.join(condition.rules)} {verdict.answer} at {place}\n{'does':9}{sentence}"


def _reason(verdict: Verdict[Any]) -> list[str]:
    if verdict.counterexample is not None:
        return [verdict.counterexample.text()]
    if verdict.answer == "unknown":
        return [f"the solver did not decide it within its time limit ({verdict.seconds:.1f} s in all)"]
    return ["the solver found a counterexample, but none among the few things that are tried for printing"]


def _closing(report: Report) -> str:
    seconds = f"in {report.seconds:.1f} s"
    if report.wrongs:
        named = sum(_named(verdicts) for _, verdicts in report.wrongs)
        return f"{named} of {len(report.wrongs)} wrong actions refuted by the rule that they break, {seconds}"
    counts = ", ".join(f"{report.count(answer)} {answer}" for answer in ANSWERS if report.count(answer))
    return f"{len(report.verdicts)} conditions: {counts}, {seconds}"


def as_json(report: Report) -> dict[str, Any]:
    """The report with the header that all reports share."""
    return {
        **header(),
        "seed": 0,
        "seconds": round(report.seconds, 3),
        "solver": {"name": "z3", "version": package_version("z3-solver")},
        "summary": {answer: report.count(answer) for answer in ANSWERS},
        "conditions": [_condition(verdict) for verdict in report.verdicts],
        "idle": report.idle,
        "wrong": [_wrong(job, verdicts) for job, verdicts in report.wrongs],
    }


def _condition(verdict: Verdict[Any]) -> dict[str, Any]:
    condition, counterexample = verdict.condition, verdict.counterexample
    return {
        "rule": condition.rule,
        "rules": list(condition.rules),
        "family": condition.family,
        "action": condition.action_name,
        "property": condition.wanted.name,
        "state": verdict.answer,
        "seconds": round(verdict.seconds, 3),
        "counterexample": None if counterexample is None else counterexample.text(),
    }


def _wrong(job: Job, verdicts: Sequence[Verdict[Any]]) -> dict[str, Any]:
    wrong = job.wrong
    assert wrong is not None, "only jobs with a wrong action are noted"
    return {
        "name": wrong.action.name,
        "family": job.system.family,
        "replaces": wrong.replaces,
        "rule": wrong.rule,
        "sentence": wrong.action.sentence,
        "refuted": _named(verdicts),
    }
