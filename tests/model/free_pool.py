"""A pool that uses every freedom it has: places, orders, and what a failed driver call leaves behind.

It is made of the model's own parts but decides by itself, so that a model which follows it must read every choice off
what the pool answers and shows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

from tests.model.walks import Drawer, shapes
from vmmref_models import (
    Monitor,
    Observation,
    Outcome,
    Policies,
    Reason,
    Run,
    Shape,
    State,
    Step,
    allocation,
    difference,
    initial,
    observe,
    runnable,
    settle,
    step,
    streams,
)
from vmmref_models.consuming import share
from vmmref_models.operations import (
    Advance,
    Attempt,
    Borrow,
    Cancel,
    Collect,
    Confirm,
    Construct,
    Deliver,
    Disturbed,
    Faulty,
    Fetch,
    LeaseView,
    Operation,
    Publish,
    Read,
    Reclaim,
    Recycle,
    Release,
    Return,
    Wrap,
    WrapPack,
)
from vmmref_models.processes import reap, with_import
from vmmref_models.publishing import laid_out
from vmmref_models.state import ACK, COPY_OUT, ENDED, READ_READY, Piece, replaced
from vmmref_models.streams import PUBLISH_QUEUE, rank_queue
from vmmref_models.taking_back import claimed, complete, freed, let_go, may_be_looked_at, retired
from vmmref_models.trace import text

FAILED = Outcome("failed", Reason.DRIVER_CALL_FAILED, message="cuMemcpyAsync failed")


class FreePool:
    """One pool; `state` is the truth about it."""

    def __init__(self, shape: Shape, policies: Policies, rng: Random, *, stepping: bool = True) -> None:
        self.state = initial(shape, policies)
        self.rng = rng
        self.stepping = stepping
        self.last = observe(self.state)

    def apply(self, operation: Operation) -> Outcome:
        """Do one operation, with chance deciding whatever no rule decides."""
        outcome = self._apply(operation)
        if not self.stepping or outcome.kind == "failed":
            self.state = settle(self.state)
        return outcome

    def _apply(self, operation: Operation) -> Outcome:
        if isinstance(operation, Faulty):
            if not self.state.closed and not self.state.failed and self.rng.random() < 0.8:
                return self._fail(operation.operation)
            operation = operation.operation
        seen = self._place(operation) if isinstance(operation, Publish | Wrap | WrapPack) else None
        observed = None
        if isinstance(operation, Read | Fetch | Borrow | Release | Confirm):
            # A call that is refused by the table may have imported the pool to find out.
            imports = tuple(self.rng.randint(0, 1) for _ in self.state.consumers.imported)
            observed = Observation(self.state.life, imports=imports)
        after, outcome = step(self.state, operation, seen, observed)
        if isinstance(operation, Recycle | Reclaim) and not self.state.closed:
            order = self._shuffled_tail(self.state.allocator.free_slots, after.allocator.free_slots)
            after, outcome = step(self.state, operation, None, Observation("open", free_slots=order))
        self.state = after
        return outcome

    def observe(self) -> Observation:
        """What it shows; after a failure for good what it showed before, and its life."""
        if self.state.failed:
            words = None if self.state.closed else self.last.words
            return replace(self.last, life=self.state.life, words=words, imports=observe(self.state).imports)
        self.last = observe(self.state)
        return self.last

    def _place(self, operation: Publish | Wrap | WrapPack) -> Outcome | None:
        """A place of the pool's own choice, where its policies leave it one."""
        nbytes = self._nbytes(operation)
        allocator, policies, size = self.state.allocator, self.state.policies, allocation.rounded(nbytes)
        fitting = [free for free in allocator.free_ranges if free[1] - free[0] >= size]
        if not fitting or not allocator.free_slots:
            return None
        start, end = self.rng.choice(fitting)
        start += 256 * self.rng.randint(0, (end - start - size) // 256)
        slot = self.rng.choice(allocator.free_slots)
        if policies.fit == "best" and policies.slot_order == "fifo":
            return None
        return Outcome("done", lease=LeaseView(slot, 0, start, start + size, nbytes))

    def _nbytes(self, operation: Publish | Wrap | WrapPack) -> int:
        """A pack may be laid out with more padding than is needed."""
        if not isinstance(operation, WrapPack):
            return operation.nbytes
        nbytes = laid_out(operation.payloads, operation.sizes)[1]
        return self.rng.randint(nbytes, max(nbytes, sum(operation.sizes) + len(operation.sizes) - 1))

    def _shuffled_tail(self, before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...]:
        tail = list(after[len(before) :])
        self.rng.shuffle(tail)
        return (*before, *tail)

    # --- failures ---

    def _fail(self, operation: Disturbed) -> Outcome:
        """Fail somewhere inside; an operation that would reach no driver call answers as ever."""
        publishes = isinstance(operation, Publish | Wrap | WrapPack)
        seen = self._place(operation) if isinstance(operation, Publish | Wrap | WrapPack) else None
        after, normal = step(self.state, operation, seen)
        if normal.kind != "done" or normal.cached:
            self.state = after
            return normal
        if isinstance(operation, Construct | Attempt):
            return replace(FAILED, leftovers=0)
        if isinstance(operation, Read | Fetch | Borrow):
            return self._fail_read(operation)
        if self.rng.random() < 0.08:
            self.state = replace(self.state, failed=True)
            return Outcome("failed", Reason.POOL_FAILED, message="device state unknown")
        if publishes:
            return self._fail_publish(operation, seen)
        return self._fail_claims(operation)

    def _fail_publish(self, operation: Disturbed, seen: Outcome | None) -> Outcome:
        depth = self.rng.randint(0, 2)
        if depth == 0:
            return FAILED
        state, outcome = step(self.state, operation, seen)
        assert outcome.lease is not None, "the publish was checked to succeed"
        lease = state.published[-1]
        if depth == 1:  # Nothing was queued yet.
            state = replace(state, device=self.state.device, allocator=allocation.claim(state.allocator, lease.slot))
        else:
            queue = state.device.queues[PUBLISH_QUEUE]
            state = replace(state, device=streams.run(state.device, PUBLISH_QUEUE, len(queue)))
            state = claimed(state, lease)
            state = replace(state, device=streams.retired_up_to(state.device, lease))
        before = self.state
        state = freed(state, (lease.slot,))
        self.state = replace(state, published=before.published, dispatched=before.dispatched)
        return FAILED

    def _fail_read(self, operation: Read | Fetch | Borrow) -> Outcome:
        state = self.state
        proxy = state.proxy(operation.proxy)
        assert proxy is not None, "the read was checked to begin"
        lease, rank, consumers = proxy.lease, proxy.rank, state.consumers
        depth = self.rng.randint(0, 2)
        if depth == 0:  # The import failed, or the call behind it.
            imported = consumers.imported[state.process_of(rank)] or self.rng.random() < 0.5
            self.state = replace(state, consumers=with_import(state, consumers, rank, imported))
            return replace(FAILED, count=0)
        proxies = tuple(replace(p, state=ENDED) if p is proxy or share(p, proxy) else p for p in consumers.proxies)
        row = replaced(consumers.tables[rank], lease.slot, lease.generation)
        tables = replaced(consumers.tables, rank, row)
        work = [Piece(COPY_OUT, lease, rank), Piece(READ_READY, lease, rank)][: self.rng.randint(0, 2)]
        device = streams.queued(state.device, rank_queue(rank), *work, Piece(ACK, lease, rank))
        if depth == 2:
            device = streams.run(device, rank_queue(rank), len(device.queues[rank_queue(rank)]))
        consumers = replace(with_import(state, consumers, rank), tables=tables, proxies=proxies)
        self.state = replace(state, consumers=consumers, device=device)
        return replace(FAILED, count=1)

    def _fail_claims(self, operation: Disturbed) -> Outcome:
        """Some claims are carried through, some of them up to retiring, some undone."""
        state = self.state
        if isinstance(operation, Recycle):
            state, _ = reap(state)
            if self.rng.random() < 0.5:
                state = let_go(state, state.device.words)
            leases = complete(state, state.device.words)
        else:
            token = operation.lease if isinstance(operation, Cancel) else None
            leases = tuple(lease for lease in state.published if lease.token == token)
        for lease in leases:
            if state.is_active(lease) and self.rng.random() < 0.6:
                state = claimed(state, lease)
                if isinstance(operation, Cancel) and may_be_looked_at(state, lease):
                    state = replace(state, allocator=allocation.guard(state.allocator, lease.slot))
        if self.rng.random() < 0.6:
            state = replace(state, device=streams.retired_up_to(state.device))
            state = self._freed_in_part(state)
        self.state = state
        return FAILED

    def _freed_in_part(self, state: State) -> State:
        slots = tuple(slot for slot in retired(state) if self.rng.random() < 0.5)
        guarded = tuple(slot for slot in slots if slot in state.allocator.guarded)
        state = replace(state, allocator=allocation.hold_back(state.allocator, guarded))
        return freed(state, tuple(slot for slot in slots if slot not in guarded))


class Walk:
    """Drives free pools with chance, the model following, and fails at the first word against either."""

    def __init__(self, policies: Policies, seed: int, *, stepping: bool = True) -> None:
        self.policies = policies
        self.rng = Random(seed)
        self.stepping = stepping
        self.monitor = Monitor(policies)
        self.answers = Counter[str]()
        self.steps = 0
        self.done: list[str] = []

    def episode(self, length: int) -> None:
        """One pool from its making to its end."""
        shape, drawer = shapes(self.rng), Drawer(self.rng, faults=True, stepping=self.stepping)
        pool = FreePool(shape, self.policies, self.rng, stepping=self.stepping)
        state, self.done = initial(shape, self.policies), [str(shape)]
        self.monitor.start()
        for _ in range(length):
            state = self.step(pool, state, drawer.draw(state))
        driven_home = not state.closed and not state.failed
        if driven_home:
            state = self._drive_home(pool, state, drawer)
        run = Run(pool.observe(), state, driven_home, leftovers={"streams": 0})
        broken = self.monitor.finish(run)
        assert not broken, (self.done, broken)

    def step(self, pool: FreePool, state: State, operation: Operation) -> State:
        """One operation on pool and model."""
        before, seen = pool.observe(), pool.apply(operation)
        after = pool.observe()
        self.done.append(f"{text(operation)} -> {seen.kind}")
        broken = self.monitor.judge(Step(before, after, operation, seen, state))
        assert not broken, (self.done, [(rule.id, verdict) for rule, verdict in broken])
        state, expected = step(state, operation, seen, after)
        state = state if self.stepping else settle(state)
        differs = difference(observe(state), after, operation, expected, seen, self.policies)
        assert differs is None, (self.done, differs)
        self.answers[f"{type(operation).__name__} {seen.kind}"] += 1
        self.steps += 1
        return state

    def _drive_home(self, pool: FreePool, state: State, drawer: Drawer) -> State:
        """Collect, return views, cancel what was never dispatched, release what a rank owes, run everything, recycle.

        Once more, because a pass may set aside what only the next one frees.
        """
        for reader in state.consumers.readers:
            state = self.step(pool, state, Collect(reader.token))
        for view in state.consumers.views:
            state = self.step(pool, state, Return(view.token))
        for lease in state.allocator.held:
            if lease is None:
                continue
            if lease.token not in state.dispatched:
                state = self.step(pool, state, Cancel(lease.token, True)) if state.is_active(lease) else state
                continue
            for rank in lease.speakers(state.shape.consumers):
                if rank in state.consumers.dead:
                    continue
                drawer.token += 1
                state = self.step(pool, state, Deliver(lease.token, drawer.token, rank))
                state = self.step(pool, state, Release(drawer.token))
        while runnable(state):
            state = self.step(pool, state, Advance(runnable(state)[0]))
        return self.step(pool, self.step(pool, state, Recycle()), Recycle())
