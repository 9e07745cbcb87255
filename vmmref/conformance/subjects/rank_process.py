"""The process of one rank: a `Consumer` that is told by messages what to do, for one pool after the other."""

from __future__ import annotations

import pkgutil
from typing import Any

from vmmref import simcuda
from vmmref.conformance.processes import Link
from vmmref.conformance.subjects import simulation
from vmmref.conformance.subjects.consumer import Consumer, Setting
from vmmref.conformance.subjects.parts import parts_with
from vmmref.driver import streams
from vmmref.driver.device import Device
from vmmref_models.trace import operation_from_dict, outcome_to_dict

TARGET = "vmmref.conformance.subjects.rank_process:serve"
"""What the fork server calls."""


def opening(setting: Setting) -> dict[str, Any]:
    """The message that gives a rank's process a pool to consume."""
    broken = setting.parts.broken
    return {
        "open": {
            "device": setting.device,
            "nonce": setting.nonce.hex(),
            "consumers": setting.consumers,
            "stepping": setting.stepping,
            "broken": None if broken is None else f"{broken.__module__}:{broken.__qualname__}",
        }
    }


def serve(link: Link) -> None:
    """Answer until the parent hangs up: one pool at a time, from "open" to "close"."""
    device: Device | None = None
    while True:
        wanted = link.receive(seconds=None)["open"]
        if device is None:
            # Kept: it holds the context, and loads the driver that the settings below are made in.
            device = Device(wanted["device"])
        _consume(link, wanted)


def _consume(link: Link, wanted: dict[str, Any]) -> None:
    parts = parts_with(None if wanted["broken"] is None else pkgutil.resolve_name(wanted["broken"]))
    stepping = wanted["stepping"]
    simulator = simcuda.loaded()
    if simulator is not None:
        simulator.set_mode("stepping" if stepping else "threads")
    before = simulation.usage()
    setting = Setting(wanted["device"], bytes.fromhex(wanted["nonce"]), wanted["consumers"], stepping, parts)
    with streams.progress(simulation.drain if stepping else None):
        consumer = Consumer(setting)
        link.send({"imports": 0})
        while "close" not in (request := link.receive(seconds=None)):
            link.send(_answer(consumer, request))
        link.send(_close(consumer, before))


def _answer(consumer: Consumer, request: dict[str, Any]) -> dict[str, Any]:
    if "settle" in request:
        consumer.settle()
        return {"imports": consumer.imports()}
    outcome = consumer.apply(operation_from_dict(request["do"]), bytes.fromhex(request.get("form", "")))
    return {"outcome": outcome_to_dict(outcome), "imports": consumer.imports()}


def _close(consumer: Consumer, before: dict[str, int]) -> dict[str, Any]:
    """Drop the import; what this process holds now and did not before, and why it could not drop it."""
    problem = ""
    try:
        consumer.close()
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    after = simulation.usage()
    left = {kind: count for kind in after if (count := after[kind] - before[kind] - consumer.kept[kind])}
    return {"left": left, "problem": problem, "kept": sum(consumer.kept.values())}
