"""How many things there are: any number, for a proof; a few with names, for a counterexample that can be printed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

import z3

from vmmref_models.proofs.terms import Function, Term, Truth

S = TypeVar("S")

FLAG, NUMBER, WORD = "flag", "number", "word"
"""What a function of a state can answer with besides a thing of a sort: true or false, a whole number, a machine word.
"""


def flag(*domain: str) -> dict[str, Any]:
    """The signature of a state's field: true or false for each thing, or pair of things, of these sorts."""
    return {"domain": domain, "range": FLAG}


def number(*domain: str, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """The signature of a state's field: a whole number for each; `names` are shown for 0, 1, 2 and so on."""
    return {"domain": domain, "range": NUMBER, "names": names}


def word(*domain: str) -> dict[str, Any]:
    """The signature of a state's field: a machine word of the world's width for each."""
    return {"domain": domain, "range": WORD}


def thing(of: str, *domain: str) -> dict[str, Any]:
    """The signature of a state's field: one thing of sort `of` for each."""
    return {"domain": domain, "range": of}


@cache
def _few(name: str, size: int) -> tuple[Any, list[Term]]:
    """A sort with so many things. The solver must not meet two sorts of one name and different sizes."""
    sort, things = z3.EnumSort(f"{name} of {size}", [f"{name.lower()}{index}" for index in range(size)])
    return sort, things


class World:
    """The sorts of a system. With `sizes` None each has any number of things; else exactly so many, with names.

    `width` is the number of bits of a machine word.
    """

    def __init__(self, sorts: tuple[str, ...], sizes: tuple[int, ...] | None = None, width: int = 32) -> None:
        self.width = width
        self.listener: Callable[[tuple[Term, ...], Truth], None] | None = None
        """Is shown each choice and what `all` makes of it; only where the things have names."""
        self._depth = 0
        self.things: dict[str, list[Term]] = {}
        self._sorts: dict[str, Any] = {
            FLAG: z3.BoolSort(),
            NUMBER: z3.IntSort(),
            WORD: z3.BitVecSort(width),
        }
        for index, name in enumerate(sorts):
            if sizes is None:
                self._sorts[name] = z3.DeclareSort(name)
            else:
                self._sorts[name], self.things[name] = _few(name, sizes[index])

    def constant(self, name: str, sort: str) -> Term:
        """Some thing of a sort, or some number, under a name."""
        return z3.Const(name, self._sorts[sort])

    def value(self, amount: int) -> Term:
        """A machine word with this value, modulo its width."""
        return z3.BitVecVal(amount, self.width)

    def all(self, *sorts_and_body: Any) -> Truth:
        """Whether the last argument, a function, holds for every choice of things of the sorts before it."""
        *sorts, body = sorts_and_body
        return self._all(tuple(sorts), body)

    def _all(self, sorts: tuple[str, ...], body: Callable[..., Truth]) -> Truth:
        if all(sort in self.things for sort in sorts):
            choices = list(itertools.product(*(self.things[sort] for sort in sorts)))
            formulas = [body(*choice) for choice in choices]
            if self.listener is not None:
                for choice, formula in zip(choices, formulas, strict=True):
                    self.listener(choice, formula)
            return z3.And(*formulas)
        # Names by depth and not fresh ones: equal formulas are then equal terms.
        self._depth += 1
        bound = [self.constant(f"{sort.lower()}.{self._depth}.{index}", sort) for index, sort in enumerate(sorts)]
        formula = z3.ForAll(bound, body(*bound))
        self._depth -= 1
        return formula

    def state(self, kind: type[S]) -> S:
        """A state of which nothing is known: a symbol for each of its fields."""
        return kind(**{entry.name: self._symbol(entry.name, entry.metadata) for entry in fields(kind)})  # type: ignore[arg-type]

    def _symbol(self, name: str, signature: Any) -> Function:
        domain = [self._sorts[sort] for sort in signature["domain"]]
        range_sort = self._sorts[signature["range"]]
        if not domain:
            constant = z3.Const(name, range_sort)
            return lambda: constant
        symbol: Function = z3.Function(name, *domain, range_sort)
        return symbol
