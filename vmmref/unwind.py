"""Giving back several things, each exactly once, whatever fails on the way."""

from __future__ import annotations

from collections.abc import Callable


class Unwind:
    """Clean-up steps, run last in, first out. A step that fails does not keep the others from running.

    `run` raises the first failure with the later ones as notes; with `cause` given, that error is the one to be
    reported by the caller and all failures become notes of it (ERR-2: a clean-up never hides the original error).
    """

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []

    def push(self, step: Callable[[], object]) -> None:
        """Add a step, to run before all that are there already."""
        self._steps.append(step)

    def run(self, cause: BaseException | None = None) -> None:
        """Run every step once."""
        first = cause
        while self._steps:
            try:
                self._steps.pop()()
            except BaseException as error:
                if first is None:
                    first = error
                else:
                    first.add_note(f"clean-up failed too: {type(error).__name__}: {error}")
        if first is not None and cause is None:
            raise first
