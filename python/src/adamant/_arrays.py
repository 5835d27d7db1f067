# SPDX-License-Identifier: Apache-2.0
"""Addresses and types of NumPy arrays and torch tensors. Nothing is copied: arrays that the library cannot use in place are
refused."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from ._library import InvalidArgument

DTYPES = {"float32": 1, "bfloat16": 2, "float16": 3}
SPLIT_FLOAT32 = 4  # the residuals of split float32 masters, whose upper ones are the weights
QUANTIZED8 = 5  # moments in groups: bytes, 64 codes and a float32 scale in each
GROUP_ELEMS, GROUP_BYTES = 64, 68
# What an array of that part may be besides, and how errors say what it may be at all.
_more = {"moment": {"uint8": QUANTIZED8}, "master": {"int16": SPLIT_FLOAT32}}
_wanted = {"moment": "float32 or bfloat16, or be uint8 of shape [groups, 68], which is quantized8",
           "master": "float32, bfloat16 or float16, or be int16 beside a weight_out of bfloat16: the residuals of split masters"}


def group_count(elements: int) -> int:
    """Number of groups of a quantized8 moment."""
    return -(-elements // GROUP_ELEMS)


class Place(NamedTuple):
    address: int
    dtype: int
    elements: int
    shape: tuple


def dtype_code(name: str, what: str, part: str = "") -> int:
    code = {**DTYPES, **_more.get(part, {})}.get(name)
    if code is None:
        raise InvalidArgument(f"{what} has elements of type {name}, but must have "
                              f"{_wanted.get(part, 'float32, bfloat16 or float16')}")
    return code


def is_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def place_of(array: Any, what: str, written: bool = False, part: str = "") -> Place:
    """Address, type and size of an array in host memory. Raises InvalidArgument where it cannot be taken as it lies.
    part: "moment", whose bytes are quantized8, and count as elements here; "master", whose int16 are residuals."""
    if is_torch(array):
        return _place_of_tensor(array, what, part)
    if not hasattr(array, "__array_interface__"):
        raise InvalidArgument(f"{what} is a {type(array).__name__}, but must be a NumPy array or a torch tensor")
    if hasattr(array, "mask"):
        raise InvalidArgument(f"{what} is a masked array, but a step ignores masks. Pass its data, or what "
                              "filled() returns")
    if not array.dtype.isnative:
        raise InvalidArgument(f"{what} has dtype {array.dtype.str}, but must have the byte order of this machine. Convert it with "
                              "astype(array.dtype.newbyteorder('='))")
    if not array.flags.c_contiguous:
        raise InvalidArgument(f"{what} has strides {array.strides}, but must be contiguous: nothing is copied here. "
                              "Make it so with numpy.ascontiguousarray(), and keep what that returns")
    if written and not array.flags.writeable:
        raise InvalidArgument(f"{what} is read-only, but a step writes it")
    return Place(array.ctypes.data if array.size else 0, dtype_code(array.dtype.name, what, part), array.size,
                 array.shape)


def _place_of_tensor(tensor: Any, what: str, part: str) -> Place:
    if tensor.device.type != "cpu":
        raise InvalidArgument(f"{what} is on {tensor.device}, but must be in host memory (device 'cpu')")
    if tensor.is_sparse or tensor.layout != sys.modules["torch"].strided:
        raise InvalidArgument(f"{what} has the layout {tensor.layout}, but must be dense (torch.strided)")
    if not tensor.is_contiguous():
        raise InvalidArgument(f"{what} has shape {tuple(tensor.shape)} and strides {tensor.stride()}, but must be "
                              "contiguous: nothing is copied here. Make it so with contiguous(), and keep what that "
                              "returns")
    name = str(tensor.dtype).replace("torch.", "")
    return Place(tensor.data_ptr() if tensor.numel() else 0, dtype_code(name, what, part), tensor.numel(),
                 tuple(tensor.shape))
