"""The command line: reports in every form, replays, and one clear sentence for everything that cannot be done."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from vmmref.cli import main
from vmmref_models import RULES

MODEL = "tests.machine.model_subject:make"
BAD = "tests.machine.bad_subjects"
SECONDS = ("--max-seconds", "2")


def run(*arguments: str) -> int:
    """The exit status of a command."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


def check(subject: str, folder: Path, *more: str) -> tuple[int, dict[str, Any]]:
    """Exit status and JSON report of a short check."""
    report = folder / "report.json"
    traces = ("--traces", str(folder / "traces"))
    status = run("check", "--subject", subject, *SECONDS, "--json", str(report), *traces, *more)
    return status, json.loads(report.read_text())


def test_report_of_a_right_pool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    junit = tmp_path / "report.xml"
    status, report = check(MODEL, tmp_path, "--rules", "RNG,ACK-2,PACK", "--seed", "3", "--junit", str(junit))
    assert status == 0
    assert set(report) >= {"tool", "device", "seed", "seconds", "summary", "rules"}
    assert set(report["tool"]) == {"name", "version"}
    assert set(report["device"]) == {"name", "simulated", "driver", "bindings", "torch"}
    assert report["device"]["simulated"] is True
    assert report["seed"] == 3
    assert report["summary"] == {"pass": 10, "fail": 0, "not-supported": 0, "waived": 0, "could-not-run": 0}
    assert set(report["rules"][0]) == {
        "id", "title", "level", "state", "exercised", "reason", "trace", "replay",
    }  # fmt: skip
    expected = [name for name in RULES if name.startswith(("RNG-", "PACK-")) or name == "ACK-2"]
    assert [row["id"] for row in report["rules"]] == expected
    assert all(row["exercised"] > 0 for row in report["rules"] if row["state"] == "pass")
    suite = ElementTree.parse(junit).getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("10", "0", "0")
    assert not (tmp_path / "traces").exists()
    assert "10 pass" in capsys.readouterr().out


def test_broken_pool_is_reported_and_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    junit = tmp_path / "report.xml"
    status, report = check(f"{BAD}:no_merge", tmp_path, "--rules", "RNG-4", "--junit", str(junit))
    assert status == 1
    (row,) = report["rules"]
    assert (row["state"], row["trace"]) == ("fail", str(tmp_path / "traces" / "RNG-4.json"))
    assert row["replay"] == f"vmmref replay {row['trace']}"
    shown = capsys.readouterr().out
    for part in ("RNG-4 broken by operation 2", "before", "expected", "got", "sequence of 2 operations", row["replay"]):
        assert part in shown
    (failed,) = ElementTree.parse(junit).getroot().iter("failure")
    assert "RNG-4 broken by operation 2" in (failed.text or "")

    assert run("replay", row["trace"], "--json", str(tmp_path / "replay.json")) == 1
    replayed = json.loads((tmp_path / "replay.json").read_text())
    assert (replayed["events"], replayed["accepted"], replayed["first_rejected"]) == (2, False, 2)
    assert [rule["id"] for rule in replayed["rules"]] == ["RNG-4"]
    assert run("replay", row["trace"], "--subject", MODEL) == 0
    assert "no rule is broken" in capsys.readouterr().out


def test_broken_whole_run_rule_is_replayed(tmp_path: Path) -> None:
    status, report = check(f"{BAD}:leaking", tmp_path, "--rules", "HND-1")
    assert status == 1
    assert run("replay", report["rules"][0]["trace"]) == 1


def test_rule_that_was_never_exercised_is_no_pass(tmp_path: Path) -> None:
    status, report = check(f"{BAD}:worst_fit", tmp_path, "--rules", "CTL-5,RNG-1", "--max-seconds", "0.001")
    assert status == 2
    rows = {row["id"]: row for row in report["rules"]}
    assert (rows["CTL-5"]["state"], rows["CTL-5"]["exercised"]) == ("could-not-run", 0)


def test_well_behaved_client(tmp_path: Path) -> None:
    status, report = check(MODEL, tmp_path, "--client", "well-behaved", "--rules", "RNG-1,CON-1,LIV-1")
    assert status == 0
    assert report["client"] == "well-behaved"


