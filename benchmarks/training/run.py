# SPDX-License-Identifier: Apache-2.0
"""Trains small models with each storage format and writes what came out, as JSON and as a table in Markdown.

    python benchmarks/training/run.py --all --out results.json
    python benchmarks/training/run.py --experiment words --format quantized8 --seeds 0 --out results.json

Runs that the file has already are left out, so that what was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import platform
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Callable, Iterator

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import files  # noqa: E402
import models  # noqa: E402
from models import EXPERIMENTS, Experiment  # noqa: E402
from optimizers import Hyper, Stepper, Watch, bytes_of, explain, stepper  # noqa: E402

OFTEN = 50  # steps from one look at held-out text to the next
REFERENCE = "float32"
COMMON = ("float32", "torch", "bfloat16_nearest", "bfloat16", "quantized8", "quantized8_nearest", "companding8",
          "flashoptim8", "torchao8", "bitsandbytes8")
PARAMS = ("param_bfloat16_nearest", "param_bfloat16", "param_bfloat16_quantized8")
ONCE = ("master", "split_float32")  # of one seed: their losses are the same to the bit
Run = tuple[str, str, int]


def formats_of(experiment: str) -> tuple[str, ...]:
    return COMMON if experiment.startswith("small") else COMMON + PARAMS


@lru_cache(maxsize=1)
def found_texts(cache: Path) -> dict[str, str]:
    return models.texts(cache)


@lru_cache(maxsize=2)
def numbers(experiment: str, cache: Path) -> tuple[Tensor, Tensor]:
    """What is trained on, and the last twentieth, which is held out."""
    everything = EXPERIMENTS[experiment].data(found_texts(cache))
    kept = len(everything) * 19 // 20
    return everything[:kept], everything[kept:]


def windows(text: Tensor, of: Experiment, random: torch.Generator) -> Tensor:
    first = torch.randint(0, len(text) - of.window, (of.batch,), generator=random)
    return text[first[:, None] + torch.arange(of.window)]


@torch.no_grad()
def held_out(model: nn.Module, text: Tensor, of: Experiment, batches: int) -> float:
    random = torch.Generator().manual_seed(1)
    return statistics.fmean(model(windows(text, of, random)).item() for _ in range(batches))


def weights_file(experiment: str, seed: int, cache: Path) -> Path:
    of = EXPERIMENTS[experiment]
    return cache / f"{experiment}-{REFERENCE}-{seed}-{of.steps}.pt"


def fit(of: Experiment, model: nn.Module, optimizer: Stepper, seed: int, text: Tensor, other: Tensor,
        watch: Watch | None = None) -> dict[str, Any]:
    """All its steps; and the losses of what it is trained on, and of what is held out."""
    random = torch.Generator().manual_seed(1000 + seed)
    curve, losses = [[0, held_out(model, other, of, of.held_out_batches // 4)]], []
    for step in range(of.steps):
        loss = model(windows(text, of, random))
        model.zero_grad(set_to_none=True)
        (loss * of.gradient_scale).backward()
        if watch is not None:
            watch.gradients()
        optimizer.step(of.rate(step))
        if watch is not None:
            watch.after()
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            break
        if (step + 1) % OFTEN == 0 and step + 1 < of.steps:
            curve.append([step + 1, held_out(model, other, of, of.held_out_batches // 4)])
    final = held_out(model, other, of, of.held_out_batches)
    curve.append([len(losses), held_out(model, other, of, of.held_out_batches // 4)])
    return {"loss": final, "curve": curve, "train": [round(each, 5) for each in losses]}


def train(run: Run, cache: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    experiment, name, seed = run
    of = EXPERIMENTS[experiment]
    text, other = numbers(experiment, cache)
    torch.manual_seed(seed)
    model = of.model()
    if of.starts_from is not None:
        model.load_state_dict(torch.load(weights_file(of.starts_from, seed, cache), weights_only=True))
    params: list[Tensor] = list(model.parameters())
    began = time.monotonic()
    optimizer = stepper(name, params, of.hyper, seed)
    watch = Watch(optimizer)
    result = fit(of, model, optimizer, seed, text, other, watch)
    if name == REFERENCE:
        torch.save(model.state_dict(), weights_file(experiment, seed, cache))
    return {"setting": of.setting(), **result, "largest_update": optimizer.largest_update, **watch.report(),
            "elements": sum(p.numel() for p in params), "seconds": round(time.monotonic() - began, 1)}


def attempt(run: Run, cache: Path) -> tuple[Run, dict[str, Any]]:
    try:
        return run, train(run, cache)
    except (ImportError, NotImplementedError, RuntimeError) as error:
        # A library that is not there, or does not run on a CPU, is something to report.
        return run, {"error": f"{type(error).__name__}: {error}".split("\n")[0][:300]}


# What there is to run

def key(run: Run) -> str:
    return "/".join(map(str, run))


def chosen(arguments: argparse.Namespace) -> list[Run]:
    runs: list[Run] = []
    for seed in arguments.seeds:
        for experiment in arguments.experiment or EXPERIMENTS:
            runs += [(experiment, name, seed) for name in arguments.format or formats_of(experiment)]
            if experiment == "text" and not arguments.format and seed == arguments.seeds[0]:
                runs += [(experiment, name, seed) for name in ONCE]
    return runs


def stages(runs: list[Run], cache: Path) -> Iterator[list[Run]]:
    """Those that write weights for others come first."""
    first: set[Run] = set()
    for experiment, _, seed in runs:
        before = EXPERIMENTS[experiment].starts_from
        if before and ((before, REFERENCE, seed) in runs or not weights_file(before, seed, cache).exists()):
            first.add((before, REFERENCE, seed))
    yield sorted(first)
    yield [run for run in runs if run not in first]


def known_format(name: str) -> str:
    """A type of arguments: a name that stepper() knows, also if its library is not installed."""
    try:
        explain(name)
        if name.startswith("adamant:"):
            stepper(name, [nn.Parameter(torch.zeros(64))], Hyper(), 0)
    except ImportError:
        pass  # attempt() reports it
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = "no format has this name" if isinstance(error, KeyError) else error
        raise argparse.ArgumentTypeError(f"cannot train with {name}: {reason}. Give a name in formats.py or "
                                         "optimizers.py, or adamant:STATE_FORMAT[:bfloat16].") from error
    return name


def stored(out: Path, script: str, table: Callable[[dict[str, Any]], str]) -> dict[str, Any]:
    """The runs that a file has already. table() must accept them."""
    def checked(result: dict[str, Any]) -> dict[str, Any]:
        for name in result["runs"].keys():
            experiment, _, seed = name.split("/")
            _ = EXPERIMENTS[experiment], int(seed)
        table(result)
        return result
    return files.read(out, script, checked) if out.exists() else {"runs": {}}


def check_set_up(result: dict[str, Any], out: Path, cache: Path) -> None:
    """Runs are added only to runs with the same environment and settings."""
    here = environment(cache)
    if result.setdefault("environment", here) != here:
        files.fail(f"cannot add to {out}: it was made with {result['environment']}, but this is {here}. "
                   "Choose another file.")
    for name, run in result["runs"].items():
        if run.get("setting") not in (None, EXPERIMENTS[name.split("/")[0]].setting()):
            files.fail(f"cannot add to {out}: {name} was run as {run['setting']}. Choose another file.")


def save(result: dict[str, Any], out: Path) -> None:
    files.replace(out, json.dumps(result, indent=None, separators=(",", ":")).replace('"runs":{', '"runs":{\n')
                  .replace('},"', '},\n"'))


def done(runs: list[Run], one: Callable[[Run], tuple[Run, dict[str, Any]]],
         jobs: int) -> Iterator[tuple[Run, dict[str, Any]]]:
    """What came out of each, as soon as it and those before it have ended."""
    if jobs == 1:
        yield from map(one, runs)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(one, runs)


def keep(result: dict[str, Any], run: Run, got: dict[str, Any], out: Path) -> None:
    result["runs"][key(run)] = got
    save(result, out)
    print(f"{key(run)}: {got.get('error') or round(got['loss'], 4)}, {got.get('seconds')} s", file=sys.stderr,
          flush=True)


def environment(cache: Path) -> dict[str, Any]:
    from importlib import metadata
    versions = {}
    for name in ("torch", "numpy", "torchao", "bitsandbytes"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {"python": platform.python_version(), **versions, "texts": models.digest(found_texts(cache))}


# The table

def over_seeds(result: dict[str, Any], experiment: str, name: str) -> list[tuple[int, dict[str, Any]]]:
    found = [(int(k.rsplit("/", 1)[1]), run) for k, run in result["runs"].items()
             if k.startswith(f"{experiment}/{name}/")]
    return sorted(found, key=lambda each: each[0])


def percent(share: float) -> str:
    return "0" if share == 0 else f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.0f}%"


def row(result: dict[str, Any], experiment: str, name: str) -> str | None:
    runs = over_seeds(result, experiment, name)
    if not runs:
        return None
    good = [(seed, run) for seed, run in runs if "error" not in run]
    if not good:
        return f"| {name} | did not run: {runs[0][1]['error']} | | | | | |"
    ended = len(good)
    good = [(seed, run) for seed, run in good if math.isfinite(run["loss"])]
    diverged = f"; {ended - len(good)} of {ended} diverged" if len(good) < ended else ""
    if not good:
        return f"| {name} | all {ended} diverged | | | | | |"
    reference = dict(over_seeds(result, experiment, REFERENCE))
    paired = [run["loss"] - reference[seed]["loss"] for seed, run in good if seed in reference]
    spread = f" ± {statistics.stdev(paired):.4f}" if len(paired) > 1 else ""
    of_mean = round(statistics.fmean(paired), 4) + 0.0 if paired else 0.0  # no -0.0000
    losses = [run["loss"] for _, run in good]
    of_losses = f" ± {statistics.stdev(losses):.4f}" if len(losses) > 1 else ""
    difference = "" if name == REFERENCE or not paired else f"{of_mean:+.4f}{spread}"
    each = "" if not difference or len(paired) < 2 else ", ".join(f"{round(one, 4) + 0.0:+.4f}" for one in paired)
    known = [run for _, run in good if run["stuck"] is not None]
    follows = "unknown | unknown"
    if known:
        fell, zero = sum(run["fell"] for run in known), statistics.fmean(run["zero"] for run in known)
        stuck = percent(sum(run["stuck"] for run in known) / fell) if fell else "too short"
        follows = f"{stuck} | {statistics.fmean(run['v_over_exact'] for run in known):.3f}"
        follows += f", {percent(zero)} zero" if zero else ""
    updates = [run["largest_update"] for _, run in good]
    largest = "unknown" if None in updates else f"{max(updates):.3g}"
    return (f"| {name} | {statistics.fmean(losses):.4f}{of_losses}{diverged} | {difference} | {each} | {largest} "
            f"| {follows} |")


def table(result: dict[str, Any]) -> str:
    lines = []
    for experiment, of in EXPERIMENTS.items():
        names = list(dict.fromkeys(k.split("/")[1] for k in result["runs"] if k.startswith(f"{experiment}/")))
        if not names:
            continue
        order = list(COMMON + PARAMS + ONCE)
        names.sort(key=lambda name: order.index(name) if name in order else len(order))
        lines += [f"**{experiment}**: {of.what}; {of.steps} steps.", "",
                  "| storage | held-out loss | less float32's, same seed | of each seed | largest update "
                  "| v stuck | v over exact |", "| --- | --- | --- | --- | --- | --- | --- |"]
        lines += [line for line in (row(result, experiment, name) for name in names) if line]
        lines.append("")
    names = list(dict.fromkeys(k.split("/")[1] for k in result["runs"]))
    lines += ["| storage | what it is | bytes of state an element |", "| --- | --- | --- |"]
    lines += [f"| {name} | {explain(name)} | {bytes_of(name)} |" for name in names]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every experiment, every format")
    parser.add_argument("--experiment", action="append", choices=EXPERIMENTS)
    parser.add_argument("--format", action="append", type=known_format,
                        help="a name in formats.py or optimizers.py, or adamant:STATE_FORMAT[:bfloat16]")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=files.writable, default="results.json")
    parser.add_argument("--cache", type=files.folder, default=str(Path.home() / ".cache/adamant-training"),
                        help="for texts and weights")
    parser.add_argument("--jobs", type=files.positive, default=1, help="runs at a time, of one thread each")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = stored(arguments.out, "run.py", table)
    if not (arguments.all or arguments.experiment or arguments.format):
        print(table(result))
        return
    check_set_up(result, arguments.out, arguments.cache)
    missing = [run for run in chosen(arguments) if key(run) not in result["runs"]]
    for stage in stages(missing, arguments.cache):
        for run, got in done(stage, partial(attempt, cache=arguments.cache), arguments.jobs):
            keep(result, run, got, arguments.out)
    print(table(result))


if __name__ == "__main__":
    main()
