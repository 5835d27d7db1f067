# SPDX-License-Identifier: Apache-2.0
"""adamant.integrations.megatron with Megatron's own HybridDeviceOptimizer. Params only say that they are on a GPU."""
import io
import types
import warnings

import pytest

torch = pytest.importorskip("torch")

import adamant  # noqa: E402
import fake_gpu  # noqa: E402
from adamant.torch import AdamW, dequantized  # noqa: E402

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("megatron.core.optimizer")
from adamant.integrations import megatron  # noqa: E402
from megatron.core.optimizer import cpu_offloading, distrib_optimizer  # noqa: E402

torchs = torch.optim.AdamW


@pytest.fixture(autouse=True)
def on_fake_gpus(monkeypatch):
    for owner, attributes in fake_gpu.replacements():
        for name, value in attributes.items():
            monkeypatch.setattr(owner, name, value)
    yield
    megatron.uninstall()


def make(dtype=torch.bfloat16, seed=0, cpu_optimizer_cls=torchs, overlap=False, norms=torch.float32, **more):
    torch.manual_seed(seed)
    params = [fake_gpu.fake(torch.randn(64, 32).to(dtype)), fake_gpu.fake(torch.randn(33).to(norms)),
              fake_gpu.fake(torch.randn(20, 7).to(dtype))]
    return params, cpu_offloading.HybridDeviceOptimizer(
        [{"params": params[:2], "wd_mult": 1.0}, {"params": params[2:], "wd_mult": 0.0, "weight_decay": 0.0}],
        **{"offload_fraction": 1.0, "gpu_optimizer_cls": torchs, "param_update_in_fp32": True, **more},
        cpu_optimizer_cls=cpu_optimizer_cls, overlap_cpu_optimizer_d2h_h2d=overlap, lr=1e-2, weight_decay=0.1,
        fused=True, bias_correction=True)


def step(params, hybrid, number):
    generator = torch.Generator().manual_seed(number)
    for param in params:
        param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)
    hybrid.step()


