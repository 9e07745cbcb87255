"""`vmmref explain`: a rule in full, by its identifier or by an error message that names it."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from vmmref.cli import UsageError

IDENTIFIER = re.compile(r"\b[A-Z]+-[0-9]+\b")
QUOTED = re.compile(r'"([^"]{12,})"')
"""A message in a rule's sentence; shorter quotations are words, not messages."""
VARYING = re.compile(r"…|\{[a-z]+\}")
JUDGED = {
    "always": "judged in every state",
    "step": "judged at every operation that it speaks of",
    "reachable": "some run must reach it",
    "whole-run": "judged at the end of a run",
}
SHORTEST_PART = 10
"""Characters of a part of a message that are enough to look for it."""


def command(
    rule: Annotated[str, typer.Argument(help="A rule, for example GEN-1; a family; an error message; a reason code.")],
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the rules as JSON.")] = None,
) -> None:
    """Say what a rule demands, why, and how it is checked."""
    from rich.console import Console
    from rich.markdown import Markdown

    from vmmref.cli._output import check_writable, header, write_json
    from vmmref_models import RULES

    check_writable(json_file, "--json")
    found = _found(rule)
    console = Console()
    document: list[dict[str, Any]] = []
    for identifier in found:
        entry = RULES[identifier]
        judged = entry.predicate is not None or entry.run_predicate is not None
        kind = str(entry.kind) if judged else "not judged by a run yet"
        text = specified(identifier)
        console.print(
            f"[bold]{entry.id} {entry.title}[/]  (level {entry.level}; {JUDGED.get(kind, kind)})", highlight=False
        )
        console.print(Markdown(text) if text else entry.sentence)
        console.print()
        document.append(
            {"id": entry.id, "title": entry.title, "level": entry.level, "kind": kind, "sentence": entry.sentence}
            | {"needs": list(entry.needs), "on": [operation.__name__ for operation in entry.on], "text": text}
        )
    write_json(json_file, {**header(), "seed": None, "seconds": 0.0, "rules": document})


def _found(asked: str) -> list[str]:
    """The rules that a text names: one, a family, those of an error message, or those that refuse with a reason."""
    from vmmref_models import RULES
    from vmmref_models.reasons import Reason

    name = asked.strip().upper()
    if name in RULES:
        return [name]
    family = [identifier for identifier in RULES if identifier.rsplit("-", 1)[0] == name]
    inside = [identifier for identifier in dict.fromkeys(IDENTIFIER.findall(asked)) if identifier in RULES]
    if family or inside:
        return family or inside
    quoted = [identifier for identifier in RULES if _quotes(specified(identifier), asked)]
    if quoted:
        return quoted
    if name in Reason.__members__:
        refusing = re.compile(rf"^Refused with:[^\n]*(?:\n(?!\n)[^\n]*)*\b{name}\b", re.MULTILINE)
        return [identifier for identifier in RULES if refusing.search(specified(identifier))] or _nothing(asked)
    return _nothing(asked)


def _nothing(asked: str) -> list[str]:
    from vmmref_models import RULES

    name = asked.strip().upper()
    families = list(dict.fromkeys(identifier.rsplit("-", 1)[0] for identifier in RULES))
    near = difflib.get_close_matches(name, [*RULES, *families], n=4, cutoff=0.5)
    hint = f"; near are {', '.join(near)}" if near else f"; families are {', '.join(families)}"
    raise UsageError(f'there is no rule "{asked.strip()}"{hint}')


def _quotes(text: str, asked: str) -> bool:
    """Whether a rule's sentence quotes a message that `asked` contains, or is a part of."""
    sentence = " ".join(text.split("\n\n", 1)[0].split())
    asked = " ".join(asked.split())
    for message in QUOTED.findall(sentence):
        # What changes from one message to the next is written as "…" or in braces.
        pattern = ".*".join(re.escape(part) for part in VARYING.split(message))
        if re.search(pattern, asked) or (len(asked) >= SHORTEST_PART and asked in message):
            return True
    return False


def specified(identifier: str) -> str:
    """What the specification says below the rule's heading, as Markdown; "" where it is not installed."""
    heading = re.compile(rf"^### {re.escape(identifier)} .*$", re.MULTILINE)
    for folder in _folders():
        for file in sorted(folder.glob("*.md")):
            text = file.read_text(encoding="utf-8")
            match = heading.search(text)
            if match is not None:
                body = text[match.end() :]
                end = re.search(r"^#{1,3} ", body, re.MULTILINE)
                return body[: end.start() if end else None].strip()
    return ""


def _folders() -> list[Path]:
    """Where the specification lies: in the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    return [folder for folder in (package / "specs", package.parent / "specs") if folder.is_dir()]
