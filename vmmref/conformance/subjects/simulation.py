"""What the reference subject asks of the simulated driver: count, run what a wait stands for."""

from __future__ import annotations

from vmmref import errors, simcuda
from vmmref.driver import calls
from vmmref_models.reasons import Reason

UNKNOWN_ERROR = 999
"""CUDA_ERROR_UNKNOWN: what an injected fault answers, since no code of ours treats it specially."""
_TIMEOUT_ERROR = 702
"""CUDA_ERROR_LAUNCH_TIMEOUT: what the simulator answers to a wait that nothing can end."""
_KINDS = ("handles", "mappings", "reservations", "descriptors", "streams", "events", "pinned")


def usage() -> dict[str, int]:
    """What this process holds of the simulated driver, by kind; nothing where there is none."""
    simulator = simcuda.loaded()
    if simulator is None:
        return {}
    counts = simulator.usage()
    return {kind: getattr(counts, kind) for kind in _KINDS}


def drain(event: int) -> None:
    """Let a stepping simulator run what an event stands for: nobody else does while the host waits.

    Raises WaitTimeout when nothing queued can end the wait.
    """
    try:
        calls.synchronize_event(event)
    except errors.DriverError as error:
        if error.result != _TIMEOUT_ERROR:
            raise
        raise errors.WaitTimeout(Reason.TIMED_OUT, "LIFE-5", f"nothing queued can end this wait: {error}") from error


def step(stream: int, name: str) -> str:
    """Let one memory piece of a stream run, nothing for stream 0; a sentence when its oldest piece cannot run.

    `name` is the stream's in that sentence.
    """
    simulator = simcuda.loaded()
    assert simulator is not None, "stepping is declared for the simulator only"
    if stream and simulator.step_memory_raw(stream) == simcuda.BLOCKED:
        return f"the {name} stream is stuck: {simulator.peek(stream)}"
    return ""
