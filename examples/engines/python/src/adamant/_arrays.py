# SPDX-License-Identifier: Apache-2.0
"""Where the elements of NumPy arrays and torch tensors lie. Nothing is copied: what cannot be taken as it lies is an
error that says so."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from ._library import InvalidArgument

DTYPES = {"float32": 1, "bfloat16": 2, "float16": 3}
QUANTIZED8 = 5  # moments in groups: bytes, 64 codes and a float32 scale in each
GROUP_ELEMS, GROUP_BYTES = 64, 68


def group_count(elements: int) -> int:
    """The groups of a moment of quantized8 with so many elements."""
    return -(-elements // GROUP_ELEMS)


class Place(NamedTuple):
    address: int
    dtype: int
    elements: int
    shape: tuple


def dtype_code(name: str, what: str, in_groups: bool = False) -> int:
    code = QUANTIZED8 if in_groups and name == "uint8" else DTYPES.get(name)
    if code is None:
        raise InvalidArgument(f"{what} has elements of type {name}, but must have " +
                              ("float32 or bfloat16, or be uint8 of shape [groups, 68], which is quantized8"
                               if in_groups else "float32, bfloat16 or float16"))
    return code


def is_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def place_of(array: Any, what: str, written: bool = False, in_groups: bool = False) -> Place:
    """Address, type and size of an array in host memory. Raises InvalidArgument where it cannot be taken as it lies.
    in_groups: bytes are moments of quantized8, and count as elements here."""
    if is_torch(array):
        return _place_of_tensor(array, what, in_groups)
    if not hasattr(array, "__array_interface__"):
        raise InvalidArgument(f"{what} is a {type(array).__name__}, but must be a NumPy array or a torch tensor")
    if not array.flags.c_contiguous:
        raise InvalidArgument(f"{what} has strides {array.strides}, but must be contiguous: nothing is copied here. "
                              "Make it so with numpy.ascontiguousarray(), and keep what that returns")
    if written and not array.flags.writeable:
        raise InvalidArgument(f"{what} is read-only, but a step writes it")
    return Place(array.ctypes.data if array.size else 0, dtype_code(array.dtype.name, what, in_groups), array.size,
                 array.shape)


def _place_of_tensor(tensor: Any, what: str, in_groups: bool) -> Place:
    if tensor.device.type != "cpu":
        raise InvalidArgument(f"{what} is on {tensor.device}, but must be in host memory (device 'cpu')")
    if tensor.is_sparse or tensor.layout != sys.modules["torch"].strided:
        raise InvalidArgument(f"{what} has the layout {tensor.layout}, but must be dense (torch.strided)")
    if not tensor.is_contiguous():
        raise InvalidArgument(f"{what} has shape {tuple(tensor.shape)} and strides {tensor.stride()}, but must be "
                              "contiguous: nothing is copied here. Make it so with contiguous(), and keep what that "
                              "returns")
    name = str(tensor.dtype).replace("torch.", "")
    return Place(tensor.data_ptr() if tensor.numel() else 0, dtype_code(name, what, in_groups), tensor.numel(),
                 tuple(tensor.shape))
