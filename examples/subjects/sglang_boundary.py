"""The published sglang package's feature pool on host memory: its own code throughout, only the CUDA boundary replaced.

Replaced are the driver's two stream memory operations (they act at once on host words) and, under the module name
`torch` of the two transport modules, what says "cuda". A pool's memory is a memfd, its export the descriptor's path,
and an import maps it again, so that addresses differ as they do in another process. Nothing outside the package's own
modules is changed: torch and cuda.bindings stay as they are for everybody else.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.metadata
import importlib.util
import itertools
import logging
import mmap
import os
import sys
import types
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from cuda.bindings import driver

TESTED_VERSION = "0.5.23"

TRANSPORT = "sglang.srt.multimodal.transport"


class StreamWouldBlock(RuntimeError):
    """A stream wait whose value is not there: with nothing queued elsewhere a real stream would stop here for good."""


class Parallel:
    """What `get_parallel()` is asked for: `tp_rank` says on whose behalf the next consumer operation runs."""

    attn_dp_enabled = False
    num_dp_ranks = 1
    nnodes = 1
    tp_size = 1
    tp_rank = 0


class DeviceTensor(torch.Tensor):
    """A host tensor that says that it lives on cuda:0. What is computed from it is a plain host tensor again."""

    # Dispatching every operation through Python would cost more than the pool itself.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    is_cuda = True
    device = torch.device("cuda", 0)


class PoolMemory(DeviceTensor):
    """The memory behind a pool, which alone can be exported."""

    export: ExportedStorage

    def untyped_storage(self) -> ExportedStorage:  # type: ignore[override]
        return self.export


class ExportedStorage:
    """A memfd and its handle: the eight fields of torch's, with the descriptor's path for the handle's bytes."""

    _serials = itertools.count(1)

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self.descriptor = descriptor
        self.nbytes = nbytes
        # The serial keeps handles apart when a descriptor's number comes back, as the driver's own handles would be.
        self.serial = next(self._serials)
        # Also when a constructor fails after it has made its memory: nobody else knows the descriptor then.
        self.close = weakref.finalize(self, os.close, descriptor)

    def _share_cuda_(self) -> tuple[Any, ...]:
        path = f"/proc/self/fd/{self.descriptor}".encode()
        return (0, path, self.nbytes, 0, b"%d" % self.serial, 0, b"", False)


class HostDevice:
    """The two stream memory operations of `cuda.bindings.driver`, and the memory and streams of one device."""

    def __init__(self) -> None:
        self.calls = 0
        """Stream memory operations asked for so far."""
        self.fails_at = 0
        """The value of `calls` at which one of them is refused; 0 = none."""
        self.cuda_stream = 0x51

    def cuStreamWriteValue32(self, stream: int, address: int, value: int, flags: int) -> tuple[Any]:
        if (failure := self._counted()) is not None:
            return failure
        ctypes.c_uint32.from_address(address).value = value
        return (driver.CUresult.CUDA_SUCCESS,)

    def cuStreamWaitValue32(self, stream: int, address: int, value: int, flags: int) -> tuple[Any]:
        if (failure := self._counted()) is not None:
            return failure
        have = ctypes.c_uint32.from_address(address).value
        if ctypes.c_int32(have - value).value < 0:  # flags 0: greater or equal, cyclic
            raise StreamWouldBlock(f"a stream waits for {value} on a word that is {have}, and nothing will write it")
        return (driver.CUresult.CUDA_SUCCESS,)

    def _counted(self) -> tuple[Any] | None:
        self.calls += 1
        return (driver.CUresult.CUDA_ERROR_NOT_SUPPORTED,) if self.calls == self.fails_at else None

    def synchronize(self) -> None:
        """As a stream: nothing is ever queued."""

    def empty(self, size: Any, *, dtype: torch.dtype, device: Any) -> torch.Tensor:
        """Memory of the device; only a pool asks for its bytes by a plain number."""
        if isinstance(size, int) and size > 0:
            return self._pool_memory(size)
        return torch.empty(size, dtype=dtype).as_subclass(DeviceTensor)

    def _pool_memory(self, nbytes: int) -> PoolMemory:
        descriptor = os.memfd_create("pool", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, nbytes)
            memory = torch.frombuffer(mmap.mmap(descriptor, nbytes), dtype=torch.uint8).as_subclass(PoolMemory)
        except BaseException:
            os.close(descriptor)
            raise
        memory.export = ExportedStorage(descriptor, nbytes)
        return memory

    def open(self, device: int, handle: bytes, nbytes: int, *rest: Any) -> torch.UntypedStorage:
        """Map an exported pool once more."""
        descriptor = os.open(handle, os.O_RDWR | os.O_CLOEXEC)
        try:
            return torch.frombuffer(mmap.mmap(descriptor, nbytes), dtype=torch.uint8).untyped_storage()
        finally:
            os.close(descriptor)


