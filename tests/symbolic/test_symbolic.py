"""`python -m vmmref.conformance.symbolic`: the pool's pure functions, over all numbers."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vmmref.conformance.symbolic.catalogue import CONTRACTS, PAIRS, WRONGS
from vmmref.conformance.symbolic.findings import CONFIRMED, REFUTED, UNKNOWN, Answer, Finding, status_of
from vmmref_models import RULE_TITLES

LIMIT_SECONDS = 240
"""For everything; a quiet core needs some twenty."""

needs_crosshair = pytest.mark.skipif(
    importlib.util.find_spec("crosshair") is None,
    reason="CrossHair is not installed, so nothing can be executed symbolically: pip install 'vmmref[prove]'",
)


def execute(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: CrossHair replaces built-in functions while it works."""
    command = [sys.executable, "-m", "vmmref.conformance.symbolic", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The JSON report of everything."""
    file: Path = tmp_path_factory.mktemp("symbolic") / "report.json"
    ended = execute("--json", str(file))
    assert file.exists(), ended.stderr
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


@needs_crosshair
@pytest.mark.parametrize(
    ("kind", "state", "names"),
    [
        ("contract", CONFIRMED, [contract.name for contract in CONTRACTS]),
        ("pair", CONFIRMED, [pair.name for pair in PAIRS]),
        ("wrong", REFUTED, [wrong.name for wrong in WRONGS]),
    ],
)
def test_every_one_is_as_it_should_be(report: dict[str, Any], kind: str, state: str, names: list[str]) -> None:
    found = {finding["name"]: finding["state"] for finding in report["findings"] if finding["kind"] == kind}
    assert found == dict.fromkeys(names, state)


@needs_crosshair
def test_counterexamples_come_with_their_numbers(report: dict[str, Any]) -> None:
    texts = [finding["counterexample"] for finding in report["findings"] if finding["kind"] == "wrong"]
    assert all("(" in text for text in texts)
    assert {finding["counterexample"] for finding in report["findings"] if finding["kind"] != "wrong"} == {""}


@needs_crosshair
def test_what_takes_too_long_is_not_confirmed() -> None:
    ended = execute("--only", "the-best-of-three-is-taken", "--kind", "contract", "--timeout", "0.01")
    assert (ended.returncode, ended.stdout.splitlines()[0][:9].strip()) == (2, UNKNOWN), ended.stderr


@needs_crosshair
def test_one_rule_is_selected() -> None:
    ended = execute("--only", "pack-2")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1].startswith("1 of 1 contracts confirmed, 1 of 1 wrong versions refuted")


@needs_crosshair
def test_a_name_that_nothing_has_is_refused() -> None:
    ended = execute("--only", "no-such-thing")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert 'nothing is called "no-such-thing"' in ended.stderr


def test_without_crosshair_the_command_says_so(tmp_path: Path) -> None:
    (tmp_path / "crosshair.py").write_text("raise ImportError\n", encoding="utf-8")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from vmmref.conformance.symbolic.__main__ import main\n"
        "sys.exit(main([]))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr == "CrossHair is not installed; `pip install 'vmmref[prove]'` brings it\n"


def test_everything_has_a_wrong_version() -> None:
    """A contract whose first asserts nothing fulfils is confirmed, too; a wrong version would not be refuted."""
    with_wrong = {wrong.subject.name for wrong in WRONGS}
    assert [contract.name for contract in CONTRACTS if contract.name not in with_wrong] == []
    assert [pair.name for pair in PAIRS if pair.name not in with_wrong] == []


def test_names_are_unique_and_rules_exist() -> None:
    names = [contract.name for contract in CONTRACTS] + [pair.name for pair in PAIRS] + [one.name for one in WRONGS]
    assert len(set(names)) == len(names)
    rules = [contract.rules for contract in CONTRACTS] + [pair.rules for pair in PAIRS]
    assert [some for some in rules if not some or not set(some) <= set(RULE_TITLES)] == []


@pytest.mark.parametrize(
    ("kind", "state", "status"),
    [
        ("contract", CONFIRMED, 0),
        ("contract", REFUTED, 1),
        ("contract", UNKNOWN, 2),
        ("pair", REFUTED, 1),
        ("wrong", REFUTED, 0),
        ("wrong", CONFIRMED, 1),
        ("wrong", UNKNOWN, 2),
    ],
)
def test_status(kind: str, state: str, status: int) -> None:
    good = Finding("contract", "good", ("RNG-1",), Answer(CONFIRMED, "", 1, 0.0))
    assert status_of([good, Finding(kind, "this", ("RNG-1",), Answer(state, "", 1, 0.0))]) == status
