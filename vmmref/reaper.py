"""Consumer processes that have died: their ranks are counted on the host, and no word is written for them (REAP-1)."""

from __future__ import annotations

import os
import select
import threading

from vmmref.errors import ArgumentError
from vmmref_models.reasons import Reason


class Reaper:
    """Which process acts for which rank, and which of them have died. Thread-safe.

    A process counts as dead when its pidfd is readable: it has exited and the kernel has closed its device, so nothing
    of its queued work can still store into a word. A socket that closed, or a heartbeat that was missed, proves
    neither.
    """

    def __init__(self, consumers: int) -> None:
        self._consumers = consumers
        self._lock = threading.Lock()
        self._watched: dict[int, int] = {}
        self._poll = select.poll()

    def watch(self, rank: int, process_id: int) -> None:
        """Let `process_id`, which is alive, act for `rank` from now on.

        Raises ArgumentError for a rank that the pool does not have, one whose process lives, and a process that does
        not exist.
        """
        if type(rank) is not int or not 0 <= rank < self._consumers:
            message = f"rank must be one of 0 ... {self._consumers - 1}, got {rank!r}"
            raise ArgumentError(Reason.BAD_RANK, "ACK-4", message)
        try:
            # No bool, which is an int to Python: True would be process 1.
            descriptor = os.pidfd_open(process_id if type(process_id) is int else -1)
        except (OSError, TypeError, OverflowError) as error:
            message = f"process {process_id!r} cannot be watched for rank {rank}: {error}"
            raise ArgumentError(Reason.BAD_ARGUMENT, "REAP-1", message) from error
        with self._lock:
            if rank in self._watched.values():
                os.close(descriptor)
                # Two processes of one rank would be two writers of its words (CTL-4).
                message = f"rank {rank} is acted for by a process that has not been seen dead"
                raise ArgumentError(Reason.BAD_RANK, "REAP-1", message)
            self._watched[descriptor] = rank
            self._poll.register(descriptor, select.POLLIN)

    def collect(self) -> list[int]:
        """The ranks whose process has died since the last call; does not wait."""
        with self._lock:
            if not self._watched:
                return []
            dead = []
            for descriptor, _ in self._poll.poll(0):
                self._poll.unregister(descriptor)
                dead.append(self._watched.pop(descriptor))
                os.close(descriptor)
            return sorted(dead)

    def close(self) -> None:
        """Stop watching."""
        with self._lock:
            for descriptor in self._watched:
                os.close(descriptor)
            self._watched.clear()
