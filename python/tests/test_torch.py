# SPDX-License-Identifier: Apache-2.0
"""adamant.torch compared with torch.optim, and its additional features."""
import copy
import gc
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import adamant  # noqa: E402
import adamant.torch  # noqa: E402
from adamant import _host_copies  # noqa: E402
from adamant.torch import Adam, AdamW, dequantized, joined_master, quantized, split_master  # noqa: E402

import ranks  # noqa: E402
from processes import words  # noqa: E402

splits = ["split_float32", "split_float32+bfloat16", "split_float32+quantized8"]
pairs = [(Adam, torch.optim.Adam), (AdamW, torch.optim.AdamW)]


def model(dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.GELU(), torch.nn.LayerNorm(64),
                               torch.nn.Linear(64, 80), torch.nn.GELU(), torch.nn.Linear(80, 5)).to(dtype)


def backward(of, seed, scale=1.0):
    torch.manual_seed(1000 + seed)
    kind = next(of.parameters()).dtype
    loss = (of(torch.randn(16, 20).to(kind)).float() - 1).square().mean() * scale
    loss.backward()
    return loss.item()


def bits(of, optimizer=None):
    parts = [p.detach().contiguous().view(torch.uint8).numpy().tobytes() for p in of.parameters()]
    if optimizer is not None:
        for p in of.parameters():
            for name, value in sorted(optimizer.state[p].items()):
                parts.append(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return b"".join(parts)


def train(of, optimizer, steps, begin=0):
    for t in range(begin, begin + steps):
        optimizer.zero_grad()
        backward(of, t)
        optimizer.step()


# Comparison with torch

def step_both(a, first, b, second, t):
    """Steps both optimizers with the first model's gradients."""
    first.zero_grad()
    backward(a, t)
    for p, q in zip(a.parameters(), b.parameters()):
        q.grad = p.grad.to(q.dtype, copy=True)
    first.step()
    second.step()


@pytest.mark.parametrize("mine,theirs", pairs, ids=["Adam", "AdamW"])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"betas": (0.5, 0.9)}, {"eps": 1e-3},
                                     {"maximize": True}, {"lr": torch.tensor(0.01)}, {"foreach": True},
                                     {"fused": True}, {"weight_decay": 0.1, "maximize": True}], ids=str)
def test_steps_are_torchs_within_rounding(mine, theirs, options):
    options = {"lr": 0.01, **options}
    a, b = model(), model().double()
    first = mine(a.parameters(), **options)
    exact = theirs(b.parameters(), **{**options, "foreach": False, "fused": False})
    for t in range(20):
        step_both(a, first, b, exact, t)
    for p, q in zip(a.parameters(), b.parameters()):
        worst = torch.max(torch.abs(p.double() - q) / (1 + torch.abs(q)))
        assert worst <= 1e-5, worst


@pytest.mark.parametrize("mine,theirs", pairs, ids=["Adam", "AdamW"])
def test_bfloat16_params_have_torchs_states_and_stay_near(mine, theirs):
    a, b = model(torch.bfloat16), model(torch.bfloat16)
    first, second = mine(a.parameters(), lr=0.01), theirs(b.parameters(), lr=0.01, foreach=False)
    for t in range(5):
        step_both(a, first, b, second, t)
    for p, q in zip(a.parameters(), b.parameters()):
        for name, value in second.state[q].items():
            assert first.state[p][name].dtype == value.dtype and first.state[p][name].shape == value.shape
        assert torch.max(torch.abs(p.float() - q.float())) < 0.05


def test_a_closure_is_called_with_gradients_enabled_and_its_loss_returned():
    a = model()
    optimizer = AdamW(a.parameters(), lr=0.01)

    def closure():
        optimizer.zero_grad()
        assert torch.is_grad_enabled()
        return backward(a, 1)
    assert optimizer.step(closure) == pytest.approx(backward(model(), 1))


