# SPDX-License-Identifier: Apache-2.0
"""The state of a param: its tensors before the first step, its checks, and its copies when a state_dict is loaded."""

from __future__ import annotations

import copy
from math import prod
from typing import TYPE_CHECKING, Any, Dict, Optional

import torch
from torch import Tensor

from .._arrays import GROUP_BYTES, GROUP_ELEMS, group_count
from .._host_copies import check_memory, local
from .._library import InvalidArgument
from .._quantized8 import is_quantized, moments, zeros
from .._split_masters import masters
from ._arguments import formats

if TYPE_CHECKING:
    from ._stepping import Steps

_most_steps = 1 << 53
_exact_in_float32 = 1 << 24
_types = {"exp_avg": (torch.float32, torch.bfloat16, torch.uint8), "exp_avg_sq": (torch.float32, torch.bfloat16, torch.uint8),
          "master_param": (torch.float32,), "master_low": (torch.int16,), "by_columns": None, "sums": None}


# Step counts

def steps_of(value: Any, name: str) -> int:
    """The steps in a state's "step". Raises InvalidArgument if that is no count."""
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
    kind = torch.float32 if steps < _exact_in_float32 else torch.float64
    return torch.tensor(float(steps), dtype=kind, device="cpu")


def settle_count(state: Dict[str, Any], name: str) -> int:
    """Has a state's step in a tensor that the step can write, and returns its value."""
    value = state["step"]
    steps = steps_of(value, name)
    fits = (isinstance(value, Tensor) and value.device.type == "cpu" and not value.requires_grad and type(value) is Tensor and
            (value.dtype in (torch.float64, torch.int64) or value.dtype == torch.float32 and steps < _exact_in_float32))
    if not fits:
        state["step"] = count_tensor(steps)
    return steps


# New states

def _host(param: Tensor) -> Dict[str, Any]:
    return {} if param.device.type == "cpu" else {"device": "cpu"}


