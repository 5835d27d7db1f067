#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How close adamant and others that people use come to what memory allows, measured in one run. From the root of the
repository, as one command (the peers take some 6 GB of disk; each may be missing, and is then named as missing):

    cmake --preset benchmark -DADAMANT_BUILD_C=ON \\
      && cmake --build --preset benchmark --target adamant_c adamant_peers \\
      && python3 -m venv build/peers && build/peers/bin/pip install -r benchmarks/requirements.txt \\
      && build/peers/bin/python benchmarks/peers.py --json peers.json --plot peers.svg

`adamant roofline --from peers.json --plot FILE.svg` draws the large sizes below the limit, by number of threads.
`--engines` measures the Python package instead, beside torch's and DeepSpeed's own steps: see engines.py.

What is timed is a step of AdamW over one tensor, called from Python as a user calls it: adamant's optimizer::step()
through the C interface, as engines call it, and its step() without an optimizer; peers by their optimizer's step(), for
the small size by the op below it where there is one. No contender clips or looks for infinities. Everyone works on the same
arrays, in huge pages where the kernel has them (--pages), at different offsets modulo 4 KiB, touched by the threads
that use them; they hold what training leaves there: some steps have been taken, and gradients are drawn anew before
each round. Before anything is timed, three steps of each contender over a small tensor are compared with AdamW in
double precision; contenders that are off are marked.

Each round times each contender once, in an order of its own, and ratios are taken within a round; the first round does
not count. The limit is the fastest, by its median, of the loops of limit.hpp, on OpenMP's threads and on bound ones. They, the
plain loop and the separate passes are in peers_native.cpp.

