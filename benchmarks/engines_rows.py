# SPDX-License-Identifier: Apache-2.0
"""What engines.py measures beside torch and DeepSpeed: a function for each part, which returns rows and lines."""
import statistics
import time
from array import array

import numpy as np
from peers_contenders import Missing, imported

SIZES = {"small": (144, 10, 8), "middle": (512, 9, 3), "large": (1024, 10, 1)}  # width, layers, times as many rounds
COUNTS = (1, 100, 500)  # of params of one element
LR = 1e-6  # values stay what they are, over all rounds


def rest(seconds):
    """The threads of the contender before go to sleep meanwhile; this one does not, as it would not after backward."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def paired(turns, rounds, rest_s, clock=time.perf_counter):
    """{name: [seconds of each round]} of {name: (what comes before, what is timed)}."""
    seconds = {name: [] for name in turns}
    for number in range(-2, rounds):
        for name in list(turns)[::1 if number % 2 else -1]:
            prepare, run = turns[name]
            prepare()
            rest(rest_s)
            start = clock()
            run()
            took = clock() - start
            if number >= 0:
                seconds[name].append(took)
    return seconds


def row(name, seconds, beside, aim=None):
    """Seconds of ours and of what is beside it, round by round; the ratio is to be `aim` at most."""
    p10, ratio, p90 = np.quantile(np.divide(seconds, beside), (0.1, 0.5, 0.9)).tolist()
    return {"name": name, "ms": 1e3 * statistics.median(seconds), "beside_ms": 1e3 * statistics.median(beside),
            "ratio": ratio, "ratio_p10": p10, "ratio_p90": p90, "aim": aim}


# -------------------------------------------------------------------------------------------------------------- torch


def transformer_shapes(width, layers):
    layer = [(width,)] * 4 + [(3 * width, width), (3 * width,), (width, width), (width,), (4 * width, width),
                              (4 * width,), (width, 4 * width), (width,)]
    return [(1000, width)] + layers * layer + [(width,)] * 2


def torch_row(torch, name, shapes, low, rounds, rest_s):
    from adamant.torch import AdamW
    dtype = torch.bfloat16 if low else torch.float32
    params = [torch.nn.Parameter((0.02 * torch.randn(shape)).to(dtype)) for shape in shapes]
    drawn = [(1e-3 * torch.randn(shape)).to(dtype) for shape in shapes]

    def new_gradients():
        for param, grad in zip(params, drawn):
            param.grad = grad.clone()
    ours = AdamW(params, lr=LR, master=low)
    new_gradients()
    ours.step()  # makes the states
    states = [ours.state[param] for param in params]
    stepped = [torch.nn.Parameter(state["master_param"]) for state in states] if low else params
    theirs = torch.optim.AdamW(stepped, lr=LR, fused=True)
    for param, state in zip(stepped, states):
        theirs.state[param] = {"step": torch.tensor(1.0), "exp_avg": state["exp_avg"],
                               "exp_avg_sq": state["exp_avg_sq"]}
    wide = [torch.zeros_like(param) for param in stepped] if low else []
    # Ours takes over weights that another writer has changed, which is work of its own: torch gets others to write.
    narrow = [param.detach().clone() for param in params] if low else []

    def with_casts():
        with torch.no_grad():
            torch._foreach_copy_(wide, [param.grad for param in params])
        for param, grad in zip(stepped, wide):
            param.grad = grad
        theirs.step()
        with torch.no_grad():
            torch._foreach_copy_(narrow, stepped)
    seconds = paired({"ours": (new_gradients, ours.step),
                      "theirs": (new_gradients, with_casts if low else theirs.step)}, rounds, rest_s)
    millions = sum(param.numel() for param in params) / 1e6
    return row(f"torch, {name}: {len(shapes)} tensors, {millions:.1f} M, {'bf16, f32 master' if low else 'f32'}",
               seconds["ours"], seconds["theirs"], 0.6 if low else 1.03)


def torch_part(asked):
    """step() over the tensors of a GPT-like model. With bfloat16 params and gradients and float32 masters torch needs
    two casts, to and from tensors that it keeps."""
    torch = imported("torch")
    rows = []
    for name, (width, layers, more) in SIZES.items():
        shapes = transformer_shapes(width // 8 if asked.quick else width, layers)
        for low in (False, True):
            rows.append(torch_row(torch, name, shapes, low, asked.rounds * (1 if asked.quick else more), asked.rest_s))
    return rows, []


# ----------------------------------------------------------------------------------------------------------- overhead


def overhead_of(torch, count, rounds):
    """Seconds of each round: ours, the library's call within it, torch's, and an optimizer's that does nothing."""
    from adamant.torch import AdamW

    class Idle(torch.optim.Optimizer):
        def step(self, closure=None):
            pass
    params = [torch.nn.Parameter(torch.zeros(1)) for _ in range(count)]
    factor = torch.ones(1)

    def backward():
        for param in params:
            param.grad = None
        torch.stack([param * factor for param in params]).sum().backward()
    ours, theirs, addresses = AdamW(params, lr=LR), torch.optim.AdamW(params, lr=LR, fused=True), array("Q")

    def backward_and_look():
        backward()
        addresses[:] = array("Q", [param.grad.data_ptr() for param in params])
    backward()
    ours.step()
    native = ours._step_groups[0].native  # private, but nothing else says what Python adds

    def step_native():
        native.step_at(addresses.buffer_info()[0], count)
    return paired({"ours": (backward, ours.step), "native": (backward_and_look, step_native),
                   "theirs": (backward, theirs.step), "idle": (backward, Idle(params, {}).step)}, rounds, 0)


