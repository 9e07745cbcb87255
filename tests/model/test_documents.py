"""specs/conformance.md has every operation, observation, capability and experiment, and says the same of each."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from vmmref_models import EVERY_CAPABILITY, Observation, Shape
from vmmref_models.attempts import ATTEMPTS
from vmmref_models.operations import Outcome
from vmmref_models.trace import OPERATIONS

TEXT = (Path(__file__).resolve().parents[2] / "specs" / "conformance.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("|")]


def test_every_operation_has_a_row_that_names_its_fields() -> None:
    described = dict(re.findall(r"^`(\w+)\((.*)\)`$", "\n".join(row[0] for row in ROWS), flags=re.MULTILINE))
    assert set(described) == set(OPERATIONS)
    for name, given in described.items():
        named = [one.strip() for one in given.split(",") if one.strip()]
        if "…" not in named:
            assert named == [one.name for one in fields(OPERATIONS[name])], name


def test_every_experiment_has_a_row_with_its_rule_and_answer() -> None:
    rows = {row[0].strip('"'): row[1:] for row in ROWS if len(row) == 4 and row[0].startswith('"')}
    assert set(rows) == set(ATTEMPTS)
    for what, (rule, due, _) in ATTEMPTS.items():
        assert rows[what][0] == rule
        assert rows[what][2] == (due.reason or due.kind)


def test_every_observation_capability_answer_and_part_of_a_shape_is_named() -> None:
    first = {row[0].strip("`") for row in ROWS}
    assert {one.name for one in fields(Observation)} <= first
    assert first >= EVERY_CAPABILITY
    assert all(f"`{one.name}`" in TEXT for one in fields(Outcome) if one.name != "message")
    assert all(one.name in TEXT for one in fields(Shape))
