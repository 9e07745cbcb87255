"""The specification as it is installed: where its files lie, and the text of a rule."""

from __future__ import annotations

import re
from pathlib import Path


def folders() -> list[Path]:
    """Where the specification lies: in the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    return [folder for folder in (package / "specs", package.parent / "specs") if folder.is_dir()]


def specified(identifier: str) -> str:
    """What the specification says below the rule's heading, as Markdown; "" where it is not installed."""
    heading = re.compile(rf"^### {re.escape(identifier)} .*$", re.MULTILINE)
    for folder in folders():
        for file in sorted(folder.glob("*.md")):
            text = file.read_text(encoding="utf-8")
            match = heading.search(text)
            if match is not None:
                body = text[match.end() :]
                end = re.search(r"^#{1,3} ", body, re.MULTILINE)
                return body[: end.start() if end else None].strip()
    return ""