def test_groups_schedulers_and_new_groups():
    a, b = model(), model()
    made = []
    for of, kind in ((a, AdamW), (b, torch.optim.AdamW)):
        parts = list(of.children())
        optimizer = kind([{"params": parts[0].parameters(), "lr": 0.02}, {"params": parts[2].parameters(),
                          "weight_decay": 0.3}], lr=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        for t in range(9):
            if t == 4:
                optimizer.add_param_group({"params": [*parts[3].parameters(), *parts[5].parameters()], "lr": 0.05})
                scheduler.base_lrs.append(0.05)
            of.zero_grad()
            backward(of, t)
            optimizer.step()
            scheduler.step()
        made.append(optimizer)
    for p, q in zip(a.parameters(), b.parameters()):
        assert torch.allclose(p, q, atol=1e-5)
    # Params that were added later have taken fewer steps.
    assert sorted({float(state["step"]) for state in made[0].state.values()}) == [5, 9]
    assert ([float(made[0].state[p]["step"]) for p in a.parameters()] ==
            [float(made[1].state[q]["step"]) for q in b.parameters()])


@pytest.mark.parametrize("max_norm", [None, 0.1])
def test_params_without_gradients_stay_and_count_fewer_steps(max_norm):
    a, b = model(), model()
    first = AdamW(a.parameters(), lr=0.01, max_norm=max_norm)
    second = torch.optim.AdamW(b.parameters(), lr=0.01)
    for t in range(12):
        for of in (a, b):
            of.zero_grad()
            backward(of, t)
            for i, p in enumerate(of.parameters()):
                if (t + i) % 4 == 0 or (t < 6 and i == 3):
                    p.grad = None
        norm = first.step()
        if max_norm is not None:
            theirs = torch.nn.utils.clip_grad_norm_(b.parameters(), max_norm)
            assert float(norm) == pytest.approx(float(theirs), rel=1e-4)
        second.step()
    for p, q in zip(a.parameters(), b.parameters()):
        assert torch.allclose(p, q, atol=2e-5)
        assert first.state[p]["step"] == second.state[q]["step"]


def test_channels_last_and_transposed_params_are_stepped_in_place():
    for kind in (torch.channels_last, None):
        torch.manual_seed(3)
        of = torch.nn.Conv2d(8, 16, 3)
        if kind is not None:
            of = of.to(memory_format=kind)
        else:
            of.weight = torch.nn.Parameter(of.weight.detach().permute(1, 0, 3, 2))
        start = of.weight.detach().clone()
        optimizer = AdamW(of.parameters(), lr=0.01)
        grad = torch.empty_like(of.weight).copy_(torch.randn(of.weight.shape))
        of.weight.grad, of.bias.grad = grad, torch.randn(16)
        optimizer.step()
        other = torch.nn.Parameter(start.contiguous())
        other.grad = grad.contiguous()
        torch.optim.AdamW([other], lr=0.01).step()
        assert torch.allclose(of.weight, other, atol=1e-7)


# Clipping, masters, types

def test_max_norm_is_clip_grad_norm_and_the_norm_is_returned():
    a, b = model(), model()
    first, second = AdamW(a.parameters(), lr=0.01, max_norm=0.05), torch.optim.AdamW(b.parameters(), lr=0.01)
    for t in range(5):
        for of in (a, b):
            of.zero_grad()
            backward(of, t)
        norm = first.step()
        theirs = torch.nn.utils.clip_grad_norm_(b.parameters(), 0.05)
        second.step()
        assert norm.dtype == torch.float64 and float(norm) == pytest.approx(float(theirs), rel=1e-5)
        assert first.last_report.clip_coefficient == pytest.approx(0.05 / (float(theirs) + 1e-6), rel=1e-5)
    for p, q in zip(a.parameters(), b.parameters()):
        assert torch.allclose(p, q, atol=2e-5)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_masters_are_stepped_and_params_are_their_rounded_values(kind):
    a = model(kind)
    start = [p.detach().float().clone() for p in a.parameters()]
    optimizer = AdamW(a.parameters(), lr=1e-3, master=True)
    exact = [torch.nn.Parameter(p.clone()) for p in start]
    theirs = torch.optim.AdamW(exact, lr=1e-3)
    for t in range(5):
        optimizer.zero_grad()
        backward(a, t)
        for p, q in zip(a.parameters(), exact):
            q.grad = p.grad.float()
        optimizer.step()
        theirs.step()
    for p, q in zip(a.parameters(), exact):
        state = optimizer.state[p]
        assert state["master_param"].dtype == state["exp_avg"].dtype == torch.float32
        assert torch.allclose(state["master_param"], q, atol=1e-6)
        assert torch.equal(p, state["master_param"].to(kind))


own_masters = {"plain": {}, "max_norm": {"max_norm": 0.1}, "overlap": {"overlap": True, "max_norm": 0.1},
               "offload": {"offload": True}, "8 bits": {"state_format": "quantized8"}, "master": {"master": True},
               "zenflow": {"zenflow": {"topk_ratio": 0.5, "select_interval": 4, "update_interval": 2}}}


@pytest.mark.parametrize("writes", ["the param", "a copy"])
@pytest.mark.parametrize("options", own_masters.values(), ids=own_masters)
def test_a_float32_param_is_its_own_master(options, writes):
    """As engines write it: Megatron's HybridDeviceOptimizer after each step, and a copy when it loads a state."""
    def run(writes):
        torch.manual_seed(3)
        params = [torch.nn.Parameter(torch.randn(64, 16)), torch.nn.Parameter(torch.randn(7))]
        optimizer = AdamW(params, lr=1e-2, **options)
        for t in range(8):
            generator = torch.Generator().manual_seed(t)
            sum((p * torch.randn(p.shape, generator=generator)).sum() for p in params).backward()
            optimizer.step()
            optimizer.zero_grad()
            for p in params if writes else ():
                optimizer.state[p]["master_param"] = p if writes == "the param" else p.detach().clone()
            if t == 4:
                optimizer.flush()
                params, state = copy.deepcopy((params, optimizer.state_dict()))
                optimizer = AdamW(params, lr=1e-2, **options)
                optimizer.load_state_dict(state)
        optimizer.flush()
        return params, optimizer

    params, optimizer = run(writes)
    plain, _ = run(None)
    for p, q in zip(params, plain):
        assert torch.equal(p.view(torch.int32), q.view(torch.int32))
    params[0].grad = torch.ones_like(params[0])
    optimizer.step()
    assert optimizer.state[params[0]]["master_param"] is params[0]  # an older copy would be wrong in a checkpoint


def test_state_format_and_float16_params():
    a = model()
    optimizer = AdamW(a.parameters(), state_format="bfloat16")
    train(a, optimizer, 2)
    assert {v["exp_avg_sq"].dtype for v in optimizer.state.values()} == {torch.bfloat16}
    half = model(torch.float16)
    optimizer = AdamW(half.parameters())
    train(half, optimizer, 2)
    assert {v["exp_avg"].dtype for v in optimizer.state.values()} == {torch.float32}


def mixed_bits(x):
    x = np.uint64(x) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def random_uint16(seed, step, name, count, array):
    """The library's random numbers as in detail/numerics/rounding.hpp. array: 1 for exp_avg_sq, 2 for param."""
    with np.errstate(over="ignore"):
        number = np.uint64(0xCBF29CE484222325)
        for byte in name.encode():
            number = (number ^ np.uint64(byte)) * np.uint64(0x100000001B3)
        key = mixed_bits(mixed_bits(seed) + np.uint64(step)) + number
        i = np.arange(count, dtype=np.uint64)
        line = mixed_bits(mixed_bits(mixed_bits(key) + i // np.uint64(65536)) + np.uint64(array))
        start, stride = line.astype(np.uint32), (line >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
        x = start + stride * (i % np.uint64(65536)).astype(np.uint32)
        return (x * (x + x + np.uint32(1)) >> np.uint32(16)) ^ (x & np.uint32(0xFFFF))


def stochastically_rounded(values, random_bits):
    return ((values.view(np.uint32) + random_bits) >> np.uint32(16)).astype(np.uint16)


def test_bfloat16_second_moments_are_rounded_stochastically():
    g = torch.rand(70000) + 0.5
    for rounding in ("stochastic", "nearest"):
        param = torch.nn.Parameter(torch.ones(70000))
        optimizer = AdamW([param], lr=0.0, weight_decay=0, state_format="bfloat16", exp_avg_sq_rounding=rounding,
                          rounding_seed=7)
        param.grad = g
        optimizer.step()
        found = optimizer.state[param]["exp_avg_sq"].view(torch.int16).numpy().view(np.uint16)
        exact = np.float32(1 - 0.999) * (g.numpy() * g.numpy())
        if rounding == "nearest":
            assert (found == torch.tensor(exact).bfloat16().view(torch.int16).numpy().view(np.uint16)).all()
        else:
            assert (found == stochastically_rounded(exact, random_uint16(7, 1, "group0.0", 70000, 1))).all()


# quantized8 as in detail/numerics/quantized8.hpp: the shift of bits, the offset of codes in 1/256, the smallest
# and largest code, the position of an element's random byte, and the bits below which a group is zero.
curves = {"exp_avg": (1, 0x27400000, 0, 127, 0, 2.0 ** -80), "exp_avg_sq": (2, 0x37A00000, 1, 255, 8, 2.0 ** -125.9)}


def decoded(name, groups, count):
    shift, offset = curves[name][:2]
    code = groups[:, :64].view(np.int8 if name == "exp_avg" else np.uint8).astype(np.float32)
    z = (abs(code).view(np.uint32) - np.uint32(offset - 0x4000000) << np.uint32(shift)).view(np.float32)
    scale = np.ascontiguousarray(groups[:, 64:]).view(np.float32)
    return (np.where(code == 0, 0, np.copysign(z, code)) * scale).astype(np.float32).reshape(-1)[:count]


def encoded(name, x, random_bits=None):
    """Rounded to nearest, or stochastically with these 16-bit random numbers."""
    shift, offset, least, most, byte, zero_below = curves[name]
    x, r = (np.append(a, np.zeros(-len(x) % 64, a.dtype)).reshape(-1, 64) for a in (x, x if random_bits is None else random_bits))
    largest = abs(x).max(1, keepdims=True)
    scale = ((largest * np.float32(64 / 63)).view(np.uint32) + np.uint32(32) & np.uint32(0xFFFFFFC0)).view(np.float32)
    scale = np.where(largest < zero_below, np.float32(0), np.maximum(scale, np.float32(2.0 ** -80)))
    z = abs(x) * (np.float32(1) / np.maximum(scale, np.float32(2.0 ** -80)))
    y = np.rint(((z.view(np.uint32) >> np.uint32(shift)) + np.uint32(offset)).view(np.float32)).astype(np.int64)
    y = np.where((x < 0) & (least == 0), -y, y)
    # Rounding to nearest rounds ties away from zero.
    q = y + np.where(y < 0, 127, 128) >> 8 if random_bits is None else y + (r.astype(np.int64) >> byte & 255) >> 8
    if random_bits is not None and least == 0:
        q[abs(y) < 256] = 0
    q = np.clip(q, -most if least == 0 else least, most)
    return np.concatenate([q.astype(np.int64).astype(np.uint8), scale.view(np.uint8)], 1)


@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_8_bit_moments_are_loaded_stepped_in_float32_and_stored(rounding, kind):
    """Many steps with groups of all sizes and gradients of many magnitudes, missing and tiny ones included."""
    random = torch.Generator().manual_seed(2)
    shapes = [(70001,), (64,), (63,), (1,), (3, 50), (0,)]
    make = [torch.randn(shape, generator=random).to(kind) for shape in shapes]
    mine, theirs = ([torch.nn.Parameter(p.clone()) for p in make] for _ in range(2))
    options = dict(lr=0.01, exp_avg_sq_rounding=rounding, rounding_seed=7, param_rounding="stochastic")
    first = AdamW(mine, state_format="quantized8", **options)
    second = AdamW(theirs, state_format="float32", **options)
    for step in range(1, 9):
        for p, q in zip(mine, theirs):
            grad = torch.randn(p.shape, generator=random) * torch.exp(4 * torch.randn(p.shape, generator=random))
            p.grad = (grad * (torch.rand(p.shape, generator=random) < 0.7) * 10.0 ** -(2.5 * step)).to(kind)
            q.grad = p.grad.clone()
        if step > 1:
            for p, q in zip(mine, theirs):
                for name in curves:
                    moment = torch.from_numpy(decoded(name, first.state[p][name].numpy(), p.numel()))
                    assert torch.equal(dequantized(first.state[p], p)[name].reshape(-1), moment)
                    second.state[q][name].copy_(moment.view(q.shape))
        first.step()
        second.step()
        for i, (p, q) in enumerate(zip(mine, theirs)):
            assert torch.equal(p.view(-1).view(torch.uint8), q.view(-1).view(torch.uint8)), (step, i)
            random_bits = random_uint16(7, step, f"group0.{i}", p.numel(), 1) if rounding == "stochastic" else None
            for name in curves:
                found, exact = first.state[p][name], second.state[q][name].reshape(-1)
                assert found.dtype == torch.uint8 and found.shape == ((p.numel() + 63) // 64, 68)
                if p.numel() == 0:
                    continue
                expected = encoded(name, exact.numpy(), random_bits)
                assert (found.numpy() == expected).all(), (step, i, name, np.argwhere(found.numpy() != expected)[:5])
                if random_bits is None:
                    assert torch.equal(quantized(second.state[q])[name], found)


def test_bfloat16_params_are_rounded_stochastically():
    moved = {}
    for rounding in ("stochastic", "nearest"):
        param = torch.nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
        optimizer = AdamW([param], lr=1e-4, weight_decay=0, param_rounding=rounding)
        for _ in range(100):
            param.grad = torch.ones_like(param)
            optimizer.step()
        moved[rounding] = 1 - param.double().mean().item()
    assert moved["nearest"] == 0 and abs(moved["stochastic"] - 0.01) < 1e-3
    with pytest.raises(adamant.InvalidArgument, match="param_rounding is 'up'"):
        AdamW([param], param_rounding="up")


def test_nonfinite_gradients():
    for policy, steps in (("skip", 0), ("apply", 1), ("zero", 1)):
        a = model()
        optimizer = AdamW(a.parameters(), on_nonfinite=policy)
        before = bits(a)
        backward(a, 0)
        next(a.parameters()).grad.view(-1)[3] = float("nan")
        optimizer.step()
        assert {float(s["step"]) for s in optimizer.state.values()} == {steps}
        assert optimizer.last_report.skipped == (policy == "skip") and (bits(a) == before) == (policy == "skip")
        assert any(torch.isnan(p).any() for p in a.parameters()) == (policy == "apply")


@pytest.mark.parametrize("state_format", ["float32", "quantized8"])
def test_the_same_bits_for_any_threads_and_overlap(state_format):
    ends = set()
    for threads in (1, 2, 3):
        for overlap in (False, True):
            a = model()
            optimizer = AdamW(a.parameters(), lr=0.01, max_norm=0.1, threads=threads, overlap=overlap,
                              state_format=state_format)
            optimizer._executor = lambda threads=threads: adamant.Executor(threads=threads, bind="none")
            train(a, optimizer, 6)
            ends.add(bits(a, optimizer))
    assert len(ends) == 1


# State

@pytest.mark.parametrize("mine,theirs", pairs, ids=["Adam", "AdamW"])
@pytest.mark.parametrize("steps", [0, 1, 7])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_state_dicts_go_both_ways_in_training(mine, theirs, steps, kind):
    a = model(kind)
    first = mine(a.parameters(), lr=0.01)
    train(a, first, steps)
    b = copy.deepcopy(a)
    second = theirs(b.parameters(), lr=0.5)
    saved = first.state_dict()
    assert set(saved) == set(second.state_dict())
    second.load_state_dict(copy.deepcopy(saved))
    train(b, second, 3, steps)
    c = copy.deepcopy(b)
    third = mine(c.parameters())
    third.load_state_dict(copy.deepcopy(second.state_dict()))
    train(c, third, 3, steps + 3)
    train(b, second, 3, steps + 3)
    assert third.param_groups[0]["lr"] == 0.01
    for p, q in zip(c.parameters(), b.parameters()):
        assert torch.allclose(p.float(), q.float(), atol=2e-5 if kind == torch.float32 else 0.05)
        assert third.state[p]["step"] == second.state[q]["step"] == steps + 6
        assert third.state[p]["exp_avg"].dtype == kind


def test_loaded_states_continue_with_the_same_bits_in_their_saved_dtypes():
    for options in ({}, {"master": True}, {"state_format": "float32"}, {"state_format": "quantized8"},
                    {"state_format": "quantized8", "master": True}, *({"state_format": name} for name in splits)):
        a = model(torch.bfloat16)
        first = AdamW(a.parameters(), lr=0.01, max_norm=1.0, **options)
        train(a, first, 3)
        b = copy.deepcopy(a)
        second = AdamW(b.parameters(), **{**options, "max_norm": 1.0})
        second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
        for name, value in first.state[next(a.parameters())].items():
            assert second.state[next(b.parameters())][name].dtype == value.dtype
        assert second.state[next(b.parameters())]["exp_avg"].data_ptr() != first.state[next(a.parameters())][
            "exp_avg"].data_ptr()
        train(a, first, 3, 3)
        train(b, second, 3, 3)
        assert bits(a, first) == bits(b, second)


@pytest.mark.parametrize("state_format", [None, "quantized8"])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))], ids=["copy", "pickle"])
def test_copies_and_pickles_continue_with_the_same_bits(copied, state_format):
    a = model()
    first = AdamW(a.parameters(), lr=0.01, max_norm=0.1, overlap=True, state_format=state_format)
    train(a, first, 3)
    b, second = copied((a, first))
    train(a, first, 3, 3)
    train(b, second, 3, 3)
    assert bits(a, first) == bits(b, second)
    assert second._arguments == first._arguments


def test_torch_hooks_run():
    a = model()
    optimizer = AdamW(a.parameters())
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("pre"))
    optimizer.register_step_post_hook(lambda *_: seen.append("post"))
    optimizer.register_state_dict_post_hook(lambda *_: seen.append("save"))
    optimizer.register_load_state_dict_post_hook(lambda *_: seen.append("load"))
    train(a, optimizer, 1)
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == ["pre", "post", "save", "load"]


