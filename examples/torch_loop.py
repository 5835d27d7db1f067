#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a bfloat16 model with adamant.torch.AdamW: float32 masters, clipping, and steps that overlap backward()."""
import torch
from adamant.torch import AdamW

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(256, 128),
                            torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True),
                            torch.nn.Linear(128, 256)).to(torch.bfloat16)

# The arguments of torch.optim.AdamW, and three that it does not have.
optimizer = AdamW(model.parameters(), lr=1e-3, max_norm=1.0, master=True, overlap=True)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=10)

text = torch.randint(0, 16, (64, 33)) * torch.arange(33).remainder(7)  # a pattern that the model can learn
for step in range(30):
    optimizer.zero_grad()
    out = model(text[:, :-1])
    loss = torch.nn.functional.cross_entropy(out.float().flatten(0, 1), text[:, 1:].flatten())
    loss.backward()  # the step begins here, as gradients arrive
    norm = optimizer.step()
    scheduler.step()
    if step % 10 == 0:
        print(f"step {step}: loss {loss.item():.4f}, norm {norm.item():.4f}")
print(f"loss {loss.item():.4f} with {optimizer.last_report.threads} threads ({optimizer.last_report.isa.decode()})")