Each number of threads is a process of its own, with OMP_NUM_THREADS set to it: that is what every peer's OpenMP goes by
from its start. The waiting policy is left as it is, for a peer may need its threads to spin between the regions of one
step; instead there is a rest before each contender (--rest-ms), in which the threads of the one before go to sleep:
those of GNU's runtime, which PyTorch's packages bring, spin for a few ms, those of LLVM's and Intel's for 200. At the
small size a step that is not timed comes first, and wakes a contender's own threads. OMP_PROC_BIND and the like are
passed on if they are set.
"""
import argparse
import ctypes
import datetime
import importlib.util
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import numpy as np
except ImportError:
    sys.exit("peers.py needs NumPy: pip install -r benchmarks/requirements.txt")

sys.dont_write_bytecode = True  # the repository stays as it is
import files
import peers_contenders as contenders
import peers_report as report
from peers_contenders import CONTENDERS, TYPES, Job, Library, Missing

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
LR = 1e-4
WARM_UP_STEPS = 8
SMALL_REPEATS = 50  # of a step in cache, timed as one
SCRATCH_BYTES = 20  # an element, for what PyTorch's separate operations allocate meanwhile


def progress(text):
    print(text, file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------------------------- memory


def number_in(path, word=""):
    """The number after `word` in a file, or the first; None where there is none."""
    try:
        with open(path) as file:
            words = file.read().split()
        return int(words[words.index(word) + 1 if word else 0])
    except (OSError, ValueError, IndexError):
        return None


def available_bytes():
    """What the machine has, or the control group allows."""
    available = 1024 * number_in("/proc/meminfo", "MemAvailable:")
    group = "/sys/fs/cgroup/memory"
    allowed, used = number_in(group + ".max"), number_in(group + ".current")
    if allowed is None or used is None:
        return available
    return min(available, allowed - used + (number_in(group + ".stat", "inactive_file") or 0))


def needed_bytes(types, n):
    return n * (contenders.array_bytes_per_element(types) + SCRATCH_BYTES)


def choose_elements(asked, types):
    """As many as were asked for, or 2^27, or the largest power of two below it that fits."""
    available = 0.9 * available_bytes()
    needed = max(needed_bytes(t, asked or 1) for t in types)
    if asked and needed > available:
        files.fail(f"{asked} elements need {needed / 1e9:.1f} GB of memory, but only {available / 1e9:.1f} GB are "
                   "available; ask for fewer with --elements")
    n = asked or 2**27
    while max(needed_bytes(t, n) for t in types) > available:
        n //= 2
    return max(n // 4096 * 4096, 4096)


# -------------------------------------------------------------------------------------------------------------- check


def reference_step(state, grad, t, lr, dtypes):
    """AdamW in double precision, rounded as it is stored."""
    b1, b2 = contenders.BETA1, contenders.BETA2
    param, m, v = (contenders.widen(x).astype(np.float64) for x in state)
    m = b1 * m + (1 - b1) * grad
    v = b2 * v + (1 - b2) * grad * grad
    update = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + contenders.EPS)
    param = param * (1 - lr * contenders.WEIGHT_DECAY) - lr * update
    return [contenders.stored(x, dtype) for x, dtype in zip((param, m, v), dtypes)]


def check(make, library, native, types, threads, kernel_only):
    """Three steps over a small tensor, at a learning rate that changes params by more than they are. The largest error
    over what is tolerated, or Missing where it cannot step at all."""
    job = Job(library, native, types, 8192, threads, lr=0.1, kernel_only=kernel_only)
    try:
        step, _ = make(job)
        t = TYPES[types]
        state = [job.param.copy(), job.exp_avg.copy(), job.exp_avg_sq.copy()]
        for number in range(1, 4):
            job.draw_gradients()
            grad = contenders.widen(job.grad).astype(np.float64)
            state = reference_step(state, grad, number, job.lr, (t.param, t.exp_avg, t.exp_avg_sq))
            try:
                step()
            except Exception as e:
                raise Missing(f"has no such types ({contenders.last_line(e)})") from e
        found = [(job.param, state[0], t.tolerance)]
        if job.weight_out is not None:
            found.append((job.weight_out, job.param, 2**-8))
        error = 0.0
        for got, expected, tolerance in found:
            got, expected = contenders.widen(got), contenders.widen(expected)
            relative = np.abs(got - expected) / (np.abs(expected) + job.lr)
            error = max(error, float(np.max(relative)) / tolerance if np.isfinite(relative).all() else float("inf"))
        return error
    finally:
        step = None
        job.close()


# --------------------------------------------------------------------------------------------------------------- race


def race(runs, rounds, rest_s, job, small):
    """{name: [seconds of each round]} of {name: callable}."""
    seconds = {name: [] for name in runs}
    shuffler = random.Random(1)
    for number in range(rounds + 1):
        order = list(runs)
        shuffler.shuffle(order)  # nothing always finds the caches as the same other left them
        job.draw_gradients()
        for name in order:
            time.sleep(rest_s)
            run = runs[name]
            if small:
                run()
            start = time.perf_counter()
            run()
            took = time.perf_counter() - start
            if number > 0:  # the first: threads start, and the kernel makes up its mind about pages
                seconds[name].append(took)
    return seconds


def ratios(seconds, over):
    return [a / b for a, b in zip(seconds, over)]


def row_of(name, job, seconds, limit, ours, repeats, note):
    ns_p10, ns, ns_p90 = (x * 1e9 / (job.n * repeats) for x in np.quantile(seconds, (0.1, 0.5, 0.9)).tolist())
    of_limit = ratios(seconds, limit)
    p10, median, p90 = np.quantile(of_limit, (0.1, 0.5, 0.9))
    return {"name": name, "dtypes": job.types, "threads": job.threads, "elements": job.n, "ns_per_element": ns,
            "ns_p10": ns_p10, "ns_p90": ns_p90, "bytes_per_element": contenders.bytes_per_element(job.types),
            "gb_per_s": contenders.bytes_per_element(job.types) / ns, "percent_of_limit": 100 / float(median),
            "ratio_to_limit": float(median), "ratio_p10": float(p10), "ratio_p90": float(p90),
            "ratio_to_adamant": statistics.median(ratios(seconds, ours)), "note": note}


def repeated(step, repeats):
    def run():
        for _ in range(repeats):
            step()
    return run


def takes_part(name, library, native, types, threads, small, missing):
    """What to note about the contender's numbers; None, and a line in `missing`, where it cannot step."""
    try:
        error = check(CONTENDERS[name], library, native, types, threads, small)
    except Missing as e:
        missing.append({"name": name, "dtypes": types, "why": str(e)})
        return None
    return "" if error <= 1 else f"WRONG RESULT: {error:.3g} times the tolerance off"


