# SPDX-License-Identifier: Apache-2.0
"""Reference implementation of Adam and AdamW in float32: reference::update() of reference.hpp in NumPy.

It derives from torch's Optimizer class, so groups, states, hooks and state_dict() are those of torch.
"""
import numpy as np
import torch

f32 = np.float32
smallest_normal = f32(2.0 ** -126)


def flush(x):
    return np.where(np.abs(x) < smallest_normal, np.copysign(f32(0), x), x).astype(f32)


def fma(a, b, c):
    """a * b + c in float32 with one rounding.

    The sum in double is rounded to odd, which makes the second rounding correct (Boldo and Melquiond, 2008).
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)  # exact
    c = np.broadcast_to(np.asarray(c, np.float64), product.shape)
    total = product + c
    back = total - product
    error = (product - (total - back)) + (c - back)
    bits = np.atleast_1d(total).view(np.int64)
    even = ((bits & 1) == 0).reshape(total.shape) & (error != 0) & np.isfinite(total)
    away = (error > 0) == (total > 0)
    odd = np.where(even, bits.reshape(total.shape) + np.where(away, 1, -1), bits.reshape(total.shape))
    return np.atleast_1d(odd).view(np.float64).reshape(total.shape).astype(f32)


def powers(base, exponent):
    """base^exponent in integer arithmetic, rounded once."""
    if exponent * 53 > 100000 or base == 0:
        return base ** exponent
    numerator, denominator = float(base).as_integer_ratio()
    return (numerator ** exponent) / (denominator ** exponent)


class Coefficients:
    def __init__(self, step, lr, betas, eps, weight_decay, decoupled):
        b1, b2 = betas
        one = lambda x: flush(f32(x))  # noqa: E731
        self.beta1, self.beta2 = one(b1), one(b2)
        self.one_minus_beta1, self.one_minus_beta2 = one(1.0 - b1), one(1.0 - b2)
        self.inv_sqrt_bias2 = one(1.0 / np.sqrt(np.float64(1.0 - powers(b2, step))))
        self.eps = one(eps)
        self.neg_step_size = one(-lr / (1.0 - powers(b1, step)))
        # fma(-lr, weight_decay, 1) in double, by exact fractions.
        from fractions import Fraction
        self.decay = one(float(1 - Fraction(lr) * Fraction(weight_decay)) if decoupled else 1.0)
        self.l2 = one(0.0 if decoupled else weight_decay)


def update(param, exp_avg, exp_avg_sq, grad, c, scale=f32(1)):
    p, m, v = flush(param), flush(exp_avg), flush(exp_avg_sq)
    g = flush(flush(grad) * scale)
    if c.l2 != 0:
        g = flush(fma(c.l2, p, g))
    m = flush(fma(c.beta1, m, flush(c.one_minus_beta1 * g)))
    v = flush(fma(c.one_minus_beta2, flush(g * g), flush(c.beta2 * v)))
    d = flush(fma(flush(np.sqrt(v)), c.inv_sqrt_bias2, c.eps))
    return flush(fma(c.neg_step_size, flush(m / d), flush(c.decay * p))), m, v


def _array(tensor):
    return tensor.detach().numpy()


class _Reference:
    def step(self, closure=None):
        if closure is not None:
            with torch.enable_grad():
                closure()
        with torch.no_grad(), np.errstate(all="ignore"):
            for group in self.param_groups:
                decoupled = group.get("decoupled_weight_decay", isinstance(self, torch.optim.AdamW))
                for param in group["params"]:
                    if param.grad is None:
                        continue
                    state = self.state[param]
                    if not state:
                        state["step"] = torch.tensor(0.0)
                        state["exp_avg"] = torch.zeros_like(param, memory_format=torch.preserve_format)
                        state["exp_avg_sq"] = torch.zeros_like(param, memory_format=torch.preserve_format)
                    count = int(state["step"]) + 1
                    state["step"].fill_(count)
                    c = Coefficients(count, float(group["lr"]), tuple(map(float, group["betas"])), float(group["eps"]),
                                     float(group["weight_decay"]), decoupled)
                    grad = _array(param.grad)
                    new = update(_array(param), _array(state["exp_avg"]), _array(state["exp_avg_sq"]),
                                 -grad if group["maximize"] else grad, c)
                    for tensor, value in zip((param, state["exp_avg"], state["exp_avg_sq"]), new):
                        tensor.copy_(torch.from_numpy(value))


class ReferenceAdam(_Reference, torch.optim.Adam):
    pass


class ReferenceAdamW(_Reference, torch.optim.AdamW):
    pass
