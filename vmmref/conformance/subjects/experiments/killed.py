"""HND-5 and REAP-3: what consumers get of a producer that was killed."""

from __future__ import annotations

import functools
import pkgutil
from types import TracebackType
from typing import Any

from vmmref.conformance import payloads
from vmmref.conformance.processes import Link, Process
from vmmref.conformance.subjects.experiments.trial import PATIENCE_SECONDS, Trial, answer_of
from vmmref.conformance.subjects.parts import parts_with
from vmmref.imports import close_imports
from vmmref_models.operations import DONE, Outcome, Payload

_SLOTS = 8
_TARGET = "vmmref.conformance.subjects.experiments.killed:produce"


class Producer:
    """A producer in a process of its own, which publishes payloads, hands their proxies over and waits to be killed."""

    def __init__(self, trial: Trial, contents: list[Payload], borrowable: bool = False) -> None:
        broken = trial.parts.broken
        order = {
            "device": trial.ground.device,
            "torch_device": trial.ground.torch_device,
            "memory_size": trial.ground.granularity,
            "handle_type": trial.handle_type(),
            "borrowable": borrowable,
            "broken": None if broken is None else f"{broken.__module__}:{broken.__qualname__}",
            "contents": [[payload.dtype, payload.shape, payload.seed, payload.layout] for payload in contents],
        }
        self._process = Process(_TARGET)
        try:
            forms = self._process.ask(order, PATIENCE_SECONDS)
        except BaseException:
            self._process.kill()
            raise
        self.proxies = [trial.parts.proxy.from_bytes(bytes.fromhex(form)) for form in forms]

    def kill(self) -> None:
        """End the process as a crash would; the second time does nothing."""
        self._process.kill()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        close_imports(self.proxies[0].card.nonce)


@functools.cache
def prepare() -> None:
    """Start the fork server, once: what it keeps open is not an experiment's."""
    Process(f"{__name__}:nothing").end()


def nothing(link: Link) -> None:
    """The body of a process that only had to be started."""


def produce(link: Link) -> None:
    """The producer's body: publish everything that is asked for, then wait for the end."""
    order: dict[str, Any] = link.receive(seconds=None)
    parts = parts_with(None if order["broken"] is None else pkgutil.resolve_name(order["broken"]))
    size, device, handle_type = order["memory_size"], order["device"], order["handle_type"]
    pool = parts.pool(size, device, 1, None, _SLOTS, handle_type=handle_type)
    forms = []
    for dtype, shape, seed, layout in order["contents"]:
        source = payloads.source(Payload(dtype, tuple(shape), seed, layout), order["torch_device"])
        proxy = pool.wrap_tensor(source, order["borrowable"])
        assert proxy is not None, "a new pool has room"
        forms.append(bytes(proxy).hex())
    link.send(forms)
    # Nothing more comes: this ends with the parent, where it has not killed us before.
    link.receive(seconds=None)


def exporter_killed(trial: Trial) -> Outcome:
    """Import a pool, kill its process, then read what it had published: every byte is still there."""
    contents = [trial.payload() for _ in range(2 + trial.random.randrange(_SLOTS - 2))]
    borrowable = trial.chance()
    with Producer(trial, contents, borrowable) as producer:
        before = trial.random.randrange(len(contents)) + 1
        for number, (payload, proxy) in enumerate(zip(contents, producer.proxies, strict=True)):
            if number == before:
                producer.kill()
            if borrowable and trial.chance():
                tensor = proxy.borrow_on_target_device(trial.ground.device)
                if number < before and trial.chance():
                    producer.kill()
                digest = payloads.digest(tensor)
                proxy.release_borrowed()
            else:
                digest = payloads.digest(proxy.reconstruct_on_target_device(trial.ground.device))
            trial.check(digest == payloads.expected_digest(payload), f"the bytes of {payload} are not those published")
    return DONE


def producer_killed(trial: Trial) -> Outcome:
    """Read or borrow a proxy whose producer was killed before this process had imported the pool."""
    borrowable = trial.chance()
    with Producer(trial, [trial.payload()], borrowable) as producer:
        producer.kill()
        (proxy,) = producer.proxies
        device = trial.ground.device
        if borrowable and trial.chance():
            return answer_of(lambda: proxy.borrow_on_target_device(device))
        if trial.chance():
            return answer_of(lambda: proxy.begin_reconstruction(device))
        return answer_of(lambda: proxy.reconstruct_on_target_device(device))
