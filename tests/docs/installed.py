#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Follows what the documentation says about using the installed library: builds each CMakeLists.txt that it shows, and
runs each sh block that is marked "runs, in tests/all".

    installed.py BUILD SCRATCH      installs from BUILD to a folder in SCRATCH

Each block has a folder of its own, with a main.cpp, a main.c, this repository as `adamant`, and what a clone has.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

from pages import ROOT, all_blocks


def run(place, words, **more):
    print(f"{place}: {' '.join(map(str, words))}", flush=True)
    if subprocess.run(words, **more).returncode != 0:
        sys.exit(f"{place}: {' '.join(map(str, words))} failed")


def folder_for(block, scratch):
    folder = scratch / block.name
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "examples/hello.cpp", folder / "main.cpp")
    shutil.copy(ROOT / "examples/c_loop.c", folder / "main.c")
    for name, target in (("adamant", ROOT), ("include", ROOT / "include"), ("examples", ROOT / "examples")):
        (folder / name).symlink_to(target)
    return folder


def main():
    if len(sys.argv) != 3:
        sys.exit(textwrap.dedent(__doc__))
    build, scratch = map(pathlib.Path, sys.argv[1:])
    shutil.rmtree(scratch, ignore_errors=True)
    prefix = scratch / "prefix"
    run("all pages", ["cmake", "--install", build, "--prefix", prefix], stdout=subprocess.DEVNULL)
    libraries = [file.parent for file in prefix.rglob("libadamant_c.so")]
    configs = [prefix / "share/pkgconfig", *(folder / "pkgconfig" for folder in libraries)]
    environment = dict(os.environ, PKG_CONFIG_PATH=os.pathsep.join(map(str, configs)),
                       LD_LIBRARY_PATH=os.pathsep.join(map(str, libraries)))
    ran = 0
    for block in all_blocks():
        shown = block.language == "cmake" and not (block.comment or "").startswith("lines of: ")
        if not shown and block.comment != "runs, in tests/all":
            continue
        if "pkg-config" in block.text and shutil.which("pkg-config") is None:
            print(f"{block.place}: left out, as there is no pkg-config")
            continue
        folder = folder_for(block, scratch)
        if shown:
            (folder / "CMakeLists.txt").write_text(block.text)
            run(block.place, ["cmake", "-S", folder, "-B", folder / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}"])
            run(block.place, ["cmake", "--build", folder / "build"])
            program = folder / "build/trainer"
        else:
            run(block.place, ["bash", "-euo", "pipefail", "-c", block.text], cwd=folder, env=environment)
            program = folder / "trainer"
        if program.exists(): # or the block has run it
            run(block.place, [program], cwd=folder, env=environment)
        ran += 1
    if ran < 5:
        sys.exit(f"only {ran} blocks were found: this test looks in the wrong place")


if __name__ == "__main__":
    main()
