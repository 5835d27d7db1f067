# SPDX-License-Identifier: Apache-2.0
"""What training programs do around an optimizer: compiled steps, layouts of convolutions, handlers of signals."""
import copy
import gc
import signal
import threading
import time
import weakref

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from adamant import InvalidArgument  # noqa: E402
from adamant.torch import AdamW, quantized  # noqa: E402

MODES = [{}, {"overlap": True, "max_norm": 1.0}, {"accumulate": 2}, {"offload": True}, {"master": True},
         {"zenflow": {"topk_ratio": 1.0}}]


@pytest.mark.parametrize("options", MODES)
@pytest.mark.parametrize("shape", [(8, 4, 1, 1), (4, 1, 3, 3), (1, 1, 4, 8)])
def test_strides_of_dimensions_of_size_1_do_not_matter(options, shape):
    torch.manual_seed(0)
    param = nn.Parameter(torch.randn(shape))
    plain = nn.Parameter(param.detach().clone())
    optimizer, reference = AdamW([param], lr=1e-2, **options), AdamW([plain], lr=1e-2, **options)
    for _ in range(3):
        for _ in range(options.get("accumulate", 1)):
            gradient = torch.randn(shape)
            other = gradient.as_strided(shape, [7 if size == 1 else stride
                                                for size, stride in zip(shape, gradient.stride())])
            plain.backward(gradient)
            param.backward(other)
            if "overlap" not in options and "accumulate" not in options:
                param.grad = other
        optimizer.step()
        reference.step()
        optimizer.zero_grad()
        reference.zero_grad()
    if "zenflow" in options:
        optimizer.flush()
        reference.flush()
    assert torch.equal(param, plain)


@pytest.mark.skipif(not hasattr(torch._dynamo.config, "compiled_autograd"), reason="needs a newer torch")
@pytest.mark.parametrize("options", [{}, {"overlap": True}, {"overlap": True, "max_norm": 0.1}, {"accumulate": 2},
                                     {"accumulate": 2, "overlap": True, "master": True}])
def test_compiled_autograd(options):
    """Has the bits of an uncompiled backward(), or is refused: it reads p.grad before a hook moves it."""
    def train(is_compiled):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
        optimizer = AdamW(model.parameters(), lr=1e-2, **options)

        def backward(batch):
            model(batch).square().mean().backward()
        with torch._dynamo.config.patch(compiled_autograd=is_compiled):
            run = torch.compile(backward, backend="eager") if is_compiled else backward
            for _ in range(3):
                optimizer.zero_grad()
                for _ in range(options.get("accumulate", 1)):
                    run(torch.randn(4, 8))
                optimizer.step()
        return [param.detach() for param in model.parameters()]
    if "accumulate" in options:
        with pytest.raises(InvalidArgument, match="compiled autograd, which would add earlier gradients"):
            train(True)
    else:
        assert all(torch.equal(a, b) for a, b in zip(train(True), train(False)))


@pytest.mark.parametrize("change", ["nothing", "freeze", "load_state_dict", "unfreeze"])
def test_a_step_in_a_compiled_function(change):
    torch._dynamo.reset()
    ends = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
        optimizer = AdamW(model.parameters(), lr=1e-2)

        def step():
            optimizer.step()

        run = torch.compile(step, backend="eager") if is_compiled else step

        def train(steps):
            for _ in range(steps):
                model(torch.ones(2, 16)).square().mean().backward()
                run()
                optimizer.zero_grad()

        if change == "unfreeze":
            model.requires_grad_(False)
            for param in model.parameters():
                param.requires_grad_(True)
                train(2)
        train(2)
        if change == "freeze":
            model[0].weight.requires_grad_(False)
        if change == "load_state_dict":
            optimizer.load_state_dict(optimizer.state_dict())
        train(2)
        ends.append([param.detach().clone() for param in model.parameters()])
    for one, other in zip(*ends):
        assert torch.equal(one, other)


@pytest.mark.parametrize("options", MODES)
def test_a_step_in_inference_mode(options):
    param = nn.Parameter(torch.ones(64, 8))
    optimizer = AdamW([param], lr=1e-2, **options)
    for _ in range(3):
        for _ in range(options.get("accumulate", 1)):
            param.square().sum().backward()
        with torch.inference_mode():
            optimizer.step()
        optimizer.zero_grad()
    assert (param < 1).all()


@pytest.mark.parametrize("options", MODES)
def test_sparse_gradients_are_refused_by_name(options):
    table = nn.Embedding(8, 4, sparse=True)
    optimizer = AdamW(table.parameters(), **options)
    with pytest.raises(RuntimeError, match="has a sparse gradient"):
        table(torch.tensor([1, 2])).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("options", MODES)
@pytest.mark.parametrize("name, value", [("lr", "1e-3"), ("eps", "1e-8"), ("weight_decay", "0.1"),
                                         ("betas", ("0.9", "0.99"))])
