"""`vmmref check`: does a pool keep the rules?"""

from __future__ import annotations

import math
import os
import shlex
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vmmref.cli import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from vmmref.conformance.failure import Failure
    from vmmref.conformance.report import Row
    from vmmref.conformance.runner import Result
    from vmmref.conformance.search import Plan

CLIENTS: tuple[str, ...] = ("any", "well-behaved")
LONGEST_SEED = 18
REFERENCE = "vmmref.conformance.subjects.reference:make"


def command(
    device: Annotated[str, typer.Option(help="Where the pool lives: sim, sim:N or cuda:N.")] = "sim",
    subject: Annotated[
        str, typer.Option(help="The pool under test: package.module:factory or a registered name.")
    ] = REFERENCE,
    profile: Annotated[str, typer.Option(help="quick (under a minute), full (minutes) or night (hours).")] = "quick",
    rules: Annotated[str, typer.Option(help="Only these rules or families, for example GEN,ACK-3.")] = "",
    seed: Annotated[str, typer.Option(metavar="INTEGER", help="The same seed draws the same operations.")] = "0",
    client: Annotated[str, typer.Option(help="any, or well-behaved: keeps the environment obligations.")] = "any",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report as JSON.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the report as JUnit XML.")] = None,
    traces: Annotated[Path, typer.Option(help="Folder for the sequences that break a rule.")] = Path("vmmref-traces"),
    max_seconds: Annotated[
        str | None, typer.Option(metavar="SECONDS", help="Search for so many seconds; starting takes a few more.")
    ] = None,
) -> None:
    """Drive a pool in lock step with the model and say of each rule whether it holds.

    Exit status: 0 every rule that the pool supports was exercised and holds, 1 a rule is broken, 2 could not run.
    """
    from rich.console import Console

    from vmmref.conformance import report
    from vmmref.conformance.runner import Check

    plan = _plan(device, profile, seed, client, max_seconds)
    number = plan.seed
    try:
        selected = report.select(rules)
    except ValueError as error:
        raise UsageError(f"--rules: {error}") from None
    if not any(rule.predicate or rule.run_predicate for rule in selected):
        named = ", ".join(rule.id for rule in selected)
        raise UsageError(
            f"--rules: no check drives what {named} speaks of; their specification says how they are tested"
        )
    _check_outputs(json_file, junit, traces)
    console = Console()
    with _Display(console) as display:
        result = Check(subject, device, plan, display.show).run()
    if result.description is None:
        raise UsageError(result.cannot_run or "the subject could not be started")
    wanted = [failure for failure in result.failures.values() if failure.rule in {rule.id for rule in selected}]
    saved = save_traces(traces, wanted, {"subject": subject, "device": device, "seed": str(number), "client": client})
    table = report.rows(selected, result.description, result.exercised, result.failures, saved, client)
    report.show(console, table, result.failures)
    _close(console, result, table, number)
    _write(
        json_file,
        junit,
        result,
        table,
        device,
        {"seed": number, "subject": subject, "profile": profile, "client": client},
    )
    status = report.exit_status(table)
    raise typer.Exit(report.EXIT_COULD_NOT_RUN if result.cannot_run and status == report.EXIT_PASS else status)


def _plan(device: str, profile: str, seed: str, client: str, max_seconds: str | None) -> Plan:
    from vmmref.conformance.loading import Unusable, parse_device
    from vmmref.conformance.runner import PROFILES

    try:
        parse_device(device)
    except Unusable as error:
        raise UsageError(f"--device: {error}") from None
    if profile not in PROFILES:
        raise UsageError(f'--profile "{profile}" is none of {", ".join(PROFILES)}')
    if client not in CLIENTS:
        raise UsageError(f'--client "{client}" is none of {", ".join(CLIENTS)}')
    if not (seed.isascii() and seed.isdigit() and len(seed) <= LONGEST_SEED):
        raise UsageError(f'--seed "{seed}" is no whole number from 0 on with at most {LONGEST_SEED} digits')
    return PROFILES[profile].plan(device, int(seed), client, _seconds(max_seconds))


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise UsageError(f'--max-seconds "{text}" is no positive number of seconds')
    return seconds


