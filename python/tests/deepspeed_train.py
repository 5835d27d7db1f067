# SPDX-License-Identifier: Apache-2.0
"""Trains a small model with DeepSpeed's ZeRO and CPU offload, and writes its losses.

Run: LOSSES=FILE torchrun deepspeed_train.py STAGE [fp32|bf16] [CPUADAM_CORES_PERC]. The environment selects the op.
"""
import json
import os
import sys

import torch

from requirement import required

if len(sys.argv) < 2 or not {"RANK", "LOSSES"} <= os.environ.keys():
    sys.exit(__doc__)
deepspeed = required("deepspeed", "pip install deepspeed")
stage, kind = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "fp32"
offload = {"device": "cpu", "pin_memory": False}
if len(sys.argv) > 3:
    offload["cpuadam_cores_perc"] = float(sys.argv[3])
config = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.05}},
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": stage, "offload_optimizer": offload, "sub_group_size": 3000},
    "bf16": {"enabled": kind == "bf16"},
}
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 96), torch.nn.GELU(), torch.nn.Linear(96, 64), torch.nn.GELU(),
                            torch.nn.Linear(64, 4))
engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
losses = []
rank = int(os.environ["RANK"])
for step in range(30):
    torch.manual_seed(1000 * rank + step % 5)
    inputs = torch.randn(8, 32)
    target = inputs[:, :4].square() - inputs[:, 4:8]
    loss = (engine(inputs.to(next(engine.module.parameters()).dtype)).float() - target).square().mean()
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
inner = engine.optimizer.optimizer
result = {"op": inner.ds_opt_adam.__name__, "losses": losses}
if "adamant.deepspeed" in sys.modules:
    result["executors"] = [repr(adam.executor) for adam in sys.modules["adamant.deepspeed"].adams.values()]
with open(f"{os.environ['LOSSES']}.{rank}", "w") as file:
    json.dump(result, file)
# Otherwise the process may end in std::terminate(), with DeepSpeed's own op, too.
torch.distributed.destroy_process_group()
