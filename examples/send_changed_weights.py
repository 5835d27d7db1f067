#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a bfloat16 model and sends the weights that change to an inference process, which answers with their digest.

Run: python send_changed_weights.py --folder runs/send, or each process by itself with --role. Either may be killed at
any point and started again: the trainer resumes from its checkpoint, the receiver from its file of weights. The trainer
clips gradients, skips steps with infinities, and discards batches. docs/changed_weights.md describes deltas.
"""
import argparse
import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import torch
from adamant.torch import AdamW
from safetensors.torch import load, save, save_file

STEPS, SYNC_EVERY, SAVE_EVERY = 200, 4, 20


def new_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 256), torch.nn.GELU(),
                               torch.nn.Linear(256, 1)).to(torch.bfloat16)


def weights_of(model):
    return {name: param.detach() for name, param in model.named_parameters()}


def digest(weights):
    return hashlib.sha256(b"".join(weights[name].view(torch.uint8).numpy() for name in sorted(weights))).hexdigest()[:16]


def replace(path, write):
    """Replaces a file: a killed process leaves the old one or the new one."""
    write(f"{path}.new")
    os.replace(f"{path}.new", path)


def send(connection, data):
    connection.sendall(len(data).to_bytes(8, "little") + data)


def receive(connection, size=None):
    data = connection.recv(size or 8, socket.MSG_WAITALL)
    if len(data) < (size or 8):
        raise ConnectionError("the other process has ended")
    return data if size else receive(connection, int.from_bytes(data, "little"))


def new_delta(changes, version, base):
    """A delta of {name: (indices, values, elements of the param)}. It applies to version `base`, or holds all weights."""
    changed = {name: change for name, change in changes.items() if len(change[1])}
    tensors = {f"{name}.values": values for name, (_, values, _) in changed.items()}
    tensors.update({f"{name}.indices": indices for name, (indices, values, elements) in changed.items()
                    if len(values) < elements})
    metadata = {"format": "changed_weights", "version": version,
                "elements": json.dumps({name: change[2] for name, change in changes.items()})}
    return save(tensors, {**metadata, "base": base} if base else metadata)


def metadata_of(data):
    return json.loads(data[8:8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})


class Receiver:
    def __init__(self, folder):
        self.path, self.version, self.weights = folder / "weights.safetensors", None, weights_of(new_model())
        if self.path.exists():
            data = self.path.read_bytes()
            self.version, self.weights = metadata_of(data)["version"], load(data)

    def apply(self, delta):
        """Applies a delta and returns the answer: None if this process needs all weights."""
        metadata, tensors = metadata_of(delta), load(delta)
        if metadata["version"] != self.version:  # otherwise only the answer was lost
            if metadata.get("base", self.version) != self.version:
                return None
            for name in json.loads(metadata["elements"]):
                if f"{name}.values" in tensors:  # without indices these are all
                    indices = tensors.get(f"{name}.indices", slice(None))
                    self.weights[name].view(-1)[indices] = tensors[f"{name}.values"]
            self.version = metadata["version"]
            replace(self.path, lambda path: save_file(self.weights, path, {"version": self.version}))
        return {"version": self.version, "digest": digest(self.weights)}

    def serve(self, port):
        with socket.create_server(("127.0.0.1", port)) as server:
            while True:
                connection, _ = server.accept()
                with connection, contextlib.suppress(ConnectionError):  # the trainer has ended; it connects again
                    while True:
                        send(connection, json.dumps(self.apply(receive(connection))).encode())


class Trainer:
    def __init__(self, folder, port, receiver=None):
        self.path, self.address, self.connection = folder / "checkpoint.pt", ("127.0.0.1", port), None
        self.receiver, self.model = receiver, new_model()  # the receiver's process, if this one has started it
        self.optimizer = AdamW(self.model.named_parameters(), lr=2e-6, max_norm=10.0, on_nonfinite="skip", master=True,
                               overlap=True, track_changes=True)
        # Versions are those of this process: after a restart, the same steps need not give the same bits.
        self.run, self.version, self.step = uuid.uuid4().hex[:8], None, 0
        self.counts = dict.fromkeys(("rolled back", "skipped", "discarded", "deltas", "with all weights", "bytes"), 0)
        if self.path.exists():
            saved = torch.load(self.path)
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])  # all weights count as changed now
            self.step = saved["step"]

    def save(self):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}
        replace(self.path, lambda path: torch.save(state, path))

    def train(self):
        self.step += 1
        x = torch.randn(32, 64, generator=torch.Generator().manual_seed(self.step))
        loss = (self.model(x.to(torch.bfloat16)).float().squeeze(1) - x.sum(1)).square().mean()
        (loss * float("inf") if self.step % 23 == 0 else loss).backward()
        if self.step % 17 == 0:
            self.counts["discarded"] += 1
        else:
            self.optimizer.step()
            self.counts["rolled back"] += self.optimizer.last_report.rolled_back
            self.counts["skipped"] += self.optimizer.last_report.has_first_nonfinite
        self.optimizer.zero_grad()  # rolls back a step that has begun in backward() and is not completed

    def sync(self):
        """Sends what has changed and returns when the receiver has it.

        The bits are cleared before that, yet no change is lost: no step comes before the receiver's answer; without the
        base it asks for all weights; after a restart of this process all weights count as changed."""
        version = f"{self.run}-{self.step}"
        delta = new_delta({change.name.removeprefix("group0."): (change.indices, change.values, change.param.numel())
                           for change in self.optimizer.changed_weights()}, version, self.version)
        while True:
            try:
                self.connection = self.connection or socket.create_connection(self.address)
                send(self.connection, delta)
                answer = json.loads(receive(self.connection))
            except ConnectionError:  # the receiver has ended, or has not begun
                if self.receiver is not None and self.receiver.poll() is not None:
                    sys.exit("cannot send weights: the receiver has ended. See its error above")
                self.connection = None
                time.sleep(0.02)
                continue
            self.counts["deltas"] += 1
            self.counts["bytes"] += len(delta)
            self.counts["with all weights"] += "base" not in metadata_of(delta)
            if answer is not None:
                break
            delta = new_delta({name: (None, weights.view(-1), weights.numel())
                               for name, weights in weights_of(self.model).items()}, version, None)
        if answer != {"version": version, "digest": digest(weights_of(self.model))}:
            sys.exit(f"the receiver has {answer}, the trainer {version}: {digest(weights_of(self.model))}")
        self.version = version

    def run_all(self):
        while self.step < STEPS:
            self.train()
            if self.step % SYNC_EVERY == 0:
                self.sync()
            if self.step % SAVE_EVERY == 0:
                self.save()
        self.sync()  # after a restart at the last step, the receiver may have other weights
        counts = ", ".join(f"{number} {name}" for name, number in self.counts.items())
        print(f"step {self.step}: {counts}\nweights {digest(weights_of(self.model))}")


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--folder", type=Path, required=True, help="for the checkpoint and the receiver's weights")
    arguments.add_argument("--port", type=int, default=29611)
    arguments.add_argument("--role", choices=["both", "receiver", "trainer"], default="both")
    asked = arguments.parse_args()
    try:
        asked.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        arguments.error(f"cannot make the folder {asked.folder}: {error.strerror}. Choose another.")
    if asked.role != "both":
        trains = asked.role == "trainer"
        return Trainer(asked.folder, asked.port).run_all() if trains else Receiver(asked.folder).serve(asked.port)
    receiver = subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--role", "receiver"])
    try:
        Trainer(asked.folder, asked.port, receiver).run_all()
    finally:
        receiver.terminate()


if __name__ == "__main__":
    main()
