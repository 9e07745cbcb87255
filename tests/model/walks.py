"""Seeded operations for the tests of the model: what a harness might ask, from a state alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from vmmref_models import Shape, State, enabled, runnable
from vmmref_models.attempts import ATTEMPTS
from vmmref_models.operations import (
    Advance,
    Attempt,
    Borrow,
    Cancel,
    CancelProxy,
    Claim,
    Collect,
    Confirm,
    Construct,
    Crash,
    Deliver,
    Dispatch,
    Disturbed,
    DropImport,
    Expire,
    Faulty,
    Fetch,
    Groups,
    Import,
    Join,
    Look,
    Operation,
    Payload,
    Peek,
    Publish,
    PublishUnusable,
    Read,
    Reap,
    Reclaim,
    Recycle,
    Release,
    ReleaseAs,
    ReleaseLease,
    Return,
    Revoke,
    Shutdown,
    Tamper,
    Wrap,
    WrapPack,
)

T = TypeVar("T")

SIZES = (1, 100, 255, 256, 257, 300, 512, 700, 1024)
CONSTRUCTIONS = ("valid", "memory_size", "recycle_interval", "below-granule", "control-only", "backing-size")


def payload(nbytes: int, seed: int, layout: str = "contiguous") -> Payload:
    """A payload of that many bytes."""
    return Payload("uint8", (nbytes,), seed, layout)


def digest(seed: int) -> int:
    """A digest that differs for every seed."""
    return (seed * 2654435761 + 12345) & 0xFFFFFFFF


def publish(
    token: int, nbytes: int = 256, layout: str = "contiguous", groups: Groups = (), borrowable: bool = False
) -> Publish:
    """A publish of `nbytes`."""
    return Publish(token, payload(nbytes, token, layout), nbytes, digest(token), groups, borrowable)


def wrap(
    token: int, nbytes: int = 256, layout: str = "contiguous", groups: Groups = (), borrowable: bool = False
) -> Wrap:
    """A wrap of `nbytes`."""
    return Wrap(token, payload(nbytes, token, layout), nbytes, digest(token), groups, borrowable)


def pack(token: int, *sizes: int, element: int = 1, groups: Groups = ()) -> WrapPack:
    """A pack of uint8 tensors of these sizes; every other one has elements of `element` bytes instead."""
    dtypes = {1: "uint8", 4: "float32", 8: "float64"}
    payloads = tuple(
        Payload(dtypes[element], (nbytes // element,), token) if part % 2 else payload(nbytes, token)
        for part, nbytes in enumerate(sizes)
    )
    return WrapPack(token, payloads, sizes, tuple(digest(token + 1000 * part) for part in range(len(sizes))), groups)


def shapes(rng: Random) -> Shape:
    """A small pool, often near its generation limit."""
    slots, limit = rng.randint(1, 5), rng.choice([2, 3, 5, 2**31 - 1])
    issued = tuple(limit - rng.randint(0, 2) for _ in range(slots)) if rng.random() < 0.15 else ()
    apart = rng.random() < 0.5
    return Shape(slots, rng.randint(1, 3), 256 * rng.randint(1, 10), generation_limit=limit, issued=issued, apart=apart)


class Drawer:
    """Draws enabled operations; tokens are given once."""

    def __init__(self, rng: Random, faults: bool = False, stepping: bool = True) -> None:
        self.rng = rng
        self.token = 0
        self.faults = faults
        self.is_fault_due = False
        self.kinds: list[Callable[[State], Operation | None]] = [
            self._publish,
            self._publish,
            self._dispatch,
            self._deliver,
            self._deliver,
            self._read,
            self._read,
            self._collect,
            self._collect,
            self._fetch,
            self._release,
            self._release,
            self._look,
            self._claim,
            self._claim,
            self._reclaim,
            self._recycle,
            self._by_handle,
            self._rare,
            self._pack,
            self._confirm,
            self._look_in_place,
            self._look_in_place,
            self._by_proxy,
            self._of_processes,
            self._of_processes,
        ]
        if stepping:
            self.kinds += [self._advance] * 4

    def draw(self, state: State) -> Operation:
        """One operation that is enabled in this state."""
        if self.faults and self.rng.random() < 0.15:
            self.is_fault_due = True  # As soon as nothing is queued.
        while True:
            self.token += 1
            if self.is_fault_due:
                streams = runnable(state)
                self.is_fault_due = bool(streams)
                operation = Advance(self.rng.choice(streams)) if streams else self._faulty(state)
            else:
                operation = self.rng.choice(self.kinds)(state)
            if operation is not None and enabled(state, operation):
                return operation

    def _recent(self, items: Sequence[T]) -> T | None:
        """One of the items, mostly a late one."""
        if not items:
            return None
        return self.rng.choice(items[-4:] if self.rng.random() < 0.7 else items)

    def _publish(self, state: State) -> Operation:
        nbytes = self.rng.choice(SIZES)
        layout = "transposed" if self.rng.random() < 0.1 else "contiguous"
        make = publish if self.rng.random() < 0.5 else wrap
        return make(self.token, nbytes, layout, self._groups(state), self.rng.random() < 0.4)

    def _groups(self, state: State) -> Groups:
        """Mostly each rank alone; else the ranks in any order, cut at any places."""
        if self.rng.random() < 0.7:
            return ()
        ranks = list(range(state.shape.consumers))
        self.rng.shuffle(ranks)
        groups: list[list[int]] = [[]]
        for rank in ranks:
            if groups[-1] and self.rng.random() < 0.5:
                groups.append([])
            groups[-1].append(rank)
        return tuple(tuple(group) for group in groups)

    def _pack(self, state: State) -> Operation:
        sizes = [8 * self.rng.randint(1, 20) for _ in range(self.rng.randint(1, 3))]
        sizes[0] += self.rng.randint(0, 7)
        return pack(self.token, *sizes, element=self.rng.choice([1, 4, 8]), groups=self._groups(state))

    def _dispatch(self, state: State) -> Operation | None:
        lease = self._recent(state.published)
        return Dispatch(lease.token) if lease is not None else None

    def _deliver(self, state: State) -> Operation | None:
        lease = state.lease(self._recent(state.dispatched) or -1)
        if lease is None:
            return None
        part = self.rng.randrange(max(1, len(lease.digests)))
        return Deliver(lease.token, self.token, self.rng.randrange(state.shape.consumers), part)

    def _read(self, state: State) -> Operation | None:
        proxy = self._recent(state.consumers.proxies)
        return Read(proxy.token, self.token) if proxy is not None else None

    def _collect(self, state: State) -> Operation | None:
        reader = self._recent(state.consumers.readers)
        return Collect(reader.token) if reader is not None else None

    def _fetch(self, state: State) -> Operation | None:
        proxy = self._recent(state.consumers.proxies)
        return Fetch(proxy.token, self.token) if proxy is not None else None

    def _release(self, state: State) -> Operation | None:
        proxy = self._recent(state.consumers.proxies)
        return Release(proxy.token) if proxy is not None else None

    def _advance(self, state: State) -> Operation | None:
        stream = self._recent(runnable(state))
        return Advance(stream) if stream is not None else None

    def _look(self, state: State) -> Operation:
        return Look(self.token)

    def _claim(self, state: State) -> Operation | None:
        look = self._recent(state.looks)
        return Claim(look.token) if look is not None else None

    def _reclaim(self, state: State) -> Operation:
        return Reclaim(self.rng.random() < 0.3)

    def _recycle(self, state: State) -> Operation:
        return Recycle()

    def _by_handle(self, state: State) -> Operation | None:
        lease = self._recent(state.published)
        if lease is None or (state.is_active(lease) and self.rng.random() < 0.6):
            return None
        wait = self.rng.random() < 0.5
        how = self.rng.choice(["generation", "offset", "pool"])
        choices: list[Operation] = [
            Cancel(lease.token, wait),
            Revoke(lease.token, wait),
            ReleaseLease(lease.token),
            Tamper(lease.token, how),
        ]
        return self.rng.choice(choices)

    def _confirm(self, state: State) -> Operation | None:
        proxy = self._recent(state.consumers.proxies)
        if proxy is None or self.rng.random() < 0.6:
            return Confirm(proxy.token) if proxy is not None else None
        ranks = [self.rng.randrange(state.shape.consumers + 1) for _ in range(self.rng.randint(0, 3))]
        return ReleaseAs(proxy.token, tuple(ranks))

    def _look_in_place(self, state: State) -> Operation | None:
        views = state.consumers.views
        if views and self.rng.random() < 0.6:
            view = self.rng.choice(views).token
            return Peek(view) if self.rng.random() < 0.5 else Return(view)
        proxies = state.consumers.proxies
        if self.rng.random() < 0.8:
            proxies = tuple(proxy for proxy in proxies if proxy.lease.borrowable and state.is_active(proxy.lease))
        proxy = self._recent(proxies)
        return Borrow(proxy.token, self.token) if proxy is not None else None

    def _by_proxy(self, state: State) -> Operation | None:
        lease = state.lease(self._recent(state.dispatched) or -1)
        if lease is None or (state.is_active(lease) and not lease.is_pack and self.rng.random() < 0.8):
            return None
        return CancelProxy(lease.token, self.rng.randrange(max(1, len(lease.digests))))

    def _of_processes(self, state: State) -> Operation:
        rank = self.rng.randrange(state.shape.consumers)
        chance = self.rng.random()
        if rank in state.consumers.dead and chance < 0.5:
            return Join(rank)
        if chance < 0.2:
            return Crash(rank)
        if chance < 0.5:
            return Reap()
        if chance < 0.7:
            return Import(rank)
        return Expire() if chance < 0.8 else DropImport(rank)

    def _rare(self, state: State) -> Operation:
        if self.rng.random() < 0.1:
            return Shutdown()
        if self.rng.random() < 0.4:
            return Attempt(self.rng.choice(tuple(ATTEMPTS)), self.rng.randrange(100))
        if self.rng.random() < 0.4:
            return PublishUnusable(self.rng.choice(["empty", "wrong-device"]))
        return Construct(self.rng.choice(CONSTRUCTIONS))

    def _faulty(self, state: State) -> Operation | None:
        kinds = [self._publish, self._pack, self._read, self._fetch, self._look_in_place, self._recycle]
        operation = self.rng.choice([*kinds, self._by_handle, self._rare])(state)
        if isinstance(operation, Disturbed):
            return Faulty(operation, self.rng.randint(1, 6))
        return None
