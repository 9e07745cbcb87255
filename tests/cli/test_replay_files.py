"""What `vmmref replay` makes of files that are no good traces, and where reports may be written."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_commands import run
from vmmref.conformance import payloads
from vmmref_models import Shape
from vmmref_models.operations import Cancel, Fetch, Payload, Wrap
from vmmref_models.trace import Trace, to_json

SHAPE = Shape(slots=1, consumers=1, data_size=256)
PAYLOAD = Payload("uint8", (8,), 3)


def trace(*operations: Any) -> str:
    return to_json(Trace(SHAPE, operations, rules=(), about={}))


def good() -> Wrap:
    return Wrap(1, PAYLOAD, payloads.nbytes(PAYLOAD), payloads.expected_digest(PAYLOAD))


ALTERED: list[tuple[str, Callable[[dict[str, Any]], object]]] = [
    ("dtype", lambda wrap: wrap["payload"].update(dtype="float7")),
    ("layout", lambda wrap: wrap["payload"].update(layout="spiral")),
    ("bytes for a", lambda wrap: wrap.update(nbytes=77)),
    ("bytes for a", lambda wrap: (wrap["payload"].update(shape=[2**40]), wrap.update(nbytes=2**40))),
    ("digest", lambda wrap: wrap.update(digest=1)),
]


@pytest.mark.parametrize(("part", "change"), ALTERED)
def test_a_payload_that_nobody_could_publish_is_no_fault_of_the_pool(
    part: str, change: Callable[[dict[str, Any]], object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(trace(good()))
    change(document["operations"][0])
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(document))
    assert run("replay", str(file)) == 2
    assert part in capsys.readouterr().err


def test_operations_that_mean_nothing_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.json"
    file.write_text(trace(good(), Fetch(999, 1000), Cancel(1, True)))
    assert run("replay", str(file)) == 0
    shown = capsys.readouterr().out
    assert "no rule is broken by 2 operations" in shown
    assert "1 more could not be asked for: operation 2" in shown
    file.write_text(trace(Fetch(999, 1000)))
    assert run("replay", str(file)) == 2


def test_a_report_is_written_through_what_is_no_regular_file(tmp_path: Path) -> None:
    """A pipe stays a pipe, and a link stays a link."""
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target.json"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    assert run("explain", "GEN-1", "--json", str(pipe)) == 0
    reader.join(30)
    target.write_text("")
    link.symlink_to(target)
    assert run("explain", "GEN-1", "--json", str(link)) == 0
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert json.loads(got[0])["rules"][0]["id"] == json.loads(target.read_text())["rules"][0]["id"] == "GEN-1"
