"""Giving back several things, each exactly once, whatever fails on the way."""

from __future__ import annotations

from collections.abc import Callable


def note_failure(first: BaseException, later: BaseException, what: str) -> None:
    """Put a later failure, with what was noted on it, into the notes of the first one, which is reported (ERR-2)."""
    first.add_note(f"{what}: {type(later).__name__}: {later}")
    for note in getattr(later, "__notes__", ()):
        first.add_note(note)


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
                    note_failure(first, error, "clean-up failed too")
        if first is not None and cause is None:
            raise first
