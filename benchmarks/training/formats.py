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


# The float32 split master weight: its bfloat16 weight, ties away from zero, and the 16 bits that are
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


# 8 bits as the library has them: adamant/detail/numerics/quantized8.hpp says why. Halved bits are a curve of straight
# pieces close to the square root, quartered ones one close to the fourth root; codes are whole numbers on those
# curves, and are rounded stochastically or to nearest. Scales are float32: what keeps decaying is the scale.

LEAST_SCALE = 2.0 ** -80


def quantized8_scale(x: Tensor, zero_below: float) -> Tensor:
    """64/63 of the largest magnitude of each group, rounded to 18 bits."""
    largest = x.abs().amax(1, keepdim=True)
    scale = floats((bits(largest * (64 / 63)) + 0x20) & -0x40)
    scale = torch.where(torch.isfinite(largest) & torch.isfinite(scale), scale.clamp(min=LEAST_SCALE), torch.nan)
    return torch.where(largest < zero_below, torch.zeros_like(scale), scale)


def quantized8_code(x: Tensor, scale: Tensor, shift: int, offset: int) -> Tensor:
    """The magnitude's place on the curve, in 256ths of a code."""
    z = x.abs() * (1 / scale.clamp(LEAST_SCALE, 2.0 ** 125))
    return torch.round(floats((bits(z) >> shift) + offset).nan_to_num(0)).to(torch.int32)


def noise8(x: Tensor, random: torch.Generator) -> Tensor:
    return noise16(x, random) & 0xff


def quantized8_store_m(m: Tensor, random: torch.Generator, stochastic: bool) -> Kept:
    m = groups(m, 64)
    scale = quantized8_scale(m, LEAST_SCALE)
    y = quantized8_code(m, scale, 1, 0x27400000)
    if stochastic:
        # What is below code 1 becomes zero: stochastically it would come up to code 1 from far below, while its v may
        # go down.
        q = torch.where(y < 256, torch.zeros_like(y), (y + noise8(m, random)) >> 8)
    else:
        q = (y + 128) >> 8
    return q.clamp(max=127).copysign(m).to(torch.int8), scale


def quantized8_load_m(kept: Kept, shape: torch.Size) -> Tensor:
    q, scale = kept
    abs_q = q.abs().float()
    z = torch.where(q == 0, abs_q, floats((bits(abs_q) - 0x23400000) << 1))
    return whole(scale * z.copysign(q.float()), shape)


def quantized8_store_v(v: Tensor, random: torch.Generator, stochastic: bool) -> Kept:
    v = groups(v, 64)
    scale = quantized8_scale(v, 2.0 ** -126)
    y = quantized8_code(v, scale, 2, 0x37a00000)
    # Never zero: an m that lives over a v of zero makes an update of m / eps.
    return ((y + (noise8(v, random) if stochastic else 128)) >> 8).clamp(1, 255).to(torch.uint8), scale


def quantized8_load_v(kept: Kept, shape: torch.Size) -> Tensor:
    q, scale = kept
    return whole(scale * floats((bits(q.float()) - 0x33a00000) << 2), shape)


def quantized8(stochastic: bool) -> tuple[Storage, Storage]:
    return (Storage(lambda m, random: quantized8_store_m(m, random, stochastic), quantized8_load_m, 1 + 4 / 64),
            Storage(lambda v, random: quantized8_store_v(v, random, stochastic), quantized8_load_v, 1 + 4 / 64))


quantized8_m, quantized8_v = quantized8(stochastic=True)
nearest8_m, nearest8_v = quantized8(stochastic=False)


# What the library's 8 bits were made of: the same curves with codes of 1/127 and 1/255 of them, to nearest. What
# moves less than half a code stands still: a v whose group's scale does not move, by 0.1% a step where codes are
# 2 or 3% apart; and an m of code 9 or less, by 10% a step.

def companding8_store_m(m: Tensor, _: torch.Generator) -> Kept:
    m = groups(m, 64)
    scale = m.abs().amax(1, keepdim=True)
    z = m.abs() * one_over(scale)
    y = floats((bits(z) >> 1) + 0x1fc00000)
    return torch.round(127 * y).copysign(m).to(torch.int8), scale


def companding8_load_m(kept: Kept, shape: torch.Size) -> Tensor:
    q, scale = kept
    y = q.abs().float() / 127
    m = torch.where(q == 0, y, floats((bits(y) - 0x1fc00000) << 1))
    return whole(scale * m.copysign(q.float()), shape)


def companding8_store_v(v: Tensor, _: torch.Generator) -> Kept:
    v = groups(v, 64)
    scale = v.amax(1, keepdim=True)
    z = v * one_over(scale)
    y = floats((bits(z) >> 2) + 0x2fa00000)
    return torch.round(255 * y).clamp(1, 255).to(torch.uint8), scale


def companding8_load_v(kept: Kept, shape: torch.Size) -> Tensor:
    q, scale = kept
    y = q.float() / 255
    return whole(scale * floats((bits(y) - 0x2fa00000) << 2), shape)


companding8_m = Storage(companding8_store_m, companding8_load_m, 1 + 4 / 64)
companding8_v = Storage(companding8_store_v, companding8_load_v, 1 + 4 / 64)


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
    "split_float32": Format(split, float32, float32, "the same split master weight, weights bfloat16"),
    "bfloat16_nearest": Format(float32, bfloat16, bfloat16, "m and v bfloat16, both to nearest"),
    "bfloat16": Format(float32, bfloat16, bfloat16_stochastic, "m bfloat16 nearest, v bfloat16 stochastic"),
    "quantized8": Format(float32, quantized8_m, quantized8_v, "m and v 8 bits, rounded stochastically"),
    "quantized8_nearest": Format(float32, nearest8_m, nearest8_v, "the same, rounded to nearest"),
    "split_quantized8": Format(split, quantized8_m, quantized8_v, "split master, m and v 8 bits stochastically"),
    "companding8": Format(float32, companding8_m, companding8_v, "m and v 8 bits, as proposed at first, nearest"),
    "flashoptim8": Format(float32, flash_m, flash_v, "m and v 8 bits by FlashOptim's formula"),
    "param_bfloat16_nearest": Format(bfloat16, float32, float32, "params bfloat16 to nearest"),
    "param_bfloat16": Format(bfloat16_stochastic, float32, float32, "params bfloat16 stochastic"),
    "param_bfloat16_quantized8": Format(bfloat16_stochastic, quantized8_m, quantized8_v,
                                        "params bfloat16 stochastic, m and v 8 bits stochastically"),
}
