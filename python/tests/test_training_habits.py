# SPDX-License-Identifier: Apache-2.0
"""What training programs do around an optimizer: compiled steps, layouts of convolutions, handlers of signals."""
import signal
import threading
import time

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from adamant import InvalidArgument  # noqa: E402
from adamant.torch import AdamW  # noqa: E402

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
