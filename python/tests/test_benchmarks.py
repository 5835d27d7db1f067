# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the package runs: it uses private names, which may change. Times are not checked."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "engines.py"


def test_engines_benchmark_runs(tmp_path):
    from adamant._library import library_path
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    out = tmp_path / "rows.json"
    subprocess.run([sys.executable, str(SCRIPT), "--quick", "--rounds", "1", "--rest-ms", "0", "--parts",
                    "torch,overhead,lists,overlap", "--library", str(library_path()), "--json", str(out)],
                   check=True, timeout=600)
    names = [row["name"] for row in json.loads(out.read_text())["rows"]]
    assert len(names) == 13 and names[6] == "step() over 1 of one element"
