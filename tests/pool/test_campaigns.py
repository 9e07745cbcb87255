"""The campaigns themselves: what they report, and that a broker which is broken on purpose does not pass them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
from pathlib import Path

import pytest

from vmmref.broker import TOKEN_BYTES, DescriptorBroker
from vmmref.conformance.campaigns import broker as campaign
from vmmref.conformance.campaigns import fuzz
from vmmref.conformance.campaigns.hostile import KINDS


class KeepsDescriptors(DescriptorBroker):
    """Faulty on purpose: forgets a descriptor at every client."""

    def _hang_up(self, client: socket.socket) -> None:
        os.dup(self._descriptor)
        super()._hang_up(client)


class KeepsThreads(DescriptorBroker):
    """Faulty on purpose: a thread for every client, which never ends."""

    def _hang_up(self, client: socket.socket) -> None:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        super()._hang_up(client)


class AsksForNoToken(DescriptorBroker):
    """Faulty on purpose: serves everybody who says anything."""

    def _answer(self, client: socket.socket) -> bool:
        try:
            self._token = client.recv(32, socket.MSG_PEEK)
        except OSError:
            return super()._answer(client)
        return super()._answer(client)


class DiesOfLongTokens(DescriptorBroker):
    """Faulty on purpose: does not foresee that somebody says too much."""

    def _answer(self, client: socket.socket) -> bool:
        with contextlib.suppress(BlockingIOError):
            assert len(client.recv(100, socket.MSG_PEEK)) <= TOKEN_BYTES
        return super()._answer(client)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (KeepsDescriptors, "descriptors at a time"),
        (KeepsThreads, " before and "),
        (AsksForNoToken, "Served: "),
    ],
)
def test_a_broken_broker_is_found(
    monkeypatch: pytest.MonkeyPatch, broken: type[DescriptorBroker], problem: str
) -> None:
    monkeypatch.setattr(campaign, "SETTLE_SECONDS", 1.0)
    result = campaign.run(200, 8, 1, broken)
    assert any(problem in each for each in result.problems), result.problems


def test_a_broker_that_dies_is_found() -> None:
    with pytest.raises(EOFError):
        campaign.run(200, 8, 1, DiesOfLongTokens)


def test_the_campaign_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    assert campaign.main(["--hostile", "40", "--honest", "4", "--seed", "3", "--json", str(file)]) == 0
    said = capsys.readouterr().out
    assert "seed 3: 40 hostile clients" in said
    assert "4 honest ones served" in said
    report = json.loads(file.read_text(encoding="utf-8"))
    assert (report["seed"], report["honest"], report["problems"]) == (3, 4, [])
    assert sum(report["hostile"].values()) == 40
    assert set(report["hostile"]) <= {kind.__name__ for kind in KINDS}


def test_the_same_seed_draws_the_same_clients() -> None:
    first, second = (campaign.run(60, 0, 5).hostile for _ in range(2))
    assert first == second


def test_without_atheris_fuzzing_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "atheris", None)
    assert fuzz.main(["wire"]) == 2
    assert "atheris is not installed" in capsys.readouterr().err
