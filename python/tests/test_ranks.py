# SPDX-License-Identifier: Apache-2.0
"""Ranks of a process group: the norm and checkpoints. replicated_norm: torchtitan #766, hyper-parallel #526."""
import pytest

torch = pytest.importorskip("torch")
import ranks  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")

begin = """
import sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
import adamant
from adamant.torch import AdamW
torch.set_num_threads(1)
rank, count, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
world = dist.group.WORLD
def values(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
def norm_of(*gradients):
    return float(torch.cat([g.double().reshape(-1) for g in gradients]).norm())
def near(a, b):
    return abs(float(a) - b) < 1e-5 * b
def refused(call, *words):
    try:
        call()
    except ValueError as error:
        return all(word in str(error) for word in words) or print(error)
    return False
"""
end = """
dist.barrier()
print("ended")
dist.destroy_process_group()
"""


def on_ranks(count, code, folder):
    printed = ranks.on_ranks(count, begin + code + end, folder)
    assert all(out.endswith("ended\n") for out in printed), printed


@pytest.mark.parametrize("options", ['{}', '{"overlap": True}', '{"accumulate": 2}', '{"offload": True}'])
def test_replicated_norm_of_params_ignored_by_fully_shard(options, tmp_path):
    on_ranks(2, f"options = {options}" + """
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128, bias=False), torch.nn.LayerNorm(128), torch.nn.Linear(128, 64, bias=False))
whole = [torch.nn.Parameter(p.detach().clone()) for p in model.parameters()]
ignored = set(model[1].parameters())
fully_shard(model, mesh=init_device_mesh("cpu", (count,)), ignored_params=ignored)
params = list(model.parameters())
optimizer = AdamW(model.named_parameters(), lr=0.01, max_norm=0.5, process_group=world, threads=1, **options)
alone = AdamW(whole, lr=0.01, max_norm=0.5, threads=1)
for step in range(4):
    optimizer.zero_grad()
    total = [0] * len(params)
    for part in range(options.get("accumulate", 1)):
        given = [values(100 * step + 10 * part + i, *p.shape) for i, p in enumerate(whole)]
        loss = 0
        for i, (p, g) in enumerate(zip(params, given)):
            total[i] = total[i] + g
            mine = distribute_tensor(g, p.device_mesh, p.placements).to_local() if hasattr(p, "to_local") else g
            loss = loss + ((p.to_local() if hasattr(p, "to_local") else p) * mine).sum()
        loss.backward()
    for p, g in zip(whole, total):
        p.grad = g
    norm = optimizer.step()
    assert near(norm, norm_of(*total)), (float(norm), norm_of(*total))
    assert float(alone.step()) == float(norm)
for p, q in zip(params, whole):
    assert torch.equal(p.full_tensor() if hasattr(p, "full_tensor") else p, q)
""", tmp_path)


