"""`vmmref explore`: is a lease protocol right in every interleaving of a small scope?"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from vmmref.cli import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from vmmref_models.explore import Limits, Result
    from vmmref_models.small_pool.protocol import Protocol
    from vmmref_models.small_pool.scope import Scope

LARGEST = 64
"""Of anything in a scope: far beyond what can be searched."""
BYTES_A_STATE = 150
"""What the search keeps of one state, measured."""


def command(
    protocol: Annotated[str, typer.Option(help="The protocol to search, for example geq-plain.")] = "",
    slots: Annotated[int | None, typer.Option(help="Slots of the pool.")] = None,
    units: Annotated[int | None, typer.Option(help="Ranges of the pool; a lease takes one.")] = None,
    consumers: Annotated[int | None, typer.Option(help="Consumer ranks.")] = None,
    leases: Annotated[int | None, typer.Option(help="Leases that are published in one run.")] = None,
    halves: Annotated[int | None, typer.Option(help="Pieces in which bytes are copied.")] = None,
    generations: Annotated[int | None, typer.Option(help="The last generation of a slot; 0: not reached.")] = None,
    faults: Annotated[str | None, typer.Option(help="What may go wrong and how often: dup,revoke:2.")] = None,
    without: Annotated[str, typer.Option(help="Environment obligations that are not kept: used-once.")] = "",
    to_the_end: Annotated[
        bool, typer.Option("--to-the-end", help="Do not stop at the first broken rule: find each one's sequence.")
    ] = False,
    symmetry: Annotated[bool, typer.Option(help="Let a state stand for those with other rank numbers.")] = True,
    catalogue: Annotated[
        bool, typer.Option("--catalogue", help="Refute every wrong protocol as pinned, and search the right ones.")
    ] = False,
    night: Annotated[bool, typer.Option("--night", help="The catalogue, and larger scopes of the right ones.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Have Spin and Rumur count and judge small scopes, too.")
    ] = False,
    max_states: Annotated[int, typer.Option(help="Give up at so many states (150 bytes each).", min=1)] = 50_000_000,
    max_seconds: Annotated[float, typer.Option(help="Give up after so long.", min=0.0)] = 3600.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result as JSON.")] = None,
) -> None:
    """Search a protocol's whole reachable space in a small scope; without options, the right one.

    Exit status: 0 everything was searched and no rule is broken, 1 one is, 2 the search is incomplete or could not run.
    """
    from rich.console import Console

    from vmmref.cli._output import check_writable
    from vmmref_models.explore import Limits

    check_writable(json_file, "--json")
    console, limits = Console(), Limits(max_states, max_seconds)
    numbers = {
        "slots": slots,
        "units": units,
        "consumers": consumers,
        "leases": leases,
        "halves": halves,
        "generations": generations,
    }
    if catalogue or night or compare:
        if protocol or without or faults is not None or any(value is not None for value in numbers.values()):
            raise UsageError("--catalogue, --night and --compare have their own protocols and scopes")
        if compare:
            raise typer.Exit(_compared(console, json_file))
        raise typer.Exit(_catalogue(console, night, limits, json_file))
    chosen, scope = _chosen(protocol, numbers, faults, without, symmetry, limits)
    result = _searched(console, chosen, scope, limits, to_the_end, symmetry)
    _show(console, chosen, scope, result)
    _write(json_file, _as_json(chosen, scope, result), result.seconds)
    raise typer.Exit(_status(result))


def _chosen(
    name: str, numbers: dict[str, int | None], faults: str | None, without: str, symmetry: bool, limits: Limits
) -> tuple[Protocol, Scope]:
    """The protocol, and the scope that was asked for; what was not asked for is as pinned for a known-wrong one."""
    from vmmref_models.protocols import DEFAULT_SCOPE, KNOWN_WRONG, PROTOCOLS, RETIRE_VALIDATE_MAX
    from vmmref_models.small_pool.pool import SmallPool
    from vmmref_models.small_pool.scope import faults_from, without_obligations

    name = name or RETIRE_VALIDATE_MAX.name
    if name not in PROTOCOLS:
        near = difflib.get_close_matches(name, PROTOCOLS, 3) or list(PROTOCOLS)
        raise UsageError(f'--protocol: there is no protocol "{name}"; there are {", ".join(near)}')
    scope = KNOWN_WRONG[name].scope if name in KNOWN_WRONG else DEFAULT_SCOPE
    given: dict[str, Any] = {option: value for option, value in numbers.items() if value is not None}
    try:
        if faults is not None:
            given["faults"] = faults_from(faults)
        scope = replace(scope, **given)
        scope = without_obligations((part.strip() for part in without.split(",") if part.strip()), scope)
        _check_size(scope, symmetry, limits)
        SmallPool(PROTOCOLS[name], scope)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return PROTOCOLS[name], scope


def _check_size(scope: Scope, symmetry: bool, limits: Limits) -> None:
    """Refuse a scope that surely has more states than the search may hold. Raises ValueError."""
    most = limits.states
    for name in ("slots", "units", "consumers", "leases", "halves"):
        if getattr(scope, name) > LARGEST:
            raise ValueError(f"{name} = {getattr(scope, name)} is more than {LARGEST}: nobody can search that")
    least = scope.least_states(symmetry)
    if least > most:
        gib = least * BYTES_A_STATE / 2**30
        raise ValueError(
            f"this scope has at least {least:,} states ({gib:,.0f} GiB), more than the {most:,} of --max-states"
        )


def _searched(
    console: Console, protocol: Protocol, scope: Scope, limits: Limits, to_the_end: bool, symmetry: bool = True
) -> Result:
    """One search, with a line of progress on a terminal."""
    from vmmref_models.explore import Search
    from vmmref_models.small_pool.pool import SmallPool

    search = Search(SmallPool(protocol, scope), symmetry)
    with console.status(protocol.name) as status:

        def show(states: int, depth: int, seconds: float) -> None:
            rate = states / seconds if seconds else 0.0
            status.update(f"{protocol.name}: {states:,} states, depth {depth}, {rate:,.0f} states/s")

        return search.run(limits, to_the_end, show)


def _status(result: Result) -> int:
    if result.violations:
        return 1
    return 0 if result.complete else 2


def _show(console: Console, protocol: Protocol, scope: Scope, result: Result) -> None:
    from rich.text import Text

    lines = [f"{protocol.name}: {protocol.sentence}", _scope_in_words(scope)]
    rate = result.states / max(result.seconds, 1e-9)
    lines.append(
        f"{result.states:,} states, {result.transitions:,} transitions, depth {result.depth}; "
        f"{result.seconds:.1f} s, {rate:,.0f} states/s"
    )
    for violation in result.violations:
        lines += ["", f"{violation.rule} broken after {violation.length} steps: {violation.what}"]
        lines += [f"  {number:3}  {text}" for number, text in enumerate(violation.trace, 1)]
    if result.violations:
        lines += ["", "violated" if result.complete else "violated; the search stopped there"]
    elif result.complete:
        lines.append("complete: no rule is broken in this scope")
    else:
        lines.append("incomplete: no rule was broken so far, which proves nothing")
    console.print(Text("\n".join(lines)), soft_wrap=True)


def _scope_in_words(scope: Scope) -> str:
    sizes = ", ".join(f"{name} {size}" for name, size in _sizes(scope).items() if size)
    return f"{sizes}; faults: {_faults(scope) or 'none'}"


def _sizes(scope: Scope) -> dict[str, int]:
    return {name: getattr(scope, name) for name in ("slots", "units", "consumers", "leases", "halves", "generations")}


def _faults(scope: Scope) -> str:
    return ", ".join(name if count == 1 else f"{name}:{count}" for name, count in scope.faults.items() if count)


def _as_json(protocol: Protocol, scope: Scope, result: Result) -> dict[str, Any]:
    return {
        "protocol": protocol.name,
        "faults": dict(scope.faults),
        "scope": _sizes(scope),
        "states": result.states,
        "transitions": result.transitions,
        "depth": result.depth,
        "complete": result.complete,
        "fired": sorted(result.fired),
        "violations": [{**found._asdict(), "trace": list(found.trace)} for found in result.violations],
    }


def _write(json_file: Path | None, document: dict[str, Any], seconds: float) -> None:
    from vmmref.cli._output import header, write_json

    write_json(json_file, {**header(), "seed": None, "seconds": round(seconds, 3), **document})


def _catalogue(console: Console, night: bool, limits: Limits, json_file: Path | None) -> int:
    """Every wrong protocol must break its rules at the pinned lengths, every right one none; the exit status."""
    from vmmref_models.clean_scopes import CLEAN, NIGHT
    from vmmref_models.protocols import KNOWN_WRONG, RELYING

    status, seconds = 0, 0.0
    searches: list[dict[str, Any]] = []
    wrong = [
        Expected(known.protocol, known.scope, known.broken) for known in (*KNOWN_WRONG.values(), *RELYING.values())
    ]
    clean = [Expected(entry.protocol, entry.scope, {}, entry.counts) for entry in (*CLEAN, *(NIGHT if night else ()))]
    for expected in (*wrong, *clean):
        result = _searched(console, expected.protocol, expected.scope, limits, to_the_end=True)
        console.print(_row(expected, result), soft_wrap=True, highlight=False, markup=False)
        seconds += result.seconds
        as_pinned = expected.met_by(result)
        searches.append({**_as_json(expected.protocol, expected.scope, result), "as_pinned": as_pinned})
        if not as_pinned:
            status = 1 if status == 1 or expected.missed_by(result) else 2
        if result.interrupted:
            break
    states, kept = sum(search["states"] for search in searches), sum(search["as_pinned"] for search in searches)
    total = f"{kept} of {len(wrong) + len(clean)} searches as pinned, {states:,} states in {seconds:.1f} s"
    console.print(total, highlight=False)
    _write(json_file, {"searches": searches}, seconds)
    return status


def _compared(console: Console, json_file: Path | None) -> int:
    """The search against two other checkers on encodings of their own; the exit status."""
    from vmmref.cli._compare import compare

    status, document, seconds = compare(console)
    _write(json_file, document, seconds)
    return status


class Expected(NamedTuple):
    """A search whose outcome is pinned."""

    protocol: Protocol
    scope: Scope
    broken: Mapping[str, int]
    """The shortest sequence for each rule that must break."""
    counts: tuple[int, int, int] | None = None
    """States, transitions and depth, where they are pinned."""

    def met_by(self, result: Result) -> bool:
        """Whether the search was complete and found just this."""
        return result.complete and result.broken == dict(self.broken) and self.counts in (None, result.counts)

    def missed_by(self, result: Result) -> bool:
        """Whether it found something else; an incomplete search that found less has not."""
        return result.complete or not result.broken.items() <= self.broken.items()


def _row(expected: Expected, result: Result) -> str:
    outcome = ", ".join(f"{rule} after {length}" for rule, length in result.broken.items()) or "no rule broken"
    if not result.complete:
        outcome = f"incomplete: {outcome}"
    if not expected.met_by(result):
        pinned = ", ".join(f"{rule} after {length}" for rule, length in expected.broken.items()) or "no rule broken"
        counts = f" and states, transitions, depth = {expected.counts}" if expected.counts else ""
        outcome += f"; pinned was: {pinned}{counts}"
    return f"{expected.protocol.name} ({_scope_in_words(expected.scope)}): {result.states:,} states; {outcome}"
