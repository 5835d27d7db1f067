# SPDX-License-Identifier: Apache-2.0
"""Every example of examples/engines runs, and ranks end with the same bits."""
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

examples = Path(__file__).parents[2]


def run(*command):
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120, cwd=examples,
                          env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"})
    # PyTorch 2.15: where the interpreter ends while a thread of gloo drops its last work, that thread takes the
    # interpreter's lock, and the process aborts. All has been done by then.
    late = "terminate called without an active exception" in done.stderr
    assert done.returncode == 0 or late, done.stdout + done.stderr
    return done.stdout


def ranks(count, name):
    return run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), name)


def test_every_example_is_run_here():
    here = Path(__file__).read_text()
    for path in examples.glob("*.py"):
        assert f'"{path.name}"' in here, f"no test runs {path.name}"
        assert len(path.read_text().splitlines()) < 80, path.name


def test_numpy_loop():
    out = run("numpy_loop.py")
    assert out.endswith("saved and loaded: True\n") and float(re.search(r"step 151: loss (\S+),", out)[1]) < 0.01


def test_torch_loop():
    pytest.importorskip("torch")
    assert float(re.search(r"^loss (\S+)", run("torch_loop.py"), re.M)[1]) < 4


def test_ddp():
    pytest.importorskip("torch")
    lines = sorted(line for line in ranks(2, "ddp.py").splitlines() if line.startswith("rank"))
    assert len(lines) == 2 and lines[0].replace("rank 0", "") == lines[1].replace("rank 1", "")


def test_fsdp2_has_the_same_bits_on_one_and_two_ranks():
    pytest.importorskip("torch")
    ends = [re.search(r"ranks: (.*)", ranks(count, "fsdp2.py"))[1] for count in (1, 2)]
    assert ends[0] == ends[1]