BAD_CHECKS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("--device", "gpu"), 'device "gpu" is none of "sim", "sim:N" and "cuda:N"'),
    (("--device", "cuda:"), 'device "cuda:" is none of'),
    (("--device", "cuda:-1"), 'device "cuda:-1" is none of'),
    (("--profile", "slow"), '--profile "slow" is none of quick, full, night'),
    (("--client", "rude"), '--client "rude" is none of any, well-behaved'),
    (("--rules", "GNE"), '--rules: "GNE" is neither a rule nor a family of rules'),
    (("--rules", ","), '--rules: "," names no rule'),
    (("--seed", "-1"), '--seed "-1" is no whole number from 0 on'),
    (("--seed", "one"), '--seed "one" is no whole number from 0 on'),
    (("--max-seconds", "soon"), '--max-seconds "soon" is no positive number of seconds'),
    (("--max-seconds", "0"), '--max-seconds "0" is no positive number of seconds'),
    (("--max-seconds", "nan"), '--max-seconds "nan" is no positive number of seconds'),
    (("--json", "no/such/folder/r.json"), 'there is no folder "no/such/folder"'),
    (("--junit", "."), '--junit "." is a folder, not a file'),
    (("--traces", "pyproject.toml"), '--traces "pyproject.toml" is a file, not a folder'),
    (("--traces", "no/such/folder"), 'there is no folder "no/such"'),
)


