# SPDX-License-Identifier: Apache-2.0
"""adamant.torch with zenflow, compared with a reference by columns, and with other modes to the bit."""
import copy
import gc
import math
import os
import pickle
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import adamant  # noqa: E402
from adamant.torch import Adam, AdamW, ZenFlow, dequantized, joined_master, quantized, split_master  # noqa: E402

import ranks  # noqa: E402
from optimizer_modes import position_of  # noqa: E402
from processes import words  # noqa: E402

f32, bf16, f16 = torch.float32, torch.bfloat16, torch.float16
shapes = [(64, 20), (20,), (128, 3, 10), (), (64, 7), (0, 3)]
formats = [(f32, {}), (f32, {"state_format": "bfloat16"}), (f32, {"state_format": "quantized8"}), (bf16, {}),
           (bf16, {"state_format": "float32"}), (bf16, {"master": True}), (f16, {}), (f16, {"master": True}),
           (bf16, {"master": True, "state_format": "quantized8"}), (bf16, {"state_format": "split_float32"}),
           (bf16, {"state_format": "split_float32+bfloat16"}), (bf16, {"state_format": "split_float32+quantized8"})]
each_format = pytest.mark.parametrize("kind,options", formats, ids=lambda it: str(it).replace("torch.", ""))


def params_of(kind=f32, seed=0, sizes=shapes):
    made = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(size, generator=made).to(kind)) for size in sizes]


