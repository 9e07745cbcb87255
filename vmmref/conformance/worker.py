"""Searches and replays in processes of their own: a pool that hangs or crashes ends its worker, not the report."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from vmmref.conformance.failure import Failure
from vmmref.conformance.loading import Unusable, describe_error, load_subject
from vmmref.conformance.run import Rig, SubjectError, replay
from vmmref.conformance.search import CannotRun, Found, Plan, Progress, Search, Started, flavour_named
from vmmref.conformance.subject import Description
from vmmref_models import Operation, Shape

START_SECONDS = 120.0
"""Time for a worker to import torch, open the driver and describe its subject."""


@dataclass(frozen=True, slots=True)
class Task:
    """What one worker does: `phases` of a search from unit `first` on, one unit by itself, or one replay."""

    subject: str
    device: str
    plan: Plan
    phases: tuple[str, ...] = ()
    first: int = 0
    only: Started | None = None
    """Run this unit alone and tell each operation before it is done."""
    sequence: tuple[Shape, tuple[Operation, ...]] | None = None
    """Replay this, and tell each operation before it is done."""
    known: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class Described:
    """The worker has its subject."""

    description: Description


@dataclass(frozen=True, slots=True)
class Ended:
    """The worker has done its task; `failures` of a replay."""

    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The worker cannot do its task, for a reason in a sentence."""

    reason: str


Message = Started | Progress | Found | Described | Ended | GaveUp | Shape | Operation


def work(task: Task, pipe: Connection) -> None:
    """The body of a worker process."""
    # The parent ends the run when it is interrupted; a worker that printed a traceback too would only confuse.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Standard output is the report's; what a subject prints goes where messages go.
    os.dup2(2, 1)
    try:
        subject = load_subject(task.subject, task.device)
        watched = task.only is not None or task.sequence is not None
        # What is loaded by now stays: the collector need not go through it again and again.
        gc.collect()
        gc.freeze()
        rig = Rig(subject, pipe.send if watched else None)
        pipe.send(Described(rig.description))
        pipe.send(Ended(tuple(_do(task, rig, pipe))))
    except (Unusable, SubjectError, CannotRun) as error:
        pipe.send(GaveUp(str(error)))
    except (BrokenPipeError, EOFError):
        pass  # The parent is gone; so is the reason to go on.
    except Exception as error:
        # Ours, not the pool's: what a pool raises is caught where it is asked. Nothing may be said of the pool.
        pipe.send(GaveUp(f"the check itself failed: {describe_error(error)} ({_place(error)})"))
    finally:
        pipe.close()


def _place(error: BaseException) -> str:
    """Where an exception was raised: file, line and function."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name}" if frames else "nowhere"


def _do(task: Task, rig: Rig, pipe: Connection) -> list[Failure]:
    if task.sequence is not None:
        try:
            return replay(rig, *task.sequence)
        except ValueError as error:
            raise CannotRun(f"the subject refuses a pool of that shape: {error}") from error
    search = Search(rig, task.plan, pipe.send)
    search.failures.update({failure.rule: failure for failure in task.known})
    if task.only is not None:
        if task.only.phase == "walk":
            search.one_episode(task.only.index, flavour_named(task.only.flavour))
        else:
            search.one_batch(task.only.index)
        return []
    for phase in task.phases:
        if phase == "walk":
            search.walk(task.first)
        else:
            search.machine(task.first)
    return []


class Worker:
    """A process at work, as its parent sees it."""

    def __init__(self, task: Task) -> None:
        context = multiprocessing.get_context("spawn")
        self.task = task
        self.pipe, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=work, args=(task, theirs))
        self.unit: Started | None = None
        self.described = False
        self.heard = time.monotonic()
        self.process.start()
        theirs.close()

    def receive(self) -> Message | None:
        """The next message; None when the process has ended without one."""
        try:
            message: Any = self.pipe.recv()
        except (EOFError, OSError):
            return None
        self.heard = time.monotonic()
        if isinstance(message, Started):
            self.unit = message
        self.described = self.described or isinstance(message, Described)
        return message  # type: ignore[no-any-return]

    @property
    def silent(self) -> bool:
        """Whether it has said nothing for longer than any operation may take."""
        return time.monotonic() - self.heard > (self.task.plan.hang_seconds if self.described else START_SECONDS)

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join(10)
        self.pipe.close()

    def ending(self) -> str:
        """How the process ended, for people."""
        self.process.join(10)
        code = self.process.exitcode
        if code is None:
            return "closed its pipe and went on"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"was ended by {signal.Signals(-code).name}"
        return f"ended with status {code}"


def culprit(task: Task) -> tuple[Failure | None, str]:
    """Run a task that hung or crashed once more, operation by operation; the failure that it shows, and how it ended.

    LIFE-5 where an operation does not come back, ERR-2 where one takes the process with it; None where the second run
    ends well.
    """
    worker = Worker(task)
    shape: Shape | None = None
    operations: list[Operation] = []
    end = ""
    while not end:
        if worker.pipe.poll(0.25):
            message = worker.receive()
            if message is None:
                end = worker.ending()
            elif isinstance(message, Shape):
                shape, operations = message, []
            elif isinstance(message, Ended | GaveUp):
                worker.stop()
                return None, message.reason if isinstance(message, GaveUp) else ""
            elif not isinstance(message, Described | Progress | Found | Started):
                operations.append(message)
        elif worker.silent:
            end = f"did not come back within {task.plan.hang_seconds:g} s"
    worker.stop()
    if shape is None:
        return None, end
    hung = end.startswith("did not")
    rule, expected = ("LIFE-5", "it comes back") if hung else ("ERR-2", "it answers")
    got = f"the operation {end}" if hung else f"the process {end} during the operation"
    return Failure(rule, shape, tuple(operations), expected, got), end
