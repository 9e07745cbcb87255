"""The processes of the story: a producer and consumers that do one step when told, on streams that only they run."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable
from typing import Any

import torch

from vmmref import simcuda
from vmmref.conformance import payloads
from vmmref.conformance.kills.executioner import Executioner, Point
from vmmref.conformance.processes import Link
from vmmref.conformance.subjects import simulation
from vmmref.conformance.subjects.parts import Parts, parts_with
from vmmref.driver import calls, streams
from vmmref.driver.device import Device
from vmmref.errors import VmmRefError
from vmmref.imports import IMPORTS, close_imports
from vmmref.layout import ControlLayout
from vmmref.packed import PackedTensorProxy
from vmmref.proxy import Reconstruction, TensorProxy
from vmmref.simcuda import Blocked, Piece, PieceKind
from vmmref_models.operations import Payload

SLOTS = 12
RANKS = 3
DATA_BYTES = 32 << 10
GRANULE = 2 << 20
CONTROL = ControlLayout(SLOTS, RANKS, 4)


def payload(seed: int) -> Payload:
    """What lease `seed` of the story holds."""
    return Payload("float32", (5, 1 + 7 * seed), seed)


def led_by(speaker: int) -> list[int]:
    """All ranks as one group, the one first that acknowledges for them (ACK-4)."""
    return [speaker, *(rank for rank in range(RANKS) if rank != speaker)]


class Actor:
    """What both roles have: their device, streams that run when told, and what they hold in the end."""

    def __init__(self, executioner: Executioner | None) -> None:
        self._executioner = executioner
        self._device = Device("sim")
        simulator = simcuda.loaded()
        assert simulator is not None, "the story is told on the simulated driver"
        self._simulator = simulator
        simulator.set_mode("stepping")
        self._before = self._held()

    def _held(self) -> dict[str, int]:
        """What this process holds of the driver and of the kernel, by kind."""
        with open("/proc/self/maps", encoding="utf-8") as maps:
            shared = sum("/dev/shm/" in line or "/memfd:vmmref" in line for line in maps)
        held = {kind: count for kind, count in simulation.usage().items() if count}
        return held | {"open files": len(os.listdir("/proc/self/fd")), "shared mappings": shared}

    def left(self) -> dict[str, int]:
        """By kind, how much more than at its start this process holds; violations of the driver's contract, too."""
        now = self._held()
        more = {kind: count - self._before.get(kind, 0) for kind, count in now.items()}
        more["violations"] = len(self._simulator.violations())
        return {kind: count for kind, count in more.items() if count}

    def run(self) -> int:
        """Let all queued stream work run, oldest first; how many pieces."""
        count = 0
        while self._run_piece():
            count += 1
        return count

    def run_until(self, event: int) -> None:
        """Let queued stream work run until `event` is done: what a waiting host does in a stepping simulator."""
        while not calls.event_done(event) and self._run_piece():
            pass

    def _run_piece(self) -> bool:
        piece = self._simulator.step_submission()
        if piece is None or isinstance(piece, Blocked):
            return False
        if self._executioner is not None:
            self._executioner.piece_has_run(self._name_of(piece))
        return True

    def _name_of(self, piece: Piece) -> str:
        raise NotImplementedError


class Producer(Actor):
    """The process with the pool."""

    def __init__(self, executioner: Executioner | None, parts: Parts) -> None:
        super().__init__(executioner)
        self._parts = parts
        self._proxies: dict[int, TensorProxy | PackedTensorProxy] = {}

    def construct(self, handle_type: str) -> None:
        """Make the pool."""
        self._pool = self._parts.pool(GRANULE, "sim", RANKS, None, SLOTS, handle_type=handle_type, data_size=DATA_BYTES)

    def watch(self, rank: int, process_id: int) -> None:
        """Let the pool know who acts for a rank."""
        self._pool.watch_consumer(rank, process_id)

    def publish(self, seed: int, borrowable: bool = False, speaker: int | None = None) -> str:
        """Publish one tensor, for each rank or for all of them led by one; its proxy's wire form."""
        groups = None if speaker is None else [led_by(speaker)]
        proxy = self._pool.wrap_tensor(payloads.source(payload(seed)), borrowable, groups)
        assert proxy is not None, "the story's pool is never full"
        self._proxies[seed] = proxy
        return bytes(proxy).hex()

    def pack(self, seed: int) -> list[str]:
        """Publish two tensors in one lease, `seed` and the next; their wire forms."""
        packed = self._pool.wrap_tensors([payloads.source(payload(seed)), payloads.source(payload(seed + 1))])
        assert packed is not None, "the story's pool is never full"
        self._proxies[seed] = packed[0]
        return [bytes(one).hex() for one in packed]

    def revoke(self, seed: int) -> None:
        """End a lease whose proxy is out."""
        self._pool.revoke(self._proxies[seed].lease)

    def cancel(self, seed: int) -> None:
        """End a lease whose proxy never left."""
        self._pool.cancel_proxy(self._proxies[seed])

    def recycle(self, reaping: bool) -> int:
        """One pass, with or without counting the dead first; how many leases came back."""
        if reaping:
            return self._pool.recycle()
        self._pool.claim(self._pool.look())
        return self._pool.reclaim()

    def reap(self) -> list[int]:
        """Count the dead; their ranks."""
        return self._pool.reap()

    def words(self, rank: int) -> list[int]:
        """A[rank] of every slot."""
        words = memoryview(self._simulator.read_bytes(self._pool.address, CONTROL.control_bytes)).cast("I").tolist()
        return words[1 + rank :: 1 + RANKS]

    def is_out(self, seed: int) -> bool:
        """Whether a lease has not come back."""
        return self._proxies[seed].lease in self._pool.stats().leases

    def leases(self) -> tuple[int, int]:
        """How many leases are out, and how many bytes are free."""
        return self._pool.active_lease_count, self._pool.stats().free_bytes

    def shut_down(self) -> None:
        """End the pool."""
        self._pool.shutdown()

    def _name_of(self, piece: Piece) -> str:
        if piece.kind is PieceKind.WRITE:
            return "retire store" if piece.value % 2 else "ready store"
        if piece.kind is PieceKind.COPY:
            return "copy" if 0 <= piece.destination - self._pool.address < GRANULE else "look"
        return "zeroing of the words" if piece.kind is PieceKind.MEMSET else piece.kind.value


