# SPDX-License-Identifier: Apache-2.0
"""adamant.integrations.prime_rl: the functions against torch, and the class over a double of prime-rl's class."""
import random
import types

import pytest

torch = pytest.importorskip("torch")

import adamant  # noqa: E402
from adamant.integrations import prime_rl  # noqa: E402
from adamant.integrations.prime_rl_clipping import clipping  # noqa: E402

from optimizer_modes import alive, storage_refs  # noqa: E402

hyper = {"lr": 3e-4, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "eps": 1e-8}


def same_bits(left, right):
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return all(a.dtype == b.dtype and torch.equal(*(each.detach().view(words[a.element_size()]) for each in (a, b)))
               for a, b in zip(left, right))


def tensors(shapes=((17,), (33, 65), (257, 129), ()), kinds=(torch.bfloat16,), seed=0):
    torch.manual_seed(seed)
    params = [torch.randn(shape) for shape in shapes]
    return {"params": params, "grads": [torch.randn(p.shape).to(kinds[i % len(kinds)]) for i, p in enumerate(params)],
            "exp_avgs": [torch.zeros_like(p) for p in params], "exp_avg_sqs": [torch.zeros_like(p) for p in params],
            "state_steps": [torch.zeros(()) for _ in params]}


@pytest.mark.parametrize("scale", [1.0, 1 / 7, 3.0])
@pytest.mark.parametrize("output", [None, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_adamw_step_is_torchs_and_writes_the_rounded_weights(kind, output, scale):
    ours = tensors(kinds=(kind,))
    theirs = [torch.nn.Parameter(p.clone()) for p in ours["params"]]
    optimizer = torch.optim.AdamW(theirs, lr=hyper["lr"], betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    outputs = None if output is None else [torch.full_like(p, 7.0, dtype=output) for p in ours["params"]]
    for number in range(1, 6):
        ours["grads"] = [torch.randn(p.shape).to(kind) for p in ours["params"]]
        kept = [grad.clone() for grad in ours["grads"]]
        prime_rl.adamw_step(*ours.values(), outputs, **hyper, gradient_scale=scale)
        for p, grad in zip(theirs, kept):
            p.grad = grad.float() * scale
        optimizer.step()
        assert same_bits(kept, ours["grads"]) and all(step.item() == number for step in ours["state_steps"])
        for p, out in zip(ours["params"], outputs or ours["params"]):
            assert torch.equal(out, p.to(out.dtype))
    for p, q, exp_avg, exp_avg_sq in zip(ours["params"], theirs, ours["exp_avgs"], ours["exp_avg_sqs"]):
        state = optimizer.state[q]
        assert torch.allclose(p, q, rtol=1e-6, atol=1e-7)
        assert torch.allclose(exp_avg, state["exp_avg"], rtol=1e-6, atol=1e-6)
        assert torch.allclose(exp_avg_sq, state["exp_avg_sq"], rtol=1e-6, atol=1e-8)


def test_sums_of_bfloat16_gradients_are_torchs():
    torch.manual_seed(1)
    destinations = [torch.randn(1025), torch.randn(3, 5)]
    sources = [torch.randn(1025).bfloat16(), torch.randn(15).bfloat16()]
    expected = [destinations[0] + sources[0].float(), sources[1].float().view(3, 5)]
    prime_rl.copy_or_add_bfloat16_multi_(destinations, sources, [True, False])
    assert same_bits(destinations, expected)
    prime_rl.add_bfloat16_(destinations[0], sources[0])
    prime_rl.copy_bfloat16_(destinations[1], sources[1])
    assert same_bits(destinations, [expected[0] + sources[0].float(), expected[1]])


def refused(change):
    arguments, values = tensors(), {**hyper, "gradient_scale": 1.0, "compute_params": None}
    change(arguments, values)
    return arguments, values


@pytest.mark.parametrize("change, message", [
    (lambda a, v: a["grads"].pop(), "grads has 3 entries"),
    (lambda a, v: v.update(compute_params=[torch.empty(17)]), "compute_params has 1 entries"),
    (lambda a, v: v.update(gradient_scale=float("nan")), "gradient_scale is nan"),
    (lambda a, v: v.update(gradient_scale=0.0), "gradient_scale is 0.0"),
    (lambda a, v: v.update(lr=float("nan")), "lr"),
    (lambda a, v: a["params"].__setitem__(2, a["params"][2].double()), r"params\[2\] is torch.float64"),
    (lambda a, v: a["params"].__setitem__(2, a["params"][2].bfloat16()), r"params\[2\] is torch.bfloat16"),
    (lambda a, v: a["exp_avgs"].__setitem__(1, torch.zeros(65, 33).t()), r"exp_avgs\[1\].*contiguous"),
    (lambda a, v: a["exp_avg_sqs"].__setitem__(3, torch.zeros(2)), r"params\[3\] with exp_avg_sqs\[3\]: they have 1 and 2 elements"),
    (lambda a, v: a["state_steps"].__setitem__(3, torch.tensor(0.5)), r"params\[3\]: step is"),
    (lambda a, v: v.update(compute_params=[torch.empty(p.numel() - (p.dim() == 0)) for p in a["params"]]),
     r"params\[3\] with weight_outs\[3\]: they have 1 and 0 elements"),
    (lambda a, v: a["grads"].__setitem__(2, a["params"][2]), "item 2 of the list: param and grad overlap"),
    (lambda a, v: a["params"].__setitem__(2, a["params"][1]), "params"),
])
def test_a_refused_step_changes_nothing(change, message):
    arguments, values = refused(change)
    before = [[tensor.clone() for tensor in part] for part in arguments.values()]
    with pytest.raises(adamant.InvalidArgument, match=message):
        prime_rl.adamw_step(*arguments.values(), **values)
    assert all(same_bits(part, kept) for part, kept in zip(arguments.values(), before))


def test_what_is_missing_is_named():
    with pytest.raises(adamant.Unavailable, match="sign_sgd_step.*no SignSGD"):
        prime_rl.sign_sgd_step([], [], lr=1.0, weight_decay=0.0)
    assert "sign_sgd_step" not in prime_rl.__all__
    for pair, message in (((torch.ones(3), torch.ones(3)), "sources.0. is torch.float32"),
                          ((torch.ones(3).bfloat16(), torch.ones(3).bfloat16()), "destinations.0. is torch.bfloat16"),
                          ((torch.ones(3), torch.ones(4).bfloat16()), "sources.0. has 4 elements")):
        with pytest.raises(adamant.InvalidArgument, match=message):
            prime_rl.add_bfloat16_(*pair)


# Clipping with overlap

class Manager:
    """What the class needs of prime-rl's GradientOffloadManager."""

    optimizer_overlapped, gradient_scale, _dp_replicate = True, 1.0, 1

    def wait_for_optimizer(self):
        pass

    def clip_grad_norm_(self, max_norm):
        return f"clipped to {max_norm} after backward"


class Base:
    """What the class needs of prime-rl's FullCPUOffloadOptimizer."""

    _native_cpu_adamw = True

    def __init__(self, optimizer, chunks, groups):
        self.optimizer, self._chunks, self._chunk_groups, self._gradient_manager = optimizer, chunks, groups, Manager()
        self._master_weights = {0: types.SimpleNamespace(model_param=torch.empty(1))}
        self.outputs = [[torch.empty_like(p, dtype=torch.bfloat16) for p in chunk] for chunk in chunks]

    def finish_checkpoint_load(self):
        for chunk, outputs in zip(self._chunks, self.outputs):
            for param, output in zip(chunk, outputs):
                output.copy_(param.detach())

    def step(self, closure=None):
        pass


def offload(shapes, cuts, seed=0, kinds=1):
    torch.manual_seed(seed)
    params = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    groups = [{"params": params[i::kinds], "weight_decay": 0.1 * i} for i in range(kinds)]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
    for p in params:
        optimizer.state[p] = {"step": torch.zeros(()), "exp_avg": torch.zeros_like(p),
                              "exp_avg_sq": torch.zeros_like(p)}
    chunks = [params[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(params)])]
    chunk_groups = [[(group, own) for group in optimizer.param_groups
                     for own in [[p for p in group["params"] if any(p is q for q in chunk)]] if own]
                    for chunk in chunks]
    return params, clipping(Base)(optimizer, chunks, chunk_groups)


def everything(params, wrapped):
    return [*params, *[wrapped.optimizer.state[p][key] for p in params for key in ("step", "exp_avg", "exp_avg_sq")],
            *[output for outputs in wrapped.outputs for output in outputs]]


def run_step(params, wrapped, grads, scale, max_norm=None):
    """One step as prime-rl's loop runs it: with clipping during backward, or without overlap and clipping."""
    manager = wrapped._gradient_manager
    manager.optimizer_overlapped, manager.gradient_scale = max_norm is not None, scale
    by_param = {id(param): grad for param, grad in zip(params, grads)}
    for number, chunk in enumerate(wrapped._chunks):
        wrapped._step_native_cpu_adamw_chunk(number, [by_param[id(param)] for param in chunk], wrapped.outputs[number])
    norm = None if max_norm is None else manager.clip_grad_norm_(max_norm)
    wrapped.step()
    return norm


@pytest.mark.parametrize("seed", range(12))
def test_a_step_that_clips_has_the_bits_of_one_that_waited_for_the_norm(seed, monkeypatch):
    rng = random.Random(seed)
    shapes = [tuple(rng.randrange(1, 150) for _ in range(rng.randrange(1, 3))) for _ in range(rng.randrange(2, 7))]
    cuts, kinds = sorted(rng.sample(range(1, len(shapes)), rng.randrange(len(shapes)))), rng.randrange(1, 3)
    (params, wrapped), (others, plain) = [offload(shapes, cuts, seed, kinds) for _ in range(2)]
    step, scales = prime_rl.adamw_step, []

    def recorded(*arguments, **more):
        scales.append(more["gradient_scale"])
        step(*arguments, **more)
    for number in range(8):
        generator = torch.Generator().manual_seed(100 * seed + number)
        grads = [torch.randn(shape, generator=generator) for shape in shapes]
        scale, factor = rng.choice([1.0, 0.25, 3.0, 1 / 3, 1 / 4097]), rng.choice([0.1, 0.5, 0.999, 1.001, 10.0])
        exact = torch.cat([grad.double().flatten() for grad in grads]).norm().item() * scale
        for each in (wrapped, plain):
            each.optimizer.param_groups[0]["lr"] = 1e-2 / (1 + number)
        scales.clear()
        monkeypatch.setattr(prime_rl, "adamw_step", recorded)
        norm = run_step(params, wrapped, grads, scale, exact * factor)
        monkeypatch.setattr(prime_rl, "adamw_step", step)
        assert abs(norm.item() - exact) <= 1e-6 * exact and bool(scales) == (factor < 1)
        if factor < 1:
            assert len(set(scales)) == 1 and abs(scales[0] - scale * factor * exact / (exact + 1e-6)) <= 1e-7 * scale
        run_step(others, plain, grads, scales[0] if scales else scale)
        assert same_bits(everything(params, wrapped), everything(others, plain))
    assert all(wrapped.optimizer.state[param]["step"].item() == 8 for param in params)


@pytest.mark.parametrize("max_norm", [0.5, 1e9])
def test_gradients_are_freed_after_a_step(max_norm):
    params, wrapped = offload([(64, 8), (9,)], [1])
    for _ in range(2):
        grads = [torch.randn(p.shape) for p in params]
        known = storage_refs(grads)
        run_step(params, wrapped, grads, 1.0, max_norm)
        del grads
        assert alive(known) == 0


def test_a_norm_that_is_not_finite_leaves_everything_as_before_the_step():
    params, wrapped = offload([(64, 8), (9,)], [1])
    grads = [torch.randn(p.shape) for p in params]
    run_step(params, wrapped, grads, 1.0, 1.0)
    before = [tensor.clone() for tensor in everything(params, wrapped)]
    grads[1][3] = float("nan")
    with pytest.raises(adamant.InvalidArgument, match="their norm is nan"):
        run_step(params, wrapped, grads, 1.0, 1.0)
    assert same_bits(before, everything(params, wrapped))
    grads[1][3] = 1.0
    assert run_step(params, wrapped, grads, 1.0, 1.0).item() > 1


def test_params_without_gradients_stay_and_unequal_counts_are_refused():
    params, wrapped = offload([(64, 8), (9,), (3,)], [2])
    grads = [torch.randn(64, 8), None, None]
    before = [tensor.clone() for tensor in params[1:]]
    run_step(params, wrapped, grads, 1.0, 0.5)
    assert same_bits(before, params[1:]) and wrapped.optimizer.state[params[1]]["step"].item() == 0
    grads[1] = torch.randn(9)
    with pytest.raises(adamant.InvalidArgument, match=r"cannot step chunk 0: its params have taken \[0, 1\] steps"):
        run_step(params, wrapped, grads, 1.0, 0.5)


def test_other_settings_are_prime_rls_or_refused():
    params, wrapped = offload([(4,)], [])
    wrapped._gradient_manager.optimizer_overlapped = False
    assert wrapped._gradient_manager.clip_grad_norm_(2.0) == "clipped to 2.0 after backward"
    with pytest.raises(adamant.InvalidArgument, match="cpu_optimizer_backend"):
        clipping(type("Fused", (Base,), {"_native_cpu_adamw": False}))(wrapped.optimizer, [], [])
