#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads a file of save_safetensors() with the safetensors package, and compares all of it.

safetensors_python.py PROGRAM SCRATCH: PROGRAM is the test program that writes the file. Where this Python lacks the
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


def main():
    program, scratch = sys.argv[1], pathlib.Path(sys.argv[2])
    scratch.mkdir(parents=True, exist_ok=True)
    run_where_the_packages_are(scratch)
    import numpy
    import safetensors

    path = scratch / "state.safetensors"
    path.unlink(missing_ok=True)
    subprocess.run([program, "a file for another implementation"], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "ADAMANT_SAFETENSORS_OUT": str(path)})

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
    print(f"safetensors {safetensors.__version__}, numpy {numpy.__version__}: {len(expected)} tensors are as written")


main()
