# SPDX-License-Identifier: Apache-2.0
"""Runs DeepSpeed's tests of CPU Adam, from a checkout of its repository, with adamant as the op.

    python deepspeed_suite.py CHECKOUT [--own] [pytest's arguments]

--own: with DeepSpeed's own op, to compare. Prints the counts, and exits with pytest's status. Works with the wheel, and
from sources with PYTHONPATH and ADAMANT_C_LIBRARY.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict

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


def main() -> int:
    arguments = sys.argv[1:]
    own = "--own" in arguments
    rest = [argument for argument in arguments if argument != "--own"]
    if not rest:
        print(__doc__, file=sys.stderr)
        return 2
    tests = Path(rest[0]).resolve() / "tests"
    suite = tests / "unit" / "ops" / "adam" / "test_cpu_adam.py"
    if not suite.exists():
        print(f"there is no {suite}; name the folder of a checkout of DeepSpeed's repository", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        env = environment(Path(folder), own)
        env["PYTHONPATH"] = os.pathsep.join([env.get("PYTHONPATH", ""), str(tests)])
        which = subprocess.run(
            [sys.executable, "-c",
             "from deepspeed.ops.op_builder import CPUAdamBuilder; print(CPUAdamBuilder().load().__name__)"],
            cwd=tests, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout.split()[-1]
        run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(suite), *rest[1:]],
                             cwd=tests, env=env, stdout=subprocess.PIPE, text=True)
    print(run.stdout)
    counts = {name: 0 for name in ("passed", "failed", "skipped", "error")}
    for number, name in re.findall(r"(\d+) (passed|failed|skipped|error)", run.stdout):
        counts[name] = int(number)
    print(f"{which}: " + ", ".join(f"{number} {name}" for name, number in counts.items()))
    if (which == "adamant.deepspeed") == own:
        print(f"the op is {which}, which was not asked for", file=sys.stderr)
        return 1
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())
