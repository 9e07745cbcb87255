"""`vmmref replay`: do a recorded sequence once more and judge it again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from vmmref.cli import UsageError

LARGEST_TRACE_BYTES = 64 << 20
"""More than any recorded run; a larger file is no trace."""


def command(
    trace: Annotated[Path, typer.Argument(help="A trace file, as `vmmref check` writes it.")],
    subject: Annotated[str | None, typer.Option(help="Another pool than the one named in the file.")] = None,
    device: Annotated[str | None, typer.Option(help="Another device than the one named in the file.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report as JSON.")] = None,
) -> None:
    """Replay a trace on the pool and device that it names, operation by operation, and judge every step.

    Exit status: 0 no rule is broken, 1 a rule is broken, 2 could not run.
    """
    from rich.console import Console
    from rich.text import Text

    from vmmref.cli._output import check_writable, header, write_json
    from vmmref.conformance.loading import REFERENCE, Unusable, parse_device
    from vmmref.conformance.runner import replay_trace
    from vmmref.conformance.timeline import failure_lines, lines, shape_text
    from vmmref_models import RULES
    from vmmref_models.trace import from_json

    check_writable(json_file, "--json")
    try:
        loaded = from_json(_text(trace))
    except ValueError as error:
        raise UsageError(f'"{trace}" is no trace: {error}') from None
    name = subject or loaded.about.get("subject", REFERENCE)
    try:
        where = parse_device(device or loaded.about.get("device", "sim"))
    except Unusable as error:
        raise UsageError(str(error)) from None
    started = time.monotonic()
    failures, unable = replay_trace(name, where, loaded.shape, loaded.operations)
    if unable:
        raise UsageError(unable)
    shown: list[str] = []
    for failure in failures[:1]:
        shown += failure_lines(failure, RULES[failure.rule].title, f"vmmref replay {trace}")
    for failure in failures[1:]:
        # One operation, several rules: the sequence is the same.
        shown += [f"{failure.rule} broken too: {RULES[failure.rule].title}"]
        shown += [f"  expected {failure.expected}", f"  got      {failure.got}"]
    if not failures:
        shown = [f"no rule is broken by {len(loaded.operations)} operations on {name}, {where}"]
        shown += [f"  pool     {shape_text(loaded.shape)}", *lines(loaded.shape, loaded.operations)]
    Console().print(Text("\n".join(shown)), soft_wrap=True)
    first = min((failure.number for failure in failures), default=None)
    document = {**header({"name": where, "simulated": where.startswith("sim")}), "subject": name}
    document |= {"seed": loaded.about.get("seed"), "seconds": round(time.monotonic() - started, 3)}
    document |= {"events": len(loaded.operations), "accepted": not failures, "first_rejected": first}
    document["rules"] = [
        {"id": failure.rule, "title": RULES[failure.rule].title, "expected": failure.expected, "got": failure.got}
        for failure in failures
    ]
    write_json(json_file, document)
    raise typer.Exit(1 if failures else 0)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_TRACE_BYTES:
            raise UsageError(f'"{path}" has {path.stat().st_size} bytes, more than any trace ({LARGEST_TRACE_BYTES})')
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f'"{path}" cannot be read: {error.strerror or error}') from None
    except UnicodeDecodeError as error:
        raise UsageError(f'"{path}" is no trace: it is not UTF-8 text ({error.reason})') from None
