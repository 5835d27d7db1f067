# SPDX-License-Identifier: Apache-2.0
"""Params that are frozen, replaced, renamed, shared by several optimizers, or listed in other containers."""
import collections

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from adamant import InvalidArgument  # noqa: E402
from adamant.torch import AdamW  # noqa: E402

MODES = [{}, {"overlap": True, "max_norm": 1.0}, {"accumulate": 2}, {"offload": True}, {"master": True},
         {"zenflow": {"topk_ratio": 1.0}}]
has_named_params = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6)
# Sums of bfloat16 gradients lose the small ones: accumulated in float32 each element is 1.021, else 1.
GRADIENTS = [1.0] + 7 * [0.003]


def accumulated_norm(weight, optimizer):
    for value in GRADIENTS:
        (weight * torch.full_like(weight.detach(), value)).sum().backward()
    norm = optimizer.step().item()
    optimizer.zero_grad()
    return norm


def bfloat16_weights(count=1):
    return [nn.Parameter(torch.ones(64, dtype=torch.bfloat16)) for _ in range(count)]


def accumulating(params, **options):
    return AdamW(params, lr=1e-2, accumulate=8, master=True, max_norm=float("inf"), **options)


# Accumulation

@pytest.mark.parametrize("overlap", [False, True])
def test_params_that_were_frozen_are_accumulated(overlap):
    first, second = bfloat16_weights(2)
    second.requires_grad_(False)
    optimizer = accumulating([first, second], overlap=overlap)
    assert not second.requires_grad
    expected = accumulated_norm(first, optimizer)
    assert expected == pytest.approx(8.168, abs=0.001)
    first.requires_grad_(False)
    second.requires_grad_(True)
    assert accumulated_norm(second, optimizer) == expected


def test_frozen_integer_params_are_ignored():
    weight, = bfloat16_weights()
    codes = nn.Parameter(torch.ones(4, dtype=torch.int8), requires_grad=False)
    optimizer = accumulating([weight, codes])
    assert accumulated_norm(weight, optimizer) == pytest.approx(8.168, abs=0.001)


def test_frozen_params_of_classes_without_gradients_are_ignored():
    class Codes(torch.Tensor):
        def requires_grad_(self, requires_grad=True):
            if requires_grad:
                raise RuntimeError("no gradients")
            return self
    weight, = bfloat16_weights()
    optimizer = accumulating([weight, torch.ones(4).as_subclass(Codes)])
    assert accumulated_norm(weight, optimizer) == pytest.approx(8.168, abs=0.001)


def test_params_that_replace_all_others_are_accumulated():
    old, new = bfloat16_weights(2)
    optimizer = accumulating([old])
    optimizer.param_groups[0]["params"] = [new]
    optimizer.zero_grad()
    assert accumulated_norm(new, optimizer) == pytest.approx(8.168, abs=0.001)


@pytest.mark.skipif(not hasattr(torch.__future__, "set_swap_module_params_on_conversion"), reason="needs torch 2.3")
def test_params_whose_memory_was_swapped_are_accumulated_from_the_next_step():
    model = nn.Linear(64, 1, bias=False).to(torch.bfloat16)
    nn.init.ones_(model.weight)
    optimizer = accumulating(model.parameters())
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.to(torch.float32)
        model.to(torch.bfloat16)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    accumulated_norm(model.weight, optimizer)
    assert [accumulated_norm(model.weight, optimizer) for _ in range(2)] == [pytest.approx(8.168, abs=0.001)] * 2


@pytest.mark.parametrize("options", MODES)
def test_gradients_that_another_optimizer_accumulated_are_refused(options):
    if "zenflow" in options and "accumulate" in options:
        pytest.skip("excluded")
    param, others = nn.Parameter(torch.ones(16)), nn.Parameter(torch.ones(16))
    older = AdamW([param], **options)
    newer = AdamW([param, others], accumulate=2)
    for _ in range(2):
        param.sum().backward()
    before = param.detach().clone()
    with pytest.raises(InvalidArgument, match=r"cannot step group0\.0.*(another optimizer has|newer optimizer)"):
        older.step()
    assert torch.equal(param, before)
    newer.step()
    assert not torch.equal(param, before)
    newer.zero_grad()
    del newer
    for _ in range(options.get("accumulate", 1)):
        param.sum().backward()
    older.step()


