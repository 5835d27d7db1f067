#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads files of save_safetensors() with the safetensors package, and compares all of them.

safetensors_python.py PROGRAM SCRATCH: PROGRAM is the test program that writes them. Where this Python lacks the
packages, they are installed into an environment in SCRATCH; where that cannot be, exit status 77 and the reason.
"""
import json
import os
import pathlib
import struct
import subprocess
import sys


def skip(reason):
    print("skipped:", reason)
    sys.exit(77)


def run_where_the_packages_are(scratch):
    """Returns if this Python has them; else runs this script again in one that has."""
    try:
        import numpy  # noqa: F401
        import safetensors  # noqa: F401
        return
    except ImportError as error:
        if os.environ.get("ADAMANT_PYTHON_READY"):
            skip(f"{error}, though it was installed")
    here = pathlib.Path(__file__)
    environment = scratch / "python"
    python = environment / "bin" / "python"
    ready = environment / "ready"
    requirements = here.with_name("requirements.txt").read_text()
    if not ready.exists() or ready.read_text() != requirements:
        for what, command in (
            ("venv failed (Debian and Ubuntu: python3-venv)", [sys.executable, "-m", "venv", "--clear", environment]),
            ("pip failed", [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1",
                            "--timeout", "20", "-r", here.with_name("requirements.txt")]),
        ):
            try:
                result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        timeout=240)
            except (OSError, subprocess.TimeoutExpired) as error:
                skip(f"{what}: {error}")
            if result.returncode != 0:
                skip(f"{what}: {result.stdout.strip()[-500:]}")
        ready.write_text(requirements)
    os.environ["ADAMANT_PYTHON_READY"] = "1"
    os.execv(python, [str(python), *sys.argv])


def pattern(tensor, elements, size):
    """The bytes that the test program put into a tensor."""
    words = ((tensor + 1) * 40503 + i * 2654435761 for i in range(elements))
    return b"".join(struct.pack("<I", word & 0xFFFFFFFF)[:size] for word in words)


def compare(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: found {found!r}, expected {expected!r}")


def written(program, test, path):
    path.unlink(missing_ok=True)
    subprocess.run([program, test], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "ADAMANT_SAFETENSORS_OUT": str(path)})
    return path


def compare_zenflow(program, scratch):
    """A zenflow_optimizer's state: a matrix, rows 1 and 2 of one with split master weights, and a vector."""
    import numpy
    import safetensors

    path = written(program, "a file of ZenFlow for another implementation", scratch / "zenflow.safetensors")

    def array(n, size):  # the n-th that the test program has made
        return bytes((n * 151 + i * 7) & 255 for i in range(size))

    def counts(columns):
        return struct.pack(f"<{columns}Q", *(1000000007 * (c + 1) for c in range(columns)))

    def flags(columns, flag):
        return bytes(flag(c) for c in range(columns))

    expected = {
        "w.param": ("F32", [3, 2], array(0, 24)),
        "w.exp_avg": ("F32", [3, 2], array(1, 24)),
        "w.exp_avg_sq": ("F32", [3, 2], array(2, 24)),
        "w.weights": ("BF16", [2, 3], array(3, 12)),
        "w.sums": ("F32", [2, 3], array(4, 24)),
        "half.param[1:3]": ("U16", [2, 2], array(5, 8)),
        "half.exp_avg[1:3]": ("BF16", [2, 2], array(6, 8)),
        "half.exp_avg_sq[1:3]": ("BF16", [2, 2], array(7, 8)),
        "half.weight_out[1:3]": ("BF16", [2, 2], array(8, 8)),
        "half.weights[1:3]": ("BF16", [2, 2], array(9, 8)),
        "b.param": ("BF16", [3], array(10, 6)),
        "b.exp_avg": ("F32", [3], array(11, 12)),
        "b.exp_avg_sq": ("F32", [3], array(12, 12)),
        "b.counts": ("U64", [1], counts(1)),
    }
    for name, rows, columns in ("w", "", 3), ("half", "[1:3]", 2):
        expected[f"{name}.counts{rows}"] = ("U64", [columns], counts(columns))
        expected[f"{name}.selected{rows}"] = ("BOOL", [columns], flags(columns, lambda c: c % 2 == 0))
        expected[f"{name}.publishing{rows}"] = ("BOOL", [columns], flags(columns, lambda c: c == 1))
    found = {name: (tensor["dtype"], list(tensor["shape"]), bytes(tensor["data"]))
             for name, tensor in safetensors.deserialize(path.read_bytes())}
    compare("ZenFlow's names", sorted(found), sorted(expected))
    for name, tensor in expected.items():
        compare(name, found[name], tensor)
    with safetensors.safe_open(path, framework="np") as file:
        selected, columns = file.get_tensor("w.selected"), file.get_tensor("w.counts")
        compare("selected in numpy", (selected.dtype, selected.tolist()), (numpy.bool_, [True, False, True]))
        compare("counts in numpy", (columns.dtype, int(columns[2])), (numpy.uint64, 3000000021))
        metadata = file.metadata()
    compare("ZenFlow's format version", metadata["adamant.format_version"], "2")
    state = json.loads(metadata["adamant.state"])
    compare("position", state["position"], {"since_selection": 3, "in_window": 1, "has_selection": True,
                                            "done_squares": 0.1})
    compare("param", state["params"][1], {"name": "half", "group": 0, "columns": 2, "all_rows": 4, "first_row": 1,
                                          "rows": 2, "summed": 0,
                                          "types": ["split_float32", "bfloat16", "bfloat16", "bfloat16", "bfloat16"]})
    return len(expected)


