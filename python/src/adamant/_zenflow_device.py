# SPDX-License-Identifier: Apache-2.0
"""GPU of the params, on which ZenFlow steps selected columns and vectors."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ._library import Handle, Unavailable, library

_alignment_bytes = 16  # of arrays on a device


class CudaDevice(Handle):
    """A CUDA device of the library, by its ordinal.

    Raises Unavailable if there is no such device, or if the library was built without nvcc.
    """

    free_function = "adamant_device_free"

    def __init__(self, ordinal: int):
        super().__init__(lambda pointer: library().adamant_cuda_device_create(ordinal, pointer))


class ZenFlowDevice:
    """Memory, copies and events of the GPU that holds the params."""

    def __init__(self, device: torch.device):
        self.device = device
        self.handle = CudaDevice(device.index or 0)
        self._event: Any = None

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A new tensor on the device."""
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def empty_pinned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A new tensor in pinned host memory, for asynchronous copies."""
        return torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=True)

    def can_use(self, tensor: Tensor) -> bool:
        """Whether kernels can work on the tensor in place."""
        return tensor.is_contiguous() and tensor.data_ptr() % _alignment_bytes == 0

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copies on the caller's stream."""
        target.copy_(source)

    def record_event(self) -> int:
        """Records a CUDA event on the caller's stream and returns its handle."""
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(self.device))
        return int(self._event.cuda_event)

    def wait_for_caller(self) -> None:
        """Waits for all work on the caller's stream."""
        torch.cuda.current_stream(self.device).synchronize()

    def release_cache(self) -> None:
        """Returns memory that torch's allocator caches to the device."""
        torch.cuda.empty_cache()


def find_gpu(params: Sequence[Tensor]) -> Tuple[Optional[torch.device], str]:
    """Returns the GPU that holds all params; or None, with the reason if some params are on a GPU."""
    devices = sorted({str(param.device) for param in params if param.numel()})
    if not any(param.device.type != "cpu" for param in params if param.numel()):
        return None, ""
    if len(devices) > 1:
        return None, f"params are on {' and '.join(devices)}, but must all be on one GPU"
    device = next(param.device for param in params if param.numel())
    if device.type != "cuda" or torch.version.hip is not None:
        return None, "adamant supports CUDA devices only"
    return device, ""


# Errors that make ZenFlow fall back to host memory.
device_errors = (Unavailable, torch.cuda.OutOfMemoryError)
