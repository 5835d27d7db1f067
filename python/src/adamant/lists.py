# SPDX-License-Identifier: Apache-2.0
"""Steps and sums over lists of tensors, each in one call, for engines that keep states and step counts themselves."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Optional, Sequence, Tuple, Union

from ._arrays import array_info, is_torch
from ._extension import load_extension
from ._library import InvalidArgument, check, library, whole_number
from .executor import Executor, shared_executor
from .optimizer import enum_value, roundings

_native: Any = None
_default: Optional[Executor] = None


def _describe(array: Any, name: str, index: int, role: str, written: int) -> Tuple[int, int, int]:
    """Describes an array that the extension module does not read, and teaches it the class if it could."""
    if is_torch(array):
        torch = sys.modules["torch"]
        exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
        if exchange is not None:
            native().use_torch(exchange, torch.Tensor, torch.nn.Parameter, torch.empty(0, device="cpu").is_neg)
    elif type(array).__module__ == "numpy" and type(array).__name__ == "ndarray":
        native().use_numpy(type(array))
    return array_info(array, f"{name}[{index}]", bool(written), role)[:3]


def _count(value: Any, index: int) -> int:
    """A step count: a whole number, or a tensor or array of one element."""
    number = value
    if hasattr(value, "item"):
        try:
            number = value.item()
        except (RuntimeError, ValueError):  # several elements
            pass
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    return whole_number(number, f"steps[{index}]", minimum=1)


def native() -> Any:
    """The extension module, which calls libadamant_c."""
    global _native
    if _native is None:
        module, calls = load_extension("_lists"), library()
        addresses = [ctypes.cast(getattr(calls, name), ctypes.c_void_p).value
                     for name in ("adamant_step_list", "adamant_accumulate_list")]
        module.use_library(*addresses, _describe, _count, check, InvalidArgument)
        _native = module
    return _native


def _pointer(executor: Optional[Executor]) -> Any:
    global _default
    if executor is None:
        if _default is None or not _default.is_in_own_process:
            _default = shared_executor()
        executor = _default
    if executor.pointer is None:
        raise InvalidArgument("cannot use the executor: it was closed. Make another one")
    return executor.pointer


def step(params: Sequence[Any], grads: Sequence[Any], exp_avgs: Sequence[Any], exp_avg_sqs: Sequence[Any],
         steps: Union[int, Sequence[Any]], *, lr: float = 1e-3, betas: Sequence[float] = (0.9, 0.999),
         eps: float = 1e-8, weight_decay: float = 0.0, decoupled: bool = True, bias_correction: bool = True,
         exp_avg_sq_rounding: str = "stochastic", param_rounding: str = "nearest", rounding_seed: int = 0,
         weight_outs: Optional[Sequence[Any]] = None, grad_scale: float = 1.0,
         executor: Optional[Executor] = None) -> int:
    """Take one step of Adam or AdamW over lists of torch tensors or NumPy arrays, in place.

    Parameters
    ----------
    params : sequence of arrays
        Params, read and written: float32, bfloat16 or float16; or int16, see Optimizer.add_shard().
    grads : sequence of arrays
        Gradients, read: float32, bfloat16 or float16.
    exp_avgs, exp_avg_sqs : sequence of arrays
        Moments, read and written: float32 or bfloat16, or both uint8 of shape [groups, 68] (quantized8).
    steps : int, or sequence of int or of tensors of one element
        Number of this step of each tensor, from 1. Read only: add 1 before the call.
    lr, betas, eps, weight_decay, decoupled, bias_correction, exp_avg_sq_rounding, param_rounding, rounding_seed
        See hyperparameters(). Stochastic rounding takes the index in the list as number of the parameter.
    weight_outs : sequence of arrays or None, default None
        Receive the new weights: with float32 params bfloat16, float16, or float32 for a copy. An item may be None.
    grad_scale : float, default 1.0
        Factor of the gradients, such as a clip coefficient, or 1 / loss scale.
    executor : Executor or None, default None
        None: the process's shared executor.

    Returns
    -------
    int
        Number of infinite and NaN gradients. They were applied.

    Raises
    ------
    InvalidArgument
        An array or a value cannot be used. The message names it, and nothing has changed.

    Notes
    -----
    Arrays are contiguous, in host memory, and of equal sizes at each index. No written array overlaps another array.
    Threads share the elements of the whole list. The bits are those of one call for each tensor. Thread-safe for lists
    that do not overlap. Releases the GIL. torch does not see these writes: if a graph may still use the old values, call
    torch.autograd.graph.increment_version(params).
    """
    beta1, beta2 = betas
    return (_native or native()).step(  # type: ignore[no-any-return]
        _pointer(executor), params, grads, exp_avgs, exp_avg_sqs, weight_outs, steps, lr, beta1, beta2, eps,
        weight_decay, 1 if decoupled else 2, bool(bias_correction),
        enum_value("exp_avg_sq_rounding", exp_avg_sq_rounding, roundings),
        enum_value("param_rounding", param_rounding, roundings),
        whole_number(rounding_seed, "rounding_seed"), grad_scale)


def accumulate(sums: Sequence[Any], grads: Sequence[Any], replace: Union[bool, Sequence[bool]] = False, *,
               executor: Optional[Executor] = None) -> None:
    """Add gradients to sums, over lists of torch tensors or NumPy arrays.

    Parameters
    ----------
    sums : sequence of arrays
        Sums, read and written: float32 or bfloat16.
    grads : sequence of arrays
        Gradients, read: float32, bfloat16 or float16.
    replace : bool, or sequence of bool, default False
        Set the sum to the gradient, rounded to its dtype, instead of adding: for all sums, or for each.
    executor : Executor or None, default None
        None: the process's shared executor.

    Raises
    ------
    InvalidArgument
        An array cannot be used. The message names it, and nothing has changed.

    Notes
    -----
    Sums of float32 are those of torch's add_() and copy_(), except that subnormal numbers count as 0. Otherwise as for
    step().
    """
    (_native or native()).accumulate(_pointer(executor), sums, grads, replace)
