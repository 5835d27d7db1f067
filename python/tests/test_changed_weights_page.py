# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/changed_weights.md."""
import json

import pytest

pytest.importorskip("torch")

import torch
from adamant.torch import AdamW


def test_receiver_applies_changes():
    model = torch.nn.Linear(512, 512).to(torch.bfloat16)
    optimizer = AdamW(model.named_parameters(), lr=1e-5, master=True, track_changes=True)
    inference = {name: torch.empty_like(param) for name, param in model.named_parameters()}
    for step in range(4):
        changes = optimizer.changed_weights()  # the first time all weights
        for change in changes:
            weights = inference[change.name.removeprefix("group0.")].view(-1)
            weights[change.indices] = change.values
        assert all(torch.equal(inference[name], param) for name, param in model.named_parameters())
        optimizer.zero_grad()
        model(torch.randn(8, 512, dtype=torch.bfloat16)).square().mean().backward()
        optimizer.step()


def new_delta(optimizer, version, base):
    """Tensors and metadata for safetensors.torch.save_file()."""
    changes = {change.name.removeprefix("group0."): change for change in optimizer.changed_weights()}
    tensors = {f"{name}.{what}": getattr(change, what) for name, change in changes.items() if len(change.values)
               for what in ("indices", "values")}
    elements = {name: change.param.numel() for name, change in changes.items()}
    metadata = {"format": "changed_weights", "version": version, "elements": json.dumps(elements)}
    return tensors, {**metadata, "base": base} if base else metadata  # the first time, all weights are in it


def test_deltas_have_a_base():
    model = torch.nn.Linear(512, 512).to(torch.bfloat16)
    optimizer = AdamW(model.named_parameters(), lr=1e-5, master=True, track_changes=True)
    for step in range(1, 4):
        optimizer.zero_grad()
        model(torch.randn(8, 512, dtype=torch.bfloat16)).square().mean().backward()
        optimizer.step()
        tensors, metadata = new_delta(optimizer, f"run1-{step}", f"run1-{step - 1}" if step > 1 else None)
    assert tensors["weight.indices"].numel() == tensors["weight.values"].numel() < 512 * 512
