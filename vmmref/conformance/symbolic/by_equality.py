"""What stands in for a dictionary while numbers are symbols."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping


class ByEquality(MutableMapping[int, int]):
    """A mapping that compares its keys one by one: hashing a symbol would fix its value."""

    def __init__(self, items: Iterable[tuple[int, int]] = ()) -> None:
        self._items = list(items)

    def _index(self, key: int) -> int:
        """The place of `key`; raises KeyError where there is none."""
        for index, (other, _) in enumerate(self._items):
            if other == key:
                return index
        raise KeyError(key)

    def __getitem__(self, key: int) -> int:
        return self._items[self._index(key)][1]

    def __setitem__(self, key: int, value: int) -> None:
        try:
            self._items[self._index(key)] = (key, value)
        except KeyError:
            self._items.append((key, value))

    def __delitem__(self, key: int) -> None:
        del self._items[self._index(key)]

    def __iter__(self) -> Iterator[int]:
        return (key for key, _ in self._items)

    def __len__(self) -> int:
        return len(self._items)
