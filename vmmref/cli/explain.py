"""`vmmref explain`: what a message means and what to do about it, and the rule behind it in full."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from vmmref.cli import UsageError
from vmmref.cli._specs import specified as specified

if TYPE_CHECKING:
    from rich.console import Console

    from vmmref.cli._messages import Message

IDENTIFIER = re.compile(r"\b[A-Z]+-[0-9]+\b")
SUFFIX = re.compile(r"\[([A-Z]+-[0-9]+)\]")
"""How a message ends: the rule that was kept."""
JUDGED = {
    "always": "judged in every state",
    "step": "judged at every operation that it speaks of",
    "reachable": "some run must reach it",
    "whole-run": "judged at the end of a run",
}
LONGEST_LOG_BYTES = 4 << 20
"""So much of a log is searched in some seconds."""
MOST_SHOWN_CHARACTERS = 80
"""Of what was asked for, in the sentence that says that it is not known."""


class Answer(NamedTuple):
    """What a question is about."""

    messages: tuple[Message, ...]
    rules: tuple[str, ...]


def command(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="WHAT",
            help='An error message, whole or in part; a rule, for example GEN-1; a family; a reason; "-" reads a log '
            "from the standard input.",
        ),
    ],
    json_file: Annotated[Path | None, typer.Option("--json", help="Write messages and rules as JSON.")] = None,
) -> None:
    """Say what a message means, its usual trigger and what to do; what a rule demands, why, and how it is checked."""
    from rich.console import Console

    from vmmref.cli._messages import MessagesError
    from vmmref.cli._output import check_writable, header, write_json

    check_writable(json_file, "--json")
    try:
        answer = answer_to(_log() if words == ["-"] else " ".join(words))
    except MessagesError as error:
        raise UsageError(f"the installed specification is damaged: {error}") from None
    console = Console()
    for message in answer.messages:
        _show_message(console, message)
    for identifier in answer.rules:
        _show_rule(console, identifier)
    document = {**header(), "seed": None, "seconds": 0.0}
    document["messages"] = [_message_record(message) for message in answer.messages]
    document["rules"] = [_rule_record(identifier) for identifier in answer.rules]
    write_json(json_file, document)


def _log() -> str:
    """What comes through a pipe, as far as it is searched."""
    if sys.stdin is None:
        raise UsageError("- reads standard input, which is closed")
    return sys.stdin.buffer.read(LONGEST_LOG_BYTES).decode(errors="replace")


# --- finding ----------------------------------------------------------------------------------------------------------


def answer_to(asked: str) -> Answer:
    """The messages and rules that a rule, family, reason code or text is about.

    Raises UsageError, with the nearest that there are, for anything else.
    """
    from vmmref.cli._messages import found_in
    from vmmref_models import RULES
    from vmmref_models.reasons import Reason

    name = asked.strip().upper()
    named = tuple(identifier for identifier in RULES if name in (identifier, _family(identifier)))
    if named:
        return Answer(_messages_of(named), named)
    if name in Reason.__members__:
        return _of_reasons([Reason[name]])
    # What a message is about is said at its end; other rules in a traceback are comments of the lines that it shows.
    suffixes = _known(SUFFIX.findall(asked))
    found = found_in(asked)
    if found or suffixes:
        return Answer(found, tuple(dict.fromkeys([*suffixes, *(message.rules[0] for message in found)])))
    inside = _known(IDENTIFIER.findall(asked))
    if inside:
        return Answer(_messages_of(inside), inside)
    reasons = [reason for reason in Reason if re.search(rf"\b{reason}\b", asked) or name.replace(" ", "_") == reason]
    if reasons:
        return _of_reasons(reasons)
    raise UsageError(_unknown(asked))


def _family(identifier: str) -> str:
    return identifier.rsplit("-", 1)[0]


def _known(identifiers: Iterable[str]) -> tuple[str, ...]:
    """The rules among what looks like one, each once."""
    from vmmref_models import RULES

    return tuple(identifier for identifier in dict.fromkeys(identifiers) if identifier in RULES)


def _messages_of(rules: tuple[str, ...]) -> tuple[Message, ...]:
    """The messages that are said for one of these rules; first those that speak of nothing else first."""
    from vmmref.cli._messages import messages

    found = [message for message in messages() if not set(rules).isdisjoint(message.rules)]
    return tuple(sorted(found, key=lambda message: message.rules[0] not in rules))


def _of_reasons(reasons: Iterable[str]) -> Answer:
    """The messages that have one of these reason codes, and the rules that refuse with them."""
    from vmmref.cli._messages import messages
    from vmmref_models import RULES

    found = tuple(message for message in messages() if message.reason in reasons)
    named = {rule for message in found for rule in message.rules}
    refusing = re.compile(
        rf"^(?:Refused|Failed|Answered) with:[^\n]*(?:\n(?!\n)[^\n]*)*\b(?:{'|'.join(reasons)})\b", re.MULTILINE
    )
    return Answer(found, tuple(rule for rule in RULES if rule in named or refusing.search(specified(rule))))


def _unknown(asked: str) -> str:
    """The sentence for what is not known: the nearest rules, families, reasons and messages."""
    from vmmref.cli._messages import nearest
    from vmmref_models import RULES
    from vmmref_models.reasons import Reason

    families = list(dict.fromkeys(map(_family, RULES)))
    shown = " ".join(asked.split())
    short = shown if len(shown) <= MOST_SHOWN_CHARACTERS else f"{shown[:MOST_SHOWN_CHARACTERS]}…"
    near = difflib.get_close_matches(shown.upper(), [*RULES, *families, *Reason], n=4, cutoff=0.5)
    near += [f'"{message.text}"' for message in nearest(asked)]
    hint = f"; near are {', '.join(near)}" if near else f"; families are {', '.join(families)}"
    return f'there is no rule, reason or message "{short}"{hint}'


# --- showing ----------------------------------------------------------------------------------------------------------


def _show_message(console: Console, message: Message) -> None:
    from rich.console import Group
    from rich.markdown import Markdown
    from rich.panel import Panel
    from rich.syntax import Syntax
    from rich.text import Text

    raised = f"{message.error}, also {' and '.join(message.builtin)}" if message.error else "logged, not raised"
    parts = [
        f"**Meaning.** {message.meaning}",
        f"**Usual trigger.** {message.trigger}",
        f"**What to do.** {message.remedy}",
        f"**Shortest sequence.** {message.sequence or 'in Python only'}",
    ]
    head = Text(f"{message.text}\n", style="bold")
    above = Text(f"{message.reason}, {raised}")
    below = Text(", ".join(message.rules))
    body = Group(head, Markdown("\n\n".join(parts)))
    console.print(Panel(body, title=above, title_align="left", subtitle=below, subtitle_align="right"))
    # Below the panel and unbroken, so that it can be copied.
    console.print(Syntax("", "python", theme="ansi_dark").highlight(message.code), soft_wrap=True)
    console.print()


def _show_rule(console: Console, identifier: str) -> None:
    from rich.markdown import Markdown

    record = _rule_record(identifier)
    judged = JUDGED.get(record["kind"], record["kind"])
    console.print(f"[bold]{identifier} {record['title']}[/]  (level {record['level']}; {judged})", highlight=False)
    console.print(Markdown(record["text"]) if record["text"] else record["sentence"])
    console.print()


def _message_record(message: Message) -> dict[str, Any]:
    """A message as a JSON object."""
    return {
        "text": message.text,
        "word_for_word": message.fixed,
        "reason": message.reason.value,
        "rules": list(message.rules),
        "error": message.error or None,
        "builtin": list(message.builtin),
        "meaning": message.meaning,
        "usual_trigger": message.trigger,
        "what_to_do": message.remedy,
        "shortest_sequence": message.sequence or None,
        "code": message.code,
    }


def _rule_record(identifier: str) -> dict[str, Any]:
    """A rule as a JSON object."""
    from vmmref_models import RULES

    rule = RULES[identifier]
    judged = rule.predicate is not None or rule.run_predicate is not None
    return {
        "id": rule.id,
        "title": rule.title,
        "level": rule.level,
        "kind": str(rule.kind) if judged else "not judged by a run yet",
        "sentence": rule.sentence,
        "needs": list(rule.needs),
        "on": [operation.__name__ for operation in rule.on],
        "text": specified(identifier),
    }
