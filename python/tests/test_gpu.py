# SPDX-License-Identifier: Apache-2.0
"""Params on a GPU have the bits of params in host memory, in every mode and after every user action.

Needs a GPU. Without one, gpu_suite.py covers ZenFlow on a GPU, and tests with offload=True the copies.
"""
import copy
import io
import warnings

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

import adamant  # noqa: E402
from adamant.torch import AdamW  # noqa: E402

from optimizer_modes import MODES, Run, assert_same_bits, bits, values  # noqa: E402
from test_user_actions import actions  # noqa: E402
from test_zenflow import f16, formats  # noqa: E402

GPU = torch.device("cuda", 0)
ZENFLOW = {"topk_ratio": 0.1, "select_interval": 4, "update_interval": 2}
CLOCKS_PER_MS = 1_500_000  # about
busy = torch.cuda._sleep  # occupies the current stream for a number of clocks


def error_of(run, name):
    """Applies an action, and returns the type of its error or None."""
    try:
        actions[name](run)
    except Exception as error:
        return type(error)
    return None


@pytest.mark.parametrize("name", actions)
@pytest.mark.parametrize("mode", MODES)
def test_after_an_action_a_run_on_a_gpu_has_the_bits_of_one_in_host_memory(mode, name):
    here, there = Run(mode), Run(mode, device=GPU)
    for run in (here, there):
        for _ in range(3):
            run.step()
        if mode == "zenflow":
            run.optimizer.flush()  # writing unpublished weights is an error
            run.optimizer.state_dict()  # the GPU has newer states before it
    assert error_of(here, name) == error_of(there, name)
    if mode == "zenflow":
        here.forget_removed(), there.forget_removed()
    for _ in range(3):
        errors = []
        for run in (here, there):
            try:
                run.step()
                errors.append(None)
            except Exception as error:
                errors.append((type(error), str(error).replace("cuda:0", "cpu")))
        assert errors[0] == errors[1]
        if mode == "zenflow":
            here.optimizer.flush(), there.optimizer.flush()
        assert_same_bits(here, there, f"in step {here.time}")


def assert_same_state_dicts(mine, theirs):
    first, second = mine.state_dict()["state"], theirs.state_dict()["state"]
    assert first.keys() == second.keys()
    for number, state in first.items():
        assert state.keys() == second[number].keys()
        for name, value in state.items():
            assert bits(value) == bits(second[number][name]), (number, name)
            assert value.device.type == "cpu"


# Work on streams

class Net(torch.nn.Module):
    """Tied weights, matrices, vectors, and a param that gets no gradient in some steps."""

    def __init__(self, width=256, tokens=97):
        super().__init__()
        self.embedding = torch.nn.Parameter(values(1, (tokens, width)) / 16)
        self.layers = torch.nn.ParameterList(values(10 + i, (width, width)) / 16 for i in range(12))
        self.scales = torch.nn.ParameterList(values(40 + i, (width,)) for i in range(12))
        self.tokens = tokens

    def forward(self, tokens, checkpointed=False):
        x = self.embedding[tokens]
        for number, (layer, scale) in enumerate(zip(self.layers, self.scales)):
            def block(x, layer=layer, scale=scale):
                return x + torch.tanh(x @ layer.t()) * scale
            if checkpointed:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=bool(number % 2))
            else:
                x = block(x)
        return torch.nn.functional.cross_entropy(x @ self.embedding.t(), tokens.roll(1))


def gradients_of(net, t, checkpointed):
    net.zero_grad()
    net(torch.arange(t, t + 64, device=GPU) % net.tokens, checkpointed).backward()


@pytest.mark.parametrize("on_own_stream", [False, True])
@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("options", [
    {}, {"max_norm": 0.01}, {"overlap": True}, {"overlap": True, "max_norm": 0.01},
    {"overlap": True, "on_nonfinite": "skip"}, {"accumulate": 2, "overlap": True, "max_norm": 0.01},
    {"state_format": "quantized8"}, {"zenflow": ZENFLOW}], ids=str)