def main():
    program, scratch = sys.argv[1], pathlib.Path(sys.argv[2])
    scratch.mkdir(parents=True, exist_ok=True)
    run_where_the_packages_are(scratch)
    import numpy
    import safetensors

    path = written(program, "a file for another implementation", scratch / "state.safetensors")

    expected = {
        "embed.weight.param": ("F32", [5, 7], pattern(0, 35, 4)),
        "embed.weight.exp_avg": ("BF16", [5, 7], pattern(1, 35, 2)),
        "embed.weight.exp_avg_sq": ("F32", [5, 7], pattern(2, 35, 4)),
        '\u00e4 "q".param': ("F16", [3], pattern(3, 3, 2)),
        "scalar.param": ("BF16", [], pattern(4, 1, 2)),
        "empty.param": ("F32", [0, 4], b""),
        "share.exp_avg[999990:1000000]": ("F32", [10], pattern(6, 10, 4)),
    }
    found = {name: (tensor["dtype"], list(tensor["shape"]), bytes(tensor["data"]))
             for name, tensor in safetensors.deserialize(path.read_bytes())}
    compare("names", sorted(found), sorted(expected))
    for name, tensor in expected.items():
        compare(name, found[name], tensor)

    with safetensors.safe_open(path, framework="np") as file:
        compare("keys", sorted(file.keys()), sorted(expected))
        for name, (dtype, shape, data) in expected.items():
            if dtype != "BF16":  # which numpy has not
                array = file.get_tensor(name)
                compare(name + " in numpy", (str(array.dtype), list(array.shape), array.tobytes()),
                        ({"F32": "float32", "F16": "float16"}[dtype], shape, data))
        metadata = file.metadata()
    compare("keys of the metadata", sorted(metadata), ["adamant.format_version", "adamant.header_xxh3", "adamant.state",
                                                       "adamant.step", "adamant.xxh3", "data"])
    compare("data", metadata["data"], '\u00e4 "q"')
    compare("adamant.format_version", metadata["adamant.format_version"], "1")
    compare("adamant.step", metadata["adamant.step"], "123456789012345")
    digests = json.loads(metadata["adamant.xxh3"])
    compare("names of checksums", sorted(digests), sorted(expected))
    compare("the checksum of nothing", digests["empty.param"], "2d06800538d394c2")
    numbers = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "bias_correction": True,
               "exp_avg_sq_rounding": "stochastic", "param_rounding": "nearest", "rounding_seed": 0}
    compare("adamant.state", json.loads(metadata["adamant.state"]), {
        "groups": [
            {**numbers, "name": "decay", "lr": 1e-3, "weight_decay": 0.1, "mode": "decoupled", "maximize": False},
            {**numbers, "name": 'no "decay"', "lr": 0.1, "weight_decay": 0.0, "mode": "l2", "maximize": True},
        ],
        "loss_scaler": {"scale": 2.0**24, "good_steps": 17, "hysteresis_left": 2},
        "params": [
            {"name": "embed.weight", "shape": [5, 7], "group": 0},
            {"name": '\u00e4 "q"', "shape": [3], "group": 1},
            {"name": "scalar", "shape": [], "group": 1},
            {"name": "empty", "shape": [0, 4], "group": 0},
            {"name": "share", "shape": [1000, 1000], "group": 0},
        ],
    })
    tensors = len(expected) + compare_zenflow(program, scratch)
    print(f"safetensors {safetensors.__version__}, numpy {numpy.__version__}: {tensors} tensors are as written")


main()