class TorchFacade(types.ModuleType):
    """`torch` as the two transport modules see it: only what names a CUDA device differs."""

    def __init__(self, device: HostDevice) -> None:
        super().__init__("torch")
        here = contextlib.nullcontext()
        self.cuda = types.SimpleNamespace(
            current_stream=lambda index=None: device,
            current_device=lambda: 0,
            synchronize=lambda index=None: None,
            set_device=lambda index: None,
            device=lambda index: here,
        )
        self.empty = device.empty
        self.tensor = lambda data, *, dtype, device: torch.tensor(data, dtype=dtype)
        self.UntypedStorage = types.SimpleNamespace(_new_shared_cuda=device.open)

    def __getattr__(self, name: str) -> Any:
        found = getattr(torch, name)
        setattr(self, name, found)
        return found


@dataclass(frozen=True)
class Package:
    """The package's two transport modules on their host device."""

    version: str
    memory_pool: Any
    cuda_ipc: Any
    device: HostDevice
    parallel: Parallel

    def make_pool(self, memory_size: int, interval: float, consumers: int, slots: int) -> Any:
        """An `MmItemMemoryPool` whose recycler makes no pass by itself; raises what the package raises."""
        with self._by_hand():
            return self.cuda_ipc.MmItemMemoryPool(memory_size, interval, 0, consumers, max_inflight_slices=slots)

    def make_inner_pool(self, **arguments: Any) -> Any:
        """A `StreamOrderedMmFeaturePool`, likewise."""
        with self._by_hand():
            return self.memory_pool.StreamOrderedMmFeaturePool(**arguments)

    @contextlib.contextmanager
    def _by_hand(self) -> Iterator[None]:
        pools = self.memory_pool.StreamOrderedMmFeaturePool
        original = pools._recycle_loop
        pools._recycle_loop = lambda pool: None
        try:
            yield
        finally:
            pools._recycle_loop = original

    def drop(self, pool: Any) -> None:
        """What the ends of both processes do: close the exported memory and forget the imports of it."""
        handle = pool._pool_ipc_handle
        self.cuda_ipc._pool_handle_cache_invalidate(self.cuda_ipc._normalize_pool_cache_key(handle, 0))
        pool.memory_pool.export.close()


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """The same host memory as a tensor that says that it lives on cuda:0."""
    return tensor.as_subclass(DeviceTensor)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as the host tensor that it is."""
    return tensor.as_subclass(torch.Tensor)


@cache
def load() -> Package:
    """Import the package's transport, once a process, and put the host device under it.

    Raises ValueError, with a sentence, where the package is missing or its transport cannot be imported. A version
    other than the tested one is warned about and tried.
    """
    try:
        version = importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        raise ValueError(
            f"sglang is not installed in this interpreter; "
            f'"pip install --no-deps sglang=={TESTED_VERSION}" is enough for this subject'
        ) from None
    if version != TESTED_VERSION:
        warnings.warn(f"sglang {version} is installed; this subject was tested with {TESTED_VERSION}", stacklevel=3)
    parallel, device = Parallel(), HostDevice()
    before = set(sys.modules)
    try:
        _leave_out_parents(parallel)
        memory_pool: Any = importlib.import_module(f"{TRANSPORT}.memory_pool")
        cuda_ipc: Any = importlib.import_module(f"{TRANSPORT}.cuda_ipc")
        check = importlib.import_module("sglang.srt.utils.cuda_vmm_utils").check_drv
    except (ImportError, AttributeError) as error:
        for name in [name for name in sys.modules if name.partition(".")[0] == "sglang" and name not in before]:
            del sys.modules[name]
        raise ValueError(f"the transport of sglang {version} cannot be imported by itself: {error}") from error
    memory_pool.torch = cuda_ipc.torch = TorchFacade(device)
    memory_pool._driver_modules = lambda: (device, check)
    # A full pool is an answer here, not news: one warning for each of thousands of pools would hide the report.
    logging.getLogger(TRANSPORT).setLevel(logging.ERROR)
    return Package(version, memory_pool, cuda_ipc, device, parallel)


def _leave_out_parents(parallel: Parallel) -> None:
    """Stand-ins for the package's heavy parents: its __init__ wants a server's dependencies, the transport none."""
    if "sglang" in sys.modules:
        raise ImportError("sglang has already been imported as a whole in this process")
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("its files are missing")
    root = spec.submodule_search_locations[0]
    utils = os.path.join(root, "srt", "utils")
    _stand_in("sglang", [root])
    _stand_in("sglang.srt.utils", [utils], log_info_on_rank0=lambda logger, message: logger.info(message))
    _stand_in("sglang.srt.runtime_context", [], get_parallel=lambda: parallel)


def _stand_in(name: str, path: list[str], **attributes: Any) -> None:
    module = types.ModuleType(name)
    module.__path__ = path
    vars(module).update(attributes)
    sys.modules[name] = module
