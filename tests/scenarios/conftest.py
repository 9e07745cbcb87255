"""Fixtures of the directed tests after public bug reports."""

from __future__ import annotations

from tests.rules.toy import simulator, toy

__all__ = ["simulator", "toy"]