def draw(params, t, scale=1.0):
    """Sets gradients whose important columns change over time."""
    made = torch.Generator().manual_seed(1000 + t)
    for p in params:
        grad = torch.randn(p.shape, generator=made) * scale
        if p.dim() > 1:
            grad = grad * torch.exp(torch.randn(p.shape[-1], generator=torch.Generator().manual_seed(t // 5)))
        p.grad = grad.to(p.dtype)


def steps(params, optimizer, begin, end):
    for t in range(begin, end):
        draw(params, t)
        optimizer.step()


def raw(value):
    """The bits in logical order, for any memory layout."""
    return value.detach().contiguous().reshape(-1).view(torch.uint8)


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(raw(a), raw(b))


def bits(params, optimizer):
    saved = optimizer.state_dict()
    made = [raw(p).clone() for p in params]
    for number in sorted(saved["state"]):
        made += [raw(value).clone() for _, value in sorted(saved["state"][number].items())]
    return made


def same(a, b):
    return len(a) == len(b) and all(map(torch.equal, a, b))


# Comparison with a reference by columns

class Column:
    def __init__(self, weight):
        self.master, self.weight = weight.clone(), weight.clone()
        self.exp_avg, self.exp_avg_sq, self.count = torch.zeros_like(weight), torch.zeros_like(weight), 0
        self.sum, self.summed, self.behind = None, 0, False

    def update(self, grad, h):
        self.count += 1
        self.exp_avg = h["betas"][0] * self.exp_avg + (1 - h["betas"][0]) * grad
        self.exp_avg_sq = h["betas"][1] * self.exp_avg_sq + (1 - h["betas"][1]) * grad * grad
        sizes = self.exp_avg / (1 - h["betas"][0] ** self.count)
        self.master = (self.master * (1 - h["lr"] * h["weight_decay"]) -
                       h["lr"] * sizes / ((self.exp_avg_sq / (1 - h["betas"][1] ** self.count)).sqrt() + h["eps"]))


class ByColumns:
    """Reference of ZenFlow's step in float64, by columns. A vector is one column that is always selected."""

    def __init__(self, params, options, max_norm=None, **hyper):
        self.options, self.max_norm = options, max_norm
        self.hyper = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2, **hyper}
        self.shapes = [p.shape for p in params]
        self.columns = [[Column(c) for c in self.cut(p.detach())] for p in params]
        self.is_vector = [p.dim() < 2 for p in params]
        self.chosen = [set(range(len(c))) if vector else set() for c, vector in zip(self.columns, self.is_vector)]
        self.steps = self.in_window = 0
        self.selected_at, self.done = None, 0.0

    @staticmethod
    def cut(values):
        values = values.double()
        return [values.reshape(-1)] if values.dim() < 2 else list(values.reshape(-1, values.shape[-1]).t())

    def param(self, i):
        columns = torch.stack([column.weight for column in self.columns[i]])
        return (columns.view(self.shapes[i]) if self.is_vector[i] else columns.t().reshape(self.shapes[i]))

    def select(self, grads):
        z = self.options
        scores = [[float((g.abs() if z.score == "magnitude" else g * g).sum()) for g in of] if of else None for of in grads]
        self.selected_at = self.steps
        matrices = [i for i in range(len(grads)) if not self.is_vector[i]]
        if z.scope == "all_params":
            elements = sum(self.shapes[i].numel() for i in matrices)
            left = math.floor(elements * z.topk_ratio + 0.5)
            self.chosen = [of if vector else set() for of, vector in zip(self.chosen, self.is_vector)]
            rows = {i: len(self.columns[i][0].weight) for i in matrices}
            for i, c in sorted(((i, c) for i in matrices for c in range(len(self.columns[i]))),
                               key=lambda at: (-scores[at[0]][at[1]] / rows[at[0]], at)):
                if rows[i] > left:
                    break
                self.chosen[i].add(c)
                left -= rows[i]
        else:
            for i in matrices:
                n = len(self.columns[i])
                most = max(1, math.floor(n * z.topk_ratio + 0.5)) if z.topk_ratio > 0 else 0
                of = scores[i] or [0.0] * n
                self.chosen[i] = set(sorted(range(n), key=lambda c: (-of[c], c))[:most])
        for of, chosen in zip(self.columns, self.chosen):
            for c in chosen:
                of[c].behind, of[c].weight = False, of[c].master

    def step(self, params):
        grads = [None if p.grad is None else self.cut(p.grad) for p in params]
        norm = math.sqrt(sum(float((g * g).sum()) for of in grads if of for g in of))
        if self.max_norm is not None and norm > self.max_norm:
            grads = [of and [g * self.max_norm / (norm + 1e-6) for g in of] for of in grads]
        z = self.options
        self.steps += 1
        if self.steps <= z.full_warm_up_rounds:
            for of, given in zip(self.columns, grads):
                for column, g in zip(of, given or ()):
                    column.update(g, self.hyper)
                    column.weight = column.master
            return norm
        if self.in_window == 0 and (self.selected_at is None or self.steps - self.selected_at >= z.select_interval):
            self.select(grads)
        self.in_window += 1
        for i, (of, given) in enumerate(zip(self.columns, grads)):
            for c, g in enumerate(given or ()):
                column = of[c]
                if c in self.chosen[i]:
                    column.update(g, self.hyper)
                    column.weight = column.master
                    self.done += 0 if self.is_vector[i] else float((g * g).sum())
                else:
                    column.sum = g if column.sum is None else column.sum + g
                    column.summed += 1
        deferred = [column for i, of in enumerate(self.columns) for c, column in enumerate(of)
                   if c not in self.chosen[i] and column.summed]
        if z.update_interval == "auto":
            squares = sum(float((column.sum * column.sum).sum()) for column in deferred)
            ends = self.in_window >= z.max_deferred or squares > 0 and squares >= z.auto_ratio * self.done
        else:
            ends = self.in_window >= z.update_interval
        if ends:
            self.in_window, self.done = 0, 0.0
            for of in self.columns:
                for column in of:
                    if column.behind:
                        column.behind, column.weight = False, column.master
            for column in deferred:
                column.update(column.sum / column.summed, self.hyper)
                column.sum, column.summed, column.behind = None, 0, z.overlap
                column.weight = column.weight if z.overlap else column.master
        return norm


matrices = [(6, 20), (5,), (4, 3, 10), (), (8, 7)]
cases = [{}, {"overlap": False}, {"topk_ratio": 0.0}, {"topk_ratio": 0.5, "overlap": False}, {"topk_ratio": 1.0},
         {"score": "square"}, {"scope": "all_params"}, {"scope": "all_params", "score": "square", "topk_ratio": 0.4},
         {"full_warm_up_rounds": 3}, {"full_warm_up_rounds": 2, "overlap": False}, {"update_interval": 1},
         {"update_interval": 5, "select_interval": 1}, {"update_interval": "auto"},
         {"update_interval": "auto", "auto_ratio": 0.2, "overlap": False}, {"update_interval": "auto", "max_deferred": 3,
                                                                            "auto_ratio": 50.0}]


@pytest.mark.parametrize("max_norm", [None, 2.0])
@pytest.mark.parametrize("options", cases, ids=str)
def test_steps_equal_a_reference_by_columns(options, max_norm):
    z = ZenFlow(**{"topk_ratio": 0.2, "select_interval": 4, "update_interval": 3, **options})
    params = params_of(sizes=matrices)
    hyper = {"lr": 0.02, "weight_decay": 0.1, "betas": (0.8, 0.95)}
    reference = ByColumns(params, z, max_norm, **hyper)
    optimizer = AdamW(params, max_norm=max_norm, zenflow=z, **hyper)
    for t in range(25):
        draw(params, t)
        for i, p in enumerate(params):
            if t % 11 == 5 + i and z.scope == "each_param":
                p.grad = None
        reference.hyper["lr"] = optimizer.param_groups[0]["lr"] = 0.02 / (1 + t % 3)
        reference.hyper["weight_decay"] = optimizer.param_groups[0]["weight_decay"] = 0.1 * (t % 2)
        expected, norm = reference.step(params), optimizer.step()
        if max_norm is not None:
            assert float(norm) == pytest.approx(expected, rel=1e-6)
        for i, p in enumerate(params):
            assert torch.allclose(p.detach().double(), reference.param(i), atol=2e-6, rtol=2e-6), (t, i)
        state = optimizer.state_dict()["state"]
        for i, of in enumerate(reference.columns):
            assert state[i]["updates"].tolist() == [column.count for column in of], (t, i)
            if params[i].dim() > 1:
                assert set(state[i]["selected"].nonzero().flatten().tolist()) == reference.chosen[i], (t, i)
                assert state[i]["publishing"].tolist() == [column.behind for column in of], (t, i)
    optimizer.flush()
    for i, p in enumerate(params):
        expected = torch.stack([column.master for column in reference.columns[i]])
        expected = expected.view(p.shape) if p.dim() < 2 else expected.t().reshape(p.shape)
        assert torch.allclose(p.detach().double(), expected, atol=2e-6, rtol=2e-6), i


def test_adam_maximizes_and_groups_have_separate_options():
    params, others = params_of(sizes=matrices), params_of(sizes=matrices)

    def groups(of):
        return [{"params": of[:2], "lr": 0.01, "maximize": True}, {"params": of[2:], "weight_decay": 0.3, "betas": (0.5, 0.9)}]
    first = Adam(groups(params), lr=0.02, zenflow=ZenFlow(topk_ratio=1.0))
    second = torch.optim.Adam(groups(others), lr=0.02)
    for t in range(8):
        draw(params, t)
        draw(others, t)
        first.step()
        second.step()
    for p, q in zip(params, others):
        assert torch.allclose(p, q, atol=1e-5)


# Bits of the plain step

plain = pytest.mark.parametrize("zenflow", [{"topk_ratio": 1.0}, {"update_interval": 1, "overlap": False}], ids=str)


@plain
@pytest.mark.parametrize("more", [{}, {"max_norm": 0.5}, {"on_nonfinite": "skip"}, {"on_nonfinite": "zero", "max_norm": 9.0},
                                  {"maximize": True, "eps": 1e-3}], ids=str)
def test_without_deferral_bits_equal_the_plain_step(zenflow, more):
    params, others = params_of(), params_of()
    first, second = AdamW(params, lr=0.01, zenflow=zenflow, **more), AdamW(others, lr=0.01, **more)
    for t in range(12):
        for of, optimizer in ((params, first), (others, second)):
            draw(of, t)
            if t % 4 == 3:
                of[1].grad = None
                of[0].grad[3, 5] = float("inf") if "on_nonfinite" in more else 0.0
            optimizer.step()
        a, b = first.last_report, second.last_report
        for name in ("outcome", "nonfinite_grads", "clip_coefficient", "global_norm"):
            x, y = getattr(a, name), getattr(b, name)
            assert x == y or math.isnan(x) and math.isnan(y), name
        assert all(map(same_bits, params, others)), t
    state = first.state_dict()["state"]
    for i, (p, q) in enumerate(zip(params, others)):
        for name in ("exp_avg", "exp_avg_sq"):
            assert same_bits(state[i][name], second.state[q][name])
        assert set(state[i]["updates"].tolist()) == {int(second.state[q]["step"])}
        if p.dim() > 1 and p.numel():
            assert same_bits(state[i]["by_columns"], p)


@plain
@each_format
def test_without_deferral_bits_equal_the_plain_step_over_the_same_arrays(kind, options, zenflow):
    """The plain optimizer's params are in column order in memory."""
    params = params_of(kind)
    transposed = [torch.nn.Parameter(p.detach().movedim(-1, 0).contiguous() if p.dim() > 1 else p.detach().clone()) for p in params]
    first, second = AdamW(params, lr=0.01, zenflow=zenflow, **options), AdamW(transposed, lr=0.01, **options)
    for t in range(10):
        draw(params, t)
        for p, q in zip(params, transposed):
            q.grad = p.grad.movedim(-1, 0).contiguous() if p.dim() > 1 else p.grad
        first.step()
        second.step()
    state = first.state_dict()["state"]
    for i, (p, q) in enumerate(zip(params, transposed)):
        assert same_bits(p, q.movedim(0, -1) if p.dim() > 1 else q), i
        for name, value in state[i].items():
            if name not in second.state[q] or name == "step":
                continue
            theirs = second.state[q][name]
            if p.dim() > 1 and value.dtype != torch.uint8:
                assert value.movedim(-1, 0).is_contiguous()
                theirs = theirs.movedim(0, -1)
            assert same_bits(value, theirs), (i, name)
        if p.dim() > 1 and p.numel() and "quantized8" in options.get("state_format", ""):
            for name, value in dequantized(state[i], p).items():
                if name.startswith("exp_avg"):
                    assert same_bits(value, dequantized(second.state[q], q)[name].movedim(0, -1))
            again = quantized(dequantized(state[i], p))
            assert all(again[name].shape == state[i][name].shape for name in ("exp_avg", "exp_avg_sq"))
            assert torch.allclose(dequantized(again, p)["exp_avg"], dequantized(state[i], p)["exp_avg"], rtol=0.02, atol=1e-6)


# The same bits

window = {"topk_ratio": 0.25, "select_interval": 4, "update_interval": 3}


@each_format
def test_saving_and_loading_after_each_step_changes_no_bit(kind, options):
    params, others = params_of(kind), params_of(kind)
    make = dict(lr=0.01, max_norm=1.0, zenflow=window, **options)
    first, second = AdamW(params, **make), AdamW(others, **make)
    for t in range(14):
        for of, optimizer in ((params, first), (others, second)):
            draw(of, t)
            if t % 5 == 4:
                of[0].grad = None
            optimizer.step()
        model = pickle.loads(pickle.dumps([p.detach() for p in others]))
        saved = pickle.loads(pickle.dumps(second.state_dict()))
        assert saved["state"][0]["exp_avg"].data_ptr() != second.state[others[0]]["exp_avg"].data_ptr()
        others = params_of(kind, seed=t)
        second = AdamW(others, **{**make, "lr": 1.0})
        if t % 2:
            second.load_state_dict(saved)
        with torch.no_grad():
            for p, q in zip(others, model):
                p.copy_(q)
        if not t % 2:
            second.load_state_dict(saved)
        assert second.param_groups[0]["lr"] == 0.01
        assert same(bits(params, first), bits(others, second)), t
        again = second.state_dict()["state"]
        assert all(set(again[i]) == set(saved["state"][i]) for i in again)
        assert "sums" in again[2] and "by_columns" not in again[1]
    assert saved["state"][1]["updates"].tolist() == [14] and len(saved["state"][2]["updates"].unique()) > 1


def test_state_dicts_are_snapshots():
    """Moments in a state_dict() are live, as in torch; counts, flags and sums are snapshots."""
    params = params_of()
    optimizer = AdamW(params, lr=0.01, zenflow=window)
    steps(params, optimizer, 0, 4)
    saved = optimizer.state_dict()["state"][0]
    names = ("step", "updates", "selected", "publishing", "sums", "summed")
    before = {name: saved[name].clone() for name in names}
    steps(params, optimizer, 4, 9)
    assert all(torch.equal(saved[name], before[name]) for name in names)
    assert saved["exp_avg"].data_ptr() == optimizer.state[params[0]]["exp_avg"].data_ptr()
    assert not set(names) & set(optimizer.state[params[0]])  # values of an earlier step are removed


def test_states_load_from_any_memory_layout():
    params = params_of()
    first = AdamW(params, lr=0.01, zenflow=window)
    steps(params, first, 0, 5)
    saved = copy.deepcopy(first.state_dict())
    for state in saved["state"].values():
        for name, value in state.items():
            state[name] = value.contiguous()
    others = [torch.nn.Parameter(p.detach().clone()) for p in params]
    second = AdamW(others, lr=0.01, zenflow=window)
    second.load_state_dict(saved)
    steps(params, first, 5, 10)
    steps(others, second, 5, 10)
    assert same(bits(params, first), bits(others, second))
    for p in others:
        for name in ("exp_avg", "exp_avg_sq", "by_columns"):
            assert p.dim() < 2 or not p.numel() or second.state[p][name].movedim(-1, 0).is_contiguous()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))], ids=["copy", "pickle"])
