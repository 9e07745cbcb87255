"""Many hunts at once, in processes of their own: a broken pool that takes its process with it ends no report."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from vmmref.conformance.faulty.broken import CATALOGUE
from vmmref.conformance.faulty.hunt import Catch, hunt, judged
from vmmref.conformance.loading import describe_error
from vmmref.conformance.subject import Description
from vmmref.conformance.subjects.reference import ReferenceSubject
from vmmref.errors import VmmRefError

START_SECONDS = 120.0
"""Time for a process to import torch and open the driver."""
SPARE_SECONDS = 60.0
"""A hunt that takes so much longer than its orders allow has hung in a way that nothing could interrupt."""


@dataclass(frozen=True, slots=True)
class Orders:
    """How each hunt is done."""

    device: str = "sim"
    seeds: int = 1
    seconds: float = 15.0
    """For each seed of one pool."""
    shrink_seconds: float = 3.0


@dataclass(frozen=True, slots=True)
class Ready:
    """A process has its device: what it is, and which rules can be judged there."""

    description: Description
    rules: tuple[str, ...]


class CannotHunt(Exception):
    """No hunt can be done, for the reason in the text."""


def work(orders: Orders, pipe: Connection) -> None:
    """The body of a process: hunt the pools whose names come, until None does."""
    # The parent ends the run when it is interrupted; a process that printed a traceback too would only confuse.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        sound = ReferenceSubject(orders.device)
    except VmmRefError as error:
        pipe.send(describe_error(error))
        return
    pipe.send(Ready(sound.describe(), judged(sound)))
    for name in iter(pipe.recv, None):
        pipe.send(hunt(CATALOGUE[name], orders.device, orders.seeds, orders.seconds, orders.shrink_seconds))


class Hunter:
    """A process at work, as its parent sees it."""

    def __init__(self, orders: Orders) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(orders, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.name: str | None = None
        self.started = time.monotonic()
        self.end = self.started + START_SECONDS
        self._patience = orders.seeds * (orders.seconds + orders.shrink_seconds) + SPARE_SECONDS

    def send(self, name: str | None) -> None:
        """Let it hunt the pool of that name; None lets it end."""
        self.name = name
        self.started = time.monotonic()
        self.end = self.started + self._patience
        self.pipe.send(name)

    def receive(self) -> Ready | Catch | str | None:
        """What it says next; None when it has died."""
        try:
            message: Ready | Catch | str = self.pipe.recv()
        except (EOFError, OSError):
            return None
        return message

    def lost(self) -> Catch:
        """The catch of a hunt whose process died or had to be ended; the pool was not named."""
        assert self.name is not None, "it was hunting"
        self.process.join(1)
        self.stop()
        ending = f"the process ended with status {self.process.exitcode}"
        return Catch(CATALOGUE[self.name], seconds=time.monotonic() - self.started, note=ending)

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join(10)
        self.pipe.close()


Tell = Callable[[str, Catch | None], None]
"""Called with a pool's name and None when its hunt begins, and with its catch when it has ended."""


class Pack:
    """Hunters that share a list of pools. `ready` is what the first of them has found on the device."""

    def __init__(self, orders: Orders, hunters: int, tell: Tell = lambda name, catch: None) -> None:
        self.orders = orders
        self.count = hunters
        self.tell = tell
        self.ready: Ready | None = None
        self.catches: dict[str, Catch] = {}
        self._left: deque[str] = deque()
        self._hunters: list[Hunter] = []

    def run(self, names: Sequence[str]) -> dict[str, Catch]:
        """Hunt these pools; by name, in this order, those whose rule can be judged on the device.

        Raises CannotHunt where there is no such device, or where no process comes up.
        """
        self._left.extend(names)
        self._hunters = [Hunter(self.orders) for _ in range(min(self.count, len(names)))]
        try:
            while self._hunters:
                ready = wait([hunter.pipe for hunter in self._hunters], timeout=0.25)
                for hunter in tuple(self._hunters):
                    if hunter.pipe in ready:
                        self._take(hunter, hunter.receive())
                    elif time.monotonic() > hunter.end:
                        self._take(hunter, None)
        finally:
            for hunter in self._hunters:
                hunter.stop()
        return {name: self.catches[name] for name in names if name in self.catches}

    def _take(self, hunter: Hunter, message: Ready | Catch | str | None) -> None:
        if isinstance(message, str):
            raise CannotHunt(message)
        if message is None:
            self._hunters.remove(hunter)
            if hunter.name is None:
                hunter.stop()
                raise CannotHunt(f"a process ended with status {hunter.process.exitcode} before it had begun")
            self._note(hunter.lost())
            if self._left:
                self._hunters.append(Hunter(self.orders))
            return
        if isinstance(message, Ready):
            self.ready = message
        else:
            self._note(message)
        self._next(hunter)

    def _note(self, catch: Catch) -> None:
        self.catches[catch.pool.name] = catch
        self.tell(catch.pool.name, catch)

    def _next(self, hunter: Hunter) -> None:
        """Give a hunter the next pool that can be judged, or let it go."""
        assert self.ready is not None, "a hunter reports before it gets a pool"
        while self._left:
            name = self._left.popleft()
            if CATALOGUE[name].rule in self.ready.rules:
                self.tell(name, None)
                hunter.send(name)
                return
        hunter.send(None)
        self._hunters.remove(hunter)
        hunter.process.join(10)
        hunter.stop()
