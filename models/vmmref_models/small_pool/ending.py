"""What a broken rule means here, and what is wrong with a state in which nobody can go on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from vmmref_models.small_pool.fields import Fields
from vmmref_models.small_pool.pool import Phase, SmallPool

MEANINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ACK-2": "an acknowledgement word falls",
        "CON-1": "a rank accepts bytes that are not all its lease's own",
        "CON-5": "a live reader is told that its lease is stale, though nobody has taken it back",
        "CON-6": "a borrowed view reads bytes that are not its lease's own",
        "CTL-6": "a ready word falls",
        "HND-4": "a reader's queued work touches memory that its process does not map any more",
        "LIFE-2": "the producer's queued work touches memory that is not mapped any more",
        "LIV-1": "a lease never comes back",
        "LIV-2": "a reader's stream waits for ever",
        "REC-1": "a lease is freed before a live rank has read it",
        "REC-5": "a lease is freed twice",
    }
)
"""The rules that a search judges, each with what breaking it means."""


def ended_badly(pool: SmallPool, state: int) -> Iterator[tuple[str, str]]:
    """The rules that a state breaks in which nobody can go on, and what is wrong; a fault to come rescues nobody."""
    now = pool.layout.unpacked(state, pool.layout.places)
    if not now["dead producer",]:
        for lease in pool.leases:
            if _holds(now, lease):
                yield "LIV-1", f"lease {lease} never comes back"
    for rank in pool.ranks:
        if not now["dead", rank] and any(now["queue", place, 0, rank] for place in pool.places):
            yield "LIV-2", f"a stream of rank {rank} waits for ever"


def _holds(now: Fields, lease: int) -> bool:
    freed = Phase.FREED in (now["phase", lease], now["other", lease])
    return now["phase", lease] != Phase.NONE and not freed
