"""What an experiment works with: a place to make pools in, a source of choices, and a list of what is not right."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from vmmref.conformance import payloads
from vmmref.conformance.subjects import simulation
from vmmref.conformance.subjects.outcomes import outcome_of
from vmmref.conformance.subjects.parts import Parts
from vmmref.errors import VmmRefError
from vmmref.imports import IMPORTS, close_imports
from vmmref.pool import VmmMemoryPool
from vmmref.proxy import TensorProxy
from vmmref.simcuda import Simulator
from vmmref_models.operations import DONE, Outcome, Payload

PATIENCE_SECONDS = 10.0
"""Any wait of an experiment ends by then."""
DTYPES = ("uint8", "int16", "float32", "float64", "bool", "bfloat16", "complex64")


@dataclass(frozen=True, slots=True)
class Ground:
    """Where experiments take place."""

    device: str
    torch_device: str
    """Where torch keeps this device's tensors."""
    granularity: int
    """Bytes of the smallest allocation."""
    parts: Parts
    simulator: Simulator | None
    """None on a real device: then what the driver holds cannot be counted."""


class Trial:
    """One run of one experiment. `failing_call` is the driver call that `faults` makes fail, 0 = none."""

    def __init__(self, ground: Ground, seed: str, failing_call: int = 0) -> None:
        self.ground = ground
        self.parts = ground.parts
        self.random = random.Random(seed)
        self.wrong: list[str] = []
        """Whatever is not as it must be, a phrase each."""
        self.kept: Counter[str] = Counter()
        """What the driver has refused to take back, by kind: it stays, and is nobody's leak."""
        self._failing_call = failing_call

    def check(self, right: bool, phrase: str) -> None:
        """Note `phrase` unless it is right."""
        if not right:
            self.wrong.append(phrase)

    def chance(self) -> bool:
        """One of two."""
        return self.random.random() < 0.5

    @property
    def fails_a_call(self) -> bool:
        """Whether a driver call is made to fail; then the calls must come in the same order every time."""
        return self._failing_call > 0

    @contextlib.contextmanager
    def faults(self) -> Iterator[None]:
        """Inside, the experiment's driver call of that number fails, where one is to fail."""
        simulator = self.ground.simulator
        if self._failing_call and simulator is not None:
            simulator.fail_any(self._failing_call, simulation.UNKNOWN_ERROR)
        try:
            yield
        finally:
            if simulator is not None:
                simulator.clear_faults()

    @contextlib.contextmanager
    def pool(
        self, consumers: int = 1, slots: int = 4, handle_type: str = "", **settings: Any
    ) -> Iterator[VmmMemoryPool]:
        """A pool of its own for this experiment; its imports here and the pool end with the context."""
        pool = self.parts.pool(
            self.ground.granularity,
            self.ground.device,
            consumers,
            None,
            slots,
            handle_type=handle_type or self.handle_type(),
            wait_timeout=PATIENCE_SECONDS,
            **settings,
        )
        try:
            yield pool
        finally:
            close_imports(pool.card.nonce)
            pool.shutdown()

    def handle_type(self) -> str:
        """One of the two roads to an import; a real device may lack FABRIC."""
        return "fabric" if self.ground.simulator is not None and self.chance() else "posix_fd"

    def payload(self, most_elements: int = 64) -> Payload:
        """A small payload of any dtype, shape and layout."""
        count = 1 + self.random.randrange(most_elements)
        shape = self.random.choice(((count,), (count, 1), (1, count), (2, count), ()))
        return Payload(
            self.random.choice(DTYPES), shape, self.random.randrange(1000), self.random.choice(payloads.LAYOUTS)
        )

    def tensor(self, payload: Payload) -> torch.Tensor:
        """The payload as a tensor on the device. Shared: never written to."""
        return payloads.source(payload, self.ground.torch_device)

    def published(self, pool: VmmMemoryPool) -> TensorProxy:
        """The proxy of something that was published in a pool with room."""
        proxy = pool.wrap_tensor(self.tensor(self.payload()))
        assert proxy is not None, "the pool has room"
        return proxy


def settle(pool: VmmMemoryPool) -> None:
    """Let what the ranks of this process have queued on a pool run to its end."""
    for imported in IMPORTS.find(pool.card.nonce):
        imported.synchronize(PATIENCE_SECONDS)


def answer_of(call: Callable[[], object], kept: Counter[str] | None = None) -> Outcome:
    """What one call is answered: done, or refused with its reason. `kept` as for `outcome_of`."""
    try:
        call()
    except VmmRefError as error:
        return outcome_of(error, Counter() if kept is None else kept)
    return DONE


def open_descriptors() -> frozenset[int]:
    """Numbers of this process's open descriptors; the one that the listing itself uses is gone again."""
    listed = frozenset(int(name) for name in os.listdir("/proc/self/fd"))
    return frozenset(number for number in listed if _is_open(number))


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def in_fork(body: Callable[[], bytes]) -> bytes:
    """What `body` answers in a forked child, at most 4096 bytes; b"" when it has not answered in time. No exec."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    with warnings.catch_warnings():
        # Newer Pythons warn of any fork of a process with threads; the child touches nothing that a thread may hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            os.write(writing, body()[:4096])
        finally:
            # Nothing of the parent's may run here: no atexit, no flush, no destructor.
            os._exit(0)
    os.close(writing)
    try:
        ready, _, _ = select.select([reading], [], [], PATIENCE_SECONDS)
        return os.read(reading, 4096) if ready else b""
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