def _new_groups(param: Tensor, name: str) -> Tensor:
    """A moment of quantized8. A DTensor's is one, too, so that checkpoints shard it as they shard the param."""
    made = zeros(local(param).numel())
    if not hasattr(param, "to_local"):
        return made
    ranks = prod(param.device_mesh.size(i) for i, how in enumerate(param.placements) if not how.is_replicate())
    plain = all(how.is_replicate() or (how.is_shard(0) and type(how).__name__ == "Shard") for how in param.placements)
    if ranks > 1 and (not plain or param.shape[0] % ranks or param.numel() // ranks % GROUP_ELEMS):
        raise InvalidArgument(f"{name} has shape {tuple(param.shape)} and is sharded by {param.placements} over "
                              f"{ranks} ranks, but quantized8 moments are in groups of {GROUP_ELEMS} elements, and each "
                              "rank must have equally many whole ones. Put the param into a group with "
                              '"state_format": "float32" or "bfloat16"')
    return type(param).from_local(made, param.device_mesh, param.placements, run_check=False,  # type: ignore[attr-defined]
                                  shape=torch.Size((group_count(param.numel()), GROUP_BYTES)), stride=(GROUP_BYTES, 1))


@torch.no_grad()
def complete_state(optimizer: "Steps", group: int, param: Tensor) -> Dict[str, Any]:
    """The state of a param, with what is missing before its first step. Raises where it cannot be stepped."""
    name = optimizer._name(param)
    check_memory(param, f"cannot step {name}: it")
    state = optimizer.state[param]
    if not isinstance(state, dict):
        check_state(name, param, state)
    master = optimizer._arguments.master
    asked = optimizer._format_of(optimizer.param_groups[group])
    splits, kind = formats[asked] if asked else (False, None)
    if splits and param.dtype == torch.float16 and not master:
        raise InvalidArgument(f"{name} has the type {param.dtype}, but split master weights are for bfloat16 params. Set "
                              "master=True, with which float16 params have float32 masters, or put it into a group with "
                              '"state_format": "float32"')
    new = not any(moment in state for moment in moments)
    if new and steps_of(state.get("step", 0), name) == 0:
        if kind is None:
            kind = torch.float32 if param.dtype == torch.float16 or master else param.dtype
        made = {moment: _new_groups(param, name) if kind == torch.uint8 else
                torch.zeros_like(param, dtype=kind, memory_format=torch.preserve_format, requires_grad=False, **_host(param))
                for moment in moments}
        if not any(each in state for each in masters):
            if splits and param.dtype == torch.bfloat16:
                made["master_low"] = torch.zeros_like(param, dtype=torch.int16, memory_format=torch.preserve_format,
                                                      **_host(param))
            elif master and param.dtype in (torch.bfloat16, torch.float16):
                made["master_param"] = param.detach().to(dtype=torch.float32, memory_format=torch.preserve_format,
                                                         **_host(param))
        state.update({"step": count_tensor(0), **made, **({"step": state["step"]} if "step" in state else {})})
    elif not any(each in state for each in masters):
        if splits and param.dtype == torch.bfloat16:
            state["master_low"] = torch.zeros_like(param, dtype=torch.int16, memory_format=torch.preserve_format, **_host(param))
        elif master and param.dtype in (torch.bfloat16, torch.float16):
            state["master_param"] = param.detach().to(dtype=torch.float32, memory_format=torch.preserve_format, **_host(param))
    check_state(name, param, state)
    return state


# Checks

def _check_tensor(name: str, key: str, value: Any, param: Tensor) -> None:
    what = f"cannot use the state of {name}: {key}"
    if not isinstance(value, Tensor):
        raise InvalidArgument(f"{what} is {value!r}, but must be a tensor")
    if value.layout != torch.strided:
        raise InvalidArgument(f"{what} has the layout {value.layout}, but must be dense (torch.strided)")
    if value.device.type == "meta":
        raise InvalidArgument(f"{what} is on the meta device, which has no values")
    kinds = _types[key]
    if kinds is not None and value.dtype not in kinds:
        raise InvalidArgument(f"{what} has dtype {value.dtype}, but must be "
                              f"{' or '.join(str(kind) for kind in kinds)}. Convert it, for each state of state_dict['state']")
    if is_quantized(value):
        shape = (group_count(param.numel()), GROUP_BYTES)
    else:
        shape = tuple(param.shape)
    if tuple(value.shape) != shape:
        raise InvalidArgument(f"{what} has shape {tuple(value.shape)}, but the param has {tuple(param.shape)}"
                              f"{f', whose groups have {shape}' if is_quantized(value) else ''}")
    if hasattr(param, "to_local") != hasattr(value, "to_local"):
        raise InvalidArgument(f"{what} is {'a' if hasattr(value, 'to_local') else 'no'} DTensor, but the param is "
                              f"{'one' if hasattr(param, 'to_local') else 'none'}. Load by torch.distributed.checkpoint")
    if hasattr(param, "to_local") and tuple(value.placements) != tuple(param.placements):  # type: ignore[attr-defined]
        raise InvalidArgument(f"{what} is placed as {value.placements}, but the param as "  # type: ignore[attr-defined]
                              f"{param.placements}")  # type: ignore[attr-defined]
    check_memory(value, what)


def check_state(name: str, param: Tensor, state: Any) -> None:
    """Raises InvalidArgument if this is no state that the param can be stepped with. {} is one."""
    if not isinstance(state, dict):
        raise InvalidArgument(f"cannot use the state of {name}: it is {state!r}, but must be a dictionary")
    if not state:
        return
    missing = [moment for moment in moments if moment not in state]
    steps = steps_of(state["step"], name) if "step" in state else 0
    if missing and (len(missing) == 1 or steps > 0):
        raise InvalidArgument(f"the state of {name} has no {' and no '.join(missing)}, but has taken {steps} steps; load a state "
                              "that is whole")
    if not missing and "step" not in state and "updates" not in state:
        raise InvalidArgument(f"the state of {name} has no step, but has moments; load a state that is whole")
    if all(each in state for each in masters):
        raise InvalidArgument(f"the state of {name} has both {' and '.join(masters)}; take out the one that is not to be "
                              "stepped")
    if "master_low" in state and isinstance(state["master_low"], Tensor) and (
            (param.dtype, state["master_low"].dtype) != (torch.bfloat16, torch.int16)):
        raise InvalidArgument(f"{name} is {param.dtype} and its master_low {state['master_low'].dtype}, but split master weights are "
                              "torch.bfloat16 and torch.int16; load a state that is whole")
    for key in _types:
        if key in state:
            _check_tensor(name, key, state[key], param)
    kinds = {is_quantized(state[moment]) for moment in moments if moment in state}
    if len(kinds) > 1:
        raise InvalidArgument(f"cannot use the state of {name}: one moment is quantized8, and the other is not")


# Loading

def _copied(value: Any, param: Optional[Tensor], key: str) -> Any:
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    value = value.detach()
    if param is not None and key in (*moments, *masters) and not is_quantized(value) and not hasattr(value, "to_local"):
        # Elements lie in the order of the param's, which torch.load() and other devices may have changed.
        made = torch.empty_like(param.detach(), dtype=value.dtype, device="cpu", memory_format=torch.preserve_format)
        return made.copy_(value)
    return value.to("cpu", copy=True)


@torch.no_grad()
def loaded_state(state: Dict[str, Any], param: Tensor, name: str) -> Dict[str, Any]:
    """A copy of a state that was checked, in host memory, in its own dtypes."""
    by_columns = "updates" in state  # whose order of elements is another
    return {key: count_tensor(steps_of(value, name)) if key == "step" else _copied(value, None if by_columns else param, key)
            for key, value in state.items()}


def check_hyper(group: Any, number: int) -> None:
    """Raises InvalidArgument if a loaded group has hyperparameters that no step can use."""
    if not isinstance(group, dict) or not isinstance(group.get("params"), (list, tuple)):
        raise InvalidArgument(f"cannot load parameter group {number}: it must be a dictionary with \"params\"")

    def number_of(name: str, value: Any, below: float = float("inf")) -> None:
        if isinstance(value, Tensor) and value.numel() == 1 and value.device.type != "meta":
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < below:
            raise InvalidArgument(f"cannot load parameter group {number}: {name} is {value!r}, but must be a number from 0"
                                  f"{f', below {below}' if below < float('inf') else ''}")
    for name in ("lr", "eps", "weight_decay"):
        number_of(name, group.get(name))
    betas = group.get("betas")
    if not isinstance(betas, (list, tuple)) or len(betas) != 2:
        raise InvalidArgument(f"cannot load parameter group {number}: betas is {betas!r}, but must be two numbers")
    for beta in betas:
        number_of("a beta", beta, 1.0)