def test_step_hooks_see_and_replace_torchs_arguments():
    """A hook sees whether the closure was named, and may return another one."""
    def losses(kind):
        param = torch.nn.Parameter(torch.ones(3))
        optimizer, seen = kind([param], lr=0.1), []

        def closure(factor=1.0):
            optimizer.zero_grad()
            loss = factor * param.sum()
            loss.backward()
            return loss

        def replace(own, arguments, named):
            seen.append((len(arguments), sorted(named)))
            if named:
                return arguments, {**named, "closure": lambda: closure(2.0)}
        optimizer.register_step_pre_hook(replace)
        found = [optimizer.step(closure), optimizer.step(closure=closure), optimizer.step()]
        return seen, [None if loss is None else loss.item() for loss in found]
    assert losses(AdamW) == losses(torch.optim.AdamW)


def test_autograd_detects_changed_params():
    a = torch.nn.Parameter(torch.ones(3))
    optimizer = AdamW([a])
    loss = (a * a).sum()
    a.grad = torch.ones(3)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("what", ["param", "exp_avg", "exp_avg_sq"])
def test_replaced_moments_and_params_are_detected(what):
    a, b = model(), model()
    first, second = AdamW(a.parameters(), lr=0.01), torch.optim.AdamW(b.parameters(), lr=0.01)
    for t in range(6):
        for of, optimizer in ((a, first), (b, second)):
            of.zero_grad()
            backward(of, t)
            if t == 3:
                p = next(of.parameters())
                if what == "param":
                    p.data = p.data * 2
                else:
                    optimizer.state[p][what] = optimizer.state[p][what] * 3
            optimizer.step()
    for p, q in zip(a.parameters(), b.parameters()):
        assert torch.allclose(p, q, atol=1e-5)


