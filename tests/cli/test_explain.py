"""`vmmref explain`: from whatever an operator has in hand to what it means and what to do; the page that it reads."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from vmmref.cli import _messages, main
from vmmref.cli._messages import FILE, Message, MessagesError, found_in, messages, nearest, parse
from vmmref_models.reasons import Reason

TRACEBACK = """\
Traceback (most recent call last):
  File "engine/features.py", line 7, in publish
    pool.wrap_tensor(image)
  File "vmmref/book.py", line 91, in take
    # GEN-2: never wrap around.
    raise GenerationExhausted(Reason.GENERATION_EXHAUSTED, "GEN-3", message)
vmmref.errors.GenerationExhausted: CUDA VMM pool slot generation exhausted: all 1 slots have used generation 9 [GEN-3]

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "engine/features.py", line 12, in clean_up
    pool.cancel_lease(lease)
vmmref.errors.LeaseError: Cannot release inactive CUDA VMM pool lease (slot=0, generation=9) [CAN-2]
"""


def explained(folder: Path, asked: str) -> dict[str, Any]:
    """The JSON of `vmmref explain` for a question that it can answer."""
    file = folder / "explained.json"
    assert status("explain", asked, "--json", str(file)) == 0
    document: dict[str, Any] = json.loads(file.read_text())
    return document


def status(*arguments: str) -> int:
    """The exit status of a command."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


QUESTIONS: list[tuple[str, list[str], list[str]]] = [
    # A text with its values; without its rule; of a pool with another name.
    ("CUDA VMM multimodal pool is closing: it is closed [LIFE-2]", ["POOL_CLOSING"], ["LIFE-2"]),
    ("mapping [0, 4096) is outside reservation [0, 2097152)", ["OUTSIDE_RESERVATION"], ["HND-3"]),
    ("ValueError: XPU IPC pool is too small after control metadata: pool=8, control=9", ["POOL_TOO_SMALL"], ["CTL-5"]),
    # The rule that was kept comes before the one that quotes the text.
    ("Cannot release inactive CUDA VMM pool lease (slot=3, generation=9) [CAN-2]", ["INACTIVE_LEASE"],
     ["CAN-2", "REC-6"]),
    # Broken over two lines, as a terminal does it.
    ("lease (slot=0, generation=1) was retired\n   before rank 0 had copied it: R is 3, not 2", ["STALE_LEASE"],
     ["CON-5"]),
    # Parts, with and without values; small letters.
    ("generation exhausted", ["GENERATION_EXHAUSTED"], ["GEN-3"]),
    ("lease (slot=3, generation=12) was retired", ["STALE_LEASE"], ["CON-5"]),
    ("single tensor", ["BAD_ARGUMENT"], ["TRN-3"]),
    # A whole traceback: every message in it, in its order, and no rule of a comment that it shows.
    (TRACEBACK, ["GENERATION_EXHAUSTED", "INACTIVE_LEASE"], ["GEN-3", "CAN-2", "REC-6"]),
    # A warning of which no entry speaks, by its rule.
    ("CUDA VMM pool: a slot has 9 generations left; restart it in time [GEN-6]", [], ["GEN-6"]),
    # Codes.
    ("POOL_TOO_SMALL", ["POOL_TOO_SMALL"], ["CTL-5"]),
    ("forked", ["FORKED"], ["HND-7"]),
    ("pool full", ["POOL_FULL"], ["RNG-5", "TRN-4"]),
    ("refused(Reason.NOT_RECONSTRUCTED)", ["NOT_RECONSTRUCTED"], ["PACK-3"]),
    # Rules.
    ("ctl-5", ["POOL_TOO_SMALL"], ["CTL-5"]),
    ("RNG-1", [], ["RNG-1"]),
    ("CTL-5 of specs/control-words.md", ["POOL_TOO_SMALL"], ["CTL-5"]),
    ("TRN", ["BAD_ARGUMENT", "BAD_ARGUMENT", "POOL_FULL", "BAD_ARGUMENT"], ["TRN-1", "TRN-2", "TRN-3", "TRN-4"]),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "reasons", "rules"), QUESTIONS, ids=[question[0][:30] for question in QUESTIONS])
def test_question_is_answered(asked: str, reasons: list[str], rules: list[str], tmp_path: Path) -> None:
    document = explained(tmp_path, asked)
    assert [message["reason"] for message in document["messages"]] == reasons
    assert [rule["id"] for rule in document["rules"]] == rules


def test_words_need_no_quotes_and_logs_come_through_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert status("explain", "CUDA", "VMM", "multimodal", "pool", "is", "closing") == 0
    assert "POOL_CLOSING" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n" + TRACEBACK.encode())))
    assert status("explain", "-") == 0
    shown = capsys.readouterr().out
    assert shown.index("GENERATION_EXHAUSTED") < shown.index("INACTIVE_LEASE")


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_answered(reason: Reason, tmp_path: Path) -> None:
    document = explained(tmp_path, reason)
    assert {message["reason"] for message in document["messages"]} == {reason}
    assert document["rules"]


def test_json_has_every_field_of_a_message(tmp_path: Path) -> None:
    (stale,) = explained(tmp_path, "STALE_LEASE")["messages"]
    entry = next(message for message in messages() if message.reason is Reason.STALE_LEASE)
    assert stale == {
        "text": "lease (slot={slot}, generation={generation}) was retired before rank {rank} had copied it",
        "word_for_word": False,
        "reason": "STALE_LEASE",
        "rules": ["CON-5", "GEN-4", "CAN-3", "CON-6"],
        "error": "StaleLease",
        "builtin": ["RuntimeError"],
        "meaning": entry.meaning,
        "usual_trigger": entry.trigger,
        "what_to_do": entry.remedy,
        "shortest_sequence": "wrap L1; deliver L1 as P1; cancel L1; fetch P1",
        "code": entry.code,
    }
    (full,) = explained(tmp_path, "POOL_FULL")["messages"]
    assert (full["error"], full["builtin"]) == (None, [])
    (late,) = explained(tmp_path, "TIMED_OUT")["messages"]
    assert late["shortest_sequence"] is None


