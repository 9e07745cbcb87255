"""Find a subject by name: `package.module:factory`, or an entry point of the group `vmmref.subjects`."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

from vmmref.conformance.payloads import ELEMENT_BYTES
from vmmref.conformance.subject import CAPABILITIES, Description, Subject
from vmmref.errors import UnsupportedError
from vmmref_models import operations
from vmmref_models.attempts import ATTEMPTS

REFERENCE = "vmmref.conformance.subjects.reference:make"
"""The reference pool, checked where no other subject is named."""
GROUP = "vmmref.subjects"
DEVICE = re.compile(r"sim(:[0-9]{1,4})?|cuda:[0-9]{1,4}")
MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
LEVELS = "ABCD"
KINDS: frozenset[str] = frozenset(
    name
    for name, value in vars(operations).items()
    if isinstance(value, type) and value.__module__ == operations.__name__
) - {"Payload", "LeaseView", "Outcome"}
"""Class names of all operations."""


class Unusable(ValueError):
    """A subject, device or option that cannot be used; the text is one sentence with the values."""


def parse_device(name: str) -> str:
    """The device name itself, when it is one; raises Unusable otherwise."""
    if DEVICE.fullmatch(name) is None:
        raise Unusable(f'device "{name}" is none of "sim", "sim:N" and "cuda:N" with a device number N')
    return name


def load_subject(name: str, device: str) -> Subject:
    """Make the subject called `name` for `device`; modules are found from the current folder too.

    Raises Unusable, in one sentence, where there is no such module or attribute, where it is no factory, where the
    factory raises, and where what it makes is no subject.
    """
    factory = load_factory(name)
    try:
        subject = factory(device) if _takes_device(factory) else factory()
    except UnsupportedError as error:
        raise Unusable(f'device "{device}" cannot be used: {error}') from error
    except Exception as error:
        raise Unusable(f'subject "{name}": its factory raised {describe_error(error)}') from error
    missing = [method for method in ("describe", "open") if not callable(getattr(subject, method, None))]
    if missing:
        raise Unusable(f'subject "{name}": its factory made {_kind(subject)}, which has no method {missing[0]}()')
    _check_description(name, subject)
    return subject  # type: ignore[no-any-return]


def describe_error(error: BaseException) -> str:
    """An exception as part of a sentence: its type and the first line of its text."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def load_factory(name: str) -> Callable[..., Any]:
    """The callable called `name`: "package.module:attribute" or a registered name; raises Unusable."""
    if ":" not in name:
        points = importlib.metadata.entry_points(group=GROUP)
        if name not in points.names:
            known = f"known names are {', '.join(sorted(points.names))}" if points.names else "no name is registered"
            raise Unusable(f'subject "{name}" is neither "module:factory" nor a name in the group {GROUP} ({known})')
        return _load(name, points[name].value)
    return _load(name, name)


def _load(name: str, path: str) -> Callable[..., Any]:
    module_name, _, attribute = path.partition(":")
    if not MODULE.fullmatch(module_name) or not attribute:
        raise Unusable(f'subject "{name}" is not of the form "package.module:factory"')
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        target: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            message = f'subject "{name}": there is no module "{error.name}" on the path or in the current folder'
            raise Unusable(message) from error
        raise Unusable(f'subject "{name}": importing "{module_name}" raised {describe_error(error)}') from error
    except Exception as error:
        raise Unusable(f'subject "{name}": importing "{module_name}" raised {describe_error(error)}') from error
    for part in attribute.split("."):
        if not hasattr(target, part):
            raise Unusable(f'subject "{name}": module "{module_name}" has no attribute "{attribute}"')
        target = getattr(target, part)
    if not callable(target):
        raise Unusable(f'subject "{name}": "{attribute}" is {_kind(target)}, which cannot be called')
    return target  # type: ignore[no-any-return]


def _takes_device(factory: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(parameter.kind is not parameter.KEYWORD_ONLY for parameter in parameters)


def _kind(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"


def _check_description(name: str, subject: Any) -> None:
    try:
        described = subject.describe()
    except Exception as error:
        raise Unusable(f'subject "{name}": describe() raised {describe_error(error)}') from error
    if not isinstance(described, Description):
        raise Unusable(f'subject "{name}": describe() answered {_kind(described)}, not a Description')
    for name_of, value in (
        ("capabilities", described.capabilities),
        ("operations", described.operations),
        ("attempts", described.attempts),
    ):
        if not isinstance(value, frozenset):
            raise Unusable(f'subject "{name}" declares {name_of} as {_kind(value)}, not a frozenset')
    for what, values, known in _declared(described):
        unknown = sorted(str(value) for value in values if value not in known)
        if unknown:
            raise Unusable(
                f'subject "{name}" declares {what} "{unknown[0]}"; known are {", ".join(map(str, sorted(known)))}'
            )
    if not described.payload_dtypes or not described.word_bytes:
        raise Unusable(f'subject "{name}" declares no payload dtype or no size of control words')
    if not {"Wrap", "Publish"} & described.operations:
        raise Unusable(f'subject "{name}" understands neither Wrap nor Publish, so nothing can be leased')


def _declared(described: Description) -> Iterable[tuple[str, Iterable[Any], Iterable[Any]]]:
    return (
        ("level", (described.level,), tuple(LEVELS)),
        ("capability", described.capabilities, tuple(CAPABILITIES)),
        ("operation", described.operations, KINDS),
        ("experiment", described.attempts, tuple(ATTEMPTS)),
        ("fit", (described.fit,), ("best", "any")),
        ("slot order", (described.slot_order,), ("fifo", "any")),
        ("payload dtype", described.payload_dtypes, tuple(ELEMENT_BYTES)),
        ("size of control words", described.word_bytes, (4, 8)),
    )
