"""The page of what each rule is known by is the one that its command makes."""

from __future__ import annotations

from pathlib import Path

from vmmref.conformance.layers import page

PAGE = Path(__file__).resolve().parent.parent.parent / "specs" / "layers.md"


def test_the_page_is_what_the_command_makes() -> None:
    made = page()
    assert PAGE.read_text(encoding="utf-8") == made, "python -m vmmref.conformance.layers > specs/layers.md"
