# SPDX-License-Identifier: Apache-2.0
"""Runs torch's tests of optimizers with torch's Adam and AdamW, and with those of adamant.torch.

    python torch_suite.py FOLDER [--option NAME=VALUE ...] [-k EXPRESSION]

FOLDER is the folder test of PyTorch's sources, of a version near the installed torch. It is in PyTorch's repository and in
Debian's source package:

    apt-get source --download-only pytorch
    tar xf pytorch_*.orig.tar.xz --wildcards '*/test/optim/*' '*/test/test_optim.py'

Needs pytest and expecttest. Works with the wheel, and from sources with PYTHONPATH and ADAMANT_C_LIBRARY.

Both runs use the CPU, and only Adam and AdamW of torch.testing's optim_db, without amsgrad and differentiable, which ours
refuse. Tests for float64 run with float32. Tests of schedulers and weight averaging use AdamW instead of SGD, unless they
need SGD. --option passes an argument to our classes in all tests, such as --option max_norm=inf.

Prints the number of passed tests for each, and the tests that pass with torch's classes only, by reason. Exits with 1 if one
of these is not in EXCEPTIONS, or if one of EXCEPTIONS passes.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Tuple

# Tests that cannot pass with our classes: a pattern of their names, and the reason.
EXCEPTIONS: List[Tuple[str, str]] = [
    (r"::test_complex(_2d)?_Adam", "complex: params must be float32, bfloat16 or float16"),
    (r"::test_forloop_goes_right_direction_contiguous_False_", "strided: params must be dense"),
    (r"::test_fused_error_on_params_on_meta_", "meta: also refused, in other words, as fused does not matter"),
    (r"::test_fused_matches_forloop_Adam.*_float16$", "float16: moments of float16 params are float32"),
    (r"^TestDifferentiableOptimizer::test_adamw?$", "differentiable and amsgrad are refused"),
]


def replace_classes(ours: bool, options: Dict[str, Any]) -> None:
    """Makes tests that are imported later use torch's or our Adam and AdamW, and float32."""
    import torch
    from torch.testing._internal import common_optimizers as common

    classes = {name: getattr(torch.optim, name) for name in ("Adam", "AdamW")}
    infos = [info for info in common.optim_db if info.optim_cls in classes.values()]
    if ours:
        import adamant.torch
        for name in classes:
            own, torchs = getattr(adamant.torch, name), classes[name]

            def new(cls: Any, *args: Any, torchs: Any = torchs, **more: Any) -> Any:
                # Tests that compare torch's implementations keep torch's class on one side.
                is_loop = more.get("foreach") is False or more.get("fused") is False
                if is_loop and "_matches_forloop_" in os.environ["PYTEST_CURRENT_TEST"]:
                    return torchs(*args, **more)
                return object.__new__(cls)

            def construct(self: Any, *args: Any, own: Any = own, **more: Any) -> None:
                own.__init__(self, *args, **{**options, **more})
            classes[name] = type(name, (own,), {"__new__": new, "__init__": construct})
            setattr(torch.optim, name, classes[name])
            setattr(common, name, classes[name])
    for info in infos:
        info.optim_cls = classes[info.optim_cls.__name__]
        info.supported_impls = tuple(each for each in info.supported_impls if each != "differentiable")

        def inputs(*args: Any, every: Any = info.optim_inputs_func, **more: Any) -> List[Any]:
            return [each for each in every(*args, **more) if not each.kwargs.get("amsgrad")]
        info.optim_inputs_func = inputs
    common.optim_db[:] = infos

    class Float32Optims(common.optims):  # type: ignore[misc]
        def __init__(self, infos: Any, dtypes: Any = None):
            super().__init__(infos, dtypes and list(dict.fromkeys(
                torch.float32 if kind == torch.float64 else kind for kind in dtypes)))
    common.optims = Float32Optims
    sgd = torch.optim.SGD

    def make(params: Any, lr: Any = 1e-3, **more: Any) -> Any:
        return sgd(params, lr, **more) if more else classes["AdamW"](params, lr)
    import optim.test_lrscheduler
    import optim.test_swa_utils
    optim.test_lrscheduler.SGD = make
    torch.optim.SGD = make  # tests of weight averaging look it up when they run


class Outcomes:
    """Outcome of each test: "passed", "skipped", or the last line of its error."""

    def __init__(self) -> None:
        self.of: Dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid.split("::", 1)[-1]
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.of[name] = "failed: " + (crash.message if crash else str(report.longrepr)).split("\n")[0][:160]
        elif report.skipped or report.when == "call":
            self.of.setdefault(name, report.outcome)


def run_here(folder: str, whose: str, options: str, expression: str, into: str) -> int:
    import pytest
    sys.path.insert(0, folder)
    replace_classes(whose == "ours", json.loads(options, parse_constant=float))
    outcomes = Outcomes()
    status = pytest.main(["-q", "-p", "no:cacheprovider", "--disable-warnings", "--tb=short", "-k", expression,
                          "--rootdir", folder, str(Path(folder) / "test_optim.py")], plugins=[outcomes])
    Path(into).write_text(json.dumps(outcomes.of))
    return 0 if status in (0, 1) else int(status)


def main() -> int:
    if sys.argv[1:2] == ["--run-here"]:
        return run_here(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("-k", default="", dest="expression")
    given = parser.parse_args()
    folder = given.folder.resolve()
    if not (folder / "test_optim.py").exists() or not (folder / "optim" / "test_optim.py").exists():
        parser.error(f"cannot find test_optim.py and optim/test_optim.py in {folder}. Name PyTorch's folder test")
    options = {}
    for option in given.option:
        name, _, value = option.partition("=")
        options[name] = float(value) if value == "inf" else ast.literal_eval(value)
    results: Dict[str, Dict[str, str]] = {}
    env = {**os.environ, "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as made:
        for whose in ("torch's", "ours"):
            into = Path(made) / "outcomes.json"
            done = subprocess.run([sys.executable, __file__, "--run-here", str(folder), whose, json.dumps(options),
                                   given.expression, str(into)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True)
            if done.returncode:
                print(done.stdout, file=sys.stderr)
                return 2
            results[whose] = json.loads(into.read_text())
    theirs, ours = results["torch's"], results["ours"]
    for whose, of in results.items():
        counts = {each: sum(value.startswith(each) for value in of.values()) for each in ("passed", "failed", "skipped")}
        print(f"{whose}: " + ", ".join(f"{count} {each}" for each, count in counts.items()))
    grouped: Dict[str, List[str]] = {}
    unexpected = 0
    for name in sorted({**theirs, **ours}):
        reason = next((why for found, why in EXCEPTIONS if re.search(found, name)), None)
        if theirs.get(name) == "passed" and ours.get(name) != "passed":
            grouped.setdefault(reason or "NOT EXPECTED", []).append(f"{name}: {ours.get(name, 'not there')}")
            unexpected += reason is None
        elif reason is not None and ours.get(name) == "passed":
            grouped.setdefault("passes, but is in EXCEPTIONS", []).append(name)
            unexpected += 1
    for reason, names in sorted(grouped.items()):
        print(f"\n{reason} ({len(names)})")
        for name in names:
            print(f"    {name}")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
