# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of the package run: they use private names, which may change. Times are not checked."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from processes import run_script

pytest.importorskip("torch")
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_engines_benchmark_runs(tmp_path):
    from adamant._library import library_path
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    arguments = ["--quick", "--rounds", "1", "--rest-ms", "0", "--library", str(library_path())]

    def rows_of(part):
        """The rows of a part, in a process that has imported torch."""
        path = tmp_path / f"{part}.json"
        done = run_script(BENCHMARKS / "engines.py", *arguments, "--parts", part, "--child-out", path, OMP_NUM_THREADS="1")
        assert done.returncode == 0, done.stderr
        return json.loads(path.read_text())["rows"]

    names = [row["name"] for part in ("torch", "overhead", "overlap") for row in rows_of(part)]
    assert len(names) == 10 and names[6] == "step() over 1 of one element"
    out = tmp_path / "rows.json"
    subprocess.run([sys.executable, str(BENCHMARKS / "engines.py"), *arguments, "--parts", "lists", "--json", str(out)],
                   check=True, timeout=600)
    assert len(json.loads(out.read_text())["rows"]) == 3


def test_changed_weights_benchmark_runs():
    done = run_script(BENCHMARKS / "training" / "changed_weights.py", "--quick")
    assert done.returncode == 0, done.stderr  # the methods find the same weights
    out = done.stdout
    shares = [[float(share) for share in line.split(" | ")[1:]] for line in out.replace(" |\n", "\n").splitlines()
              if line.startswith(("| bf16", "| fp16", "| split"))]
    assert len(shares) == 5 and all(row == sorted(row) and 0 < row[0] < 5 and 50 < row[-1] <= 100 for row in shares)
    assert out.count("| changed_weights() |") == out.count("| snapshot, torch |") == 4
