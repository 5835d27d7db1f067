#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmarks and writes their results as Markdown tables.

    benchmarks/tables.py                              everything, to standard output
    benchmarks/tables.py --into benchmarks/README.md  between its two marks instead
    benchmarks/tables.py --save FILE.json             and keeps what was measured
    benchmarks/tables.py --from FILE.json             formats what was kept, and measures nothing
    benchmarks/tables.py -- --quick --benchmark_filter=big_shards   what follows -- goes to the program
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

import files

BEGIN, END = "<!-- tables -->", "<!-- end of tables -->"
PROGRAM = pathlib.Path(__file__).resolve().parent.parent / "build/benchmark/benchmarks/adamant_benchmark"


def base_name(row):
    """The row's name without what Google Benchmark adds to it."""
    return re.sub(r"/iterations:\d+|/manual_time", "", row)


def run(program, arguments, save):
    """The tables of a new run."""
    with tempfile.TemporaryDirectory() as folder:
        path = save or pathlib.Path(folder) / "rows.json"
        command = [str(program), f"--benchmark_out={path}", "--benchmark_out_format=json", *arguments]
        # What the program prints meanwhile shows progress. 1: rows were skipped, which the tables show.
        try:
            status = subprocess.run(command, stdout=sys.stderr).returncode
        except OSError as error:
            files.fail(f"cannot run {program}: {files.reason(error)}. Build it, as benchmarks/README.md says.")
        if status not in (0, 1):
            files.fail(f"cannot measure: {program} ended with status {status}. See its output above.")
        return files.read(path, program, markdown)


# ------------------------------------------------------------------------------------------------------------ numbers


def elements(text):
    n = int(text)
    return text if n < 1 << 20 else f"{n / 1e6:.0f}M"


def size(n_bytes):
    for unit in ("bytes", "KiB", "MiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.0f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} GiB"


def number(value, digits):
    return "" if value is None else f"{value:.{digits}f}"


def spread(row, name):
    if name not in row:
        return ""
    return f"{row[name]:.2f} ({row[name + '_p10']:.2f} to {row[name + '_p90']:.2f})"


# ------------------------------------------------------------------------------------------------------------- tables


def machine(context):
    caches = [
        f"L{c['level']}{'d' if c['type'] == 'Data' else ''} {size(c['size'])}"
        + (f" for {c['num_sharing']} processors" if c["num_sharing"] > 1 else "")
        for c in context["caches"]
        if c["type"] != "Instruction"
    ]
    memory = size(int(context["memory"].split()[0]) * 1024)
    out_of_cache = float(context["bytes_out_of_cache"]) / 1e9
    return (
        f"Measured {context['date'][:10]} on {context['cpu']}, {context['num_cpus']} processors, "
        f"{context['adamant_threads']} threads at most, {', '.join(caches)}, {memory} of memory; tier "
        f"{context['adamant_isa']}, limit loops of {context['limit_vector_bytes']} bytes a register; "
        f"{context['system']}; {context['compiler']}; {context['rounds']} rounds, {out_of_cache:.3g} GB out of cache."
    )


def split_name(row):
    """'big_shards/f32/elems:4096' is ('big_shards', 'f32', {'elems': '4096'})."""
    parts = base_name(row["name"]).split("/")
    words = [p for p in parts[1:] if ":" not in p]
    return parts[0], "/".join(words), dict(p.split(":", 1) for p in parts[1:] if ":" in p)


def table(rows):
    """Of one workload. A column that nothing is in is left out."""
    keys = list(dict.fromkeys(key for _, keys, _ in rows for key in keys))
    asides = list(dict.fromkeys(
        name for _, _, row in rows for name in row if name.startswith("over_") and not re.search("_p[19]0$", name)))
    columns = {"row": [what for what, _, _ in rows]}
    for key in keys:
        columns[key] = [
            elements(k[key]) if key == "elems" and key in k else k.get(key, "") for _, k, _ in rows]
    per_elem = any("ns_per_elem" in row for _, _, row in rows)
    if per_elem:
        columns["ns/elem"] = [number(row.get("ns_per_elem"), 3) for _, _, row in rows]
    else:
        columns["time, us"] = [number(row.get("time_us"), 2) for _, _, row in rows]
    columns["GB/s"] = [number(row.get("GB/s"), 1) for _, _, row in rows]
    columns["% of limit"] = [number(row.get("percent_of_limit"), 0) for _, _, row in rows]
    columns["time over limit"] = [spread(row, "ratio") for _, _, row in rows]
    for name in asides:
        columns["over " + name[5:].replace("_", " ")] = [
            spread(row, name) if name + "_p10" in row else number(row.get(name), 2) for _, _, row in rows]
    columns["limit"] = [row.get("label", "") for _, _, row in rows]
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(cells) + " |" for cells in zip(*columns.values())]
    return "\n".join(lines)


def markdown(result):
    workloads, skipped = {}, []
    for row in result["benchmarks"]:
        if row.get("error_occurred"):
            skipped.append(f"Not measured: `{base_name(row['name'])}`, {row['error_message']}.")
            continue
        workload, what, keys = split_name(row)
        workloads.setdefault(workload, []).append((what, keys, row))
    parts = [machine(result["context"])]
    for workload, rows in workloads.items():
        parts += [f"### {workload}", table(rows)]
    return "\n\n".join(parts + skipped) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", type=pathlib.Path, default=PROGRAM, help="default: %(default)s")
    parser.add_argument("--into", type=files.page(BEGIN, END), metavar="FILE",
                        help="write the tables between the marks in it")
    parser.add_argument("--save", type=files.writable, metavar="FILE.json", help="keep what was measured")
    parser.add_argument("--from", type=pathlib.Path, metavar="FILE.json", dest="saved", help="what was kept")
    own, passed_on = sys.argv[1:], []
    if "--" in own:
        own, passed_on = own[: own.index("--")], own[own.index("--") + 1:]
    options = parser.parse_args(own)
    text = (files.read(options.saved, "tables.py --save", markdown) if options.saved
            else run(options.program, passed_on, options.save))
    if options.into:
        files.put(options.into, BEGIN, END, text)
    else:
        print(text)


if __name__ == "__main__":
    main()
