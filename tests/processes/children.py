"""Processes that the tests start, and what they do when asked. Every answer has an end, all are killed after use."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

from vmmref import errors
from vmmref.conformance import payloads
from vmmref.conformance.cycles import held
from vmmref.conformance.processes import Link, Process
from vmmref.imports import close_imports
from vmmref.pool import VmmMemoryPool
from vmmref.proxy import TensorProxy

GRANULE = 2 << 20


class Child:
    """A process that answers requests one by one: (name of a method of its state, arguments). Both travel pickled."""

    def __init__(self, state: Callable[[], Any]) -> None:
        self.process = Process(f"{__name__}:serve", pickle.dumps(state).hex())

    def ask(self, request: str, *arguments: Any) -> Any:
        """The answer; raises what the process raised, or TimeoutError when it does not answer."""
        self.send(request, *arguments)
        return self.answer()

    def send(self, request: str, *arguments: Any) -> None:
        """Ask, and do not wait for the answer."""
        self.process.link.send(pickle.dumps((request, arguments)).hex())

    def answer(self) -> Any:
        """The next answer."""
        failed, answer = pickle.loads(bytes.fromhex(self.process.link.receive()))
        if failed:
            raise answer
        return answer

    def kill(self) -> None:
        """End the process without any clean-up of its own."""
        self.process.kill()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.end()


def serve(link: Link, state: str) -> None:
    """The process's main function: answers until the other side hangs up."""
    served = pickle.loads(bytes.fromhex(state))()
    while True:
        request, arguments = pickle.loads(bytes.fromhex(link.receive(seconds=None)))
        try:
            answer = (False, getattr(served, request)(*arguments))
        except errors.VmmRefError as error:
            answer = (True, Told(error))
        except Exception as error:
            answer = (True, RuntimeError(f"{type(error).__name__}: {error}"))
        link.send(pickle.dumps(answer).hex())


class Told(Exception):
    """A refusal in another process: its reason, and its text."""

    def __init__(self, error: errors.VmmRefError) -> None:
        super().__init__(str(error.reason), str(error))
        self.reason = str(error.reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return _told, self.args


def _told(reason: str, text: str) -> Told:
    told = Told.__new__(Told)
    Exception.__init__(told, reason, text)
    told.reason = reason
    return told


class Rank:
    """A consumer process of one rank."""

    def __init__(self, rank: int, consumers: int) -> None:
        self.rank = rank
        self.consumers = consumers
        self.kept: list[torch.Tensor] = []

    def read(self, proxy: TensorProxy) -> tuple[str, tuple[int, ...], int]:
        """Reconstruct: dtype, shape and digest."""
        tensor = proxy.reconstruct_on_target_device("sim", self.consumers, self.rank)
        self.kept.append(tensor)
        return str(tensor.dtype), tuple(tensor.shape), payloads.digest(tensor)

    def read_all(self, proxies: list[TensorProxy]) -> list[int]:
        """Reconstruct many: their digests."""
        return [self.read(proxy)[2] for proxy in proxies]

    def release(self, proxy: TensorProxy) -> None:
        """Acknowledge without reading."""
        proxy.release_without_reconstruction(self.consumers, self.rank)

    def close(self) -> tuple[dict[str, int], int]:
        """Drop all imports; what this process still holds of the driver, and how many memory files it has open."""
        close_imports()
        return held(), len(descriptors_of_memory())


class Producer:
    """A producer process."""

    def __init__(self, handle_type: str) -> None:
        self.pool = VmmMemoryPool(GRANULE, "sim", 1, None, 8, handle_type=handle_type)

    def publish(self, value: int) -> TensorProxy | None:
        """Publish 256 bytes of `value`."""
        return self.pool.wrap_tensor(torch.full((256,), value, dtype=torch.uint8))


def descriptors_of_memory() -> list[str]:
    """Open descriptors of this process that are memory files."""
    targets = []
    for name in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return [target for target in targets if target.startswith("/memfd:")]
