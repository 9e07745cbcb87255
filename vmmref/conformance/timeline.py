"""A sequence of operations for people: numbered, and by lanes where stream work runs piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vmmref.conformance.failure import Failure
from vmmref_models.observation import Observation, Shape
from vmmref_models.operations import PUBLISH, RETIRE, Advance, Operation, rank_stream
from vmmref_models.trace import text

HOST = "host"
LANE_WIDTH = 4


def lines(shape: Shape, operations: Sequence[Operation]) -> list[str]:
    """One line an operation: its number, a mark in the lane of the stream that runs (or of the host), and its text."""
    stepped = any(isinstance(operation, Advance) for operation in operations)
    lanes = [HOST, PUBLISH, RETIRE, *(rank_stream(rank) for rank in range(shape.consumers))] if stepped else []
    shown = [f"     {''.join(_short(lane).ljust(LANE_WIDTH) for lane in lanes)}".rstrip()] if stepped else []
    for number, operation in enumerate(operations, start=1):
        at = operation.stream if isinstance(operation, Advance) else HOST
        marks = "".join(("●" if lane == at else "│").ljust(LANE_WIDTH) for lane in lanes)
        shown.append(f"{number:4d} {marks}{text(operation)}")
    return shown


def _short(lane: str) -> str:
    return {HOST: "hst", PUBLISH: "pub", RETIRE: "ret"}.get(lane, "r" + lane.removeprefix("rank:"))


def shape_text(shape: Shape) -> str:
    """The size of a pool in a phrase."""
    words = f"{shape.slots} slot{'s' * (shape.slots != 1)}, {shape.consumers} rank{'s' * (shape.consumers != 1)}"
    limit = f", generations issued {shape.issued} of {shape.generation_limit}" if any(shape.issued) else ""
    apart = ", a process for each rank" if shape.apart else ""
    return f"{words}, {shape.data_size} B of data, {shape.word_bytes}-byte words{limit}{apart}"


def state_text(observation: Observation | None) -> str:
    """A pool before the operation that broke the rule, in one line a part; fields that it cannot show are left out."""
    if observation is None:
        return "the pool at its end"
    parts: list[str] = [observation.life]
    if observation.leases is not None:
        retiring, aside = observation.retiring or (), observation.set_aside or ()
        leases = (
            f"slot {view.slot} generation {view.generation} [{view.start}, {view.end})"
            f"{' retiring' if view.slot in retiring else ''}{' set aside' if view.slot in aside else ''}"
            for view in observation.leases
        )
        parts.append("leases " + (_listed(leases) or "none"))
    if observation.free_ranges is not None:
        parts.append("free " + (_listed(f"[{start}, {end})" for start, end in observation.free_ranges) or "nothing"))
    if observation.free_slots is not None:
        parts.append("free slots " + (_listed(map(str, observation.free_slots)) or "none"))
    if observation.words is not None:
        words = (f"R={ready} A={list(acks)}" for ready, *acks in observation.words)
        parts.append("words " + _listed(words))
    if observation.imports is not None:
        parts.append("imports " + _listed(map(str, observation.imports)))
    return "; ".join(parts)


def _listed(items: Iterable[str]) -> str:
    return ", ".join(items)


def failure_lines(failure: Failure, title: str, replay: str) -> list[str]:
    """A failure as every report shows it: rule, operation, state before, expected and got, sequence, how to replay."""
    last = text(failure.operations[-1]) if failure.operations else "nothing was done"
    where = "the end of the pool" if failure.at_end else f"operation {failure.number} ({last})"
    return [
        f"{failure.rule} broken by {where}: {title}",
        f"  pool     {shape_text(failure.shape)}",
        f"  before   {state_text(failure.before)}",
        f"  expected {failure.expected}",
        f"  got      {failure.got}",
        f"  sequence of {len(failure.operations)} operation{'s' * (len(failure.operations) != 1)}",
        *(f"  {line}" for line in lines(failure.shape, failure.operations)),
        f"  replay   {replay}",
    ]