@pytest.mark.parametrize("count", [0, 4, 6])
def test_copies_and_pickles_continue_with_the_same_bits(copied, count):
    params = params_of(bf16)
    first = AdamW(params, lr=0.01, master=True, zenflow=window)
    steps(params, first, 0, count)
    others, second = copied((params, first))
    steps(params, first, count, count + 8)
    steps(others, second, count, count + 8)
    assert same(bits(params, first), bits(others, second))
    assert second._arguments == first._arguments and isinstance(second._arguments.zenflow, ZenFlow)


@pytest.mark.parametrize("update_interval", [3, "auto"])
@each_format
def test_same_bits_for_any_threads_and_queries_between_steps(kind, options, update_interval):
    ends = []
    for threads in (1, 2, 3):
        params = params_of(kind)
        optimizer = AdamW(params, lr=0.01, max_norm=1.0, zenflow={**window, "update_interval": update_interval}, **options)
        optimizer._executor = lambda threads=threads: adamant.Executor(threads=threads, bind="none")
        for t in range(13):
            draw(params, t)
            optimizer.step()
            if threads == 2 and t % 3 == 0:  # waits for background work
                optimizer.state_dict()
        ends.append(bits(params, optimizer))
    assert same(ends[0], ends[1]) and same(ends[0], ends[2])


@each_format
def test_offloaded_and_permuted_params_have_the_bits_of_host_params(kind, options):
    params, away = params_of(kind), params_of(kind)
    transposed = params_of(kind)
    for p in transposed:
        if p.dim() == 3:
            p.data = p.detach().permute(2, 0, 1).contiguous().permute(1, 2, 0)
    make = dict(lr=0.01, max_norm=1.0, zenflow=window, **options)
    runs = [(params, AdamW(params, **make)), (away, AdamW(away, offload=True, **make)), (transposed, AdamW(transposed, **make))]
    for t in range(12):
        for of, optimizer in runs:
            draw(of, t)
            optimizer.step()
        for of, _ in runs[1:]:
            assert all(map(same_bits, params, of)), t
    assert runs[2][0][2].stride() != params[2].stride()
    for of, optimizer in runs:
        optimizer.flush()
    assert all(same(bits(params, runs[0][1]), bits(of, optimizer)) for of, optimizer in runs[1:])


