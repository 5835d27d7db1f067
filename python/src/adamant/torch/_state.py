# SPDX-License-Identifier: Apache-2.0
"""State of a param: initial tensors, checks, and copies for load_state_dict()."""

from __future__ import annotations

import copy
from math import prod
from typing import TYPE_CHECKING, Any, Dict, Optional

import torch
from torch import Tensor

from .._arrays import GROUP_BYTES, GROUP_ELEMS, group_count
from .._host_copies import as_dtensor, check_memory, local
from .._library import InvalidArgument, counted, is_bool
from .._quantized8 import is_quantized, moments, zeros
from .._split_masters import masters
from ._arguments import formats

if TYPE_CHECKING:
    from ._stepping import Steps

_most_steps = 1 << 53
_exact_in_float32 = 1 << 24
_moment_dtypes = (torch.float32, torch.bfloat16, torch.uint8)
# By key, the dtypes of a state's tensor; None: checked elsewhere.
_types = {"exp_avg": _moment_dtypes, "exp_avg_sq": _moment_dtypes, "master_param": (torch.float32,),
          "master_low": (torch.int16,), "by_columns": None, "sums": None}


# Step counts

def steps_of(value: Any, name: str) -> int:
    """The step count in a state's "step". Raises InvalidArgument if the value is no count."""
    number = value
    if isinstance(value, Tensor):
        readable = value.layout == torch.strided and value.device.type != "meta" and not value.is_complex()
        number = value.item() if readable and value.numel() == 1 and value.dtype != torch.bool else None
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    if not is_number or not 0 <= number < _most_steps or number != int(number):
        raise InvalidArgument(f"cannot use the state of {name}: step is {value!r}, but must be a whole number of steps")
    return int(number)


def count_tensor(steps: int) -> Tensor:
    """A step count as a tensor: float32 as in torch, or float64 from 2^24 on, where float32 is not exact."""
    dtype = torch.float32 if steps < _exact_in_float32 else torch.float64
    return torch.tensor(float(steps), dtype=dtype, device="cpu")


def settle_count(state: Dict[str, Any], name: str) -> int:
    """Returns the step count. Replaces "step" if the native step cannot write to it."""
    value = state["step"]
    steps = steps_of(value, name)
    fits = (isinstance(value, Tensor) and value.device.type == "cpu" and not value.requires_grad and
            type(value) is Tensor and
            (value.dtype in (torch.float64, torch.int64) or value.dtype == torch.float32 and steps < _exact_in_float32))
    if not fits:
        state["step"] = count_tensor(steps)
    return steps


# New states

def _host(param: Tensor) -> Dict[str, Any]:
    return {} if param.device.type == "cpu" else {"device": "cpu"}


