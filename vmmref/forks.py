"""Knowing that this process is a fork: CUDA in a forked child is undefined before exec (HND-7)."""

from __future__ import annotations

import os

from vmmref.errors import ForkError
from vmmref_models.reasons import Reason

_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def fork_count() -> int:
    """How often this process image was forked from one that had loaded this module; compare for equality."""
    return _forks


def refuse_after_fork(forks_at_birth: int, what: str) -> None:
    """Raise ForkError when the process is a fork of the one in which `what` was made."""
    if forks_at_birth != _forks:
        # HND-7: say so before the driver is touched.
        message = f"{what} was made before fork(); start the process with spawn and hand it the proxy's bytes"
        raise ForkError(Reason.FORKED, "HND-7", message)
