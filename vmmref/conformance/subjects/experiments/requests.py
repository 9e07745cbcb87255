"""TRN: requests of many tensors: what is refused, and what travels as host copies when the pool is full."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from vmmref.conformance import payloads
from vmmref.conformance.subjects.experiments.trial import Trial, answer_of, settle
from vmmref.pool import VmmMemoryPool
from vmmref.transport import FeatureTransport
from vmmref_models.operations import DONE, Outcome, Payload

_ORDINARY = ("a string", 7, 2.5, None, b"bytes")
"""Values of a request that hold no tensor."""


@dataclass(slots=True)
class Request:
    """A request as its maker knows it: what each field held before it was published."""

    contents: dict[str, Payload]
    """By field, of the tensors."""
    fields: dict[str, Any]
    originals: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.originals = dict(self.fields)

    def hold(self, name: str, value: object) -> None:
        """One more field, before the request is published."""
        self.fields[name] = self.originals[name] = value

    def is_untouched(self) -> bool:
        """Whether every field holds the very object that it held at first."""
        same = all(self.fields.get(name) is value for name, value in self.originals.items())
        return same and len(self.fields) == len(self.originals)


def drawn_request(trial: Trial, prefix: str = "") -> Request:
    """A request of one to five tensors, and some other values, in any order."""
    contents = {f"{prefix}tensor{number}": trial.payload() for number in range(1 + trial.random.randrange(5))}
    fields: dict[str, Any] = {name: trial.tensor(payload) for name, payload in contents.items()}
    fields |= {f"{prefix}other{number}": value for number, value in enumerate(_ORDINARY) if trial.chance()}
    names = list(fields)
    trial.random.shuffle(names)
    return Request(contents, {name: fields[name] for name in names})


def some(trial: Trial, names: Iterable[str]) -> list[str]:
    """Some of the names, or none."""
    return [name for name in names if trial.chance()]


@contextlib.contextmanager
def transport_of(trial: Trial, **settings: Any) -> Iterator[tuple[VmmMemoryPool, FeatureTransport]]:
    """A pool and a transport through it, both of which end with the context."""
    with trial.pool(**settings) as pool:
        transport = trial.parts.transport(pool, processor=object())
        try:
            yield pool, transport
        finally:
            transport._thread.shutdown()


def without_processor(trial: Trial) -> Outcome:
    """Make a transport without the model's processor."""
    with trial.pool() as pool:
        if trial.chance():
            return answer_of(lambda: trial.parts.transport(pool))
        return answer_of(lambda: trial.parts.transport(pool, processor=None))


def of_containers(trial: Trial) -> Outcome:
    """Publish a request of which one field holds several tensors; nothing of it may change."""
    with transport_of(trial) as (pool, transport):
        request = drawn_request(trial)
        tensor = trial.tensor(trial.payload())
        held: object = tensor
        if trial.chance():
            held = proxy = trial.published(pool)
            pool.cancel_proxy(proxy)
        container = trial.random.choice((list, tuple, deque, _mapping, _nested))([held])
        name = trial.random.choice(("images", "a", "zz"))
        request.fields = {name: container, **request.fields} if trial.chance() else {**request.fields, name: container}
        request.originals = dict(request.fields)
        answer = answer_of(lambda: transport.publish(request.fields, single=some(trial, request.contents)))
        trial.check(request.is_untouched(), "a field of the refused request was changed")
        trial.check(not pool.stats().leases, "the refused request has taken a lease")
        return answer


def _mapping(values: list[object]) -> object:
    return dict(enumerate(values))


def _nested(values: list[object]) -> object:
    return [{"inside": (tuple(values), 1)}]


def arrived(trial: Trial, drawn: Request) -> dict[str, Any]:
    """The request's fields as they come to a rank: proxies through their wire form, values that are no tensors as they
    are."""
    kinds = (trial.parts.proxy, trial.parts.packed)
    return {
        name: type(value).from_bytes(bytes(value)) if isinstance(value, kinds) else value
        for name, value in drawn.fields.items()
    }


def compare(trial: Trial, drawn: Request, received: dict[str, Any]) -> None:
    """What a rank has received must be what the request held when it was published."""
    for name, original in drawn.originals.items():
        value = received[name]
        if name in drawn.contents:
            right = isinstance(value, torch.Tensor) and payloads.digest(value) == payloads.expected_digest(
                drawn.contents[name]
            )
            trial.check(right, f"field {name} did not arrive as it was published")
        else:
            trial.check(value is original, f"field {name} was changed")


def take_home(trial: Trial, pool: VmmMemoryPool, transport: FeatureTransport) -> None:
    """What a request has taken comes back once every rank is done with it, also after a failure."""
    if pool.life != "open":
        return  # LIFE-3: a pool that has failed gives no lease back.
    transport.roll_back()
    settle(pool)
    pool.recycle()
    left = pool.stats().leases
    trial.check(not left, f"{len(left)} lease(s) of the request did not come back")


def when_full(trial: Trial) -> Outcome:
    """Publish requests until some of their tensors travel as host copies, and compare what arrives."""
    warnings = _Warnings()
    logging.getLogger("vmmref").addHandler(warnings)
    try:
        with transport_of(trial, slots=1 + trial.random.randrange(3), data_size=1024) as (pool, transport):
            requests: list[Request] = []
            while not transport.stats().host_copies:
                requests.append(drawn_request(trial, f"request{len(requests)} "))
                sources = _own_sources(requests[-1])
                transport.publish(requests[-1].fields, single=some(trial, requests[-1].contents))
                for source in sources:
                    # TRN-4: what travels is a copy, whatever becomes of the source.
                    source.reshape(-1).view(torch.uint8).bitwise_xor_(1)
            copies = sum(isinstance(each.fields[name], torch.Tensor) for each in requests for name in each.contents)
            trial.check(transport.stats().host_copies == copies, "the host copies are not counted")
            trial.check(warnings.full == 1, f"the full pool was warned of {warnings.full} times")
            for each in requests:
                compare(trial, each, transport.receive(arrived(trial, each), trial.ground.device, 1, 0))
            take_home(trial, pool, transport)
    finally:
        logging.getLogger("vmmref").removeHandler(warnings)
    return DONE


def _own_sources(drawn: Request) -> list[torch.Tensor]:
    """Put tensors of its own in the place of the request's shared ones; they may be written to."""
    for name in drawn.contents:
        drawn.fields[name] = drawn.fields[name].clone(memory_format=torch.contiguous_format)
    drawn.originals = dict(drawn.fields)
    return [drawn.fields[name] for name in drawn.contents]


class _Warnings(logging.Handler):
    """Counts the warnings of a full pool."""

    def __init__(self) -> None:
        super().__init__()
        self.full = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.full += "TRN-4" in record.getMessage()