@pytest.mark.parametrize("seed", range(12))
def test_random_runs_have_the_same_bits_with_offload_and_from_states(seed):
    choose = random.Random(seed)
    sizes = [choose.choice([(64, 5), (9,), (128, 2, 3), (), (64, 70), (0, 2), (192, 1)]) for _ in range(choose.randint(1, 6))]
    kind, options = choose.choice(formats)
    options = {**options, "max_norm": choose.choice([None, 1.0, 1e6]), "on_nonfinite": choose.choice(["apply", "skip", "zero"]),
               "zenflow": ZenFlow(choose.choice([0.0, 0.1, 0.5, 1.0]), choose.choice([1, 3, 16]),
                                  choose.choice([1, 2, 4, "auto"]), choose.choice([0.1, 1.0]), choose.choice([3, 64]),
                                  choose.choice([0, 0, 2]), choose.choice(["magnitude", "square"]),
                                  choose.choice(["each_param", "all_params"]), choose.random() < 0.7)}
    ways = [{}, {"offload": True}, {"threads": 1}]
    runs = [params_of(kind, seed, sizes) for _ in ways]
    made = [AdamW(params, lr=0.01, **options, **way) for params, way in zip(runs, ways)]
    for t in range(14):
        skipped = {i for i in range(len(sizes)) if choose.random() < 0.1}
        chance, where = [choose.random() for _ in range(4)], choose.randrange(len(sizes))
        for params, optimizer in zip(runs, made):
            draw(params, t)
            for i in skipped:
                params[i].grad = None
            if chance[0] < 0.1 and params[where].grad is not None and params[where].numel() and params[where].dim():
                params[where].grad[0] = float("inf")
            if chance[1] < 0.15:
                optimizer.param_groups[0]["lr"] = 0.01 * chance[2]
            optimizer.step()
            if chance[3] < 0.3:
                optimizer.flush()
                if chance[3] < 0.15 and params[where].dim():
                    with torch.no_grad():
                        params[where][: len(params[where]) // 2] = 0.375
        if chance[1] < 0.7:
            saved = pickle.loads(pickle.dumps(made[2].state_dict()))
            made[2] = AdamW(runs[2], **options, **ways[2])
            made[2].load_state_dict(saved)
        ends = [bits(params, optimizer) for params, optimizer in zip(runs, made)] if chance[2] < 0.4 or t == 13 else []
        assert all(same(ends[0], end) for end in ends[1:]), (seed, t)


def test_reports():
    params = params_of(sizes=[(64, 20), (20,)])
    optimizer = AdamW(params, zenflow=window)
    seen = []
    for t in range(7):
        draw(params, t)
        assert optimizer.step() is None
        report = optimizer.last_report
        more = report.zenflow
        assert report.elements == 5 * 64 + 20 and not report.skipped
        seen.append((more.selected, more.deferred, more.window_ended, more.deferred_stepped))
    assert [bool(each[0]) for each in seen] == [True, False, False, False, False, False, True]
    assert {each[1] for each in seen} == {15 * 64} and [each[2] for each in seen] == [0, 0, 1, 0, 0, 1, 0]
    assert [each[3] for each in seen] == [0, 0, 15 * 64, 0, 0, 15 * 64, 0]
    other = AdamW(params)
    draw(params, 0)
    other.step()
    assert other.last_report.zenflow is None
    other.flush()
    other.take_weights()


def test_closures_and_steps_without_gradients():
    params = params_of(sizes=matrices)
    optimizer = AdamW(params, lr=0.01, max_norm=1.0, zenflow=window)
    assert float(optimizer.step()) == 0 and optimizer.last_report is None
    assert optimizer.step(lambda: (draw(params, 1), 7.0)[1]) == 7.0
    assert optimizer.last_report.step == 1
    optimizer.zero_grad()
    assert float(optimizer.step()) == 0
    assert position_of(optimizer)["steps"] == 1


def test_torch_hooks_run_and_autograd_detects_changed_params():
    param = torch.nn.Parameter(torch.ones(4, 3))
    optimizer = AdamW([param], zenflow=window)
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append("step"))
    loss = (param * param).sum()
    param.grad = torch.ones(4, 3)
    optimizer.step()
    assert seen == ["step"]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# Params that come, change and go

def test_params_with_late_gradients_and_new_groups():
    params, others = params_of(sizes=matrices), params_of(sizes=matrices)
    first, second = AdamW(params[:3], lr=0.01, zenflow=window), AdamW(others[:2], lr=0.01, zenflow=window)
    params[2].requires_grad_(False)
    for t in range(12):
        for of, optimizer in ((params, first), (others, second)):
            if t == 4:
                optimizer.add_param_group({"params": of[3:], "lr": 0.03})
            draw(of, t)
        params[2].requires_grad_(t >= 7)
        if t < 7:
            params[2].grad = None
        first.step()
        second.step()
        assert (params[2] in first.state) == (t >= 7)
        assert all(map(same_bits, params[:2] + params[3:], others[:2] + others[3:])), t
    state = first.state_dict()["state"]
    assert [state[i]["updates"].max().item() for i in (1, 3)] == [12, 8] and 0 < state[2]["updates"].max() <= 5


@pytest.mark.parametrize("what", ["param", "param elsewhere", "exp_avg", "by_columns", "gradients"])
def test_replaced_tensors_are_detected(what):
    runs = []
    for replaced in (False, True):
        params = params_of(bf16, sizes=matrices)
        optimizer = AdamW(params, lr=0.01, zenflow={**window, "overlap": what != "param"}, offload=what == "param elsewhere")
        for t in range(9):
            draw(params, t)
            for p in params:
                if what == "gradients" and replaced and t > 3:
                    p.grad_dtype = None
                    p.grad = p.grad.float()
            if t == 4:
                p = params[0]
                if what.startswith("param"):
                    if replaced:
                        p.data = p.data * 2
                    else:
                        with torch.no_grad():
                            p.mul_(2)
                elif what in ("exp_avg", "by_columns"):
                    optimizer.state_dict()
                    if replaced:
                        optimizer.state[p][what] = optimizer.state[p][what].contiguous() * (3 if what == "exp_avg" else 1)
                    elif what == "exp_avg":
                        optimizer.state[p][what].mul_(3)
            optimizer.step()
        runs.append(bits(params, optimizer))
    assert same(*runs)


def test_plain_states_load_with_zenflow_but_not_back():
    for kind, options in formats:
        if "quantized8" in options.get("state_format", ""):
            continue
        params = params_of(kind)
        first = AdamW(params, lr=0.01, **options)
        steps(params, first, 0, 3)
        draw(params, 3)
        params[0].grad = None
        first.step()
        saved = copy.deepcopy(first.state_dict())
        others = [torch.nn.Parameter(p.detach().clone()) for p in params]
        second = AdamW(others, lr=0.5, zenflow={"topk_ratio": 1.0, "full_warm_up_rounds": 2}, exp_avg_sq_rounding="nearest",
                       **options)
        second.load_state_dict(saved)
        first._arguments.exp_avg_sq_rounding = "nearest"  # stochastic rounding depends on the memory order
        first._forget()
        for t in range(4, 8):
            draw(params, t)
            draw(others, t)
            first.step()
            second.step()
            assert not second.last_report.zenflow.warm_up
        assert all(map(same_bits, params, others)), (kind, options)
        state = second.state_dict()
        assert position_of(second)["steps"] == 8
        assert [set(state["state"][i]["updates"].tolist()) for i in (0, 1)] == [{7}, {8}]
        with pytest.raises(adamant.InvalidArgument, match="of an optimizer with zenflow.*zenflow=ZenFlow.*topk_ratio=1"):
            first.load_state_dict(state)
        del state["state"][1]["window"]
        with pytest.raises(adamant.InvalidArgument, match="the state of group0.1: it has no window"):
            second.load_state_dict(state)


def test_states_of_torch_load_with_zenflow():
    params = params_of(sizes=matrices)
    theirs = torch.optim.AdamW(params, lr=0.01)
    steps(params, theirs, 0, 5)
    others = [torch.nn.Parameter(p.detach().clone()) for p in params]
    mine = AdamW(others, zenflow={"topk_ratio": 1.0})
    mine.load_state_dict(theirs.state_dict())
    steps(params, theirs, 5, 9)
    steps(others, mine, 5, 9)
    for p, q in zip(params, others):
        assert torch.allclose(p, q, atol=1e-5)


