"""`vmmref prove`: do the rules follow from the protocol, for any number of slots, ranks and ranges?"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vmmref.cli import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from vmmref.cli._proofs import Job, Report
    from vmmref_models.proofs.conditions import Prover
    from vmmref_models.proofs.questions import Condition
    from vmmref_models.proofs.system import System

EVERY_WRONG = "all"
DEFAULT_TIMEOUT = "30"
"""Seconds; the slowest condition takes less than one."""


def command(
    only: Annotated[
        str, typer.Option(metavar="FAMILY", help="Only these families of proofs, or rules: ranges,ACK,GEN-2.")
    ] = "",
    wrong: Annotated[
        str, typer.Option(metavar="NAME", help="Put this wrong action in its place and show what breaks; all: each.")
    ] = "",
    timeout: Annotated[
        str, typer.Option(metavar="SECONDS", help="For one question to the solver, at most.")
    ] = DEFAULT_TIMEOUT,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report as JSON.")] = None,
    smt2: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write each question as SMT-LIB 2; proved means unsat.")
    ] = None,
) -> None:
    """Prove the rules as inductive invariants, for any number of slots, ranks, leases and ranges.

    Exit status: 0 every condition was proved, 1 one was refuted, 2 one is unknown or the solver is not installed.
    """
    from rich.console import Console

    from vmmref.cli._output import check_writable, write_json
    from vmmref.cli._proofs import Report, as_json, show

    seconds = _seconds(timeout)
    systems = _systems()
    families, rules = _selection(only, systems)
    chosen = [system for system in systems if not families or system.family in families]
    check_writable(json_file, "--json")
    console, report = Console(), Report()
    jobs = _wrong_jobs(chosen, rules, wrong) if wrong else _jobs(chosen, rules)
    if not jobs:
        raise UsageError(f'--only "{only}" leaves no condition: no proof here speaks of these together')
    if smt2 is not None:
        _export(jobs, smt2)
    _work(console, jobs, seconds, report)
    if not wrong:
        report.find_idle([job.system for job in jobs], seconds)
    show(console, report)
    write_json(json_file, as_json(report))
    raise typer.Exit(report.status)


def _systems() -> tuple[System[Any], ...]:
    try:
        from vmmref_models.proofs.families import SYSTEMS
    except ImportError as error:
        if error.name != "z3":
            raise
        raise UsageError("the solver Z3 is not installed; `pip install 'vmmref[prove]'` brings it") from None
    return SYSTEMS


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise UsageError(f'--timeout "{text}" is no positive number of seconds')
    return seconds


def _selection(only: str, systems: Sequence[System[Any]]) -> tuple[set[str], set[str]]:
    """The families of proofs and the rules that --only names."""
    from vmmref_models.titles import RULE_TITLES

    families, rules = set[str](), set[str]()
    known = [system.family for system in systems]
    for name in filter(None, (part.strip() for part in only.split(","))):
        named = [rule for rule in RULE_TITLES if name.upper() in (rule, rule.rpartition("-")[0])]
        if name in known:
            families.add(name)
        elif named:
            rules.update(named)
        else:
            raise UsageError(f'--only: "{name}" is neither a family of proofs ({", ".join(known)}) nor one of rules')
    if only and not families and not rules:
        raise UsageError(f'--only "{only}" names nothing')
    return families, rules


def _jobs(systems: Sequence[System[Any]], rules: set[str]) -> list[Job]:
    from vmmref.cli._proofs import Job
    from vmmref_models.proofs.conditions import conditions

    jobs = []
    for system in systems:
        wanted = tuple(one for one in conditions(system) if not rules or rules & set(one.rules))
        if wanted:
            jobs.append(Job(system, wanted))
    return jobs


def _wrong_jobs(systems: Sequence[System[Any]], rules: set[str], wrong: str) -> list[Job]:
    """Of a wrong action, the conditions of the rule that it is named for."""
    from vmmref.cli._proofs import Job
    from vmmref_models.proofs.conditions import conditions

    names = {part.strip() for part in wrong.split(",") if part.strip()}
    known = {item.action.name for system in systems for item in system.wrongs}
    for name in sorted(names - known - {EVERY_WRONG}) or ([wrong] if not names else []):
        near = difflib.get_close_matches(name, known, 3)
        hint = f"; near matches: {', '.join(near)}" if near else ""
        raise UsageError(f'--wrong: there is no wrong action "{name}"{hint}')
    jobs = []
    for system in systems:
        for item in system.wrongs:
            if (item.action.name in names or EVERY_WRONG in names) and (not rules or item.rule in rules):
                asked = tuple(one for one in conditions(system, item) if item.rule in one.rules)
                jobs.append(Job(system, asked, item))
    return jobs


def _work(console: Console, jobs: list[Job], timeout_seconds: float, report: Report) -> None:
    """Decide every condition, with one line of progress on a terminal."""
    from vmmref_models.proofs.conditions import Prover

    total = sum(len(job.conditions) for job in jobs)
    provers: dict[str, Prover[Any]] = {}
    status = console.status("starting") if console.is_terminal else None
    if status is not None:
        status.start()
    try:
        for job in jobs:
            prover = provers.setdefault(job.system.family, Prover(job.system, timeout_seconds))
            found = []
            for condition in job.conditions:
                if status is not None:
                    status.update(_progress(condition, report, total))
                found.append(prover.decide(condition) if job.wrong is None else prover.refute(condition))
                report.verdicts.append(found[-1])
            if job.wrong is not None:
                report.wrongs.append((job, tuple(found)))
    finally:
        if status is not None:
            status.stop()


def _export(jobs: list[Job], folder: Path) -> None:
    """A file for each question that is not trivial, for another solver."""
    from vmmref.cli._output import write_text
    from vmmref_models.proofs.conditions import Prover

    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f'--smt2 "{folder}" cannot be made: {error.strerror or error}') from None
    for job in jobs:
        prover = Prover(job.system)
        for condition in job.conditions:
            text = prover.smt2(condition)
            if text is not None:
                name = f"{condition.family}.{condition.action_name}.{condition.wanted.name}.smt2"
                write_text(folder / name, text)


def _progress(condition: Condition[Any], report: Report, total: int) -> str:
    done = len(report.verdicts)
    place = f"{condition.family}: {condition.action_name}, {condition.wanted.name}"
    return f"{done} of {total}, {done - report.count('proved')} not proved  {place}"