def measure(library, native, types, n, threads, asked, small, missing):
    """The rows of one combination of types and one size."""
    repeats = SMALL_REPEATS if small else 1
    marks = {name: takes_part(name, library, native, types, threads, small, missing) for name in CONTENDERS}
    job = Job(library, native, types, n, threads, LR, asked.pages, small)
    try:
        runs, notes = {}, {}
        for name, make in CONTENDERS.items():
            if marks[name] is None:
                continue
            step, note = make(job)
            if name == contenders.OURS:
                for _ in range(WARM_UP_STEPS):
                    job.draw_gradients()
                    step()
                job.steps = WARM_UP_STEPS
            runs[name], notes[name] = repeated(step, repeats), contenders.joined(marks[name], note)
        limits = contenders.divider_limit(job, repeats) if small else contenders.memory_limits(job)
        share = contenders.huge_pages_share(job)
        if asked.pages == "2M" and not small and share is not None and share < 0.9:
            progress(f"  only {100 * share:.0f} % of the arrays are in huge pages")
        seconds = race({**limits, **runs}, asked.rounds, asked.rest_ms / 1000, job, small)
        best = min(limits, key=lambda name: statistics.median(seconds[name]))
        rows = [row_of("limit", job, seconds[best], seconds[best], seconds[contenders.OURS], repeats, best)]
        rows += [row_of(name, job, seconds[name], seconds[best], seconds[contenders.OURS], repeats, notes[name])
                 for name in runs]
        return rows
    finally:
        runs = step = limits = None
        job.close()


# ---------------------------------------------------------------------------------------- one process for each number


def versions(library):
    found = {"adamant": f"{library.version} ({library.isa})", "Python": platform.python_version(),
             "NumPy": np.__version__}
    for name in ("torch", "deepspeed", "bitsandbytes"):
        if name in sys.modules:
            found[name] = getattr(sys.modules[name], "__version__", "?")
    return found


def child(asked):
    """Measures with one number of threads, and writes what it found to a file."""
    threads = asked.child_threads
    native = ctypes.CDLL(asked.native)
    library = Library(asked.library, threads)
    rows, missing = [], []
    for types in asked.types:
        for n in [asked.elements] + ([asked.small_elements] if asked.small_elements else []):
            start = time.perf_counter()
            progress(f"{threads} thread{'s' if threads > 1 else ''}, {types}, {n} elements ...")
            rows += measure(library, native, types, n, threads, asked, n == asked.small_elements, missing)
            progress(f"  {time.perf_counter() - start:.0f} s")
    with open(asked.child_out, "w") as file:
        json.dump({"rows": rows, "missing": missing, "versions": versions(library),
                   "build_seconds": contenders.build_seconds}, file)


def child_environment(threads):
    """Ninja, with which DeepSpeed compiles, may lie beside this Python. No contender may look for a GPU."""
    path = os.path.dirname(os.path.abspath(sys.executable)) + os.pathsep + os.environ.get("PATH", "")
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": str(threads), "DS_ACCELERATOR": "cpu",
            "CUDA_VISIBLE_DEVICES": ""}


def run_child(asked, threads):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "rows.json")
        command = [sys.executable, "-X", "faulthandler", os.path.abspath(__file__), "--child-threads", str(threads),
                   "--child-out", out, "--library", asked.library, "--native", asked.native,
                   "--types", ",".join(asked.types), "--elements", str(asked.elements),
                   "--small-elements", str(asked.small_elements), "--rounds", str(asked.rounds),
                   "--rest-ms", str(asked.rest_ms), "--pages", asked.pages]
        # Peers print what they like; standard output is for the table.
        status = subprocess.run(command, env=child_environment(threads), stdout=sys.stderr).returncode
        if status != 0:
            files.fail(f"the process for --threads {threads} ended with status {status}, after the words above")
        with open(out) as file:
            return json.load(file)


def cpu_name():
    try:
        with open("/proc/cpuinfo") as file:
            fields = dict([part.strip() for part in line.split(":", 1)] for line in file if ":" in line)
    except OSError:
        fields = {}
    name = fields.get("model name", platform.machine())
    return f"{name} (family {fields['cpu family']} model {fields['model']})" if "cpu family" in fields else name


def machine(cores, pages):
    memory = 1024 * number_in("/proc/meminfo", "MemTotal:") / 2**30
    return f"{cpu_name()}, {cores} core{'s' if cores > 1 else ''}; {memory:.0f} GiB, {pages} pages"


def processor_seconds():
    """(of everybody, of our processes that have ended, of a processor times their number) since some time each."""
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    ours = resource.getrusage(resource.RUSAGE_CHILDREN)
    tick = 1 / os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - ticks[3] - ticks[4]) * tick, ours.ru_utime + ours.ru_stime, sum(ticks) * tick


def share_of_others(before, after):
    """Of the processors' time, what others had meanwhile: the hypervisor's other guests among them."""
    busy, ours, there_was = (b - a for a, b in zip(before, after))
    return max(busy - ours, 0.0) / there_was if there_was > 0 else 0.0


def cores_of(asked):
    library = Library(asked.library, 0)
    try:
        return library.threads
    finally:
        library.free()


