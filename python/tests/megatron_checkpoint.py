# SPDX-License-Identifier: Apache-2.0
"""Resumes Megatron's distributed checkpoints of HybridDeviceOptimizer with adamant.integrations.megatron, on a GPU.

    python megatron_checkpoint.py FOLDER

FOLDER is a checkout of Megatron-LM. A small GPT of Megatron's makes six steps; then another one makes three, saves, and
a third one loads and makes the other three. Weights, masters and moments must have the same bits, for each format of
the moments and each kind of checkpoint. The same without adamant is shown beside it. Exits with 1 if bits differ.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import warnings
from typing import Any, Dict, List

from requirement import required

KINDS = ("dp_reshardable", "fully_reshardable")
MODES = ((False, 1.0), (True, 1.0), (False, 0.5))  # whether transfers overlap with steps, and the share offloaded


def make(seed: int, overlap: bool, fraction: float) -> Any:
    import torch
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
    from megatron.core.transformer import TransformerConfig
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed, force_reset_rng=True)
    bf16 = {"bf16": True, "params_dtype": torch.bfloat16}
    config = TransformerConfig(num_layers=2, hidden_size=64, num_attention_heads=4, attention_dropout=0.0,
                               hidden_dropout=0.0, **bf16)
    gpt = GPTModel(config=config, transformer_layer_spec=get_gpt_layer_local_spec(), vocab_size=128,
                   max_sequence_length=32).cuda().bfloat16()
    model = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True), gpt)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=1e-3, weight_decay=0.1, clip_grad=1.0, use_distributed_optimizer=True,
                        optimizer_cpu_offload=True, optimizer_offload_fraction=fraction,
                        use_precision_aware_optimizer=True, overlap_cpu_optimizer_d2h_h2d=overlap, **bf16), [model])
    return model, optimizer


def train(model: Any, optimizer: Any, steps: range) -> None:
    import torch
    mask = torch.triu(torch.ones(1, 1, 32, 32, dtype=torch.bool, device="cuda"), 1)
    positions = torch.arange(32, device="cuda").expand(4, 32)
    for step in steps:
        tokens = torch.randint(128, (4, 33), generator=torch.Generator().manual_seed(step)).cuda()
        model.zero_grad_buffer()
        optimizer.zero_grad()
        model(tokens[:, :-1], positions, mask, labels=tokens[:, 1:]).mean().backward()
        model.finish_grad_sync()
        assert optimizer.step()[0]


def hybrids(optimizer: Any) -> List[Any]:
    return [each.optimizer for each in getattr(optimizer, "chained_optimizers", [optimizer])]


def digest(model: Any, optimizer: Any) -> str:
    import torch
    found = hashlib.sha256()
    for param in model.parameters():
        found.update(param.detach().cpu().view(torch.int16).numpy().tobytes())
    for hybrid in hybrids(optimizer):
        for state in hybrid.state.values():
            for name in ("master_param", "exp_avg", "exp_avg_sq"):
                found.update(str(state[name].dtype).encode())
                found.update(state[name].detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def sharded(model: Any, optimizer: Any, kind: str, is_loading: bool) -> Dict[str, Any]:
    metadata = {"distrib_optim_sharding_type": kind}
    own = model.module.sharded_state_dict(metadata=metadata)
    return {"model": own, "optimizer": optimizer.sharded_state_dict(own, is_loading=is_loading, metadata=metadata)}


def resumed(kind: str, *mode: Any) -> str:
    from megatron.core import dist_checkpointing
    model, optimizer = make(0, *mode)
    train(model, optimizer, range(3))
    with tempfile.TemporaryDirectory() as folder:
        dist_checkpointing.save(sharded(model, optimizer, kind, False), folder)
        model, optimizer = make(5, *mode)
        for hybrid in hybrids(optimizer):
            hybrid.dummy_step()  # without Transformer Engine, Megatron loads only into existing states
        loaded = dist_checkpointing.load(sharded(model, optimizer, kind, True), folder)
    model.module.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    train(model, optimizer, range(3, 6))
    return digest(model, optimizer)


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    sys.path.insert(0, os.path.abspath(sys.argv[1]))
    warnings.simplefilter("ignore")
    import torch.distributed
    parallel_state = required("megatron.core.parallel_state", f"{sys.argv[1]} must be a checkout of Megatron-LM")
    from adamant.integrations import megatron
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
        failed = False
        for options in (None, {}, {"state_format": "bfloat16"}, {"state_format": "quantized8"}):
            megatron.uninstall()
            if options is not None:
                megatron.install(**options)
            for mode in MODES:
                model, optimizer = make(0, *mode)
                train(model, optimizer, range(6))
                whole = digest(model, optimizer)
                for kind in KINDS:
                    try:
                        end = resumed(kind, *mode)
                    except RuntimeError as error:
                        end = str(error)[:60]
                    failed |= options is not None and end != whole
                    print(f"{'without adamant' if options is None else options}, overlap {mode[0]}, offloaded "
                          f"{mode[1]}, {kind}: {'the same bits' if end == whole else 'NOT the same bits'} "
                          f"({whole}, {end})", flush=True)
        torch.distributed.destroy_process_group()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
