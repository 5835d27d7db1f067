#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small bfloat16 model with Hugging Face's Trainer and adamant.torch.AdamW. Downloads nothing.

Run trainer.py --folder runs. To resume from a checkpoint to the same bits, run
trainer.py --folder runs --resume runs/checkpoint-10. With --state-format quantized8 the moments have 8 bits.
"""
import argparse
import hashlib

import torch
from adamant.torch import AdamW
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--folder", default="runs")
parser.add_argument("--resume")
parser.add_argument("--state-format", default="float32")
options = parser.parse_args()

text = b"An optimizer reads gradients, moments and weights, and writes moments and weights. " * 40
data = [{"input_ids": list(text[begin:begin + 64]), "labels": list(text[begin:begin + 64])}
        for begin in range(0, len(text) - 64, 16)]

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2, bos_token_id=0,
                                   eos_token_id=0)).to(torch.bfloat16)
optimizer = AdamW(model.parameters(), lr=3e-3, max_norm=1.0, master=True, state_format=options.state_format)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=10)

trainer = Trainer(
    model=model, train_dataset=data, optimizers=(optimizer, scheduler),
    args=TrainingArguments(
        output_dir=options.folder, max_steps=20, per_device_train_batch_size=8, gradient_accumulation_steps=2,
        max_grad_norm=0,  # the optimizer clips
        save_steps=10, logging_steps=5, report_to="none", disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False))
trainer.train(resume_from_checkpoint=options.resume)

report = optimizer.last_report  # trainer.optimizer is Accelerate's wrapper, whose step() returns nothing
digest = hashlib.sha256(b"".join(p.detach().view(torch.int16).numpy().tobytes() for p in model.parameters()))
print(f"step {report.step}: norm {report.global_norm:.4f}, clipped by {report.clip_coefficient:.4f}, "
      f"weights {digest.hexdigest()[:16]}")
