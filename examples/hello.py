#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The smallest program with PyTorch. It prints the number that hello.cpp prints."""
import torch
from adamant.torch import AdamW

param = torch.nn.Parameter(torch.full((1000,), 0.5))
optimizer = AdamW([param], lr=0.01, weight_decay=0.1)
for step in range(10):
    param.grad = torch.full((1000,), 0.25)
    optimizer.step()
print(f"{optimizer.last_report.isa.decode()}: weight {param[0].item():.9g}")
