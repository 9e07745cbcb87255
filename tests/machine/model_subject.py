"""A subject backed by the model itself: tests the harness without a driver. Broken variants are in `mutants`."""

from __future__ import annotations

from dataclasses import replace

from vmmref.conformance.loading import KINDS
from vmmref.conformance.subject import CAPABILITIES, Description, Leftovers
from vmmref_models.attempts import ATTEMPTS
from vmmref_models.observation import Observation, Shape
from vmmref_models.operations import (
    Attempt,
    Borrow,
    Cancel,
    Construct,
    Faulty,
    Fetch,
    Operation,
    Outcome,
    Read,
    Recycle,
    Release,
)
from vmmref_models.reasons import Reason
from vmmref_models.state import State, initial
from vmmref_models.step import observe, settle, step

CALLS = 2
"""Driver calls that every operation of this subject pretends to make, so that a fault at a later one never comes."""


class ModelSession:
    """One model in the place of a pool."""

    def __init__(self, shape: Shape, stepping: bool = True) -> None:
        self.state: State = initial(shape)
        self.stepping = stepping

    def apply(self, operation: Operation) -> Outcome:
        """One step of the model; an injected fault within its calls changes nothing, or ends the pool."""
        self.state, outcome = self.stepped(operation)
        if not self.stepping:
            self.state = settle(self.state)
        return outcome

    def stepped(self, operation: Operation) -> tuple[State, Outcome]:
        """The state and outcome of one operation; what a broken variant overrides."""
        after, outcome = step(self.state, operation)
        if isinstance(operation, Faulty) and operation.call <= CALLS and outcome.kind == "done":
            return self.failed(operation.operation, late=operation.call == CALLS)
        return after, outcome

    def failed(self, operation: Operation, late: bool) -> tuple[State, Outcome]:
        """What a failing driver call leaves behind: mostly nothing; `late` in an operation, what it may leave."""
        message = "cuMemcpyDtoDAsync answered CUDA_ERROR_UNKNOWN [ERR-2]"
        outcome = Outcome("failed", Reason.DRIVER_CALL_FAILED, message=message)
        if isinstance(operation, Cancel | Recycle) and late:
            # LIFE-3: the retire store may or may not have been queued.
            return replace(self.state, failed=True), replace(outcome, reason=Reason.POOL_FAILED)
        if isinstance(operation, Read | Fetch | Borrow):
            # CON-4: early, the rank has not entered the lease; late, it has, and has acknowledged.
            entered = settle(step(self.state, Release(operation.proxy))[0]) if late else self.state
            return entered, replace(outcome, count=int(entered.consumers.tables != self.state.consumers.tables))
        return self.state, replace(outcome, leftovers=0 if isinstance(operation, Construct | Attempt) else None)

    def observe(self) -> Observation:
        """What the model's state shows."""
        return observe(self.state)

    def close(self) -> Leftovers:
        """A model holds nothing."""
        return Leftovers()


class ModelSubject:
    """Makes models; `without` leaves capabilities out."""

    session: type[ModelSession] = ModelSession

    def __init__(self, without: frozenset[str] = frozenset()) -> None:
        self.capabilities = frozenset(CAPABILITIES) - without

    def describe(self) -> Description:
        """Everything a subject may declare, at level C."""
        return Description(
            name="model",
            device="model (no device)",
            simulated=True,
            level="C",
            capabilities=self.capabilities,
            operations=KINDS,
            word_bytes=(4, 8),
            attempts=frozenset(ATTEMPTS),
        )

    def open(self, shape: Shape) -> ModelSession:
        """One fresh model."""
        return self.session(shape, "stepping" in self.capabilities)


def make() -> ModelSubject:
    """The factory: `--subject tests.machine.model_subject:make`."""
    return ModelSubject()