@pytest.mark.parametrize("overlap", [False, True])
def test_params_with_a_late_first_gradient_are_stepped_from_then_on(overlap):
    a, b = model(), model()
    late, also = torch.nn.Parameter(torch.ones(100)), torch.nn.Parameter(torch.ones(100))
    first = AdamW([*a.parameters(), late], lr=0.01, overlap=overlap, max_norm=1e9)
    second = torch.optim.AdamW([*b.parameters(), also], lr=0.01)
    for t in range(6):
        for of, optimizer in ((a, first), (b, second)):
            optimizer.zero_grad()
            backward(of, t)
            if t >= 3:
                late.grad, also.grad = torch.full((100,), 0.5), torch.full((100,), 0.5)
            optimizer.step()
    assert torch.allclose(late, also, atol=1e-6) and late[0].item() < 1
    assert first.state[late]["step"] == 3
    for p, q in zip(a.parameters(), b.parameters()):
        assert torch.allclose(p, q, atol=1e-5)


def test_a_state_without_a_moment_is_refused():
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    optimizer = AdamW([p])
    optimizer.step()
    saved = optimizer.state_dict()
    del saved["state"][0]["exp_avg"]
    with pytest.raises(adamant.InvalidArgument, match="no exp_avg, but has taken 1 step\\."):
        optimizer.load_state_dict(saved)
    with pytest.raises(adamant.InvalidArgument, match="no exp_avg, but has taken 1 step\\."):
        optimizer.step()  # state_dict() is live, so the moment is removed here too


def test_8_bit_moments_train_in_separate_groups():
    a = model()
    matrices, vectors = ([p for p in a.parameters() if (p.dim() > 1) == wanted] for wanted in (True, False))
    optimizer = AdamW([{"params": matrices[:2]}, {"params": vectors, "state_format": "float32"}], lr=0.01,
                      state_format="quantized8", max_norm=1.0)
    train(a, optimizer, 2)
    optimizer.add_param_group({"params": matrices[2:]})
    train(a, optimizer, 30, 2)
    optimizer.zero_grad()
    assert backward(a, 50) < 0.3 < backward(model(), 50)
    for p in a.parameters():
        for name in ("exp_avg", "exp_avg_sq"):
            moment = optimizer.state[p][name]
            assert moment.shape == (((p.numel() + 63) // 64, 68) if p.dim() > 1 else p.shape)
    assert {float(state["step"]) for state in optimizer.state.values()} == {30, 32}
    b = copy.deepcopy(a)
    other = AdamW([{"params": [p for p in b.parameters() if p.dim() > 1][:2]},
                   {"params": [p for p in b.parameters() if p.dim() == 1]},
                   {"params": [p for p in b.parameters() if p.dim() > 1][2:]}], state_format="quantized8", max_norm=1.0)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # formats of the groups are saved
    train(a, optimizer, 3, 32)
    train(b, other, 3, 32)
    assert bits(a, optimizer) == bits(b, other)


def test_8_bit_and_other_moments_are_not_confused():
    a = model()
    eight, whole = AdamW(a.parameters(), state_format="quantized8"), AdamW(a.parameters(), state_format="float32")
    for optimizer in (eight, whole):
        train(a, optimizer, 3)
    before = [bits(a, eight), bits(a, whole)]
    with pytest.raises(adamant.InvalidArgument, match=r"group0.0: it has moments of torch.float32.*quantized\(state\)"):
        eight.load_state_dict(whole.state_dict())
    with pytest.raises(adamant.InvalidArgument, match=r"group0.0: .*uint8, which is quantized8.*dequantized\(state"):
        whole.load_state_dict(eight.state_dict())
    assert [bits(a, eight), bits(a, whole)] == before
    any_format = AdamW(a.parameters())
    any_format.load_state_dict(eight.state_dict())
    assert any_format.state[a[0].weight]["exp_avg"].dtype == torch.uint8
    # Convert both ways. torch's class continues from dequantized states.
    saved, params = copy.deepcopy(eight.state_dict()), list(a.parameters())
    saved["state"] = {i: dequantized(state, params[i]) for i, state in saved["state"].items()}
    torch.optim.AdamW(a.parameters()).load_state_dict(copy.deepcopy(saved))
    whole.load_state_dict(saved)
    saved["state"] = {i: quantized(state) for i, state in saved["state"].items()}
    eight.load_state_dict(saved)
    assert [bits(a, eight)] == before[:1] and whole.state[params[0]]["exp_avg_sq"].shape == params[0].shape
    train(a, whole, 1)


def test_8_bit_moments_of_large_small_and_nonfinite_values():
    for top in (1e37, 1.0, 1e-23, 1e-30, 1e-37, 1e-45, 0.0, float("inf"), float("nan")):
        x = torch.linspace(0, 1, 100) * top
        there = dequantized(quantized({"exp_avg": -x, "exp_avg_sq": x, "step": 3}), x)
        assert there["step"] == 3
        for found, exact in ((there["exp_avg"], -x), (there["exp_avg_sq"], x)):
            if not abs(top) < float("inf"):
                assert found.isnan().all()
            elif top >= 1e-23:
                assert (found - exact).abs().max() <= 0.02 * top and (found.sign() == exact.sign())[2:].all()
    with pytest.raises(adamant.InvalidArgument, match="has groups of shape"):
        dequantized(quantized({"exp_avg": torch.ones(65)}), torch.ones(64))


# Split masters

def master_of(p, low):
    """The float32 master of a split pair, by integer arithmetic."""
    assert p.dtype == torch.bfloat16 and low.dtype == torch.int16 and (low.shape, low.stride()) == (p.shape, p.stride())
    return ((p.detach().view(torch.int16).to(torch.int32) << 16) + low).view(torch.float32)


def away_from_zero(master):
    return (master.view(torch.int32) + 0x8000 >> 16).to(torch.int16).view(torch.bfloat16)


def every_pair():
    """Masters of many magnitudes, all low bits, many ties, both zeros, overflows and infinities."""
    upper = torch.tensor([0x0080, 0x3F80, 0x3F81, 0x7F7E, 0x7F7F, -0x4080, -0x407F, -0x0081], dtype=torch.int32)
    numbers = (upper[:, None] << 16) + torch.arange(0, 65536, 16, dtype=torch.int32)
    special = torch.tensor([0.0, -0.0, 1e-41, -1e-41, float("inf"), -float("inf")]).view(torch.int32)
    return torch.cat([numbers.flatten(), special]).view(torch.float32)


def test_masters_are_split_and_joined_with_every_bit():
    master = every_pair()
    param = torch.nn.Parameter(master.bfloat16())
    ties = (master.view(torch.int32) & 0xFFFF) == 0x8000
    state = {"step": 3, "exp_avg": master, "master_param": master.clone()}
    there = split_master(state, param)
    assert set(there) == {"step", "exp_avg", "master_low"} and there["step"] == 3 and "master_param" in state
    assert torch.equal(param.view(torch.int16), away_from_zero(master).view(torch.int16))
    assert torch.equal(master_of(param, there["master_low"]).view(torch.int32), master.view(torch.int32))
    odd = param.view(torch.int16) != master.bfloat16().view(torch.int16)
    assert odd.any() and not (odd & ~ties).any()
    back = joined_master(there, param)
    assert set(back) == set(state) and torch.equal(back["master_param"].view(torch.int32), master.view(torch.int32))
    assert torch.equal(param.view(torch.int16), master.bfloat16().view(torch.int16))
    spoiled = {"master_param": torch.full((2,), float("nan")).view(torch.int32).bitwise_or(-1).view(torch.float32)}
    nans = torch.nn.Parameter(spoiled["master_param"].bfloat16())
    there = split_master(spoiled, nans)
    assert joined_master(there, nans)["master_param"].isnan().all() and there["master_low"].eq(0).all()
    # Weights written by others, with low bits that no master of that weight has.
    weights = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), 0.0]).bfloat16()
    odd = {"master_low": torch.tensor([-1, -9, 1, 9, 0], dtype=torch.int16)}
    assert torch.equal(joined_master(odd, torch.nn.Parameter(weights.clone()))["master_param"].view(torch.int32),
                       weights.float().view(torch.int32))
    # States that need no conversion.
    for state, p in ((spoiled, torch.nn.Parameter(torch.ones(2).half())), ({"step": 1}, nans)):
        assert split_master(state, p) == state == joined_master(state, p)
    other = torch.nn.Parameter(torch.ones(master.shape).bfloat16())
    with pytest.raises(adamant.InvalidArgument, match="the param is not its master_param rounded"):
        split_master(back, other)
    assert other.eq(1).all()


