# SPDX-License-Identifier: Apache-2.0
"""What share of weights a step changes, by learning rate and format; and what it costs to send them, in one run.

    python benchmarks/training/changed_weights.py

The package `adamant` is the installed one. Prints the tables of benchmarks/README.md. The first part trains a character
model (models.py) from scratch on this repository's pages and headers, and goes on from its weights with each format and
learning rate. The second part steps one large param and collects the weights that each step has changed three times: by
the optimizer's bits, and by comparing with a snapshot in NumPy and in torch, which then take over what has changed. It
checks that all three find the same. Times are of the same rounds, in changing order; ratios are taken within a round.
"""
import argparse
import os
import statistics
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from adamant.torch import AdamW  # noqa: E402

import files  # noqa: E402
import models  # noqa: E402
import peers  # noqa: E402

RATES = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
BF16 = torch.bfloat16
FORMATS = {  # dtype of the weights, arguments of AdamW
    "bf16 weights, float32 master, nearest": (BF16, {"master": True}),
    "split master, ties away from zero": (BF16, {"master": True, "state_format": "split_float32"}),
    "the same with 8-bit moments": (BF16, {"master": True, "state_format": "split_float32+quantized8"}),
    "fp16 weights, float32 master, nearest": (torch.float16, {"master": True}),
    "bf16 params without master, nearest": (BF16, {}),
    "bf16 params without master, stochastic": (BF16, {"param_rounding": "stochastic"}),
}


# ------------------------------------------------------------------------------------------------------ shares


def text():
    pages = [path for pattern in ("docs/*.md", "include/adamant/**/*.?pp") for path in sorted(HERE.parents[1].glob(pattern))]
    return models.characters("\n".join(path.read_text() for path in pages))


def windows(numbers, random):
    first = torch.randint(0, len(numbers) - 65, (8,), generator=random)
    return numbers[first[:, None] + torch.arange(65)]


