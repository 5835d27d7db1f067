#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a linear model over NumPy arrays with adamant.Optimizer: clipping, and saving and loading a checkpoint."""
import tempfile

import adamant
import numpy as np

random = np.random.default_rng(0)
true_weight = random.standard_normal((64, 8)).astype(np.float32)

# The optimizer uses these arrays in place. They must outlive it.
weight = np.zeros((64, 8), np.float32)
grad, exp_avg, exp_avg_sq = np.zeros_like(weight), np.zeros_like(weight), np.zeros_like(weight)

optimizer = adamant.Optimizer(max_norm=1.0)
group = optimizer.add_group("all", lr=0.05, weight_decay=0.01)
optimizer.add_shard(group, "weight", weight, grad, exp_avg, exp_avg_sq)

for step in range(200):
    x = random.standard_normal((32, 64)).astype(np.float32)
    error = x @ weight - x @ true_weight
    grad[:] = x.T @ error * (2 / error.size)
    report = optimizer.step(lr=0.05 * (1 - step / 200))
    if step % 50 == 0:
        print(f"step {report.step}: loss {np.mean(error ** 2):.4f}, norm {report.global_norm:.4f}, "
              f"clipped by {report.clip_coefficient:.3f}")

with tempfile.TemporaryDirectory() as folder:
    optimizer.save(f"{folder}/state.safetensors")
    kept = weight.copy()
    weight[:] = 0
    optimizer.load(f"{folder}/state.safetensors")
    print(f"{optimizer.steps} steps, state of {weight.size} params saved and loaded: {np.array_equal(weight, kept)}")
