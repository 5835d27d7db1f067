# SPDX-License-Identifier: Apache-2.0
"""AdamW over any of the storages, and the same interface for optimizers of others; and what is measured of
each step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch import Tensor

from formats import FORMATS, Format, Kept


@dataclass(frozen=True)
class Hyper:
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01


def gradient(p: Tensor) -> Tensor:
    assert p.grad is not None
    return p.grad


class Stepper:
    """One step of AdamW over float32 params, whose gradients are in p.grad. They are what the model computes
    with; what is kept between steps is the stepper's own affair."""

    def __init__(self, params: list[Tensor], hyper: Hyper):
        self.params, self.hyper = params, hyper
        # The largest |m_hat / (sqrt(v_hat) + eps)| of any element in any step; None where it is not known.
        self.largest_update: float | None = 0.0

    def step(self, lr: float) -> None:
        raise NotImplementedError

    def second_moments(self) -> list[Tensor] | None:
        """As the next step will read them, or None where they cannot be read."""
        raise NotImplementedError


class Stored(Stepper):
    """The step in float32, and everything stored and loaded again between two of them."""

    def __init__(self, params: list[Tensor], hyper: Hyper, form: Format, seed: int):
        super().__init__(params, hyper)
        self.form, self.seed, self.count = form, seed, 0
        self.random = torch.Generator()
        zero = [torch.zeros_like(p) for p in params]
        # Params that a run begins with are rounded to nearest; a model is loaded so.
        self.kept_p: list[Kept] = [self._first(p.detach()) for p in params]
        self.kept_m: list[Kept] = [form.m.store(z, self.random) for z in zero]
        self.kept_v: list[Kept] = [form.v.store(z, self.random) for z in zero]
        for p, kept in zip(params, self.kept_p):
            self._write(p, kept)

    def _first(self, p: Tensor) -> Kept:
        near = p.to(torch.bfloat16).float() if self.form.param.bytes == 2 else p
        return self.form.param.store(near, self.random)

    def _write(self, p: Tensor, kept: Kept) -> None:
        value = self.form.param.load(kept, p.shape)
        p.data.copy_(value if self.form.param.weight is None else self.form.param.weight(value))

    @torch.no_grad()
    def step(self, lr: float) -> None:
        self.count += 1
        h, form, t = self.hyper, self.form, self.count
        correction1, correction2 = 1 - h.beta1 ** t, 1 - h.beta2 ** t
        for i, p in enumerate(self.params):
            g = gradient(p)
            # Random bits are a function of seed, step and param: a run that is resumed has the same.
            self.random.manual_seed((self.seed * 100_003 + t) * 1009 + i)
            m = form.m.load(self.kept_m[i], p.shape).lerp(g, 1 - h.beta1)
            v = (form.v.load(self.kept_v[i], p.shape) * h.beta2).addcmul_(g, g, value=1 - h.beta2)
            update = (m / correction1).div_(v.sqrt().mul_(1 / math.sqrt(correction2)).add_(h.eps))
            value = form.param.load(self.kept_p[i], p.shape) * (1 - lr * h.weight_decay)
            value.sub_(update, alpha=lr)
            self.largest_update = max(self.largest_update or 0.0, update.abs().max().item())
            self.kept_m[i] = form.m.store(m, self.random)
            self.kept_v[i] = form.v.store(v, self.random)
            self.kept_p[i] = form.param.store(value, self.random)
            self._write(p, self.kept_p[i])

    def second_moments(self) -> list[Tensor]:
        return [self.form.v.load(kept, p.shape).clone() for kept, p in zip(self.kept_v, self.params)]


class Foreign(Stepper):
    """An optimizer of torch's kind. Its update is worked out from what became of the params, whose own
    rounding makes an error of up to 2^-24 |p| / lr in it; over params of another type it is not known.

    Over params of another type than float32 it has copies of them, which get gradients rounded to that type.
    """

    def __init__(self, params: list[Tensor], hyper: Hyper, make: Callable[..., torch.optim.Optimizer],
                 moments: Callable[[dict[str, Any], Tensor], Tensor | None], dtype: torch.dtype = torch.float32):
        super().__init__(params, hyper)
        self.own = [p if dtype == torch.float32 else torch.nn.Parameter(p.detach().to(dtype)) for p in params]
        self.optimizer = make(self.own, lr=1e-3, betas=(hyper.beta1, hyper.beta2), eps=hyper.eps,
                              weight_decay=hyper.weight_decay)
        self.moments = moments
        if dtype != torch.float32:
            self.largest_update = None
        self._write()

    def _write(self) -> None:
        for p, own in zip(self.params, self.own):
            if own is not p:
                p.data.copy_(own.detach())

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
        before = [p.detach().clone() for p in self.params] if self.largest_update is not None else []
        for p, own in zip(self.params, self.own):
            own.grad = gradient(p).to(own.dtype)
        self.optimizer.step()
        self._write()
        for p, old in zip(self.params, before):
            change = old.mul_(1 - lr * self.hyper.weight_decay).sub_(p).abs().max().item()
            self.largest_update = max(self.largest_update or 0.0, change / lr)

    def second_moments(self) -> list[Tensor] | None:
        found = []
        for p in self.own:
            v = self.moments(self.optimizer.state[p], p)
            if v is None:
                return None
            found.append(v.view_as(p))
        return found


