"""`vmmref doctor`: what this machine can run, and why not more."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

PROBE_SECONDS = 30.0
"""A probe that has not answered by then counts as unavailable; a driver that hangs must not hang its doctor."""

SINGLE: tuple[tuple[str, str], ...] = (
    ("torch", "torch"),
    ("cuda-bindings", "bindings"),
    ("C compiler", "compiler"),
    ("simulated driver", "simulator"),
    ("real driver", "driver"),
)
"""Name in the report and probe of what a machine has once."""

PER_DEVICE: tuple[tuple[str, str], ...] = (
    ("virtual memory management", "vmm"),
    ("POSIX descriptor export", "posix"),
    ("FABRIC handle export", "fabric"),
    ("stream memory operations", "memops32"),
    ("64-bit stream memory operations", "memops64"),
)
"""Name in the report and probe of what each device may have."""


@dataclass(frozen=True, slots=True)
class Capability:
    """One thing a machine can or cannot do, with the reason in a sentence."""

    name: str
    available: bool
    why: str


def command(
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report to this file too.")] = None,
) -> None:
    """Say what this machine can run, and why not more; each capability is tried out in a process of its own."""
    from vmmref.cli._output import check_writable, header, write_json

    check_writable(json_file, "--json")
    started = time.monotonic()
    found, devices = examine()
    _show(found)
    shown = {key: devices[0][key] for key in ("name", "simulated", "driver")} if devices else None
    report = header(shown)
    report |= {"seed": None, "seconds": round(time.monotonic() - started, 3)}
    report["devices"] = devices
    report["capabilities"] = [{"name": row.name, "available": row.available, "why": row.why} for row in found]
    write_json(json_file, report)


def examine() -> tuple[list[Capability], list[dict[str, Any]]]:
    """Every capability of this machine, and the devices that were found (real ones first)."""
    found = [_python()]
    answers = {probe: ask(probe) for _, probe in SINGLE}
    found += [Capability(name, *_judged(answers[probe])) for name, probe in SINGLE]
    devices: list[dict[str, Any]] = []
    for probe in ("driver", "simulator"):
        for device in answers[probe].get("devices", []):
            devices.append(device)
            found += [Capability(f"{device['id']}: {name}", *_tried(p, device["id"])) for name, p in PER_DEVICE]
    return found, devices


def _python() -> Capability:
    right = sys.version_info >= (3, 11)
    return Capability("Python", right, f"{platform.python_version()}{'' if right else ' is older than 3.11'}")


def _tried(probe: str, device: str) -> tuple[bool, str]:
    return _judged(ask(probe, device))


def _judged(answer: dict[str, Any]) -> tuple[bool, str]:
    return bool(answer["available"]), str(answer["why"])


def ask(*arguments: str) -> dict[str, Any]:
    """Run one probe in a child process: a driver may crash, hang or bind itself to the process that asks it."""
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "vmmref.cli._probes", *arguments],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"available": False, "why": f"the probe did not answer in {PROBE_SECONDS:.0f} s"}
    lines = ended.stdout.strip().splitlines()
    try:
        answer = json.loads(lines[-1])
    except (IndexError, ValueError):
        last = (ended.stderr.strip().splitlines() or ["no output"])[-1]
        return {"available": False, "why": f"the probe ended with status {ended.returncode}: {last}"}
    return answer if isinstance(answer, dict) else {"available": False, "why": "the probe answered nonsense"}


def _show(found: list[Capability]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("available")
    table.add_column("capability")
    table.add_column("why")
    for row in found:
        table.add_row("[green]yes[/]" if row.available else "[yellow]no[/]", row.name, row.why)
    Console().print(table)