def merged(asked, cores, results, others):
    missing = [m for result in results for m in result["missing"]]
    missing += [{"name": name, "why": why} for name, why in contenders.NEVER.items()]
    unique = list({json.dumps(m, sort_keys=True): m for m in missing}.values())
    order = list(CONTENDERS)
    rows = sorted((row for result in results for row in result["rows"]), key=lambda row: (
        -row["elements"], asked.types.index(row["dtypes"]), row["threads"],
        -1 if row["name"] == "limit" else order.index(row["name"])))
    return {"machine": machine(cores, asked.pages), "date": datetime.date.today().isoformat(),
            "versions": results[0]["versions"], "rounds": asked.rounds, "share_of_others": others,
            "small_elements": asked.small_elements,
            "build_seconds": results[0]["build_seconds"], "rows": rows, "missing": unique}


# ---------------------------------------------------------------------------------------------------------- arguments


def loadable(path, name):
    """The absolute path of a library that can be loaded."""
    try:
        ctypes.CDLL(os.path.abspath(path))
    except OSError as error:
        files.fail(f"cannot load {name}: {error}. Build it, as peers.py says, or give its path.")
    return os.path.abspath(path)


def picture(text):
    """A type of arguments: the file of a picture that can be drawn."""
    if not text.endswith((".svg", ".png")):
        raise argparse.ArgumentTypeError(f"cannot draw {text}: its name must end in .svg or .png")
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("cannot draw: Matplotlib is not installed. pip install -r "
                                         "benchmarks/requirements.txt")
    return files.writable(text)


def counts(text):
    return [files.positive(count) for count in text.split(",")]


def milliseconds(text):
    if not 0 <= float(text) < float("inf"):
        raise argparse.ArgumentTypeError(f"value is {text}, but must be at least 0")
    return float(text)


def type_list(text):
    types = text.split(",")
    for each in types:
        if each not in TYPES:
            raise argparse.ArgumentTypeError(f"{each} is none of {', '.join(TYPES)}")
    return types


def parsed():
    built = os.path.normpath(os.path.join(ROOT, "build", "benchmark"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    library, native = os.path.join(built, "libadamant_c.so"), os.path.join(built, "benchmarks", "libadamant_peers.so")
    add("--library", default=library, help="libadamant_c (%(default)s)")
    add("--native", default=native, help="libadamant_peers (%(default)s)")
    add("--types", type=type_list, default=list(TYPES), help="some of " + ",".join(TYPES))
    add("--elements", type=files.positive, default=0, help="of the large size; 2^27, or the most that fit")
    add("--small-elements", type=int, default=65536, help="of the size in cache; 0: none (%(default)s)")
    add("--threads", type=counts, help="numbers, like 1,8; one and one per core")
    add("--rounds", type=files.positive, default=11, help="that count (%(default)s)")
    add("--rest-ms", type=milliseconds, default=25, help="before each contender (%(default)s)")
    add("--pages", choices=("2M", "4K"), default="2M", help="of the arrays (%(default)s)")
    add("--json", type=files.writable, help="write everything to this file")
    add("--plot", type=picture, help="draw a picture to this file, .svg or .png; needs Matplotlib")
    add("--from-json", help="measure nothing: the table and picture of this file")
    add("--engines", nargs=argparse.REMAINDER, help="the Python package in PyTorch and DeepSpeed; the rest is for "
        "engines.py")
    add("--child-threads", type=int, help=argparse.SUPPRESS)
    add("--child-out", help=argparse.SUPPRESS)
    return parser.parse_args()


def run(asked):
    asked.library = loadable(asked.library, "adamant_c")
    asked.native = loadable(asked.native, "adamant_peers")
    if asked.small_elements % 64 or asked.small_elements < 0:
        files.fail(f"--small-elements is {asked.small_elements}, but must be a multiple of 64")
    asked.elements = choose_elements(asked.elements, asked.types)
    cores = cores_of(asked)
    threads = asked.threads or sorted({1, cores})
    before = processor_seconds()
    results = [run_child(asked, t) for t in threads]
    return merged(asked, cores, results, share_of_others(before, processor_seconds()))


def show(result, asked):
    print(report.table(result))
    if asked.json:
        files.replace(asked.json, json.dumps(result, indent=1) + "\n")
    if asked.plot:
        report.plot(result, asked.plot, list(CONTENDERS))


def main():
    asked = parsed()
    if asked.engines is not None:
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "engines.py")
        sys.exit(subprocess.run([sys.executable, script, *asked.engines]).returncode)
    if asked.child_threads:
        return child(asked)
    if asked.from_json:
        files.read(asked.from_json, "peers.py --json", lambda result: show(result, asked))
    else:
        show(run(asked), asked)


if __name__ == "__main__":
    main()