def through_a_file(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def resumed(params, hybrid, **arguments):
    saved = through_a_file({"model": [param.cpu() for param in params], "optimizer": hybrid.state_dict()})
    params, hybrid = make(params[0].dtype, seed=5, **arguments)
    with torch.no_grad():
        for param, weight in zip(params, saved["model"]):
            param.copy_(weight)
    hybrid.load_state_dict(saved["optimizer"])
    return params, hybrid


def bits(params):
    return [param.cpu().float().view(torch.int32).tolist() for param in params]


def moments_of(hybrid):
    return [state[name].clone() for state in hybrid.state.values() for name in ("exp_avg", "exp_avg_sq")]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("state_format", [None, "float32", "bfloat16", "quantized8"])
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(state_format, dtype, overlap):
    megatron.install(**({} if state_format is None else {"state_format": state_format}))
    ends = []
    for stops in (False, True):
        params, hybrid = make(dtype, overlap=overlap)
        for number in range(6):
            step(params, hybrid, number)
            if stops and number in (2, 4):
                params, hybrid = resumed(params, hybrid, overlap=overlap)
        stored = moments_of(hybrid)
        assert {moment.dtype for moment in stored} == {
            {None: torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16,
             "quantized8": torch.uint8}[state_format]}
        ends.append((bits(params), [moment.tolist() for moment in stored]))
    assert ends[0] == ends[1]


def test_as_with_torchs_class_and_each_loads_the_others_states():
    ends = []
    # Megatron Core 0.16's class cannot load a state if some params are float32 and others bfloat16.
    for kinds in (("torch", "torch"), ("ours", "ours"), ("torch", "ours"), ("ours", "torch")):
        params, hybrid = None, None
        for number, kind in enumerate(kind for kind in kinds for _ in range(3)):
            megatron.uninstall() if kind == "torch" else megatron.install()
            if number == 0:
                params, hybrid = make(norms=torch.bfloat16)
            if number == 3:
                params, hybrid = resumed(params, hybrid, norms=torch.bfloat16)
                assert all(isinstance(each, AdamW) == (kind == "ours") for each in hybrid.cpu_optimizers)
                assert hybrid.state_dict()["param_groups"][0]["cpu_optimizer_cls"] is torchs
            step(params, hybrid, number)
        ends.append([hybrid.param_to_inner_param[param].cpu() for param in params])
    for end in ends[1:]:
        for master, torchs_master in zip(end, ends[0]):
            assert torch.allclose(master, torchs_master, rtol=1e-5, atol=1e-6)


def test_moments_are_converted_to_state_format_when_a_state_is_loaded():
    megatron.install()
    params, hybrid = make()
    step(params, hybrid, 0)
    exact = moments_of(hybrid)
    megatron.install(state_format="bfloat16")
    params, hybrid = resumed(params, hybrid)
    assert all(torch.equal(moment, other.bfloat16()) for moment, other in zip(moments_of(hybrid), exact))
    megatron.install(state_format="quantized8")
    params, hybrid = resumed(params, hybrid)
    states = [dequantized(state, hybrid.param_to_inner_param[param]) for param, state in hybrid.state.items()]
    assert all(torch.allclose(state[name], exact[2 * i + k], rtol=0.1, atol=exact[2 * i + k].abs().max().item() / 50)
               for i, state in enumerate(states) for k, name in enumerate(("exp_avg", "exp_avg_sq")))
    megatron.install(state_format="float32")
    params, hybrid = resumed(params, hybrid)
    assert [moment.tolist() for moment in moments_of(hybrid)] == [
        state[name].tolist() for state in states for name in ("exp_avg", "exp_avg_sq")]


def test_float32_moments_that_megatron_writes_get_the_format_back():
    megatron.install(state_format="quantized8")
    params, hybrid = make()
    step(params, hybrid, 0)
    before = moments_of(hybrid)
    for param in params:  # as DistributedOptimizer loads its checkpoints
        exact = dequantized(hybrid.state[param], hybrid.param_to_inner_param[param])
        hybrid.state[param].update({name: exact[name] for name in ("exp_avg", "exp_avg_sq")})
    hybrid._sync_hdo_state_to_sub_optimizers()
    assert all(torch.equal(moment, other) for moment, other in zip(moments_of(hybrid), before))


@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_that_are_loaded_into_the_model_are_stepped(dtype, is_recorded):
    megatron.install()
    params, hybrid = make(dtype, betas=(0.0, 0.0), eps=1.0)
    step(params, hybrid, 0)
    loaded = [torch.randn(param.shape).to(param.dtype) for param in params]
    for param, weight in zip(params, loaded):
        if is_recorded:
            with torch.no_grad():
                param.copy_(weight)
        else:
            param.data.copy_(weight)
    if not is_recorded:
        hybrid.update_fp32_param_by_new_param()
    for group in hybrid.param_groups:
        group["lr"] = 0.0
    step(params, hybrid, 1)
    assert bits(params) == bits(loaded)


def test_masters_keep_their_bits_where_a_written_weight_is_equal():
    megatron.install()
    ends = []
    for writes in (False, True):
        params, hybrid = make()
        for number in range(3):
            step(params, hybrid, number)
            if writes:
                with torch.no_grad():
                    for param in params:
                        weight = param.cpu()
                        weight.view(-1)[5] = 0.5
                        param.copy_(weight)
        ends.append([hybrid.param_to_inner_param[param].view(-1) for param in params])
    for alone, written in zip(*ends):
        assert (alone != written).nonzero().tolist() == [[5]]


def test_one_call_steps_the_params_of_a_bucket(monkeypatch):
    megatron.install()
    params, hybrid = make(overlap=True)
    assert [[len(group["params"]) for group in each.param_groups] for each in hybrid.cpu_optimizers] == [[2, 1]]
    monkeypatch.setattr(cpu_offloading.HybridDeviceOptimizer, "_bucket_elems", 2100)
    params, hybrid = make(overlap=True)
    assert [[len(group["params"]) for group in each.param_groups] for each in hybrid.cpu_optimizers] == [[2], [1]]
    monkeypatch.setattr(cpu_offloading.HybridDeviceOptimizer, "_bucket_elems", 1)
    assert len(make(overlap=True)[1].cpu_optimizers) == 3


def test_reload_model_params_copies_model_params_to_main_params_first():
    megatron.install()
    params, hybrid = make(torch.float32)
    optimizer = object.__new__(distrib_optimizer.DistributedOptimizer)
    models = [torch.randn(param.shape) for param in params]
    ranges = {"param": types.SimpleNamespace(start=0, end=None, size=0)}
    optimizer.optimizer, optimizer.is_stub_optimizer = hybrid, False
    optimizer.ddp_config = types.SimpleNamespace(use_megatron_fsdp=False)
    optimizer.config = types.SimpleNamespace(use_precision_aware_optimizer_no_fp8_or_ds_fp8=False)
    optimizer._is_distopt_quantized_param = lambda _: False
    flat = [fake_gpu.fake(torch.zeros(param.numel())) for param in params]
    optimizer.model_float16_groups, optimizer.shard_fp32_from_float16_groups = [models], [flat]
    optimizer.model_fp32_groups = optimizer.shard_fp32_groups = []

    def range_of(model):
        return {"param": types.SimpleNamespace(start=0, end=model.numel(), size=model.numel())}
    optimizer._get_model_param_range_map = range_of
    optimizer.optimizer = hybrid = cpu_offloading.HybridDeviceOptimizer(
        flat, offload_fraction=1.0, cpu_optimizer_cls=torchs, gpu_optimizer_cls=torchs, param_update_in_fp32=True,
        lr=0.0, weight_decay=0.0)
    optimizer._copy_model_params_to_main_params()
    step(flat, hybrid, 0)
    assert bits(flat) == bits([model.view(-1) for model in models]) and optimizer.optimizer is hybrid


def test_install_replaces_the_class_in_every_module_and_uninstall_puts_it_back():
    theirs, copies = cpu_offloading.HybridDeviceOptimizer, distrib_optimizer.DistributedOptimizer.__dict__[
        "_copy_model_params_to_main_params"]
    for _ in range(2):
        megatron.install(threads=1)
        ours = cpu_offloading.HybridDeviceOptimizer
        assert ours is not theirs and issubclass(ours, theirs)
        import megatron.core.optimizer as package
        assert package.HybridDeviceOptimizer is distrib_optimizer.HybridDeviceOptimizer is ours
    megatron.uninstall()
    megatron.uninstall()
    assert package.HybridDeviceOptimizer is distrib_optimizer.HybridDeviceOptimizer is theirs
    assert distrib_optimizer.DistributedOptimizer.__dict__["_copy_model_params_to_main_params"] is copies


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("state_format", [None, "float32", "bfloat16", "quantized8"])
def test_distributed_checkpoints_have_elements_and_resume_to_the_same_bits(state_format, dtype):
    # DistributedOptimizer itself needs a GPU: see megatron_checkpoint.py. Its functions for one param do not.
    distributed = distrib_optimizer.DistributedOptimizer

    def owner(params, hybrid):
        return types.SimpleNamespace(
            optimizer=hybrid, config=types.SimpleNamespace(use_precision_aware_optimizer_no_fp8_or_ds_fp8=True),
            model_param_group_index_map=dict(zip(params, ((0, 0), (0, 1), (1, 0)))))

    megatron.install(**({} if state_format is None else {"state_format": state_format}))
    params, hybrid = make(dtype)
    for number in range(3):
        step(params, hybrid, number)
    saved = [through_a_file(distributed._get_main_param_and_optimizer_states(owner(params, hybrid), param))
             for param in params]
    for param, tensors in zip(params, saved):
        assert all(tensors[name].shape == param.shape and tensors[name].is_floating_point()
                   for name in ("param", "exp_avg", "exp_avg_sq"))
        tensors["step"] = torch.tensor(1.0)  # Megatron loads that of the optimizer that loads
    others, loads = make(dtype, seed=5)
    loads.dummy_step()
    with torch.no_grad():
        for other, param in zip(others, params):
            other.copy_(param)
    for other, tensors in zip(others, saved):
        distributed._set_main_param_and_optimizer_states(owner(others, loads), other, tensors)
    loads._take_loaded_states([{"step": 3}, {"step": 3}])
    for number in range(3, 6):
        step(params, hybrid, number)
        step(others, loads, number)
    assert bits(others) == bits(params)
    for one, other in zip(moments_of(loads), moments_of(hybrid)):
        assert one.dtype == other.dtype and torch.equal(one, other)


def test_other_classes_stay_and_refused_options_change_nothing():
    for options in ({"max_norm": 1.0}, {"state_format": "float8"}, {"state_format": "split_float32+bfloat16"},
                    {"overlap": True}, {"zenflow": {}}, {"nonsense": 1}, {"lr": 1.0}, {"betas": (0.9, 0.95)},
                    {"eps": 1e-5}, {"weight_decay": 0.1}):
        with pytest.raises((adamant.InvalidArgument, TypeError), match=next(iter(options))):
            megatron.install(**options)
    assert megatron._installed is None
    megatron.install()
    _, hybrid = make(cpu_optimizer_cls=lambda groups: torch.optim.SGD(groups, lr=0.1))
    assert isinstance(hybrid.cpu_optimizers[0], torch.optim.SGD)
    with pytest.raises(adamant.InvalidArgument, match="amsgrad"):
        make(amsgrad=True)


@pytest.mark.parametrize("seed", [{}, {"rounding_seed": 2**64 - 1}])
def test_buckets_have_random_numbers_of_their_own(seed, monkeypatch):
    """Params of several buckets have the same index, which takes the place of a name."""
    megatron.install(state_format="bfloat16", **seed)
    monkeypatch.setattr(cpu_offloading.HybridDeviceOptimizer, "_bucket_elems", 1)
    weight = torch.randn(64, 32)
    params = [fake_gpu.fake(weight), fake_gpu.fake(weight)]
    hybrid = cpu_offloading.HybridDeviceOptimizer(
        [{"params": params}], offload_fraction=1.0, cpu_optimizer_cls=torchs, gpu_optimizer_cls=torchs,
        param_update_in_fp32=True, overlap_cpu_optimizer_d2h_h2d=True, lr=1e-2)
    for _ in range(2):
        for param in params:
            param.grad = torch.ones(64, 32) * 0.3
        hybrid.step()
    one, two = (state["exp_avg_sq"] for state in hybrid.state.values())
    assert one.dtype == torch.bfloat16 and not torch.equal(one, two)


def test_isinstance_answers_as_before():
    """Also about optimizers that were made before install(), whose reload_model_params() asks for their class."""
    original = cpu_offloading.HybridDeviceOptimizer
    made = [make()[1]]
    for options in ({"state_format": "bfloat16"}, {"state_format": "quantized8"}):
        megatron.install(**options)
        made.append(make()[1])

    class Own(cpu_offloading.HybridDeviceOptimizer):
        pass
    for kind in (cpu_offloading.HybridDeviceOptimizer, distrib_optimizer.HybridDeviceOptimizer, original):
        assert all(isinstance(each, kind) for each in made) and issubclass(Own, kind) and issubclass(original, kind)
        assert not isinstance(torch.nn.Linear(1, 1), kind) and not issubclass(torchs, kind)
    assert not any(isinstance(each, Own) for each in made)
    megatron.uninstall()
    assert all(isinstance(each, cpu_offloading.HybridDeviceOptimizer) for each in made)


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_options_after_install_of_the_torch_classes(kind):
    adamant.torch.install()
    try:
        megatron.install(state_format="quantized8")
        params, hybrid = make(cpu_optimizer_cls=getattr(torch.optim, kind))
    finally:
        adamant.torch.uninstall()
    step(params, hybrid, 0)
    assert all(state["exp_avg"].dtype == torch.uint8 for state in hybrid.state.values())
