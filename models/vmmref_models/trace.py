"""Traces: a pool's shape and what was done to it, as JSON that any program may have written, also a hostile one."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from vmmref_models.lines import text
from vmmref_models.observation import Shape
from vmmref_models.operations import Disturbed, Faulty, LeaseView, Operation, Outcome, Payload
from vmmref_models.reasons import Reason

__all__ = [
    "FORMAT",
    "OPERATIONS",
    "VERSION",
    "Trace",
    "from_json",
    "operation_from_dict",
    "operation_to_dict",
    "outcome_from_dict",
    "outcome_to_dict",
    "shape_from_dict",
    "text",
    "to_json",
]

R = TypeVar("R")

FORMAT = "vmmref-trace"
VERSION = 1

OPERATIONS: dict[str, type[Operation]] = {operation.__name__: operation for operation in get_args(Operation)}
"""Every operation by the name under which it stands in a trace."""

_LARGEST = 2**64
"""No number in a trace is larger: words have at most 64 bits."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One pool and what was done to it.

    `outcomes` are the answers of the pool that the trace was taken from, one per operation, or () when unknown.
    `rules` are the identifiers that the trace is about; `about` holds texts for people and for replay (subject, device,
    seed as text), by name.
    """

    shape: Shape
    operations: tuple[Operation, ...]
    outcomes: tuple[Outcome, ...] = ()
    rules: tuple[str, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)


def to_json(trace: Trace) -> str:
    """The trace as JSON text, one operation a line."""
    head = {
        "format": FORMAT,
        "version": VERSION,
        "about": dict(trace.about),
        "rules": list(trace.rules),
        "shape": _record(trace.shape, whole=True),
    }
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    lines.append(_json_list("operations", [operation_to_dict(operation) for operation in trace.operations]))
    lines.append(_json_list("outcomes", [_record(outcome) for outcome in trace.outcomes]))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _json_list(name: str, items: list[dict[str, Any]]) -> str:
    rows = ",\n".join(f"    {json.dumps(item)}" for item in items)
    return f'  "{name}": [\n{rows}\n  ]' if items else f'  "{name}": []'


def from_json(text: str) -> Trace:
    """The trace in a JSON text.

    Raises ValueError with the place and the value for anything else: another format or version, unknown or missing
    names, wrong types, numbers out of range.
    """
    try:
        document = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("trace: nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"trace: not JSON: {error}") from None
    top = _object(document, "trace")
    if top.get("format") != FORMAT:
        raise ValueError(f"trace: format is {_short(top.get('format'))}, expected {FORMAT!r}")
    if top.get("version") != VERSION or isinstance(top.get("version"), bool):
        raise ValueError(f"trace: version is {_short(top.get('version'))}, this program knows version {VERSION}")
    _names(top, "trace", required={"shape", "operations"}, optional={"format", "version", "about", "rules", "outcomes"})
    operations = tuple(
        operation_from_dict(item, f"operations[{index}]")
        for index, item in enumerate(_array(top["operations"], "operations"))
    )
    outcomes = tuple(
        outcome_from_dict(item, f"outcomes[{index}]")
        for index, item in enumerate(_array(top.get("outcomes", []), "outcomes"))
    )
    if outcomes and len(outcomes) != len(operations):
        raise ValueError(f"trace: {len(operations)} operations but {len(outcomes)} outcomes")
    rules = tuple(_string(name, "rules") for name in _array(top.get("rules", []), "rules"))
    about = {name: _string(value, f"about.{name}") for name, value in _object(top.get("about", {}), "about").items()}
    return Trace(shape_from_dict(top["shape"]), operations, outcomes, rules, about)


def shape_from_dict(value: object, where: str = "shape") -> Shape:
    """A shape from its JSON object; raises ValueError."""
    shape = _build(Shape, value, where)
    if min(shape.slots, shape.consumers, shape.data_size, shape.generation_limit) < 1:
        raise ValueError(f"{where}: slots, consumers, data_size and generation_limit must be positive")
    if shape.word_bytes not in (4, 8):
        raise ValueError(f"{where}.word_bytes is {shape.word_bytes}, expected 4 or 8")
    if shape.slots > 1 << 20 or shape.consumers > 1 << 12:
        raise ValueError(f"{where}: {shape.slots} slots and {shape.consumers} consumers are more than any pool has")
    if shape.issued and (len(shape.issued) != shape.slots or max(shape.issued) > shape.generation_limit):
        raise ValueError(f"{where}.issued must hold one generation up to the limit for each of {shape.slots} slots")
    return shape


def operation_to_dict(operation: Operation) -> dict[str, Any]:
    """An operation as a JSON object: its name under "do", its fields beside it."""
    return {"do": type(operation).__name__, **_record(operation)}


def operation_from_dict(value: object, where: str = "operation") -> Operation:
    """An operation from its JSON object; raises ValueError."""
    item = _object(value, where)
    name = item.get("do")
    kind = OPERATIONS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"{where}: unknown operation {_short(name)}")
    rest = {key: item[key] for key in item if key != "do"}
    if kind is not Faulty:
        return _build(kind, rest, where)
    _names(rest, where, required={"operation", "call"})
    inner = operation_from_dict(rest["operation"], f"{where}.operation")
    if not isinstance(inner, Disturbed):
        raise ValueError(f"{where}.operation: faults cannot be put into {type(inner).__name__}")
    return Faulty(inner, _integer(rest["call"], f"{where}.call"))


def outcome_to_dict(outcome: Outcome) -> dict[str, Any]:
    """An outcome as a JSON object."""
    return _record(outcome)


def outcome_from_dict(value: object, where: str = "outcome") -> Outcome:
    """An outcome from its JSON object; raises ValueError."""
    outcome = _build(Outcome, value, where)
    if outcome.kind not in ("done", "full", "refused", "failed", "crashed"):
        raise ValueError(f"{where}.kind is {_short(outcome.kind)}")
    return outcome


# --- records to and from JSON -----------------------------------------------------------------------------------------


def _record(value: Any, whole: bool = False) -> dict[str, Any]:
    """A dataclass as a JSON object; fields that have their default are left out unless it is wanted whole."""
    found: dict[str, Any] = {}
    for one in fields(value):
        content = getattr(value, one.name)
        if not whole and content == one.default and type(content) is type(one.default):
            continue
        found[one.name] = _plain(content)
    return found


def _plain(content: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(content, tuple):
        return [_plain(item) for item in content]
    if hasattr(content, "__dataclass_fields__"):
        return operation_to_dict(content) if type(content) in get_args(Operation) else _record(content)
    return content.value if isinstance(content, Reason) else content


@cache
def _fields(kind: Hashable) -> tuple[set[str], dict[str, Any]]:
    """The names that a dataclass must be given, and the type of each of its fields."""
    record: Any = kind
    return {one.name for one in fields(record) if one.default is one.default_factory}, get_type_hints(record)


def _build(kind: type[R], value: object, where: str) -> R:
    """A dataclass from a JSON object, every field checked against its declared type."""
    item = _object(value, where)
    constructor: Any = kind
    required, hints = _fields(constructor)
    _names(item, where, required, set(hints))
    return kind(**{name: _convert(hints[name], content, f"{where}.{name}") for name, content in item.items()})


def _convert(kind: Any, value: object, where: str) -> Any:
    if get_origin(kind) in (UnionType, Union):
        options = [option for option in get_args(kind) if option is not type(None)]
        return None if value is None else _convert(options[0], value, where)
    if get_origin(kind) is tuple:
        items = get_args(kind)[0]
        return tuple(_convert(items, item, where) for item in _array(value, where))
    if kind is Reason:
        try:
            return Reason(_string(value, where))
        except ValueError:
            raise ValueError(f"{where}: unknown reason {_short(value)}") from None
    converters: dict[Any, Callable[[object, str], Any]] = {int: _integer, str: _string, bool: _boolean}
    if kind in converters:
        return converters[kind](value, where)
    if kind in (Payload, LeaseView):
        return _build(kind, value, where)
    raise TypeError(f"{where}: no conversion to {kind}")


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number of a trace")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object, got {_short(value)}")
    return value


def _array(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where}: expected an array, got {_short(value)}")
    return value


def _string(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: expected a text, got {_short(value)}")
    return value


def _boolean(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{where}: expected true or false, got {_short(value)}")
    return value


def _integer(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{where}: expected a whole number, got {_short(value)}")
    if not 0 <= value <= _LARGEST:
        raise ValueError(f"{where}: {_short(value)} is outside 0..2**64")
    return value


def _names(item: dict[str, Any], where: str, required: set[str], optional: set[str] | None = None) -> None:
    missing = sorted(required - item.keys())
    if missing:
        raise ValueError(f"{where}: {', '.join(missing)} missing")
    unknown = sorted(item.keys() - required - (optional or set()))
    if unknown:
        raise ValueError(f"{where}: unknown {', '.join(map(_short, unknown))}")
