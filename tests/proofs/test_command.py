"""`vmmref prove`: exit status, report, and one sentence for what cannot be done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vmmref.cli import main
from vmmref_models.proofs.conditions import UNKNOWN, Prover


def prove(*arguments: str) -> int:
    """The exit status of `vmmref prove`."""
    with pytest.raises(SystemExit) as ended:
        main(("prove", *arguments))
    return int(ended.value.code or 0)


def report_of(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit status and JSON report."""
    file = folder / "report.json"
    status = prove(*arguments, "--json", str(file))
    return status, json.loads(file.read_text(encoding="utf-8"))


def test_report_of_a_family(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, report = report_of(tmp_path, "--only", "layout")
    assert status == 0
    assert set(report) >= {"tool", "device", "seed", "seconds", "solver", "summary", "conditions", "idle", "wrong"}
    assert set(report["tool"]) == {"name", "version"}
    assert report["device"]["name"] is None
    assert report["summary"] == {"proved": 8, "refuted": 0, "unknown": 0}
    assert set(report["conditions"][0]) == {
        "rule", "rules", "family", "action", "property", "state", "seconds", "counterexample",
    }  # fmt: skip
    assert {row["action"] for row in report["conditions"]} == {"start", "lay-out"}
    shown = capsys.readouterr().out
    for part in ("CTL-2", "Every control word has its own address", "layout lay-out", "8 conditions: 8 proved"):
        assert part in shown


def test_families_and_rules_are_selected_together(tmp_path: Path) -> None:
    status, report = report_of(tmp_path, "--only", "ranges, RNG-4")
    assert status == 0
    assert {(row["family"], row["rule"]) for row in report["conditions"]} == {("ranges", "RNG-4")}
    _, of_rule = report_of(tmp_path, "--only", "ctl-2")
    assert {row["rule"] for row in of_rule["conditions"]} == {"CTL-2"}


def test_wrong_action_is_shown_with_a_counterexample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, report = report_of(tmp_path, "--wrong", "off-by-one-split")
    assert status == 1
    (wrong,) = report["wrong"]
    assert (wrong["name"], wrong["rule"], wrong["replaces"]) == ("off-by-one-split", "RNG-1", "take-part")
    assert wrong["refuted"] is True
    refuted = [row for row in report["conditions"] if row["state"] == "refuted"]
    assert {row["property"] for row in refuted} == {"no-gap", "every-byte-has-a-range"}
    assert all("off-by-one-split(piece" in row["counterexample"] for row in refuted)
    shown = capsys.readouterr().out
    for part in ("RNG-1 refuted at ranges off-by-one-split: no-gap", "changes  ", "1 of 1 wrong actions refuted"):
        assert part in shown


def test_questions_are_written_for_other_solvers(tmp_path: Path) -> None:
    folder = tmp_path / "questions"
    assert prove("--only", "layout", "--smt2", str(folder)) == 0
    names = {file.name for file in folder.iterdir()}
    assert "layout.lay-out.words-are-aligned.smt2" in names
    assert all(file.read_text(encoding="utf-8").rstrip().endswith("(check-sat)") for file in folder.iterdir())


def test_what_the_solver_leaves_open_is_no_proof(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prover, "ask", lambda self, condition, sizes, at_most_seconds=0.0: (UNKNOWN, None))
    status, report = report_of(tmp_path, "--only", "layout")
    assert status == 2
    assert report["summary"] == {"proved": 0, "refuted": 0, "unknown": 8}
    assert "the solver did not decide it within its time limit" in capsys.readouterr().out


def test_an_action_that_cannot_happen_is_no_proof(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prover, "possible", lambda self, action: False)
    status, report = report_of(tmp_path, "--only", "layout")
    assert (status, report["idle"]) == (2, ["layout lay-out"])
    assert "layout lay-out can never happen" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--only", "rings"), '--only: "rings" is neither a family of proofs (layout, ranges,'),
        (("--only", ","), '--only "," names nothing'),
        (("--only", "ranges,BRK"), '--only "ranges,BRK" leaves no condition'),
        (("--wrong", "no-clam"), 'there is no wrong action "no-clam"; near matches: no-claim'),
        (("--wrong", ","), '--wrong: there is no wrong action ","'),
        (("--timeout", "soon"), '--timeout "soon" is no positive number of seconds'),
        (("--timeout", "0"), '--timeout "0" is no positive number of seconds'),
        (("--smt2", "no/such/folder"), '--smt2 "no/such/folder" cannot be made: No such file or directory'),
        (("--only", "layout", "--smt2", "pyproject.toml"), '--smt2 "pyproject.toml" cannot be made: File exists'),
        (("--json", "no/such/folder/r.json"), 'there is no folder "no/such/folder"'),
    ],
)
def test_bad_option_is_one_sentence(
    arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prove(*arguments) == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert printed.startswith("vmmref: ")
    assert printed.count("\n") == 1


def python(program: str) -> subprocess.CompletedProcess[str]:
    """A program run by a fresh interpreter, with this one's modules."""
    path = os.pathsep.join(part or "." for part in sys.path)
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PYTHONPATH": path, "PATH": os.environ["PATH"]},
    )


def test_a_missing_solver_is_one_sentence() -> None:
    program = "import sys; sys.modules['z3'] = None; from vmmref.cli import main; main(['prove'])"
    ended = python(program)
    assert ended.returncode == 2
    assert ended.stderr == "vmmref: the solver Z3 is not installed; `pip install 'vmmref[prove]'` brings it\n"


def test_proofs_need_neither_torch_nor_a_driver() -> None:
    program = (
        "import sys\n"
        "from vmmref.cli import main\n"
        "try:\n"
        "    main(['prove', '--only', 'layout'])\n"
        "finally:\n"
        "    heavy = [name for name in sys.modules if name.partition('.')[0] in ('torch', 'cuda', 'hypothesis')]\n"
        "    assert not heavy, heavy\n"
    )
    ended = python(program)
    assert ended.returncode == 0, ended.stderr
