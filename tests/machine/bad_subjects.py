"""Subjects that misbehave in ways no rule is about, for the tests of runner and command line."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from tests.machine.model_subject import ModelSession, ModelSubject
from tests.machine.mutants import MUTANTS, BrokenSubject
from vmmref.conformance.subject import Description
from vmmref_models.observation import Observation, Shape
from vmmref_models.operations import Cancel, Operation, Outcome

NUMBER = 42
"""Something that cannot be called."""


class HangingSession(ModelSession):
    """A cancel never comes back."""

    def apply(self, operation: Operation) -> Outcome:
        if isinstance(operation, Cancel):
            threading.Event().wait()
        return super().apply(operation)


class CrashingSession(ModelSession):
    """A cancel takes the process with it."""

    def apply(self, operation: Operation) -> Outcome:
        if isinstance(operation, Cancel):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().apply(operation)


class BlindSession(ModelSession):
    """Cannot be looked at."""

    def observe(self) -> Observation:
        raise RuntimeError("nobody can see this")


class NonsenseSession(ModelSession):
    """Shows what no observation can hold."""

    def observe(self) -> Observation:
        words: Any = 5
        return Observation("open", words=words)


class _Of(ModelSubject):
    def __init__(self, session: type[ModelSession]) -> None:
        super().__init__()
        self.session = session


class Misdescribed(ModelSubject):
    """Declares a capability that there is not."""

    def describe(self) -> Description:
        return Description("x", "x", True, "A", frozenset({"telepathy"}), frozenset({"Wrap"}))


class Unshaped(ModelSubject):
    """Refuses every shape."""

    def open(self, shape: Shape) -> ModelSession:
        raise ValueError(f"this pool cannot have {shape.slots} slots")


def hanging() -> ModelSubject:
    return _Of(HangingSession)


def crashing() -> ModelSubject:
    return _Of(CrashingSession)


def blind() -> ModelSubject:
    return _Of(BlindSession)


def nonsense() -> ModelSubject:
    return _Of(NonsenseSession)


def misdescribed() -> ModelSubject:
    return Misdescribed()


def unshaped() -> ModelSubject:
    return Unshaped()


def raising(device: str) -> ModelSubject:
    raise RuntimeError(f"no pool on {device} today")


def nothing() -> Any:
    return None


def undescribed(device: str) -> Any:
    return object()


def worst_fit() -> ModelSubject:
    return BrokenSubject(MUTANTS["worst fit"])


def no_merge() -> ModelSubject:
    return BrokenSubject(MUTANTS["no merge"])


def leaking() -> ModelSubject:
    return BrokenSubject(MUTANTS["descriptor left behind"])