def of_torch(params: list[Tensor], hyper: Hyper) -> Stepper:
    return Foreign(params, hyper, torch.optim.AdamW, lambda state, _: state["exp_avg_sq"].clone())


def of_torchao(params: list[Tensor], hyper: Hyper) -> Stepper:
    from torchao.optim import AdamW8bit

    def moments(state: dict[str, Any], _: Tensor) -> Tensor:
        v = state["exp_avg_sq"]
        return v.dequantize() if hasattr(v, "dequantize") and type(v) is not Tensor else v.clone()
    return Foreign(params, hyper, AdamW8bit, moments)


def of_bitsandbytes(params: list[Tensor], hyper: Hyper) -> Stepper:
    import bitsandbytes

    def moments(state: dict[str, Any], _: Tensor) -> Tensor:
        v = state["state2"]
        if v.dtype != torch.uint8:
            return v.clone()
        of_block = state["absmax2"].repeat_interleave(256)
        return state["qmap2"][v.reshape(-1).int()] * of_block[:v.numel()]
    return Foreign(params, hyper, bitsandbytes.optim.AdamW8bit, moments)


def of_adamant(name: str, params: list[Tensor], hyper: Hyper) -> Stepper:
    """adamant:STATE_FORMAT over float32 params, adamant:STATE_FORMAT:bfloat16 over bfloat16 ones."""
    from adamant.torch import AdamW, dequantized

    def moments(state: dict[str, Any], p: Tensor) -> Tensor:
        return dequantized(state, p)["exp_avg_sq"].float().clone()

    state_format, _, of_params = name.partition(":")

    def make(given: list[Tensor], **arguments: Any) -> torch.optim.Optimizer:
        return AdamW(given, state_format=state_format, threads=1, **arguments)
    return Foreign(params, hyper, make, moments, getattr(torch, of_params or "float32"))


PEERS: dict[str, tuple[Callable[[list[Tensor], Hyper], Stepper], str]] = {
    "torch": (of_torch, "torch.optim.AdamW, float32"),
    "torchao8": (of_torchao, "torchao.optim.AdamW8bit, which compiles itself"),
    "bitsandbytes8": (of_bitsandbytes, "bitsandbytes.optim.AdamW8bit"),
}


def stepper(name: str, params: list[Tensor], hyper: Hyper, seed: int) -> Stepper:
    if name.startswith("adamant:"):
        return of_adamant(name.removeprefix("adamant:"), params, hyper)
    return PEERS[name][0](params, hyper) if name in PEERS else Stored(params, hyper, FORMATS[name], seed)


def explain(name: str) -> str:
    if name.startswith("adamant:"):
        state_format, _, of_params = name.removeprefix("adamant:").partition(":")
        return f'adamant.torch.AdamW(state_format="{state_format}"), params {of_params or "float32"}'
    return PEERS[name][1] if name in PEERS else FORMATS[name].what


def bytes_of(name: str) -> str:
    """Params and moments, and the bfloat16 weight where it is another array. Empty where it is not known
    here."""
    known = {"torch": 12, "torchao8": 4 + 2 * (1 + 4 / 256), "bitsandbytes8": 4 + 2 * (1 + 4 / 256)}
    found = FORMATS[name].bytes if name in FORMATS else known.get(name)
    return "" if found is None else f"{found:.5g}"


class Watch:
    """How well stored second moments follow those that the same gradients make in float32.

    Of each window of WINDOW steps but the first, it counts the elements whose exact v fell by more than FALL,
    and of these the stuck: those whose v, as loaded, is where it was when the window began, or above. An
    element that was stored as zero cannot fall and is not counted; zeros under a living exact v are counted
    apart. """

    WINDOW, FALL = 100, 0.05

    def __init__(self, stepper: Stepper):
        self.stepper, self.count = stepper, 0
        self.exact = [torch.zeros_like(p) for p in stepper.params]
        self.then: list[Tensor] | None = None  # as stored, and exact, when the window began
        self.exact_then: list[Tensor] = []
        self.fell = self.stuck = 0

    @torch.no_grad()
    def gradients(self) -> None:
        """To be called before a step."""
        self.count += 1
        for exact, p in zip(self.exact, self.stepper.params):
            g, beta2 = gradient(p), self.stepper.hyper.beta2
            exact.mul_(beta2).addcmul_(g, g, value=1 - beta2)

    @torch.no_grad()
    def after(self) -> None:
        """To be called after a step."""
        if self.count % self.WINDOW:
            return
        now = self.stepper.second_moments()
        if now is None:
            return
        if self.then is not None:
            for v, old, exact, exact_old in zip(now, self.then, self.exact, self.exact_then):
                fell = (exact < exact_old * (1 - self.FALL)) & (old > 0)
                self.fell += int(fell.sum())
                self.stuck += int((fell & (v >= old)).sum())
        self.then, self.exact_then = now, [each.clone() for each in self.exact]

    @torch.no_grad()
    def report(self) -> dict[str, float | int | None]:
        now = self.stepper.second_moments()
        if now is None:
            return {"fell": None, "stuck": None, "v_over_exact": None, "zero": None}
        v = torch.cat([each.reshape(-1) for each in now])
        exact = torch.cat([each.reshape(-1) for each in self.exact])
        lives = exact > 0
        ratio = (v[lives] / exact[lives]).double()
        return {"fell": self.fell, "stuck": self.stuck, "v_over_exact": ratio.median().item(),
                "zero": (v[lives] == 0).double().mean().item()}