@pytest.mark.parametrize("name", splits)
def test_states_convert_between_float32_and_split_masters_in_training(name):
    moments = name.removeprefix("split_float32").lstrip("+") or "float32"
    full_options, split_options = {"state_format": moments, "master": True}, {"state_format": name}

    def go_on(optimizer, change, options):
        """Continues in another optimizer over a copy of the params."""
        params = [torch.nn.Parameter(p.detach().clone()) for p in optimizer.param_groups[0]["params"]]
        saved = pickle.loads(pickle.dumps(optimizer.state_dict()))
        saved["state"] = {i: change(state, params[i]) for i, state in saved["state"].items()}
        made = AdamW(params, lr=1e-3, **options)
        made.load_state_dict(saved)
        return made

    def steps(optimizer, begin):
        params = optimizer.param_groups[0]["params"]
        for t in range(begin, begin + 3):
            for i, p in enumerate(params):
                p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(10 * t + i)).bfloat16()
            optimizer.step()
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape).bfloat16()) for shape in ((50, 64), (1000,), ())]
    first = AdamW(params, lr=1e-3, **full_options)
    steps(first, 0)
    for p in params:  # ties
        number = first.state[p]["master_param"].view(torch.int32)
        number.bitwise_or_(0xFFFF).bitwise_xor_(0x7FFF)
        p.detach().copy_(first.state[p]["master_param"])
    second = go_on(first, split_master, split_options)
    third = go_on(second, joined_master, full_options)
    assert any((a != b).any() for a, b in zip(params, second.param_groups[0]["params"]))
    for begin in (3, 6):
        for a, b, c in zip(*(of.param_groups[0]["params"] for of in (first, second, third))):
            assert torch.equal(master_of(b, second.state[b]["master_low"]), first.state[a]["master_param"])
            assert torch.equal(b, away_from_zero(first.state[a]["master_param"])) and torch.equal(a, c)
            assert all(torch.equal(first.state[a][key], third.state[c][key]) for key in first.state[a])
        for optimizer in (first, second, third):
            steps(optimizer, begin)


def test_split_and_float32_masters_are_not_confused():
    a = model(torch.bfloat16)
    full_run = AdamW(a.parameters(), state_format="float32", master=True)
    split_run = AdamW(a.parameters(), state_format=splits[0])
    train(a, full_run, 2)
    train(a, split_run, 2)
    before = [bits(a, full_run), bits(a, split_run)]
    with pytest.raises(adamant.InvalidArgument, match=r"group0.0: it has a float32 master.*split_master\(state"):
        split_run.load_state_dict(full_run.state_dict())
    with pytest.raises(adamant.InvalidArgument, match=r"group0.0: it has split master weights.*joined_master\(state"):
        full_run.load_state_dict(split_run.state_dict())
    eight = AdamW(a.parameters(), state_format=splits[2])
    with pytest.raises(adamant.InvalidArgument, match=r"group0.0: it has moments of torch.float32.*quantized\(state\)"):
        eight.load_state_dict(split_run.state_dict())
    assert [bits(a, full_run), bits(a, split_run)] == before
    p = next(a.parameters())
    for options in ({}, {"master": True}):  # no state_format
        own = AdamW(a.parameters(), **options)
        own.load_state_dict(split_run.state_dict())
        train(a, own, 1, 2)
        assert set(own.state[p]) == {"step", "exp_avg", "exp_avg_sq", "master_low"}
    own.state[p]["master_param"] = p.detach().float()
    for refuses in (lambda: own.load_state_dict(own.state_dict()), own.step):
        with pytest.raises(adamant.InvalidArgument, match="group0.0: it has both master_low and master_param"):
            refuses()
    theirs = torch.optim.AdamW(a.parameters())
    theirs.load_state_dict(split_run.state_dict())  # torch converts all tensors to bfloat16
    with pytest.raises(adamant.InvalidArgument, match="its master_low torch.bfloat16, but split master"):
        split_run.load_state_dict(theirs.state_dict())


