"""Every killing of a role and point, one after the other, and what came of them together."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vmmref.conformance.kills.executioner import Point
from vmmref.conformance.kills.points import CONSUMER, PRODUCER
from vmmref.conformance.kills.stage import PRODUCER as PRODUCER_ROLE
from vmmref.conformance.kills.stage import ROLES
from vmmref.conformance.kills.story import Killing, Story
from vmmref.handles import HandleType

SHARED_MEMORY = Path("/dev/shm")
_PATIENCE_SECONDS = 2.0
"""A name in there that goes away within this time was another program's."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """What came of a run."""

    killings: tuple[Killing, ...]
    new_shared_memory: tuple[str, ...]
    """Names in /dev/shm that were not there before."""

    @property
    def passed(self) -> bool:
        """Every point was reached, and nothing was wrong after any killing; at least one was asked for."""
        return bool(self.killings) and not self.new_shared_memory and all(one.passed for one in self.killings)

    def by_role(self) -> dict[str, tuple[int, int]]:
        """By role, how many killings there were and how many passed."""
        all_of = Counter(one.role for one in self.killings)
        passed = Counter(one.role for one in self.killings if one.passed)
        return {role: (all_of[role], passed[role]) for role in ROLES if role in all_of}


def points_of(role: str) -> tuple[Point, ...]:
    """Where a process of this role can die; raises ValueError for a role that there is not."""
    if role not in ROLES:
        raise ValueError(f'there is no role "{role}"; there are {", ".join(ROLES)}')
    return PRODUCER if role == PRODUCER_ROLE else CONSUMER


def chosen(
    roles: Sequence[str], text: str = "", every: int = 1, handle_type: str = HandleType.POSIX_FD
) -> Iterator[tuple[str, Point]]:
    """The killings of these roles whose point or step contains `text`; of these the first and each `every`-th on.

    Only points that there are when pools are exported as `handle_type`.
    """
    wanted = text.casefold()
    found = [
        (role, point)
        for role in roles
        for point in points_of(role)
        if point.handle_type in ("", handle_type)
        and (wanted in point.name.casefold() or wanted in point.step.casefold())
    ]
    yield from found[::every]


def run(
    killings: Sequence[tuple[str, Point]],
    broken: str | None = None,
    watch: Callable[[Killing], None] = lambda killing: None,
    handle_type: str = HandleType.POSIX_FD,
) -> Matrix:
    """Do the killings; `watch` is told of each. `broken` names a class to put in the place of one of the pool's."""
    before = _shared_memory()
    done = []
    for role, point in killings:
        done.append(Story(role, point, broken, handle_type).tell())
        watch(done[-1])
    return Matrix(tuple(done), _new_shared_memory(before))


def _new_shared_memory(before: set[str]) -> tuple[str, ...]:
    """Names that have come and stay: other programs make some, too, and take them away at once."""
    pause, new = threading.Event(), _shared_memory() - before
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while new and time.monotonic() < deadline:
        pause.wait(0.05)
        new &= _shared_memory()
    return tuple(sorted(new))


def _shared_memory() -> set[str]:
    return {entry.name for entry in SHARED_MEMORY.iterdir()} if SHARED_MEMORY.is_dir() else set()
