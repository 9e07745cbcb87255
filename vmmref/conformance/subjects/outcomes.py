"""Errors of the reference pool as outcomes, the same way in the producer and in every rank's process."""

from __future__ import annotations

from collections import Counter

from vmmref import errors
from vmmref_models.operations import Outcome, refused
from vmmref_models.reasons import Reason

_GIVE_BACK = {
    "cuMemRelease": "handles",
    "cuMemUnmap": "mappings",
    "cuMemAddressFree": "reservations",
    "cuStreamDestroy": "streams",
    "cuEventDestroy": "events",
    "cuMemFreeHost": "pinned",
}
"""Calls that give something back, and what is left when the driver refuses one."""


def outcome_of(error: Exception, kept: Counter[str], failed: bool = False) -> Outcome:
    """What an operation answered that ended in `error`.

    `failed` says that the pool has failed with it. What the driver refused to take back is counted in `kept`: it stays,
    and is no leak of the pool's.
    """
    if not isinstance(error, errors.VmmRefError):
        return Outcome("crashed", message=f"{type(error).__name__}: {error}")
    message = "\n".join([str(error), *getattr(error, "__notes__", ())])
    if not isinstance(error, errors.DriverError | errors.WaitTimeout):
        return refused(error.reason, message)
    if isinstance(error, errors.DriverError) and error.call in _GIVE_BACK:
        kept[_GIVE_BACK[error.call]] += 1
    return Outcome("failed", Reason.POOL_FAILED if failed else error.reason, message=message)