def _check_outputs(json_file: Path | None, junit: Path | None, traces: Path) -> None:
    from vmmref.cli._output import check_writable

    check_writable(json_file, "--json")
    check_writable(junit, "--junit")
    if json_file is not None and junit is not None and json_file.resolve() == junit.resolve():
        raise UsageError(f'--json and --junit name the same file "{junit}"')
    if traces.exists() and not traces.is_dir():
        raise UsageError(f'--traces "{traces}" is a file, not a folder')
    if not traces.exists():
        check_writable(traces, "--traces")
    elif not os.access(traces, os.W_OK | os.X_OK):
        raise UsageError(f'"{traces}", where traces go, cannot be written: give another folder with --traces')


def save_traces(folder: Path, failures: list[Failure], about: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Write each failure's sequence as a trace; by rule, the file and the command that replays it."""
    from vmmref.cli._output import write_text
    from vmmref_models.trace import Trace, to_json

    saved: dict[str, tuple[str, str]] = {}
    for failure in failures:
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise UsageError(f'--traces "{folder}" cannot be made: {error.strerror or error}') from error
        file = folder / f"{failure.rule}.json"
        trace = Trace(failure.shape, failure.operations, rules=(failure.rule,), about=about)
        write_text(file, to_json(trace))
        saved[failure.rule] = (str(file), f"vmmref replay {shlex.quote(str(file))}")
    return saved


def _close(console: Console, result: Result, table: list[Row], seed: int) -> None:
    """The last lines of the terminal report: what was driven, how much, and the result in one line."""
    from rich.text import Text

    from vmmref.conformance.report import summary

    described = result.description
    assert described is not None, "a check without a description has ended before its report"
    simulated = " (simulated, no hardware)" if described.simulated else ""
    counted = ", ".join(f"{count} {state}" for state, count in summary(table).items() if count)
    lines = [f"{described.name} on {described.device}{simulated}, seed {seed}: {result.operations} operations"]
    lines[0] += f" in {result.seconds:.1f} s"
    if described.replaced:
        lines.append(f"replaced in the pool under test: {described.replaced}")
    lines += [*result.notes, *([f"could not go on: {result.cannot_run}"] if result.cannot_run else []), counted]
    console.print(Text("\n".join(["", *lines])), soft_wrap=True)


def _write(
    json_file: Path | None, junit: Path | None, result: Result, table: list[Row], device: str, about: dict[str, Any]
) -> None:
    from vmmref.cli._output import header, write_json, write_text
    from vmmref.conformance import report
    from vmmref.conformance.timeline import failure_lines

    described = result.description
    assert described is not None, "a check without a description has ended before its report"
    if json_file is not None:
        shown = {"name": described.device, "simulated": described.simulated, "driver": _driver_version(device)}
        document = {**header(shown), **about, "seconds": round(result.seconds, 3), "operations": result.operations}
        document |= {"replaced": described.replaced, "notes": result.notes, "could_not_run": result.cannot_run}
        write_json(json_file, {**document, **report.as_json(table)})
    if junit is not None:
        details = {
            row.id: "\n".join(failure_lines(result.failures[row.id], row.title, row.replay or ""))
            for row in table
            if row.id in result.failures
        }
        write_text(junit, report.as_junit(table, f"vmmref check {described.name}", result.seconds, details))


def _driver_version(device: str) -> str | None:
    """The version of the driver behind a device name, asked in a process of its own; None where there is none."""
    from vmmref.cli.doctor import ask

    answer = ask("driver" if device.startswith("cuda") else "simulator")
    devices = answer.get("devices") or [{}]
    version = devices[0].get("driver")
    return str(version) if version else None


class _Display:
    """One line on a terminal while a check runs; nothing where the output is no terminal."""

    def __init__(self, console: Console) -> None:
        self.status = console.status("starting") if console.is_terminal else None

    def show(self, result: Result) -> None:
        """Update the line."""
        from vmmref_models import RULES

        if self.status is not None:
            broken = f", [bold red]broken: {' '.join(sorted(result.failures))}[/]" if result.failures else ""
            exercised = sum(1 for rule in RULES if result.exercised.get(rule))
            text = f"{result.seconds:5.1f} s  {result.operations} operations, {exercised} rules exercised{broken}"
            self.status.update(text)

    def __enter__(self) -> _Display:
        if self.status is not None:
            self.status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.status is not None:
            self.status.stop()
