#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the NEON kernels should take on Neoverse V2, NVIDIA Grace's core: a model, for want of such a machine.

    benchmarks/arm_model.py                              a table, to standard output
    benchmarks/arm_model.py --into benchmarks/README.md  between its two marks instead
    benchmarks/arm_model.py --show bf16                  and the loop of one kernel with llvm-mca's view of it

Each kernel is compiled for AArch64 (arm_model.cpp) and run over ordinary data.

counted    qemu-aarch64 -singlestep -d exec,nochain writes a line for each instruction that it executes in a function of
           kernel::neon (-dfilter). Instructions an element are the lines of a run over 2048 elements less those of
           one over 1024, over 1024: what a call costs whatever its length is not in it.
estimated  The loop is what that trace shows between two executions of its most frequent instruction, so it is what ran,
           in that order, wherever a compiler has put it. llvm-mca gives the cycles of 100 further turns of it with data
           in the first cache.

llvm-mca lets a square root or a division keep its pipeline from everything. "Arm Neoverse V2 Core Software Optimization
Guide" (109898, issue 3.0) says in table 3-16, note 3, that only similar operations wait, and has other numbers: FSQRT
and FDIV of four floats each start 2/9 to 2/7 times a cycle, on V0 and V2 together. So there is a second estimate, the
longest of: llvm-mca's cycles with multiplications in place of both; 3.5 to 4.5 cycles for each of both; and an eighth
of the instructions, as eight are dispatched a cycle.

Needs qemu-user, g++-aarch64-linux-gnu, libxsimd-dev, clang-19 and llvm-19; -O2, without -mcpu, as users compile.
"""

import argparse
import collections
import datetime
import pathlib
import re
import subprocess
import tempfile

import files

HERE = pathlib.Path(__file__).resolve().parent
BEGIN, END = "<!-- arm model -->", "<!-- end of arm model -->"
COMPILERS = {
    "GCC": ["aarch64-linux-gnu-g++"],
    "Clang": ["clang++-19", "--target=aarch64-linux-gnu"],
}
MCA = ["llvm-mca-19", "-mtriple=aarch64", "-mcpu=neoverse-v2"]
FEW, MANY = 1024, 2048  # elements of the two runs: whole groups, and less than a block of the norm
DIVIDER_CYCLES = (3.5, 4.5)  # of one square root or one division of four floats
DISPATCHED = 8  # instructions a cycle
GHZ, GRACE_GB_S = 3.1, 450


def output_of(command):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{done.stderr}")
    return done.stdout


def version(command):
    """The first version number that it names."""
    return re.search(r"\d+\.\d+(\.\d+)?", output_of([command, "--version"]))[0]


def compile_driver(compiler, xsimd, folder):
    program = folder / f"arm_model_{compiler}"
    includes = [f"-I{HERE.parent / 'include'}", *(["-isystem", xsimd] if xsimd else [])]
    output_of([*COMPILERS[compiler], "-std=c++20", "-O2", "-static", *includes, HERE / "arm_model.cpp", "-o", program])
    return program


# ------------------------------------------------------------------------------------------------------- instructions


def kernel_ranges(program):
    """Where the functions of kernel::neon are, as -dfilter takes it."""
    ranges = []
    for line in output_of(["aarch64-linux-gnu-nm", "-C", "-S", program]).splitlines():
        found = re.fullmatch(r"(\w+) (\w+) [tTwW] (.*)", line)
        if found and "kernel::neon::" in found[3]:
            start = int(found[1], 16)
            ranges.append(f"{start:#x}..{start + int(found[2], 16) - 1:#x}")
    if not ranges:
        raise RuntimeError(f"{program} has no functions of kernel::neon")
    return ",".join(ranges)


def trace(program, ranges, kernel, elements, log):
    """The addresses that were executed, in order."""
    output_of(["qemu-aarch64", "-singlestep", "-d", "exec,nochain", "-dfilter", ranges, "-D", log, program, kernel,
               elements])
    addresses = re.findall(r"^Trace \d+: \w+ \[\w+/(\w+)/", log.read_text(), re.MULTILINE)
    return [int(address, 16) for address in addresses]


def disassembly(program):
    """{address: instruction}; each address in it is the loop's begin, for llvm-mca needs a label and no more."""
    found = {}
    for line in output_of(["aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", program]).splitlines():
        match = re.match(r"\s+([0-9a-f]+):\t(.*)", line)
        if match:
            text = re.sub(r"\s*(//.*|<.*>.*)$", "", match[2])
            names_address = re.match(r"(b|bl|b\.\w+|cbn?z|tbn?z|adrp?)\t", text)
            found[int(match[1], 16)] = re.sub(r"[0-9a-f]+$", "loop", text) if names_address else text
    return found


class Loop:
    """A kernel's hot loop, as it was executed."""

    def __init__(self, program, code, ranges, kernel, folder):
        few = trace(program, ranges, kernel, FEW, folder / "trace")
        many = trace(program, ranges, kernel, MANY, folder / "trace")
        self.per_elem = (len(many) - len(few)) / (MANY - FEW)
        more = collections.Counter(many)
        more.subtract(collections.Counter(few))
        turns = max(more.values())
        self.elems = (MANY - FEW) / turns
        head = next(address for address in many if more[address] == turns)
        places = [i for i, address in enumerate(many) if address == head]
        middle = len(places) // 2
        self.addresses = many[places[middle]:places[middle + 1]]
        self.instructions = [code[address] for address in self.addresses]
        if abs(len(self.addresses) - self.per_elem * self.elems) > 0.5:
            raise RuntimeError(f"{kernel}: {len(self.addresses)} instructions in one turn, but {self.per_elem} an "
                               f"element and {self.elems} elements a turn: not one loop with one way through it")