def test_split_masters_are_for_bfloat16_params_only():
    matrices = [torch.nn.Parameter(torch.randn(20, 64).bfloat16()) for _ in range(2)]
    norm, half = torch.nn.Parameter(torch.ones(64)), torch.nn.Parameter(torch.ones(64).half())

    def keys(optimizer, *params):
        for p in params:
            p.grad = torch.full_like(p, 0.5)
        optimizer.step()
        return [tuple(name for name in optimizer.state[p] if name.startswith("master")) for p in params]
    optimizer = AdamW([*matrices, norm], lr=1e-3, state_format="split_float32+bfloat16")
    assert keys(optimizer, *matrices, norm) == [("master_low",)] * 2 + [()]
    assert {optimizer.state[p]["exp_avg"].dtype for p in (*matrices, norm)} == {torch.bfloat16}
    optimizer = AdamW([{"params": matrices[:1]}, {"params": [matrices[1], norm], "state_format": "split_float32+quantized8"}],
                      state_format="float32")
    optimizer.add_param_group({"params": [half]})
    assert keys(optimizer, *matrices, norm, half) == [(), ("master_low",), (), ()]
    assert [optimizer.state[p]["exp_avg"].dtype for p in matrices] == [torch.float32, torch.uint8]
    # master=True is for params without a split state_format, and for params that it does not support.
    groups = [{"params": [matrices[0], half], "state_format": "split_float32"}, {"params": [matrices[1], norm]}]
    assert keys(AdamW(groups, master=True), matrices[0], half, matrices[1], norm) == [
        ("master_low",), ("master_param",), ("master_param",), ()]
    before = half.detach().clone()
    with pytest.raises(adamant.InvalidArgument, match="group0.1: it is torch.float16, but split master weights are for"):
        keys(AdamW([norm, half], state_format="split_float32"), norm, half)
    assert torch.equal(half, before)
    with pytest.raises(adamant.InvalidArgument, match="state_format is 'split_bfloat16', but must be one of .*split_float32,"):
        AdamW([norm], state_format="split_bfloat16")


def test_split_masters_of_params_in_any_memory_order():
    start = torch.randn(16, 8, 3, 3).bfloat16()
    ends = []
    for kind in (torch.channels_last, torch.contiguous_format):
        param = torch.nn.Parameter(start.clone(memory_format=kind))
        optimizer = AdamW([param], lr=1e-3, state_format="split_float32")
        for t in range(3):
            param.grad = (start * t - 1).to(memory_format=kind)
            optimizer.step()
        ends.append(master_of(param, optimizer.state[param]["master_low"]))
        there = joined_master(optimizer.state[param], param)
        assert there["master_param"].stride() == param.stride() and torch.equal(there["master_param"], ends[-1])
        assert torch.equal(split_master(there, param)["master_low"], optimizer.state[param]["master_low"])
    assert torch.equal(*ends)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
@pytest.mark.parametrize("masters", [False, True])
def test_dtensor_shards_have_separate_groups_and_split_masters_and_the_same_bits(tmp_path, masters):
    code = """
import hashlib, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from adamant.torch import AdamW, joined_master, split_master
rank, count, folder, masters = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4] == "True"
dist.init_process_group("gloo", init_method=f"file://{folder}/store{count}", rank=rank, world_size=count)
mesh = init_device_mesh("cpu", (count,))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 66), torch.nn.GELU(), torch.nn.Linear(66, 64))
if masters:
    model.bfloat16()
split = "split_float32+" if masters else ""
fully_shard(model, mesh=mesh)
matrices, vectors = ([p for p in model.parameters() if (p.dim() > 1) == wanted] for wanted in (True, False))
options = dict(lr=1e-2, max_norm=1.0, process_group=mesh.get_group(), state_format=split + "quantized8", threads=1)
optimizer = AdamW([{"params": matrices}, {"params": vectors, "state_format": split + "bfloat16"}], **options)
data, params = torch.Generator().manual_seed(1), list(model.parameters())
for step in range(5):
    x = torch.randn(32, 64, generator=data).to(params[0].dtype)
    optimizer.zero_grad()
    (model(x) - x.flip(1)).square().mean().backward()
    optimizer.step()
ends = [p.full_tensor() for p in params] + [optimizer.state[p][name].full_tensor() for p in params
                                           for name in ("exp_avg", "exp_avg_sq")]
assert [tuple(end.shape) for end in ends[4:6]] == [(66, 68)] * 2
for p in params if masters else []:
    state = optimizer.state[p]
    joined = joined_master(state, p)
    ends.append(joined["master_param"].full_tensor())
    again = split_master(joined, p)["master_low"]
    assert torch.equal(again.to_local(), state["master_low"].to_local()) and again.placements == p.placements
    assert again.to_local().any()
    checkpoint.save({"low": again}, checkpoint_id=f"{folder}/{count}")
    loaded = {"low": torch.zeros_like(again)}
    checkpoint.load(loaded, checkpoint_id=f"{folder}/{count}")
    assert torch.equal(loaded["low"].to_local(), again.to_local())
print(hashlib.sha256(b"".join(end.detach().contiguous().view(torch.uint8).numpy().tobytes() for end in ends)).hexdigest())
refused = "none"
try:
    AdamW(vectors, **options).step()
except ValueError as error:
    refused = str(error)
assert ("each rank must have the same number of whole groups" in refused) == (count == 2), refused
dist.destroy_process_group()
"""
    ends = set()
    for count in (1, 2):
        printed = [out.split() for out in ranks.on_ranks(count, code, tmp_path, masters)]
        assert all(len(words) == 1 for words in printed)
        ends.update(words[0] for words in printed)
    assert len(ends) == 1


def test_a_live_state_dict_is_copied():
    a = model()
    first = AdamW(a.parameters(), lr=0.01)
    train(a, first, 2)
    b = copy.deepcopy(a)
    second = AdamW(b.parameters(), lr=0.01)
    second.load_state_dict(first.state_dict())
    before = bits(b, second)
    train(a, first, 2)
    assert bits(b, second) == before


# Overlap

def test_overlap_begins_in_backward_with_clipping_on():
    a = model()
    optimizer = AdamW(a.parameters(), lr=0.01, max_norm=0.1, overlap=True)
    train(a, optimizer, 1)
    optimizer.zero_grad()
    backward(a, 1)
    assert len(optimizer._open.submitted) == len(list(a.parameters()))
    optimizer.step()
    assert optimizer._open is None


@pytest.mark.parametrize("state_format", [None, "quantized8"])
@pytest.mark.parametrize("what", ["zero_grad", "lr", "missing", "by hand", "newcomer", "closure", "state_dict"])
def test_overlap_has_the_bits_of_a_plain_step_for_any_actions_between(what, state_format):
    ends = []
    for overlap in (False, True):
        a = model()
        params = list(a.parameters())
        if what == "newcomer":
            params[2].requires_grad_(True)
        optimizer = AdamW(params, lr=0.01, max_norm=0.1, overlap=overlap, state_format=state_format)
        for t in range(6):
            optimizer.zero_grad()
            if what == "newcomer" and t < 3:
                backward(a, t)
                params[2].grad = None
            elif what == "closure":
                optimizer.step(lambda t=t: (optimizer.zero_grad(), backward(a, t))[1])
                continue
            else:
                backward(a, t)
            if t > 2 and what == "zero_grad":
                optimizer.zero_grad()
                backward(a, t + 50)
            if t > 2 and what == "lr":
                optimizer.param_groups[0]["lr"] = 0.01 * t
            if what == "missing" and t == 3:
                params[1].requires_grad_(False)
            if what == "missing" and t == 4:
                params[1].requires_grad_(True)
            if what == "by hand" and t > 2:
                optimizer.zero_grad()
                for p in params:
                    p.grad = torch.full_like(p, 0.5)
            if what == "state_dict" and t == 3:
                saved = copy.deepcopy(optimizer.state_dict())
                optimizer.load_state_dict(saved)
            optimizer.step()
        ends.append(bits(a, optimizer))
    assert ends[0] == ends[1]