def test_texts_are_no_hyperparameters(options, name, value):
    param = nn.Parameter(torch.ones(8, 8))
    optimizer = AdamW([param], lr=1e-3, **options)

    def step():
        for _ in range(options.get("accumulate", 1)):
            param.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    step()
    before, good = param.detach().clone(), optimizer.param_groups[0][name]
    optimizer.param_groups[0][name] = value
    with pytest.raises(InvalidArgument, match=f"must be numbers .*{name}"):
        step()
    assert torch.equal(param, before)
    optimizer.param_groups[0][name] = good
    optimizer.zero_grad()
    step()


@pytest.mark.parametrize("options", [{}, {"offload": True}, {"zenflow": {"topk_ratio": 0.5}}])
def test_checkpoints_taken_by_a_handler_of_signals_are_of_whole_steps(options):
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(256, 64)) for _ in range(4)]
    optimizer = AdamW(params, lr=1e-2, **options)
    saved = []

    def save(number, frame):
        states = optimizer.state_dict()["state"]
        saved.append({float(state["step"]) for state in states.values()})

    before = signal.signal(signal.SIGUSR1, save)
    stop = threading.Event()

    def send():
        while not stop.is_set():
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
            time.sleep(0.002)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        for _ in range(60):
            for param in params:
                param.grad = torch.randn_like(param)
            optimizer.step()
    finally:
        stop.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert saved and all(len(steps) <= 1 for steps in saved)


@pytest.mark.parametrize("options", MODES + [{"state_format": "quantized8"}, {"track_changes": True}])
@pytest.mark.parametrize("shape", [(), (0, 4), (1,), (257,), (64, 3)])
def test_dtensors_of_odd_shapes(mesh, options, shape):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    ends = []
    for placement in (None, Shard(0) if shape else Replicate()):
        values = torch.ones(shape)
        param = nn.Parameter(values if placement is None else distribute_tensor(values, mesh, [placement]))
        optimizer = AdamW([param], lr=1e-2, **options)
        for _ in range(3):
            for _ in range(options.get("accumulate", 1)):
                (param * 2.0).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        ends.append(param.detach() if placement is None else param.to_local().detach())
    assert torch.equal(*ends)


def orthogonal(size):
    return torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(5)))[0] * 1.5


@pytest.mark.parametrize("options", [{}, {"max_norm": 1e9}, {"offload": True}])
def test_weights_that_backward_still_needs_are_not_stepped_silently(options):
    """A use of a weight without its gradient, as in the codebook of a VQ-VAE, BYOL and tied projections."""
    torch.manual_seed(0)
    first, weight = nn.Parameter(torch.randn(8, 16) * 0.1), nn.Parameter(torch.randn(16, 16) * 0.1)
    optimizer = AdamW([first, weight], lr=1e-2, overlap=True, **options)

    def train(step):
        hidden = (first @ weight.detach()).tanh()
        (hidden @ weight).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    train(0)  # overlap begins after it
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        train(1)


@pytest.mark.parametrize("options", [{}, {"overlap": True}, {"overlap": True, "max_norm": 1.0}, {"accumulate": 2},
                                     {"offload": True, "overlap": True}, {"overlap": True, "accumulate": 2}])
def test_gradients_in_one_flat_buffer(options):
    def trained(is_flat, **arguments):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        params = list(model.parameters())
        optimizer = AdamW(params, lr=1e-2, **arguments)
        flat = torch.zeros(sum(param.numel() for param in params))

        def use_views():
            begin = 0
            for param in params if is_flat else ():
                param.grad = flat[begin:begin + param.numel()].zero_().view_as(param)
                begin += param.numel()

        for step in range(4):
            optimizer.zero_grad()
            use_views()
            for _ in range(options.get("accumulate", 1)):
                model(torch.full((2, 8), step + 1.0)).square().mean().backward()
            optimizer.step()
        return params

    plain = {key: value for key, value in options.items() if key in ("max_norm", "accumulate")}
    ours, others = trained(True, **options), trained(False, **plain)
    assert all(torch.equal(a, b) for a, b in zip(ours, others))


def test_a_changed_gradient_in_a_flat_buffer_is_noticed():
    params = [nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))]
    optimizer = AdamW(params, overlap=True, max_norm=1.0)
    for step in range(2):
        flat = torch.zeros(16)
        params[0].grad, params[1].grad = flat[:8], flat[8:]
        (params[0] + params[1]).sum().backward()
        if step == 1:
            params[0].grad.mul_(0.5)
            with pytest.raises(InvalidArgument, match="gradient of group0.0 was changed"):
                optimizer.step()
        else:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("options", [{"max_norm": 1.0, "accumulate": 2}, {"offload": True}, {"offload": True, "max_norm": 1.0},
                                     {"zenflow": {"topk_ratio": 0.5}}, {}])
