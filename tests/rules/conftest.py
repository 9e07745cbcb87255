"""Fixtures of the tests that explain one rule each."""

from __future__ import annotations

from tests.rules.toy import simulator, toy

__all__ = ["simulator", "toy"]
