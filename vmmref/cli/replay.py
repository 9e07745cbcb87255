"""`vmmref replay`: do a recorded sequence once more and judge it again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vmmref.cli import UsageError

if TYPE_CHECKING:
    from vmmref_models import Operation, Shape

LARGEST_TRACE_BYTES = 64 << 20
"""More than any recorded run; a larger file is no trace."""
LARGEST_PAYLOAD_BYTES = 1 << 30
"""More than any payload of a check; its bytes are made to be compared."""


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
    _check_payloads(trace, loaded.operations)
    left_out = _left_out(loaded.shape, loaded.operations)
    if loaded.operations and len(left_out) == len(loaded.operations):
        raise UsageError(f'"{trace}": none of its {len(left_out)} operations can be asked for, {left_out[0]} first')
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
        asked = len(loaded.operations) - len(left_out)
        shown = [f"no rule is broken by {asked} operations on {name}, {where}"]
        if left_out:
            shown.append(f"  {len(left_out)} more could not be asked for: {'; '.join(left_out[:5])}")
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


def _check_payloads(trace: Path, operations: Sequence[Operation]) -> None:
    """Raise UsageError for a payload that nobody could publish: the pool would be blamed for it."""
    from vmmref.conformance import payloads
    from vmmref_models.operations import Faulty, Publish, Wrap

    for number, operation in enumerate(operations, 1):
        inner = operation.operation if isinstance(operation, Faulty) else operation
        if not isinstance(inner, Publish | Wrap):
            continue
        payload = inner.payload
        problem = None
        if payload.dtype not in payloads.ELEMENT_BYTES:
            problem = f'dtype "{payload.dtype}" is not known'
        elif payload.layout not in payloads.LAYOUTS:
            problem = f'layout "{payload.layout}" is none of {", ".join(payloads.LAYOUTS)}'
        elif payloads.nbytes(payload) != inner.nbytes or inner.nbytes > LARGEST_PAYLOAD_BYTES:
            problem = f"{inner.nbytes} bytes for a {payload.dtype} tensor of shape {list(payload.shape)}"
        elif payloads.expected_digest(payload) != inner.digest:
            problem = f"digest {inner.digest} is not that of its payload"
        if problem is not None:
            raise UsageError(f'"{trace}" is no trace: operation {number}: {problem}')


def _left_out(shape: Shape, operations: Sequence[Operation]) -> list[str]:
    """The operations that mean nothing where they stand, because the objects that they name do not exist there."""
    from vmmref_models import enabled, initial, settle, step
    from vmmref_models.trace import text

    state, left_out = initial(shape), []
    for number, operation in enumerate(operations, 1):
        # A pool whose streams run by themselves has always come to rest.
        state = state if enabled(state, operation) else settle(state)
        if enabled(state, operation):
            state, _ = step(state, operation)
        else:
            left_out.append(f"operation {number} ({text(operation)})")
    return left_out


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            # Not by its size: a device or a pipe tells none.
            data = file.read(LARGEST_TRACE_BYTES + 1)
        if len(data) > LARGEST_TRACE_BYTES:
            raise UsageError(f'"{path}" has more than the {LARGEST_TRACE_BYTES} bytes of any trace')
        return data.decode("utf-8")
    except OSError as error:
        raise UsageError(f'"{path}" cannot be read: {error.strerror or error}') from None
    except UnicodeDecodeError as error:
        raise UsageError(f'"{path}" is no trace: it is not UTF-8 text ({error.reason})') from None
