# SPDX-License-Identifier: Apache-2.0
"""Params without a gradient in some steps, such as experts that no token was routed to."""
import gc
import random

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from adamant import Optimizer, step  # noqa: E402
from adamant.torch import AdamW  # noqa: E402
from optimizer_modes import bits  # noqa: E402

MODES = [{}, {"max_norm": 0.5}, {"overlap": True}, {"overlap": True, "max_norm": 0.5}, {"accumulate": 2, "max_norm": 1e6},
         {"offload": True, "overlap": True, "max_norm": 0.5}, {"offload": True}, {"master": True}]
SIZES = [1, 3, 64, 1000, 70000]


class Reference:
    """AdamW with one call for each param."""

    def __init__(self, params):
        self.params = [param.detach().float() for param in params]
        self.states = [(torch.zeros_like(param), torch.zeros_like(param)) for param in self.params]
        self.counts = [0] * len(params)

    def step(self, gradients, max_norm):
        squares = sum(float((grad.double() ** 2).sum()) for grad in gradients if grad is not None)
        coefficient = min(1.0, max_norm / (squares ** 0.5 + 1e-6)) if max_norm else 1.0
        for number, grad in enumerate(gradients):
            if grad is not None:
                self.counts[number] += 1
                step([self.params[number]], [grad], *([moment] for moment in self.states[number]), self.counts[number],
                     lr=0.01, weight_decay=0.01, grad_scale=coefficient)


def params_of(sizes, dtype):
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(size, generator=generator).to(dtype)) for size in sizes]


@pytest.mark.parametrize("options", MODES)
@pytest.mark.parametrize("seed", range(6))
def test_each_param_counts_its_own_steps(options, seed):
    choices = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    sizes = [choices.choice(SIZES) for _ in range(choices.randint(1, 6))]
    dtype = torch.bfloat16 if "master" in options else torch.float32
    params = params_of(sizes, dtype)
    reference = Reference(params)
    optimizer = AdamW(params, lr=0.01, weight_decay=0.01, threads=choices.choice([1, 2]), **options)
    for _ in range(8):
        # Powers of 2: the reference's norm is exact.
        gradients = [torch.randint(-2, 3, (size,), generator=generator).to(dtype) if choices.random() < 0.6 else None
                     for size in sizes]
        present = [(param, grad) for param, grad in zip(params, gradients) if grad is not None]
        for _ in range(options.get("accumulate", 1)):
            if present:
                torch.autograd.backward([(param * grad).sum() for param, grad in present])
        total = [None if grad is None else grad * options.get("accumulate", 1) for grad in gradients]
        optimizer.step()
        optimizer.zero_grad()
        reference.step(total, options.get("max_norm"))
        for number, param in enumerate(params):
            assert bits(param) == bits(reference.params[number].to(dtype)), number
            state = optimizer.state.get(param)
            assert (int(state["step"]) if state else 0) == reference.counts[number]
            if state:
                assert bits(state["exp_avg_sq"]) == bits(reference.states[number][1])


@pytest.mark.parametrize("options", [{}, {"max_norm": 1.0}, {"offload": True}, {"overlap": True, "max_norm": 1.0}])
def test_other_params_with_gradients_are_no_new_step_group(options):
    params = params_of([64] * 8, torch.float32)
    optimizer = AdamW(params, **options)
    choices = random.Random(0)
    groups = []
    for time in range(12):
        for param in params:
            if time == 0 or choices.random() < 0.5:
                param.grad = torch.ones_like(param)
        optimizer.step()
        optimizer.zero_grad()
        groups.append(optimizer._step_groups[0].native)
    assert all(native is groups[0] for native in groups)


def test_a_step_overlaps_backward_when_step_counts_differ():
    params = params_of([64, 64], torch.float32)
    optimizer = AdamW(params, overlap=True, max_norm=1.0)
    for time, used in enumerate(([0, 1], [0], [1], [0, 1])):
        torch.autograd.backward([params[number].sum() for number in used])
        assert (optimizer._open is not None) == (time > 0)
        optimizer.step()
        optimizer.zero_grad()
    assert [int(optimizer.state[param]["step"]) for param in params] == [3, 3]


def test_a_skipped_param_counts_as_unchanged_for_autograd():
    used, unused = params_of([8, 8], torch.float32)
    optimizer = AdamW([used, unused])
    used.grad, unused.grad = torch.ones(8), torch.ones(8)
    optimizer.step()
    optimizer.zero_grad()
    kept = (unused * unused).sum()  # its graph needs the values of `unused`
    used.sum().backward()
    optimizer.step()
    kept.backward()
    assert torch.equal(unused.grad, 2 * unused.detach())


def test_no_gradient_at_all_is_no_step():
    params = params_of([8, 70000], torch.float32)
    optimizer = AdamW(params, max_norm=1.0)
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    optimizer.zero_grad()
    before = [bits(param) for param in params]
    assert float(optimizer.step()) == 0.0
    assert optimizer.last_report is None
    assert [bits(param) for param in params] == before
    assert all(int(optimizer.state[param]["step"]) == 1 for param in params)


def test_gradients_are_released_when_others_follow():
    params = params_of([70000, 8], torch.float32)
    optimizer = AdamW(params)
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    reference = torch.multiprocessing.reductions.StorageWeakRef(params[0].grad.untyped_storage())
    params[0].grad = None
    params[1].grad = torch.ones(8)
    optimizer.step()
    gc.collect()
    assert reference.expired()


