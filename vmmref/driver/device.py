"""Devices by name: "sim" or "sim:1" is the simulated driver, "cuda:0" a real one; a process uses one kind only."""

from __future__ import annotations

import re
import threading
from types import TracebackType
from typing import Any

from vmmref.driver import calls
from vmmref.errors import ArgumentError, UnsupportedError
from vmmref.forks import fork_count, refuse_after_fork
from vmmref.unwind import Unwind
from vmmref_models.reasons import Reason

_NAME = re.compile(r"(sim|cuda)(?::(\d{1,4}))?\Z")


def parse_device(name: object) -> tuple[str, int]:
    """Split "sim", "sim:1" or "cuda:0" into kind and ordinal; raises ArgumentError for anything else."""
    match = _NAME.match(name) if isinstance(name, str) else None
    if match is None:
        raise ArgumentError(Reason.BAD_ARGUMENT, "LIFE-1", f'device must be "sim", "sim:N" or "cuda:N", not {name!r}')
    return match[1], int(match[2] or 0)


def is_device_name(name: str) -> bool:
    """Whether it is a device's own name, in full: "sim:0", not "sim"."""
    match = _NAME.match(name)
    return match is not None and name == f"{match[1]}:{int(match[2] or 0)}"


_forks_at_start: int | None = None
"""How often the process had been forked when it first spoke to a driver; None before that."""


def _bind_driver(kind: str) -> None:
    """Make sure that this process speaks to the driver of `kind`: symbols are bound once and cannot be mixed.

    Raises ForkError in a fork of a process that has spoken to a driver.
    """
    from vmmref import simcuda

    global _forks_at_start
    if _forks_at_start is None:
        _forks_at_start = fork_count()
    refuse_after_fork(_forks_at_start, "the state of the CUDA driver")
    if kind == "sim":
        if simcuda.loaded() is None:
            simcuda.load()
    elif simcuda.loaded() is not None:
        message = "this process is bound to the simulated driver; use a real device in a process of its own"
        raise UnsupportedError(Reason.NOT_SUPPORTED, "LIFE-1", message)
    calls.initialize()


class Device:
    """One device with its primary context; `with device:` makes it current in this thread, as often as nested.

    Raises ArgumentError for a bad name, UnsupportedError where there is no such device. `close` gives the context back.
    """

    def __init__(self, name: str) -> None:
        kind, ordinal = parse_device(name)
        _bind_driver(kind)
        count = calls.device_count()
        if ordinal >= count:
            message = f"device {name!r} does not exist: the driver shows {count} device(s)"
            raise UnsupportedError(Reason.NOT_SUPPORTED, "LIFE-1", message)
        self.simulated = kind == "sim"
        self.ordinal = ordinal
        self.name = f"{kind}:{ordinal}"
        self.torch_device = "cpu" if self.simulated else self.name
        """Where torch keeps this device's tensors: a simulated device's memory is host memory, so "cpu" there."""
        self.context = calls.retain_primary_context(ordinal)

    def attribute(self, attribute: Any) -> int:
        """One device attribute (a member of `calls.ATTRIBUTE`)."""
        return calls.device_attribute(self.ordinal, attribute)

    def order_after_torch(self, stream: int) -> None:
        """Let what is queued on `stream` from now on start after the work that torch has queued in this thread.

        On a simulated device torch's work is never queued.
        """
        if self.simulated:
            return
        import torch

        event = calls.create_event()
        try:
            calls.record_event(event, int(torch.cuda.current_stream(self.ordinal).cuda_stream))
            calls.wait_for_event(stream, event)
        finally:
            calls.destroy_event(event)

    def __enter__(self) -> Device:
        current = calls.current_context()
        if current == self.context:
            _pushed().append(False)
        elif not current:
            # A thread that had no context keeps this one: no call is left for the way out that could fail there.
            calls.set_context(self.context)
            _pushed().append(False)
        else:
            calls.push_context(self.context)
            _pushed().append(True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _pushed().pop():
            calls.pop_context()

    def close(self) -> None:
        """Give the primary context back; the second time does nothing."""
        if self.context:
            context, self.context = self.context, 0
            unwind = Unwind()
            unwind.push(lambda: calls.release_primary_context(self.ordinal))
            unwind.push(lambda: _leave(context))
            unwind.run()


def _leave(context: int) -> None:
    """Make no context current in this thread, if this one is."""
    if calls.current_context() == context:
        calls.set_context(0)


_thread = threading.local()


def _pushed() -> list[bool]:
    """Whether each `with device:` that this thread is in has pushed a context."""
    stack: list[bool] | None = getattr(_thread, "pushed", None)
    if stack is None:
        stack = _thread.pushed = []
    return stack