def test_replicated_norm_of_plain_params_shards_and_placements(tmp_path):
    on_ranks(2, """
mesh = init_device_mesh("cpu", (count,))
shared, own = values(1, 64), values(2 + rank, 64)
every = [values(2 + r, 64) for r in range(count)]
def optimizer_of(*groups, **options):
    return AdamW([{"params": [torch.nn.Parameter(torch.ones(64)) for _ in grads], **more} for grads, more in groups],
                 max_norm=1.0, process_group=world, threads=1, **options)
def step(optimizer, *grads):
    params = [p for group in optimizer.param_groups for p in group["params"]]
    before = [p.detach().clone() for p in params]
    for p, g in zip(params, grads):
        p.grad = None if g is None else g.clone()
    try:
        return optimizer.step()
    except ValueError:
        assert all(torch.equal(p, q) for p, q in zip(params, before))  # nothing has changed
        raise
# Decide by the gradients.
optimizer = optimizer_of(([shared, own], {}))
for _ in range(3):
    assert near(step(optimizer, shared, own), norm_of(shared, *every))
# Missing and zero gradients decide nothing; later ones do.
optimizer = optimizer_of(([shared, own], {}))
assert float(step(optimizer, None, None)) == 0
assert float(step(optimizer, torch.zeros(64), torch.zeros(64))) == 0
assert near(step(optimizer, shared, None), norm_of(shared))
assert near(step(optimizer, shared, own), norm_of(shared, *every))
# Replicated gradients that differ later are an error on every rank. The next step works.
assert refused(lambda: step(optimizer, own, own), "group0.0", "replicated", "All-reduce")
# Decide by the group's option.
optimizer = optimizer_of(([shared], {"replicated": True}), ([own], {"replicated": False}))
assert near(step(optimizer, shared, own), norm_of(shared, *every))
assert near(step(optimizer, shared, shared), norm_of(shared, *[shared] * count))
assert refused(lambda: step(optimizer, own, own), "group0.0", "replicated")
assert near(step(optimizer, shared, own), norm_of(shared, *every))
assert refused(lambda: optimizer_of(([shared], {"replicated": "yes"})), "replicated")
# A param that is added on one rank only.
optimizer = optimizer_of(([shared], {}))
assert near(step(optimizer, shared), norm_of(shared))
if rank == 1:
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(64))]})
assert near(step(optimizer, shared, own), norm_of(shared, every[1]))
# A param that is replaced by another.
optimizer = optimizer_of(([shared], {}))
assert near(step(optimizer, shared), norm_of(shared))
optimizer.param_groups[0]["params"] = [torch.nn.Parameter(torch.ones(64))]
optimizer.state.clear()
assert near(step(optimizer, own), norm_of(*every))
# Decide by placements of DTensors.
def placed(values, *placements):
    return torch.nn.Parameter(distribute_tensor(values, mesh, placements))
params = [placed(torch.ones(64), Replicate()), placed(torch.ones(64), Shard(0))]
optimizer = AdamW(params, max_norm=1.0, process_group=world, threads=1)
for _ in range(2):
    for p, g in zip(params, (shared, every[0])):
        p.grad = distribute_tensor(g, mesh, p.placements)
    assert near(optimizer.step(), norm_of(shared, every[0]))
# Vectors with zenflow.
optimizer = optimizer_of(([shared, own], {}), zenflow={"topk_ratio": 0.5})
assert near(step(optimizer, shared, own), norm_of(shared, *every))
""", tmp_path)


def test_replicated_norm_over_a_mesh_of_two_dimensions(tmp_path):
    """HSDP: sharded over two ranks, replicated over two."""
    on_ranks(4, """
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
gradient = values(5, 64, 4)
for group in (world, mesh["shard"].get_group()):
    param = torch.nn.Parameter(distribute_tensor(torch.ones(64, 4), mesh, [Replicate(), Shard(0)]))
    optimizer = AdamW([param], max_norm=1.0, process_group=group, threads=1)
    for _ in range(2):
        param.grad = distribute_tensor(gradient, mesh, param.placements)
        assert near(optimizer.step(), norm_of(gradient))
# Replicated over half of the ranks, with different values on the other half.
values_here = values(7, 32) if rank < 2 else values(10 + rank, 32)
param = torch.nn.Parameter(torch.ones(32))
name = "tied" if rank < 2 else f"own{rank}"
optimizer = AdamW([(name, param)], max_norm=1.0, process_group=world, threads=1)
for _ in range(2):
    param.grad = values_here.clone()
    assert near(optimizer.step(), norm_of(values(7, 32), values(12, 32), values(13, 32)))
""", tmp_path)


