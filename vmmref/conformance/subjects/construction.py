"""A second, short-lived pool beside the one under test: made, or refused for one bad argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vmmref import errors
from vmmref.conformance.subjects import simulation
from vmmref.conformance.subjects.experiments import Ground
from vmmref_models.operations import DONE, Outcome


def construct(ground: Ground, what: str) -> Outcome:
    """Make the pool that `Construct.what` describes and close it again; what it leaves behind is counted."""
    before = simulation.usage()
    try:
        outcome = _made(ground, what)
    except errors.VmmRefError as error:
        failed = isinstance(error, errors.DriverError)
        outcome = Outcome("failed" if failed else "refused", error.reason, message=str(error))
    after = simulation.usage()
    left = sum(max(0, after[kind] - before[kind]) for kind in after)
    return Outcome(outcome.kind, outcome.reason, leftovers=left, message=outcome.message)


def _made(ground: Ground, what: str) -> Outcome:
    arguments: dict[str, Any] = {
        "memory_size": ground.granularity,
        "device": ground.device,
        "recycle_interval": None,
        "max_inflight_slices": 1,
        "handle_type": "posix_fd",
    }
    arguments.update(_bad_arguments(what, ground.granularity, ground.torch_device))
    pool = ground.parts.pool(**arguments)
    if ground.simulator is not None:
        # LIFE-4 speaks of the constructor; a call that fails at the end of a pool leaves what it did not free.
        ground.simulator.clear_faults()
    pool.shutdown()
    return DONE


def _bad_arguments(what: str, granularity: int, torch_device: str) -> dict[str, Any]:
    """The one argument that is wrong with a pool to be refused; none for "valid"."""
    memory = {"memory_size": granularity}
    wrong: dict[str, Callable[[], dict[str, Any]]] = {
        "valid": dict,
        "memory_size": lambda: {"memory_size": 0},
        "consumer_count": lambda: {"consumer_count": 0},
        "max_inflight_slices": lambda: {"max_inflight_slices": -1},
        "recycle_interval": lambda: {"recycle_interval": 0},
        "below-granule": lambda: {"memory_size": granularity // 2},
        "control-only": lambda: {"max_inflight_slices": granularity // 8},
        "backing-dtype": lambda: memory | {"byte_tensor": torch.empty(8, dtype=torch.int32, device=torch_device)},
        "backing-size": lambda: memory | {"byte_tensor": torch.empty(8, dtype=torch.uint8, device=torch_device)},
        "backing-strided": lambda: memory | {"byte_tensor": _strided_bytes(granularity, torch_device)},
    }
    return wrong[what]()


def _strided_bytes(size: int, torch_device: str) -> Any:
    """A uint8 tensor of enough elements that all lie on one byte."""
    return torch.zeros(1, dtype=torch.uint8, device=torch_device).expand(size)
