"""Every message of specs/messages.md: quoted by its rule, reached by its code, and by no shorter sequence."""

from __future__ import annotations

import ast
import builtins
import functools
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vmmref import errors, simcuda
from vmmref.cli._messages import Message, found_in, messages
from vmmref.cli._specs import specified
from vmmref.conformance.subjects.reference import make
from vmmref.driver import calls, streams
from vmmref.imports import close_imports
from vmmref.pool import VmmMemoryPool
from vmmref.proxy import TensorProxy
from vmmref.simcuda import Simulator
from vmmref_models import RULES
from vmmref_models.operations import Attempt, Borrow, Faulty, Outcome, Return
from vmmref_models.reasons import Reason
from vmmref_models.shortest import ENDINGS, Ending, MoveSequence, line, shortest

ROOT = Path(__file__).resolve().parents[2]
QUOTED_IN_PART = {
    "single tensor": "{transport} feature transport requires each feature field to contain a single tensor",
}
"""Of these messages a rule quotes a part only."""
NO_MESSAGES = {"pool full"}
"""Quoted in a rule's sentence, and an answer rather than an error's text."""
OF_THEIR_OWN = ("os.fork", "resource.setrlimit", "subprocess.run")
"""A program with one of these runs in a process of its own."""
CHILD_SECONDS = 60.0
MOST_CALLS = 100
"""Driver calls of one operation, more than any has."""


def quoted() -> dict[str, str]:
    """Every message that a rule's sentence quotes, and that rule."""
    found = {}
    for rule in RULES:
        sentence = " ".join(specified(rule).partition("\n\n")[0].split())
        found.update({text: rule for text in re.findall(r'"([^"]+)"', sentence) if text not in NO_MESSAGES})
    return found


def test_messages_are_those_that_the_rules_quote() -> None:
    due = {QUOTED_IN_PART.get(text, text): rule for text, rule in quoted().items()}
    assert {message.text: message.rules[0] for message in messages() if message.fixed} == due


def test_every_reason_has_a_message() -> None:
    assert {message.reason for message in messages()} == set(Reason)


@pytest.mark.parametrize("message", messages(), ids=lambda message: message.text[:40])
def test_message_names_rules_and_classes_that_exist(message: Message) -> None:
    assert set(message.rules) <= set(RULES)
    if message.error:
        kind = getattr(errors, message.error)
        bases = {base.__name__ for base in kind.__mro__ if base.__module__ == builtins.__name__}
        assert set(message.builtin) == bases - {"Exception", "BaseException", "OSError", "object"}


@functools.cache
def said() -> dict[str, set[Reason]]:
    """The reasons that each rule's text gives after "Refused with", "Failed with" or "Answered with"."""
    found = {}
    for rule in RULES:
        paragraphs = [part for part in specified(rule).split("\n\n") if re.search(r"\b\w+ed with:", part)]
        found[rule] = {reason for reason in Reason if re.search(rf"\b{reason}\b", " ".join(paragraphs))}
    return found


def test_rules_say_with_which_reasons_they_refuse() -> None:
    pairs = {(rule, message.reason) for message in messages() for rule in message.rules}
    assert sorted(pair for pair in pairs | set(raised()) if pair[1] not in said()[pair[0]]) == []