def test_answer_is_shown_with_code_that_can_be_copied(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert status("explain", "consumer_rank 1 is no group of the lease") == 0
    shown = capsys.readouterr().out
    (message,) = found_in("consumer_rank 1 is no group of the lease")
    for part in (
        "BAD_RANK",
        "ArgumentError",
        "Meaning.",
        "Usual trigger.",
        "What to do.",
        "Shortest sequence.",
        "Why:",
    ):
        assert part in shown
    assert message.code in shown
    assert max(map(len, message.code.splitlines())) > 60


NEAR: list[tuple[str, str]] = [
    ("GEM-1", "GEN-1"),
    ("GENERATION_EXAUSTED", "GENERATION_EXHAUSTED"),
    ("all views were borrowed and never released", '"{count} borrowed view(s) of the pool have not been released"'),
    ("nothing like it", "families are CTL, RNG"),
    ("", "families are CTL, RNG"),
    ("word " * 100, "word word …"),
]


@pytest.mark.parametrize(("asked", "near"), NEAR)
def test_unknown_question_is_told_what_is_near(asked: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("explain", asked) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("vmmref: there is no rule, reason or message")
    assert printed.count("\n") == 1
    assert near in printed


def test_nearest_goes_by_rare_words() -> None:
    assert nearest("the pool broker said failed")[0].text == "CUDA VMM POSIX FD broker failed"
    assert nearest("xyzzy") == []


def test_long_text_is_searched_at_once() -> None:
    """Repeated beginnings of messages, as long as a command line may be: no search that grows with their square."""
    for begin in ("lease (slot=", "cu", "mapping [ ) is outside reservation ", "consumer_count "):
        assert found_in(begin * (120_000 // len(begin))) == ()


def test_damaged_specification_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / FILE).write_text("## Word for word\n### no quotes\n")
    monkeypatch.setattr(_messages, "folders", lambda: [tmp_path])
    messages.cache_clear()
    try:
        assert status("explain", "GEN-3") == 2
        assert "the installed specification is damaged: messages.md, line 2: " in capsys.readouterr().err
        (tmp_path / FILE).unlink()
        # Without the page there are still the rules.
        assert status("explain", "GEN-3") == 0
    finally:
        messages.cache_clear()


# --- the page ---------------------------------------------------------------------------------------------------------

PAGE = """\
# Messages
Anything, with

### "a heading that is for people"
in front of the sections.

## In our own words
Words for people.

### "the {thing} is … gone"
| Reason | Rules | Error | Built-in |
|---|---|---|---|
| POOL_FAILED | GEN-3, CON-5 | PoolFailed | RuntimeError |

**Meaning.** One line
and another.

**Usual trigger.** Some.

**What to do.** This.

**Shortest sequence.** In Python only.

```python
first = 1

second = 2
```
"""


def test_entry_is_read() -> None:
    (entry,) = parse(PAGE)
    assert entry == Message(
        text="the {thing} is … gone",
        fixed=False,
        reason=Reason.POOL_FAILED,
        rules=("GEN-3", "CON-5"),
        error="PoolFailed",
        builtin=("RuntimeError",),
        meaning="One line and another.",
        trigger="Some.",
        remedy="This.",
        sequence="",
        code="first = 1\n\nsecond = 2\n",
    )
    assert entry.end_in("but the big pool is for ever gone now") == len("but the big pool is for ever gone")
    assert entry.end_in("the pool is here") is None


DAMAGES: list[tuple[str, str, int, str]] = [
    ("## In our own words", "## In their words\n\n## Word for word\n\n## More words", 11, "the sections are"),
    ('"the {thing} is … gone"', "the {thing}", 10, "a heading is a text in double quotes"),
    ("| Built-in |", "| Base |", 11, "must stand here"),
    ("POOL_FAILED", "POOL_FELL", 13, "POOL_FELL is no reason code"),
    ("| RuntimeError |", "|", 13, "a row has four cells"),
    ("GEN-3, CON-5", "GEN-3, CON", 13, "'CON' is no rule"),
    ("PoolFailed", "none", 13, "what is not raised has no class"),
    ("**Usual trigger.** Some.\n\n", "", 18, '"**Usual trigger.** …" must stand here'),
    ("**What to do.** This.\n", "**What to do.** This.\n### Next\n", 21, "an entry ends with a block of code"),
    ("```python", "```", 24, '"```python" must stand here'),
    ("second = 2\n```\n", "second = 2\n", 27, "the file ends within an entry"),
]


@pytest.mark.parametrize(("whole", "damaged", "number", "sentence"), DAMAGES)
def test_damaged_page_names_the_line(whole: str, damaged: str, number: int, sentence: str) -> None:
    assert PAGE.count(whole) == 1
    with pytest.raises(MessagesError) as refusal:
        parse(PAGE.replace(whole, damaged))
    assert str(refusal.value).startswith(f"messages.md, line {number}: ")
    assert sentence in str(refusal.value)


def test_second_entry_of_a_text_is_refused() -> None:
    with pytest.raises(MessagesError, match="a second entry"):
        parse(PAGE + PAGE[PAGE.index('### "the') :])