def test_step_numbers_of_shards_in_the_optimizer_for_engines():
    arrays = [[torch.ones(100), torch.full((100,), 0.5), torch.zeros(100), torch.zeros(100)] for _ in range(4)]
    optimizer = Optimizer()
    optimizer.add_group("all", lr=0.01)
    for number in range(2):
        param, grad, exp_avg, exp_avg_sq = arrays[number]
        optimizer.add_shard(0, f"p{number}", param=param, grad=grad, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq)
    for numbers in ([1, 7], [2, 7], [9, 1]):
        if numbers[0] == 2:
            optimizer.begin_step(shard_steps=numbers)
            optimizer.submit(1)
            optimizer.submit(0)
            optimizer.finish()
        else:
            optimizer.step(shard_steps=numbers)
        for number in range(2):
            param, grad, exp_avg, exp_avg_sq = arrays[2 + number]
            step([param], [grad], [exp_avg], [exp_avg_sq], numbers[number], lr=0.01)
            assert [bits(array) for array in arrays[number]] == [bits(array) for array in arrays[2 + number]]
    with pytest.raises(Exception, match=r"cannot step with 1 step number: the optimizer has 2 shards"):
        optimizer.step(shard_steps=[1])
    with pytest.raises(Exception, match=r"shard_steps\[1\]"):
        optimizer.step(shard_steps=[1, 0])


@pytest.mark.parametrize("options", [{"master": True}, {"master": True, "overlap": True}, {"offload": True, "overlap": True},
                                     {"master": True, "track_changes": True}])
def test_writes_to_params_without_a_gradient_wait_for_their_next_step(options):
    """As in a run that is resumed meanwhile: its optimizer does not know these params yet."""
    first, second = params_of([64, 64], torch.bfloat16)
    optimizer = AdamW([first, second], lr=0.01, **options)

    def train(*used):
        torch.autograd.backward([param.sum() for param in used])
        optimizer.step()
        optimizer.zero_grad()

    train(first, second)
    train(first, second)
    with torch.no_grad():
        second.fill_(0.5)
    before = {name: bits(value) for name, value in optimizer.state[second].items()}
    train(first)
    assert {name: bits(value) for name, value in optimizer.state[second].items()} == before
    with torch.no_grad():
        second.fill_(0.25)  # after a step that did not step it
    train(second)
    expected, reference = nn.Parameter(torch.full((64,), 0.25, dtype=torch.bfloat16)), optimizer.state[second]
    assert torch.all((second.float() - expected.float()).abs() < 0.02)
    if "master_param" in reference:
        assert torch.equal(reference["master_param"].to(torch.bfloat16), second.detach())
    if "track_changes" in options:
        changed = {change.name: change.indices.numel() for change in optimizer.changed_weights()}
        assert changed["group0.1"] == 64


def test_the_report_has_the_step_number_of_the_stepped_params():
    first, second = params_of([8, 8], torch.float32)
    optimizer = AdamW([first, second])
    numbers = []
    for used in ([first, second], [first], [first], [second], [], [second], [first, second]):
        for param in used:
            param.grad = torch.ones(8)
        optimizer.step()
        optimizer.zero_grad()
        if used:
            numbers.append(optimizer.last_report.step)
    assert numbers == [1, 2, 3, 2, 3, 4]


@pytest.mark.parametrize("options", [{}, {"max_norm": 1.0}, {"overlap": True}, {"offload": True}, {"master": True}])
@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)])
def test_gradients_of_another_dtype_after_a_step_without_one(options, dtypes):
    if not hasattr(nn.Parameter(torch.ones(1)), "grad_dtype"):
        pytest.skip("torch before 2.10 has no gradients of another dtype")
    if "master" in options and dtypes[0] != torch.bfloat16:
        pytest.skip("float32 params are their own masters")

    def trained():
        params = params_of([4096] * 3, dtypes[0])
        for param in params:
            param.grad_dtype = dtypes[1]
        optimizer = AdamW(params, lr=0.01, exp_avg_sq_rounding="nearest", **options)
        for time, used in enumerate([[0, 1], [1, 2], [0, 1, 2], [0, 1, 2]]):
            for number in used:
                values = torch.randn(4096, generator=torch.Generator().manual_seed(10 * time + number))
                params[number].grad = values.to(dtypes[1])
            optimizer.step()
            optimizer.zero_grad()
        return params, optimizer

    params, optimizer = trained()
    singles = []
    for number, param in enumerate(params_of([4096] * 3, dtypes[0])):
        param.grad_dtype = dtypes[1]
        alone = AdamW([param], lr=0.01, exp_avg_sq_rounding="nearest",
                      **{key: value for key, value in options.items() if key == "master"})
        singles.append((param, alone))
    if "max_norm" in options:
        return  # the others show the dtype; here nothing may be refused
    for time, used in enumerate([[0, 1], [1, 2], [0, 1, 2], [0, 1, 2]]):
        for number in used:
            param, alone = singles[number]
            param.grad = torch.randn(4096, generator=torch.Generator().manual_seed(10 * time + number)).to(dtypes[1])
            alone.step()
    for (param, alone), other in zip(singles, params):
        assert bits(param) == bits(other)
        assert bits(alone.state[param]["exp_avg"]) == bits(optimizer.state[other]["exp_avg"])
