# SPDX-License-Identifier: Apache-2.0
"""Runs our classes over torch's optimizer infos: torch.testing._internal.common_optimizers (needs expecttest)."""
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")
common = pytest.importorskip("torch.testing._internal.common_optimizers")

from adamant.torch import Adam, AdamW  # noqa: E402

mine_for = {torch.optim.Adam: Adam, torch.optim.AdamW: AdamW}
infos = [info for info in common.optim_db if info.optim_cls in mine_for]
refused = ("amsgrad", "differentiable")


def inputs(info):
    for given in info.optim_inputs_func(device="cpu"):
        if not any(given.kwargs.get(name) for name in refused):
            yield given


cases = [pytest.param(info, given, id=f"{info.optim_cls.__name__}-{given.desc}") for info in infos
         for given in inputs(info)]


def test_both_classes_have_cases():
    assert len(infos) == 2 and len(cases) >= 8


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("info,given", cases)
def test_inputs_step_as_torchs_float64_reference(info, given, kind):
    options = {name: value for name, value in given.kwargs.items()}
    torch.manual_seed(0)
    start = [torch.randn(size) for size in ((10, 5), (7,), (1,), (3, 4, 2))]
    a = [torch.nn.Parameter(p.to(kind)) for p in start]
    b = [torch.nn.Parameter(p.detach().double()) for p in a]
    first = mine_for[info.optim_cls](a, **options, **({"master": True} if kind != torch.float32 else {}))
    exact = {**options, "foreach": False, "fused": False, "capturable": False}
    second = info.optim_cls(b, **exact)
    for _ in range(7):
        for p, q in zip(a, b):
            p.grad = torch.randn(p.shape).to(kind)
            q.grad = p.grad.double()
        first.step()
        second.step()
    for p, q in zip(a, b):
        got = first.state[p].get("master_param", p).double()
        assert torch.max(torch.abs(got - q) / (1 + torch.abs(q))) < 2e-5


@pytest.mark.parametrize("info", infos, ids=lambda info: info.optim_cls.__name__)
def test_error_inputs_raise_torchs_errors(info):
    seen = 0
    for given in info.optim_error_inputs_func(device="cpu", dtype=torch.float32):
        wrong = given.optimizer_error_input
        if given.error_on == common.OptimizerErrorEnum.CONSTRUCTION_ERROR:
            saw = pytest.warns if issubclass(given.error_type, Warning) else pytest.raises
            with saw(given.error_type, match=given.error_regex):
                mine_for[info.optim_cls](wrong.params, **wrong.kwargs)
        else:
            optimizer = mine_for[info.optim_cls](wrong.params, **wrong.kwargs)
            with pytest.raises(given.error_type, match=given.error_regex):
                optimizer.step()
        seen += 1
    assert seen >= 5


@pytest.mark.parametrize("info,given", cases)
def test_state_dicts_round_trip_for_each_input(info, given):
    def params():
        torch.manual_seed(1)
        return [torch.nn.Parameter(torch.randn(4, 3)), torch.nn.Parameter(torch.randn(5))]
    kind = mine_for[info.optim_cls]
    a = params()
    first = kind(a, **given.kwargs)
    for t in range(3):
        for p in a:
            p.grad = torch.full_like(p, 0.1 * (t + 1))
        first.step()
    b = [torch.nn.Parameter(p.detach().clone()) for p in a]
    second = kind(b, **given.kwargs)
    second.load_state_dict(first.state_dict())
    for these, optimizer in ((a, first), (b, second)):
        for p in these:
            p.grad = torch.full_like(p, 0.7)
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(a, b))
