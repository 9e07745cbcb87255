"""Honest clients among hostile ones: are all served in bounded time, and does the broker keep nothing?

    python -m vmmref.conformance.campaigns.broker [--hostile 10000] [--honest 100] [--seed 0] [--json FILE]

The broker serves in a process of its own, which counts its descriptors, threads and memory before, during and after.
Hostile clients come from some processes, honest ones from others, all of several threads. The seed draws what each
hostile thread does; how the threads interleave is the machine's.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from vmmref.broker import MOST_CLIENTS, DescriptorBroker, request_descriptor
from vmmref.conformance.campaigns.hostile import Served, Target, draw

DESCRIPTION = "Honest clients among hostile ones: are all served in bounded time, and does the broker keep nothing?"
CONTENT = b"the pool's memory"
PROCESSES = 2
"""Of either side."""
THREADS = 4
"""In each of them."""
ANSWER_SECONDS = 600.0
"""A process that has not answered for so long is taken for hung (LIFE-5)."""
SETTLE_SECONDS = 10.0
"""When all clients are gone the broker has this long to notice."""
MOST_GROWTH_BYTES = 4 << 20
"""Of resident memory: what an interpreter's and the allocator's caches come to; a leak a client would pass it soon."""
_MOST_TOLD = 10
_WATCH_SECONDS = 0.05
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Counts:
    """What the broker's process has."""

    descriptors: int
    threads: int
    resident_bytes: int

    @classmethod
    def of_this_process(cls) -> Counts:
        """Counted now; the listing's own descriptor is left out."""
        status = Path("/proc/self/status").read_text(encoding="ascii")
        (resident,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:"))
        return cls(len(os.listdir("/proc/self/fd")) - 1, len(os.listdir("/proc/self/task")), 1024 * int(resident))


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a campaign. Latencies in seconds, each of one honest request with all its attempts."""

    seed: int
    hostile: dict[str, int]
    """Hostile clients by kind."""
    latencies: tuple[float, ...]
    wrong: tuple[str, ...]
    """What should not have happened, in words, the first ones of each process."""
    before: Counts
    peak: Counts
    after: Counts
    seconds: float

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that is not as it should be; empty for a clean run."""
        found = list(self.wrong)
        if (self.after.descriptors, self.after.threads) != (self.before.descriptors, self.before.threads):
            found.append(f"the broker's process had {self.before} before and {self.after} after")
        if self.peak.descriptors > self.before.descriptors + MOST_CLIENTS + 1:
            found.append(f"{self.peak.descriptors} descriptors at a time, {self.before.descriptors} before")
        if self.after.resident_bytes > self.before.resident_bytes + MOST_GROWTH_BYTES:
            found.append(f"resident memory has grown from {self.before.resident_bytes} to {self.after.resident_bytes}")
        return tuple(found)

    def latency(self, share: float) -> float:
        """The latency that this share of the honest requests did not exceed."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


# ---- the broker's process


def serve(connection: Connection, broker_type: type[DescriptorBroker]) -> None:
    """Serve a small file, and count when asked to, until the other side says "end"."""
    descriptor = os.memfd_create("pool", os.MFD_CLOEXEC)
    os.write(descriptor, CONTENT)
    broker = broker_type(descriptor, "CUDA VMM")
    broker.start()
    connection.send(broker.locator)
    while connection.recv() != "end":
        # A broker that has died is an answer, too.
        broker.start()
        connection.send(Counts.of_this_process())
    broker.close(10)


# ---- the clients' processes


@dataclass(frozen=True, slots=True)
class Told:
    """What a process of clients has to tell."""

    kinds: list[str]
    """Of the hostile ones that came."""
    latencies: list[float]
    wrong: list[str]


def attack(connection: Connection, locator: bytes, seed: int, shares: list[int], turns: Any, every: int) -> None:
    """Hostile clients from one thread a share; every `every`-th lets an honest one take its turn."""
    told = Told([], [], [])

    def be_hostile(number: int) -> None:
        randomness = random.Random(f"{seed} {number}")
        # Drawn before any of them draws from the same source, and how much that is depends on the broker's answers.
        kinds = [draw(randomness) for _ in range(shares[number])]
        with contextlib.closing(Target(locator, randomness)) as target:
            for done, kind in enumerate(kinds, start=1):
                told.kinds.append(kind.__name__)
                try:
                    kind(target)
                except (OSError, Served) as error:
                    told.wrong.append(f"{kind.__name__}: {type(error).__name__}: {error}")
                    if isinstance(error, TimeoutError):
                        # The others of this thread would hang as long, one after the other.
                        return
                if done % every == 0:
                    turns.release()

    _in_threads(be_hostile, len(shares))
    connection.send(told)


def ask(connection: Connection, locator: bytes, shares: list[int], turns: Any) -> None:
    """Honest clients from one thread a share, each when it is its turn."""
    told = Told([], [], [])

    def be_honest(number: int) -> None:
        for _ in range(shares[number]):
            if not turns.acquire(timeout=ANSWER_SECONDS):
                told.wrong.append("an honest client's turn has not come")
                return
            started = time.monotonic()
            try:
                descriptor = request_descriptor(locator, "CUDA VMM")
            except Exception as error:
                told.wrong.append(f"an honest client was not served: {error}")
                return
            told.latencies.append(time.monotonic() - started)
            content = os.pread(descriptor, 2 * len(CONTENT), 0)
            os.close(descriptor)
            if content != CONTENT:
                told.wrong.append(f"an honest client got a file with {content!r}")

    _in_threads(be_honest, len(shares))
    connection.send(told)


def _in_threads(work: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# ---- the campaign


def run(hostile: int, honest: int, seed: int = 0, broker_type: type[DescriptorBroker] = DescriptorBroker) -> Result:
    """Let `hostile` clients loose on a broker, and `honest` ones among them.

    Raises TimeoutError when a process does not answer, EOFError when one has died.
    """
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        producer = stack.enter_context(_process(serve, broker_type))
        locator = _answer(producer)
        before = _warmed_up(producer, locator)
        turns = _SPAWN.Semaphore(0)
        every = max(1, hostile // max(1, honest))
        attackers = [
            stack.enter_context(_process(attack, locator, PROCESSES * seed + number, shares, turns, every))
            for number, shares in enumerate(_shares(hostile))
        ]
        askers = [stack.enter_context(_process(ask, locator, shares, turns)) for shares in _shares(honest)]
        attacked, peak = _watched(producer, attackers, before)
        # Honest ones that have not had their turn have it now.
        for _ in range(honest):
            turns.release()
        asked, peak = _watched(producer, askers, peak)
        after = _settled(producer, before)
        producer.send("end")
    return _result(seed, [*attacked, *asked], before, peak, after, time.monotonic() - started)


def _watched(producer: Connection, clients: list[Connection], peak: Counts) -> tuple[list[Told], Counts]:
    """What processes of clients tell at their end, and the most that the broker's process has had by then."""
    deadline = time.monotonic() + ANSWER_SECONDS
    told: list[Told] = []
    for connection in clients:
        while not connection.poll(_WATCH_SECONDS):
            peak = _higher(peak, _count(producer))
            if time.monotonic() > deadline:
                raise TimeoutError(f"a process of clients has not answered for {ANSWER_SECONDS} s")
        told.append(connection.recv())
    return told, _higher(peak, _count(producer))


def _result(seed: int, told: list[Told], before: Counts, peak: Counts, after: Counts, seconds: float) -> Result:
    kinds = Counter(kind for one in told for kind in one.kinds)
    latencies = tuple(latency for one in told for latency in one.latencies)
    wrong = tuple(text for one in told for text in one.wrong[:_MOST_TOLD])
    return Result(seed, dict(sorted(kinds.items())), latencies, wrong, before, peak, after, seconds)


def _shares(total: int) -> list[list[int]]:
    """`total` clients dealt out to processes and their threads."""
    workers = PROCESSES * THREADS
    dealt = [total * (number + 1) // workers - total * number // workers for number in range(workers)]
    return [dealt[first : first + THREADS] for first in range(0, workers, THREADS)]


def _warmed_up(producer: Connection, locator: bytes) -> Counts:
    """The counts before the first client; the memory after a few, because what is taken once is no growth."""
    first = _count(producer)
    for _ in range(2 * MOST_CLIENTS):
        os.close(request_descriptor(locator, "CUDA VMM"))
    return dataclasses.replace(first, resident_bytes=_count(producer).resident_bytes)


def _settled(producer: Connection, before: Counts) -> Counts:
    """The counts once they are what they were before; the last ones at the end of the broker's patience."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while (after := _count(producer)).descriptors != before.descriptors and time.monotonic() < deadline:
        time.sleep(0.05)
    return after


def _count(producer: Connection) -> Counts:
    producer.send("count")
    counts: Counts = _answer(producer)
    return counts


def _higher(one: Counts, other: Counts) -> Counts:
    return Counts(*map(max, dataclasses.astuple(one), dataclasses.astuple(other)))


def _answer(connection: Connection) -> Any:
    if not connection.poll(ANSWER_SECONDS):
        raise TimeoutError(f"a process has not answered for {ANSWER_SECONDS} s")
    return connection.recv()


@contextlib.contextmanager
def _process(work: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    """A process that does `work` with one end of a pipe; the other end. It is not there any more afterwards."""
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=work, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()


def _report(result: Result) -> dict[str, Any]:
    return {
        "seed": result.seed,
        "hostile": result.hostile,
        "honest": len(result.latencies),
        "latency_seconds": {"median": result.latency(0.5), "p99": result.latency(0.99), "most": result.latency(1.0)},
        "counts": {name: dataclasses.asdict(getattr(result, name)) for name in ("before", "peak", "after")},
        "problems": list(result.problems),
        "seconds": result.seconds,
    }


def _clients(text: str) -> int:
    """A number of clients; raises ValueError, of which argparse makes a sentence."""
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def main(arguments: list[str]) -> int:
    """Run one campaign; 0 when it was clean."""
    parser = argparse.ArgumentParser(prog="python -m vmmref.conformance.campaigns.broker", description=DESCRIPTION)
    parser.add_argument("--hostile", type=_clients, default=10_000, help="hostile clients")
    parser.add_argument("--honest", type=_clients, default=100, help="honest clients")
    parser.add_argument("--seed", type=int, default=0, help="what draws the hostile clients")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a report")
    options = parser.parse_args(arguments)
    result = run(options.hostile, options.honest, options.seed)
    print(f"seed {result.seed}: {sum(result.hostile.values())} hostile clients in {result.seconds:.1f} s")
    print(", ".join(f"{kind} {count}" for kind, count in result.hostile.items()))
    print(
        f"{len(result.latencies)} honest ones served; median {1000 * result.latency(0.5):.1f} ms, "
        f"p99 {1000 * result.latency(0.99):.1f} ms, most {1000 * result.latency(1.0):.1f} ms"
    )
    for name, counts in (("before", result.before), ("peak", result.peak), ("after", result.after)):
        resident = counts.resident_bytes / 2**20
        print(f"{name}: {counts.descriptors} descriptors, {counts.threads} threads, {resident:.1f} MiB resident")
    for problem in result.problems:
        print(f"problem: {problem}")
    if options.json is not None:
        options.json.write_text(json.dumps(_report(result), indent=2) + "\n", encoding="utf-8")
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
