"""Pools broken on purpose: the check of the checker. Each must be caught, and caught by the right rule.

`CATALOGUE` has all of them by name. `vmmref faults` hunts each; `vmmref check --subject vmmref.conformance.faulty:NAME`
shows what a report on one of them looks like, with `_` for `-` in its name.
"""

from __future__ import annotations

from vmmref.conformance.faulty import (
    allocator,
    brokers,
    consuming,
    deaths,
    handles,
    lives,
    packs,
    publishing,
    recycling,
    requests,
)
from vmmref.conformance.faulty.broken import CATALOGUE, FaultyPool, FaultySubject

__all__ = [
    "CATALOGUE",
    "FaultyPool",
    "FaultySubject",
    "allocator",
    "brokers",
    "consuming",
    "deaths",
    "handles",
    "lives",
    "packs",
    "publishing",
    "recycling",
    "requests",
]


def __getattr__(name: str) -> FaultyPool:
    pool = CATALOGUE.get(name.replace("_", "-"))
    if pool is None:
        raise AttributeError(f"there is no broken pool called {name}")
    return pool