def trained(numbers, steps):
    torch.manual_seed(0)
    random, model = torch.Generator().manual_seed(0), models.Transformer()
    optimizer = AdamW(model.named_parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(windows(numbers, random))
        loss.backward()
        optimizer.step()
    return model.state_dict(), loss.item()


def shares(numbers, weights, dtype, options, lr, before, measured):
    """Share of weights that each of some steps changes, after some steps that fill the moments."""
    random, model = torch.Generator().manual_seed(1), models.Transformer().to(dtype)
    model.load_state_dict(weights)
    optimizer = AdamW(model.named_parameters(), lr=lr, track_changes=True, **options)
    total, found = sum(param.numel() for param in model.parameters()), []
    for _ in range(before + measured):
        optimizer.zero_grad()
        model(windows(numbers, random)).backward()
        optimizer.step()
        found.append(sum(len(change.indices) for change in optimizer.changed_weights()) / total)
    return found[before:]


def shares_table(asked):
    numbers = text()
    weights, loss = trained(numbers, 10 if asked.quick else 300)
    before, measured = (1, 1) if asked.quick else (10, 20)
    lines = ["| changed in a step, % | " + " | ".join(f"{lr:.0e}" for lr in RATES) + " |", "| --- |" + " --- |" * len(RATES)]
    for name, (dtype, options) in FORMATS.items():
        medians = [statistics.median(shares(numbers, weights, dtype, options, lr, before, measured)) for lr in RATES]
        lines.append(f"| {name} | " + " | ".join(f"{100 * share:.3g}" for share in medians) + " |")
        print(lines[-1], file=sys.stderr, flush=True)
    return [*lines, "", f"Loss before: {loss:.2f}."]


# ------------------------------------------------------------------------------------------------------ methods


def peak_bytes(run):
    """What a call adds to the process's resident memory at its peak."""
    Path("/proc/self/clear_refs").write_text("5")
    before = peers.number_in("/proc/self/status", "VmRSS:")
    kept = run()
    after = peers.number_in("/proc/self/status", "VmHWM:")
    del kept
    return max(0, after - before) * 1024


class Methods:
    def __init__(self, elements, lr):
        random = torch.Generator().manual_seed(0)
        self.param = torch.nn.Parameter(torch.empty(elements, dtype=BF16).normal_(0, 0.02, generator=random))
        self.param.grad = torch.empty(elements, dtype=BF16).normal_(0, 1e-3, generator=random)
        self.optimizer = AdamW([self.param], lr=lr, master=True, track_changes=True)
        self.bits = self.param.detach().view(torch.int16)
        self.buffer = torch.empty_like(self.bits)
        for _ in range(2):
            self.optimizer.step()
            self.optimizer.changed_weights()
        self.by_torch, self.by_numpy = self.bits.clone(), self.bits.numpy().copy()

    def collect(self):
        [change] = self.optimizer.changed_weights()
        return change.indices, change.values.view(torch.int16)

    def compare_torch(self):
        indices = (self.bits != self.by_torch).nonzero().view(-1)
        values = self.bits[indices]
        self.by_torch[indices] = values
        return indices.to(torch.int32), values

    def compare_numpy(self):
        weights = self.bits.numpy()
        indices = np.flatnonzero(weights != self.by_numpy)
        values = weights[indices]
        self.by_numpy[indices] = values
        return torch.from_numpy(indices.astype(np.int32)), torch.from_numpy(values)

    def full(self):
        return self.buffer.copy_(self.bits)

    NAMES = {"changed_weights()": collect, "snapshot, torch": compare_torch, "snapshot, NumPy": compare_numpy,
             "all weights": full}

    def round(self, number, measure):
        self.optimizer.step()
        names, found, results = list(self.NAMES), {}, []
        for name in names[number % 4:] + names[:number % 4]:
            found[name], result = measure(lambda: self.NAMES[name](self))
            if name != "all weights" and result is not None:
                results.append(result)
        for other in results[1:]:
            assert all(torch.equal(one, two) for one, two in zip(results[0], other)), "the methods differ"
        self.count = len(results[0][0]) if results else self.count
        return found


def timed(run):
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def methods_rows(elements, lr, rounds):
    methods = Methods(elements, lr)
    seconds = [methods.round(number, timed) for number in range(-2, rounds)][2:]
    share, sent = methods.count / elements, 6 * methods.count
    peaks = methods.round(0, lambda run: (peak_bytes(run), None))
    faster = [min(one["snapshot, torch"], one["snapshot, NumPy"]) for one in seconds]
    lines = []
    for name, kept in zip(methods.NAMES, (0.125, 2, 2, 0)):
        ms = 1e3 * statistics.median(one[name] for one in seconds)
        p10, ratio, p90 = np.quantile([one[name] / one["changed_weights()"] for one in seconds], (0.1, 0.5, 0.9))
        lines.append(f"| {lr:.0e} | {100 * share:.2g} | {name} | {(2 * elements if name == 'all weights' else sent) / 1e6:.4g} | "
                     f"{ms:.2f} | {ratio:.2f} ({p10:.2f} to {p90:.2f}) | {kept:g} | {peaks[name] / elements:.2f} |")
    aim = statistics.median(other / one["changed_weights()"] for one, other in zip(seconds, faster))
    return lines, f"At {lr:.0e} the faster snapshot takes {aim:.1f} times as long as collecting (10 are aimed at)."


def methods_table(asked):
    elements = 2**20 if asked.quick else asked.elements
    lines, ends = ["| lr | changed, % | method | MB sent | ms | of collecting's | B kept an element | B temporary |",
                   "| --- | --- | --- | --- | --- | --- | --- | --- |"], []
    for lr in RATES[:4]:
        rows, end = methods_rows(elements, lr, 3 if asked.quick else asked.rounds)
        lines, ends = lines + rows, [*ends, end]
        print(end, file=sys.stderr, flush=True)
    return [*lines, "", f"{elements} bfloat16 weights, float32 master.", *ends]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=files.positive, default=2**25,
                        help="of the large param, 16 bytes each (%(default)s)")
    parser.add_argument("--rounds", type=files.positive, default=11)
    parts = {"shares": shares_table, "methods": methods_table}
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(parts),
                        help="separated by commas (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see whether everything works")
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(parts):
        parser.error(f"cannot measure {', '.join(sorted(unknown))}: choose from {', '.join(parts)}")

    def usage():
        busy, _, processors = peers.processor_seconds()
        return busy, time.process_time(), processors
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    for part in asked.parts:
        before = usage()
        print("\n".join(parts[part](asked)))
        print(f"Others had {100 * peers.share_of_others(before, usage()):.1f} % of the processors meanwhile.\n", flush=True)
    print(peers.machine(cores, "the allocator's") + f"; torch {torch.__version__}, numpy {np.__version__}.")


if __name__ == "__main__":
    main()
