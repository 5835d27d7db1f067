#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains with Lightning. Leave gradient_clip_val out of Trainer: the step clips.

Run: python lightning_loop.py --folder runs. To continue from a checkpoint: --resume runs/epoch=1-step=16.ckpt.
"""
import argparse
import hashlib

import lightning
import torch

from adamant.torch import AdamW

parser = argparse.ArgumentParser()
parser.add_argument("--folder", default="runs")
parser.add_argument("--resume", help="the path of a checkpoint")
options = parser.parse_args()


class Text(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Embedding(64, 64), torch.nn.Linear(64, 256), torch.nn.GELU(),
                                         torch.nn.Linear(256, 64))

    def training_step(self, batch, number):
        loss = torch.nn.functional.cross_entropy(self.model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = AdamW(self.parameters(), lr=3e-3, max_norm=1.0, state_format="quantized8")
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)]


torch.manual_seed(0)
text = [(start + 3 * torch.arange(17)) % 64 for start in torch.randint(0, 64, (64,))]
module = Text()
trainer = lightning.Trainer(
    max_epochs=4, accelerator="cpu", logger=False, enable_progress_bar=False, default_root_dir=options.folder,
    callbacks=[lightning.pytorch.callbacks.ModelCheckpoint(options.folder, save_top_k=-1)])
trainer.fit(module, torch.utils.data.DataLoader(text, batch_size=8), ckpt_path=options.resume)
optimizer = trainer.optimizers[0]
digest = hashlib.sha256(b"".join(param.detach().numpy().tobytes() for param in module.parameters()))
print(f"step {trainer.global_step}: loss {trainer.callback_metrics['loss'].item():.6f}, "
      f"clipped by {optimizer.last_report.clip_coefficient:.4f}, weights {digest.hexdigest()[:16]}")
