# SPDX-License-Identifier: Apache-2.0
"""8-bit moments in tensors: 64 codes and a float32 scale for each 64 elements, as detail/numerics/quantized8.hpp defines them.
Converts states with torch, rounded to nearest."""

from __future__ import annotations

from typing import Any, Dict

import torch
from torch import Tensor

from ._arrays import GROUP_BYTES, GROUP_ELEMS, group_count
from ._library import InvalidArgument

moments = ("exp_avg", "exp_avg_sq")
# How often bits are halved on a moment's curve, what makes a code of them, and below which bits a group's largest
# magnitude makes zeros of the group.
_curves = {"exp_avg": (1, 0x23400000, 0x17800000), "exp_avg_sq": (2, 0x33a00000, 0x00800001)}
_in_256ths = 8 << 23  # more, for a code in 256ths
_least_scale = 2.0 ** -80


def zeros(elements: int) -> Tensor:
    """A moment before the first step."""
    return torch.zeros(group_count(elements), GROUP_BYTES, dtype=torch.uint8, device="cpu")


def is_quantized(moment: Any) -> bool:
    return isinstance(moment, Tensor) and moment.dtype == torch.uint8


def _in_order(state: Dict[str, Any], moment: Tensor) -> Tensor:
    """A moment's elements in the order of its groups: of columns where zenflow defers gradients."""
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
    scale = torch.where(largest.isfinite() & scale.isfinite(), scale.clamp(min=_least_scale), torch.nan)
    scale = torch.where(_bits(largest) < zero_below, torch.zeros_like(scale), scale)
    x = torch.where(scale.isnan(), torch.zeros_like(x), x)
    z = x.abs() * (1 / scale.nan_to_num(1.0).clamp(_least_scale, 2.0 ** 125))
    code = (torch.round(_floats((_bits(z) >> shift) + offset + _in_256ths)).to(torch.int32) + 128) >> 8
    code = code.clamp(1, 255) if name == "exp_avg_sq" else code.clamp(max=127) * x.sign().to(torch.int32)
    return torch.cat([code.to(torch.uint8), scale.view(torch.uint8)], 1)


def dequantized(state: Dict[str, Any], like: Tensor) -> Dict[str, Any]:
    """A param's state with float32 moments of the param's shape in place of quantized8, exactly; `like` is the param.

        dequantized(optimizer.state[param], param)["exp_avg_sq"]

    Raises InvalidArgument where the moments have another size.
    """
    made = dict(state)
    for name in moments:
        if is_quantized(state.get(name)):
            groups = state[name]
            if groups.shape != (group_count(like.numel()), GROUP_BYTES):
                raise InvalidArgument(f"{name} has shape {tuple(groups.shape)}, but a tensor of {like.numel()} elements has "
                                      f"groups of shape {(group_count(like.numel()), GROUP_BYTES)}")
            made[name] = torch.empty(like.shape, device="cpu")
            ordered = _in_order(state, made[name])
            ordered.copy_(_decoded(name, groups).view(-1)[:like.numel()].view(ordered.shape))
    return made


def quantized(state: Dict[str, Any]) -> Dict[str, Any]:
    """A param's state with quantized8 moments in place of others, rounded to nearest: to go on with 8 bits from a
    checkpoint that has more.

        saved["state"] = {number: quantized(state) for number, state in saved["state"].items()}
    """
    return {**state, **{name: _encoded(name, _in_order(state, state[name])) for name in moments
                        if isinstance(state.get(name), Tensor) and not is_quantized(state[name])}}
