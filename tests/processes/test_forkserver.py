"""Processes from the fork server: they start, answer, die and are noticed."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from vmmref.conformance import processes
from vmmref.conformance.processes import Link, Process, ProcessGone

HERE = "tests.processes.test_forkserver:"


def echo(link: Link, greeting: str) -> None:
    """Greet, then send everything back."""
    link.send(greeting)
    while True:
        link.send(link.receive(seconds=None))


def describe(link: Link) -> None:
    """Tell what a process is born with."""
    files = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd") if int(name) > 2]
    with open("/proc/self/maps", encoding="utf-8") as maps:
        driver = any("libcuda" in line for line in maps)
    # The listing's own file is closed by now.
    link.send({"files": [os.readlink(file) for file in files if os.path.lexists(file)], "driver": driver})


def fail(link: Link) -> None:
    """Break down without an answer."""
    raise RuntimeError("on purpose")


def stay_silent(link: Link) -> None:
    """Never answer."""
    signal.pause()


def test_messages_come_back_as_they_were_sent() -> None:
    messages: list[Any] = [None, 2**64, "text é", [1, [2, {"three": False}]], "x" * 100_000]
    with Process(HERE + "echo", "hello") as process:
        assert process.link.receive() == "hello"
        assert [process.ask(message) for message in messages] == messages
        with pytest.raises(ValueError, match="at most"):
            process.link.send("x" * 200_000)
        assert process.alive
    assert process.status == -signal.SIGKILL


def test_a_process_ends_when_its_parent_hangs_up() -> None:
    process = Process(HERE + "echo", "hello")
    assert process.end() == 0


def test_a_process_is_born_with_nothing_of_its_siblings_and_no_driver() -> None:
    with Process(HERE + "echo", ""), Process(HERE + "describe") as process:
        born = process.link.receive()
    assert born["driver"] is False
    assert len(born["files"]) == 1, born
    assert born["files"][0].startswith("socket:")


def test_a_process_that_dies_is_noticed_at_once() -> None:
    with Process(HERE + "echo", "") as process:
        process.link.receive()
        os.kill(process.process_id, signal.SIGKILL)
        with pytest.raises(ProcessGone):
            process.ask("anybody there?")
        assert not process.alive
        assert process.wait() == -signal.SIGKILL
        # Nothing lingers on: its number is free again.
        with pytest.raises(ProcessLookupError):
            os.kill(process.process_id, 0)


def test_a_process_that_breaks_down_ends_with_status_one() -> None:
    with Process(HERE + "fail") as process:
        with pytest.raises(ProcessGone):
            process.link.receive()
        assert process.wait() == 1


@pytest.mark.rule("LIFE-5")
def test_life_5_a_process_that_does_not_answer_is_not_waited_for() -> None:
    """
    A silent process costs its deadline, not more; and it is killed, so that a late answer confuses nobody.

    Given: a process that never answers.
    When: it is asked, with a deadline.
    Then: TimeoutError, and the process is gone.
    """
    with Process(HERE + "stay_silent") as process:
        with pytest.raises(TimeoutError):
            process.ask("anybody there?", seconds=0.05)
        assert process.status == -signal.SIGKILL


def test_a_server_that_dies_takes_its_processes_along_and_is_replaced() -> None:
    with Process(HERE + "echo", "first") as orphan:
        assert orphan.link.receive() == "first"
        os.kill(orphan._forked.server_id, signal.SIGKILL)
        assert orphan.wait() == -signal.SIGKILL
    with Process(HERE + "echo", "second") as process:
        assert process.link.receive() == "second"
        assert process._forked.server_id != orphan._forked.server_id


def test_a_question_that_is_interrupted_confuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """An alarm, as the hunt for broken pools sets one, may strike between a question and its answer."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with Process(HERE + "echo", "first") as process:
        monkeypatch.setattr(process.link, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            process.ask("anybody there?")
        monkeypatch.undo()
        assert process.status == -signal.SIGKILL
    monkeypatch.setattr(processes, "receive_with_descriptors", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Process(HERE + "echo", "second")
    monkeypatch.undo()
    with Process(HERE + "echo", "third") as process:
        assert (process.link.receive(), process.ask(1)) == ("third", 1)


def test_the_parent_keeps_no_file_of_a_process_that_is_gone() -> None:
    Process(HERE + "echo", "").kill()
    before = os.listdir("/proc/self/fd")
    for _ in range(5):
        Process(HERE + "echo", "").kill()
    assert len(os.listdir("/proc/self/fd")) == len(before)
