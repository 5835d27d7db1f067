# SPDX-License-Identifier: Apache-2.0
"""Addresses and dtypes of NumPy arrays and torch tensors in host memory. Nothing is copied."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from ._library import InvalidArgument

DTYPES = {"float32": 1, "bfloat16": 2, "float16": 3}
SPLIT_FLOAT32 = 4  # residuals of split masters, whose weights are bfloat16
QUANTIZED8 = 5  # 8-bit moments: groups of 64 codes and a float32 scale
GROUP_ELEMS, GROUP_BYTES = 64, 68
# By role: additional dtypes of an array, and the dtypes in error messages.
_role_dtypes = {"moment": {"uint8": QUANTIZED8}, "master": {"int16": SPLIT_FLOAT32}}
_expected = {"moment": "float32 or bfloat16, or be uint8 of shape [groups, 68] (quantized8)",
             "master": "float32, bfloat16 or float16, or be int16 with a weight_out of bfloat16 (split master weights)"}


def group_count(elements: int) -> int:
    """The number of quantized8 groups that hold this number of elements."""
    return -(-elements // GROUP_ELEMS)


class ArrayInfo(NamedTuple):
    address: int
    dtype: int
    elements: int
    shape: tuple


def dtype_code(dtype: str, name: str, role: str = "") -> int:
    """libadamant_c's code of a dtype. name: of the array, for errors."""
    code = {**DTYPES, **_role_dtypes.get(role, {})}.get(dtype)
    if code is None:
        raise InvalidArgument(f"{name} has elements of type {dtype}, but must have "
                              f"{_expected.get(role, 'float32, bfloat16 or float16')}")
    return code


def is_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def array_info(array: Any, name: str, written: bool = False, role: str = "") -> ArrayInfo:
    """Returns the address, dtype and size of an array in host memory.

    Parameters
    ----------
    name : str
        Name of the array in errors.
    written : bool
        The library writes the array.
    role : {"", "moment", "master"}
        "moment" also accepts uint8 (quantized8), whose elements are bytes; "master" also accepts int16 (split masters).

    Raises
    ------
    InvalidArgument
        The array cannot be used in place.
    """
    if is_torch(array):
        return _tensor_info(array, name, role)
    if not hasattr(array, "__array_interface__"):
        raise InvalidArgument(f"{name} is a {type(array).__name__}, but must be a NumPy array or a torch tensor")
    if hasattr(array, "mask"):
        raise InvalidArgument(f"{name} is a masked array, but a step ignores masks. Pass its data, or the result of "
                              "filled()")
    if not array.dtype.isnative:
        raise InvalidArgument(f"{name} has dtype {array.dtype.str}, but must have the byte order of this machine. "
                              "Convert it with astype(array.dtype.newbyteorder('='))")
    if not array.flags.c_contiguous:
        raise InvalidArgument(f"{name} has strides {array.strides}, but must be contiguous, because it is used in "
                              "place. Pass the result of numpy.ascontiguousarray(), and keep it alive")
    if written and not array.flags.writeable:
        raise InvalidArgument(f"{name} is read-only, but a step writes it")
    return ArrayInfo(array.ctypes.data if array.size else 0, dtype_code(array.dtype.name, name, role), array.size,
                     array.shape)


def _tensor_info(tensor: Any, name: str, role: str) -> ArrayInfo:
    if tensor.device.type != "cpu":
        raise InvalidArgument(f"{name} is on {tensor.device}, but must be in host memory (device 'cpu')")
    if tensor.is_sparse or tensor.layout != sys.modules["torch"].strided:
        raise InvalidArgument(f"{name} has the layout {tensor.layout}, but must be dense (torch.strided)")
    if not tensor.is_contiguous():
        raise InvalidArgument(f"{name} has shape {tuple(tensor.shape)} and strides {tensor.stride()}, but must be "
                              "contiguous, because it is used in place. Pass the result of contiguous(), and keep it "
                              "alive")
    if tensor.numel() and not tensor.untyped_storage().nbytes():
        raise InvalidArgument(f"{name} has no memory: its storage was resized to 0. Restore it before the step")
    if tensor.is_neg():
        raise InvalidArgument(f"{name} is a negated view, as the imaginary part of a conjugate is. Pass the result of "
                              "resolve_neg(), and keep it alive")
    dtype = str(tensor.dtype).replace("torch.", "")
    return ArrayInfo(tensor.data_ptr() if tensor.numel() else 0, dtype_code(dtype, name, role), tensor.numel(),
                     tuple(tensor.shape))
