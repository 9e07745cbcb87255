"""Fixtures of the tests that explain one rule each, and a line of the summary."""

from __future__ import annotations

import pytest

from tests.rules.faults import PAIRS, attempt, pairs
from tests.rules.toy import simulator, toy

__all__ = ["attempt", "pairs", "simulator", "toy"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how many driver calls and pieces of work were made to fail (see test_every_call_fails)."""
    tried = config.stash.get(PAIRS, None)
    if tried:
        shares = ", ".join(f"{name} {count:,}" for name, count in tried.items())
        terminalreporter.write_line(f"{tried.total():,} (operation, k) pairs with faults: {shares}")