@pytest.mark.parametrize("options", ['{}', '{"overlap": True}', '{"accumulate": 2}', '{"on_nonfinite": "skip"}'])
def test_replicated_norm_on_a_rank_without_gradients(options, tmp_path):
    on_ranks(2, f"options = {options}" + """
param = torch.nn.Parameter(torch.ones(100))
optimizer = AdamW([param], max_norm=1.0, process_group=world, threads=1, **options)
for step in range(4):
    optimizer.zero_grad()
    if rank == 0 or step == 2:
        for _ in range(options.get("accumulate", 1)):
            (param * values(step + 10 * rank, 100)).sum().backward()
    scale = options.get("accumulate", 1)
    expected = [values(step + 10 * r, 100) * scale for r in range(1 + (step == 2))]
    norm = optimizer.step()
    assert near(norm, norm_of(*expected)), (step, float(norm), norm_of(*expected))
""", tmp_path)


@pytest.mark.parametrize("options", ['{"max_norm": 0.5}', '{"on_nonfinite": "skip"}', '{"max_norm": 0.5, "overlap": True}',
                                     '{"max_norm": 0.5, "zenflow": {"topk_ratio": 0.1}}', '{"zenflow": {"topk_ratio": 0.1}}'])
def test_shards_of_ranks_that_no_group_names_are_refused(options, tmp_path):
    """Each rank would clip, or skip, by the norm of its own shard."""
    on_ranks(4, f"options = {options}" + """
whole_mesh = init_device_mesh("cpu", (count,))
square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
def optimizer_of(mesh, placements, group):
    param = torch.nn.Parameter(distribute_tensor(values(0, 64, 128), mesh, placements))
    param.grad = distribute_tensor(values(1, 64, 128), mesh, placements)
    return param, AdamW([param], lr=0.1, process_group=group, threads=1, **options)
for mesh, placements, group, has in (
        (whole_mesh, [Shard(0)], None, "over 4 ranks, and process_group is None"),
        (square, [Replicate(), Shard(0)], None, "over 2 ranks, and process_group is None"),
        (both, [Shard(0), Shard(0)], both.get_group("tensor"), "over 4 ranks, and process_group has 2 of them")):
    param, optimizer = optimizer_of(mesh, placements, group)
    before = param.to_local().clone()
    for _ in range(2):
        assert refused(optimizer.step, "group0.0", ": it is sharded " + has, "Pass a process_group of all these ranks")
    assert torch.equal(param.to_local(), before) and "exp_avg" not in optimizer.state[param]
complete = [(whole_mesh, [Shard(0)], world)]
pair = DeviceMesh("cpu", [0, 1])  # ranks 2 and 3 have no shard
param, optimizer = optimizer_of(pair, [Shard(0)], None)
if rank < 2:
    assert refused(optimizer.step, "it is sharded over 2 ranks, and process_group is None")
elif "zenflow" not in options:
    optimizer.step()
if "zenflow" not in options:  # which takes no replicas with a group, and one dimension of a mesh
    complete += [(square, [Replicate(), Shard(0)], square.get_group("shard")), (square, [Replicate(), Shard(0)], world),
                 (both, [Shard(0), Shard(0)], world), (whole_mesh, [Replicate()], None)]
for mesh, placements, group in complete:
    param, optimizer = optimizer_of(mesh, placements, group)
    optimizer.step()
    assert "max_norm" not in options or near(optimizer.last_report.global_norm, norm_of(values(1, 64, 128)))
""", tmp_path)


def test_flat_params_of_fsdp_without_a_group_are_refused(tmp_path):
    on_ranks(2, """
from torch.distributed.fsdp import FullyShardedDataParallel
for use_orig_params in False, True:
    def made(**options):
        torch.manual_seed(0)
        model = FullyShardedDataParallel(torch.nn.Linear(64, 64), use_orig_params=use_orig_params,
                                         device_id=torch.device("cpu"))
        model(values(1, 4, 64)).square().sum().backward()
        return AdamW(model.parameters(), lr=0.1, threads=1, **options)
    for options in {"max_norm": 0.1}, {"on_nonfinite": "skip"}:
        assert refused(made(**options).step, "cannot compute the norm of group0.0", "process_group is None")
    assert made().step() is None
    torch.manual_seed(0)
    alone = torch.nn.Linear(64, 64)
    alone(values(1, 4, 64)).square().sum().backward()
    assert near(made(max_norm=0.1, process_group=world).step(), norm_of(*(p.grad for p in alone.parameters())))
""", tmp_path)


