"""`vmmref bench`: how fast are pool and checker, beside a baseline measured in the same run?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vmmref.cli import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from vmmref.conformance.bench import Row

GROUPS = ("allocator", "hand-over", "processes", "checker")


def command(
    device: Annotated[str, typer.Option(help="Where the pool lives: sim, sim:N or cuda:N.")] = "sim",
    only: Annotated[str, typer.Option(help=f"Only some of: {', '.join(GROUPS)}.")] = "",
    baseline: Annotated[
        str, typer.Option(help="Another pool's allocator to measure beside ours: package.module:factory.")
    ] = "",
    cycles: Annotated[int, typer.Option(help="Lease cycles between two processes.", min=1)] = 20_000,
    checker_seconds: Annotated[float, typer.Option(help="How long each layer of the checker is measured.")] = 10.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures as JSON.")] = None,
) -> None:
    """Measure allocator, hand-overs and checker; ratios are medians over rounds taken in turn with the baseline."""
    from rich.console import Console
    from rich.progress import Progress

    from vmmref.cli._output import check_writable, header, write_json
    from vmmref.conformance.loading import Unusable, parse_device

    try:
        parse_device(device)
    except Unusable as error:
        raise UsageError(f"--device: {error}") from None
    groups = _groups(only)
    check_writable(json_file, "--json")
    make_baseline = _baseline(baseline)
    started = time.monotonic()
    rows: list[Row] = []
    console = Console()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=None)
        try:
            for row in _rows(device, groups, make_baseline, baseline or None, cycles, checker_seconds):
                rows.append(row)
                progress.update(task, advance=1, description=row.name)
        except (RuntimeError, OSError) as error:
            # Errors of the pool, of its processes and of a simulator that cannot be built or loaded.
            raise UsageError(f"measuring on {device} ended: {error}") from None
    console.print(_table(rows))
    report: dict[str, Any] = header({"name": device, "simulated": device.startswith("sim")})
    report |= {"seed": None, "seconds": time.monotonic() - started, "rows": [asdict(row) for row in rows]}
    write_json(json_file, report)


def _groups(only: str) -> tuple[str, ...]:
    chosen = tuple(name.strip() for name in only.split(",") if name.strip()) or GROUPS
    unknown = [name for name in chosen if name not in GROUPS]
    if unknown:
        raise UsageError(f"--only: {unknown[0]!r} is none of {', '.join(GROUPS)}")
    return chosen


def _baseline(name: str) -> Callable[[int, int], Any] | None:
    from vmmref.conformance.loading import Unusable, load_factory

    if not name:
        return None
    try:
        factory = load_factory(name)
        factory(16, 4096)
    except Unusable as error:
        raise UsageError(f"--baseline: {error}") from None
    except Exception as error:
        raise UsageError(f"--baseline {name!r} cannot be made: {type(error).__name__}: {error}") from None
    return factory


def _rows(
    device: str,
    groups: tuple[str, ...],
    make_baseline: Callable[[int, int], Any] | None,
    baseline_name: str | None,
    cycles: int,
    checker_seconds: float,
) -> Iterator[Row]:
    from vmmref.conformance import bench

    if "allocator" in groups:
        yield from bench.allocator_rows(make_baseline, baseline_name)
    if "hand-over" in groups:
        yield from bench.handover_rows(device, 200)
    if "processes" in groups:
        yield from bench.process_rows(device, cycles)
    if "checker" in groups:
        yield from bench.checker_rows(device, checker_seconds)


def _table(rows: list[Row]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    compared = any(row.baseline for row in rows)
    for heading in ("what", "value", "unit", "baseline", "baseline value", "ratio")[: 6 if compared else 3]:
        table.add_column(heading, justify="left" if heading in ("what", "unit", "baseline") else "right")
    for row in rows:
        other = "" if row.baseline_value is None else _figure(row.baseline_value)
        spread = "" if row.low is None or row.high is None else f" ({row.low:.2f} ... {row.high:.2f})"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}{spread}"
        cells = (row.name, _figure(row.value), row.unit, row.baseline or "", other, ratio)
        table.add_row(*cells[: 6 if compared else 3])
    return table


def _figure(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
