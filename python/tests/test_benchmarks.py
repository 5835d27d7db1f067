# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of the package run: they use private names, which may change. Times are not checked."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_engines_benchmark_runs(tmp_path):
    from adamant._library import library_path
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    out = tmp_path / "rows.json"
    subprocess.run([sys.executable, str(BENCHMARKS / "engines.py"), "--quick", "--rounds", "1", "--rest-ms", "0", "--parts",
                    "torch,overhead,lists,overlap", "--library", str(library_path()), "--json", str(out)],
                   check=True, timeout=600)
    names = [row["name"] for row in json.loads(out.read_text())["rows"]]
    assert len(names) == 13 and names[6] == "step() over 1 of one element"


def test_changed_weights_benchmark_runs():
    out = subprocess.run([sys.executable, str(BENCHMARKS / "training" / "changed_weights.py"), "--quick"], check=True,
                         timeout=600, stdout=subprocess.PIPE, text=True).stdout  # the methods find the same weights
    shares = [[float(share) for share in line.split(" | ")[1:]] for line in out.replace(" |\n", "\n").splitlines()
              if line.startswith(("| bf16", "| fp16", "| split"))]
    assert len(shares) == 5 and all(row == sorted(row) and 0 < row[0] < 5 and 50 < row[-1] <= 100 for row in shares)
    assert out.count("| changed_weights() |") == out.count("| snapshot, torch |") == 4