def test_overlap_refuses_gradients_that_change_after_backward():
    a = model()
    optimizer = AdamW(a.parameters(), lr=0.01, max_norm=0.1, overlap=True)
    train(a, optimizer, 1)
    backward(a, 1)
    torch.nn.utils.clip_grad_norm_(a.parameters(), 1e-3)
    with pytest.raises(adamant.InvalidArgument, match="changed after backward"):
        optimizer.step()


def test_overlap_without_a_norm_refuses_zero_grad():
    a = model()
    optimizer = AdamW(a.parameters(), lr=0.01, overlap=True)
    train(a, optimizer, 1)
    backward(a, 1)
    with pytest.raises(adamant.InvalidArgument, match="cannot be rolled back"):
        optimizer.zero_grad()
    optimizer.step()


@pytest.mark.parametrize("state_format", [None, "quantized8"])
def test_overlap_refuses_a_second_backward_and_rolls_back(state_format):
    a = model()
    optimizer = AdamW(a.parameters(), lr=0.01, max_norm=0.1, overlap=True, state_format=state_format)
    train(a, optimizer, 1)
    before = bits(a, optimizer)
    optimizer.zero_grad()
    backward(a, 1)
    with pytest.raises(adamant.InvalidArgument, match="called again before step"):
        backward(a, 2)
    assert bits(a, optimizer) == before


# Errors

def test_errors_name_the_cause():
    def stepped(p, grad, **options):
        p.grad = grad
        AdamW([p], **options).step()
    f = torch.nn.Parameter
    with pytest.raises(adamant.InvalidArgument, match="float64"):
        stepped(f(torch.ones(3, dtype=torch.float64)), torch.ones(3, dtype=torch.float64))
    with pytest.raises(adamant.InvalidArgument, match="complex64"):
        stepped(f(torch.ones(3, dtype=torch.complex64)), torch.ones(3, dtype=torch.complex64))
    with pytest.raises(adamant.InvalidArgument, match="contiguous"):
        stepped(f(torch.ones(6, 2)[:, 0]), torch.ones(6))
    with pytest.raises(adamant.InvalidArgument, match="same order"):
        stepped(f(torch.ones(6, 2)), torch.ones(2, 6).t())
    with pytest.raises(RuntimeError, match="sparse"):
        stepped(f(torch.ones(3)), torch.ones(3).to_sparse())
    with pytest.raises(adamant.InvalidArgument, match="amsgrad"):
        stepped(f(torch.ones(3)), torch.ones(3), amsgrad=True)
    with pytest.raises(adamant.InvalidArgument, match="state_format"):
        AdamW([f(torch.ones(3))], state_format="int4")
    with pytest.raises(adamant.InvalidArgument, match="state_format is 'int4'"):
        AdamW([{"params": [f(torch.ones(3))], "state_format": "int4"}])
    with pytest.raises(adamant.InvalidArgument, match="groups are those of row-major order"):
        stepped(f(torch.ones(2, 6).t()), torch.ones(2, 6).t(), state_format="quantized8")
    with pytest.raises(adamant.InvalidArgument, match="max_norm is 0"):
        AdamW([f(torch.ones(3))], max_norm=0)
    with pytest.raises(ValueError, match="Invalid beta parameter at index 0: 1.0"):
        AdamW([f(torch.ones(3))], betas=(1.0, 0.9))


def test_empty_params_and_scalars():
    params = [torch.nn.Parameter(torch.zeros(0, 3)), torch.nn.Parameter(torch.tensor(2.0)),
              torch.nn.Parameter(torch.ones(1, 5))]
    optimizer = AdamW(params, lr=0.1)
    for _ in range(3):
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.step()
    assert params[1].item() < 2 and {float(s["step"]) for s in optimizer.state.values()} == {3}


# Processes and threads

def test_forked_and_spawned_workers_step_independently():
    code = """
import torch, os, sys
import torch.multiprocessing as mp
sys.path.insert(0, os.path.dirname(sys.argv[0]) or ".")
from adamant.torch import AdamW
torch.set_num_threads(1)
def work(p):
    optimizer = AdamW([p], lr=0.1)
    for _ in range(3):
        p.grad = torch.ones_like(p); optimizer.step()
    return p
p = torch.nn.Parameter(torch.ones(100000))
optimizer = AdamW([p], lr=0.1)
p.grad = torch.ones_like(p); optimizer.step()
r, w = os.pipe()
pid = os.fork()
if pid == 0:
    try:
        optimizer.step()
        q = work(torch.nn.Parameter(torch.ones(100000)))
        os.write(w, b"%r" % float(q[0])); os._exit(0)
    except BaseException as error:
        os.write(w, repr(error).encode()); os._exit(1)
assert os.waitpid(pid, 0)[1] == 0, os.read(r, 1000)
optimizer.step()
print(float(work(torch.nn.Parameter(torch.ones(100000)))[0]) == float(os.read(r, 100)))
"""
    assert words(code) == ["True"]


def test_data_loader_workers_and_two_optimizers_in_one_process():
    data = torch.utils.data.TensorDataset(torch.randn(64, 20))
    a, b = model(), model(seed=1)
    optimizers = [AdamW(a.parameters(), lr=0.01), Adam(b.parameters(), lr=0.01)]
    for of, optimizer in zip((a, b), optimizers):
        train(of, optimizer, 1)
    for _ in range(2):
        for batch, in torch.utils.data.DataLoader(data, batch_size=16, num_workers=2):
            for of, optimizer in zip((a, b), optimizers):
                optimizer.zero_grad()
                of(batch).square().mean().backward()
                optimizer.step()
    assert float(next(iter(optimizers[0].state.values()))["step"]) == 9


def test_cores_separate_torchs_threads_from_ours():
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    code = """
import os, torch
from adamant.torch import AdamW
torch.ones(1000, 1000) @ torch.ones(1000, 1000)
allowed = sorted(os.sched_getaffinity(0))
before = set(os.listdir("/proc/self/task"))
p = torch.nn.Parameter(torch.ones(100000)); p.grad = torch.ones_like(p)
optimizer = AdamW([p], cores=[allowed[-1]])
optimizer.step()
where = {int(t): os.sched_getaffinity(int(t)) for t in os.listdir("/proc/self/task")}
ours = {t for t in where if str(t) not in before}
assert ours and all(where[t] == {allowed[-1]} for t in ours), where
assert all(where[t] == set(allowed[:-1]) for t in where if t not in ours), where
assert torch.get_num_threads() == len(allowed) - 1
torch.ones(1000, 1000) @ torch.ones(1000, 1000)
assert all(os.sched_getaffinity(int(t)) <= set(allowed[:-1]) or int(t) in ours for t in os.listdir("/proc/self/task"))
print("apart")
"""
    assert words(code) == ["apart"]


