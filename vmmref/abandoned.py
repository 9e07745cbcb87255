"""What becomes of a pool that is dropped without `shutdown`: its host side ends, its device side stays as it is."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from vmmref.beacon import Beacon
from vmmref.broker import DescriptorBroker
from vmmref.errors import PoolClosing
from vmmref.forks import fork_count
from vmmref.imported import forget_exporter
from vmmref.reaper import Reaper
from vmmref.recycler import RecyclerThread
from vmmref.unwind import Unwind
from vmmref_models.reasons import Reason

_BROKER_SECONDS = 5.0
"""The broker's thread waits for nobody, so this is never used up."""

_in_use: list[Any] = []
"""Host and device memory that queued work of abandoned pools may still use: it lives as long as the process."""


class HostSide(NamedTuple):
    """What a pool holds of the host, and needs no device for to give back."""

    transport_name: str
    nonce: bytes
    beacon: Beacon
    reaper: Reaper
    broker: DescriptorBroker | None
    descriptor: int | None
    thread: RecyclerThread | None
    forks: int
    """Of which process image it is (`fork_count`)."""
    in_use: tuple[Any, ...]
    """Objects whose memory the device may be using."""

    def end(self) -> None:
        """End it, once, when its pool was collected."""
        if self.forks != fork_count():
            # HND-7: a fork's copy; what could be ended here is the parent's.
            return
        _in_use.append(self.in_use)
        unwind = Unwind()
        unwind.push(self._warn)
        unwind.push(self.reaper.close)
        if self.descriptor is not None:
            unwind.push(partial(os.close, self.descriptor))
        if self.broker is not None:
            unwind.push(partial(self.broker.close, _BROKER_SECONDS))
        if self.thread is not None:
            # Asked only: this may run in that very thread, which held the pool last.
            unwind.push(self.thread.ask_to_stop)
        unwind.push(self.beacon.close)
        unwind.push(partial(forget_exporter, self.nonce))
        unwind.run()

    def _warn(self) -> None:
        message = (
            f"{self.transport_name} pool was dropped without shutdown(): its consumers are told that it has ended, and "
            "its device memory stays taken until the process ends [LIFE-2]"
        )
        warnings.warn(message, ResourceWarning, stacklevel=2)


def weak_pass(pool: Any) -> Callable[[], int]:
    """`pool.recycle` for the recycler's thread, which must not be what keeps the pool alive."""
    reference = weakref.ref(pool)

    def run_pass() -> int:
        pool = reference()
        if pool is None:
            raise PoolClosing(Reason.POOL_CLOSING, "LIFE-2", "the pool was dropped without shutdown()")
        return int(pool.recycle())

    return run_pass
