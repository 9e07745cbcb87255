"""The check of the checker: every pool broken on purpose is caught, by the rule that it breaks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from vmmref.cli import main
from vmmref.conformance.faulty import CATALOGUE, FaultyPool
from vmmref.conformance.faulty.hunt import Catch, Hunt, unproven
from vmmref.conformance.loading import load_subject
from vmmref_models import RULES

ROOT = Path(__file__).resolve().parent.parent.parent
SEARCH_SECONDS = 60.0
"""Nearly all are named within two, all within ten; the rest is for a machine that is busy."""
SHRINK_SECONDS = 0.5

WITHOUT_A_POOL: dict[str, str] = {}
"""Rules with a predicate that no pool in the catalogue breaks, and why."""

pytestmark = [
    pytest.mark.simulator,
    # Broken pools are dropped where they broke, and a hunt that interrupts one may do so in a collector's callback.
    pytest.mark.filterwarnings("ignore:.* pool was dropped without shutdown:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.parametrize(
    "pool", [pytest.param(pool, id=name, marks=pytest.mark.rule(pool.rule)) for name, pool in CATALOGUE.items()]
)
def test_a_broken_pool_is_caught_by_its_rule(pool: FaultyPool) -> None:
    catch = Hunt(pool).run(SEARCH_SECONDS, SHRINK_SECONDS)
    assert catch.named, f"{pool.name} breaks {pool.rule}, caught as {catch.others}; {catch.note}"


def test_the_unbroken_pool_is_not_caught() -> None:
    sound = FaultyPool("sound", "RNG-3", "Nothing is broken.", "", object)
    catch = Hunt(sound).run(seconds=2.0, shrink_seconds=0.0)
    assert (catch.named, catch.others, catch.note) == (False, (), "")


def test_the_catalogue_covers_every_rule_that_is_checked() -> None:
    checked = {name for name, rule in RULES.items() if rule.predicate or rule.run_predicate}
    assert checked - {pool.rule for pool in CATALOGUE.values()} == set(WITHOUT_A_POOL)


def test_every_pool_says_what_is_broken() -> None:
    protocols = (ROOT / "specs" / "protocols-that-fail.md").read_text(encoding="utf-8")
    for pool in CATALOGUE.values():
        assert pool.sentence.endswith("."), pool.name
        assert pool.rule in RULES, pool.name
        for name in filter(None, pool.seen.split(", ")):
            assert re.search(rf"^\| {name} \|", protocols, re.MULTILINE), f"{pool.name}: no protocol {name}"


def test_a_rule_is_unproven_until_a_pool_was_named() -> None:
    pool = CATALOGUE["worst-fit"]
    assert unproven(("RNG-3",), [Catch(pool, others=("RNG-4",))]) == ("RNG-3",)


def test_a_broken_pool_is_a_subject_by_name() -> None:
    subject = load_subject("vmmref.conformance.faulty:worst_fit", "sim")
    assert subject.describe().name == "reference pool, broken: worst-fit"


def test_the_command_reports_each_pool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "faults.json"
    with pytest.raises(SystemExit) as ended:
        main(["faults", "--only", "tells-the-most-left,ignores-the-nonce", "--json", str(report)])
    assert ended.value.code == 0
    document = json.loads(report.read_text(encoding="utf-8"))
    assert {"tool", "device", "seed", "seconds", "pools"} <= set(document)
    rows = [(row["name"], row["rule"], row["caught"], row["named"]) for row in document["pools"]]
    assert rows == [("tells-the-most-left", "GEN-6", True, True), ("ignores-the-nonce", "GEN-5", True, True)]
    assert all(row["steps"] > 0 and row["seconds"] > 0 for row in document["pools"])
    assert "2 of 2 pools named" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--only", "worst-fitt"], 'there is no broken pool "worst-fitt"; near matches: worst-fit'),
        (["--only", ","], '--only "," names no pool'),
        (["--seeds", "0"], "--seeds 0 is not a positive number"),
        (["--profile", "night"], '--profile "night" is none of quick, full'),
        (["--device", "gpu"], 'device "gpu" is none of'),
        (["--device", "sim:99", "--only", "worst-fit"], "--device sim:99: "),
        (["--json", "/nowhere/faults.json"], 'there is no folder "/nowhere"'),
    ],
)
def test_bad_usage_is_one_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["faults", *arguments])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.strip().splitlines()) == 1
