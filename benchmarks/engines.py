#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package beside torch's fused AdamW and DeepSpeed's own op, as users of PyTorch and DeepSpeed call them,
and how much of a step it hides behind backward. From the root of the repository, as one command, with an environment
as peers.py describes it, where DeepSpeed may be missing:

    cmake --preset benchmark -DADAMANT_BUILD_C=ON && cmake --build --preset benchmark --target adamant_python \\
      && build/peers/bin/python benchmarks/peers.py --engines

runs this script, with what follows `--engines`. The package is that of the sources, whatever is installed. `--quick`
takes small sizes and a few rounds, to see whether everything works. `taskset` chooses the cores.

Both sides have a thread for each core, and work on the same params, moments and masters, so that no one has better
memory than another. Each round times each once, in alternating order, on gradients that are new tensors, and ratios are
taken within a round. Before each turn there is a rest (--rest-ms), in which the caller spins and the threads of the
turn before go to sleep: both sides have to wake their own. `--rest-ms 0` is as right after a backward of torch's, whose
threads still spin. The first two rounds do not count. Each part, a function of engines_rows.py, engines_lists.py,
engines_megatron.py or engines_overlap.py, is a process of its own.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the repository stays as it is
import files
import peers
from engines_lists import lists_part
from engines_megatron import megatron_part
from engines_overlap import overlap_part
from engines_rows import deepspeed_part, overhead_part, torch_part
from peers_contenders import Library, Missing

PACKAGE = os.path.join(peers.ROOT, "python", "src")
PARTS = {"torch": torch_part, "overhead": overhead_part, "lists": lists_part, "deepspeed": deepspeed_part,
         "megatron": megatron_part, "overlap": overlap_part}


def child(asked):
    """Measures one part, and writes what it found to a file."""
    try:
        rows, lines = PARTS[asked.parts[0]](asked)
    except Missing as e:
        rows, lines = [], [f"{asked.parts[0]}: {e}"]
    versions = {name: sys.modules[name].__version__ for name in ("torch", "deepspeed") if name in sys.modules}
    with open(asked.child_out, "w") as file:
        json.dump({"rows": rows, "lines": lines, "versions": versions}, file)


def run_child(asked, part, threads):
    peers.progress(f"{part} ...")
    paths = [PACKAGE, os.environ.get("PYTHONPATH", "")]
    env = {**peers.child_environment(threads), "PYTHONPATH": os.pathsep.join(filter(None, paths)),
           "ADAMANT_C_LIBRARY": asked.library, "ADAMANT_DEEPSPEED": "0"}
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "rows.json")
        command = [sys.executable, os.path.abspath(__file__), "--parts", part, "--child-out", out, "--rounds",
                   str(asked.rounds), "--rest-ms", str(asked.rest_ms)] + ["--quick"] * asked.quick
        command += ["--prime-rl", asked.prime_rl] if asked.prime_rl else []
        command += ["--megatron", asked.megatron] if asked.megatron else []
        status = subprocess.run(command, env=env, stdout=sys.stderr).returncode
        if status != 0:
            return {"rows": [], "lines": [f"{part}: its process ended with {status}"], "versions": {}, "failed": True}
        with open(out) as file:
            return json.load(file)


def table(result):
    lines = ["| | ms | beside it, ms | ratio | at most |", "| --- | --- | --- | --- | --- |"]
    for r in result["rows"]:
        ratio = f"{r['ratio']:.2f} ({r['ratio_p10']:.2f} to {r['ratio_p90']:.2f})"
        lines.append(f"| {r['name']} | {r['ms']:.3f} | {r['beside_ms']:.3f} | {ratio} | {r['aim'] or ''} |")
    lines += [""] + [peers.report.paragraph(line) for line in result["lines"]]
    lines += [result["machine"], ", ".join(f"{k} {v}" for k, v in result["versions"].items()),
              f"Others had {100 * result['share_of_others']:.1f} % of the processors meanwhile."]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    built = os.path.normpath(os.path.join(peers.ROOT, "build", "benchmark", "libadamant_c.so"))
    add = parser.add_argument
    add("--library", default=os.environ.get("ADAMANT_C_LIBRARY", built), help="libadamant_c (%(default)s)")
    add("--parts", type=lambda text: text.split(","), default=list(PARTS), help="some of " + ",".join(PARTS))
    add("--rounds", type=files.positive, default=21, help="of large sizes; others take more (%(default)s)")
    add("--rest-ms", type=peers.milliseconds, default=25, help="before each turn (%(default)s)")
    add("--prime-rl", help="root of a checkout of prime-rl: its kernel is compiled and measured beside adamant.step()")
    add("--megatron", help="root of a checkout of Megatron-LM: its HybridDeviceOptimizer is measured with each AdamW")
    add("--quick", action="store_true", help="small sizes, a few rounds")
    add("--json", type=files.writable, help="write everything to this file")
    add("--child-out", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.rest_s = asked.rest_ms / 1000
    if asked.child_out:
        return child(asked)
    if unknown := set(asked.parts) - set(PARTS):
        files.fail(f"{', '.join(unknown)} is none of {', '.join(PARTS)}")
    if asked.quick:
        asked.rounds = min(asked.rounds, 3)
    asked.library = peers.loadable(asked.library, "adamant_c")
    library = Library(asked.library, 0)
    before = peers.processor_seconds()
    results = [run_child(asked, part, library.threads) for part in asked.parts]
    result = {"rows": sum((one["rows"] for one in results), []), "lines": sum((one["lines"] for one in results), []),
              "versions": {"adamant": f"{library.version} ({library.isa})"}, "rounds": asked.rounds,
              "machine": peers.machine(library.threads, "the allocator's"),
              "share_of_others": peers.share_of_others(before, peers.processor_seconds())}
    for one in results:
        result["versions"].update(one["versions"])
    print(table(result))
    if asked.json:
        files.replace(asked.json, json.dumps(result, indent=1) + "\n")
    return any("failed" in one for one in results)


if __name__ == "__main__":
    sys.exit(main())
