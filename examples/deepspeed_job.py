#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains with DeepSpeed: ZeRO stage 2 with CPU offload.

ADAMANT_DEEPSPEED=1 in the environment, or the import below, replaces DeepSpeed's CPU Adam by adamant.

Run with DeepSpeed's own op: DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 deepspeed_job.py --steps 10 --folder runs.
To continue from its checkpoint with adamant, set ADAMANT_DEEPSPEED=1 and run it with --steps 20 --resume step10.
With --state-format quantized8 the optimizer is adamant.torch.AdamW with 8-bit moments, for deepspeed_client.json.
"""
# import adamant.deepspeed
import argparse

import deepspeed
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--config")
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--folder", default="runs")
parser.add_argument("--resume", help="the tag of a checkpoint")
parser.add_argument("--state-format")
parser.add_argument("--local_rank", type=int)  # set by DeepSpeed's launcher
options = parser.parse_args()

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(64, 64),
                            torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True),
                            torch.nn.Linear(64, 64))
optimizer = None
if options.state_format:
    from adamant.torch import AdamW
    optimizer = AdamW(model.parameters(), lr=0.003, betas=(0.9, 0.95), weight_decay=0.1,
                      state_format=options.state_format)
engine, _, _, _ = deepspeed.initialize(
    model=model, optimizer=optimizer, model_parameters=model.parameters(),
    config=options.config or __file__.replace("job.py", "client.json" if optimizer else "job.json"))
if options.resume:
    engine.load_checkpoint(options.folder, tag=options.resume)
rank = torch.distributed.get_rank()

while engine.global_steps < options.steps:
    batch = torch.Generator().manual_seed(1000 * engine.global_steps + rank)
    first, stride = torch.randint(0, 64, (2, 8, 1), generator=batch)
    text = (first + stride % 4 * torch.arange(17)) % 64
    out = engine(text[:, :-1].to(engine.device))
    loss = torch.nn.functional.cross_entropy(out.float().flatten(0, 1), text[:, 1:].flatten().to(engine.device))
    engine.backward(loss)
    engine.step()
    if rank == 0:
        print(f"step {engine.global_steps}: loss {loss.item():.7f}, norm {engine.get_global_grad_norm():.4f}")

engine.save_checkpoint(options.folder, tag=f"step{engine.global_steps}")
if rank == 0:
    inner = engine.optimizer.optimizer
    moments = next(iter(inner.state.values()))["exp_avg"].dtype
    op = inner.ds_opt_adam.__name__ if optimizer is None else type(inner).__module__
    print(f"saved step{engine.global_steps} with moments of {moments}, by {op}")
torch.distributed.destroy_process_group()