def test_training_with_a_busy_gpu(options, checkpointed, on_own_stream):
    """Copies are ordered after late gradients, and before immediate reads of weights and reuse of memory."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    net = Net().to(GPU)
    twin = [torch.nn.Parameter(param.detach().cpu().clone()) for param in net.parameters()]
    plain = {name: value for name, value in options.items() if name != "overlap"}
    optimizer, other = AdamW(net.parameters(), lr=0.01, **options), AdamW(twin, lr=0.01, **plain)
    stream = torch.cuda.Stream() if on_own_stream else torch.cuda.current_stream()
    stream.wait_stream(torch.cuda.default_stream())
    try:
        with torch.cuda.stream(stream):
            for t in range(6):
                for part in range(options.get("accumulate", 1)):
                    busy(3 * CLOCKS_PER_MS)
                    gradients_of(net, 3 * t + part, checkpointed)
                    for param in twin:
                        param.grad = None
                    sum((param * of.grad.cpu().clone()).sum() for param, of in zip(twin, net.parameters())).backward()
                busy(3 * CLOCKS_PER_MS)
                optimizer.step()
                read = [param.detach().clone() for param in net.parameters()]
                net.zero_grad(set_to_none=True)
                garbage = [torch.full_like(param, float("nan")) for param in net.parameters()]
                other.step()
                stream.synchronize()
                del garbage
                if "zenflow" in options:
                    optimizer.flush(), other.flush()
                    read = list(net.parameters())
                for number, (mine, theirs) in enumerate(zip(read, twin)):
                    assert bits(mine) == bits(theirs), f"param {number} differs in step {t}"
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("kind,options", formats, ids=lambda it: str(it).replace("torch.", ""))
@pytest.mark.parametrize("zenflow", [None, ZENFLOW,
                                     {"topk_ratio": 0.3, "update_interval": "auto", "scope": "all_params"},
                                     {"topk_ratio": 1.0}, {"topk_ratio": 0.2, "overlap": False}], ids=str)
@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_every_format_has_the_bits_of_host_memory(max_norm, zenflow, kind, options):
    sizes = [(64, 20), (20,), (128, 3, 10), (), (64, 7), (0, 3), (512, 300)]
    sides = [[torch.nn.Parameter(values(number, size).to(kind).to(device)) for number, size in enumerate(sizes)]
             for device in ("cpu", GPU)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # of params that zenflow steps in host memory after all
        optimizers = [AdamW(side, lr=0.01, max_norm=max_norm, zenflow=zenflow, **options) for side in sides]
        for t in range(9):
            for side, optimizer in zip(sides, optimizers):
                for number, param in enumerate(side):
                    param.grad = values(100 * t + number + 50, param.shape, kind).to(param.device)
                optimizer.step()
    assert_same_state_dicts(*optimizers)
    for optimizer in optimizers if zenflow else ():
        optimizer.flush()
    for number, (p, q) in enumerate(zip(*sides)):
        assert bits(p) == bits(q), number


# What users do with a GPU

@pytest.mark.parametrize("mode", MODES)
def test_a_checkpoint_moves_between_gpu_and_host(mode):
    first = Run(mode, device=GPU)
    for _ in range(3):
        first.step()
    if mode == "zenflow":
        first.optimizer.flush()
    file = io.BytesIO()
    torch.save((first.optimizer.state_dict(), [param.detach() for param in first.known]), file)
    first.step()
    for map_location in (None, "cpu", "cuda"):
        for device in ("cpu", GPU):
            file.seek(0)
            state, params = torch.load(file, map_location=map_location)
            run = Run(mode, device=device)
            for param, value in zip(run.known, params):
                param.data.copy_(value)
            run.optimizer.load_state_dict(state)
            run.time = 3
            run.step()
            assert_same_bits(run, first, (map_location, device))
            assert all(value.device.type == "cpu" for state in run.optimizer.state.values() for value in state.values()
                       if isinstance(value, torch.Tensor) and value.dim()) or mode == "zenflow"


@pytest.mark.parametrize("mode", MODES)
def test_the_model_moves_after_the_optimizer_is_made(mode):
    """lightning and transformers build the optimizer before model.to(device)."""
    run, twin = Run(mode), Run(mode)
    for each in (run, twin):
        each.step()
        if mode == "zenflow":
            each.optimizer.flush()
    for device in (GPU, "cpu", GPU):
        for param in run.known:
            param.data = param.data.to(device)
            param.grad = None
        for each in (run, twin):
            each.step()
            if mode == "zenflow":
                each.optimizer.flush()
        assert_same_bits(run, twin, device)


@pytest.mark.parametrize("mode", [mode for mode in MODES if "zenflow" not in mode])
def test_params_on_gpu_and_host_in_one_optimizer(mode):
    run, twin = Run(mode), Run(mode)
    for param in run.known[::2]:
        param.data = param.data.to(GPU)
    for _ in range(4):
        run.step(), twin.step()
        assert_same_bits(run, twin)


@pytest.mark.parametrize("options", [{}, {"max_norm": 0.5}, {"master": True}], ids=str)
def test_grad_scaler_and_autocast(options):
    """float16 with a GradScaler: a step with infinities is skipped, later ones go on."""
    net, twin = Net().to(GPU), Net().to(GPU)
    mine, theirs = AdamW(net.parameters(), lr=0.01, **options), torch.optim.AdamW(twin.parameters(), lr=0.01)
    scalers = [torch.amp.GradScaler("cuda", init_scale=2.0 ** 40, growth_interval=3) for _ in range(2)]
    for t in range(12):
        for model, optimizer, scaler in ((net, mine, scalers[0]), (twin, theirs, scalers[1])):
            model.zero_grad()
            with torch.autocast("cuda", dtype=f16):
                loss = model(torch.arange(t, t + 64, device=GPU) % model.tokens)
            scaler.scale(loss).backward()
            if optimizer is theirs and "max_norm" in options:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), options["max_norm"])
            if optimizer is mine and "max_norm" in options:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        assert scalers[0].get_scale() == scalers[1].get_scale()
        for p, q in zip(net.parameters(), twin.parameters()):
            assert torch.allclose(p, q, rtol=1e-3, atol=1e-3), t
    assert 2.0 ** 3 < scalers[0].get_scale() < 2.0 ** 40


@pytest.mark.parametrize("mode", MODES)
def test_steps_keep_no_memory(mode):
    run = Run(mode, device=GPU)
    used = []
    for t in range(12):
        run.step()
        run.zero_grad()
        torch.cuda.synchronize()
        used.append(torch.cuda.memory_allocated())
    assert used[-1] <= max(used[4:8])


@pytest.mark.parametrize("mode", [mode for mode in MODES if "overlap" in mode])
def test_dropping_an_optimizer_with_an_open_step(mode):
    for _ in range(20):
        run = Run(mode, device=GPU)
        run.step()
        run.zero_grad()
        run.backward()
        del run
    torch.cuda.synchronize()


@pytest.mark.parametrize("mode", MODES)
def test_copies_and_pickles(mode):
    run = Run(mode, device=GPU)
    for _ in range(2):
        run.step()
    if mode == "zenflow":
        run.optimizer.flush()
    twin = copy.deepcopy(run)
    for number, param in enumerate(twin.known):
        param.number = number
    for _ in range(3):
        run.step(), twin.step()
        assert_same_bits(run, twin)


def test_a_foreign_device_is_refused_by_name():
    param = torch.nn.Parameter(torch.ones(3, device="meta"))
    with pytest.raises(Exception, match="meta"):
        optimizer = AdamW([param])
        param.grad = torch.ones(3, device="meta")
        optimizer.step()


# FSDP2

FSDP2_OPTIONS = [{}, {"max_norm": 0.01}, {"overlap": True}, {"overlap": True, "max_norm": 0.01}, {"accumulate": 2},
                 {"master": True}, {"state_format": "split_float32"}, {"state_format": "split_float32+quantized8"},
                 {"zenflow": {"topk_ratio": 0.34, "select_interval": 4, "update_interval": 2}}]


@pytest.fixture
def group(tmp_path):
    torch.cuda.set_device(0)
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{tmp_path}/store", rank=0,
                                         world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


def sharded_model(offloads):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 64), torch.nn.Tanh(),
                                torch.nn.Linear(64, 64)).to(torch.bfloat16)
    mesh = init_device_mesh("cuda", (1,))
    for layer in (*model[::2], model):
        fully_shard(layer, mesh=mesh, offload_policy=CPUOffloadPolicy() if offloads else OffloadPolicy())
    return model if offloads else model.to(GPU)


def backward_of(model, t):
    model(values(t, (8, 64), torch.bfloat16).to(GPU)).float().square().mean().backward()


@pytest.mark.parametrize("offloads", [False, True], ids=["gpu", "CPUOffloadPolicy"])
@pytest.mark.parametrize("options", FSDP2_OPTIONS, ids=str)
def test_fsdp2_has_the_bits_of_host_memory(group, options, offloads):
    model = sharded_model(offloads)
    params = list(model.parameters())
    twin = [torch.nn.Parameter(param.to_local().detach().cpu().clone()) for param in params]
    if "zenflow" in options and not offloads:
        optimizer = AdamW(params, lr=0.01, process_group=group, **options)
        backward_of(model, 0)
        with pytest.raises(adamant.InvalidArgument, match="a DTensor on a GPU.*CPUOffloadPolicy"):
            optimizer.step()
        return
    optimizer = AdamW(params, lr=0.01, process_group=group, **options)
    other = AdamW(twin, lr=0.01, **{name: value for name, value in options.items() if name != "overlap"})
    for t in range(5):
        for part in range(options.get("accumulate", 1)):
            model.zero_grad()
            busy(3 * CLOCKS_PER_MS)
            backward_of(model, 2 * t + part)
            for param in twin:
                param.grad = None
            sum((param * of.grad.to_local().cpu().clone()).sum() for param, of in zip(twin, params)).backward()
        optimizer.step()
        other.step()
        if "zenflow" in options:
            optimizer.flush(), other.flush()
        for number, (mine, theirs) in enumerate(zip(params, twin)):
            assert bits(mine) == bits(theirs), f"param {number} differs in step {t}"
    assert_same_state_dicts(optimizer, other)


@pytest.mark.parametrize("offloads", [False, True], ids=["gpu", "CPUOffloadPolicy"])
@pytest.mark.parametrize("options", [{}, {"state_format": "split_float32+quantized8"}], ids=str)
def test_fsdp2_checkpoints(group, options, offloads):
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
    runs = []
    for _ in range(2):
        model = sharded_model(offloads)
        runs.append((model, AdamW(model.parameters(), lr=0.01, process_group=group, **options)))
    (model, optimizer), (other_model, other) = runs
    for t in range(2):
        model.zero_grad()
        backward_of(model, t)
        optimizer.step()
    for mine, theirs in zip(other_model.parameters(), model.parameters()):
        mine.to_local().detach().copy_(theirs.to_local().detach())
    set_optimizer_state_dict(other_model, other, get_optimizer_state_dict(model, optimizer))
    for each_model, each in runs:
        each_model.zero_grad()
        backward_of(each_model, 2)
        each.step()
    assert all(bits(mine) == bits(theirs) for mine, theirs in zip(model.parameters(), other_model.parameters()))