def overhead_part(asked):
    """step() over params of one element, whose gradients autograd has just made, and, after another backward, only the
    library's call within it. What is left is Python's, a step's and a tensor's."""
    torch = imported("torch")
    rows, python, theirs, idle = [], [], [], []
    for count in COUNTS:
        seconds = overhead_of(torch, count, asked.rounds * (2 if asked.quick else 10))
        rows.append(row(f"step() over {count} of one element", seconds["ours"], seconds["theirs"]))
        python.append(1e6 * statistics.median(a - b for a, b in zip(seconds["ours"], seconds["native"])))
        theirs.append(1e6 * statistics.median(seconds["theirs"]))
        idle.append(1e6 * statistics.median(seconds["idle"]))
    a_tensor, torchs = ((us[-1] - us[0]) / (COUNTS[-1] - COUNTS[0]) for us in (python, theirs))
    return rows, [f"Python beside the library's call: {', '.join(f'{us:.1f}' for us in python)} us for "
                  f"{', '.join(map(str, COUNTS))} tensors, which is {a_tensor:.2f} us a tensor (at most 0.5 are aimed "
                  f"at; torch's whole step: {torchs:.2f}) and {python[0] - a_tensor:.1f} us a step. A step() that does "
                  f"nothing takes {idle[0]:.1f} us, as torch wraps it; ours adds {python[0] - a_tensor - idle[0]:.1f} "
                  "(at most 5 are aimed at)."]


# ---------------------------------------------------------------------------------------------------------- DeepSpeed


def both_optimizers(param, moment):
    """DeepSpeedCPUAdam with our op and with its own, on the same tensors."""
    import torch
    from adamant import deepspeed as op
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    ours, theirs = (DeepSpeedCPUAdam([param], lr=LR, fp32_optimizer_states=moment == torch.float32) for _ in "ab")
    if ours.ds_opt_adam.__name__ == op.__name__:
        raise Missing("its own op is replaced in this process")
    ours.ds_opt_adam = op  # what CPUAdamBuilder().load() returns otherwise
    op.create_adam(ours.opt_id)
    moments = [(1e-3 * torch.randn(param.shape)).abs().to(moment) for _ in range(2)]
    for optimizer in (ours, theirs):  # subgroup 0 is that tensor, too
        optimizer.state[param] = optimizer.state[0] = {"step": 10, "exp_avg": moments[0], "exp_avg_sq": moments[1]}
    return ours, theirs


def deepspeed_part(asked):
    """DeepSpeedCPUAdam over one tensor: step(); step_subgroup(), which ours can roll back; and rollback_subgroup()."""
    torch = imported("torch")
    imported("deepspeed")
    rows, elements = [], 2**18 if asked.quick else 2**24
    f32, bf16 = torch.float32, torch.bfloat16
    for types, dtype, moment, aim in (("f32", f32, f32, 1.0), ("bf16, f32 moments", bf16, f32, 0.8),
                                      ("bf16, bf16 moments", bf16, bf16, None)):
        param = torch.nn.Parameter((0.02 * torch.randn(elements)).to(dtype))
        drawn = (1e-3 * torch.randn(elements)).to(dtype)
        ours, theirs = both_optimizers(param, moment)

        def new_gradient():
            param.grad = drawn.clone()

        def updated(optimizer):
            new_gradient()
            optimizer.step_subgroup(0)

        def compare(what, ours, theirs, limit):
            seconds = paired({"ours": ours, "theirs": theirs}, 2 * asked.rounds, asked.rest_s)
            rows.append(row(f"DeepSpeed, {elements / 1e6:.1f} M, {types}: {what}", seconds["ours"], seconds["theirs"],
                            limit))
        compare("step()", *((new_gradient, o.step) for o in (ours, theirs)), aim)
        compare("step_subgroup()", *((new_gradient, lambda o=o: o.step_subgroup(0)) for o in (ours, theirs)), 1.3)
        if dtype == f32:  # its own has no others
            compare("rollback_subgroup()", *((lambda o=o: updated(o), lambda o=o: o.rollback_subgroup(0))
                                             for o in (ours, theirs)), 0.2)
    return rows, ["DeepSpeed's own op rolls back float32 only."]