def _new_groups(param: Tensor, name: str) -> Tensor:
    """A quantized8 moment. For a DTensor it is also a DTensor, so checkpoints shard it like the param."""
    groups = zeros(local(param).numel())
    if not hasattr(param, "to_local"):
        return groups
    ranks = prod(param.device_mesh.size(i) for i, placement in enumerate(param.placements)
                 if not placement.is_replicate())
    is_by_rows = all(placement.is_replicate() or (placement.is_shard(0) and type(placement).__name__ == "Shard")
                     for placement in param.placements)
    if ranks > 1 and (not is_by_rows or param.shape[0] % ranks or param.numel() // ranks % GROUP_ELEMS):
        raise InvalidArgument(f"cannot use quantized8 moments for {name}: its shape {tuple(param.shape)} is sharded by "
                              f"{param.placements} over {ranks} ranks, but each rank must have the same number of "
                              f"whole groups of {GROUP_ELEMS} elements. Put the param into a group with "
                              '"state_format": "float32" or "bfloat16"')
    return as_dtensor(param, groups, torch.Size((group_count(param.numel()), GROUP_BYTES)), (GROUP_BYTES, 1))


@torch.no_grad()
def complete_state(optimizer: "Steps", group: int, param: Tensor) -> Dict[str, Any]:
    """Returns the state of a param, and adds missing tensors before its first step.

    Raises InvalidArgument if the param cannot be stepped with it.
    """
    name = optimizer._name(param)
    check_memory(param, f"cannot step {name}: it")
    try:
        state = optimizer.state[param]
    except KeyError:
        raise InvalidArgument(f"cannot create the state of {name}: the optimizer's `state` is a dict without defaults. "
                              "Assign a collections.defaultdict(dict), or load a state") from None
    if not isinstance(state, dict):
        check_state(name, param, state)
    master = optimizer._arguments.master
    state_format = optimizer._format_of(optimizer.param_groups[group])
    splits, dtype = formats[state_format] if state_format else (False, None)
    if splits and param.dtype == torch.float16 and not master:
        raise InvalidArgument(f"cannot split the master of {name}: it is {param.dtype}, but split master weights are "
                              "for bfloat16 params. Set master=True to give float16 params float32 masters, or put it "
                              "into a group with "
                              '"state_format": "float32"')
    new = not any(moment in state for moment in moments)
    if new and steps_of(state.get("step", 0), name) == 0:
        if dtype is None:
            dtype = torch.float32 if param.dtype == torch.float16 or master else param.dtype
        tensors = {moment: _new_groups(param, name) if dtype == torch.uint8 else
                   torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format, requires_grad=False,
                                    **_host(param))
                   for moment in moments}
        if not any(key in state for key in masters):
            if splits and param.dtype == torch.bfloat16:
                tensors["master_low"] = torch.zeros_like(param, dtype=torch.int16, memory_format=torch.preserve_format,
                                                         **_host(param))
            elif master and param.dtype in (torch.bfloat16, torch.float16):
                tensors["master_param"] = param.detach().to(dtype=torch.float32, memory_format=torch.preserve_format,
                                                            **_host(param))
        state.update({"step": count_tensor(0), **tensors, **({"step": state["step"]} if "step" in state else {})})
    elif not any(key in state for key in masters):
        if splits and param.dtype == torch.bfloat16:
            state["master_low"] = torch.zeros_like(param, dtype=torch.int16, memory_format=torch.preserve_format,
                                                   **_host(param))
        elif master and param.dtype in (torch.bfloat16, torch.float16):
            state["master_param"] = param.detach().to(dtype=torch.float32, memory_format=torch.preserve_format,
                                                      **_host(param))
    check_state(name, param, state)
    if param.dtype == torch.float32 and state.get("master_param", param) is not param:
        state["master_param"] = param  # not a copy, which would be out of date after this step
    return state


# Checks

def _check_tensor(name: str, key: str, value: Any, param: Tensor) -> None:
    prefix = f"cannot use the state of {name}: {key}"
    if not isinstance(value, Tensor):
        raise InvalidArgument(f"{prefix} is {value!r}, but must be a tensor")
    if value.layout != torch.strided:
        raise InvalidArgument(f"{prefix} has the layout {value.layout}, but must be dense (torch.strided)")
    if value.device.type == "meta":
        raise InvalidArgument(f"{prefix} is on the meta device, which has no values")
    dtypes = _types[key]
    if dtypes is not None and value.dtype not in dtypes:
        raise InvalidArgument(f"{prefix} has dtype {value.dtype}, but must be "
                              f"{' or '.join(str(dtype) for dtype in dtypes)}. Convert it, for each state of "
                              "state_dict['state']")
    if is_quantized(value):
        shape = (group_count(param.numel()), GROUP_BYTES)
    else:
        shape = tuple(param.shape)
    if tuple(value.shape) != shape:
        raise InvalidArgument(f"{prefix} has shape {tuple(value.shape)}, but the param has {tuple(param.shape)}"
                              f"{f', whose groups have {shape}' if is_quantized(value) else ''}")
    if hasattr(param, "to_local") != hasattr(value, "to_local"):
        raise InvalidArgument(f"{prefix} is {'a' if hasattr(value, 'to_local') else 'no'} DTensor, but the param is "
                              f"{'one' if hasattr(param, 'to_local') else 'none'}. Load it with "
                              "torch.distributed.checkpoint")
    if hasattr(param, "to_local") and tuple(value.placements) != tuple(param.placements):  # type: ignore[attr-defined]
        actual, expected = value.placements, param.placements  # type: ignore[attr-defined]
        raise InvalidArgument(f"{prefix} has the placements {actual}, but the param has {expected}")
    check_memory(value, prefix)


