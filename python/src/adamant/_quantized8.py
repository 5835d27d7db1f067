# SPDX-License-Identifier: Apache-2.0
"""Conversion between 8-bit and floating-point moments with torch, rounded to nearest.

Each group of 64 elements has 64 codes and a float32 scale. adamant/detail/numerics/quantized8.hpp defines the format.
"""

from __future__ import annotations

from typing import Any, Dict

import torch
from torch import Tensor

from ._arrays import GROUP_BYTES, GROUP_ELEMS, group_count
from ._library import InvalidArgument, counted

moments = ("exp_avg", "exp_avg_sq")
# By moment: the right shift of a float's bits on the moment's curve, the offset that makes them a code, and the bits of
# a group's largest magnitude below which the whole group is zero.
_curves = {"exp_avg": (1, 0x23400000, 0x17800000), "exp_avg_sq": (2, 0x33a00000, 0x00800001)}
_fraction_offset = 8 << 23  # added to the offset, for a code in units of 1/256
_min_scale = 2.0 ** -80


def zeros(elements: int) -> Tensor:
    """An 8-bit moment before the first step."""
    return torch.zeros(group_count(elements), GROUP_BYTES, dtype=torch.uint8, device="cpu")


def is_quantized(moment: Any) -> bool:
    return isinstance(moment, Tensor) and moment.dtype == torch.uint8


def _group_order(state: Dict[str, Any], moment: Tensor) -> Tensor:
    """A view of the moment in the order of its groups: by columns in a state of zenflow, else by rows."""
    return moment.movedim(-1, 0) if moment.dim() > 1 and ("by_columns" in state or "updates" in state) else moment


def _bits(x: Tensor) -> Tensor:
    return x.view(torch.int32)


def _floats(bits: Tensor) -> Tensor:
    return bits.view(torch.float32)


def _decoded(name: str, groups: Tensor) -> Tensor:
    shift, offset, _ = _curves[name]
    codes, scale = groups[:, :GROUP_ELEMS].contiguous(), groups[:, GROUP_ELEMS:].contiguous().view(torch.float32)
    code = (codes.view(torch.int8) if name == "exp_avg" else codes).float()
    z = _floats((_bits(code.abs()) - offset) << shift)
    return torch.where(code == 0, code, z.copysign(code)) * scale


def _encoded(name: str, moment: Tensor) -> Tensor:
    shift, offset, zero_below = _curves[name]
    x = torch.nn.functional.pad(moment.float().reshape(-1), (0, -moment.numel() % GROUP_ELEMS)).view(-1, GROUP_ELEMS)
    largest = x.abs().amax(1, keepdim=True)
    scale = _floats((_bits(largest * (64 / 63)) + 0x20) & -0x40)
    scale = torch.where(largest.isfinite() & scale.isfinite(), scale.clamp(min=_min_scale), torch.nan)
    scale = torch.where(_bits(largest) < zero_below, torch.zeros_like(scale), scale)
    x = torch.where(scale.isnan(), torch.zeros_like(x), x)
    z = x.abs() * (1 / scale.nan_to_num(1.0).clamp(_min_scale, 2.0 ** 125))
    code = (torch.round(_floats((_bits(z) >> shift) + offset + _fraction_offset)).to(torch.int32) + 128) >> 8
    code = code.clamp(1, 255) if name == "exp_avg_sq" else code.clamp(max=127) * x.sign().to(torch.int32)
    return torch.cat([code.to(torch.uint8), scale.view(torch.uint8)], 1)


def dequantized(state: Dict[str, Any], like: Tensor) -> Dict[str, Any]:
    """Convert the 8-bit moments of a state to float32, exactly.

    Parameters
    ----------
    state : dict
        State of a param.
    like : Tensor
        The param, or a tensor of its shape.

    Returns
    -------
    dict
        The state, with float32 moments of the param's shape.

    Raises
    ------
    InvalidArgument
        The moments have another size than the param.

    Examples
    --------
    >>> dequantized(optimizer.state[param], param)["exp_avg_sq"]  # doctest: +SKIP
    """
    converted = dict(state)
    for name in moments:
        if is_quantized(state.get(name)):
            groups = state[name]
            if groups.shape != (group_count(like.numel()), GROUP_BYTES):
                raise InvalidArgument(f"cannot convert {name}: it has shape {tuple(groups.shape)}, but a tensor of "
                                      f"{counted(like.numel(), 'element')} has groups of shape "
                                      f"{(group_count(like.numel()), GROUP_BYTES)}")
            converted[name] = torch.empty(like.shape, device="cpu")
            ordered = _group_order(state, converted[name])
            ordered.copy_(_decoded(name, groups).view(-1)[:like.numel()].view(ordered.shape))
    return converted


def quantized(state: Dict[str, Any]) -> Dict[str, Any]:
    """Convert the moments of a state to 8-bit moments, rounded to nearest.

    Parameters
    ----------
    state : dict
        State of a param.

    Returns
    -------
    dict
        The state, with quantized8 moments.

    Examples
    --------
    Continue with 8-bit moments from a checkpoint with other moments:

    >>> saved["state"] = {n: quantized(state) for n, state in saved["state"].items()}  # doctest: +SKIP
    """
    return {**state, **{name: _encoded(name, _group_order(state, state[name])) for name in moments
                        if isinstance(state.get(name), Tensor) and not is_quantized(state[name])}}
