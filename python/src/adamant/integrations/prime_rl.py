# SPDX-License-Identifier: Apache-2.0
"""prime-rl: the functions of its module `cpu_adam`.

At the end of src/prime_rl/trainer/optim/cpu_adam/__init__.py:

    from adamant.integrations.prime_rl import *

Needs no compiler. sign_sgd_step() is missing: the import above keeps prime-rl's own.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import torch
from torch import Tensor

from .._library import InvalidArgument, Unavailable
from ..executor import shared_executor
from ..lists import native
from ..lists import step as step_list
from ..torch._state import steps_of

__all__ = ["adamw_step", "add_bfloat16_", "copy_bfloat16_", "copy_or_add_bfloat16_multi_", "load_cpu_adamw_kernel"]


def load_cpu_adamw_kernel() -> None:
    """Load libadamant_c, so that later calls do not wait for it."""
    native()
    shared_executor()


def _refuse(function: str, reason: str) -> None:
    raise InvalidArgument(f"cannot run {function}(): {reason}")


def _check_counts(function: str, params: Sequence[Tensor], **others: Sequence[Any]) -> None:
    for name, values in others.items():
        if len(values) != len(params):
            _refuse(function, f"{name} has {len(values)} entries, but there are {len(params)} tensors. Pass one for "
                              "each")


@torch.no_grad()
def copy_or_add_bfloat16_multi_(destinations: List[Tensor], sources: List[Tensor], add: List[bool]) -> None:
    """Copy bfloat16 tensors into float32 tensors, or add them where `add` is True.

    Raises
    ------
    InvalidArgument
        A tensor is not in host memory, contiguous, of its dtype and size. Nothing has changed.
    """
    function = "copy_or_add_bfloat16_multi_"
    _check_counts(function, destinations, sources=sources, add=add)
    for i, pair in enumerate(zip(destinations, sources)):
        for tensor, name, dtype in zip(pair, ("destinations", "sources"), (torch.float32, torch.bfloat16)):
            if tensor.device.type != "cpu" or tensor.dtype != dtype or not tensor.is_contiguous():
                _refuse(function, f"{name}[{i}] is {tensor.dtype} on {tensor.device} with strides {tensor.stride()}, "
                                  f"but must be {dtype}, in host memory and contiguous")
        if pair[0].numel() != pair[1].numel():
            _refuse(function, f"sources[{i}] has {pair[1].numel()} elements, but its destination {pair[0].numel()}")
    for destination, source, adds in zip(destinations, sources, add):
        view = source.view(destination.shape)
        destination.add_(view) if adds else destination.copy_(view)


def add_bfloat16_(destination: Tensor, source: Tensor) -> None:
    """Add a bfloat16 tensor to a float32 tensor. See copy_or_add_bfloat16_multi_()."""
    copy_or_add_bfloat16_multi_([destination], [source], [True])


def copy_bfloat16_(destination: Tensor, source: Tensor) -> None:
    """Copy a bfloat16 tensor into a float32 tensor. See copy_or_add_bfloat16_multi_()."""
    copy_or_add_bfloat16_multi_([destination], [source], [False])


@torch.no_grad()
def adamw_step(params: List[Tensor], grads: List[Tensor], exp_avgs: List[Tensor], exp_avg_sqs: List[Tensor],
               state_steps: List[Tensor], compute_params: Optional[List[Tensor]] = None, *, lr: float, beta1: float,
               beta2: float, weight_decay: float, eps: float, gradient_scale: float) -> None:
    """Step tensors with AdamW, and write the new weights to compute_params.

    Parameters
    ----------
    params, exp_avgs, exp_avg_sqs : list of Tensor
        float32 tensors in host memory, updated in place. Moments may also be bfloat16.
    grads : list of Tensor
        float32 or bfloat16 gradients, which are only read.
    state_steps : list of Tensor
        Step counts before this step, increased by 1.
    compute_params : list of Tensor, optional
        bfloat16, float16 or float32 tensors for the rounded weights. None or empty: none are written.
    gradient_scale : float
        Factor of the gradients, above 0.

    Raises
    ------
    InvalidArgument
        A tensor or a value cannot be used. Nothing has changed.
    """
    function = "adamw_step"
    _check_counts(function, params, grads=grads, exp_avgs=exp_avgs, exp_avg_sqs=exp_avg_sqs, state_steps=state_steps,
                  compute_params=compute_params or params)
    if not 0 < gradient_scale < float("inf"):
        _refuse(function, f"gradient_scale is {gradient_scale!r}, but must be a finite number above 0")
    for i, param in enumerate(params):
        if param.dtype != torch.float32:
            _refuse(function, f"params[{i}] is {param.dtype}, but must be torch.float32")
    steps = [steps_of(step, f"params[{i}]") + 1 for i, step in enumerate(state_steps)]
    step_list(params, grads, exp_avgs, exp_avg_sqs, steps, lr=lr, betas=(beta1, beta2), eps=eps,
              weight_decay=weight_decay, exp_avg_sq_rounding="nearest", weight_outs=compute_params or None,
              grad_scale=gradient_scale)
    for step, number in zip(state_steps, steps):
        step.fill_(number)


def sign_sgd_step(*_: Any, **__: Any) -> None:
    """Not supported: adamant has no SignSGD."""
    raise Unavailable("cannot run sign_sgd_step(): adamant has no SignSGD. Import it from prime-rl's own cpu_adam")