def test_interrupts_in_steps_leave_a_consistent_state():
    code = """
import os, signal, threading, torch
from adamant.torch import AdamW
p = torch.nn.Parameter(torch.ones(4_000_000)); p.grad = torch.ones_like(p)
optimizer = AdamW([p], max_norm=1.0)
optimizer.step()
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    while True:
        optimizer.step()
except KeyboardInterrupt:
    pass
steps = int(optimizer.state[p]["step"])
q = torch.nn.Parameter(torch.ones(4_000_000)); q.grad = torch.ones_like(q)
other = AdamW([q], max_norm=1.0)
for _ in range(int(optimizer._step_groups[0].native.steps)):
    other.step()
assert torch.equal(p, q)
print("whole")
"""
    assert words(code) == ["whole"]


def test_deleted_optimizers_leave_no_threads():
    def threads():
        return len(os.listdir("/proc/self/task"))
    a = model()
    train(a, AdamW(a.parameters()), 1)
    gc.collect()
    before = threads()
    for _ in range(5):
        train(a, AdamW(a.parameters()), 1)
    gc.collect()
    time.sleep(0.1)
    assert threads() <= before


def test_install_replaces_torchs_classes_and_uninstall_restores_them():
    theirs = torch.optim.Adam, torch.optim.AdamW
    old = torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))])
    try:
        for _ in range(2):
            adamant.torch.install()
            assert issubclass(torch.optim.Adam, adamant.torch.Adam)
            assert issubclass(torch.optim.AdamW, adamant.torch.AdamW)
        made = torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))], lr=0.1, max_norm=1.0)
        assert isinstance(made, adamant.torch.AdamW) and isinstance(made, theirs[1])
        torch.optim.lr_scheduler.StepLR(made, 1)
        for optimizer in (old, made):
            for copied in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
                assert type(copied) is type(optimizer)
                copied.param_groups[0]["params"][0].grad = torch.ones(3)
                copied.step()
                assert float(copied.state_dict()["state"][0]["step"]) == 1
    finally:
        adamant.torch.uninstall()
    assert (torch.optim.Adam, torch.optim.AdamW) == theirs
    adamant.torch.uninstall()
    others = type("Others", (torch.optim.AdamW,), {})
    try:
        adamant.torch.install()
        torch.optim.AdamW = others
        adamant.torch.uninstall()
        assert (torch.optim.Adam, torch.optim.AdamW) == (theirs[0], others)
    finally:
        torch.optim.AdamW = theirs[1]


@pytest.mark.parametrize("option", ["--cmake-dir", "--include-dir"])
def test_python_m_adamant_finds_the_headers(option, tmp_path):
    package = pathlib.Path(adamant.__file__).parent
    done = subprocess.run([sys.executable, "-m", "adamant", option], capture_output=True, text=True)
    if not (package / "include").exists():
        assert done.returncode == 1 and "Install the package with pip" in done.stderr
        return
    folder = pathlib.Path(done.stdout.strip())
    assert done.returncode == 0 and folder.is_relative_to(package)
    if option == "--include-dir":
        assert (folder / "adamant" / "optimizer.hpp").exists()
        return
    assert (folder / "adamant-config.cmake").exists()
    if shutil.which("cmake") is None or shutil.which("c++") is None:
        pytest.skip("CMake or a compiler is not installed")
    (tmp_path / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(consumer CXX)\n"
                                             "find_package(adamant REQUIRED)\nadd_executable(hello hello.cpp)\n"
                                             "target_link_libraries(hello adamant::adamant)\n")
    (tmp_path / "hello.cpp").write_text("#include <adamant/reference.hpp>\nint main() { return 0; }\n")
    for command in (["cmake", "-S", ".", "-B", "build", f"-Dadamant_DIR={folder}"], ["cmake", "--build", "build"],
                    ["build/hello"]):
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.parametrize("how", ["written", "loaded"])
def test_moments_without_a_step_are_refused_by_name(how):
    p = torch.nn.Parameter(torch.ones(5))
    p.grad = torch.ones(5)
    optimizer = AdamW([("weight", p)])
    optimizer.step()
    state = optimizer.state_dict()
    before = [tensor.clone() for tensor in (p, optimizer.state[p]["exp_avg"], optimizer.state[p]["exp_avg_sq"])]
    with pytest.raises(adamant.InvalidArgument, match="weight.*: it has moments, but no step"):
        if how == "written":
            del optimizer.state[p]["step"]
            optimizer.step()
        else:
            damaged = copy.deepcopy(state)
            del damaged["state"][0]["step"]
            optimizer.load_state_dict(damaged)
    after = [p, optimizer.state[p]["exp_avg"], optimizer.state[p]["exp_avg_sq"]]
    assert all(map(torch.equal, before, after))
    assert how == "written" or optimizer.state[p]["step"] == 1


def test_documentation_site_shows_a_docstring_for_every_name():
    # The site reads sources, so a docstring that is computed is not shown.
    import ast
    import importlib
    import inspect
    import re
    page = pathlib.Path(__file__).resolve().parents[2] / "docs" / "python.md"
    names = re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    assert {f"adamant.torch.{name}" for name in adamant.torch.__all__} <= set(names)
    from adamant.integrations import prime_rl
    assert {f"adamant.integrations.prime_rl.{name}" for name in prime_rl.__all__} <= set(names)
    for name in names:
        module, _, attribute = name.rpartition(".")
        documented = importlib.import_module(name) if name == "adamant.deepspeed" else getattr(
            importlib.import_module(module), attribute)
        parsed = ast.parse(inspect.getsource(documented))
        node = parsed if inspect.ismodule(documented) else parsed.body[0]
        assert ast.get_docstring(node), name


def test_newest_optimizer_of_a_param_accumulates_its_gradients():
    # An older optimizer that finds a param of a newer one in an edited group must not take over its hooks.
    left, shared = (torch.nn.Parameter(torch.zeros(3)) for _ in range(2))
    older = AdamW([left], lr=0.5, accumulate=2)
    older.param_groups[0]["params"] = [shared]
    newer = AdamW([shared], lr=0.5, accumulate=2)
    for gradient in (2.0, -1.0):
        (gradient * (left + shared)).sum().backward()
    newer.step()
    assert shared.tolist() == [-0.5] * 3
    assert not older.state


def test_optimizer_accumulates_again_when_a_newer_one_is_gone():
    param = torch.nn.Parameter(torch.zeros(3))
    optimizer = AdamW([param], lr=0.5, accumulate=2)
    newer = AdamW([param], lr=0.5)
    del newer
    gc.collect()
    for gradient in (2.0, -1.0):
        (gradient * param).sum().backward()
    assert param.grad.tolist() == [-1.0] * 3  # the last gradient; the first is in the accumulator
    optimizer.step()
    assert param.tolist() == [-0.5] * 3


def test_writes_are_recorded_one_by_one_in_torch_2_4(monkeypatch):
    increment = torch.autograd.graph.increment_version

    def for_one_tensor(tensor):
        assert isinstance(tensor, torch.Tensor)
        increment(tensor)
    monkeypatch.setattr(_host_copies, "_versions_take_lists", False)
    monkeypatch.setattr(torch.autograd.graph, "increment_version", for_one_tensor)
    for options in ({}, {"overlap": True}, {"zenflow": {"topk_ratio": 0.5}}):
        params = [torch.nn.Parameter(torch.ones(4, 4)) for _ in range(2)]
        optimizer = AdamW(params, **options)
        before = [param._version for param in params]
        sum(param.sum() for param in params).backward()
        optimizer.step()
        if "zenflow" in options:
            optimizer.flush()
        assert all(param._version > version for param, version in zip(params, before)), options
