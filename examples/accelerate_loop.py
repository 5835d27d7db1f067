#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains with Accelerate and adamant.torch.AdamW: each step clips the gradients of four batches. Downloads nothing.

Run accelerate_loop.py --folder runs, in one process or with torchrun --nproc-per-node 2. To resume from a saved epoch
to the same bits, run accelerate_loop.py --folder runs --resume runs/epoch1.
"""
import argparse
import hashlib
import re

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from adamant.torch import AdamW
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--folder", default="runs")
parser.add_argument("--resume")
options = parser.parse_args()

set_seed(0)
text = torch.tensor(list(b"An optimizer reads gradients, moments and weights, and writes moments and weights. " * 40))
loader = torch.utils.data.DataLoader(text.unfold(0, 64, 16)[:160], batch_size=4, shuffle=True)
model = LlamaForCausalLM(LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                     num_attention_heads=2, attention_dropout=0.1, max_position_embeddings=64))
adamw = AdamW(model.parameters(), lr=3e-3, max_norm=1.0)  # replaces accelerator.clip_grad_norm_()
scheduler = torch.optim.lr_scheduler.LinearLR(adamw, start_factor=0.1, total_iters=10)

# Other samplers change the order of batches when several processes resume.
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4,
                          dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
model, optimizer, loader, scheduler = accelerator.prepare(model, adamw, loader, scheduler)
first = 0
if options.resume:
    accelerator.load_state(options.resume)
    first = int(re.search(r"\d+$", options.resume)[0]) + 1

for epoch in range(first, 4):
    loader.set_epoch(epoch)
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
            optimizer.step()  # Accelerate's wrapper: steps at every fourth batch and drops the norm of adamw.step()
            scheduler.step()
            optimizer.zero_grad()
    accelerator.save_state(f"{options.folder}/epoch{epoch}")
    report = adamw.last_report
    accelerator.print(f"epoch {epoch}, step {report.step}: loss {loss.item():.4f}, norm {report.global_norm:.4f}, "
                      f"clipped by {report.clip_coefficient:.4f}")

digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()[:16]
print(f"rank {accelerator.process_index}: weights {digest}")
accelerator.end_training()
