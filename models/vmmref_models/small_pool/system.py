"""All actions of a small pool."""

from __future__ import annotations

from collections.abc import Iterator

from vmmref_models.small_pool import consumer, producer, trouble
from vmmref_models.small_pool.fields import Action
from vmmref_models.small_pool.pool import SmallPool


def actions_of(pool: SmallPool) -> Iterator[Action]:
    """Everything that anybody may do next."""
    yield from producer.actions(pool)
    yield from consumer.actions(pool)
    yield from trouble.actions(pool)
