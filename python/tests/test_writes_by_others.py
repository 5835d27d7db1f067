# SPDX-License-Identifier: Apache-2.0
"""Weights and gradients that others write between backward() and step(), or between steps, also where torch does not
record the write."""
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from adamant import InvalidArgument  # noqa: E402
from adamant.torch import AdamW  # noqa: E402


def sharded(mesh, dtype=torch.float32):
    from torch.distributed.fsdp import fully_shard
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).to(dtype)
    fully_shard(model, mesh=mesh)
    return model


def backward(model, scale=1.0):
    dtype = next(model.parameters()).dtype
    (model(torch.full((2, 64), scale, dtype=dtype)) - 1).square().mean().backward()


# DTensors: torch._foreach_ operators and distributed checkpoints write shards without torch recording it.

@pytest.mark.parametrize("change", [
    lambda params: nn.utils.clip_grad_norm_(params, 1e-3),
    lambda params: nn.utils.clip_grad_value_(params, 1e-5),
    lambda params: torch._foreach_mul_([p.grad for p in params], 0.5),
    lambda params: [p.grad.to_local().mul_(0.5) for p in params],
    lambda params: [p.grad.mul_(0.5) for p in params]])
@pytest.mark.parametrize("options", [{"overlap": True}, {"overlap": True, "max_norm": 1e9}])
def test_changed_gradients_of_dtensors_are_not_ignored(mesh, change, options):
    model = sharded(mesh)
    optimizer = AdamW(model.parameters(), lr=1e-2, **options)
    for step in range(3):
        backward(model, 1.0 + step)
        optimizer.step()
        optimizer.zero_grad()
    backward(model)
    with torch.no_grad():
        change(list(model.parameters()))
    with pytest.raises(InvalidArgument, match="the gradient of .* was changed after backward"):
        optimizer.step()


def load_in_place(model, folder, values):
    import torch.distributed.checkpoint as checkpoint
    with torch.no_grad():
        torch._foreach_copy_([p.to_local() for p in model.parameters()], values)
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=folder)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    return lambda: checkpoint.load({"model": model.state_dict()}, checkpoint_id=folder)


@pytest.mark.parametrize("options", [{"master": True}, {"offload": True}, {"state_format": "split_float32"}, {}])
@pytest.mark.parametrize("way", ["load", "foreach", "local", "dtensor"])
def test_weights_of_dtensors_written_by_others_are_kept(mesh, tmp_path, options, way):
    model = sharded(mesh, torch.bfloat16)
    params = list(model.parameters())
    values = [torch.full_like(p.to_local(), 0.5) for p in params]
    write = {"load": load_in_place(model, tmp_path / "checkpoint", values),
             "foreach": lambda: torch._foreach_mul_(params, 2.0),
             "local": lambda: [p.to_local().mul_(2.0) for p in params],
             "dtensor": lambda: [p.mul_(2.0) for p in params]}[way]
    optimizer = AdamW(params, lr=1e-4, track_changes=True, **options)
    for _ in range(2):
        backward(model)
        optimizer.step()
        optimizer.zero_grad()
    optimizer.changed_weights()
    with torch.no_grad():
        write()
    written = [p.to_local().detach().clone() for p in params]
    assert sum(len(change.indices) for change in optimizer.changed_weights()) == sum(p.numel() for p in params)
    backward(model)
    optimizer.step()
    for p, before in zip(params, written):
        assert (p.to_local() - before).abs().max() < 0.02


# Plain params.

@pytest.mark.parametrize("options", [{"master": True}, {"offload": True}, {"state_format": "split_float32"},
                                     {"overlap": True, "max_norm": 1.0, "master": True},
                                     {"zenflow": {"topk_ratio": 1.0}, "master": True}])
def test_new_memory_at_the_same_address_is_new(options):
    memory = bytearray(2 * 64 * 64 + 4096)
    param = nn.Parameter(torch.frombuffer(memory, dtype=torch.bfloat16, count=4096).view(64, 64))
    optimizer = AdamW([param], lr=1e-4, track_changes="zenflow" not in options, **options)
    for _ in range(2):
        param.sum().backward()
        optimizer.step()
    if "zenflow" in options:
        optimizer.flush()
    else:
        optimizer.changed_weights()
    address = param.data_ptr()
    param.data = torch.empty(0, dtype=torch.bfloat16)  # as engines that release weights
    new = torch.frombuffer(memory, dtype=torch.bfloat16, count=4096).view(64, 64)
    new.data.fill_(3.0)
    param.data = new
    assert param.data_ptr() == address
    if "zenflow" not in options:
        assert sum(len(change.indices) for change in optimizer.changed_weights()) == 4096
    param.grad = None
    param.sum().backward()
    optimizer.step()
    assert (param - 3).abs().max() < 0.02
