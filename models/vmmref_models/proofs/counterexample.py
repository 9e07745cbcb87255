"""A counterexample to induction as text: the action, the state before it, what it changes, and what breaks.

A model of the solver gives a value to everything. Shown is what can be reached from the things that the action and the
broken property name.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import Field, dataclass, fields
from typing import Any, Generic, TypeVar

import z3

from vmmref_models.proofs.system import Property
from vmmref_models.proofs.terms import Term, Truth
from vmmref_models.proofs.world import FLAG, NUMBER, WORD, World

S = TypeVar("S")


@dataclass(frozen=True)
class Counterexample:
    """A state in which every invariant holds, and an action after which one does not."""

    action: str
    """With its things, for example "free(lease0)"."""
    broken: str
    """The property's sentence, and the things for which it fails."""
    before: tuple[str, ...]
    """A line for each thing that matters: its fields that are not false or zero."""
    changes: tuple[str, ...]
    """ "field(things): old -> new"."""

    def text(self) -> str:
        """Lines for people."""
        parts = {"action": (self.action,), "breaks": (self.broken,), "before": self.before, "changes": self.changes}
        return "\n".join(
            f"{'' if index else label:9}{line}" for label, lines in parts.items() for index, line in enumerate(lines)
        )


@dataclass(frozen=True)
class Scene(Generic[S]):
    """A model of the solver, and the step that it is a model of."""

    world: World
    """One whose things have names."""
    model: Any
    before: S
    after: S

    def tell(self, action: str, arguments: tuple[Term, ...], proposed: Property[S]) -> Counterexample:
        """The counterexample for one action on unknown things, against one property."""
        named = [self.shown(argument) for argument in arguments]
        witness = self.witness(proposed)
        where = f" Not so for {', '.join(witness)}." if witness else ""
        matters = self.reached({*named, *witness})
        return Counterexample(
            f"{action}({', '.join(named)})",
            f"{proposed.sentence}{where}",
            tuple(self.lines(matters)),
            tuple(self.differences(matters)),
        )

    def witness(self, proposed: Property[S]) -> list[str]:
        """The first choice of things for which the property fails."""
        found: list[list[str]] = []

        def listen(choice: tuple[Term, ...], formula: Truth) -> None:
            if z3.is_false(self.model.eval(formula, model_completion=True)):
                found.append([str(thing) for thing in choice])

        states = (self.before, self.after) if proposed.step else (self.after,)
        self.world.listener = listen
        try:
            proposed.formula(self.world, *states)
        finally:
            self.world.listener = None
        return found[0] if found else []

    def reached(self, names: set[str]) -> set[str]:
        """The things of these names, and all that fields of them are."""
        while True:
            more = {
                self.shown(getattr(self.before, entry.name)(*place))
                for entry in self.entries()
                if entry.metadata["range"] in self.world.things
                for place in self.places(entry, names)
            }
            if more <= names:
                return names
            names |= more

    def lines(self, matters: set[str]) -> Iterator[str]:
        """A line for each thing that matters, with its own fields and those it has together with others."""
        pool = [self.told(entry, ()) for entry in self.entries() if not entry.metadata["domain"]]
        if any(pool):
            yield "pool: " + ", ".join(text for text in pool if text)
        for sort, things in self.world.things.items():
            for one in things:
                if str(one) in matters:
                    own = [entry for entry in self.entries() if entry.metadata["domain"][:1] == (sort,)]
                    texts = [
                        self.told(entry, place)
                        for entry in own
                        for place in self.places(entry, matters)
                        if place[0].eq(one)
                    ]
                    yield f"{one}: " + (", ".join(text for text in texts if text) or "-")

    def differences(self, matters: set[str]) -> Iterator[str]:
        """What the step changes."""
        for entry in self.entries():
            old_function, new_function = getattr(self.before, entry.name), getattr(self.after, entry.name)
            if old_function is new_function:
                continue
            for place in self.places(entry, matters):
                names = entry.metadata.get("names", ())
                old, new = (self.shown(function(*place), names) for function in (old_function, new_function))
                if old != new:
                    yield f"{_label(entry.name, place)}: {old} -> {new}"

    def told(self, entry: Field[Any], place: tuple[Term, ...]) -> str:
        """One field at one place, without the thing that its line is about; "" for false and zero."""
        value = self.shown(getattr(self.before, entry.name)(*place), entry.metadata.get("names", ()))
        label, kind = _label(entry.name, place[1:]), entry.metadata["range"]
        if kind == FLAG:
            return label if value == "True" else ""
        if kind in (NUMBER, WORD) and value == "0":
            return ""
        return f"{label}={value}"

    def shown(self, term: Term, names: tuple[str, ...] = ()) -> str:
        """A term's value in the model."""
        value = str(self.model.eval(term, model_completion=True))
        return names[int(value)] if value.isdigit() and int(value) < len(names) else value

    def entries(self) -> tuple[Field[Any], ...]:
        """The fields of the state."""
        return fields(self.before)  # type: ignore[arg-type]

    def places(self, entry: Field[Any], names: set[str]) -> Iterator[tuple[Term, ...]]:
        """Every choice of things of these names for which a field has a value."""
        things = [[one for one in self.world.things[sort] if str(one) in names] for sort in entry.metadata["domain"]]
        return itertools.product(*things)


def _label(name: str, place: tuple[Term, ...]) -> str:
    return f"{name}({', '.join(str(thing) for thing in place)})" if place else name
