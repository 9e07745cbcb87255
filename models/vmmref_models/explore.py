"""Exhaustive breadth-first search of a protocol's whole reachable space within a scope.

What is searched is an independent small model of the protocol: words, streams and bytes, in the steps in which devices
and processes can interleave them (`vmmref_models.small_pool`). It shares nothing with the executable model of a pool
(`vmmref_models.step`), which knows ranges, refusals and a whole pool's operations, but runs no two things at once.

How it is fast. A state is one whole number. An action sees a few of its fields, so what the action does follows from
that part of the number alone: it is worked out once for each part that occurs, by the readable function, and kept as
the bits that change. From then on it is one look into a table. A step that breaks a rule is noticed when its part is
worked out, which is at its first occurrence, and the search goes level by level: what led there is a shortest sequence.

Equal up to names. Slots and units that were never used are interchangeable, and the producer takes the lowest of them.
Ranks are interchangeable when all of them may do the same: a state then stands for all that differ from it only in the
numbers of ranks. Both exchange nothing but names, and no rule and no step looks at a name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from vmmref_models.small_pool.ending import MEANINGS, ended_badly
from vmmref_models.small_pool.fields import Action, Layout, Step
from vmmref_models.small_pool.pool import SmallPool
from vmmref_models.small_pool.system import actions_of

CHUNK: Final = 20_000
"""States between two looks at the limits: a fraction of a second."""

NEARLY: Final = 2
"""Actions share a table when that widens the view by no more bits: fewer looks, and hardly more parts. Measured."""


class Violation(NamedTuple):
    """A broken rule and a shortest sequence that breaks it."""

    rule: str
    length: int
    """Steps of the sequence."""
    what: str
    """What is wrong after it."""
    trace: tuple[str, ...]
    """The steps in words."""


@dataclass(frozen=True)
class Limits:
    """When a search gives up; what it says then is "incomplete", never a pass."""

    states: int = 50_000_000
    """About 150 bytes of memory each."""
    seconds: float = float("inf")


@dataclass(frozen=True)
class Result:
    """What a search has found."""

    states: int
    transitions: int
    depth: int
    """Steps to the states that are farthest away."""
    complete: bool
    """The whole reachable space was searched."""
    violations: tuple[Violation, ...]
    """One a rule, in the order in which they were found: by length."""
    fired: frozenset[str]
    """The kinds of action that happened somewhere; without them the search says little."""
    seconds: float
    interrupted: bool = False
    """Somebody ended it; it is incomplete then."""

    @property
    def counts(self) -> tuple[int, int, int]:
        """States, transitions and depth."""
        return self.states, self.transitions, self.depth

    @property
    def broken(self) -> dict[str, int]:
        """The length of the shortest sequence, by rule."""
        return {violation.rule: violation.length for violation in self.violations}


Progress: TypeAlias = Callable[[int, int, float], None]
"""Called now and then with states, depth and seconds so far."""


class Alarm(NamedTuple):
    """A step that breaks a rule, as it was first worked out."""

    rule: str
    mask: int
    part: int
    """Of a state, under the mask: what the step depends on."""


class StepTable(dict[int, tuple[int, ...]]):
    """What a few actions do to each part of a state that they see: the bits that change, one number an outcome."""

    def __init__(self, actions: Sequence[Action], layout: Layout, alarms: list[Alarm]) -> None:
        super().__init__()
        self.actions = [(action, layout.mask(action.sees)) for action in actions]
        self.layout = layout
        self.mask = layout.mask(field for action in actions for field in action.sees)
        self.alarms = alarms
        self.fired: set[str] = set()

    def steps(self, state: int) -> Iterator[tuple[int, Step]]:
        """Every outcome: the bits that change, and the step in words."""
        for action, mask in self.actions:
            for step in action.steps(self.layout.unpacked(state, action.sees)):
                self.fired.add(action.name)
                yield (state & mask) ^ self.layout.packed(step.after), step

    def __missing__(self, part: int) -> tuple[int, ...]:
        changes = []
        for change, step in self.steps(part):
            changes.append(change)
            self.alarms.extend(Alarm(rule, self.mask, part) for rule in step.broken)
        self[part] = found = tuple(changes)
        return found


def tables_of(actions: Sequence[Action], layout: Layout, alarms: list[Alarm]) -> list[StepTable]:
    """The tables of these actions; those that see nearly the same share one."""
    groups: list[tuple[int, list[Action]]] = []
    for action in actions:
        mask = layout.mask(action.sees)
        for position, (wide, members) in enumerate(groups):
            union = wide | mask
            if union.bit_count() <= max(wide.bit_count(), mask.bit_count()) + NEARLY:
                groups[position] = (union, [*members, action])
                break
        else:
            groups.append((mask, [action]))
    return [StepTable(members, layout, alarms) for _, members in groups]


Naming: TypeAlias = Callable[[int], int]
"""Which of the states that differ only in the numbers of ranks stands for all of them."""


def naming(pool: SmallPool) -> Naming:
    """Give the ranks' numbers in the order of what belongs to them; that lies side by side, at the number's end."""
    shared, width = pool.shared_bits, pool.rank_bits
    low, ones = (1 << shared) - 1, (1 << width) - 1
    both = 1 << shared | 1 << (shared + width)

    def of_two(state: int) -> int:
        first, second = (state >> shared) & ones, state >> (shared + width)
        return state if first <= second else state ^ (first ^ second) * both

    def of_many(state: int) -> int:
        blocks = sorted((state >> (shared + rank * width)) & ones for rank in pool.ranks)
        state &= low
        for rank, block in enumerate(blocks):
            state |= block << (shared + rank * width)
        return state

    return of_two if len(pool.ranks) == 2 else of_many


class Search:
    """One search; `run` may be called once."""

    def __init__(self, pool: SmallPool, symmetry: bool = True) -> None:
        self.pool = pool
        self.alarms: list[Alarm] = []
        actions = list(actions_of(pool))
        self.normal = self._tables([action for action in actions if not action.trouble])
        self.trouble = self._tables([action for action in actions if action.trouble])
        self.naming = naming(pool) if symmetry and pool.ranks_are_alike and len(pool.ranks) > 1 else None
        self.levels: list[list[int]] = [[pool.initial()]]
        """The states by their distance from the first one; parents are found again when a sequence is asked for."""
        self.seen: set[int] = {pool.initial()}
        self.transitions = 0
        self.violations: dict[str, Violation] = {}
        self.ends: list[int] = []
        """States of the present level in which nobody can go on without something going wrong."""

    def _tables(self, actions: Sequence[Action]) -> list[tuple[int, StepTable]]:
        return [(table.mask, table) for table in tables_of(actions, self.pool.layout, self.alarms)]

    def run(self, limits: Limits | None = None, to_the_end: bool = False, progress: Progress | None = None) -> Result:
        """Search until everything was seen, or the first level with a broken rule unless `to_the_end`."""
        limits, started = limits or Limits(), time.monotonic()
        complete, within, interrupted = False, True, False
        try:
            while self.levels[-1] and within:
                following: list[int] = []
                level = self.levels[-1]
                for start in range(0, len(level), CHUNK):
                    self._expand(level[start : start + CHUNK], following)
                    seconds = time.monotonic() - started
                    if progress is not None:
                        progress(len(self.seen), len(self.levels) - 1, seconds)
                    within = len(self.seen) <= limits.states and seconds <= limits.seconds
                    if not within:
                        break
                self._note_violations()
                if self.violations and not to_the_end:
                    break
                self.levels.append(following)
            complete = within and not self.levels[-1]
        except KeyboardInterrupt:
            interrupted = True
        return self._result(complete, time.monotonic() - started, interrupted)

    def _expand(self, states: Sequence[int], following: list[int]) -> None:
        """Take every step from every one of these states; states that are new are added to `following`."""
        seen, normal, trouble, transitions = self.seen, self.normal, self.trouble, self.transitions
        naming = self.naming
        for state in states:
            before = transitions
            for tables in (normal, trouble):
                for mask, table in tables:
                    changes = table[state & mask]
                    if not changes:
                        continue
                    transitions += len(changes)
                    for change in changes:
                        after = state ^ change if naming is None else naming(state ^ change)
                        if after not in seen:
                            seen.add(after)
                            following.append(after)
                if tables is normal and transitions == before:
                    self.ends.append(state)
        self.transitions = transitions

    def _note_violations(self) -> None:
        """Turn what the level has shown into violations, the first of each rule."""
        level = self.levels[-1]
        for state in self.ends:
            for rule, what in ended_badly(self.pool, state):
                if rule not in self.violations:
                    trace = self._trace(state)
                    self.violations[rule] = Violation(rule, len(trace), what, trace)
        self.ends.clear()
        for alarm in self.alarms:
            if alarm.rule not in self.violations:
                source = next(state for state in level if state & alarm.mask == alarm.part)
                trace = self._trace(source, alarm.rule)
                self.violations[alarm.rule] = Violation(alarm.rule, len(trace), MEANINGS[alarm.rule], trace)
        self.alarms.clear()

    def _trace(self, state: int, broken: str = "") -> tuple[str, ...]:
        """The steps to a state of the present level, in words, and one more that breaks a rule."""
        path = [state]
        for level in reversed(self.levels[:-1]):
            path.append(next(earlier for earlier in level if path[-1] in self._after(earlier)))
        texts: list[str] = []
        state = path.pop()
        while path:
            goal = path.pop()
            change, step = next(
                (change, step) for change, step in self._steps(state) if self._named(state ^ change) == goal
            )
            # Not the goal itself, which may number the ranks in another way.
            state ^= change
            texts.append(step.text)
        if broken:
            texts.append(next(step.text for _, step in self._steps(state) if broken in step.broken))
        return tuple(texts)

    def _steps(self, state: int) -> Iterator[tuple[int, Step]]:
        for _, table in (*self.normal, *self.trouble):
            yield from table.steps(state)

    def _after(self, state: int) -> Iterator[int]:
        for mask, table in (*self.normal, *self.trouble):
            for change in table[state & mask]:
                yield self._named(state ^ change)

    def _named(self, state: int) -> int:
        return state if self.naming is None else self.naming(state)

    def _result(self, complete: bool, seconds: float, interrupted: bool) -> Result:
        fired = frozenset(name for _, table in (*self.normal, *self.trouble) for name in table.fired)
        violations = tuple(sorted(self.violations.values(), key=lambda found: found.length))
        depth = max(distance for distance, level in enumerate(self.levels) if level)
        return Result(len(self.seen), self.transitions, depth, complete, violations, fired, seconds, interrupted)
