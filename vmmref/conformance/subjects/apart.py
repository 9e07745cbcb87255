"""The consumers of a session with a process for each rank: one can be killed, and a new one takes its place."""

from __future__ import annotations

import atexit
from collections import Counter
from collections.abc import Callable
from typing import Any

from vmmref.conformance.processes import Process, ProcessGone
from vmmref.conformance.subjects import rank_process
from vmmref.conformance.subjects.consumer import Setting
from vmmref.conformance.subjects.ranks import Closed
from vmmref_models import operations as op
from vmmref_models.operations import DONE, Operation, Outcome
from vmmref_models.trace import operation_to_dict, outcome_from_dict

_idle: list[Process] = []
"""Processes that have served a pool and hold nothing: a check makes hundreds of pools, and a process takes 15 ms."""


def _end_idle() -> None:
    while _idle:
        _idle.pop().end()


atexit.register(_end_idle)


class RankProcess:
    """The process that acts for one rank, and what it said last of its imports."""

    def __init__(self, setting: Setting) -> None:
        while _idle and not _idle[-1].alive:
            _idle.pop().end()
        self._process = _idle.pop() if _idle else Process(rank_process.TARGET)
        self.imports = 0
        self.ask(rank_process.opening(setting))

    @property
    def process_id(self) -> int:
        """The number that the pool watches it by."""
        return self._process.process_id

    @property
    def alive(self) -> bool:
        """Whether it has not been killed, and has not broken down."""
        return self._process.status is None

    def ask(self, message: dict[str, Any]) -> Any:
        """Send a message and receive the answer; a process that gives none is killed, and the error raised."""
        answer = self._process.ask(message)
        self.imports = answer.get("imports", 0)
        return answer

    def kill(self) -> None:
        """End it without any clean-up of its own."""
        self._process.kill()
        self.imports = 0

    def close(self) -> dict[str, int]:
        """Let it drop its import; what it holds that it should not. It is kept for another pool when that is nothing.

        Raises RuntimeError when it could not drop its import.
        """
        answer = self.ask({"close": True})
        left: dict[str, int] = answer["left"]
        if left or answer["kept"] or answer["problem"]:
            self._process.kill()
        else:
            _idle.append(self._process)
        if answer["problem"]:
            raise RuntimeError(answer["problem"])
        return left


class Apart:
    """Each rank in a process of its own, which the pool watches: `watch(rank, process_id)`, as `watch_consumer`."""

    def __init__(self, setting: Setting, watch: Callable[[int, int], None]) -> None:
        self._setting = setting
        self._watch = watch
        self._processes: list[RankProcess] = []
        self._proxies: dict[int, int] = {}
        """The rank of each proxy, reader and view, by token."""
        self._readers: dict[int, int] = {}
        self._views: dict[int, int] = {}
        try:
            for rank in range(setting.consumers):
                self._processes.append(RankProcess(setting))
                watch(rank, self._processes[rank].process_id)
        except BaseException:
            self._kill_all()
            raise

    def apply(self, operation: Operation, form: bytes = b"") -> Outcome:
        """Let the process do it that acts for the rank; a process that does not answer has crashed."""
        rank = self._rank_of(operation)
        self._note(operation, rank)
        process = self._processes[rank]
        if not process.alive:
            # What was queued on its streams is gone with them.
            done = isinstance(operation, op.Advance)
            return DONE if done else Outcome("crashed", message=f"the process of rank {rank} does not exist")
        try:
            answer = process.ask({"do": operation_to_dict(operation), "form": form.hex()})
        except (ProcessGone, TimeoutError) as error:
            return Outcome("crashed", message=f"the process of rank {rank}: {error}")
        return outcome_from_dict(answer["outcome"])

    def _rank_of(self, operation: Operation) -> int:
        match operation:
            case op.Faulty():
                return self._rank_of(operation.operation)
            case op.Advance():
                return int(operation.stream.removeprefix("rank:"))
            case op.Deliver() | op.Import() | op.DropImport():
                return operation.rank
            case op.Collect():
                return self._readers[operation.reader]
            case op.Peek() | op.Return():
                return self._views[operation.view]
            case op.Read() | op.Fetch() | op.Release() | op.Confirm() | op.ReleaseAs() | op.Borrow():
                return self._proxies[operation.proxy]
        raise TypeError(f"{type(operation).__name__} concerns no rank")

    def _note(self, operation: Operation, rank: int) -> None:
        match operation:
            case op.Deliver():
                self._proxies[operation.proxy] = rank
            case op.Read():
                self._readers[operation.reader] = rank
            case op.Borrow():
                self._views[operation.view] = rank
            case op.Faulty():
                self._note(operation.operation, rank)

    def crash(self, rank: int) -> None:
        """Kill the process of `rank`; it is gone when this returns."""
        self._processes[rank].kill()

    def join(self, rank: int) -> None:
        """Let a new process act for `rank` and the pool watch it; raises what the pool's refusal raises."""
        process = RankProcess(self._setting)
        try:
            self._watch(rank, process.process_id)
        except BaseException:
            process.close()
            raise
        self._processes[rank] = process

    def imports(self) -> tuple[int, ...]:
        """One number a rank, 0 for a dead one."""
        return tuple([process.imports for process in self._processes])

    def settle(self) -> None:
        """Let everything queued so far end, in every process."""
        for process in self._processes:
            if process.alive:
                process.ask({"settle": True})

    def close(self) -> Closed:
        """Let every process drop its import; kill those that cannot, and raise the first one's error."""
        left: Counter[str] = Counter()
        try:
            for process in self._processes:
                if process.alive:
                    left.update(process.close())
        except BaseException:
            self._kill_all()
            raise
        return Closed(Counter(), left)

    def _kill_all(self) -> None:
        for process in self._processes:
            if process.alive:
                process.kill()
