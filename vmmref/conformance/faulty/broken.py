"""What a pool broken on purpose is: the reference pool with one part replaced by a broken kind of it.

A broken part is a subclass with one step overridden; `broken("RNG-3")` enters it into the catalogue. Its base class
says where it goes, its name and docstring are the pool's name and sentence.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from vmmref.conformance.subject import Description
from vmmref.conformance.subjects.parts import parts_with
from vmmref.conformance.subjects.reference import ReferenceSession, ReferenceSubject
from vmmref.imports import IMPORTS
from vmmref_models import Shape

Part = TypeVar("Part")

CATALOGUE: dict[str, FaultyPool] = {}
"""Every broken pool by name, in the order of the files that define them."""


@dataclass(frozen=True, slots=True)
class FaultyPool:
    """A pool broken on purpose; calling it makes the subject, as any factory of `vmmref check --subject` does."""

    name: str
    rule: str
    """The rule that it must be caught by."""
    sentence: str
    """What is broken, and what comes of it."""
    seen: str
    """The protocol of specs/protocols-that-fail.md that makes this mistake; "" where none does."""
    part: type
    flavour: str = ""
    """The flavour of episodes in which it shows soonest; "" = no other than those that exercise its rule."""

    def __call__(self, device: str = "sim") -> FaultySubject:
        """The subject on one device; raises VmmRefError where there is no such device."""
        return FaultySubject(device, self)


class FaultySubject(ReferenceSubject):
    """The reference pool with one broken part."""

    def __init__(self, device: str, pool: FaultyPool) -> None:
        super().__init__(device, parts_with(pool.part))
        self._name = f"reference pool, broken: {pool.name}"
        self._session: ReferenceSession | None = None

    def describe(self) -> Description:
        """As the reference pool, under a name that says what is broken."""
        return replace(super().describe(), name=self._name)

    def open(self, shape: Shape) -> ReferenceSession:
        """A broken pool of `shape`, and the ranks of one consumer process beside it."""
        self._session = super().open(shape)
        return self._session

    def end(self) -> None:
        """End the last pool, whose episode was interrupted."""
        if self._session is not None:
            with contextlib.suppress(Exception):
                self._session.close()

    def give_back(self) -> None:
        """Let the last pool give back what it still holds, where it was too broken to end."""
        if self._session is not None:
            # Once by this; else a descriptor's number, by then somebody else's, would be closed again.
            self._session.pool._end_if_dropped.detach()
            with contextlib.suppress(Exception):
                self._session.pool._unwind.run()
        # A reset of the driver follows: to drop these in order would give back what no longer is.
        IMPORTS._imports.clear()
        IMPORTS._known.clear()


def broken(rule: str, seen: str = "", flavour: str = "") -> Callable[[type[Part]], type[Part]]:
    """Enter a broken part into the catalogue, to be caught by `rule`."""

    def enter(part: type[Part]) -> type[Part]:
        name = re.sub(r"(?<!^)(?=[A-Z])", "-", part.__name__).lower()
        if name in CATALOGUE:
            raise ValueError(f"there are two broken pools called {name}")
        CATALOGUE[name] = FaultyPool(name, rule, " ".join((part.__doc__ or "").split()), seen, part, flavour)
        return part

    return enter
