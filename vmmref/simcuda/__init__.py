"""A simulated CUDA driver: the real cuda.bindings on a machine without a GPU.

`load` puts a small C library, libcuda.so.1, into the process; from then on the driver API works on host memory. It can
do what hardware cannot: run queued work only when told, fail a chosen call, count what is left behind, and name what
the real driver leaves undefined. Its device name says that it is a simulator.
"""

from vmmref.simcuda.build import SimulatorBuildError
from vmmref.simcuda.loader import SimulatorLoadError, library_path, load, loaded
from vmmref.simcuda.simulator import (
    BLOCKED,
    EMPTY,
    INVALID,
    RAN,
    Blocked,
    Piece,
    PieceKind,
    Simulator,
    SimulatorError,
    Usage,
)

__all__ = [
    "BLOCKED",
    "EMPTY",
    "INVALID",
    "RAN",
    "Blocked",
    "Piece",
    "PieceKind",
    "Simulator",
    "SimulatorBuildError",
    "SimulatorError",
    "SimulatorLoadError",
    "Usage",
    "library_path",
    "load",
    "loaded",
]
