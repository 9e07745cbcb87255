"""A state as one whole number: named fields at fixed places, and the few of them that one action may see.

A state of a small pool has some fifty fields. An action looks at a handful of them, so what it does depends on that
part of the number alone; the search works an action out once for each part that it meets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

Field: TypeAlias = tuple[str | int, ...]
"""A field's name and whose it is, for example ("R", slot) or ("A", slot, rank)."""


class Fields(dict[Field, int]):
    """The fields that an action sees, and only these: another one is a KeyError."""

    def changed(self, changes: dict[Field, int]) -> Fields:
        """The fields with some of them replaced; a field that is not seen is an error of the model."""
        for field in changes:
            assert field in self, f"{field} is changed by an action that does not see it"
        after = Fields(self)
        after.update(changes)
        return after


class Layout:
    """Where each field lies in the number; a field whose largest value is 0 needs no room."""

    def __init__(self) -> None:
        self.places: dict[Field, tuple[int, int]] = {}
        """Shift and mask (before shifting) of each field."""
        self.bits = 0

    def add(self, field: Field, largest: int) -> None:
        """Add a field with values 0 … largest behind the others."""
        assert field not in self.places, f"{field} is there twice"
        width = largest.bit_length()
        self.places[field] = (self.bits, (1 << width) - 1)
        self.bits += width

    def mask(self, fields: Iterable[Field]) -> int:
        """The bits of these fields."""
        mask = 0
        for field in fields:
            shift, ones = self.places[field]
            mask |= ones << shift
        return mask

    def unpacked(self, part: int, fields: Iterable[Field]) -> Fields:
        """These fields of a state, or of a part of it that has their bits."""
        seen = Fields()
        for field in fields:
            shift, ones = self.places[field]
            seen[field] = (part >> shift) & ones
        return seen

    def packed(self, fields: Fields) -> int:
        """The bits of these fields; a value that needs more room than its field has is an error of the model."""
        part = 0
        for field, value in fields.items():
            shift, ones = self.places[field]
            assert 0 <= value <= ones, f"{field} = {value} does not fit"
            part |= value << shift
        return part


class Step(NamedTuple):
    """One thing that can happen: the fields afterwards, what it is in words, and the rules that it breaks."""

    after: Fields
    text: str
    broken: tuple[str, ...] = ()


class Action(NamedTuple):
    """Somebody's next step, with the fields that decide it; a generator gives every possible outcome."""

    name: str
    """Its kind, for example "retire store": what must have happened somewhere for a search to mean anything."""
    sees: tuple[Field, ...]
    steps: Callable[[Fields], Iterator[Step]]
    trouble: bool = False
    """Something that need not happen: it rescues nobody who is stuck."""
