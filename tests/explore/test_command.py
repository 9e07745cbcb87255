"""`vmmref explore`: what it searches, what it writes, and one sentence for what cannot be done."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vmmref.cli import main
from vmmref_models import clean_scopes, explore, protocols


def run(*arguments: str) -> int:
    """The exit status of the command."""
    with pytest.raises(SystemExit) as ended:
        main(("explore", *arguments))
    return int(ended.value.code or 0)


def searched(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit status and JSON report."""
    report = folder / "report.json"
    status = run(*arguments, "--json", str(report))
    return status, json.loads(report.read_text())


def test_right_protocol_in_a_small_scope(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scope = ("--slots", "1", "--units", "1", "--leases", "2", "--halves", "1", "--generations", "2")
    status, report = searched(tmp_path, *scope, "--consumers", "2", "--faults", "dup:2, revoke")
    assert status == 0
    assert set(report) >= {"tool", "device", "seed", "seconds", "states", "transitions", "depth"}
    assert report["protocol"] == "retire-validate-max"
    assert report["faults"] == {"dup": 2, "revoke": 1}
    assert report["scope"] == {"slots": 1, "units": 1, "consumers": 2, "leases": 2, "halves": 1, "generations": 2}
    assert (report["complete"], report["violations"]) == (True, [])
    assert "complete: no rule is broken in this scope" in capsys.readouterr().out


def test_known_wrong_protocol_is_searched_where_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, report = searched(tmp_path, "--protocol", "check-mid-copy")
    assert status == 1
    assert (report["scope"]["halves"], report["faults"], report["complete"]) == (2, {"revoke": 1}, False)
    (violation,) = report["violations"]
    assert set(violation) == {"rule", "length", "what", "trace"}
    assert (violation["rule"], violation["length"], len(violation["trace"])) == ("CON-1", 17, 17)
    shown = capsys.readouterr().out
    assert "CON-1 broken after 17 steps: a rank accepts bytes" in shown
    assert "  17  rank 0 lease 1: A[0] of slot 0 = 1" in shown


def test_to_the_end_finds_each_rule(tmp_path: Path) -> None:
    status, report = searched(tmp_path, "--protocol", "geq-plain", "--to-the-end")
    assert (status, report["complete"]) == (1, True)
    assert {found["rule"]: found["length"] for found in report["violations"]} == {"CON-1": 18, "ACK-2": 23, "LIV-1": 29}


def test_obligations_can_be_left_out(tmp_path: Path) -> None:
    status, report = searched(tmp_path, "--protocol", "geq-plain", "--faults", "", "--without", "own-ack-only")
    assert (status, report["faults"]) == (1, {"foreign": 1})
    assert report["violations"][0]["length"] == 13
    status, report = searched(tmp_path, "--protocol", "geq-plain", "--faults", "")
    assert (status, report["faults"], report["complete"]) == (0, {}, True)


def test_incomplete_is_no_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, report = searched(tmp_path, "--max-states", "100")
    assert (status, report["complete"], report["violations"]) == (2, False, [])
    assert "incomplete: no rule was broken so far, which proves nothing" in capsys.readouterr().out


def test_catalogue_compares_with_what_is_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = protocols.KNOWN_WRONG["geq-max"]
    monkeypatch.setattr(protocols, "KNOWN_WRONG", {"geq-max": known})
    monkeypatch.setattr(protocols, "RELYING", {})
    right = clean_scopes.Clean(protocols.RETIRE_VALIDATE_MAX, known.scope, (541, 1276, 36))
    monkeypatch.setattr(clean_scopes, "CLEAN", (right,))
    monkeypatch.setattr(clean_scopes, "NIGHT", (replace(right, counts=(1, 1, 1)),))
    status, report = searched(tmp_path, "--catalogue")
    assert status == 0
    assert [(search["protocol"], search["as_pinned"]) for search in report["searches"]] == [
        ("geq-max", True),
        ("retire-validate-max", True),
    ]
    status, report = searched(tmp_path, "--night")
    assert (status, report["searches"][-1]["as_pinned"]) == (1, False)
    assert searched(tmp_path, "--catalogue", "--max-seconds", "0")[0] == 2


def test_catalogue_ends_when_it_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(explore.Search, "_expand", interrupted)
    status, report = searched(tmp_path, "--catalogue")
    assert (status, len(report["searches"])) == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--protocol", "geq-plane"), 'there is no protocol "geq-plane"; there are geq-plain'),
        (("--faults", "oops"), 'there is no fault "oops"'),
        (("--faults", "revoke:many"), "how often is a whole number"),
        (("--without", "luck"), 'there is no obligation "luck"'),
        (("--slots", "0"), "slots = 0 is less than 1"),
        (("--consumers", "99999"), "consumers = 99999 is more than 64"),
        (("--consumers", "12", "--no-symmetry"), "at least 2,176,782,336 states (304 GiB), more than the 50,000,000"),
        (("--generations", "-1"), "generations = -1 is less than 0"),
        (("--protocol", "check-mid-copy", "--halves", "1"), "needs two halves"),
        (("--catalogue", "--slots", "1"), "their own protocols and scopes"),
        (("--json", "/nowhere/report.json"), "there is no folder"),
    ],
)
def test_what_cannot_be_done_is_said(
    arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert sentence in capsys.readouterr().err


def test_it_needs_no_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; sys.modules['cuda'] = None; from vmmref.cli import main; "
        "main(['explore', '--protocol', 'no-claim'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert "REC-5 broken after 20 steps" in done.stdout
