#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a compiler takes for a file that includes adamant, as user seconds: the table in README.md.

Usage: benchmarks/compile_time.py [--compiler g++] [--rounds 5]

Compiles the README's two programs, each header-only and against the library that is compiled separately, beside a file
that includes what most programs do. Rounds go through all of them in turn, so that whatever else the machine does meets
them alike. Shown are medians, the range, and the medians as multiples of that file's: these differ less from machine to
machine. README.md has the multiples times 0.4 s, which that file takes on a quiet one."""
import argparse
import os
import pathlib
import resource
import statistics
import subprocess
import tempfile

import files

root = pathlib.Path(__file__).resolve().parent.parent
flags = ["-std=c++20", "-O2", "-fopenmp", f"-I{root}/include"]
separate = ["-DADAMANT_SEPARATE_COMPILATION"]
standard = "".join(f"#include <{name}>\n" for name in ("vector", "string", "memory", "functional", "span"))


def version_of(compiler):
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True)
    except OSError as error:
        files.fail(f"cannot run {compiler}: {files.reason(error)}. Choose a compiler with --compiler.")
    return done.stdout.partition("\n")[0]


def user_seconds(compiler, source, extra, out):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run([compiler, *flags, *extra, "-c", source, "-o", out], capture_output=True, text=True)
    if done.returncode != 0 or not os.path.exists(out):
        files.fail(f"cannot compile {source} with {compiler}:\n{done.stderr}")
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", default=os.environ.get("CXX", "g++"))
    parser.add_argument("--rounds", type=files.positive, default=5)
    options = parser.parse_args()
    version = version_of(options.compiler)
    with tempfile.TemporaryDirectory() as folder:
        plain = pathlib.Path(folder, "standard.cpp")
        plain.write_text(standard)
        rows = [("five standard headers alone", plain, [])]
        for name in ("hello", "engine"):
            rows.append((f"{name}.cpp, compiled separately", root / "examples" / f"{name}.cpp", separate))
        for name in ("hello", "engine"):
            rows.append((f"{name}.cpp, header-only", root / "examples" / f"{name}.cpp", []))
        times = {row[0]: [] for row in rows}
        for _ in range(options.rounds):
            for name, source, extra in rows:
                times[name].append(user_seconds(options.compiler, source, extra, os.path.join(folder, "out.o")))
    print(f"{version}, {' '.join(flags[:3])}, {options.rounds} rounds\n")
    print("| file | user seconds | range | times the first |\n| --- | --- | --- | --- |")
    unit = statistics.median(times[rows[0][0]])
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        print(f"| {name} | {middle:.2f} | {min(seconds):.2f} to {max(seconds):.2f} | {middle / unit:.1f} |")


if __name__ == "__main__":
    main()
