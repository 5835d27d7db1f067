# SPDX-License-Identifier: Apache-2.0
"""Changed weights of NumPy arrays and torch tensors: bits that steps set, and what is read from them."""

from __future__ import annotations

from ctypes import byref, c_size_t
from typing import Any, Optional, Tuple

from ._arrays import array_info, is_torch
from ._library import InvalidArgument, TrackedWeights, check, counted, library, whole_number
from .executor import Executor, shared_executor

_WORD_ELEMS = 64


def changed_words(elements: int) -> int:
    """Return the number of 64-bit words that the changed weights of this number of elements need."""
    return -(-whole_number(elements, "elements") // _WORD_ELEMS)


def words_address(changed: Any, elements: int, name: str) -> int:
    """The address of the bits of changed weights. Raises InvalidArgument if they do not fit."""
    if is_torch(changed):
        fits = (str(changed.dtype) in ("torch.int64", "torch.uint64") and changed.device.type == "cpu" and
                changed.is_contiguous())
        size, address = changed.numel(), changed.data_ptr() if fits else 0
    elif hasattr(changed, "__array_interface__"):
        fits = (changed.dtype.kind in "iu" and changed.dtype.itemsize == 8 and changed.dtype.isnative and
                changed.flags.c_contiguous and changed.flags.writeable)
        size, address = changed.size, changed.ctypes.data if fits else 0
    else:
        raise InvalidArgument(f"{name} is a {type(changed).__name__}, but must be a NumPy array or a torch tensor")
    if not fits or size != changed_words(elements):
        raise InvalidArgument(f"{name} has {counted(size, 'element')} of {changed.dtype}, but must have "
                              f"{changed_words(elements)} of uint64 or int64 for {counted(elements, 'weight')}, "
                              "contiguous, writable and in host memory")
    return int(address)


def tracked(changed: Any, weights: Any) -> TrackedWeights:
    """Describes weights and their bits for libadamant_c."""
    info = array_info(weights, "weights")
    return TrackedWeights.initialised(changed=words_address(changed, info.elements, "changed") or None,
                                      elements=info.elements, weights=info.address or None, dtype=info.dtype)


def collect(from_weights: TrackedWeights, first_index: int, clear: bool, executor: Executor, empty: Any,
            with_values: bool = True) -> Tuple[Any, Any]:
    """Indices and values of changed weights. empty(count, is_index): makes an array."""
    count = c_size_t()
    check(library().adamant_count_changed(executor.pointer, byref(from_weights), byref(count)))
    indices, values = empty(count.value, True), empty(count.value, False)
    if count.value:
        addresses = [array.data_ptr() if is_torch(array) else array.ctypes.data for array in (indices, values)]
        narrow = (indices.element_size() if is_torch(indices) else indices.itemsize) == 4
        check(library().adamant_changed_weights(
            executor.pointer, byref(from_weights), first_index, count.value, addresses[0] if narrow else None,
            None if narrow else addresses[0], addresses[1] if with_values else None, int(clear), byref(count)))
    return indices, values


def _wide(elements: int, first_index: int) -> bool:
    return elements + first_index > 2**32


def changed_weights(changed: Any, weights: Any, *, first_index: int = 0, clear: bool = False,
                    executor: Optional[Executor] = None) -> Tuple[Any, Any]:
    """Return the indices and values of changed weights.

    Parameters
    ----------
    changed : array of uint64 or int64
        Bits of changed weights, see Optimizer.add_shard(). Bits beyond the last weight are cleared.
    weights : array
        The published weights: weight_out, or param without one. float32, bfloat16 or float16.
    first_index : int, default 0
        Added to each index: position of the first weight in its parameter.
    clear : bool, default False
        Clear all bits.
    executor : Executor or None, default None
        None: the process's shared executor.

    Returns
    -------
    indices : array
        Ascending. For a NumPy array uint32, or uint64 if an index does not fit; for a torch tensor int32 or int64.
    values : array
        The weights with these indices, in the dtype of `weights`.

    Raises
    ------
    InvalidArgument
        An array cannot be used.
    """
    from_weights = tracked(changed, weights)
    first_index = whole_number(first_index, "first_index")
    if is_torch(weights):
        import torch
        whole_number(first_index + from_weights.elements, "first_index plus the number of weights", 2**63)
        kinds = [torch.int64 if from_weights.elements + first_index > 2**31 else torch.int32, weights.dtype]

        def empty(count: int, is_index: bool) -> Any:
            return torch.empty(count, dtype=kinds[0 if is_index else 1], device="cpu")
    else:
        import numpy
        types = [numpy.uint64 if _wide(from_weights.elements, first_index) else numpy.uint32, weights.dtype]

        def empty(count: int, is_index: bool) -> Any:
            return numpy.empty(count, dtype=types[0 if is_index else 1])
    return collect(from_weights, first_index, clear, executor or shared_executor(), empty)


def count_changed(changed: Any, weights: Any, *, executor: Optional[Executor] = None) -> int:
    """Return the number of changed weights. For the arguments see changed_weights()."""
    count = c_size_t()
    check(library().adamant_count_changed((executor or shared_executor()).pointer, byref(tracked(changed, weights)),
                                          byref(count)))
    return count.value


def changed_mask(changed: Any, weights: Any, *, clear: bool = False, executor: Optional[Executor] = None) -> Any:
    """Return a boolean array of the shape of `weights`: True for each changed one. See changed_weights()."""
    from_weights = tracked(changed, weights)
    if is_torch(weights):
        import torch
        mask = torch.empty(tuple(weights.shape), dtype=torch.bool, device="cpu")
        address = mask.data_ptr()
    else:
        import numpy
        mask = numpy.empty(weights.shape, dtype=numpy.bool_)
        address = mask.ctypes.data
    check(library().adamant_changed_mask((executor or shared_executor()).pointer, byref(from_weights),
                                         address if from_weights.elements else None, int(clear)))
    return mask


def mark_changed(changed: Any, weights: Any, begin: int = 0, end: Optional[int] = None) -> None:
    """Mark weights [begin, end) as changed, by default all. Call it after writing weights or their masters."""
    from_weights = tracked(changed, weights)
    check(library().adamant_mark_changed(byref(from_weights), whole_number(begin, "begin"),
                                         from_weights.elements if end is None else whole_number(end, "end")))