def test_selecting_all_columns_leads_out_of_zenflow():
    params = params_of(sizes=matrices)
    first = AdamW(params, lr=0.01, zenflow=window)
    steps(params, first, 0, 8)
    others = [torch.nn.Parameter(p.detach().clone()) for p in params]
    second = AdamW(others, zenflow={"topk_ratio": 1.0, "select_interval": 1})
    second.load_state_dict(first.state_dict())
    reports = []
    for t in range(8, 14):
        steps(others, second, t, t + 1)
        reports.append(second.last_report.zenflow.deferred)
    assert reports[-1] == 0 and reports[0] > 0


def test_split_and_float32_masters_convert_after_flush():
    params = params_of(bf16)
    first = AdamW(params, lr=0.01, master=True, zenflow=window)
    steps(params, first, 0, 4)
    for of, change in ((first.state_dict()["state"][0], split_master), (first.state[params[0]], split_master)):
        with pytest.raises(adamant.InvalidArgument, match="after flush()"):
            change(of, params[0])
    first.flush()
    others = [torch.nn.Parameter(p.detach().clone()) for p in params]
    saved = copy.deepcopy(first.state_dict())
    saved["state"] = {i: split_master(state, others[i]) for i, state in saved["state"].items()}
    second = AdamW(others, lr=0.01, zenflow=window, state_format="split_float32")
    second.load_state_dict(saved)
    for begin in (4, 7):
        steps(params, first, begin, begin + 3)
        steps(others, second, begin, begin + 3)
    first.flush()
    second.flush()
    whole, saved = first.state_dict()["state"], copy.deepcopy(second.state_dict())
    saved["state"] = {i: joined_master(state, others[i]) for i, state in saved["state"].items()}
    for i in whole:
        assert set(saved["state"][i]) == set(whole[i])
        assert same_bits(saved["state"][i]["master_param"], whole[i]["master_param"])
    third = AdamW(others, lr=0.01, zenflow=window, master=True)
    third.load_state_dict(saved)
    steps(params, first, 10, 14)
    steps(others, third, 10, 14)
    assert same(bits(params, first), bits(others, third))


# Weights that others write

def masters_of(state, p):
    """The masters as float32."""
    if "master_param" in state:
        return state["master_param"].clone()
    if "master_low" in state:
        upper = state["by_columns"] if "by_columns" in state else p.detach()
        return ((upper.view(torch.int16).to(torch.int32) << 16) + state["master_low"]).view(torch.float32)
    return (state["by_columns"] if "by_columns" in state else p.detach()).float()


