# SPDX-License-Identifier: Apache-2.0
"""Split master weights: bfloat16 params and 16-bit residuals ("master_low") in states."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor

from ._host_copies import local
from ._library import InvalidArgument
from .optimizer import join_masters, split_masters

masters = ("master_low", "master_param")  # a state has at most one of them


def master_key(param: Tensor, state: Dict[str, Any]) -> Optional[str]:
    """The key of the master that is stepped, or None. A float32 param is its own master, whatever "master_param" is."""
    key = next((name for name in masters if name in state), None)
    return None if key == "master_param" and param.dtype == torch.float32 else key


def joined(weight: Tensor, low: Tensor) -> Tensor:
    """Joins split masters, in row-major order.

    A pair that represents no master becomes NaN. Writes of zeros and infinities to a weight make such pairs.
    """
    master = torch.empty(weight.shape, dtype=torch.float32, device="cpu")
    join_masters(weight.contiguous(), low.contiguous(), master)
    return master


def _split(master: Tensor) -> Tuple[Tensor, Tensor]:
    weight, low = (torch.empty(master.shape, dtype=dtype, device="cpu") for dtype in (torch.bfloat16, torch.int16))
    split_masters(master.contiguous(), weight, low)
    return weight, low


def _like(param: Tensor, values: Tensor) -> Tensor:
    """A state tensor with these values in host memory, in the param's layout, and a DTensor if the param is one."""
    tensor = torch.empty_like(param.detach(), dtype=values.dtype, device="cpu", memory_format=torch.preserve_format)
    local(tensor).copy_(values)
    return tensor


def _replace_master(state: Dict[str, Any], param: Tensor, name: str, value: Tensor) -> Dict[str, Any]:
    replaced = {**{key: kept for key, kept in state.items() if key not in (*masters, "by_columns")}, name: value}
    if name == "master_low" and "selected" in state:  # with zenflow the state also has the weights
        replaced["by_columns"] = _like(param, local(param.detach()))
    return replaced


def _refuse_unpublished(state: Dict[str, Any]) -> None:
    """Raises InvalidArgument if zenflow has updates of the masters that are not published to the param."""
    if bool(state["publishing"].any()) if "publishing" in state else "by_columns" in state:
        raise InvalidArgument("cannot convert the state: zenflow has updated the master, but not yet the param. Take "
                              "the state from the optimizer's state_dict(), after flush()")


@torch.no_grad()
def split_master(state: Dict[str, Any], param: Tensor) -> Dict[str, Any]:
    """Replace "master_param" of a bfloat16 param's state by "master_low", losslessly.

    Parameters
    ----------
    state : dict
        State of the param. A state without "master_param" is returned unchanged.
    param : Tensor
        The param, with the weights that belong to the state. Written: it becomes the master rounded with ties away from
        zero, which differs from ties to even at exact ties.

    Returns
    -------
    dict
        The converted state.

    Raises
    ------
    InvalidArgument
        The param is not the rounded master, or zenflow has unpublished updates. Nothing has changed.

    Examples
    --------
    Continue with split_float32 from a checkpoint with float32 masters:

    >>> model.load_state_dict(saved_model)  # doctest: +SKIP
    >>> saved["state"] = {n: split_master(state, params[n]) for n, state in saved["state"].items()}  # doctest: +SKIP
    """
    if "master_param" not in state or param.dtype != torch.bfloat16:
        return dict(state)
    _refuse_unpublished(state)
    master, weight = local(state["master_param"]), local(param.detach())
    rounded, low = _split(master)
    host_weight = weight.cpu()
    differs = (host_weight != rounded) & (host_weight != master.bfloat16())
    if bool((differs & ~(host_weight.isnan() & rounded.isnan())).any()):
        raise InvalidArgument("cannot split the master: the param is not its master_param rounded to bfloat16. Load "
                              "the model's weights that belong to the state first")
    weight.copy_(rounded)
    return _replace_master(state, param, "master_low", _like(param, low))


@torch.no_grad()
def joined_master(state: Dict[str, Any], param: Tensor) -> Dict[str, Any]:
    """Replace "master_low" of a state by "master_param", losslessly: the inverse of split_master().

    Parameters
    ----------
    state : dict
        State of the param. A state without "master_low" is returned unchanged.
    param : Tensor
        The param, with the weights that belong to the state. Written: it becomes the master rounded with ties to even.

    Returns
    -------
    dict
        The converted state.

    Raises
    ------
    InvalidArgument
        zenflow has unpublished updates. Nothing has changed.
    """
    if "master_low" not in state:
        return dict(state)
    _refuse_unpublished(state)
    weight = local(param.detach())
    host_weight = weight.cpu()
    master = joined(host_weight, local(state["master_low"]))
    master = torch.where(master.isnan(), host_weight.float(), master)
    weight.copy_(master)
    return _replace_master(state, param, "master_param", _like(param, master))
