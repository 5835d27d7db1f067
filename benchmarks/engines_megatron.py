# SPDX-License-Identifier: Apache-2.0
"""What engines.py measures of Megatron's HybridDeviceOptimizer, from a checkout: its step with torch's fused AdamW, which
Megatron uses, and with adamant.integrations.megatron. There is no GPU: params only say that they are on one, so its copies
to and from the GPU, which are a part of both times, are copies in host memory."""
import os
import sys

import peers
from engines_rows import LR, SIZES, paired, row, transformer_shapes
from peers_contenders import Missing, imported


def hybrid_class(checkout, ours):
    """HybridDeviceOptimizer as Megatron creates it."""
    import adamant.integrations.megatron as integration
    from megatron.core.optimizer import cpu_offloading
    if ours:
        integration.install()
    chosen = cpu_offloading.HybridDeviceOptimizer
    integration.uninstall()
    return chosen


def megatron_row(torch, name, shapes, overlap, asked, rounds):
    import fake_gpu
    drawn = [(0.02 * torch.randn(shape)).to(torch.bfloat16) for shape in shapes]
    grads = [(1e-3 * torch.randn(shape)).to(torch.bfloat16) for shape in shapes]
    turns = {}
    for whose in ("ours", "torch's"):
        params = [fake_gpu.fake(one) for one in drawn]
        optimizer = hybrid_class(asked.megatron, whose == "ours")(
            params, offload_fraction=1.0, cpu_optimizer_cls=torch.optim.AdamW, gpu_optimizer_cls=torch.optim.AdamW,
            param_update_in_fp32=True, overlap_cpu_optimizer_d2h_h2d=overlap, lr=LR, weight_decay=0.01, fused=True)

        def new_gradients(params=params):
            for param, grad in zip(params, grads):
                param.grad = grad.clone().as_subclass(fake_gpu.Fake)
        turns[whose] = (new_gradients, optimizer.step)
    seconds = paired(turns, rounds, asked.rest_s)
    numel = sum(one.numel() for one in drawn)
    how = "overlap" if overlap else "no overlap"
    return row(f"Megatron's HDO, {name}: {len(shapes)} tensors, {numel / 1e6:.1f} M, bf16, f32 master, {how}",
               seconds["ours"], seconds["torch's"], 1.0)


def megatron_part(asked):
    """HybridDeviceOptimizer.step() with each AdamW, on params and gradients of their own."""
    torch = imported("torch")
    if not asked.megatron:
        raise Missing("--megatron names no checkout of Megatron-LM")
    if not os.path.exists(os.path.join(asked.megatron, "megatron", "core", "optimizer", "cpu_offloading")):
        raise Missing(f"{asked.megatron} is no checkout of Megatron-LM")
    sys.path[:0] = [asked.megatron, os.path.join(peers.ROOT, "python", "tests")]
    import fake_gpu
    for owner, attributes in fake_gpu.replacements():
        for attribute, value in attributes.items():
            setattr(owner, attribute, value)
    sizes = {"small": (64, 2, 1)} if asked.quick else {name: SIZES[name] for name in ("small", "large")}
    return [megatron_row(torch, name, transformer_shapes(width, layers), overlap, asked, times * asked.rounds)
            for name, (width, layers, times) in sizes.items() for overlap in (False, True)], []
