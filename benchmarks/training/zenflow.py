# SPDX-License-Identifier: Apache-2.0
"""Trains the transformer of models.py's `text` with AdamW, with exact ZenFlow, and with ZenFlow as DeepSpeed
shortens it.

    python benchmarks/training/zenflow.py --out zenflow.json --picture docs/pictures/training_zenflow.svg
    python benchmarks/training/zenflow.py --variant exact:0.1 --seeds 0 --out zenflow.json

Runs that the file has already are left out, so that what was interrupted goes on.

A variant is a name, topk_ratio and, where it is not 16, select_interval: `exact:0.1`, `zeroed:0.1:96`. Without
topk_ratio it is AdamW. Names are `exact`, `exact_bf16` (the model computes with bfloat16 weights, masters are
float32), those of SHORTCUTS and CONTROLS below, `all` shortcuts together, and `all-NAME` without one.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import files  # noqa: E402
from models import EXPERIMENTS  # noqa: E402
from optimizers import Foreign, Hyper, Stepper, gradient, of_torch  # noqa: E402
from pictures import compared, picture  # noqa: E402
from run import Run, check_set_up, done, fit, keep, key, numbers, over_seeds, stored  # noqa: E402

SHORTCUTS = {
    "master": "float32 masters are overwritten from bfloat16 weights at each selection",
    "selected_bf16": "selected columns and vectors have no float32 masters, and bfloat16 moments",
    "zeroed": "selected columns and vectors have moments of their own, zeroed at each selection, "
              "and a step number that goes on",
    "two_pairs": "deferred columns have two pairs of moments, each of which sees every other window",
    "micro_steps": "the bias correction of deferred columns counts steps, not updates",
    "step_bf16": "the step number of selected columns and vectors is bfloat16, where 256 + 1 is 256",
    "cut": "columns that a flat partition over 4 ranks cuts are never selected",
}
# No shortcuts of DeepSpeed's: which part of `zeroed` does what it does.
CONTROLS = {
    "restarted": "as `zeroed`, but the step number begins anew with the moments",
    "apart": "columns have a pair of moments as selected ones and another as deferred ones, neither ever zeroed",
}
OTHERS = {
    "adamw": "AdamW",
    "torch": "torch.optim.AdamW: what differs from `adamw` is the order of roundings",
    "adamw_bf16": "AdamW; the model computes with bfloat16 weights, masters are float32",
    "exact": "exact ZenFlow",
    "adamant": "exact ZenFlow, by adamant.torch.AdamW",
    "exact_bf16": "exact ZenFlow; the model computes with bfloat16 weights, masters are float32",
}
VARIANTS = (
    "adamw", "torch", "exact:0", "exact:0.05", "exact:0.1", "adamant:0.1", "exact:0.1:96", "zeroed:0.1",
    "zeroed:0.1:96", "restarted:0.1", "apart:0.1", "two_pairs:0.1", "micro_steps:0.1", "step_bf16:0.1", "cut:0.1",
    "adamw_bf16",
    "exact_bf16:0.1", "exact_bf16:0.1:96", "master:0.1", "selected_bf16:0.1", "all-selected_bf16:0.1", "all:0.1",
    "all:0.1:96")
EXPERIMENT = "text"
RANKS = 4
MOST_IN_BF16 = 256  # adding 1 to it in bfloat16 changes nothing


@dataclass(frozen=True)
class Schedule:
    topk_ratio: float = 0.1
    update_interval: int = 4
    select_interval: int = 16
    overlap: bool = True
    full_warm_up_rounds: int = 0


def rounded(value: Tensor) -> Tensor:
    return value.bfloat16().float()


def correction(beta: float, count: Tensor) -> Tensor:
    """1 - beta^n of each column's n. Python's pow, since torch's may differ by where in a tensor n is."""
    counts, where = torch.unique(count, return_inverse=True)
    return torch.tensor([1 - beta ** n for n in counts.tolist()], dtype=torch.float64)[where]


class Moments:
    """One pair, and how many updates each column has taken with it."""

    def __init__(self, like: Tensor):
        self.m, self.v = torch.zeros_like(like), torch.zeros_like(like)
        self.count = torch.zeros(len(like), dtype=torch.int64)


