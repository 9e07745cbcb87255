"""Run the kill matrix, or a part of it, and say what came of it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from vmmref.conformance.kills import matrix
from vmmref.conformance.kills.executioner import Point
from vmmref.conformance.kills.stage import ROLES, STEP_SECONDS
from vmmref.conformance.kills.story import Killing
from vmmref.handles import HandleType


@dataclass(frozen=True, slots=True)
class Asked:
    """The command line."""

    roles: tuple[str, ...]
    killings: tuple[tuple[str, Point], ...]
    handle_type: str
    json_file: Path | None


def main(arguments: list[str]) -> int:
    """0 when every killing was reached and all went on as it must; 1 when not; 2 when there is none of that name."""
    asked = _parsed(arguments)
    console = Console()
    if not asked.killings:
        console.print("there is no such point", style="red")
        return 2
    started = time.monotonic()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("killing", total=len(asked.killings))

        def watch(killing: Killing) -> None:
            progress.update(task, advance=1, description=f"{killing.role}: {killing.point}")
            if not killing.passed:
                progress.console.print(f"[red]{killing.role}: {killing.point}[/]: {_what_is_wrong(killing)}")

        result = matrix.run(asked.killings, watch=watch, handle_type=asked.handle_type)
    seconds = time.monotonic() - started
    console.print(_table(result))
    longest = max(one.longest_step_seconds for one in result.killings)
    new = ", ".join(result.new_shared_memory) or "nothing"
    console.print(f"{len(result.killings)} killings in {seconds:.1f} s; new in {matrix.SHARED_MEMORY}: {new}")
    console.print(f"the longest step took {longest:.2f} s, its bound is {STEP_SECONDS:g} s")
    if asked.json_file is not None:
        asked.json_file.write_text(json.dumps(_report(result, asked.handle_type, seconds), indent=2) + "\n")
    return 0 if result.passed else 1


def _parsed(arguments: list[str]) -> Asked:
    parser = argparse.ArgumentParser(prog="python -m vmmref.conformance.kills", description=__doc__)
    parser.add_argument("--role", action="append", choices=ROLES, help="who dies; may be repeated; default: everybody")
    parser.add_argument("--points", default="", help="only points whose name or step has this text")
    parser.add_argument("--every", type=int, default=1, help="only the first and each so-many-th of them")
    parser.add_argument("--handle-type", choices=tuple(HandleType), default=HandleType.POSIX_FD, help="of the pools")
    parser.add_argument("--json", type=Path, help="write the result as JSON")
    given = parser.parse_args(arguments)
    roles = tuple(given.role or ROLES)
    killings = tuple(matrix.chosen(roles, given.points, max(1, given.every), given.handle_type))
    return Asked(roles, killings, given.handle_type, given.json)


def _what_is_wrong(killing: Killing) -> str:
    return (
        "; ".join(killing.problems) if killing.reached else "; ".join(("the point was not reached", *killing.problems))
    )


def _table(result: matrix.Matrix) -> Table:
    table = Table(title="Kill matrix, simulated driver (no hardware)")
    for heading in ("Who dies", "Points", "Passed"):
        table.add_column(heading, justify="left" if heading == "Who dies" else "right")
    for role, (count, passed) in result.by_role().items():
        table.add_row(role, str(count), str(passed), style="" if passed == count else "red")
    return table


def _report(result: matrix.Matrix, handle_type: str, seconds: float) -> dict[str, Any]:
    return {
        "handle_type": str(handle_type),
        "seconds": seconds,
        "step_bound_seconds": STEP_SECONDS,
        "passed": result.passed,
        "new_shared_memory": list(result.new_shared_memory),
        "killings": [{**one._asdict(), "passed": one.passed} for one in result.killings],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