def test_optimizers_of_other_params_accumulate_beside_one_another():
    first, second = bfloat16_weights(2)
    optimizers = [accumulating([first]), accumulating([second])]
    for weight in (first, second):
        for value in GRADIENTS:
            (weight * value).sum().backward()
    assert [optimizer.step().item() for optimizer in optimizers] == 2 * [pytest.approx(8.168, abs=0.001)]


# Names

@pytest.mark.skipif(not has_named_params, reason="needs torch 2.6")
@pytest.mark.parametrize("options", MODES)
def test_named_params_keep_their_names(options):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = AdamW(model.named_parameters(), lr=1e-2, **options)
    group = optimizer.param_groups[0]

    def step():
        for _ in range(options.get("accumulate", 1)):
            model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return [optimizer._name(param) for param in group["params"]]
    assert step() == [f"group0.{name}" for name, _ in model.named_parameters()]
    model[0].requires_grad_(False)
    group["params"] = [param for param in group["params"] if param.requires_grad]
    assert step() == ["group0.1.weight", "group0.1.bias"]
    model[1].extra = nn.Parameter(torch.ones(4))
    group["params"].append(model[1].extra)
    model[1].extra.grad = torch.ones(4)
    assert step() == ["group0.1.weight", "group0.1.bias", "group0.2"]
    group["params"].reverse()
    assert step() == ["group0.0", "group0.1.bias", "group0.1.weight"]
    for param in model[0].parameters():
        optimizer.state.pop(param, None)
    optimizer.load_state_dict(optimizer.state_dict())
    assert step() == ["group0.0", "group0.1.bias", "group0.1.weight"]


@pytest.mark.skipif(not has_named_params, reason="needs torch 2.6")
@pytest.mark.parametrize("options", MODES)
def test_equal_names_in_a_group_are_made_different(options):
    models = [nn.Linear(4, 4), nn.Linear(4, 4)]
    optimizer = AdamW([pair for model in models for pair in model.named_parameters()], lr=1e-2, **options)
    for _ in range(options.get("accumulate", 1)):
        sum(model(torch.ones(2, 4)).sum() for model in models).backward()
    optimizer.step()
    names = [optimizer._name(param) for param in optimizer.param_groups[0]["params"]]
    assert names == ["group0.weight", "group0.bias", "group0.weight.2", "group0.bias.3"]


@pytest.mark.skipif(not has_named_params, reason="needs torch 2.6")
def test_params_of_equal_names_may_move_to_one_group():
    models = [nn.Linear(4, 4), nn.Linear(4, 4)]
    optimizer = AdamW([{"params": model.named_parameters()} for model in models], lr=1e-2)
    groups = optimizer.param_groups
    groups[1]["params"] += groups[0]["params"]
    groups[0]["params"] = []
    sum(model(torch.ones(2, 4)).sum() for model in models).backward()
    optimizer.step()
    assert [optimizer._name(param) for param in groups[1]["params"]] == [
        "group1.weight", "group1.bias", "group1.weight.2", "group1.bias.3"]


@pytest.mark.skipif(not has_named_params, reason="needs torch 2.6")
def test_changed_weights_have_the_names_of_their_params():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = AdamW(model.named_parameters(), lr=1e-2, track_changes=True)
    model[0].requires_grad_(False)
    optimizer.param_groups[0]["params"] = list(model[1].parameters())
    optimizer.changed_weights()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    changes = optimizer.changed_weights()
    assert [change.name for change in changes] == ["group0.1.weight", "group0.1.bias"]
    assert all(change.param is param for change, param in zip(changes, model[1].parameters()))


# Groups

