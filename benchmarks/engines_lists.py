# SPDX-License-Identifier: Apache-2.0
"""What engines.py measures of adamant.step(): lists of tensors, beside torch's fused AdamW, a loop of single steps and,
from a checkout, prime-rl's kernel; and what Python costs for each tensor and each call of DeepSpeed's op."""
import importlib.util
import os
import statistics
import time

from engines_rows import LR, paired, row
from peers_contenders import Missing, imported

TENSORS, ELEMENTS = 1600, 40_000
BETAS, EPS, DECAY = (0.9, 0.999), 1e-8, 0.01


def prime_rl_kernel(checkout):
    """prime-rl's module cpu_adam, whose first import compiles its kernel."""
    path = os.path.join(checkout, "src", "prime_rl", "trainer", "optim", "cpu_adam", "__init__.py")
    if not os.path.exists(path):
        raise Missing(f"{path} does not exist: --prime-rl is to be the root of a checkout")
    spec = importlib.util.spec_from_file_location("prime_rl_cpu_adam", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.load_cpu_adamw_kernel()
    return module


class Lists:
    """float32 params and moments, with bfloat16 gradients and weights if `low`."""

    def __init__(self, torch, count, elements, low):
        self.params = [0.02 * torch.randn(elements) for _ in range(count)]
        drawn = [1e-3 * torch.randn(elements) for _ in range(count)]
        self.grads = [grad.to(torch.bfloat16) if low else grad for grad in drawn]
        self.exp_avgs = [1e-3 * torch.randn(elements) for _ in range(count)]
        self.exp_avg_sqs = [1e-6 * torch.rand(elements) for _ in range(count)]
        self.outs = [param.to(torch.bfloat16) for param in self.params] if low else None
        self.steps = [torch.tensor(10.0) for _ in range(count)]
        self.arrays = self.params, self.grads, self.exp_avgs, self.exp_avg_sqs

    def joint(self):
        import adamant
        adamant.step(*self.arrays, self.steps, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, weight_outs=self.outs)

    def one_by_one(self):
        import adamant
        outs = self.outs or [None] * len(self.params)
        for *arrays, step, out in zip(*self.arrays, self.steps, outs):
            adamant.step(*[[array] for array in arrays], [step], lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY,
                         weight_outs=None if out is None else [out])

    def fused(self):
        from torch.optim.adamw import adamw
        adamw(*self.arrays, [], self.steps, fused=True, amsgrad=False, beta1=BETAS[0], beta2=BETAS[1], lr=LR,
              weight_decay=DECAY, eps=EPS, maximize=False)

    def prime_rl(self, kernel):
        kernel.adamw_step(*self.arrays, self.steps, self.outs, lr=LR, beta1=BETAS[0], beta2=BETAS[1], eps=EPS,
                          weight_decay=DECAY, gradient_scale=1.0)


def cpu_times(turns, rounds, rest_s):
    return {name: 1e3 * statistics.median(seconds)
            for name, seconds in paired(turns, rounds, rest_s, time.process_time).items()}


def list_rows(torch, kernel, asked):
    rows, lines, count, elements = [], [], 100 if asked.quick else TENSORS, 4000 if asked.quick else ELEMENTS
    for low in (False, True):
        lists = Lists(torch, count, elements, low)
        turns = {"joint": lists.joint, "one by one": lists.one_by_one}
        if kernel is not None:
            turns["prime-rl"] = lambda: lists.prime_rl(kernel)
        if not low:
            turns["torch's fused AdamW"] = lists.fused
        turns = {name: (lambda: None, turn) for name, turn in turns.items()}
        seconds = paired(turns, asked.rounds, asked.rest_s)
        kind = "bf16 gradients and weights, f32 master" if low else "f32"
        for name in list(turns)[1:]:
            rows.append(row(f"adamant.step(), {count} tensors of {elements}, {kind}, beside {name}", seconds["joint"],
                            seconds[name], 1.0))
        lines.append(f"CPU time of {count} tensors of {elements} elements, {kind}: " + ", ".join(
            f"{name} {ms:.1f} ms" for name, ms in cpu_times(turns, asked.rounds, asked.rest_s).items()) + ".")
    return rows, lines


def python_lines(torch, asked):
    """The time of adamant.step() over empty tensors is Python's and the checks'. So is that of adam_update()."""
    from adamant import deepspeed as op
    from adamant.lists import native
    us = {}
    for count in (1, 1601):
        lists = Lists(torch, count, 0, False)
        us[count] = [1e6 * each for each in paired({"": (lambda: None, lists.joint)}, 10 * asked.rounds, 0)[""]]
    a_tensor = (statistics.median(us[1601]) - statistics.median(us[1])) / 1600
    # A loop in C over the same tensors that only asks torch for what each is: its address, dtype, shape, strides.
    module = native()
    tensors = [array[i] for i in range(1600) for array in (*lists.arrays, lists.steps)]
    module.describe_all(tensors)
    asks = paired({"": (lambda: None, lambda: module.describe_all(tensors))}, 10 * asked.rounds, 0)[""]
    op.create_adam(0)
    tensors = [torch.zeros(0) for _ in range(4)]
    code = compile("def step(update, tensors):\n"
                   "    for _ in range(100):\n"
                   "        update(0, 10, 1e-6, 0.9, 0.999, 1e-8, 0.01, True, *tensors)\n", "cpu_adam", "exec")
    caller = {"__name__": "deepspeed.ops.adam.cpu_adam"}  # whose steps are never rolled back
    exec(code, caller)
    calls = paired({"": (lambda: None, lambda: caller["step"](op.adam_update, tensors))}, 10 * asked.rounds, 0)[""]
    op.destroy_adam(0)
    return [f"adamant.step() over empty tensors: {statistics.median(us[1]):.1f} us a call and {a_tensor:.2f} us a "
            f"tensor (0.3 are aimed at); torch alone takes {1e6 * statistics.median(asks) / 1600:.2f} us to describe the five "
            f"tensors of each. DeepSpeed's op over empty tensors: {1e4 * statistics.median(calls):.1f} us a "
            "call (3 are aimed at)."]


def lists_part(asked):
    """adamant.step() over a list of tensors with a step count each. Other contenders get the same tensors."""
    torch = imported("torch")
    kernel = prime_rl_kernel(asked.prime_rl) if asked.prime_rl else None
    rows, lines = list_rows(torch, kernel, asked)
    return rows, lines + python_lines(torch, asked)