@pytest.mark.parametrize(("arguments", "sentence"), BAD_CHECKS)
def test_bad_option_is_one_sentence(
    arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("check", "--subject", MODEL, *arguments) == 2
    _one_sentence(capsys.readouterr().err, sentence)


BAD_SUBJECTS: tuple[tuple[str, str], ...] = (
    ("no.such.module:make", 'there is no module "no"'),
    ("tests.machine.no_such:make", 'there is no module "tests.machine.no_such"'),
    (f"{BAD}:absent", 'has no attribute "absent"'),
    (f"{BAD}:NUMBER", '"NUMBER" is an object of type int, which cannot be called'),
    (f"{BAD}:raising", "its factory raised RuntimeError: no pool on sim today"),
    (f"{BAD}:undescribed", "its factory made an object of type object, which has no method describe()"),
    (f"{BAD}:misdescribed", 'declares capability "telepathy"'),
    ("unregistered", 'is neither "module:factory" nor a name in the group vmmref.subjects'),
    (":make", 'is not of the form "package.module:factory"'),
)


@pytest.mark.parametrize(("subject", "sentence"), BAD_SUBJECTS)
def test_bad_subject_is_one_sentence(
    subject: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from vmmref.conformance.loading import Unusable, load_subject

    with pytest.raises(Unusable) as refused:
        load_subject(subject, "sim")
    assert sentence in str(refused.value)


def test_bad_subject_ends_a_check_with_its_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", "--subject", f"{BAD}:absent", "--traces", str(tmp_path / "t")) == 2
    _one_sentence(capsys.readouterr().err, 'has no attribute "absent"')


BAD_TRACES: tuple[tuple[str, str], ...] = (
    ("", "not JSON"),
    ("[1, 2", "not JSON"),
    ("[]", "expected an object"),
    ('{"format": "other", "version": 1}', "format is 'other'"),
    ('{"format": "vmmref-trace", "version": 2, "shape": {}, "operations": []}', "version is 2"),
    (
        '{"format": "vmmref-trace", "version": 1, "shape": {"slots": 1, "consumers": 1, "data_size": 256}, '
        '"operations": [{"do": "Explode"}]}',
        "unknown operation 'Explode'",
    ),
    (
        '{"format": "vmmref-trace", "version": 1, "shape": {"slots": 1, "consumers": 1, "data_size": 256}, '
        '"operations": [], "about": {"device": "tpu"}}',
        'device "tpu" is none of',
    ),
)


@pytest.mark.parametrize(("content", "sentence"), BAD_TRACES)
def test_bad_trace_is_one_sentence(
    content: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace.json"
    file.write_text(content)
    assert run("replay", str(file)) == 2
    _one_sentence(capsys.readouterr().err, sentence)


def test_missing_and_binary_traces_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("replay", str(tmp_path / "absent.json")) == 2
    _one_sentence(capsys.readouterr().err, "cannot be read: No such file or directory")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert run("replay", str(tmp_path / "binary")) == 2
    _one_sentence(capsys.readouterr().err, "it is not UTF-8 text")


def _one_sentence(printed: str, sentence: str) -> None:
    assert sentence in printed
    assert printed.startswith("vmmref: ")
    assert printed.count("\n") == 1
    assert "Traceback" not in printed


def test_explain_names_sentence_and_specification(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "explained.json"
    assert run("explain", "gen-1", "--json", str(report)) == 0
    shown = capsys.readouterr().out
    assert "GEN-1" in shown
    assert "Why:" in shown
    (rule,) = json.loads(report.read_text())["rules"]
    assert (rule["id"], rule["level"]) == ("GEN-1", "A")
    assert rule["sentence"]


def test_explain_takes_families_and_messages(tmp_path: Path) -> None:
    report = tmp_path / "explained.json"
    assert run("explain", "RNG", "--json", str(report)) == 0
    assert [rule["id"] for rule in json.loads(report.read_text())["rules"]] == [f"RNG-{n}" for n in range(1, 6)]
    assert run("explain", "CUDA VMM pool slot generation exhausted [GEN-3]", "--json", str(report)) == 0
    assert [rule["id"] for rule in json.loads(report.read_text())["rules"]] == ["GEN-3"]


@pytest.mark.parametrize(
    ("message", "rule"),
    [
        ("RuntimeError: GPU pool slot generation exhausted", "GEN-3"),
        ("generation exhausted", "GEN-3"),
        ("Cannot release inactive CUDA VMM pool lease (slot=3, generation=9)", "REC-6"),
        ("ValueError: mapping [0, 4096) is outside reservation [0, 2097152)", "HND-3"),
        ("CUDA VMM POSIX FD broker returned no file descriptor", "BRK-3"),
        ("CUDA VMM tensor has already released its pool slice", "CON-3"),
    ],
)
def test_explain_finds_the_rule_of_a_message_without_its_identifier(message: str, rule: str, tmp_path: Path) -> None:
    report = tmp_path / "explained.json"
    assert run("explain", message, "--json", str(report)) == 0
    assert [entry["id"] for entry in json.loads(report.read_text())["rules"]] == [rule]


def test_explain_of_an_unknown_rule_offers_near_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "GEM-1") == 2
    _one_sentence(capsys.readouterr().err, "GEN-1")


def test_every_rule_is_specified() -> None:
    from vmmref.cli.explain import specified

    assert [name for name in RULES if not specified(name)] == []


def test_doctor_says_what_is_there_and_why_not_more(tmp_path: Path) -> None:
    report = tmp_path / "doctor.json"
    assert run("doctor", "--json", str(report)) == 0
    document = json.loads(report.read_text())
    rows = {row["name"]: row for row in document["capabilities"]}
    assert {"Python", "torch", "cuda-bindings", "C compiler", "simulated driver", "real driver"} <= set(rows)
    assert all(set(row) == {"name", "available", "why"} and row["why"] for row in rows.values())
    assert rows["Python"]["available"]


@pytest.mark.parametrize("arguments", [("--help",), ("explain", "GEN-1"), ("--version",)])
def test_command_line_starts_without_torch_and_driver(arguments: tuple[str, ...]) -> None:
    program = (
        "import sys\n"
        "from vmmref.cli import main\n"
        "try:\n"
        f"    main({list(arguments)!r})\n"
        "finally:\n"
        "    heavy = [name for name in sys.modules if name in ('torch', 'cuda.bindings.driver', 'hypothesis')]\n"
        "    assert not heavy, heavy\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": ":".join(path or "." for path in sys.path), "PATH": "/usr/bin:/bin"},
    )
    assert ended.returncode == 0, ended.stderr


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    shown = capsys.readouterr().out
    for name in ("check", "replay", "explain", "doctor"):
        assert name in shown


def test_unknown_command_and_option_are_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("chekc") == 2
    assert "chekc" in capsys.readouterr().err
    assert run("check", "--sed", "1") == 2
    assert "--sed" in capsys.readouterr().err
