"""vmmref: a formally modelled reference implementation of a bounded GPU tensor pool, with its rules and a checker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vmmref import errors

if TYPE_CHECKING:
    from vmmref.imports import close_imports
    from vmmref.lease import PoolLease
    from vmmref.packed import PackedTensorProxy
    from vmmref.pool import VmmMemoryPool
    from vmmref.proxy import TensorProxy
    from vmmref.reservation import VmmReservation
    from vmmref.stats import PoolStats
    from vmmref.transport import FeatureTransport

__version__ = "0.1.0"

_HOMES = {
    "FeatureTransport": "vmmref.transport",
    "PackedTensorProxy": "vmmref.packed",
    "PoolLease": "vmmref.lease",
    "PoolStats": "vmmref.stats",
    "TensorProxy": "vmmref.proxy",
    "VmmMemoryPool": "vmmref.pool",
    "VmmReservation": "vmmref.reservation",
    "close_imports": "vmmref.imports",
}


def __getattr__(name: str) -> Any:
    # Late, so that the command line and the proof tools start without torch and without a driver.
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'vmmref' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(home), name)


__all__ = [
    "FeatureTransport",
    "PackedTensorProxy",
    "PoolLease",
    "PoolStats",
    "TensorProxy",
    "VmmMemoryPool",
    "VmmReservation",
    "__version__",
    "close_imports",
    "errors",
]
