"""Threads one at a time, in an order that a search chooses: every meeting of a pool's callers, up to a bound.

A task runs until its next point: before it takes a lock, while it waits for the device, or (on request) before each
line of chosen modules. There the search may let another task go on. A schedule is the list of these choices; the search
goes through all that interrupt a task at most so many times when it could have gone on, and replays any of them.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any

STUCK_SECONDS = 30.0
"""No step of a task takes so long; one that does hangs outside of every lock that is watched."""


class Deadlock(Exception):
    """No task can go on, and none of them waits with a limit."""


class _Abandoned(BaseException):
    """The schedule is over: whatever still waits is let go. No Exception, so that no pool takes it for its own."""


class Task:
    """One caller in a thread of its own."""

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.baton = threading.Semaphore(0)
        self.waits_for: object | None = None
        """The lock or condition that it cannot go on without; None: it can."""
        self.limited = False
        """Whether it waits with a time limit, so that time alone lets it go on."""
        self.timed_out = False
        self.over = False
        self.error: BaseException | None = None


_own = threading.local()


def _task() -> Task | None:
    """The task that this thread is; None outside of a schedule."""
    return getattr(_own, "task", None)


Choose = Callable[[Sequence[int], int | None], int]
"""Of the tasks that can go on (by number), given the one that just ran if it is among them: which is next."""


class Schedule:
    """Runs tasks one at a time as `choose` says."""

    def __init__(self, callers: Sequence[tuple[str, Callable[[], object]]], choose: Choose) -> None:
        self.tasks = [Task(number, name) for number, (name, _) in enumerate(callers)]
        self._callers = [caller for _, caller in callers]
        self._choose = choose
        self._ended = threading.Semaphore(0)
        self._abandoned = False
        self.deadlock: str = ""

    def run(self, trace: Callable[[FrameType, str, Any], Any] | None = None) -> None:
        """Run all tasks to their end; `trace` is set in each thread. Errors of a task are kept in it.

        Raises Deadlock, and RuntimeError when a task hangs outside of everything that is watched.
        """
        threads = [threading.Thread(target=self._body, args=(task, trace), daemon=True) for task in self.tasks]
        for thread in threads:
            thread.start()
        self._next(None)
        over = self._ended.acquire(timeout=STUCK_SECONDS)
        for thread in threads:
            thread.join(STUCK_SECONDS if over else 0.1)
        if not over:
            running = [task.name for task in self.tasks if not task.over]
            raise RuntimeError(f"{', '.join(running)} did not come to its next point within {STUCK_SECONDS} s")
        if self.deadlock:
            raise Deadlock(self.deadlock)

    def _body(self, task: Task, trace: Callable[[FrameType, str, Any], Any] | None) -> None:
        _own.task, _own.schedule = task, self
        task.baton.acquire()
        try:
            if not self._abandoned:
                sys.settrace(trace)
                self._callers[task.number]()
        except _Abandoned:
            pass
        except BaseException as error:
            task.error = error
        finally:
            sys.settrace(None)
            task.over = True
            if self._abandoned:
                self._release_next_abandoned()
            else:
                self._next(None)

    def point(self, task: Task) -> None:
        """Somebody else may go on here; returns when it is this task's turn again."""
        if self._abandoned:
            raise _Abandoned
        self._next(task)

    def block(self, task: Task, on: object, limited: bool) -> bool:
        """Wait until `wake(on)`; False when the time limit let it go on instead."""
        if self._abandoned:
            raise _Abandoned
        task.waits_for, task.limited, task.timed_out = on, limited, False
        self._next(task)
        return not task.timed_out

    def wake(self, on: object) -> None:
        """Let every task go on that waits for `on`."""
        for task in self.tasks:
            if task.waits_for is on:
                task.waits_for = None

    def _next(self, current: Task | None) -> None:
        """Choose who goes on, and wait for the next turn unless that is the current task."""
        able = [task.number for task in self.tasks if not task.over and task.waits_for is None]
        if not able:
            able = self._let_time_pass()
        if not able:
            self._finish(current)
            return
        on = current.number if current is not None and current.number in able else None
        chosen = able[0] if len(able) == 1 else self._choose(able, on)
        if current is not None and chosen == current.number:
            return
        self.tasks[chosen].baton.release()
        if current is not None:
            self._rest(current)

    def _rest(self, task: Task) -> None:
        task.baton.acquire()
        if self._abandoned:
            raise _Abandoned

    def _let_time_pass(self) -> list[int]:
        """Nobody can go on: the first one that waits with a limit has waited for long enough."""
        for task in self.tasks:
            if not task.over and task.limited and task.waits_for is not None:
                task.waits_for, task.timed_out = None, True
                return [task.number]
        return []

    def _finish(self, current: Task | None) -> None:
        waiting = [task.name for task in self.tasks if not task.over]
        if not waiting:
            self._ended.release()
            return
        self.deadlock = f"{' and '.join(waiting)} wait for each other"
        self._abandoned = True
        if current is None:
            self._release_next_abandoned()
            return
        raise _Abandoned

    def _release_next_abandoned(self) -> None:
        for task in self.tasks:
            if not task.over:
                task.baton.release()
                return
        self._ended.release()