class Matrix:
    """What is kept of a param, transposed: a column of it is a row here, and so one piece of memory. A vector is
    a matrix of one row, all of whose columns are always selected."""

    def __init__(self, p: Tensor, pairs: int):
        self.p, self.is_vector = p, p.dim() < 2
        self.columns = p.numel() if self.is_vector else p.shape[-1]
        self.master = self.transposed(p.detach()).clone()
        self.sum = torch.zeros_like(self.master)
        self.pairs = [Moments(self.master) for _ in range(pairs)]
        self.of_selected = Moments(self.master)  # where it has moments of its own
        self.every = torch.arange(self.columns)
        self.choose(self.every if self.is_vector else self.every[:0])
        self.cut = torch.zeros(self.columns, dtype=torch.bool)

    def choose(self, columns: Tensor) -> None:
        is_selected = torch.zeros(self.columns, dtype=torch.bool)
        is_selected[columns] = True
        self.selected, self.deferred = is_selected.nonzero().flatten(), (~is_selected).nonzero().flatten()

    def transposed(self, value: Tensor) -> Tensor:
        return value.view(-1, self.columns).t()

    def gradient(self) -> Tensor:
        return self.transposed(gradient(self.p)).contiguous()


def find_cut(matrices: list[Matrix], ranks: int) -> None:
    """Params lie one behind the other, each column by column, and each rank has an equal part of all."""
    begin, part = 0, -(-sum(each.p.numel() for each in matrices) // ranks)
    for of in matrices:
        rows = of.p.numel() // of.columns
        first = begin + of.every * rows
        of.cut = first // part != (first + rows - 1) // part
        begin += of.p.numel()


class ZenFlow(Stepper):
    """Exact ZenFlow, and DeepSpeed's shortcuts by name.

    Masters and moments of deferred columns take their update as soon as their window ends. With overlap the model
    sees it a window later, so what is in flight is what masters have and p.data has not. Subnormal numbers
    are kept as they are, gradients are neither scaled nor clipped. """

    def __init__(self, params: list[Tensor], hyper: Hyper, schedule: Schedule,
                 shortcuts: frozenset[str] = frozenset(), bfloat16_weights: bool = False):
        super().__init__(params, hyper)
        self.schedule, self.shortcuts, self.bfloat16_weights = schedule, shortcuts, bfloat16_weights
        self.matrices = [Matrix(p, 2 if "two_pairs" in shortcuts else 1) for p in params]
        self.are_apart = bool(shortcuts & {"zeroed", *CONTROLS})  # the moments of what is selected
        if "cut" in shortcuts:
            find_cut(self.matrices, RANKS)
        self.taken = self.window = self.in_window = 0  # steps, windows that have ended, steps in this one
        self.selected_at: int | None = None
        for of in self.matrices:
            self._show(of, of.every)

    @torch.no_grad()
    def step(self, lr: float) -> None:
        self.taken += 1
        s = self.schedule
        if self.taken <= s.full_warm_up_rounds:
            for of in self.matrices:
                self._update(of, self._pair(of), of.every, of.gradient(), lr)
                self._show(of, of.every)
            self.window += 1
            return
        if self.in_window == 0 and (self.selected_at is None
                                    or self.taken - self.selected_at >= s.select_interval):
            self._select()
        self.in_window += 1
        for of in self.matrices:
            g = of.gradient()
            self._step_selected(of, g[of.selected], lr)
            of.sum = g.clone() if self.in_window == 1 else of.sum + g
        if self.in_window == s.update_interval:
            for of in self.matrices:
                self._step_deferred(of, lr)
            self.window, self.in_window = self.window + 1, 0

    def _select(self) -> None:
        first, self.selected_at = self.selected_at is None, self.taken
        for of in self.matrices:
            if "master" in self.shortcuts and not first:
                # DeepSpeed does this while the update of the window before may be under way, which then counts or
                # does not. Here it does, always.
                of.master = rounded(of.master)
            if self.shortcuts & {"zeroed", "restarted"}:
                of.of_selected = Moments(of.master)
            if not of.is_vector:
                ratio = self.schedule.topk_ratio
                most = max(1, math.floor(ratio * of.columns + 0.5)) if ratio > 0 else 0
                scores = of.gradient().abs().sum(1).masked_fill(of.cut, -1.0)
                of.choose(scores.sort(descending=True, stable=True).indices[:most])

    def _step_selected(self, of: Matrix, g: Tensor, lr: float) -> None:
        moments, columns = of.of_selected if self.are_apart else of.pairs[0], of.selected
        number = moments.count[columns] + 1
        if "zeroed" in self.shortcuts:
            number.fill_(self.taken - self.schedule.full_warm_up_rounds)
        if "step_bf16" in self.shortcuts:
            number.clamp_(max=MOST_IN_BF16)
        self._update(of, moments, columns, g, lr, number)
        if "selected_bf16" in self.shortcuts:
            for kept in (of.master, moments.m, moments.v):
                kept[columns] = rounded(kept[columns])
        self._show(of, columns)

    def _step_deferred(self, of: Matrix, lr: float) -> None:
        if self.schedule.overlap:
            self._show(of, of.deferred)  # what the window before has made
        # Where selected columns have moments of their own, the others see the gradients of all.
        columns = of.every if self.are_apart else of.deferred
        selected = of.master[of.selected]
        number = torch.full_like(columns, self.taken) if "micro_steps" in self.shortcuts else None
        self._update(of, self._pair(of), columns, of.sum[columns] * (1 / self.in_window), lr, number)
        of.master[of.selected] = selected
        if not self.schedule.overlap:
            self._show(of, of.deferred)

    def _pair(self, of: Matrix) -> Moments:
        return of.pairs[self.window % len(of.pairs)]

    def _update(self, of: Matrix, moments: Moments, columns: Tensor, g: Tensor, lr: float,
                number: Tensor | None = None) -> None:
        """AdamW of these columns. `number` is in place of their count for the bias correction."""
        h = self.hyper
        count = moments.count[columns] + 1
        n = count if number is None else number
        m = moments.m[columns] * h.beta1 + g * (1 - h.beta1)
        v = moments.v[columns] * h.beta2 + g * (1 - h.beta2) * g
        rate = (lr / correction(h.beta1, n)).float()[:, None]
        root = correction(h.beta2, n).sqrt().float()[:, None]
        p = of.master[columns] * (1 - lr * h.weight_decay)
        of.master[columns] = p - rate * m / (v.sqrt() / root + h.eps)
        moments.m[columns], moments.v[columns], moments.count[columns] = m, v, count

    def _show(self, of: Matrix, columns: Tensor) -> None:
        """To the model."""
        value = of.master[columns]
        of.transposed(of.p.data)[columns] = rounded(value) if self.bfloat16_weights else value


# Variants

@dataclass(frozen=True)
class Variant:
    name: str
    topk_ratio: float | None  # none: AdamW
    select_interval: int

    @staticmethod
    def parse(text: str) -> Variant:
        name, *rest = text.split(":")
        known = set(SHORTCUTS) | set(CONTROLS) | set(OTHERS) | {"all", *(f"all-{each}" for each in SHORTCUTS)}
        if name not in known or len(rest) > 2 or bool(rest) == (name in ("adamw", "adamw_bf16", "torch")):
            raise argparse.ArgumentTypeError(f"no variant is named {text}")
        return Variant(name, float(rest[0]) if rest else None,
                       int(rest[1]) if len(rest) > 1 else Schedule.select_interval)

    def shortcuts(self) -> frozenset[str]:
        if self.name.startswith("all"):
            return frozenset(SHORTCUTS) - {self.name.removeprefix("all").removeprefix("-")}
        return frozenset((*SHORTCUTS, *CONTROLS)) & {self.name}

    def bfloat16_weights(self) -> bool:
        return self.name.endswith("_bf16") and self.name in OTHERS or bool(
            self.shortcuts() & {"master", "selected_bf16"})

    def adamw(self) -> str:
        """The AdamW that it is compared with: that with the same weights."""
        return "adamw_bf16" if self.bfloat16_weights() and self.name != "adamw_bf16" else "adamw"

    def exact(self) -> str | None:
        """The exact ZenFlow that a shortcut is compared with."""
        if not self.shortcuts():
            return None
        own = "" if self.select_interval == Schedule.select_interval else f":{self.select_interval}"
        return f"exact{'_bf16' if self.bfloat16_weights() else ''}:{self.topk_ratio:g}{own}"

    def explain(self) -> str:
        what = {**SHORTCUTS, **CONTROLS, **OTHERS}.get(self.name)
        return what or "all shortcuts" + self.name.removeprefix("all").replace("-", " but ")


def of_adamant(of: Variant, params: list[Tensor], hyper: Hyper) -> Stepper:
    from adamant.torch import AdamW

    def make(given: list[Tensor], **arguments: Any) -> torch.optim.Optimizer:
        zenflow = {"topk_ratio": of.topk_ratio, "select_interval": of.select_interval}
        return AdamW(given, threads=1, zenflow=zenflow, **arguments)
    return Foreign(params, hyper, make, lambda state, _: state["exp_avg_sq"].clone())


def stepper(variant: str, params: list[Tensor], hyper: Hyper) -> Stepper:
    of = Variant.parse(variant)
    if of.name == "torch":
        return of_torch(params, hyper)
    if of.name == "adamant":
        return of_adamant(of, params, hyper)
    schedule = Schedule(1.0 if of.topk_ratio is None else of.topk_ratio, select_interval=of.select_interval)
    return ZenFlow(params, hyper, schedule, of.shortcuts(), of.bfloat16_weights())


def train(run: Run, cache: Path) -> tuple[Run, dict[str, Any]]:
    torch.set_num_threads(1)
    _, variant, seed = run
    of = EXPERIMENTS[EXPERIMENT]
    torch.manual_seed(seed)
    model = of.model()
    began = time.monotonic()
    optimizer = stepper(variant, list(model.parameters()), of.hyper)
    result = fit(of, model, optimizer, seed, *numbers(EXPERIMENT, cache))
    return run, {"setting": of.setting(), **result, "seconds": round(time.monotonic() - began, 1)}


# The table and the picture

def paired(result: dict[str, Any], runs: dict[int, float], to: str | None) -> list[float]:
    other = {seed: run["loss"] for seed, run in over_seeds(result, EXPERIMENT, to)} if to else {}
    return [loss - other[seed] for seed, loss in runs.items() if seed in other]


def mean(values: list[float], form: str) -> str:
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{round(statistics.fmean(values), 4) + 0.0:{form}}{spread}"  # + 0.0: no -0.0000


def names_of(result: dict[str, Any]) -> list[str]:
    names = list(dict.fromkeys(name.split("/")[1] for name in result["runs"]))
    return sorted(names, key=lambda name: VARIANTS.index(name) if name in VARIANTS else len(VARIANTS))


def table(result: dict[str, Any]) -> str:
    names = names_of(result)
    lines = ["| variant | held-out loss | less AdamW's, same seed | less exact ZenFlow's, same seed |",
             "| --- | --- | --- | --- |"]
    for name in names:
        of = Variant.parse(name)
        runs = {seed: run["loss"] for seed, run in over_seeds(result, EXPERIMENT, name)}
        to_adamw = paired(result, runs, None if name == "adamw" else of.adamw())
        lines.append(f"| {name} | {mean(list(runs.values()), '.4f')} | {mean(to_adamw, '+.4f')} "
                     f"| {mean(paired(result, runs, of.exact()), '+.4f')} |")
    what = dict.fromkeys((of.name, of.explain()) for of in map(Variant.parse, names))
    return "\n".join([*lines, "", "| name | what it is |", "| --- | --- |",
                      *(f"| {name} | {explained} |" for name, explained in what)])


def draw(result: dict[str, Any]) -> str:
    runs = {name: dict(over_seeds(result, EXPERIMENT, name)) for name in names_of(result)}
    return picture("ZenFlow, exact and with DeepSpeed's shortcuts",
                   {name: {seed: run["curve"] for seed, run in found.items()} for name, found in runs.items()},
                   {name: {seed: run["loss"] for seed, run in found.items()} for name, found in runs.items()},
                   to="adamw")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", nargs="*", default=VARIANTS, help="these alone; none: what there is, again")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=files.writable, default="zenflow.json")
    parser.add_argument("--picture", type=files.writable)
    parser.add_argument("--cache", type=files.folder, default=str(Path.home() / ".cache/adamant-training"),
                        help="for texts")
    parser.add_argument("--jobs", type=files.positive, default=1, help="runs at a time, of one thread each")
    arguments = parser.parse_args()
    result = stored(arguments.out, "zenflow.py", table)
    runs: list[Run] = [(EXPERIMENT, name, seed) for seed in arguments.seeds for name in arguments.variant]
    missing = [run for run in runs if key(run) not in result["runs"]]
    for name in dict.fromkeys(name for _, name, _ in missing):
        try:
            stepper(name, [torch.nn.Parameter(torch.zeros(2, 2))], Hyper())
        except (argparse.ArgumentTypeError, ImportError, RuntimeError, ValueError) as error:
            files.fail(f"cannot train {name}: {error}. See --help.")
    if arguments.picture is not None:
        planned: dict[str, dict[int, Any]] = {}
        for each in [*result["runs"], *map(key, runs)]:
            _, name, seed = each.split("/")
            planned.setdefault(name, {})[int(seed)] = None
        if not compared(planned, "adamw"):
            files.fail(f"cannot draw {arguments.picture}: no variant has a seed of adamw's. Add adamw and another to "
                       "--variant.")
    check_set_up(result, arguments.out, arguments.cache)
    for run, got in done(missing, partial(train, cache=arguments.cache), arguments.jobs):
        keep(result, run, got, arguments.out)
    print(table(result))
    if arguments.picture is not None:
        arguments.picture.write_text(draw(result))


if __name__ == "__main__":
    main()