class Consumer(Actor):
    """The process of one rank."""

    def __init__(self, executioner: Executioner | None, rank: int) -> None:
        super().__init__(executioner)
        self._rank = rank
        self._proxies: dict[int, TensorProxy | PackedTensorProxy] = {}
        self._readings: dict[int, Reconstruction] = {}
        self._views: dict[int, torch.Tensor] = {}

    def deliver(self, seed: int, form: str) -> None:
        """A single tensor's proxy arrives."""
        self._proxies[seed] = TensorProxy.from_bytes(bytes.fromhex(form))

    def deliver_packed(self, seed: int, form: str) -> None:
        """The proxy of a tensor of a pack arrives."""
        self._proxies[seed] = PackedTensorProxy.from_bytes(bytes.fromhex(form))

    def read(self, seed: int) -> int:
        """Reconstruct; the digest of what came."""
        return payloads.digest(self._proxies[seed].reconstruct_on_target_device("sim", RANKS, self._rank))

    def read_for_all(self, seed: int) -> int:
        """Reconstruct in the name of every rank; the digest of what came."""
        ranks = led_by(self._rank)
        return payloads.digest(self._proxies[seed].reconstruct_on_target_device("sim", RANKS, ranks))

    def begin(self, seed: int) -> None:
        """Queue a reconstruction."""
        proxy = self._proxies[seed]
        assert isinstance(proxy, TensorProxy), "only a single tensor is read in two halves"
        self._readings[seed] = proxy.begin_reconstruction("sim", RANKS, self._rank)

    def finish(self, seed: int) -> int:
        """Wait for what was begun; the digest of what came."""
        return payloads.digest(self._readings.pop(seed).finish())

    def release(self, seed: int) -> None:
        """Acknowledge without reading."""
        self._proxies[seed].release_without_reconstruction(RANKS, self._rank)

    def borrow(self, seed: int) -> int:
        """Look at a tensor in place; its digest."""
        proxy = self._proxies[seed]
        assert isinstance(proxy, TensorProxy), "a pack cannot be borrowed"
        self._views[seed] = proxy.borrow_on_target_device("sim", RANKS, self._rank)
        return self.peek(seed)

    def peek(self, seed: int) -> int:
        """Look again; the digest."""
        return payloads.digest(self._views[seed])

    def give_back(self, seed: int) -> None:
        """Return a borrowed view."""
        proxy = self._proxies[seed]
        assert isinstance(proxy, TensorProxy), "a pack cannot be borrowed"
        del self._views[seed]
        proxy.release_borrowed(RANKS, self._rank)

    def drop(self) -> None:
        """Drop the import of the pool."""
        self._readings.clear()
        close_imports()

    def _name_of(self, piece: Piece) -> str:
        if piece.kind is PieceKind.MEMSET:
            return "acknowledgement"
        if piece.kind is PieceKind.COPY:
            nonce = next(iter(self._proxies.values())).card.nonce
            offset = piece.source - IMPORTS.find(nonce)[0].address
            if not 0 <= offset < CONTROL.control_bytes:
                return "copy-out"
            return "read of R" if piece.nbytes == CONTROL.word_bytes else "read of the words"
        return piece.kind.value


def produce(link: Link, point: list[Any] | None, broken: str | None) -> None:
    """The producer's process; `point` is where it dies, `broken` names a class in the place of one of the pool's."""
    executioner = None if point is None else Executioner(Point(*point))
    serve(link, Producer(executioner, parts_with(_named(broken))), executioner)


def consume(link: Link, point: list[Any] | None, rank: int) -> None:
    """The process of one rank; `point` is where it dies."""
    executioner = None if point is None else Executioner(Point(*point))
    serve(link, Consumer(executioner, rank), executioner)


def _named(name: str | None) -> type | None:
    return None if name is None else pkgutil.resolve_name(name)


def serve(link: Link, actor: Actor, executioner: Executioner | None) -> None:
    """Do one step a message until the story's teller hangs up."""
    with streams.progress(actor.run_until):
        while True:
            step, action, arguments = link.receive(seconds=None)
            if executioner is not None:
                executioner.step = step
            act: Callable[..., Any] = getattr(actor, action)
            try:
                link.send({"answer": act(*arguments)})
            except VmmRefError as error:
                link.send({"refused": str(error.reason), "text": str(error)})
