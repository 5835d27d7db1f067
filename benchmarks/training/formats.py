# SPDX-License-Identifier: Apache-2.0
"""What params and moments are between two steps: storage formats as plain tensor operations, to read and to
compare with.

A storage is a pair of functions. `store` makes of a float32 tensor what is kept, a tuple of tensors; `load`
makes a float32 tensor of that. The arithmetic of a step is in float32 everywhere; only storages differ. Run
these eagerly: on a CPU, torch.compile() takes float32 -> bfloat16 -> float32 for nothing and leaves it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import torch
from torch import Tensor

Kept = tuple[Tensor, ...]


@dataclass(frozen=True)
class Storage:
    store: Callable[[Tensor, torch.Generator], Kept]
    load: Callable[[Kept, torch.Size], Tensor]
    bytes: float  # an element
    # What the model computes with, where that is not what is loaded.
    weight: Callable[[Tensor], Tensor] | None = None


def bits(x: Tensor) -> Tensor:
    return x.view(torch.int32)


def floats(b: Tensor) -> Tensor:
    return b.view(torch.float32)


# float32

float32 = Storage(lambda x, _: (x.clone(),), lambda kept, _: kept[0], 4)


# The float32 master in two halves: its bfloat16 weight, ties away from zero, and the 16 bits that are
# missing. Exact.

def upper(x: Tensor) -> Tensor:
    return (bits(x) + 0x8000) >> 16


def split_store(x: Tensor, _: torch.Generator) -> Kept:
    return upper(x).to(torch.int16), bits(x).to(torch.int16)


def split_load(kept: Kept, _: torch.Size) -> Tensor:
    weight, low = kept
    return floats((weight.to(torch.int32) << 16) + low.to(torch.int32))


def rounded_weight(x: Tensor) -> Tensor:
    return floats(upper(x) << 16)


split = Storage(split_store, split_load, 4, rounded_weight)  # 2 of them are the weight
master = Storage(float32.store, float32.load, 6, rounded_weight)  # float32, and a weight of its own


# bfloat16

def nearest_store(x: Tensor, _: torch.Generator) -> Kept:
    return (x.to(torch.bfloat16),)


def noise16(x: Tensor, random: torch.Generator) -> Tensor:
    """16 random bits for each element."""
    fours = -(-x.numel() // 4)  # of them in one drawn number
    draws = torch.randint(-1 << 63, (1 << 63) - 1, (fours,), generator=random)
    return draws.view(torch.int16)[:x.numel()].view(x.shape).to(torch.int32) & 0xffff


def stochastic_store(x: Tensor, random: torch.Generator) -> Kept:
    """Rounds up as often as what is cut off says, so that the mean is right."""
    # floats() of a sum beyond the largest number is infinity or NaN; those and what is not finite are cut off
    # instead.
    up = floats((bits(x) + noise16(x, random)) & -0x10000)
    cut = floats(bits(x) & -0x10000)
    return (torch.where(torch.isfinite(up), up, torch.where(torch.isnan(x), x, cut)).to(torch.bfloat16),)


def bfloat16_load(kept: Kept, _: torch.Size) -> Tensor:
    return kept[0].float()


bfloat16 = Storage(nearest_store, bfloat16_load, 2)
bfloat16_stochastic = Storage(stochastic_store, bfloat16_load, 2)


# Groups of 8 bits, counted from the first element of a param; the last one is filled up with zeros.

def groups(x: Tensor, size: int) -> Tensor:
    x = x.reshape(-1)
    return torch.nn.functional.pad(x, (0, -x.numel() % size)).view(-1, size)


def whole(x: Tensor, shape: torch.Size) -> Tensor:
    return x.reshape(-1)[:shape.numel()].view(shape)


def one_over(scale: Tensor) -> Tensor:
    return torch.where(scale >= 2.0 ** -126, 1 / scale, torch.zeros_like(scale))


# 8 bits, companding by bits: halved bits are a curve of straight pieces close to the square root, quartered
# ones one close to the fourth root. Codes are linear on those curves. Scales are float32: what keeps decaying
# is the scale.

def quantized8_store_m(m: Tensor, _: torch.Generator) -> Kept:
    m = groups(m, 64)
    scale = m.abs().amax(1, keepdim=True)
    z = m.abs() * one_over(scale)
    y = floats((bits(z) >> 1) + 0x1fc00000)
    return torch.round(127 * y).copysign(m).to(torch.int8), scale


def quantized8_load_m(kept: Kept, shape: torch.Size) -> Tensor:
    q, scale = kept
    y = q.abs().float() / 127
    m = torch.where(q == 0, y, floats((bits(y) - 0x1fc00000) << 1))
    return whole(scale * m.copysign(q.float()), shape)


def quantized8_store_v(v: Tensor, _: torch.Generator) -> Kept:
    v = groups(v, 64)
    scale = v.amax(1, keepdim=True)
    z = v * one_over(scale)
    y = floats((bits(z) >> 2) + 0x2fa00000)
    # Never zero: an m that lives over a v of zero makes an update of m / eps.
    return torch.round(255 * y).clamp(1, 255).to(torch.uint8), scale


def quantized8_load_v(kept: Kept, shape: torch.Size) -> Tensor:
    q, scale = kept
    y = q.float() / 255
    return whole(scale * floats((bits(y) - 0x2fa00000) << 2), shape)


# The same, rounded stochastically. To nearest, what moves less than half a code stands still: a v whose
# group's scale does not move, by 0.1% a step where codes are 2 or 3% apart; and an m of code 9 or less, by
# 10% a step.

def quantized8_store_m_stochastic(m: Tensor, random: torch.Generator) -> Kept:
    m = groups(m, 64)
    scale = m.abs().amax(1, keepdim=True)
    y = floats((bits(m.abs() * one_over(scale)) >> 1) + 0x1fc00000)
    q = torch.floor(127 * y + noise16(m, random).float() / 65536)
    return q.clamp(max=127).copysign(m).to(torch.int8), scale


def quantized8_store_v_stochastic(v: Tensor, random: torch.Generator) -> Kept:
    v = groups(v, 64)
    scale = v.amax(1, keepdim=True)
    y = floats((bits(v * one_over(scale)) >> 2) + 0x2fa00000)
    q = torch.floor(255 * y + noise16(v, random).float() / 65536)
    return q.clamp(1, 255).to(torch.uint8), scale


quantized8_m = Storage(quantized8_store_m, quantized8_load_m, 1 + 4 / 64)
quantized8_v = Storage(quantized8_store_v, quantized8_load_v, 1 + 4 / 64)
quantized8_m_stochastic = Storage(quantized8_store_m_stochastic, quantized8_load_m, 1 + 4 / 64)
quantized8_v_stochastic = Storage(quantized8_store_v_stochastic, quantized8_load_v, 1 + 4 / 64)


# 8 bits by the formula of FlashOptim (arXiv 2602.23349): m by a softsign, v by codes that are linear in its
# root, groups of 32, scales of float16.

def flash_store_m(m: Tensor, _: torch.Generator) -> Kept:
    m = groups(m, 32)
    scale = m.abs().amax(1, keepdim=True).to(torch.float16)
    x = (m * one_over(scale.float())).clamp(-1, 1)
    return torch.round(127 * 2 * x / (1 + x.abs())).to(torch.int8), scale


def flash_load_m(kept: Kept, shape: torch.Size) -> Tensor:
    q, scale = kept
    y = q.float() / 127
    return whole(scale.float() * y / (2 - y.abs()), shape)


def flash_store_v(v: Tensor, _: torch.Generator) -> Kept:
    root = groups(v, 32).sqrt()
    scale = root.amax(1, keepdim=True).to(torch.float16)
    x = (root * one_over(scale.float())).clamp(0, 1)
    return torch.round(255 * x).to(torch.uint8), scale


def flash_load_v(kept: Kept, shape: torch.Size) -> Tensor:
    q, scale = kept
    return whole((scale.float() * q.float() / 255).square(), shape)


flash_m = Storage(flash_store_m, flash_load_m, 1 + 2 / 32)
flash_v = Storage(flash_store_v, flash_load_v, 1 + 2 / 32)


@dataclass(frozen=True)
class Format:
    param: Storage
    m: Storage
    v: Storage
    what: str

    @property
    def bytes(self) -> float:
        return self.param.bytes + self.m.bytes + self.v.bytes


FORMATS: dict[str, Format] = {
    "float32": Format(float32, float32, float32, "everything float32"),
    "master": Format(master, float32, float32, "float32 master, weights rounded to bfloat16"),
    "split_float32": Format(split, float32, float32, "the same master in two halves, weights bfloat16"),
    "bfloat16_nearest": Format(float32, bfloat16, bfloat16, "m and v bfloat16, both to nearest"),
    "bfloat16": Format(float32, bfloat16, bfloat16_stochastic, "m bfloat16 nearest, v bfloat16 stochastic"),
    "quantized8": Format(float32, quantized8_m, quantized8_v, "m and v 8 bits, companding by bits"),
    "quantized8_stochastic_v": Format(float32, quantized8_m, quantized8_v_stochastic,
                                      "the same, codes of v rounded stochastically"),
    "quantized8_stochastic": Format(float32, quantized8_m_stochastic, quantized8_v_stochastic,
                                    "the same, codes of m and v rounded stochastically"),
    "split_quantized8": Format(split, quantized8_m, quantized8_v, "split master, m and v 8 bits"),
    "flashoptim8": Format(float32, flash_m, flash_v, "m and v 8 bits by FlashOptim's formula"),
    "param_bfloat16_nearest": Format(bfloat16, float32, float32, "params bfloat16 to nearest"),
    "param_bfloat16": Format(bfloat16_stochastic, float32, float32, "params bfloat16 stochastic"),
    "param_bfloat16_quantized8": Format(bfloat16_stochastic, quantized8_m, quantized8_v,
                                        "params bfloat16 stochastic, m and v 8 bits"),
}
