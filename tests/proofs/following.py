"""How the proved machine follows a run of the searched one, and what the two must agree on."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any, Final

import z3

from tests.proofs.machine import INVARIANTS, Follower, LeftBehind
from vmmref_models.proofs.protocol.state import ENDED, FRESH, READING
from vmmref_models.small_pool.fields import Action, Fields
from vmmref_models.small_pool.pool import CHECK, HALF, Phase, Reader, SmallPool
from vmmref_models.small_pool.protocol import Protocol
from vmmref_models.small_pool.reader import meant
from vmmref_models.small_pool.scope import Scope
from vmmref_models.small_pool.system import actions_of


class Taken:
    """One step of the searched pool: who did what, and the fields before and after."""

    def __init__(self, action: Action, before: Fields, after: Fields) -> None:
        self.action = action
        self.before = before
        self.after = after

    def changed(self, kind: str) -> list[tuple[Any, ...]]:
        """Whose field of this kind has another value now."""
        return [field[1:] for field in self.before if field[0] == kind and self.before[field] != self.after[field]]


def walk(pool: SmallPool, seed: int) -> list[Taken]:
    """A random run to its end."""
    choose, now = random.Random(seed), pool.layout.unpacked(pool.initial(), pool.layout.places)
    actions = list(actions_of(pool))
    taken: list[Taken] = []
    while True:
        possible = []
        for action in actions:
            seen = Fields({field: now[field] for field in action.sees})
            possible += [(action, step) for step in action.steps(seen)]
        if not possible:
            return taken
        action, step = choose.choice(possible)
        after = now.changed(dict(step.after))
        taken.append(Taken(action, now, after))
        now = after


def follow(follower: Follower, taken: Taken) -> None:
    """Take the actions that a step of the searched pool stands for: none, one, or a few that it takes at once."""
    name = taken.action.name
    if name in ("begin", "judge", "reader's stream", "reader-fail"):
        _follow_reader(follower, taken)
    elif name in DEATHS:
        rank = next(field[1] for field in taken.action.sees if field[0] == "vacant")
        assert isinstance(rank, int)
        follower.take(DEATHS[name], follower.thing("Rank" if name == "reap" else "Process", rank))
    elif name == "publish stream":
        ((number,),) = taken.changed("written")
        _follow_stream(follower, follower.lease(number), taken.after["unit", number], taken.before["written", number])
    else:
        _follow_host(follower, taken)
    for invariant in INVARIANTS:
        follower.hold(invariant, follower.state)


DEATHS: Final = {"crash": "die", "device work gone": "work-ends", "reap": "reap"}
"""What the two call the same."""


def _follow_host(follower: Follower, taken: Taken) -> None:
    name, changed = taken.action.name, (*taken.changed("sent"), *taken.changed("phase"))
    number = changed[0][0] if changed else next(f[1] for f in taken.action.sees if f[0] in ("phase", "range back"))
    assert isinstance(number, int)
    lease = follower.lease(number)
    if name == "publish":
        for part in ("publish", "queue-copy", "queue-ready"):
            follower.take(part, lease)
    elif name == "look":
        for rank in follower.world.things["Rank"]:
            if follower.possible("look", lease, rank):
                follower.take("look", lease, rank)
    elif name == "retire store":
        # The searched pool may queue it before the lease's own work has ended; it runs behind that in both.
        follower.take("queue-retire", lease)
        follower.take("retire-store", lease)
    elif name == "claim and queue":
        if changed and taken.after["phase", number] == Phase.CLAIMED:
            follower.take("claim-complete", lease)
    else:
        follower.take({"copy-fail": "fail-publication", "deadline": "expire"}.get(name, name), lease)


def _follow_stream(follower: Follower, lease: Any, unit: int, done: int) -> None:
    last = len(follower.pool.halves)
    if done == last:
        follower.take("ready-store", lease)
        return
    follower.take("copy-block", lease, follower.block(unit, done))
    if done == last - 1:
        follower.take("copy-ends", lease)


def _follow_reader(follower: Follower, taken: Taken) -> None:
    if taken.action.name == "reader-fail":
        # What the host does about it comes with its judgement.
        return
    if taken.action.name == "reader's stream":
        _follow_piece(follower, taken)
        return
    ((lease, copy, rank),) = taken.changed("reader")
    reading, fate = follower.reading(lease, copy, rank), taken.after["reader", lease, copy, rank]
    if taken.action.name == "begin":
        if fate == Reader.QUEUED:
            follower.take("begin-reading", reading)
        else:
            if follower.possible("begin-reading", reading):
                raise LeftBehind(f"{reading} is refused by the table of the searched pool only")
        return
    has_failed = follower.state.stage(reading).as_long() == READING
    follower.take("fail-reading" if has_failed else "judge", reading)


def _follow_piece(follower: Follower, taken: Taken) -> None:
    pool = follower.pool
    rank = next(field[-1] for field in taken.action.sees if field[0] == "done")
    assert isinstance(rank, int)
    lease, copy, only_acknowledges = meant(pool, rank, taken.before["queue", 0, 0, rank])
    done = taken.before["done", 0, rank]
    reading, piece = follower.reading(lease, copy, rank), pool.program[done]
    if only_acknowledges:
        follower.take("ack-store", reading)
    elif piece == HALF:
        half = pool.program[:done].count(HALF)
        follower.take("copy-out", reading, follower.block(taken.before["unit", lease], half))
    else:
        assert piece == CHECK
        follower.take("read-ready", reading)
        if taken.after["reader", lease, copy, rank] == Reader.OVER and not taken.after["dead", rank]:
            follower.take("judge", reading)


def disagreements(follower: Follower, now: Fields) -> Iterator[str]:
    """What the two machines have in common and see differently."""
    pool, state = follower.pool, follower.state
    for slot, rank in itertools.product(pool.slots, pool.ranks):
        here, of = follower.thing("Slot", slot), follower.thing("Rank", rank)
        pairs = {
            f"R[{slot}]": (state.ready_word(here), now["R", slot]),
            f"A[{rank}] of slot {slot}": (state.ack_word(here, of), now["A", slot, rank]),
            f"table of {rank}, slot {slot}": (state.table(state.current(of), here), now["table", slot, rank]),
        }
        yield from (name for name, (mine, yours) in pairs.items() if mine.as_long() != yours)
    for unit, half in itertools.product(pool.units, pool.halves):
        holds = now["holds", unit, half]
        if holds and str(state.content(follower.block(unit, half))) != str(follower.lease(holds)):
            yield f"bytes of range {unit}"
    for number in pool.leases:
        yield from (f"lease {number} {what}" for what in _fates_that_differ(follower, now, number))
    for rank in pool.ranks:
        for number, copy in pool.readers(rank):
            if not _is_alike(follower, now, number, copy, rank):
                yield f"reader of {number} in rank {rank}"


def _fates_that_differ(follower: Follower, now: Fields, number: int) -> Iterator[str]:
    state, lease, phase = follower.state, follower.lease(number), now["phase", number]
    fates = {
        "issued": (state.issued, phase != Phase.NONE),
        "dispatched": (state.dispatched, now["sent", number] == 1),
        "claimed": (state.claimed, phase >= Phase.CLAIMED),
        "retired": (state.retire_stored, phase >= Phase.RETIRED),
        "freed": (state.freed, phase == Phase.FREED),
    }
    return (what for what, (mine, yours) in fates.items() if z3.is_true(mine(lease)) != yours)


def _is_alike(follower: Follower, now: Fields, lease: int, copy: int, rank: int) -> bool:
    state, reading = follower.state, follower.reading(lease, copy, rank)
    fate, stage = now["reader", lease, copy, rank], state.stage(reading).as_long()
    if fate == Reader.FINISHED:
        newer = now["table", now["slot", lease], rank] > now["generation", lease]
        return bool(stage == ENDED and (z3.is_true(state.ack_stored(reading)) or newer))
    if fate == Reader.IDLE:
        return bool(stage == FRESH)
    refused = stage == FRESH
    if now["dead", rank]:
        return True
    return fate != Reader.OVER or refused or bool(stage == ENDED and z3.is_false(state.accepted(reading)))


def played(scope: Scope, seed: int, protocol: Protocol) -> Follower:
    """A run of the searched pool that the proved machine has followed to its end."""
    pool = SmallPool(protocol, scope)
    run = walk(pool, seed)
    follower = Follower(pool, run[-1].after)
    for number, taken in enumerate(run, 1):
        follow(follower, taken)
        differing = list(disagreements(follower, taken.after))
        if differing:
            raise LeftBehind(f"seed {seed}, step {number} ({taken.action.name}): {differing}")
    return follower