@each_format
@pytest.mark.parametrize("offload", [False, True])
def test_weights_written_by_others_reach_the_masters(kind, options, offload):
    params = params_of(kind)
    optimizer = AdamW(params, lr=0.01, weight_decay=0, offload=offload, zenflow={**window, "overlap": False}, **options)
    steps(params, optimizer, 0, 4)
    before = [masters_of(optimizer.state_dict()["state"][i], p) for i, p in enumerate(params)]
    start = [p.detach().clone() for p in params]
    with torch.no_grad():
        for p in params:
            if p.numel():
                p.view(-1)[: (p.numel() + 1) // 2] = 0.375
    optimizer.param_groups[0]["lr"] = 0.0
    steps(params, optimizer, 4, 8)
    state = optimizer.state_dict()["state"]
    for i, p in enumerate(params):
        half = (p.numel() + 1) // 2
        assert p.detach().view(-1)[:half].eq(0.375).all(), i
        now, then = masters_of(state[i], p).reshape(-1), before[i].reshape(-1)
        assert torch.equal(now[half:], then[half:]), i
        changed = (p != start[i]).view(-1)
        assert changed[:half].sum() > half // 2 or half < 2
        if p.dim() > 1 or "master_low" not in state[i]:
            assert now[changed].eq(0.375).all() and torch.equal(now[~changed], then[~changed]), i


@each_format
def test_weights_written_before_publishing_are_refused(kind, options):
    def made():
        params = params_of(kind)
        optimizer = AdamW(params, lr=0.01, zenflow=window, **options)
        steps(params, optimizer, 0, 4)
        return params, optimizer
    params, optimizer = made()
    assert optimizer.state_dict()["state"][0]["publishing"].any()
    with torch.no_grad():
        params[0][0] = 0.375
    before = bits(params, optimizer)
    draw(params, 4)
    for call in (optimizer.step, optimizer.flush, optimizer.step):
        with pytest.raises(adamant.InvalidArgument, match="group0.0: they were written while .*publish.*take_weights"):
            call()
    assert same(bits(params, optimizer), before)
    # Take all weights as they are now.
    optimizer.take_weights()
    assert not optimizer.state_dict()["state"][0]["publishing"].any()
    optimizer.param_groups[0].update(lr=0.0, weight_decay=0.0)
    start = [p.detach().clone() for p in params]
    steps(params, optimizer, 4, 11)
    assert all(map(same_bits, params, start))
    # Or publish before the write.
    params, optimizer = made()
    optimizer.flush()
    with torch.no_grad():
        params[0][0] = 0.375
    steps(params, optimizer, 4, 5)
    # Or load a state.
    params, optimizer = made()
    saved, start = copy.deepcopy(optimizer.state_dict()), [p.detach().clone() for p in params]
    steps(params, optimizer, 4, 9)
    end = bits(params, optimizer)
    with torch.no_grad():
        for p, q in zip(params, start):
            p.copy_(q)
    optimizer.load_state_dict(saved)
    steps(params, optimizer, 4, 9)
    assert same(bits(params, optimizer), end)


def test_weights_written_with_offload_are_merged_with_deferred_updates():
    """With host copies the previous weights are known, so written elements stay and others are published."""
    runs = []
    for written in (False, True):
        params = params_of(bf16)
        optimizer = AdamW(params, lr=0.01, weight_decay=0, zenflow=window, offload=True, master=True)
        steps(params, optimizer, 0, 4)
        publishing = optimizer.state_dict()["state"][0]["publishing"]
        before = params[0].detach().clone()
        if written:
            with torch.no_grad():
                params[0][:10] = 0.375
        optimizer.param_groups[0]["lr"] = 0.0
        steps(params, optimizer, 4, 6)
        runs.append(params[0].detach().clone())
    assert publishing.sum() == 15 and not torch.equal(before[:, publishing], runs[0][:, publishing])
    assert runs[1][:10].eq(0.375).all() and torch.equal(runs[1][10:], runs[0][10:])


# Nonfinite values

def test_nonfinite_deferred_gradients():
    for policy, count in (("skip", 3), ("apply", 4), ("zero", 4)):
        params = params_of()
        optimizer = AdamW(params, on_nonfinite=policy, zenflow=window)
        steps(params, optimizer, 0, 2)
        before = bits(params, optimizer)
        draw(params, 2)
        params[0].grad[3] = float("nan")
        optimizer.step()
        assert optimizer.last_report.skipped == (policy == "skip") == same(before, bits(params, optimizer))
        steps(params, optimizer, 3, 4)
        optimizer.flush()
        assert position_of(optimizer)["steps"] == count
        assert params[0].isnan().any() == (policy == "apply")


def test_nan_masters_keep_their_bits_when_weights_are_written():
    params = params_of(bf16)
    optimizer = AdamW(params, lr=0.0, master=True, zenflow={**window, "overlap": False})
    steps(params, optimizer, 0, 3)
    optimizer.state_dict()
    master = optimizer.state[params[0]]["master_param"]
    with torch.no_grad():
        master[0] = torch.tensor([0x7FC01234], dtype=torch.int32).view(f32)
        params[0][:2] = float("nan")
    steps(params, optimizer, 3, 4)
    number = optimizer.state_dict()["state"][0]["master_param"].view(torch.int32)
    published = optimizer.state_dict()["state"][0]["selected"].logical_not()
    assert number[0, published].eq(0x7FC01234).all() and number[1, published].eq(0x7FC00000).all()


def test_a_grad_scaler_skips_and_unscales():
    params, others = params_of(sizes=matrices), params_of(sizes=matrices)
    first, second = AdamW(params, lr=0.01, zenflow=window), AdamW(others, lr=0.01, zenflow=window)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    for t in range(8):
        scaler.scale(torch.zeros(()))
        draw(params, t, scale=1024.0)
        if t == 3:
            params[0].grad[0, 0] = float("inf")
        scaler.step(first)
        scaler.update()
        if t == 3:
            scaler.update(1024.0)
            continue
        draw(others, t)
        second.step()
    assert all(map(same_bits, params, others))
    assert position_of(first) == position_of(second)


# Errors

def test_invalid_options_are_refused():
    param = torch.nn.Parameter(torch.ones(4, 3))
    for wrong, said in (({"topk_ratio": 1.5}, "topk_ratio is 1.5"), ({"topk_ratio": "x"}, "topk_ratio is 'x'"),
                        ({"auto_ratio": None}, "auto_ratio is None"), ({"overlap": "yes"}, "overlap is 'yes'"),
                        ({"select_interval": 2**64}, "select_interval is 18446744073709551616"),
                        ({"topk_ratio": float("nan")}, "topk_ratio is nan"),
                        ({"select_interval": 0}, "select_interval is 0"),
                        ({"update_interval": 0}, "update_interval is 0.*auto"),
                        ({"update_interval": "never"}, "'never'"), ({"update_interval": 2.0}, "update_interval is 2.0"),
                        ({"max_deferred": 0}, "max_deferred is 0"), ({"full_warm_up_rounds": -1}, "full_warm_up_rounds is -1"),
                        ({"auto_ratio": -0.1}, "auto_ratio is -0.1"), ({"score": "norm"}, "score is 'norm'.*magnitude, square"),
                        ({"scope": "model"}, "scope is 'model'"), ({"topk": 0.1}, "zenflow has topk, but may have topk_ratio"),
                        ("on", "zenflow is 'on'")):
        with pytest.raises(adamant.InvalidArgument, match=said):
            AdamW([param], zenflow=wrong)
    assert ZenFlow() == ZenFlow.parse({}) and ZenFlow.parse(None) is None and hash(ZenFlow()) == hash(ZenFlow(0.1))
    with pytest.raises(adamant.InvalidArgument, match="overlaps deferred updates"):
        AdamW([param], zenflow={}, overlap=True)
    with pytest.raises(adamant.InvalidArgument, match="accumulate"):
        AdamW([param], zenflow={}, accumulate=2)


def test_defaults_equal_those_of_the_library():
    ours, theirs = ZenFlow().to_c(), adamant._library.ZenFlowOptions.initialised()
    assert all(getattr(ours, name) == getattr(theirs, name) for name, _ in ours._fields_)


def test_invalid_params_and_gradients_are_refused():
    f = torch.nn.Parameter

    def stepped(p, grad, **options):
        p.grad = grad
        AdamW([p], zenflow=window, **options).step()
    with pytest.raises(adamant.InvalidArgument, match="float64"):
        stepped(f(torch.ones(3, 3, dtype=torch.float64)), torch.ones(3, 3, dtype=torch.float64))
    with pytest.raises(adamant.InvalidArgument, match="complex64"):
        stepped(f(torch.ones(3, 3, dtype=torch.complex64)), torch.ones(3, 3, dtype=torch.complex64))
    with pytest.raises(RuntimeError, match="sparse"):
        stepped(f(torch.ones(3, 3)), torch.ones(3, 3).to_sparse())
    with pytest.raises(adamant.InvalidArgument, match="amsgrad"):
        stepped(f(torch.ones(3, 3)), torch.ones(3, 3), amsgrad=True)
    with pytest.raises(adamant.InvalidArgument, match="for group0.0 with zenflow.*30 rows.*\"state_format\""):
        stepped(f(torch.ones(30, 3)), torch.ones(30, 3), state_format="quantized8")
    with pytest.raises(adamant.InvalidArgument, match="split master weights are for bfloat16"):
        stepped(f(torch.ones(64, 3).half()), torch.ones(64, 3).half(), state_format="split_float32")
    p, q = f(torch.ones(30, 3)), f(torch.ones(128, 3))
    p.grad, q.grad = torch.ones(30, 3), torch.ones(128, 3)
    optimizer = AdamW([{"params": [p], "state_format": "float32"}, {"params": [q]}], state_format="quantized8", zenflow=window)
    optimizer.step()
    assert optimizer.state[q]["exp_avg"].shape == (6, 68)


def test_a_failed_step_changes_nothing():
    params, others = params_of(sizes=matrices), params_of(sizes=matrices)
    first, second = AdamW(params, lr=0.01, zenflow=window), AdamW(others, lr=0.01, zenflow=window)
    steps(params, first, 0, 4)
    steps(others, second, 0, 4)
    draw(params, 4)
    first.param_groups[0]["betas"] = (1.5, 0.9)
    with pytest.raises(adamant.InvalidArgument, match="beta"):
        first.step()
    first.param_groups[0]["betas"] = (0.9, 0.999)
    late = torch.nn.Parameter(torch.ones(3, 3, dtype=torch.float64))
    late.grad = torch.ones(3, 3, dtype=torch.float64)
    with pytest.raises(adamant.InvalidArgument, match="float64"):
        first.add_param_group({"params": [late]})
    assert len(first.param_groups) == 1 and late not in first.state
    assert same(bits(params, first), bits(others, second))
    steps(params, first, 4, 9)
    steps(others, second, 4, 9)
    assert same(bits(params, first), bits(others, second))


@pytest.mark.parametrize("change, said", [
    (lambda s: s["state"][0].pop("summed"), "group0.0: it has no summed"),
    (lambda s: s["state"][0].pop("selected"), "group0.0: it has no selected"),
    (lambda s: s["state"][0].pop("sums"), "group0.0: it has no sums"),
    (lambda s: s["state"][0].pop("exp_avg_sq"), "group0.0: it has no exp_avg_sq"),
    (lambda s: s["state"][0].pop("by_columns"), "no by_columns and no master_param"),
    (lambda s: s["state"][0].update(updates=torch.ones(3, dtype=torch.int64)), "group0.0: updates has 3 .* has 20"),
    (lambda s: s["state"][0].update(sums=torch.ones(3, 20)), r"the state of group0.0: sums has shape \(3, 20\)"),
    (lambda s: s["state"][0].update(window=torch.zeros(5, dtype=torch.float64)), "group0.0: window has 5 elements, but must have 6"),
    (lambda s: s["state"][0]["window"].add_(1), "group0.1: its window.*that of other params is"),
    (lambda s: s["state"][0].update(selected=torch.zeros(20)), "group0.0: selected is .*dtype torch.bool"),
], ids=["summed", "selected", "sums", "moment", "weights", "updates", "size", "position", "another_position", "dtype"])
def test_incomplete_states_are_refused(change, said):
    params, others = params_of(), params_of()
    first, second = AdamW(params, lr=0.01, zenflow=window), AdamW(others, lr=0.01, zenflow=window)
    steps(params, first, 0, 4)
    steps(others, second, 0, 5)
    saved, before = copy.deepcopy(first.state_dict()), bits(others, second)
    change(saved)
    with pytest.raises(adamant.InvalidArgument, match=said):
        second.load_state_dict(saved)
    assert same(bits(others, second), before)


def test_groups_by_rows_are_refused():
    params = params_of()
    plain = AdamW(params, state_format="quantized8")
    steps(params, plain, 0, 2)
    saved = copy.deepcopy(plain.state_dict())
    optimizer = AdamW(params, state_format="quantized8", zenflow=window)
    with pytest.raises(adamant.InvalidArgument, match=r"group0.0: its quantized8 moments are in groups of rows.*dequantized"):
        optimizer.load_state_dict(saved)
    saved["state"] = {i: dequantized(state, params[i]) for i, state in saved["state"].items()}
    optimizer = AdamW(params, state_format="float32", zenflow=window)
    optimizer.load_state_dict(saved)
    steps(params, optimizer, 2, 4)


# Processes

def test_a_forked_process_continues_from_a_loaded_state():
    code = """
import io, os, torch
from test_zenflow import AdamW, bits, params_of, position_of, same, steps, window
import adamant
torch.set_num_threads(1)
params = params_of()
optimizer = AdamW(params, lr=0.01, zenflow=window)
steps(params, optimizer, 0, 4)
saved = optimizer.state_dict()
r, w = os.pipe()
if os.fork() == 0:
    try:
        try:
            optimizer.step()
        except adamant.InvalidArgument as error:
            assert "was forked" in str(error) and "Call load_state_dict() here" in str(error)
            optimizer.load_state_dict(saved)
            steps(params, optimizer, 4, 9)
            torch.save((params, position_of(optimizer)), os.fdopen(w, "wb"))
            os._exit(0)
    finally:
        os._exit(1)
os.close(w)
theirs = torch.load(io.BytesIO(os.fdopen(r, "rb").read()), weights_only=False)
assert os.wait()[1] == 0
steps(params, optimizer, 4, 9)
print(all(map(torch.equal, params, theirs[0])) and theirs[1] == position_of(optimizer))
"""
    assert words(code, PYTHONPATH=os.pathsep.join([str(Path(__file__).parent), *sys.path])) == ["True"]


def test_a_process_exits_during_background_work():
    code = """
import atexit
atexit.register(lambda: print(optimizer._zenflow.native.pointer))  # runs after handlers that are registered later
import torch
from adamant.torch import AdamW
params = [torch.nn.Parameter(torch.ones(2048, 1024)) for _ in range(2)]
optimizer = AdamW(params, zenflow={"update_interval": 2})
for _ in range(4):
    for p in params:
        p.grad = torch.full_like(p, 0.5)
    optimizer.step()
print(optimizer._zenflow.native.pointer is not None)
"""
    assert words(code) == ["True", "None"]


@pytest.mark.parametrize("function", ["step_gradients", "create", "load", "add_param"])
def test_interrupts_are_delivered_after_the_step(function):
    params, others = params_of(), params_of()
    first, second = AdamW(params, lr=0.01, zenflow=window), AdamW(others, lr=0.01, zenflow=window)
    calls = adamant._library.library()
    name = f"adamant_zenflow_{function}"
    real, seen = getattr(calls, name), []

    def interrupted(*arguments):
        status = real(*arguments)
        if not seen:
            seen.append(status)
            signal.raise_signal(signal.SIGINT)
        return status
    setattr(calls, name, interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            steps(params, first, 0, 1)
    finally:
        setattr(calls, name, real)
    steps(params, first, 1, 8)
    steps(others, second, 0, 8)
    assert same(bits(params, first), bits(others, second))


def test_deleted_optimizers_leave_no_threads():
    def threads():
        return len(os.listdir("/proc/self/task"))
    params = params_of()
    steps(params, AdamW(params, zenflow=window), 0, 4)
    gc.collect()
    before = threads()
    for _ in range(5):
        steps(params, AdamW(params, zenflow=window), 0, 4)
    gc.collect()
    assert threads() <= before


ranks_code = """
import hashlib, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from adamant.torch import AdamW
rank, count, folder, kind, split, interval = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:7]
dist.init_process_group("gloo", init_method=f"file://{folder}/store{count}{kind}{split}{interval}", rank=rank,
                        world_size=count)
mesh = init_device_mesh("cpu", (count,))
torch.manual_seed(0)
model = torch.nn.Module()
for i, shape in enumerate([(128, 64), (64, 16, 8), (8192,)]):  # shards begin at blocks of the norm
    model.register_parameter(f"p{i}", torch.nn.Parameter(torch.randn(shape).to(getattr(torch, kind))))
fully_shard(model, mesh=mesh)
zenflow = {"topk_ratio": 0.2, "select_interval": 4, "update_interval": int(interval) if interval != "auto" else interval}
def made():
    return AdamW(model.parameters(), lr=1e-2, max_norm=1.0, process_group=mesh.get_group(), threads=1, zenflow=zenflow,
                 state_format=None if split == "None" else split)
optimizer = made()
data, params = torch.Generator().manual_seed(1), list(model.parameters())
ends = []
for step in range(11):
    torch.manual_seed(step)
    optimizer.zero_grad()
    for p in params:  # equal for any number of ranks, unlike gradients of a summed loss
        whole = torch.randn(p.shape).to(p.dtype)
        p.grad = torch.distributed.tensor.distribute_tensor(whole, mesh, p.placements)
    optimizer.step()
    saved = optimizer.state_dict()
    now = list(params)
    now += [of[name] for _, of in sorted(saved["state"].items()) for name in sorted(of) if of[name].dtype != torch.int16]
    ends += [it.full_tensor().clone() if hasattr(it, "full_tensor") else it for it in now]
    if step == 6:  # through checkpoint files
        state = {i: {n: v for n, v in of.items()} for i, of in saved["state"].items()}
        checkpoint.save({"s": state}, checkpoint_id=f"{folder}/{count}{kind}{split}{interval}")
        empty = {"s": {i: {n: torch.zeros_like(v) for n, v in of.items()} for i, of in state.items()}}
        checkpoint.load(empty, checkpoint_id=f"{folder}/{count}{kind}{split}{interval}")
        optimizer = made()
        optimizer.load_state_dict({**saved, "state": empty["s"]})
ends = [end.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for end in ends]
print(hashlib.sha256(b"".join(ends)).hexdigest())
dist.destroy_process_group()
"""


def on_ranks(count, code, *arguments):
    printed = [out.split() for out in ranks.on_ranks(count, code, *arguments)]
    assert all(len(words) == 1 for words in printed), printed
    return {words[0] for words in printed}


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
@pytest.mark.parametrize("kind, split, interval", [("float32", None, 3), ("bfloat16", "split_float32+bfloat16", "auto")])
def test_sharded_ranks_have_the_bits_of_one_rank(tmp_path, kind, split, interval):
    ends = [on_ranks(count, ranks_code, tmp_path, kind, split, interval) for count in (1, 2)]
    assert len(ends[0] | ends[1]) == 1


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_unsupported_shards_are_refused(tmp_path):
    code = """
import sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from adamant.torch import AdamW
rank, count, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
mesh = init_device_mesh("cpu", (count,))
def refused(param, **options):
    param = torch.nn.Parameter(param)
    param.grad = torch.ones_like(param)
    try:
        AdamW([param], zenflow={}, threads=1, **options).step()
    except ValueError as error:
        return str(error)
    return ""
group = {"process_group": mesh.get_group()}
whole = torch.ones(128, 8)
rows, columns = (distribute_tensor(whole.clone(), mesh, [Shard(dim)]) for dim in (0, 1))
assert "whole rows" in refused(columns, **group)
assert "Pass a process_group of all these ranks" in refused(rows)
assert "not a sharded DTensor" in refused(whole, **group)
assert "is replicated" in refused(distribute_tensor(whole, mesh, [Replicate()]), **group)
assert "it is sharded over ranks" in refused(rows, state_format="quantized8", **group)
one = distribute_tensor(torch.ones(1, 8), mesh, [Shard(0)])  # one rank has no rows
assert refused(rows, **group) == refused(torch.ones(9), **group) == refused(one, **group) == ""
def broken(*_):
    raise RuntimeError("the network is gone")
param = torch.nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)]))
param.grad = torch.ones_like(param)
optimizer = AdamW([param], zenflow={}, threads=1, **group)
optimizer._reduce_columns = broken
try:
    optimizer.step()
except RuntimeError as error:
    assert "the network is gone" in str(error)
    assert not optimizer.state_dict()["state"][0]["updates"].any() and bool((param.to_local() == 1).all())
    print("refused")
dist.destroy_process_group()
"""
    assert on_ranks(2, code, tmp_path) == {"refused"}


# DeepSpeed

deepspeeds = """
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
from deepspeed.ops.adam.zenflow_torch_adam import ZenFlowSelectiveAdamW
from adamant.torch import AdamW
def made():
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(48, 40)), torch.nn.Parameter(torch.randn(40))]
mine, theirs, masters = made(), made(), made()
hyper = dict(lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
zenflow = {"topk_ratio": 0.2, "select_interval": 1000, "update_interval": 3, "overlap": False}
optimizer = AdamW(mine, zenflow=zenflow, **hyper)
at_once, later = ZenFlowSelectiveAdamW(theirs, **hyper), DeepSpeedCPUAdam(masters[:1], adamw_mode=True, **hyper)
total = 0
for t in range(12):
    grads = [torch.randn(p.shape) for p in mine]
    for p, g in zip(mine, grads):
        p.grad = g.clone()
    optimizer.step()
    if t == 0:
        chosen = grads[0].abs().sum(0).topk(8).indices.sort().values
        assert optimizer.state_dict()["state"][0]["selected"].nonzero().flatten().equal(chosen)
        theirs[0].selected_indices = chosen
    theirs[0].selected_grad, theirs[1].selected_grad = grads[0][:, chosen], grads[1]
    at_once.step()
    total = total + grads[0]
    if t % 3 == 2:  # steps all columns, so selected columns are restored
        masters[0].grad = total / 3
        total = 0
        later.step()
        kept = theirs[0].data[:, chosen].clone()
        theirs[0].data.copy_(masters[0])
        theirs[0].data[:, chosen] = kept
    assert all(torch.allclose(p, q, rtol=1e-5, atol=1e-6) for p, q in zip(mine, theirs)), t
print(">", type(later.ds_opt_adam).__name__, later.ds_opt_adam.__name__)
"""


def test_equals_deepspeeds_optimizers_where_definitions_agree(tmp_path):
    pytest.importorskip("deepspeed")
    import deepspeed_suite
    done = subprocess.run([sys.executable, "-c", deepspeeds], capture_output=True, text=True, timeout=600, cwd=tmp_path,
                          env=deepspeed_suite.environment(tmp_path, own=True))
    assert "> module cpu_adam" in done.stdout, done.stdout + done.stderr


# Training

def trained(options, steps=150, kind=f32, **more):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(64, 32), torch.nn.Flatten(), torch.nn.Linear(96, 128), torch.nn.GELU(),
                                torch.nn.Linear(128, 64)).to(kind)
    optimizer = AdamW(model.parameters(), lr=3e-3, max_norm=1.0, zenflow=options, **more)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
    data = torch.Generator().manual_seed(1)
    for _ in range(steps):
        letters = torch.randint(0, 64, (256, 3), generator=data)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(letters).float(), (letters[:, 0] * 5 + 1) % 8)
        loss.backward()
        optimizer.step()
        schedule.step()
    return loss.item()


