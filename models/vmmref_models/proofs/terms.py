"""The solver's vocabulary: terms, and functions that are updated as a whole.

The solver's Python interface has no types. Here a `Term` is any expression, a `Truth` one that is true or false, and a
`Function` what makes a term of terms: a symbol of the solver, or a symbol under one or more updates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from z3 import And, BoolVal, If, Implies, Not, Or

Term: TypeAlias = Any
Truth: TypeAlias = Any
Function: TypeAlias = Callable[..., Term]

TRUE: Truth = BoolVal(True)
FALSE: Truth = BoolVal(False)

__all__ = [
    "FALSE",
    "TRUE",
    "And",
    "Function",
    "If",
    "Implies",
    "Not",
    "Or",
    "Term",
    "Truth",
    "put",
    "put_where",
    "same",
]


def same(one: tuple[Term, ...], other: tuple[Term, ...]) -> Truth:
    """Whether two lists of arguments are equal, one by one."""
    return And(*[left == right for left, right in zip(one, other, strict=True)])


def put(function: Function, place: tuple[Term, ...], value: Term) -> Function:
    """`function` with another value at one place. An if-then-else over the whole function needs no quantifier."""
    return lambda *arguments: If(same(arguments, place), value, function(*arguments))


def put_where(function: Function, where: Function, value: Function) -> Function:
    """`function` with `value(*arguments)` at every place where `where(*arguments)` holds."""
    return lambda *arguments: If(where(*arguments), value(*arguments), function(*arguments))
