"""The seeded walk: many episodes of drawn operations, as fast as the pool allows; what breaks is shrunk."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
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


class Schedule:
    """Which flavour comes next: all in turn, and every other time the one that rarely exercised rules need most."""

    def __init__(self, flavours: tuple[Flavour, ...], least: int) -> None:
        self.flavours = flavours
        self.least = least
        self.gains: dict[str, dict[str, int]] = {flavour.name: {} for flavour in flavours}

    def choose(self, index: int, exercised: Mapping[str, int]) -> Flavour:
        """The flavour of episode `index`, given how often each rule was exercised so far."""
        turn, steered = divmod(index, 2)
        needy = [rule for rule, count in exercised.items() if count < self.least]
        if not steered or not needy or turn < len(self.flavours):
            return self.flavours[(turn if needy else index) % len(self.flavours)]
        return max(self.flavours, key=lambda flavour: sum(self.gains[flavour.name].get(rule, 0) > 0 for rule in needy))

    def learn(self, flavour: Flavour, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        """Remember which rules an episode of a flavour exercised."""
        gains = self.gains[flavour.name]
        for rule, count in after.items():
            if count > before.get(rule, 0):
                gains[rule] = gains.get(rule, 0) + count - before.get(rule, 0)


Stop = Callable[[], bool]