@pytest.mark.parametrize("options", MODES)
@pytest.mark.parametrize("container", [nn.ParameterList, collections.deque, tuple])
def test_groups_may_hold_params_in_other_containers(options, container):
    def train(wrap):
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(8, 4)) for _ in range(2)]
        optimizer = AdamW(params, lr=1e-2, **options)
        optimizer.param_groups[0]["params"] = wrap(params)
        for _ in range(3):
            for _ in range(options.get("accumulate", 1)):
                sum((param * param).sum() for param in params).backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.flush()
        return torch.cat([param.detach() for param in params])
    assert torch.equal(train(container), train(list))


def test_groups_may_be_other_mappings():
    param = nn.Parameter(torch.ones(4))
    optimizer = AdamW([param], lr=0.5, weight_decay=0)
    optimizer.param_groups[0] = collections.UserDict(optimizer.param_groups[0])
    param.grad = torch.ones(4)
    optimizer.step()
    assert torch.allclose(param, torch.full((4,), 0.5))


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"overlap": True}])
def test_a_group_that_is_refused_is_not_added(options):
    param, late = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    owner, optimizer = AdamW([late], accumulate=2), AdamW([param], **options)
    for _ in range(2):
        late.sum().backward()
    with pytest.raises(InvalidArgument, match="another optimizer has accumulated"):
        optimizer.add_param_group({"params": [late]})
    assert len(optimizer.param_groups) == 1
    assert owner.step() is None and bool((late != 1).all())  # still accumulates
    owner.zero_grad()
    optimizer.add_param_group({"params": [late]})
    for _ in range(options.get("accumulate", 1)):
        (param.sum() + late.sum()).backward()
    optimizer.step()
    if options:
        optimizer.zero_grad()
        lazy = nn.LazyLinear(2)
        with pytest.raises(ValueError):
            optimizer.add_param_group({"params": [late.detach().clone().requires_grad_(), lazy.weight]})
        assert len(optimizer.param_groups) == 2
        for _ in range(options.get("accumulate", 1)):
            (param.sum() + late.sum()).backward()
        optimizer.step()


# Gradients

@pytest.mark.parametrize("shape", [(2,), (8, 16), (16, 9)])
def test_gradients_of_other_shapes_are_refused(shape):
    param = nn.Parameter(torch.ones(16, 8))
    for options in (*MODES[::2], {"offload": True}, {"zenflow": {}}):
        optimizer = AdamW([param], **options)
        param.grad = torch.ones(16, 8)
        param.grad.data = torch.ones(shape)
        before = param.detach().clone()
        with pytest.raises((InvalidArgument, RuntimeError)):
            optimizer.step()
        assert torch.equal(param, before)
        optimizer.zero_grad()


@pytest.mark.parametrize("bytes_left", [0, 16])
@pytest.mark.parametrize("options", [{"offload": True}, {"zenflow": {}}, {"offload": True, "zenflow": {}}])
def test_gradients_whose_memory_was_freed_are_refused(options, bytes_left):
    param = nn.Parameter(torch.ones(1 << 16))
    optimizer = AdamW([param], **options)
    param.grad = torch.ones(1 << 16)
    optimizer.step()
    before = param.detach().clone()
    param.grad.untyped_storage().resize_(bytes_left)
    with pytest.raises(InvalidArgument, match="cannot (step|use) .*(memory)"):
        optimizer.step()
    assert torch.equal(param, before)
    param.grad = torch.ones(1 << 16)
    optimizer.step()


def test_params_of_wrapper_classes_are_named():
    from torch.utils._pytree import tree_map
    from torch.utils._python_dispatch import return_and_correct_aliasing

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, values):
            return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype, device=values.device)

        def __init__(self, values):
            self.values = values

        @classmethod
        def __torch_dispatch__(cls, function, types, arguments=(), named=None):
            made = function(*tree_map(lambda value: value.values if isinstance(value, cls) else value, arguments),
                            **(named or {}))
            made = tree_map(lambda value: cls(value) if isinstance(value, torch.Tensor) else value, made)
            return return_and_correct_aliasing(function, arguments, named or {}, made)
    param = nn.Parameter(Wrapper(torch.ones(4)))
    optimizer = AdamW([param], lr=1e-2)
    param.grad = Wrapper(torch.ones(4))
    with pytest.raises(InvalidArgument, match="of its class, Wrapper"):
        optimizer.step()


