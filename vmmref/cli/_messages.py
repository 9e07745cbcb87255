"""The messages of specs/messages.md: parsed strictly, and found again in what people paste."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from vmmref.cli._specs import folders
from vmmref_models.reasons import Reason

FILE = "messages.md"
FIXED = "## Word for word"
FREE = "## In our own words"
TABLE = ("| Reason | Rules | Error | Built-in |", "|---|---|---|---|")
PARTS = ("Meaning", "Usual trigger", "What to do", "Shortest sequence")
IN_PYTHON_ONLY = "In Python only."
DEFAULT_TRANSPORT = "CUDA VMM"
"""Stands in texts where a pool's transport name stands; another pool may have another one."""
VARYING = re.compile(rf"…|\{{[a-z]+\}}|{DEFAULT_TRANSPORT}")
LONGEST_VALUE = 300
"""Characters of one value in a message; more are another message."""
SHORTEST_PART = 6
"""Characters of a part of a message that are enough to look for it."""


class MessagesError(ValueError):
    """The file is not as it must be; the text names the line."""


@dataclass(frozen=True, slots=True)
class Message:
    """One entry: what an operator needs to know of a text that a pool may say."""

    text: str
    """How the message begins; "…" and {names} stand for values."""
    fixed: bool
    """Whether the rules quote it, so that every conforming pool says it word for word."""
    reason: Reason
    rules: tuple[str, ...]
    """The rules that it may be said for; first the one that the code ends with."""
    error: str
    """Name of the class in `vmmref.errors`; "" for what is logged and not raised."""
    builtin: tuple[str, ...]
    """Names of the built-in classes that the error also is."""
    meaning: str
    trigger: str
    remedy: str
    sequence: str
    """The shortest sequence of the model's operations that ends so; "" when none does."""
    code: str
    """A program that ends with it, on the simulated driver."""

    @property
    def pattern(self) -> str:
        """A regular expression for the text with its values, less those at its ends."""
        # Bounded and not greedy: a pasted log may be long.
        value = f".{{0,{LONGEST_VALUE}}}?"
        first, *between = [part for part in VARYING.split(self.text) if part]
        return value.join(re.escape(part) for part in (first.lstrip(), *between))

    def end_in(self, text: str) -> int | None:
        """Where the message ends in a text whose white space is single spaces; None where it does not stand there."""
        found = re.search(self.pattern, text)
        return found.end() if found is not None else None


@cache
def messages() -> tuple[Message, ...]:
    """Every entry of the installed file, () where it is not installed; raises MessagesError."""
    for folder in folders():
        file = folder / FILE
        if file.is_file():
            return parse(file.read_text(encoding="utf-8"))
    return ()


def found_in(asked: str) -> tuple[Message, ...]:
    """The messages that a pasted text contains, in their order there; else those that it is a part of."""
    asked = " ".join(asked.split())
    places = [(message.end_in(asked), message) for message in messages()]
    inside = sorted(((end, message) for end, message in places if end is not None), key=lambda pair: pair[0])
    if inside or len(asked) < SHORTEST_PART:
        return tuple(message for _, message in inside)
    part = _without_values(asked)
    return tuple(message for message in messages() if part in _without_values(message.text))


def _without_values(text: str) -> str:
    """A text with "…" in place of what changes from one message to the next, in lower case."""
    return re.sub(rf"{VARYING.pattern}|\d+", "…", text).casefold()


def nearest(asked: str, count: int = 3) -> Sequence[Message]:
    """The messages that share words with a text, those with the rarest words first; none when nothing is shared."""
    every = Counter(word for message in messages() for word in _words(message.text))
    wanted = _words(asked)
    weights = {message.text: sum(1 / every[word] for word in wanted & _words(message.text)) for message in messages()}
    ranked = sorted(messages(), key=lambda message: -weights[message.text])
    return [message for message in ranked[:count] if weights[message.text] > 0]


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z]{4,}", text.casefold()))


