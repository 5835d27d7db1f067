#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains with DistributedDataParallel and adamant.torch.AdamW. Run: torchrun --nproc-per-node 2 ddp.py

Every rank has all gradients, so the norm needs no process_group. All ranks end with the same bits.
"""
import hashlib

import torch
import torch.distributed as dist
from adamant.torch import AdamW

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))
parallel = torch.nn.parallel.DistributedDataParallel(model)
# Each rank gets its part of the cores. cpuadam_cores_perc=0.5 reserves half of that part for torch.
optimizer = AdamW(parallel.parameters(), lr=1e-2, max_norm=1.0)

torch.manual_seed(dist.get_rank())
for step in range(20):
    x = torch.randn(32, 64)
    optimizer.zero_grad()
    loss = (parallel(x).squeeze(1) - x.sum(1)).square().mean()
    loss.backward()
    norm = optimizer.step()

digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()[:16]
print(f"rank {dist.get_rank()}: norm {norm.item():.4f}, weights {digest}")
dist.destroy_process_group()