# ZenFlow

def test_no_gradient_of_a_late_param_is_deferred_with_a_ratio_of_1():
    first, late = nn.Parameter(torch.ones(8, 8)), nn.Parameter(torch.ones(4, 4))
    optimizer = AdamW([first], lr=1e-2, zenflow={"topk_ratio": 1.0, "select_interval": 8, "update_interval": 4})
    first.grad = torch.ones(8, 8)
    optimizer.step()
    optimizer.add_param_group({"params": [late]})
    for _ in range(3):
        before = late.detach().clone()
        first.grad, late.grad = torch.ones(8, 8), torch.ones(4, 4)
        optimizer.step()
        assert bool((late != before).all())


def test_a_missing_moment_is_refused_and_may_be_put_back():
    def train(removes):
        torch.manual_seed(0)
        param = nn.Parameter(torch.randn(8, 8))
        optimizer = AdamW([param], lr=1e-1, zenflow={"topk_ratio": 0.25, "update_interval": 4})
        for number in range(8):
            param.grad = torch.full((8, 8), 0.5 + number)
            if removes and number == 3:
                moment = optimizer.state[param].pop("exp_avg")
                with pytest.raises(InvalidArgument, match="no exp_avg, but has taken 3 steps"):
                    optimizer.step()
                optimizer.state[param]["exp_avg"] = moment
            optimizer.step()
        optimizer.flush()
        return param.detach()
    assert torch.equal(train(True), train(False))


def test_meta_params_are_refused():
    param = nn.Parameter(torch.ones(4, 4, device="meta"))
    optimizer = AdamW([param], zenflow={})
    param.grad = torch.ones(4, 4, device="meta")
    with pytest.raises(InvalidArgument, match="meta device"):
        optimizer.step()


# Flattened checkpoints

@pytest.mark.parametrize("saved", ["torch", {}, {"master": True}, {"zenflow": {}}, {"zenflow": {}, "master": True}])
@pytest.mark.parametrize("loaded", [{}, {"zenflow": {}}, {"master": True}, {"state_format": "split_float32"},
                                    {"zenflow": {}, "master": True}])
def test_flattened_states_load(saved, loaded):
    checkpoint = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    if not hasattr(checkpoint, "get_optimizer_state_dict") or not has_named_params:
        pytest.skip("needs a newer torch")
    flat = checkpoint.StateDictOptions(flatten_optimizer_state_dict=True)

    def make(options):
        torch.manual_seed(0)
        model = nn.Linear(8, 8).to(torch.bfloat16)
        optimizer = (torch.optim.AdamW(model.parameters(), lr=1e-2) if options == "torch"
                     else AdamW(model.parameters(), lr=1e-2, **options))
        return model, optimizer

    def step(model, optimizer):
        model(torch.ones(4, 8, dtype=torch.bfloat16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    model, optimizer = make(saved)
    for _ in range(3):
        step(model, optimizer)
    state = checkpoint.get_optimizer_state_dict(model, optimizer, options=flat)
    other, resumed = make(loaded)
    checkpoint.get_optimizer_state_dict(other, resumed, options=flat)
    if saved != "torch" and "zenflow" in saved and ("zenflow" not in loaded or len(saved) > len(loaded)):
        return  # torch loads only keys that the new optimizer has
    checkpoint.set_optimizer_state_dict(other, resumed, optim_state_dict=state, options=flat)
    other.load_state_dict(model.state_dict())
    step(other, resumed)
    if saved == loaded:
        step(model, optimizer)
        assert torch.equal(other.weight, model.weight)
