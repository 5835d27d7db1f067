# SPDX-License-Identifier: Apache-2.0
"""What engines.py measures of overlap=True: how much of a step it hides behind backward."""
import copy
import os
import statistics
import time

import numpy as np
from engines_rows import LR, row
from peers_contenders import Missing, imported

ODD_ONE, LARGER = 20, 4.0  # one step in ODD_ONE has gradients LARGER times as large


class Trained:
    """A model and its optimizer, which share params and moments with another's."""

    def __init__(self, model, **arguments):
        from adamant.torch import AdamW
        self.model, self.params = model, list(model.parameters())
        self.optimizer = AdamW(self.params, lr=LR, max_norm=1.0, **arguments)
        self.scale = 1.0  # of the loss

    def take(self, batch, larger=1.0):
        """Seconds of backward and of the step."""
        self.model.zero_grad()
        loss = self.scale * larger * self.model(batch).square().mean()
        start = time.perf_counter()
        loss.backward()
        middle = time.perf_counter()
        self.optimizer.step()
        return middle - start, time.perf_counter() - middle


def two_cores():
    """One for the optimizer and one for everybody else, as tuples; the process is bound to both."""
    from adamant.executor import pus_of, select_cores
    split = select_cores(cores=1)
    adam, host = pus_of(split.adam)[:1], pus_of(split.host)[:1]
    if not host:
        raise Missing("needs two cores")
    os.sched_setaffinity(0, {*adam, *host})
    return adam, host


def both_ways(torch, cores, width):
    """The same model without overlap and with it. One memory, but hooks only where they belong."""
    model = torch.nn.Sequential(*[torch.nn.TransformerEncoderLayer(
        width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True) for _ in range(8)])
    twin = copy.deepcopy(model)
    for one, other in zip(model.parameters(), twin.parameters()):
        other.data = one.data
    after, overlapped = Trained(model, cores=cores), Trained(twin, cores=cores, overlap=True)
    after.take(torch.randn(1, 8, width))  # makes the states, and binds torch's threads
    for one, other in zip(after.params, overlapped.params):
        overlapped.optimizer.state[other] = {**after.optimizer.state[one], "step": torch.tensor(1.0)}
    return after, overlapped


def overlap_part(asked):
    """A transformer with a batch whose backward takes as long as the step, one core for each, and max_norm. Hidden is
    what backward alone and the step alone take more than both together, over the step alone. One step in 20 has
    gradients four times as large; it is clipped, and so rolled back."""
    adam, host = two_cores()
    torch = imported("torch")
    torch.manual_seed(1)
    width = 128 if asked.quick else 768
    after, overlapped = both_ways(torch, adam, width)
    for tokens in (2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128):
        batch = torch.randn(1, tokens, width)
        backward, step = (min(seconds) for seconds in zip(*(after.take(batch) for _ in range(7))))
        if backward >= 0.95 * step:
            break
    after.scale = overlapped.scale = 0.5 / after.optimizer.last_report.global_norm
    backwards, steps, both, clipped, rolled_back = [], [], [], 0, 0
    for number in range(-2, 4 * asked.rounds):
        batch, larger = torch.randn(1, tokens, width), LARGER if number % ODD_ONE == ODD_ONE // 2 else 1.0
        for trained in (after, overlapped)[::1 if number % 2 else -1]:
            backward, step = trained.take(batch, larger)
            if number < 0:
                continue
            if trained is after:
                backwards, steps = backwards + [backward], steps + [step]
            else:
                both.append(backward + step)
                clipped += trained.optimizer.last_report.clip_coefficient < 1
                rolled_back += trained.optimizer.last_report.rolled_back != 0
    one_by_one = np.add(backwards, steps)
    p10, median, p90 = 100 * np.quantile((one_by_one - both) / steps, (0.1, 0.5, 0.9))
    ms = [1e3 * statistics.median(seconds) for seconds in (backwards, steps, one_by_one.tolist(), both)]
    millions = sum(param.numel() for param in after.params) / 1e6
    return [row("backward and step, overlap=True over False", both, one_by_one.tolist())], [
        f"Overlap: {millions:.1f} M in {len(after.params)} tensors, {tokens} tokens, a core for backward, one for the "
        f"step, max_norm. Backward alone {ms[0]:.1f} ms, step alone {ms[1]:.1f}, one after the other {ms[2]:.1f}, both "
        f"with overlap=True {ms[3]:.1f}: {median:.0f}% of the step is hidden ({p10:.0f} to {p90:.0f}; at least 70 are "
        f"aimed at). {clipped} of {len(both)} steps were clipped, {rolled_back} rolled back and done again."]
