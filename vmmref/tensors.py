"""What the pool asks of torch: which tensors can be published, and how bytes become a tensor again."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from vmmref.driver.device import Device
from vmmref.errors import ArgumentError, TensorError, WireFormError
from vmmref.wire import ELEMENT_BYTES
from vmmref_models.reasons import Reason


@lru_cache(maxsize=256)
def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype in the wire form: "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


@lru_cache(maxsize=64)
def _home(name: str) -> torch.device:
    return torch.device(name)


def _refused(message: str) -> TensorError:
    return TensorError(Reason.UNUSABLE_TENSOR, "PUB-4", message)


def publishable(tensor: Any, device: Device) -> torch.Tensor:
    """`tensor` as the contiguous one whose bytes can be copied; raises TensorError for one that cannot be published.

    A contiguous tensor is returned as it is; another is copied (PUB-4). Nothing of the pool is taken before this.
    """
    if not isinstance(tensor, torch.Tensor):
        raise _refused(f"a torch.Tensor can be published, not {type(tensor).__name__}")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise _refused(f"only plain strided tensors can be published, not {tensor.layout} {tensor.dtype}")
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise _refused(f"a {type(tensor).__name__} has no memory of its own that could be copied")
    if dtype_name(tensor.dtype) not in ELEMENT_BYTES:
        raise _refused(f"tensors of {tensor.dtype} cannot be published")
    wanted = _home(device.torch_device)
    if tensor.device != wanted:
        raise _refused(f"tensor is on {tensor.device}, the pool's tensors are on {wanted}")
    if tensor.numel() == 0:
        raise _refused(f"tensor of shape {tuple(tensor.shape)} is empty")
    # PUB-4: to the last element, wherever its strides lead: what lies behind belongs to somebody else.
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.untyped_storage().nbytes() < tensor.element_size() * (tensor.storage_offset() + last + 1):
        raise _refused(f"tensor of shape {tuple(tensor.shape)} has lost its storage")
    if tensor.is_contiguous() and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg()):
        return tensor
    # Lazy conjugation and negation are flags beside the bytes: resolve them, or the reader gets other numbers.
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def private_tensor(dtype: str, shape: tuple[int, ...], device: Device) -> torch.Tensor:
    """New memory of this process on `device` to copy a lease out to."""
    torch_dtype = getattr(torch, dtype, None)
    if torch_dtype is None:
        raise WireFormError(Reason.BAD_WIRE_FORM, "CON-1", f"this torch {torch.__version__} has no dtype {dtype}")
    return torch.empty(shape, dtype=torch_dtype, device=device.torch_device)


def view_of_memory(address: int, nbytes: int, device: Device) -> torch.Tensor:
    """A uint8 tensor over `nbytes` of mapped memory, which it does not keep alive: the pool outlives its views."""
    storage = torch._C._construct_storage_from_data_pointer(address, torch.device(device.torch_device), nbytes)
    return torch.empty(0, dtype=torch.uint8, device=device.torch_device).set_(storage, 0, (nbytes,), (1,))


def as_tensor(data: torch.Tensor, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Bytes (a uint8 tensor) seen as a tensor of `dtype` and `shape`, in place."""
    return data.view(getattr(torch, dtype)).reshape(shape)


def unusable_backing(device: Device, memory_size: int, got: str) -> ArgumentError:
    """The refusal of memory that a caller offers to build a pool on."""
    message = (
        f"byte_tensor must be a sufficiently large contiguous uint8 tensor on {device.torch_device}: "
        f"{memory_size} bytes of VMM memory of its own wanted, got {got}"
    )
    return ArgumentError(Reason.UNUSABLE_BACKING, "PUB-5", message)


def check_backing(byte_tensor: Any, memory_size: int, device: Device) -> int:
    """Address of the memory that a caller offers to build a pool on; raises ArgumentError if unusable (PUB-5)."""
    usable = (
        isinstance(byte_tensor, torch.Tensor)
        and byte_tensor.dtype == torch.uint8
        and byte_tensor.device == torch.device(device.torch_device)
        and byte_tensor.is_contiguous()
        and byte_tensor.numel() >= memory_size
    )
    if not usable:
        got = (
            f"{byte_tensor.dtype} {tuple(byte_tensor.shape)}, strides {byte_tensor.stride()}, on {byte_tensor.device}"
            if isinstance(byte_tensor, torch.Tensor)
            else type(byte_tensor).__name__
        )
        raise unusable_backing(device, memory_size, got)
    return int(byte_tensor.data_ptr())
