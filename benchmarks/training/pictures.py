# SPDX-License-Identifier: Apache-2.0
"""Draws what run.py found, one SVG an experiment: python benchmarks/training/pictures.py results.json --into
docs/pictures

On the left the held-out loss of all storages, means over seeds. Beside it, for each storage, its difference
to float32's of the same seed, a line a seed, all on one scale. A line that leaves its box is cut off there;
the number below it is that of run.py's table. """

from __future__ import annotations

import argparse
import math
import statistics
import sys
from pathlib import Path
from typing import Any, Iterable

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import files  # noqa: E402

REFERENCE = "float32"
# The library's first; then what they came from, and others.
ORDER = ("torch", "bfloat16", "bfloat16_nearest", "quantized8", "quantized8_nearest", "adamant:quantized8",
         "param_bfloat16", "param_bfloat16_nearest", "param_bfloat16_quantized8", "companding8", "torchao8",
         "bitsandbytes8", "flashoptim8")
COLUMNS, BOX, HIGH, GAP = 4, 138, 74, 40  # boxes a row, their size, and what is between
LEFT, WIDE, TOP = 46, 230, 62  # the panel of losses
STYLE = """text{font:11px "DejaVu Sans",Helvetica,Arial,sans-serif;fill:#222}
.title{font-size:15px;font-weight:bold}.small{font-size:10px;fill:#555}
.name{font-weight:bold;font-size:10.5px}
.frame{fill:none;stroke:#999;stroke-width:.8}.zero{stroke:#999;stroke-width:.8;stroke-dasharray:3 3}
.other{fill:none;stroke:#0072b2;stroke-width:1;opacity:.55}.line{fill:none;stroke:#d55e00;stroke-width:1.3}
.reference{fill:none;stroke:#222;stroke-width:2.2}
@media(prefers-color-scheme:dark){text{fill:#e6e6e6}.small{fill:#aaa}.frame,.zero{stroke:#777}
.reference{stroke:#eee}.other{stroke:#56b4e9}.line{stroke:#f0a040}}"""
TITLES = {
    "text": "Training a transformer on text", "finetune": "Fine-tuning it on other text, learning rate 3e-5",
    "words": "20,000 words, most of them rare", "small": "Gradients times 1e-4, eps 1e-8",
    "small_eps": "Gradients and eps times 1e-4",
}
Curve = list[list[float]]


def escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def polyline(points: Iterable[tuple[float, float]], kind: str, clip: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points if math.isfinite(y))
    return f'<polyline class="{kind}" clip-path="url(#{clip})" points="{path}"/>'


def text(x: float, y: float, what: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escaped(what)}</text>'


def mean_curve(curves: list[Curve]) -> Curve:
    return [[points[0][0], statistics.fmean(p[1] for p in points)] for points in zip(*curves)]


