"""Spin and Rumur on two encodings of retire-validate-max that share no code with the search.

The encodings stand in models/independent, one in Promela and one in Murphi. Both checkers write a C program for one
scope, which is compiled and run. Spin's number of transitions includes the entry into the first state, which nobody
else counts; it is taken off here, and nothing else is.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from vmmref_models.protocols import RETIRE_VALIDATE_MAX
from vmmref_models.small_pool.protocol import Protocol, Wait
from vmmref_models.small_pool.scope import Scope

ENTRY_OF_SPIN: Final = 1
"""Transitions that Spin counts on top of the others: the entry into the first state."""

TIMEOUT_SECONDS: Final = 600
"""For each program that is run; the largest of the compared scopes takes some seconds."""

DEPTH: Final = 10_000
"""Steps that Spin may go down; under fairness a path is some times as long as the steps of a run."""

CLAIMS: Final[Mapping[str, str]] = {"LIV-1": "every_lease_ends", "LIV-2": "every_stream_runs_dry"}
"""The formulas of the Promela encoding, by the rule that they stand for."""

_FAULTS: Final[Mapping[str, str]] = {
    "dup": "DUPLICATING",
    "revoke": "REVOKES",
    "cancel": "CANCELS",
    "reader-fail": "READER_FAILURES",
    "producer-crash": "PRODUCER_DEATHS",
}
_RANKS: Final = 2

ENCODINGS = Path(__file__).resolve().parents[2] / "models" / "independent"
"""They lie in a checkout only: they are no part of the package."""


class CouldNotRun(Exception):
    """A checker is missing, or gave no answer; the text says which and what to do."""


class Counts(NamedTuple):
    """What a complete search has counted."""

    states: int
    transitions: int


def constants_of(protocol: Protocol, scope: Scope) -> dict[str, int]:
    """The constants with which the encodings describe a protocol in a scope.

    Raises ValueError for what they do not describe.
    """
    right = RETIRE_VALIDATE_MAX
    described = replace(
        protocol,
        name=right.name,
        sentence=right.sentence,
        wait=right.wait if protocol.wait is Wait.AT_LEAST else protocol.wait,
        failed_acknowledges=right.failed_acknowledges,
    )
    if described != right:
        raise ValueError(f"the encodings do not describe {protocol.name}")
    for fault in scope.faults:
        if scope.allowed(fault) and fault not in _FAULTS:
            raise ValueError(f"the encodings have no {fault}")
    sizes = (scope.slots, scope.units, scope.halves, scope.consumers, scope.leases - 1)
    if max(sizes) > _RANKS or scope.consumers < _RANKS or scope.generations:
        raise ValueError("the encodings have 2 ranks, up to 3 leases, and up to 2 slots, ranges and halves")
    if max(scope.allowed("dup"), scope.allowed("producer-crash")) > 1:
        raise ValueError("the encodings have duplicates in one rank, and a producer that dies once")
    constants = {
        "SLOTS": scope.slots,
        "UNITS": scope.units,
        "LEASES": scope.leases,
        "HALVES": scope.halves,
        "DEVICE_WAIT": int(protocol.wait is Wait.AT_LEAST),
        "FAILED_ACKNOWLEDGES": int(protocol.failed_acknowledges),
    }
    return constants | {constant: scope.allowed(fault) for fault, constant in _FAULTS.items()}


def spin_counts(constants: Mapping[str, int]) -> Counts:
    """States and transitions of the Promela encoding. Raises CouldNotRun."""
    text = _spin(constants, ["-DSAFETY"], [])
    if "errors: 0" not in text:
        raise CouldNotRun(f"Spin found a broken assertion: {_line_with('violated', text)}")
    return Counts(_number(r"(\d+) states, stored", text), _number(r"(\d+) transitions \(=", text) - ENTRY_OF_SPIN)


def spin_keeps(constants: Mapping[str, int], rule: str) -> bool:
    """Whether the Promela encoding keeps LIV-1 or LIV-2 under weak fairness. Raises CouldNotRun."""
    text = _spin({**constants, "LIVENESS": 1}, ["-DNFAIR=6"], ["-a", "-f", "-N", CLAIMS[rule]])
    if "errors: 0" not in text and "acceptance cycle" not in text:
        raise CouldNotRun(f"Spin gave no verdict: {_line_with('rror', text)}")
    return "errors: 0" in text


def rumur_counts(constants: Mapping[str, int], symmetry: bool = False) -> Counts:
    """States and transitions of the Murphi encoding; with `symmetry` ranks are interchangeable. Raises CouldNotRun."""
    text = _rumur(constants, symmetry, "off")
    if "No error found" not in text:
        raise CouldNotRun(f"Rumur found a broken assertion: {_line_with('Assertion', text)}")
    # Not the lines of progress before, which have both numbers, too.
    return Counts(_number(r"(\d+) states, \d+ rules fired", text), _number(r"\d+ states, (\d+) rules fired", text))


def rumur_ends_well(constants: Mapping[str, int]) -> bool:
    """Whether the Murphi encoding ends only with every lease back and every stream dry. Raises CouldNotRun."""
    text = _rumur({**constants, "ENDS_ARE_JUDGED": 1}, False, "stuck")
    if "No error found" not in text and "deadlock" not in text:
        raise CouldNotRun(f"Rumur found a broken assertion: {_line_with('Assertion', text)}")
    return "No error found" in text


def _spin(constants: Mapping[str, int], compile_with: Sequence[str], run_with: Sequence[str]) -> str:
    """What the program says that Spin writes for one scope."""
    checker, compiler, source = _installed("spin"), _compiler(), _encoding("retire_validate_max.pml")
    with tempfile.TemporaryDirectory() as folder:
        definitions = [f"-D{name}={value}" for name, value in constants.items()]
        _run(folder, checker, *definitions, "-a", str(source))
        # Without partial-order reduction: the others do not reduce either.
        _run(folder, compiler, "-w", "-O1", "-DNOREDUCE", *compile_with, "-o", "pan", "pan.c")
        text = _run(folder, "./pan", "-n", f"-m{DEPTH}", *run_with, may_fail=True)
    if "max search depth too small" in text or "out of memory" in text:
        raise CouldNotRun("Spin's search was not complete")
    return text


def _rumur(constants: Mapping[str, int], symmetry: bool, dead_ends: str) -> str:
    """What the program says that Rumur writes for one scope."""
    checker, compiler, source = _installed("rumur"), _compiler(), _encoding("retire_validate_max.m")
    with tempfile.TemporaryDirectory() as folder:
        text = murphi_with(source.read_text(encoding="utf-8"), constants, symmetry)
        Path(folder, "model.m").write_text(text, encoding="utf-8")
        reduction = "exhaustive" if symmetry else "off"
        options = ["--symmetry-reduction", reduction, "--deadlock-detection", dead_ends, "--threads", "1"]
        _run(folder, checker, *options, "--output", "checker.c", "model.m")
        # Rumur swaps 16 bytes at once where the processor can.
        wide = ["-mcx16"] if platform.machine() == "x86_64" else []
        _run(folder, compiler, "-w", "-O1", *wide, "-o", "checker", "checker.c", "-lpthread")
        return _run(folder, "./checker", may_fail=True)


def murphi_with(text: str, constants: Mapping[str, int], symmetry: bool) -> str:
    """The Murphi encoding with other constants: the language has no way to give them from outside."""
    values = {name: value for name, value in constants.items() if name != "DUPLICATING"}
    for name, value in {**values, "COPIES": 1 + constants["DUPLICATING"]}.items():
        text, found = re.subn(rf"^  {name}: \d+;", f"  {name}: {value};", text, flags=re.MULTILINE)
        assert found == 1, f"the encoding has no constant {name}"
    if symmetry:
        if constants["DUPLICATING"]:
            raise ValueError("ranks are not alike when one of them gets duplicates")
        for plain, alike in (("rank: 0 .. RANKS - 1;", "rank: scalarset(RANKS);"), ("c = 1 | r < 1", "c = 1")):
            assert text.count(plain) == 1, f"the encoding has no {plain}"
            text = text.replace(plain, alike)
    return text


def _encoding(name: str) -> Path:
    source = ENCODINGS / name
    if not source.is_file():
        raise CouldNotRun(f"{name} is not there: run this in a checkout")
    return source


def _installed(package: str) -> str:
    found = shutil.which(package)
    if found is None:
        raise CouldNotRun(f"install the package {package}")
    return found


def _compiler() -> str:
    for name in ("cc", "gcc", "clang"):
        found = shutil.which(name)
        if found is not None:
            return found
    raise CouldNotRun("install a C compiler")


def _run(folder: str, *command: str, may_fail: bool = False) -> str:
    """What a program says; `may_fail`: its exit status is part of its answer."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        raise CouldNotRun(f"{Path(command[0]).name} did not end within {TIMEOUT_SECONDS} s") from None
    text = done.stdout + done.stderr
    if done.returncode and not may_fail:
        raise CouldNotRun(f"{Path(command[0]).name} ended with {done.returncode}: {_line_with('rror', text)}")
    return text


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    if match is None:
        raise CouldNotRun(f"no counts in the answer: {_line_with('rror', text)}")
    return int(match[1])


def _line_with(word: str, text: str) -> str:
    """The first line that has this word, else the first that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if word in line), lines[0] if lines else "no answer")
