#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains with FSDP2 and adamant.torch.AdamW on CPUs over gloo. Run: torchrun --nproc-per-node 2 fsdp2.py

Each rank steps its shards in place. With process_group the norm is over the shards of all ranks.
"""
import hashlib

import torch
import torch.distributed as dist
from adamant.torch import AdamW
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh)
optimizer = AdamW(model.parameters(), lr=1e-2, max_norm=1.0, process_group=mesh.get_group())

data = torch.Generator().manual_seed(1)
for step in range(20):
    x = torch.randn(32, 64, generator=data)  # equal on all ranks, so results do not depend on their number
    optimizer.zero_grad()
    loss = (model(x) - x.flip(1)).square().mean()
    loss.backward()
    norm = optimizer.step()

whole = [p.full_tensor() for p in model.parameters()]
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in whole)).hexdigest()[:16]
if dist.get_rank() == 0:
    print(f"{dist.get_world_size()} ranks: loss {loss.item():.5f}, norm {norm.item():.5f}, weights {digest}")
dist.destroy_process_group()