def test_replicated_norm_with_zero_redundancy_optimizer(tmp_path):
    on_ranks(2, """
from torch.distributed.optim import ZeroRedundancyOptimizer
def made():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 32), torch.nn.Linear(32, 4))
model, whole = made(), made()
optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=AdamW, lr=0.01, max_norm=0.1, threads=1)
alone = AdamW(whole.parameters(), lr=0.01, max_norm=0.1, threads=1)
for step in range(4):
    for i, (p, q) in enumerate(zip(model.parameters(), whole.parameters())):
        p.grad = values(step * 10 + i, *p.shape)
        q.grad = p.grad.clone()
    norm = optimizer.step()
    assert float(alone.step()) == float(norm), norm
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), whole.parameters()))
plain = ZeroRedundancyOptimizer(made().parameters(), optimizer_class=AdamW, lr=0.01)
assert plain.optim._process_group is None
""", tmp_path)


@pytest.mark.parametrize("options", [
    '{"zenflow": {"topk_ratio": 0.25, "select_interval": 4, "update_interval": 3}}',
    '{}', '{"state_format": "quantized8"}'])
def test_state_dicts_go_through_distributed_checkpoints(options, tmp_path):
    """get_optimizer_state_dict() and set_optimizer_state_dict() of torch.distributed.checkpoint."""
    on_ranks(2, f"options = {options}" + """
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict, \\
    set_model_state_dict, set_optimizer_state_dict
mesh = init_device_mesh("cpu", (count,))
def made():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128, bias=False), torch.nn.Linear(128, 64, bias=False))
    fully_shard(model, mesh=mesh)
    return model, AdamW(model.parameters(), lr=0.01, max_norm=1.0, process_group=world, threads=1, **options)
def train(model, optimizer, begin, steps):
    for step in range(begin, begin + steps):
        for i, p in enumerate(model.parameters()):
            p.grad = distribute_tensor(values(step * 10 + i, *p.shape), mesh, p.placements)
        optimizer.step()
model, optimizer = made()
train(model, optimizer, 0, 5)
saved = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
checkpoint.save(saved, checkpoint_id=f"{folder}/saved")
other, loaded = made()
into = {"model": get_model_state_dict(other), "optimizer": get_optimizer_state_dict(other, loaded)}
checkpoint.load(into, checkpoint_id=f"{folder}/saved")
set_model_state_dict(other, into["model"])
set_optimizer_state_dict(other, loaded, into["optimizer"])
for each in ((model, optimizer), (other, loaded)):
    train(*each, 5, 6)
for p, q in zip(model.parameters(), other.parameters()):
    assert torch.equal(p.to_local(), q.to_local())
first, second = optimizer.state_dict(), loaded.state_dict()
for number, state in first["state"].items():
    assert set(state) == set(second["state"][number])
    for name, value in state.items():
        other_value = second["state"][number][name]
        if hasattr(value, "to_local"):
            value, other_value = value.to_local(), other_value.to_local()
        assert torch.equal(value, other_value), name
""", tmp_path)


@pytest.mark.parametrize("options", ['{}', '{"max_norm": 0.01, "process_group": world}', '{"overlap": True}',
                                     '{"accumulate": 2}', '{"offload": True}', '{"track_changes": True}'])