def test_a_deleted_optimizer_is_freed_at_once(options):
    gc.collect()
    gc.disable()
    try:
        params = [nn.Parameter(torch.ones(8, 8)) for _ in range(3)]
        optimizer = AdamW(params, **options)
        for step in range(3):
            for _ in range(options.get("accumulate", 1)):
                torch.autograd.backward([param.sum() for param in params[:3 if step != 1 else 2]])
            optimizer.step()
            optimizer.zero_grad()
        known = [weakref.ref(optimizer), *map(weakref.ref, params),
                 *(weakref.ref(value) for state in optimizer.state.values() for value in state.values())]
        del optimizer, params
        deadline = time.monotonic() + 60  # copy threads that are idle end after a second
        while any(reference() is not None for reference in known) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [reference() is None for reference in known] == [True] * len(known)
    finally:
        gc.enable()


@pytest.mark.parametrize("options", [{}, {"max_norm": 1.0}, {"accumulate": 2}])
@pytest.mark.parametrize("offload", [False, True])
def test_an_optimizer_with_an_open_step_is_freed(options, offload):
    """As after an exception between backward() and step(). Freed memory would be written, or rolled back into."""
    def train():
        params = [nn.Parameter(torch.ones(100000)) for _ in range(4)]
        optimizer = AdamW(params, offload=offload, overlap=True, **options)
        for step in range(2):
            for _ in range(options.get("accumulate", 1)):
                torch.autograd.backward([param.sum() for param in params])
            if step == 0:
                optimizer.step()
                optimizer.zero_grad()
        assert optimizer._open is not None

    for _ in range(5):
        train()
        others = [torch.full((100000,), 7.0) for _ in range(20)]  # in the memory that was freed
        time.sleep(0.02)
        assert all(bool((other == 7).all()) for other in others)


@pytest.mark.parametrize("late", [False, True])
def test_a_state_of_zenflow_after_a_skipped_first_step_loads(late):
    def new():
        params = [nn.Parameter(torch.ones(8, 8)) for _ in range(2)]
        return params, AdamW(params[:1], on_nonfinite="skip", zenflow={"topk_ratio": 0.5})

    params, optimizer = new()
    if late:
        params[0].grad = torch.ones(8, 8)
        optimizer.step()
        optimizer.add_param_group({"params": params[1:]})
        params[1].grad = torch.ones(8, 8)
    params[0].grad = torch.full((8, 8), float("inf"))
    optimizer.step()
    assert optimizer.last_report.skipped
    saved = copy.deepcopy(optimizer.state_dict())
    others, other = new()
    if late:
        other.add_param_group({"params": others[1:]})
    other.load_state_dict(saved)
    optimizer.load_state_dict(saved)
    for all_params, each in ((params, optimizer), (others, other)):
        with torch.no_grad():
            for param in all_params:
                param.copy_(torch.ones(8, 8))
                param.grad = torch.full((8, 8), 0.5)
        each.take_weights()
        each.step()
        each.flush()
    assert torch.equal(params[0], others[0])


@pytest.mark.parametrize("kind", ["float32", "float64", "int64"])
def test_numpy_hyperparameters_save_and_load(kind):
    numpy = pytest.importorskip("numpy")
    number = getattr(numpy, kind)
    param = nn.Parameter(torch.ones(4))
    lr = number(1) if kind == "int64" else number(0.01)
    for options in ({"lr": lr, "weight_decay": lr, "eps": lr, "betas": (number(0), number(0))},
                    {"lr": 0.01, "betas": torch.tensor([0.5, 0.75])}):
        optimizer = AdamW([param])
        optimizer.param_groups[0].update(options)
        param.grad = torch.ones(4)
        optimizer.step()
        loaded = AdamW([param])
        loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        assert float(loaded.param_groups[0]["lr"]) == float(options["lr"])
        loaded.step()
    for bad in ("0.1", True, float("nan"), None, 1j, numpy.zeros(2), float("inf"), 10**400, numpy.True_, torch.tensor(True)):
        state = AdamW([param]).state_dict()
        state["param_groups"][0]["lr"] = bad
        with pytest.raises(InvalidArgument, match="group 0: lr is"):
            AdamW([param]).load_state_dict(state)


def test_a_groups_own_options_survive_a_state_of_torchs_class():
    weight, bias = nn.Parameter(torch.ones(64, 64)), nn.Parameter(torch.ones(5))
    groups = [{"params": [weight]}, {"params": [bias], "state_format": "float32", "replicated": True}]
    theirs = torch.optim.AdamW([{"params": [weight]}, {"params": [bias]}])
    optimizer = AdamW(groups, state_format="quantized8")
    optimizer.load_state_dict(theirs.state_dict())
    for param in (weight, bias):
        param.grad = torch.ones_like(param)
    optimizer.step()
    assert optimizer.state[weight]["exp_avg"].dtype == torch.uint8
    assert optimizer.state[bias]["exp_avg"].dtype == torch.float32
    assert optimizer.param_groups[1]["replicated"] is True
    theirs.step()
    saved = copy.deepcopy(theirs.state_dict())
    saved["state"][0] = quantized(saved["state"][0])
    optimizer.load_state_dict(saved)
