# SPDX-License-Identifier: Apache-2.0
"""Runs DeepSpeed's tests of CPU Adam, from a checkout of its repository, with adamant as the op.

    python deepspeed_suite.py CHECKOUT [--own | --compare] [--offload] [pytest's arguments]

--own: with DeepSpeed's own op. --compare: with each, and lists the tests that pass only with its own. --offload: all
tests whose optimizer may step on the CPU. Prints the counts of each file. Exits with 1 if a test fails, or with
--compare if one passes only with DeepSpeed's own op. Works with the wheel, and from sources with PYTHONPATH and
ADAMANT_C_LIBRARY. DeepSpeed skips tests of more ranks than LOCAL_SIZE in the environment says, 1 if it is not there.
"""

from __future__ import annotations

import collections
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List
from xml.etree import ElementTree

import adamant

PTH = (Path(__file__).parents[1] / "src" / "adamant_deepspeed.pth").read_text()


def environment(folder: Path, own: bool = False) -> Dict[str, str]:
    """The environment of a job that uses adamant by its environment only.

    If the wheel's .pth file is not installed, `folder` gets one, and a sitecustomize that reads it.
    """
    env = {**os.environ, "ADAMANT_DEEPSPEED": "0" if own else "1"}
    env.setdefault("DS_ACCELERATOR", "cpu")
    sources = Path(adamant.__file__).parent.parent
    if not (sources / "adamant_deepspeed.pth").exists() or "site-packages" not in sources.parts:
        (folder / "adamant_deepspeed.pth").write_text(PTH)
        (folder / "sitecustomize.py").write_text(f"import site\nsite.addsitedir({str(folder)!r})\n")
        env["PYTHONPATH"] = os.pathsep.join([str(folder), str(sources), env.get("PYTHONPATH", "")])
    return env


# Tests whose optimizer steps on the CPU, or may.
CPU_ADAM = "unit/ops/adam/test_cpu_adam.py"
OFFLOAD = [
    CPU_ADAM,
    "unit/ops/adam/test_hybrid_adam.py",
    "unit/ops/adam/test_adamw.py",
    "unit/v1/zero/test_zero_cpu_offload_grad_accum.py",
    "unit/v1/zero/test_zero2_offload_multi_backward.py",
    "unit/v1/zero/test_offload_states.py",
    "unit/runtime/zero/test_zero_offloadpp.py",
    "unit/runtime/zero/test_zero_grad_clip.py",
    "unit/runtime/zero/test_zero_tensor_fragment.py",
    "unit/runtime/half_precision/test_zero_optim_overflow.py",
    "unit/runtime/zenflow/test_zf.py",
    "unit/checkpoint/test_zero_optimizer.py",
]


def outcomes(tests: Path, suites: List[str], own: bool, arguments: List[str]) -> Dict[str, Dict[str, str]]:
    """Runs suites. Returns, for each of them, what became of each test: passed, failed or skipped."""
    with tempfile.TemporaryDirectory() as folder:
        env = environment(Path(folder), own)
        env["PYTHONPATH"] = os.pathsep.join([env.get("PYTHONPATH", ""), str(tests)])
        which = subprocess.run(
            [sys.executable, "-c",
             "from deepspeed.ops.op_builder import CPUAdamBuilder; print(CPUAdamBuilder().load().__name__)"],
            cwd=tests, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout.split()[-1]
        if (which == "adamant.deepspeed") == own:
            raise SystemExit(f"cannot compare ops: DeepSpeed has loaded {which}, not the one that was asked for. Check "
                             "ADAMANT_DEEPSPEED and the installed packages.")
        report = Path(folder) / "report.xml"
        # The test expects an error for a param on a GPU. Without one it fails with any op, and pytest's exception ends
        # the process of a rank, for which DeepSpeed's launcher then waits ten minutes.
        needs_gpu = [f"--deselect={CPU_ADAM}::TestCPUAdamGPUError"] if env["DS_ACCELERATOR"] == "cpu" else []
        subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}",
                        *needs_gpu, *suites, *arguments], cwd=tests, env=env)
        if not report.exists():
            raise SystemExit("cannot count tests: pytest wrote no report. See its output above.")
        found: Dict[str, Dict[str, str]] = {suite: {} for suite in suites}
        for case in ElementTree.parse(report).iter("testcase"):
            ends = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
            name = case.get("classname", "")
            suite = next((suite for suite in suites if name.startswith(suite[:-len(".py")].replace("/", "."))), None)
            if suite is None:
                raise SystemExit("cannot count tests: pytest itself failed. See its output above.")
            found[suite][f"{name}.{case.get('name')}"] = (
                "passed" if not ends else "skipped" if ends == ["skipped"] else "failed")
        return found


def counts(found: Dict[str, str]) -> str:
    number = collections.Counter(found.values())
    return ", ".join(f"{number[name]} {name}" for name in ("passed", "failed", "skipped"))


def main() -> int:
    arguments = sys.argv[1:]
    options = [option for option in ("--own", "--compare", "--offload") if option in arguments]
    rest = [argument for argument in arguments if argument not in options]
    if not rest or {"--own", "--compare"} <= set(options):
        print(__doc__, file=sys.stderr)
        return 2
    tests = Path(rest[0]).resolve() / "tests"
    if not (tests / CPU_ADAM).exists():
        print(f"cannot find {tests / CPU_ADAM}. Pass the folder of a checkout of DeepSpeed's repository.",
              file=sys.stderr)
        return 2
    suites = OFFLOAD if "--offload" in options else [CPU_ADAM]
    compare = "--compare" in options
    own = outcomes(tests, suites, True, rest[1:]) if compare else {}
    found = outcomes(tests, suites, "--own" in options, rest[1:])
    status = 0
    for suite in suites:
        print(f"{suite}: {counts(found[suite])}" + (f"; its own: {counts(own[suite])}" if compare else ""))
        status |= not compare and "failed" in found[suite].values()
        for test, end in sorted(own.get(suite, {}).items()):
            if end == "passed" and found[suite].get(test) != "passed":
                print(f"  passes only with its own: {test}")
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