def test_partial_gradients_of_tensor_parallelism_are_summed(options, tmp_path):
    on_ranks(2, f"options = {options}" + """
from torch import nn
from torch.distributed.tensor import Partial
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
mesh = init_device_mesh("cpu", (count,))
def trained(kind, **arguments):
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))
    parallelize_module(model, mesh, {"0": SequenceParallel(),
                                     "1": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())})
    optimizer = kind(model.parameters(), lr=0.01, **arguments)
    for step in range(3):
        optimizer.zero_grad()
        for _ in range(options.get("accumulate", 1)):
            model(values(step, 2, 4, 8)[:, rank * 2:rank * 2 + 2].contiguous()).square().mean().backward()
        if step == 0 and not arguments:
            assert any(isinstance(p, Partial) for q in model.parameters() for p in q.grad.placements)
        if "max_norm" in options and not arguments:
            nn.utils.clip_grad_norm_(model.parameters(), options["max_norm"])
        optimizer.step()
    return list(model.parameters())
ours, torchs = trained(AdamW, threads=1, **options), trained(torch.optim.AdamW)
for p, q in zip(ours, torchs):
    gathered = [torch.empty_like(p.to_local()) for _ in range(count)]
    dist.all_gather(gathered, p.to_local().detach().contiguous())
    if p.placements == (Replicate(),):
        assert torch.equal(*gathered)
    assert torch.allclose(p.full_tensor(), q.full_tensor(), atol=1e-6), (p.full_tensor() - q.full_tensor()).abs().max()

# A gradient that no hook has seen.
by_hand = [nn.Parameter(DTensor.from_local(torch.ones(4), mesh, [Replicate()])) for _ in range(2)]
optimizer = AdamW(by_hand, lr=0.1, threads=1, **options)
for step in range(2):
    for _ in range(options.get("accumulate", 1)):
        (by_hand[0].to_local() * 1.0).sum().backward()
    by_hand[1].grad = DTensor.from_local(torch.full((4,), float((-1) ** rank * (rank + 1) * (step + 1))), mesh, [Partial()])
    optimizer.step()
    optimizer.zero_grad()
gathered = [torch.empty(4) for _ in range(count)]
dist.all_gather(gathered, by_hand[1].to_local().detach().contiguous())
assert torch.equal(*gathered), gathered

embedding = parallelize_module(nn.Embedding(32, 16), mesh, RowwiseParallel(input_layouts=Replicate()))
optimizer = AdamW(embedding.parameters(), threads=1, **options)
for _ in range(options.get("accumulate", 1)):
    embedding(torch.arange(8)).square().sum().backward()
optimizer.step()
""", tmp_path)


def test_stochastic_rounding_of_shards(tmp_path):
    """Shards by rows have the bits of the whole param. Other shards have random numbers of their own on each rank."""
    on_ranks(4, """
square, tall = init_device_mesh("cpu", (2, 2)), init_device_mesh("cpu", (4, 1))
half = values(1, 48, 32).bfloat16()
whole, half_grad = torch.cat((half, half), 1), values(2, 48, 32).bfloat16()
whole, grad = torch.cat((whole, whole)), torch.cat([torch.cat((half_grad, half_grad), 1)] * 2)  # four equal quarters
def stepped(mesh, placements):
    param = torch.nn.Parameter(distribute_tensor(whole.clone(), mesh, placements) if mesh else whole.clone())
    optimizer = AdamW([("w", param)], lr=1e-2, param_rounding="stochastic", threads=1)
    for _ in range(3):
        param.grad = distribute_tensor(grad, mesh, placements) if mesh else grad
        optimizer.step()
    return param.detach().full_tensor() if mesh else param.detach()
one = stepped(None, None)
for mesh, placements in ((tall, [Shard(0), Shard(1)]), (tall, [Shard(0), Replicate()]), (square, [Replicate(), Shard(0)]),
                         (square, [Shard(0), Shard(0)])):
    assert torch.equal(stepped(mesh, placements), one), placements
for mesh, placements in ((tall, [Shard(1), Replicate()]), (square, [Shard(0), Shard(1)]), (square, [Shard(1), Shard(0)])):
    param = stepped(mesh, placements)
    parts = [part for rows in param.chunk(2) for part in rows.chunk(2, dim=1)]
    if placements[1].is_replicate():
        parts = list(param.chunk(4, dim=1))[::2]
    assert not any(torch.equal(a, b) for i, a in enumerate(parts) for b in parts[:i]), placements
""", tmp_path)
