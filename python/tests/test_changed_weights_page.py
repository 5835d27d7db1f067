# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/changed_weights.md."""
import json
import subprocess
import sys
from pathlib import Path

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


def test_apply_delta_copies_other_tensors_and_names_unknown_ones(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    import numpy as np
    program = Path(__file__).parents[2] / "examples" / "apply_delta.py"
    if not program.exists():
        pytest.skip("the examples are not here")
    weights = {"w": np.arange(6, dtype="f4"), "mask": np.array([True, False, True]), "wide": np.ones(3)}

    def apply(name):
        numpy.save_file(weights, tmp_path / "weights", {"version": "v1"})
        numpy.save_file({f"{name}.values": np.full(2, 9, "f4"), f"{name}.indices": np.array([1, 4], "u4")},
                        tmp_path / "delta", {"format": "changed_weights", "base": "v1", "version": "v2",
                                             "elements": json.dumps({name: 6})})
        return subprocess.run([sys.executable, program, tmp_path / "weights", tmp_path / "delta"], capture_output=True,
                              text=True)
    assert apply("w").returncode == 0
    found = numpy.load_file(tmp_path / "weights")
    assert found["w"].tolist() == [0, 9, 2, 3, 9, 5]
    assert found["mask"].tolist() == [True, False, True] and found["wide"].tolist() == [1, 1, 1]
    for name in ("unknown", "mask"):
        assert f"cannot apply a delta of {name}: " in apply(name).stderr
        assert numpy.load_file(tmp_path / "weights")["w"].tolist() == [0, 1, 2, 3, 4, 5]
