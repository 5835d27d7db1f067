# SPDX-License-Identifier: Apache-2.0
"""`pip install -e .`: the package's sources stay where they are, and what is compiled lies in site-packages."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import adamant
from adamant import _extension, _library

# The finder that scikit-build-core installs, cut to its effect.
FINDER = """
import importlib.util, sys
from pathlib import Path
folders = {folders!r}
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "adamant":
            return importlib.util.spec_from_file_location(name, Path(folders[-1], "__init__.py"),
                                                          submodule_search_locations=list(folders))
sys.meta_path.insert(0, Finder)
"""


@pytest.fixture
def run(tmp_path):
    sources, compiled = tmp_path / "sources" / "adamant", tmp_path / "site-packages" / "adamant"
    shutil.copytree(Path(adamant.__file__).parent, sources,
                    ignore=shutil.ignore_patterns("*.so*", "adamant", "include", "share", "__pycache__"))
    compiled.mkdir(parents=True)
    modules = Path(_extension.load_extension("_lists").__file__).parent
    for module in modules.glob("*.abi3.so"):
        shutil.copy(module, compiled)
    shutil.copy(_library.library_path(), compiled / "libadamant_c.so.1")
    (compiled / "include").mkdir()
    (compiled / "adamant").symlink_to("/bin/echo")
    (tmp_path / "finder.py").write_text(FINDER.format(folders=[str(compiled), str(sources)]))
    # Tests of DeepSpeed leave a variable behind that imports the installed package first.
    env = {key: value for key, value in os.environ.items() if not key.startswith("ADAMANT_")}

    def run(code):
        done = subprocess.run([sys.executable, "-c", "import finder\n" + code], capture_output=True, text=True, timeout=600,
                              env={**env, "PYTHONPATH": str(tmp_path)})
        return done.stdout if done.returncode == 0 else done.stderr
    run.compiled = compiled
    return run


def test_an_editable_install_finds_what_is_compiled(run):
    assert run("import adamant, numpy\n"
               "param, *rest = [numpy.ones(4, numpy.float32) for _ in range(4)]\n"
               "adamant.step([param], *([array] for array in rest), [1], lr=0.5)\n"
               "print(adamant.__file__.split('/')[-3], all(param < 1))") == "sources True\n"


def test_its_command_runs_and_names_the_folder_of_the_headers(run):
    main = "import runpy, sys\nsys.argv[1:] = [%r]\nrunpy.run_module('adamant', run_name='__main__')"
    assert run(main % "help") == "help\n"
    assert run(main % "--include-dir") == f"{run.compiled / 'include'}\n"


def test_a_command_that_may_not_be_executed_is_named(run):
    (run.compiled / "adamant").unlink()
    (run.compiled / "adamant").write_text("")
    out = run("import runpy\nrunpy.run_module('adamant', run_name='__main__')")
    assert out == (f"adamant: cannot run {run.compiled / 'adamant'}: Permission denied. Install the package where "
                   "programs may be executed\n")


def test_the_torch_optimizer_steps(run):
    pytest.importorskip("torch")
    assert run("import torch, adamant.torch\n"
               "param = torch.nn.Parameter(torch.ones(4))\n"
               "param.grad = torch.ones(4)\n"
               "optimizer = adamant.torch.AdamW([param], lr=0.5, weight_decay=0)\n"
               "optimizer.step()\n"
               "print(param.tolist())") == "[0.5, 0.5, 0.5, 0.5]\n"
