# SPDX-License-Identifier: Apache-2.0
"""Split master weights: bfloat16 params, and residuals "master_low" in states."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import torch
from torch import Tensor

from ._host_copies import local
from ._library import InvalidArgument
from .optimizer import join_masters, split_masters

masters = ("master_low", "master_param")  # a state has one of them, or none


def joined(weight: Tensor, low: Tensor) -> Tensor:
    """Masters joined from weight and residual, in row-major order. A pair that no master has, which a foreign weight may
    make of zero or an infinity, gives NaN."""
    master = torch.empty(weight.shape, dtype=torch.float32, device="cpu")
    join_masters(weight.contiguous(), low.contiguous(), master)
    return master


def _halves(master: Tensor) -> Tuple[Tensor, Tensor]:
    weight, low = (torch.empty(master.shape, dtype=kind, device="cpu") for kind in (torch.bfloat16, torch.int16))
    split_masters(master.contiguous(), weight, low)
    return weight, low


def _like(param: Tensor, values: Tensor) -> Tensor:
    """Converts to a tensor of a state: in host memory, in the param's order, a DTensor if the param is one."""
    made = torch.empty_like(param.detach(), dtype=values.dtype, device="cpu", memory_format=torch.preserve_format)
    local(made).copy_(values)
    return made


def _with(state: Dict[str, Any], param: Tensor, name: str, value: Tensor) -> Dict[str, Any]:
    made = {**{key: kept for key, kept in state.items() if key not in (*masters, "by_columns")}, name: value}
    if name == "master_low" and "selected" in state:  # with zenflow the weights are in the state, too
        made["by_columns"] = _like(param, local(param.detach()))
    return made


def _refuse_behind(state: Dict[str, Any]) -> None:
    """With zenflow weights may be behind their masters."""
    if bool(state["publishing"].any()) if "publishing" in state else "by_columns" in state:
        raise InvalidArgument("the state's master may be ahead of the param, as zenflow has put something off; take the "
                              "state from the optimizer's state_dict(), after flush()")


@torch.no_grad()
def split_master(state: Dict[str, Any], param: Tensor) -> Dict[str, Any]:
    """A bfloat16 param's state with "master_low" in place of "master_param", with every bit; any other state as it is.
    To go on with split_float32 from a checkpoint with float32 masters:

        model.load_state_dict(saved_model)
        saved["state"] = {number: split_master(state, params[number]) for number, state in saved["state"].items()}

    Writes to the param: the upper half is the master rounded with ties away from zero, which is another weight at exact
    ties. Raises InvalidArgument where the param is not the rounded master, with nothing changed.
    """
    if "master_param" not in state or param.dtype != torch.bfloat16:
        return dict(state)
    _refuse_behind(state)
    master, weight = local(state["master_param"]), local(param.detach())
    upper, low = _halves(master)
    now = weight.cpu()
    if bool(((now != upper) & (now != master.bfloat16()) & ~(now.isnan() & upper.isnan())).any()):
        raise InvalidArgument("the param is not its master_param rounded to bfloat16; load the model's weights that belong to "
                              "the state first")
    weight.copy_(upper)
    return _with(state, param, "master_low", _like(param, low))


@torch.no_grad()
def joined_master(state: Dict[str, Any], param: Tensor) -> Dict[str, Any]:
    """The inverse: "master_param" in place of "master_low", with every bit; any other state as it is. The param must
    have the weights that belong to the state, and is then the master rounded with ties to even."""
    if "master_low" not in state:
        return dict(state)
    _refuse_behind(state)
    weight = local(param.detach())
    now = weight.cpu()
    master = joined(now, local(state["master_low"]))
    master = torch.where(master.isnan(), now.float(), master)
    weight.copy_(master)
    return _with(state, param, "master_param", _like(param, master))
