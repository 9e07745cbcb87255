"""The seeded walk: many episodes of drawn operations, as fast as the pool allows; what breaks is shrunk."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from vmmref.conformance.draw import Drawer
from vmmref.conformance.failure import Failure
from vmmref.conformance.flavours import Flavour, Pick, draw_length, draw_shape
from vmmref.conformance.run import Episode, Rig


def picker(seed: str) -> Pick:
    """A seeded source of choices; the same text gives the same choices on every machine."""
    number = random.Random(seed).random
    return lambda n: int(number() * n)


@dataclass(frozen=True, slots=True)
class Unit:
    """One episode of a walk, wholly determined by these values on a pool that is itself deterministic."""

    seed: int
    index: int
    flavour: Flavour
    client: str

    def run(self, rig: Rig) -> list[Failure]:
        """Run the episode to the end of its pool; the failures of its first broken step. Raises ValueError for a shape
        that the subject refuses."""
        pick = picker(f"{self.seed}/{self.index}")
        shape = draw_shape(self.flavour, rig.description, pick)
        episode = Episode(rig, shape)
        drawer = Drawer(rig.description, shape, self.flavour, episode.tokens, self.client)
        for _ in range(draw_length(self.flavour, pick)):
            if not episode.do(drawer.next(pick, episode.state)):
                break
            if drawer.well_behaved and episode.tokens.ended:
                break
        episode.drive_home()
        episode.close()
        return episode.failures


COSTLY_EVERY = 16
"""A flavour whose episodes take a hundred times as long has one turn in so many."""
COSTLY_ENOUGH = 5
"""Where only such flavours exercise a rule, so many times fewer exercises of it are as good."""


class Schedule:
    """Which flavour comes next: all in turn, and every other time the one that the least exercised rule needs most."""

    def __init__(self, flavours: tuple[Flavour, ...], least: int) -> None:
        self.flavours = flavours
        self.least = least
        self.cheap = tuple(flavour for flavour in flavours if not flavour.costly) or flavours
        self.costly = tuple(flavour for flavour in flavours if flavour.costly) or flavours
        self.gains: dict[str, dict[str, int]] = {}
        """By rule and flavour, how often episodes of that flavour exercised it."""
        self.operations: dict[str, int] = {}

    def choose(self, index: int, exercised: Mapping[str, int]) -> Flavour:
        """The flavour of episode `index`, given how often each rule was exercised so far."""
        turn, steered = divmod(index, 2)
        rarest = min(exercised, key=lambda rule: exercised[rule] / self._enough(rule), default=None)
        if not steered or rarest is None or exercised[rarest] >= self._enough(rarest):
            return self._in_turn(turn)
        gains = self._gains(rarest)
        if not gains:
            return self.flavours[index % len(self.flavours)]
        return self._named(max(gains, key=lambda name: gains[name] / self.operations[name]))

    def _in_turn(self, turn: int) -> Flavour:
        rounds, place = divmod(turn, COSTLY_EVERY)
        if place == COSTLY_EVERY - 1:
            return self.costly[rounds % len(self.costly)]
        return self.cheap[(turn - rounds) % len(self.cheap)]

    def _named(self, name: str) -> Flavour:
        return next(flavour for flavour in self.flavours if flavour.name == name)

    def _gains(self, rule: str) -> Mapping[str, int]:
        """By flavour, how often it has exercised a rule; of what was never reached, the rule that it belongs to."""
        return self.gains.get(rule) or self.gains.get(rule.partition("/")[0], {})

    def _enough(self, rule: str) -> float:
        """How many exercises of a rule are enough."""
        # What a run must reach is rarer than what a rule speaks of.
        enough = self.least / (10 if "/" in rule else 1)
        gains = self._gains(rule)
        dear = bool(gains) and all(self._named(name).costly for name in gains)
        return enough / COSTLY_ENOUGH if dear else enough

    def learn(self, flavour: Flavour, operations: int, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        """Remember which rules an episode of a flavour exercised, in how many operations."""
        self.operations[flavour.name] = self.operations.get(flavour.name, 0) + operations
        for rule, count in after.items():
            if count > before.get(rule, 0):
                gains = self.gains.setdefault(rule, {})
                gains[flavour.name] = gains.get(flavour.name, 0) + count - before.get(rule, 0)
