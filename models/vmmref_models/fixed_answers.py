"""Operations whose only right answer does not depend on the pool's state, unless it is closed or has failed."""

from __future__ import annotations

from dataclasses import replace

from vmmref_models.attempts import ATTEMPTS
from vmmref_models.operations import Attempt, Outcome
from vmmref_models.reasons import Reason

CONSTRUCTIONS: dict[str, Outcome] = {
    "valid": Outcome("done", leftovers=0),
    **{
        what: Outcome("refused", Reason.BAD_ARGUMENT, leftovers=0, message=f"{what} is out of range [LIFE-1]")
        for what in ("memory_size", "consumer_count", "max_inflight_slices", "recycle_interval", "below-granule")
    },
    "control-only": Outcome(
        "refused", Reason.POOL_TOO_SMALL, leftovers=0, message="no room behind the control words [CTL-5]"
    ),
    **{
        what: Outcome("refused", Reason.UNUSABLE_BACKING, leftovers=0, message=f"{what} is unusable [PUB-5]")
        for what in ("backing-dtype", "backing-size", "backing-strided")
    },
}
"""What making a second pool answers, by what is wrong with it."""

UNUSABLE = ("empty", "wrong-device")

TAMPERED = {
    "generation": Reason.INACTIVE_LEASE,
    "offset": Reason.INACTIVE_LEASE,
    "pool": Reason.FOREIGN_POOL,
}
"""Why a handle is refused, by what of it was altered."""


def attempted(operation: Attempt) -> Outcome:
    """The only right answer to an experiment."""
    rule, outcome, sentence = ATTEMPTS[operation.what]
    return replace(outcome, message=f"{sentence} [{rule}]") if outcome.kind == "refused" else outcome