def raised() -> Iterator[tuple[str, Reason]]:
    """Every rule and reason that the pool's own files raise an error with, side by side in one call."""
    for file in [*(ROOT / "vmmref").glob("*.py"), *(ROOT / "vmmref" / "driver").glob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(args=[ast.Attribute(value=ast.Name("Reason"), attr=name), ast.Constant(str(rule)), *_]):
                    yield rule, Reason[name]


@pytest.fixture
def running() -> Iterator[Simulator]:
    """The simulated driver as an operator has it: queued work runs by itself. Nothing is left behind."""
    loaded = simcuda.load()
    loaded.reset()
    loaded.set_mode("threads")
    yield loaded
    assert loaded.usage().is_empty, f"left behind: {loaded.usage()}"
    loaded.reset()


def ended_by(code: str, simulator: Simulator) -> BaseException | None:
    """What a program of the page ends with, here; afterwards its views, imports and pools are ended."""
    names: dict[str, Any] = {}
    try:
        exec(compile(code, "messages.md", "exec"), names)  # It is the page that is tested.
    except Exception as error:
        return error
    finally:
        simulator.clear_faults()
        with streams.progress(calls.synchronize_event):
            for proxy in [value for value in names.values() if isinstance(value, TensorProxy)]:
                proxy.release_borrowed()
            close_imports()
            for pool in [value for value in names.values() if isinstance(value, VmmMemoryPool)]:
                pool.shutdown()
    return None


def printed_by(code: str) -> str:
    """What a program prints of an error, in a process of its own."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "models")])
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=CHILD_SECONDS,
        check=False,
    )
    return ended.stderr


def begins(message: Message, text: str) -> bool:
    """Whether a text begins word for word as the page says."""
    literals = re.split(r"…|\{[a-z]+\}", message.text)
    return re.match(".+".join(map(re.escape, literals)), text) is not None


def check_text(message: Message, text: str) -> None:
    """The text begins as the page says, ends with its rule, and is found again."""
    assert begins(message, text), text
    assert text.endswith(f"[{message.rules[0]}]")
    assert found_in(text)[0] == message


@pytest.mark.rule("ERR-2")
@pytest.mark.parametrize(
    "message", [message for message in messages() if message.error], ids=lambda message: message.text[:40]
)
def test_err_2_messages_are_reached_by_their_code(message: Message, running: Simulator) -> None:
    """
    Operators match on the start of a text, programs on its reason; both are what the page of messages says.

    Given: a message and the program below it.
    When: the program is run on the simulated driver.
    Then: it ends with an error of that class, reason, rule and text, and the text leads back to the message.
    """
    if any(call in message.code for call in OF_THEIR_OWN):
        printed = printed_by(message.code)
        *_, last = re.findall(rf"^vmmref\.errors\.{message.error}: (.+)$", printed, re.MULTILINE)
        check_text(message, last)
        return
    error = ended_by(message.code, running)
    assert isinstance(error, errors.VmmRefError)
    assert (type(error).__name__, error.reason, error.rule) == (message.error, message.reason, message.rules[0])
    check_text(message, str(error))
    assert message in found_in("".join(traceback.format_exception(error)))


@pytest.mark.rule("ERR-2")
@pytest.mark.parametrize(
    "message", [message for message in messages() if not message.error], ids=lambda message: message.text[:40]
)
def test_err_2_warnings_are_reached_by_their_code(
    message: Message, running: Simulator, caplog: pytest.LogCaptureFixture
) -> None:
    """
    What is an answer and no error is told in the log.

    Given: a message that is logged, and the program below it.
    When: the program is run.
    Then: it ends well, and the log has the text.
    """
    with caplog.at_level("WARNING"):
        assert ended_by(message.code, running) is None
    (record,) = caplog.records
    check_text(message, record.getMessage())


@functools.cache
def sequences() -> dict[str, tuple[Ending, MoveSequence]]:
    """Every ending of the model with its shortest sequence, by the line that says it."""
    found = {}
    for ending in ENDINGS:
        sequence = shortest(ending)
        assert sequence is not None, ending
        found[line(ending, sequence)] = ending, sequence
    return found


def test_sequences_are_the_shortest_of_the_model() -> None:
    told = {message.sequence: message.reason for message in messages() if message.sequence}
    assert told == {text: ending.reason for text, (ending, _) in sequences().items()}


@pytest.mark.parametrize(
    "message", [message for message in messages() if message.sequence], ids=lambda message: message.text[:40]
)
def test_sequences_end_so_on_the_reference_pool(message: Message) -> None:
    ending, sequence = sequences()[message.sequence]
    disturbed = any(move.answer is not None for move in sequence)
    for call in range(1, MOST_CALLS if disturbed else 2):
        outcome = played(ending, sequence, call)
        if outcome is not None:
            break
    assert outcome is not None
    assert (outcome.kind, outcome.reason) == (ending.kind, ending.reason)
    # What is full is answered without a text, and an experiment may put several errors into one.
    if outcome.message and not isinstance(sequence[-1].operation, Attempt):
        assert begins(message, outcome.message)


def played(ending: Ending, sequence: MoveSequence, call: int) -> Outcome | None:
    """The last answer of the reference pool; None when an answer that was asked for did not come."""
    session = make("sim").open(ending.shape)
    try:
        for move in sequence:
            operation = move.operation
            outcome = session.apply(replace(operation, call=call) if isinstance(operation, Faulty) else operation)
            if move.answer is not None and (outcome.kind, outcome.reason) != (move.answer.kind, move.answer.reason):
                return None
        return outcome
    finally:
        for view in [move.operation.view for move in sequence if isinstance(move.operation, Borrow)]:
            session.apply(Return(view))
        session.close()