def test_a_model_learns_as_with_adamw():
    plain, deferred = trained(None), trained({"topk_ratio": 0.2, "update_interval": 2})
    low = trained(ZenFlow(topk_ratio=0.2, update_interval="auto"), kind=bf16, state_format="split_float32+quantized8")
    assert plain < 0.2 and deferred < 0.6 and low < 0.6, (plain, deferred, low)


def test_the_example_of_engines_md(capsys):
    """docs/engines.md shows these lines except the last one."""
    import torch
    from adamant.torch import AdamW, ZenFlow

    model = torch.nn.Sequential(torch.nn.Linear(20, 256), torch.nn.GELU(), torch.nn.Linear(256, 5))
    zenflow = ZenFlow(topk_ratio=0.1, select_interval=16, update_interval=4)
    optimizer = AdamW(model.parameters(), lr=1e-3, max_norm=1.0, zenflow=zenflow)
    for step in range(40):
        optimizer.zero_grad()
        loss = (model(torch.randn(64, 20)) - 1).square().mean()
        loss.backward()
        optimizer.step()
    optimizer.flush()  # before the model is evaluated or exported; a checkpoint needs none
    report = optimizer.last_report
    print(f"loss {loss.item():.2f}: {report.elements} elements stepped, {report.zenflow.deferred} deferred")
    assert capsys.readouterr().out.startswith("loss 0.") and report.elements == 2 * 256 + 26 * 5 + 256 + 5


def test_a_param_that_is_listed_twice_is_stepped_once():
    once, twice = (torch.nn.Parameter(torch.ones(4, 6)) for _ in range(2))
    optimizers = [AdamW([once], lr=0.1, zenflow={"topk_ratio": 0.5}), AdamW([twice, twice], lr=0.1, zenflow={"topk_ratio": 0.5})]
    for step in range(3):
        for param, optimizer in zip((once, twice), optimizers):
            param.grad = torch.arange(24.0).view(4, 6) - step
            optimizer.step()
    assert torch.equal(once, twice)