# --- reading the file -------------------------------------------------------------------------------------------------


def parse(text: str) -> tuple[Message, ...]:
    """The entries of a file like specs/messages.md; raises MessagesError for the first line that is not as it must be.

    What stands before the first of the two headings of sections is for people.
    """
    lines = _Lines(text)
    found: list[Message] = []
    fixed: bool | None = None
    while not lines.at_end:
        line = lines.next()
        if line in (FIXED, FREE):
            fixed = line == FIXED
        elif line.startswith("### ") and fixed is not None:
            found.append(_entry(lines, line, fixed))
            if any(found[-1].text == other.text for other in found[:-1]):
                raise lines.error(f"a second entry {line.removeprefix('### ')}")
        elif line.startswith("#") and fixed is not None:
            raise lines.error(f'the sections are "{FIXED}" and "{FREE}", not "{line}"')
    return tuple(found)


class _Lines:
    """The lines of a file, read one after the other."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self._number = 0

    @property
    def at_end(self) -> bool:
        """Whether all were read."""
        return self._number == len(self._lines)

    def next(self) -> str:
        """The next line."""
        if self.at_end:
            raise self.error("the file ends within an entry")
        self._number += 1
        return self._lines[self._number - 1]

    def expect(self, wanted: str) -> None:
        """Pass over a line that must be there."""
        line = self.next()
        if line != wanted:
            raise self.error(f'"{wanted}" must stand here, not "{line}"')

    def error(self, problem: str) -> MessagesError:
        """The error about the line that was read last."""
        return MessagesError(f"{FILE}, line {self._number}: {problem}")


def _entry(lines: _Lines, heading: str, fixed: bool) -> Message:
    """The entry below a heading."""
    quoted = re.fullmatch(r'### "(.+)"', heading)
    if quoted is None:
        raise lines.error(f"a heading is a text in double quotes, not {heading!r}")
    for line in TABLE:
        lines.expect(line)
    reason, rules, error, builtin = _row(lines)
    lines.expect("")
    meaning, trigger, remedy, sequence = (_part(lines, name) for name in PARTS)
    return Message(
        quoted[1], fixed, reason, rules, error, builtin, meaning, trigger, remedy,
        "" if sequence == IN_PYTHON_ONLY else sequence, _code(lines),
    )  # fmt: skip


def _row(lines: _Lines) -> tuple[Reason, tuple[str, ...], str, tuple[str, ...]]:
    """Reason, rules, class and built-in classes."""
    line = lines.next()
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    if len(cells) != 4 or not all(cells):
        raise lines.error(f"a row has four cells, not {line!r}")
    reason, rules, error, builtin = cells
    if reason not in Reason.__members__:
        raise lines.error(f"{reason} is no reason code")
    for rule in _listed(rules):
        if not re.fullmatch(r"[A-Z]+-[1-9][0-9]*", rule):
            raise lines.error(f"{rule!r} is no rule")
    if (error == "none") != (builtin == "none"):
        raise lines.error("what is not raised has no class and no built-in class")
    return Reason[reason], _listed(rules), "" if error == "none" else error, () if error == "none" else _listed(builtin)


def _listed(cell: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in cell.split(","))


def _part(lines: _Lines, name: str) -> str:
    """The paragraph that begins with a name, in one line."""
    start = f"**{name}.** "
    line = lines.next()
    if not line.startswith(start):
        raise lines.error(f'"{start}…" must stand here, not "{line}"')
    return " ".join([line.removeprefix(start), *_until(lines, "")])


def _code(lines: _Lines) -> str:
    """The program of an entry."""
    lines.expect("```python")
    return "\n".join(_until(lines, "```")) + "\n"


def _until(lines: _Lines, end: str) -> Iterator[str]:
    """The lines before one that is `end`, which is read too."""
    while (line := lines.next()) != end:
        if line.startswith("#") and end == "":
            raise lines.error("an entry ends with a block of code")
        yield line