def limit_of(differences: dict[str, list[Curve]]) -> float:
    """A scale that shows what formats differ by where nothing is wrong: one that is far off is cut."""
    ends = sorted(max(abs(p[1]) for curve in curves for p in curve) for curves in differences.values())
    middle = ends[len(ends) // 2]
    return max(0.002, 1.1 * max([end for end in ends if end <= 6 * middle] or [middle]))


def compared(runs: dict[str, dict[int, Any]], to: str = REFERENCE) -> list[str]:
    """Names of runs that share a seed with those named by `to`."""
    return [name for name in runs if name != to and runs[name].keys() & runs.get(to, {}).keys()]


def picture(experiment: str, runs: dict[str, dict[int, Curve]], losses: dict[str, dict[int, float]],
            to: str = REFERENCE) -> str:
    """All runs beside those that are named by `to`."""
    reference = runs[to]
    names = compared(runs, to)
    differences = {name: [[[a[0], a[1] - b[1]] for a, b in zip(curve, reference[seed])]
                          for seed, curve in runs[name].items() if seed in reference] for name in names}
    rows = -(-len(names) // COLUMNS)
    height_of_losses = rows * (HIGH + GAP) - GAP
    width = LEFT + WIDE + 70 + COLUMNS * (BOX + 12)
    height = TOP + height_of_losses + 34
    steps = max(p[0] for curve in reference.values() for p in curve)
    seeds = len(reference)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
           f'viewBox="0 0 {width} {height}">',
           f"<style>{STYLE}</style>", text(8, 20, TITLES.get(experiment, experiment), "title"),
           text(8, 38, f"Held-out loss; mean of {seeds} seeds", "small"),
           text(LEFT + WIDE + 62, 38, f"Difference to {to} of the same seed; a line a seed; below, the "
                "mean of the trained model", "small")]

    def frame(x: float, y: float, wide: float, high: float, clip: str) -> None:
        out.append(f'<clipPath id="{clip}"><rect x="{x}" y="{y}" width="{wide}" height="{high}"/></clipPath>'
                   f'<rect class="frame" x="{x}" y="{y}" width="{wide}" height="{high}"/>')

    # The losses. The first point is left out: all begin alike, far above.
    frame(LEFT, TOP, WIDE, height_of_losses, "losses")
    means = {name: mean_curve(list(curves.values()))[1:] for name, curves in runs.items()}
    ends = [p[1] for p in means[to]]
    shown = [p[1] for curve in means.values() for p in curve if math.isfinite(p[1])]
    low, high = min(shown), min(max(shown), 2 * max(ends) - min(ends))  # what is far off is cut here, too
    low, high = low - 0.06 * (high - low), high + 0.06 * (high - low)

    def place(p: list[float]) -> tuple[float, float]:
        return LEFT + WIDE * p[0] / steps, TOP + height_of_losses * (high - p[1]) / (high - low)
    for name in names:
        out.append(polyline(map(place, means[name]), "other", "losses"))
    out.append(polyline(map(place, means[to]), "reference", "losses"))
    digits = 2 if high - low > 0.1 else 3
    for value in (min(ends), max(ends)):
        out.append(text(LEFT - 4, place([0, value])[1] + 4, f"{value:.{digits}f}", "small", "end"))
    out += [text(LEFT, TOP + height_of_losses + 14, "0", "small", "middle"),
            text(LEFT + WIDE, TOP + height_of_losses + 14, f"{steps:.0f} steps", "small", "end"),
            text(LEFT + WIDE - 6, TOP + 16, f"black or white: {to}; blue: the others", "small", "end")]

    limit = limit_of(differences)
    for i, name in enumerate(names):
        x, y = LEFT + WIDE + 62 + (i % COLUMNS) * (BOX + 12), TOP + (i // COLUMNS) * (HIGH + GAP)
        frame(x, y, BOX, HIGH, f"box{i}")
        out.append(f'<line class="zero" x1="{x}" x2="{x + BOX}" y1="{y + HIGH / 2}" y2="{y + HIGH / 2}"/>')
        for curve in differences[name]:
            points = ((x + BOX * p[0] / steps, y + HIGH / 2 * (1 - p[1] / limit)) for p in curve)
            out.append(polyline(points, "line", f"box{i}"))
        final = round(statistics.fmean(loss - losses[to][seed] for seed, loss in losses[name].items()
                                       if seed in reference), 4) + 0.0  # no -0.0000
        out += [text(x, y - 5, name.replace("param_bfloat16", "param_bf16"), "name"),
                text(x + BOX, y + HIGH + 12, f"{final:+.4f}" if math.isfinite(final) else "diverged", "small", "end")]
        if i % COLUMNS == 0:
            out += [text(x - 3, y + 9, f"+{limit:.2g}", "small", "end"),
                    text(x - 3, y + HIGH, f"-{limit:.2g}", "small", "end")]
    return "\n".join(out) + "\n</svg>\n"


def pictures(results: dict[str, Any], experiments: list[str] | None, formats: list[str] | None) -> dict[str, str]:
    """{experiment: picture}"""
    found: dict[str, dict[str, dict[int, Curve]]] = {}
    losses: dict[str, dict[str, dict[int, float]]] = {}
    for key, run in results["runs"].items():
        experiment, name, seed = key.rsplit("/", 2)
        if "error" not in run:
            found.setdefault(experiment, {}).setdefault(name, {})[int(seed)] = run["curve"]
            losses.setdefault(experiment, {}).setdefault(name, {})[int(seed)] = run["loss"]
    drawn = {}
    for experiment, runs in found.items():
        # master and split_float32 are to be equal to each other, and are in the table.
        names = sorted((name for name in runs if name not in ("master", "split_float32", REFERENCE)),
                       key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
        shown = {name: runs[name] for name in [REFERENCE, *names]
                 if name in runs and name in (REFERENCE, *(formats or names))}
        if compared(shown) and experiment in (experiments or found):
            drawn[experiment] = picture(experiment, shown, losses[experiment])
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--into", type=files.folder, default=".")
    parser.add_argument("--experiment", nargs="+", help="these alone")
    parser.add_argument("--format", nargs="+", help="these alone, beside float32")
    arguments = parser.parse_args()
    drawn = files.read(arguments.results, "run.py",
                       lambda results: pictures(results, arguments.experiment, arguments.format))
    if not drawn:
        files.fail(f"cannot draw {arguments.results}: no experiment asked for has runs of {REFERENCE} and of another "
                   "format with the same seed. Run run.py for both.")
    for experiment, svg in drawn.items():
        path = arguments.into / f"training_{experiment}.svg"
        path.write_text(svg)
        print(path)


if __name__ == "__main__":
    main()