# -------------------------------------------------------------------------------------------------------------- cycles


def run_mca(instructions, folder, options):
    source = folder / "loop.s"
    source.write_text("loop:\n" + "".join(f"\t{line}\n" for line in instructions))
    return output_of([*MCA, *options, source])


def mca_cycles(instructions, folder):
    """Of one more turn."""
    def total(turns):
        text = run_mca(instructions, folder, [f"-iterations={turns}"])
        return int(re.search(r"Total Cycles:\s+(\d+)", text)[1])

    return (total(200) - total(100)) / 100


def without_divider(instruction):
    """A multiplication of the same registers, which a pipeline accepts every cycle."""
    found = re.fullmatch(r"(fsqrt|fdiv)\t(v\d+\.4s), (v\d+\.4s)(?:, (v\d+\.4s))?", instruction)
    return f"fmul\t{found[2]}, {found[3]}, {found[4] or found[3]}" if found else instruction


class Estimate:
    """Cycles an element: llvm-mca's, and the least and the most by the guide."""

    def __init__(self, loop, folder):
        slots = [without_divider(line) for line in loop.instructions]
        dividers = sum(new != old for new, old in zip(slots, loop.instructions))
        if dividers not in (0, loop.elems / 2):
            raise RuntimeError(f"{dividers} square roots and divisions in a turn of {loop.elems:.0f} elements")
        others = max(mca_cycles(slots, folder), len(slots) / DISPATCHED)
        self.mca = mca_cycles(loop.instructions, folder) / loop.elems
        self.least, self.most = (max(others, dividers * cycles) / loop.elems for cycles in DIVIDER_CYCLES)


# --------------------------------------------------------------------------------------------------------------- table


def spread(low, high, digits):
    texts = [f"{value:.{digits}f}" for value in (low, high)]
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)


def row(kernel, compiler, elem_bytes, loop, estimate):
    slowest, fastest = max(estimate.mca, estimate.most), min(estimate.mca, estimate.least)
    gb_s = [elem_bytes * GHZ / cycles for cycles in (slowest, fastest)]
    cores = [GRACE_GB_S / rate for rate in reversed(gb_s)]
    return [re.sub("^squares_", "squares of ", kernel), compiler, f"{loop.per_elem:.2f}",
            f"{estimate.mca:.2f}", spread(estimate.least, estimate.most, 2), spread(*gb_s, 0), spread(*cores, 0)]


HEADINGS = ["kernel", "compiler", "instructions", "cycles, llvm-mca", "cycles, the guide's divider",
            "GB/s of a core", f"cores for {GRACE_GB_S} GB/s"]


def markdown(rows, date):
    lines = [f"MODELLED {date}, never measured: no Arm machine was at hand. GCC {version(COMPILERS['GCC'][0])} and "
             f"Clang {version(COMPILERS['Clang'][0])}, -O2; llvm-mca {version(MCA[0])}, its Neoverse V2; qemu "
             f"{version('qemu-aarch64')}. Instructions and cycles are of one element; GB/s at {GHZ} GHz.",
             "", "| " + " | ".join(HEADINGS) + " |", "|" + " --- |" * len(HEADINGS)]
    return "\n".join(lines + ["| " + " | ".join(cells) + " |" for cells in rows]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=files.page(BEGIN, END), metavar="FILE",
                        help="write the table between the marks in it")
    parser.add_argument("--show", metavar="KERNEL", help="print each compiler's loop, and how llvm-mca sees it")
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="default: today, %(default)s")
    parser.add_argument("--xsimd", type=pathlib.Path, metavar="FOLDER",
                        help="where xsimd/xsimd.hpp is; Debian's compilers for Arm find it in /usr/include")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as name:
            folder, rows = pathlib.Path(name), {}
            for compiler in COMPILERS:
                program = compile_driver(compiler, options.xsimd, folder)
                code, ranges = disassembly(program), kernel_ranges(program)
                for line in output_of(["qemu-aarch64", program]).splitlines():
                    kernel, elem_bytes = line.split()
                    if options.show not in (None, kernel):
                        continue
                    loop = Loop(program, code, ranges, kernel, folder)
                    rows[kernel, compiler] = row(kernel, compiler, float(elem_bytes), loop, Estimate(loop, folder))
                    if options.show:
                        print(f"{kernel}, {compiler}: {loop.elems:.0f} elements a turn\n")
                        print("\n".join(f"{a:x}:\t{i}" for a, i in zip(loop.addresses, loop.instructions)), "\n")
                        print(run_mca(loop.instructions, folder, ["-bottleneck-analysis"]))
            kernels = list(dict.fromkeys(kernel for kernel, _ in rows))
            text = markdown([rows[k, c] for k in kernels for c in COMPILERS], options.date)
        if options.into:
            files.put(options.into, BEGIN, END, text)
        else:
            print(text)
    except (OSError, RuntimeError, KeyError) as error:
        files.fail(error)


if __name__ == "__main__":
    main()
