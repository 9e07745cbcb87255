"""`vmmref faults`: does the check catch pools that are broken on purpose, and name the right rule?"""

from __future__ import annotations

import difflib
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vmmref.cli import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from vmmref.conformance.faulty.hunt import Catch
    from vmmref.conformance.faulty.pack import Orders, Ready

PROFILES: dict[str, tuple[float, float]] = {"quick": (45.0, 3.0), "full": (180.0, 20.0)}
"""Seconds for one pool and seed, at most: until its rule is named, and for making the sequence shorter."""


def command(
    device: Annotated[str, typer.Option(help="Where the pools live: sim, sim:N or cuda:N.")] = "sim",
    profile: Annotated[str, typer.Option(help="quick or full: how long to search for each pool.")] = "quick",
    seeds: Annotated[int, typer.Option(help="Search with so many seeds; a pool must be named with each.")] = 1,
    only: Annotated[str, typer.Option(help="Only these pools, for example worst-fit,no-table.")] = "",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report as JSON.")] = None,
) -> None:
    """Check the check: hunt pools that are broken on purpose, each until the rule that it breaks is named.

    Exit status: 0 every pool was caught by its rule, 1 one was not, 2 could not run.
    """
    from rich.console import Console

    from vmmref.cli._output import check_writable
    from vmmref.conformance.faulty.hunt import unproven
    from vmmref.conformance.faulty.pack import CannotHunt, Pack
    from vmmref.conformance.runner import in_turn

    names = _names(only)
    orders = _orders(device, profile, seeds)
    check_writable(json_file, "--json")
    console, started = Console(), time.monotonic()
    with _Display(console, len(names)) as display:
        pack = Pack(orders, 1 if in_turn(device) else 2, display.show)
        try:
            catches = list(pack.run(names).values())
        except CannotHunt as error:
            raise UsageError(f"--device {device}: {error}") from None
    seconds = time.monotonic() - started
    assert pack.ready is not None, "hunters have reported"
    open_rules = () if only else unproven(pack.ready.rules, catches)
    _show(console, catches, len(names), open_rules, pack.ready, seconds)
    _write(json_file, catches, open_rules, pack.ready, orders, seconds)
    raise typer.Exit(0 if all(catch.named for catch in catches) else 1)


def _names(only: str) -> tuple[str, ...]:
    from vmmref.conformance.faulty import CATALOGUE

    wanted = tuple(dict.fromkeys(name.strip() for name in only.split(",") if name.strip()))
    for name in wanted:
        if name not in CATALOGUE:
            near = difflib.get_close_matches(name, CATALOGUE, 3)
            hint = f"; near matches: {', '.join(near)}" if near else ""
            raise UsageError(f'--only: there is no broken pool "{name}"{hint}')
    if only and not wanted:
        raise UsageError(f'--only "{only}" names no pool')
    return wanted or tuple(CATALOGUE)


def _orders(device: str, profile: str, seeds: int) -> Orders:
    from vmmref.conformance.faulty.pack import Orders
    from vmmref.conformance.loading import Unusable, parse_device

    try:
        parse_device(device)
    except Unusable as error:
        raise UsageError(f"--device: {error}") from None
    if profile not in PROFILES:
        raise UsageError(f'--profile "{profile}" is none of {", ".join(PROFILES)}')
    if seeds < 1:
        raise UsageError(f"--seeds {seeds} is not a positive number")
    seconds, shrink_seconds = PROFILES[profile]
    return Orders(device, seeds, seconds, shrink_seconds)


def _show(
    console: Console, catches: list[Catch], wanted: int, open_rules: tuple[str, ...], ready: Ready, seconds: float
) -> None:
    from rich.table import Table
    from rich.text import Text

    from vmmref_models import RULES

    table = Table(box=None, pad_edge=False)
    for title in ("pool", "rule", "caught", "named"):
        table.add_column(title, no_wrap=True)
    table.add_column("operations", justify="right")
    table.add_column("seconds", justify="right")
    for catch in catches:
        answers = ["[green]yes[/]" if answer else "[bold red]no[/]" for answer in (catch.caught, catch.named)]
        steps = "" if catch.steps is None else str(catch.steps)
        table.add_row(catch.pool.name, catch.pool.rule, *answers, steps, f"{catch.seconds:.1f}")
    console.print(table)
    lines = [""]
    for catch in catches:
        if not catch.named:
            instead = f"caught as {' '.join(catch.others)}" if catch.others else "not caught"
            note = f"; {catch.note}" if catch.note else ""
            lines.append(f"{catch.pool.name} breaks {catch.pool.rule}: {catch.pool.sentence} It was {instead}{note}")
    lines += [f"unproven check: {rule} {RULES[rule].title}" for rule in open_rules]
    left_out = wanted - len(catches)
    if left_out:
        lines.append(f"{left_out} pools were left out: their rules cannot be judged on this device")
    named = sum(catch.named for catch in catches)
    lines.append(f"{named} of {len(catches)} pools named on {ready.description.device} in {seconds:.1f} s")
    console.print(Text("\n".join(lines)), soft_wrap=True)


def _write(
    json_file: Path | None,
    catches: list[Catch],
    open_rules: tuple[str, ...],
    ready: Ready,
    orders: Orders,
    seconds: float,
) -> None:
    from vmmref.cli._output import header, write_json

    shown = {"name": ready.description.device, "simulated": ready.description.simulated}
    document: dict[str, Any] = {**header(shown), "seed": 0, "seeds": orders.seeds, "seconds": round(seconds, 3)}
    document["pools"] = [_as_json(catch) for catch in catches]
    document["unproven"] = list(open_rules)
    write_json(json_file, document)


def _as_json(catch: Catch) -> dict[str, Any]:
    return {
        "name": catch.pool.name,
        "rule": catch.pool.rule,
        "sentence": catch.pool.sentence,
        "seen": catch.pool.seen or None,
        "caught": catch.caught,
        "named": catch.named,
        "others": list(catch.others),
        "seconds": round(catch.seconds, 3),
        "steps": catch.steps,
        "operations": catch.operations,
        "note": catch.note or None,
    }


class _Display:
    """One line on a terminal while pools are hunted; nothing where the output is no terminal."""

    def __init__(self, console: Console, count: int) -> None:
        self.count = count
        self.done = 0
        self.missed: list[str] = []
        self.hunted: list[str] = []
        self.status = console.status("starting") if console.is_terminal else None

    def show(self, name: str, catch: Catch | None) -> None:
        """A hunt begins (no catch yet) or has ended."""
        if catch is None:
            self.hunted.append(name)
        else:
            self.hunted.remove(name)
            self.done += 1
            self.missed += [] if catch.named else [name]
        if self.status is not None:
            missed = f", [bold red]missed: {' '.join(self.missed)}[/]" if self.missed else ""
            self.status.update(f"{self.done} of {self.count}  {', '.join(self.hunted)}{missed}")

    def __enter__(self) -> _Display:
        if self.status is not None:
            self.status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.status is not None:
            self.status.stop()
