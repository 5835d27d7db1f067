# SPDX-License-Identifier: Apache-2.0
"""Trains with DeepSpeed's SuperOffload on a GPU, and lets gradients overflow on the way.

    ADAMANT_DEEPSPEED=1 python deepspeed_superoffload.py [--dtype fp16] [--clip 0.5] [--steps 20]

ADAMANT_DEEPSPEED=0 selects DeepSpeed's own op. Without clipping, SuperOffload updates during backward, and rolls back if
gradients overflow. Prints the losses, and exits with 1 if a skipped step left master weights with other bits.
"""
import argparse
import hashlib
import os
import sys

from requirement import required

OVERFLOWS = (7, 8, 13)  # steps
WIDTH = 256


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16")
    parser.add_argument("--clip", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("MASTER_ADDR", "127.0.0.1"),
                        ("MASTER_PORT", "29500")):
        os.environ.setdefault(name, value)
    # Here, because the worker that SuperOffload spawns imports this file.
    import torch
    deepspeed = required("deepspeed", "pip install deepspeed")
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.05}},
        "gradient_clipping": options.clip,
        "zero_optimization": {
            "stage": 3, "sub_group_size": 4 * WIDTH * WIDTH, "overlap_comm": True,
            "stage3_param_persistence_threshold": 0,
            "offload_optimizer": {"device": "cpu", "pin_memory": True, "super_offload": True,
                                  "cpuadam_cores_perc": 0.8}},
        "bf16": {"enabled": options.dtype == "bf16"},
        "fp16": {"enabled": options.dtype == "fp16", "initial_scale_power": 10, "hysteresis": 1},
    }
    deepspeed.init_distributed("nccl")
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.GELU(),
                                  torch.nn.Linear(2 * WIDTH, WIDTH)) for _ in range(4)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 8))
    engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

    def digest() -> str:
        torch.cuda.synchronize()
        bits = hashlib.sha256()
        for master in optimizer.fp32_partitioned_groups_flat:
            bits.update(master.detach().cpu().numpy().tobytes())
        return bits.hexdigest()[:12]

    kept = True
    for step in range(options.steps):
        torch.manual_seed(step % 5)
        inputs = torch.randn(8, WIDTH, device="cuda")
        target = inputs[:, :8].square() - inputs[:, 8:16]
        outputs = engine(inputs.to(torch.bfloat16 if options.dtype == "bf16" else torch.float16)).float()
        loss = (outputs - target).square().mean()
        before = digest()
        engine.backward(loss * float("inf") if step in OVERFLOWS else loss)
        engine.step()
        same = digest() == before
        kept = kept and (same or not optimizer.overflow)
        print(f"step {step}: loss {loss.item():.7g}", f"skipped, masters {'same' if same else 'CHANGED'}"
              if optimizer.overflow else "")
    print("by", optimizer.optimizer.ds_opt_adam.__name__, "in", type(optimizer).__name__)
    torch.distributed.destroy_process_group()
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
