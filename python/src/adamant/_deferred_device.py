# SPDX-License-Identifier: Apache-2.0
"""The GPU of the params, on which ZenFlow updates selected columns: the library's device, and torch's streams and memory."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ._library import Handle, Unavailable, library

_aligned = 16  # bytes, for arrays on a device


class Device(Handle):
    """A device of the library's, an NVIDIA GPU by CUDA's number for it. Raises Unavailable where there is none, or where
    the library was built without nvcc."""

    free_function = "adamant_device_free"

    def __init__(self, ordinal: int):
        super().__init__(lambda made: library().adamant_cuda_device_create(ordinal, made))


class Home:
    """The GPU that holds selected columns and vectors beside their gradients and weights."""

    def __init__(self, device: torch.device):
        self.device = device
        self.handle = Device(device.index or 0)
        self._event: Any = None

    def room(self, shape: Sequence[int], kind: torch.dtype) -> Tensor:
        """A new tensor there."""
        return torch.empty(tuple(shape), dtype=kind, device=self.device)

    def host_room(self, shape: Sequence[int], kind: torch.dtype) -> Tensor:
        """A new tensor in host memory, to and from which copies go on by themselves."""
        return torch.empty(tuple(shape), dtype=kind, device="cpu", pin_memory=True)

    def takes(self, tensor: Tensor) -> bool:
        """Whether the device can use these elements in place."""
        return tensor.is_contiguous() and tensor.data_ptr() % _aligned == 0

    def copy(self, to: Tensor, source: Tensor) -> None:
        """Copies on the caller's stream."""
        to.copy_(source)

    def event(self) -> int:
        """A CUDA event on the caller's stream, after all that it was given."""
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(self.device))
        return int(self._event.cuda_event)

    def wait_for_caller(self) -> None:
        """Returns when all is done that the caller's stream was given."""
        torch.cuda.current_stream(self.device).synchronize()

    def make_room(self) -> None:
        """Releases memory that torch caches, for the device."""
        torch.cuda.empty_cache()


def home_of(params: Sequence[Tensor]) -> Tuple[Optional[torch.device], str]:
    """The GPU that these params are all on; or None, and why some that are on one are not to be stepped there."""
    devices = sorted({str(param.device) for param in params if param.numel()})
    if not any(param.device.type != "cpu" for param in params if param.numel()):
        return None, ""
    if len(devices) > 1:
        return None, f"params are on {' and '.join(devices)}, but must all be on one GPU for that"
    device = next(param.device for param in params if param.numel())
    if device.type != "cuda" or torch.version.hip is not None:
        return None, "adamant's device is one of CUDA"
    return device, ""


# What says that something cannot be had on a GPU; anything else is an error.
refusals = (Unavailable, torch.cuda.OutOfMemoryError)
