"""Kill this very process at a point of the protocol: a call or return of one function, or a piece of stream work."""

from __future__ import annotations

import os
import pkgutil
import signal
import sys
import threading
from types import CodeType, FrameType
from typing import Any, NamedTuple


class Point(NamedTuple):
    """Where a process dies.

    `where` is "module:qualified.name" of a function of the pool, or the name of a piece of stream work (PIECES).
    """

    name: str
    """Unique in a role, and read by people: "copy-out queued"."""
    step: str
    """The step of the story in which occurrences are counted."""
    when: str
    """"call" or "return" of the function, "ran" of a piece."""
    where: str
    occurrence: int = 1
    handle_type: str = ""
    """Where pools are exported in this way only, by its name; "" = in any way."""


class Executioner:
    """Counts what happens in this process and ends it by SIGKILL at a point: no clean-up of its own takes place.

    The interpreter's profiler sees every call of every thread, so the pool's code needs no hooks for this.
    """

    def __init__(self, point: Point) -> None:
        self._point = point
        self._seen = 0
        self._code: CodeType | None = None
        self.step = ""
        """The step that is being done; told by whoever serves the story."""
        if point.when != "ran":
            self._code = pkgutil.resolve_name(point.where).__code__
            threading.setprofile(self._profile)
            sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        if frame.f_code is self._code and event == self._point.when:
            self._count()

    def piece_has_run(self, name: str) -> None:
        """A piece of stream work of this name has run."""
        if self._point.when == "ran" and name == self._point.where:
            self._count()

    def _count(self) -> None:
        if self.step == self._point.step:
            self._seen += 1
            if self._seen == self._point.occurrence:
                os.kill(os.getpid(), signal.SIGKILL)
