# SPDX-License-Identifier: Apache-2.0
"""Runs Megatron's own tests of HybridDeviceOptimizer with torch's Adam and with adamant.integrations.megatron.

    python megatron_suite.py FOLDER [pytest's arguments]

FOLDER is a checkout of Megatron-LM. Needs no GPU: params only say that they are on one. Exits with 1 if a test passes
with torch's Adam only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict


def pytest_configure(config: Any) -> None:  # as a plugin of pytest
    import fake_gpu
    for owner, attributes in fake_gpu.replacements():
        for name, value in attributes.items():
            setattr(owner, name, value)
    if os.environ["MEGATRON_SUITE"] == "ours":
        import adamant.integrations.megatron
        adamant.integrations.megatron.install()


def pytest_runtest_logreport(report: Any) -> None:
    if report.failed or report.when == "call":
        print(f"\n{report.nodeid.split('::')[-1]} is {report.outcome}")


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1]).resolve()
    suite = folder / "tests" / "unit_tests" / "test_optimizer_cpu_offloading.py"
    if not suite.exists():
        print(f"there is no {suite}; name a checkout of Megatron-LM", file=sys.stderr)
        return 2
    passed: Dict[str, set] = {}
    for whose in ("torch", "ours"):
        print(f"{whose}: running", flush=True)
        path = [str(folder), str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        run = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-p",
             "megatron_suite", "--noconftest", "--tb=line", str(suite), *sys.argv[2:]],
            env={**os.environ, "MEGATRON_SUITE": whose, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            stdout=subprocess.PIPE, text=True)
        outcomes = dict(line.split(" is ") for line in run.stdout.split("\n")
                        if line.startswith("test_") and " is " in line)
        passed[whose] = {name for name, outcome in outcomes.items() if outcome == "passed"}
        others = sorted(outcomes.keys() - passed[whose])
        print(f"{whose}: {len(passed[whose])} passed, {len(others)} failed or skipped", *others, flush=True)
        if not outcomes:
            print(run.stdout, file=sys.stderr)
            return 2
    for name in sorted(passed["torch"] - passed["ours"]):
        print(f"passes with torch's Adam only: {name}")
    return 1 if passed["torch"] - passed["ours"] else 0


if __name__ == "__main__":
    sys.exit(main())