class Lock:
    """In the place of `threading.Lock`: taking it is a point, and a task that finds it taken is not chosen."""

    def __init__(self) -> None:
        self.holder: object | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As of a lock. `timeout` in seconds passes when nobody else can go on."""
        task = _task()
        if task is None:
            assert self.holder is None, "outside of a schedule nobody else holds a lock"
            self.holder = self
            return True
        schedule: Schedule = _own.schedule
        schedule.point(task)
        while self.holder is not None:
            if not blocking or not schedule.block(task, self, timeout >= 0):
                return False
        self.holder = task
        return True

    def release(self) -> None:
        """As of a lock."""
        self.holder = None
        if _task() is not None:
            _own.schedule.wake(self)

    def is_mine(self) -> bool:
        """Whether the task that asks holds it."""
        return self.holder is not None and self.holder is _task()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    """In the place of `threading.Condition`, with a lock of its own."""

    def __init__(self) -> None:
        self._lock = Lock()

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def notify_all(self) -> None:
        """As of a condition."""
        if _task() is not None:
            _own.schedule.wake(self)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """As of a condition; the time limit passes when nobody else can go on."""
        while not predicate():
            task = _task()
            if task is None:
                return False
            self._lock.release()
            woken = _own.schedule.block(task, self, timeout is not None)
            self._lock.acquire()
            if not woken:
                return predicate()
        return True


class _Threading:
    """What a module finds under the name `threading` while its locks are watched."""

    Lock = Lock
    Condition = Condition

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


@contextlib.contextmanager
def watched(modules: Sequence[ModuleType]) -> Iterator[None]:
    """Give the locks that `modules` make from now on to the schedule."""
    stand_in = _Threading()
    before = [module.__dict__["threading"] for module in modules]
    for module in modules:
        module.__dict__["threading"] = stand_in
    try:
        yield
    finally:
        for module, real in zip(modules, before, strict=True):
            module.__dict__["threading"] = real


def at_each_line(modules: Sequence[ModuleType]) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that makes each line of `modules` a point: what no lock guards is interrupted, too."""
    files = {module.__file__ for module in modules}

    def line(frame: FrameType, event: str, _: Any) -> Any:
        task = _task()
        if event == "line" and task is not None:
            _own.schedule.point(task)
        return line

    def call(frame: FrameType, event: str, _: Any) -> Any:
        return line if frame.f_code.co_filename in files else None

    return call


def pause() -> None:
    """A point, for whoever knows that somebody else may go on here: a wait for the device."""
    task = _task()
    if task is not None:
        _own.schedule.point(task)


@dataclass(slots=True)
class _Choice:
    options: tuple[int, ...]
    taken: int
    """Index in `options`; the first is the one that does not interrupt."""
    interrupts: bool
    """Whether any option but the first interrupts a task that could go on."""


@dataclass(slots=True)
class Search:
    """All schedules with at most `bound` interruptions, each once."""

    bound: int
    _path: list[_Choice] = field(default_factory=list)
    _depth: int = 0
    _over: bool = False

    def schedules(self) -> Iterator[Choose]:
        """For each schedule the choices that make it; run one with it before the next is asked for."""
        while not self._over:
            self._depth = 0
            yield self._choose
            self._advance()

    def _choose(self, able: Sequence[int], current: int | None) -> int:
        if self._depth < len(self._path):
            choice = self._path[self._depth]
            # The same choices lead to the same place, or nothing that is found could be replayed.
            assert sorted(choice.options) == sorted(able), "a schedule did not repeat itself"
        else:
            first = [] if current is None else [current]
            choice = _Choice((*first, *(number for number in able if number != current)), 0, current is not None)
            self._path.append(choice)
        self._depth += 1
        return choice.options[choice.taken]

    def _advance(self) -> None:
        """On to the next schedule: the last choice that has another option within the bound."""
        while self._path:
            choice = self._path[-1]
            before = sum(1 for one in self._path[:-1] if one.interrupts and one.taken)
            allowed = not choice.interrupts or before < self.bound
            if choice.taken + 1 < len(choice.options) and allowed:
                choice.taken += 1
                return
            self._path.pop()
        self._over = True

    @property
    def taken(self) -> tuple[int, ...]:
        """The choices of the schedule that ran last, which `replay` repeats."""
        return tuple(choice.options[choice.taken] for choice in self._path[: self._depth])


def replay(taken: Sequence[int]) -> Choose:
    """The choices of one schedule, and then no interruption."""
    left = list(taken)

    def choose(able: Sequence[int], current: int | None) -> int:
        wanted = left.pop(0) if left else current
        return wanted if wanted in able else able[0]  # type: ignore[return-value]

    return choose
