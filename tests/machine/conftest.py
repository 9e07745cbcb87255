"""Fixtures of the tests of the check itself; only the experiments need a driver."""

from __future__ import annotations

from tests.rules.toy import simulator

__all__ = ["simulator"]