def check_state(name: str, param: Tensor, state: Any) -> None:
    """Raises InvalidArgument if the param cannot be stepped with this state. An empty state is valid."""
    if not isinstance(state, dict):
        raise InvalidArgument(f"cannot use the state of {name}: it is {state!r}, but must be a dictionary")
    if not state:
        return
    missing = [moment for moment in moments if moment not in state]
    steps = steps_of(state["step"], name) if "step" in state else 0
    if missing and (len(missing) == 1 or steps > 0):
        raise InvalidArgument(f"cannot use the state of {name}: it has no {' and no '.join(missing)}, but has taken "
                              f"{counted(steps, 'step')}. Load a complete state")
    if not missing and "step" not in state and "updates" not in state:
        raise InvalidArgument(f"cannot use the state of {name}: it has moments, but no step. Load a complete state")
    if all(key in state for key in masters):
        raise InvalidArgument(f"cannot use the state of {name}: it has both {' and '.join(masters)}. Remove "
                              "one of them")
    if "master_low" in state and isinstance(state["master_low"], Tensor) and (
            (param.dtype, state["master_low"].dtype) != (torch.bfloat16, torch.int16)):
        raise InvalidArgument(f"cannot use the state of {name}: the param is {param.dtype} and its master_low "
                              f"{state['master_low'].dtype}, but split master weights are torch.bfloat16 and "
                              "torch.int16. Load a complete state")
    for key in _types:
        if key in state:
            _check_tensor(name, key, state[key], param)
    formats_found = {is_quantized(state[moment]) for moment in moments if moment in state}
    if len(formats_found) > 1:
        raise InvalidArgument(f"cannot use the state of {name}: one moment is quantized8, and the other is not")


# Loading

def _copied(value: Any, param: Optional[Tensor], key: str) -> Any:
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    value = value.detach()
    if param is not None and key in (*moments, *masters) and not is_quantized(value) and not hasattr(value, "to_local"):
        # Restores the param's order of elements, which torch.load() and other devices may have changed.
        copied = torch.empty_like(param.detach(), dtype=value.dtype, device="cpu", memory_format=torch.preserve_format)
        return copied.copy_(value)
    return value.to("cpu", copy=True)


@torch.no_grad()
def loaded_state(state: Dict[str, Any], param: Tensor, name: str) -> Dict[str, Any]:
    """A copy of a checked state in host memory. Dtypes are kept."""
    by_columns = "updates" in state  # a state of zenflow has another order of elements
    layout = None if by_columns else param
    return {key: count_tensor(steps_of(value, name)) if key == "step" else _copied(value, layout, key)
            for key, value in state.items()}


def check_hyper(group: Any, number: int) -> None:
    """Raises InvalidArgument if no step can use the hyperparameters of a loaded group."""
    if not isinstance(group, dict) or not isinstance(group.get("params"), (list, tuple)):
        raise InvalidArgument(f"cannot load parameter group {number}: it must be a dictionary with \"params\"")

    def check_number(name: str, value: Any, limit: float = float("inf")) -> None:
        try:
            read = -1.0 if is_bool(value) or isinstance(value, (str, bytes)) else float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            read = -1.0
        if not 0 <= read < limit:
            raise InvalidArgument(f"cannot load parameter group {number}: {name} is {value!r}, but must be a number "
                                  f"from 0{f', below {limit}' if limit < float('inf') else ''}")
    for name in ("lr", "eps", "weight_decay"):
        check_number(name, group.get(name))
    try:
        betas = list(group["betas"])
    except (LookupError, TypeError):
        betas = []
    if len(betas) != 2:
        raise InvalidArgument(f"cannot load parameter group {number}: betas is {group.get('betas')!r}, but must be two "
                              "numbers")
    for beta in betas:
        check_number("a beta", beta, 1.0)
