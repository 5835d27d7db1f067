# SPDX-License-Identifier: Apache-2.0
"""Usage: hip_assembly.py HIPCC ARCHITECTURE INCLUDE [FLAG...]. Reads the kernels' assembly for instructions that round otherwise than
the reference implementation: what a GPU of AMD would compute, as far as that can be known without one. And shows that each
flag that changes results changes what check_arithmetic() computes, so that the constructor refuses such a program."""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

hipcc, architecture, include, *given = sys.argv[1:]
ALL = """#include <adamant/cuda.cuh>
std::shared_ptr<adamant::device> make() { return std::make_shared<adamant::hip_device>(0); }
"""
CHECK = "#include <adamant/detail/cuda/cuda_check.cuh>\n"


def kernels(program, *flags):
    """The instructions and settings of each kernel of a program."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "kernels.hip"), Path(folder, "kernels.s")
        source.write_text(program)
        subprocess.run([hipcc, f"--offload-arch={architecture}", "-std=c++20", "-O3", "-fopenmp", "-I", include,
                        "-DADAMANT_SEPARATE_COMPILATION", *given, *flags, "--cuda-device-only", "-S", source, "-o", out],
                       check=True, stderr=subprocess.DEVNULL)
        text = out.read_text()
    found = {}
    for name, body in re.findall(r"^(_ZN\w+):.*?\n(.*?)\.end_amdhsa_kernel", text, re.S | re.M):
        found[name] = [line.split(";")[0].strip() for line in body.splitlines() if line.split(";")[0].strip()]
    return found


def check(condition, *what):
    if not condition:
        sys.exit("hip_assembly: " + " ".join(map(str, what)))


def of(body, pattern):
    return [i for i, line in enumerate(body) if re.match(pattern, line)]


def check_root(name, body, at):
    """A root is a v_sqrt_f32 that is compared with its neighbors."""
    root = body[at].split()[1].rstrip(",")
    after = body[at:at + 24]
    for neighbor in ("-1", "1"):
        check(any(re.match(rf"v_add_u32\w* v\d+, {neighbor}, {root}$", line) for line in after),
              name, "has a root that is not corrected:", body[at])


exact = kernels(ALL)
passes = {name: body for name, body in exact.items() if "11pass_kernel" in name}
check(len(exact) == 22 and len(passes) == 11, "found", len(exact), "kernels,", len(passes), "of them of passes")
for name, body in exact.items():
    for setting in ("float_denorm_mode_32 3", "float_denorm_mode_16_64 3", "float_round_mode_32 0",
                    "float_round_mode_16_64 0"):
        check(f".amdhsa_{setting}" in body, name, "has not the mode", setting)
    # v_mad and v_mac flush subnormals and round products. LLVM divides integers by them, as by v_rcp_iflag_f32.
    for at in of(body, r"v_(mad|mac)\w*_f(16|32)"):
        check(any("v_cvt_f32_u32" in line or "v_rcp_iflag" in line or "v_trunc" in line
                  for line in body[max(0, at - 6):at + 4]), name, "rounds a product:", body[at])
    check(not of(body, r"v_(rsq|exp|log|sin|cos|fma_mix|dot)\w*_f(16|32|64)"), name, "estimates")
for name, body in passes.items():
    coded = 1 if "ELi5ELi5E" in name else 0
    quotients = len(of(body, r"v_div_fixup_f32"))
    check(quotients == 4 + 2 * coded, name, "has", quotients, "correctly rounded quotients")
    check(len(of(body, r"v_rcp_f32")) == quotients, name, "has quotients that are estimates")
    roots = of(body, r"v_sqrt_f32")
    check(len(roots) == 4, name, "has", len(roots), "roots")
    for at in roots:
        check_root(name, body, at)
print(f"{architecture}: {len(exact)} kernels round as IEEE 754 says")

((name, exact_check),) = kernels(CHECK).items()
for flag in ("-ffp-contract=fast", "-fgpu-flush-denormals-to-zero", "-fno-hip-fp32-correctly-rounded-divide-sqrt"):
    pair = (exact_check, kernels(CHECK, flag)[name])
    operations = [[line.split()[0] for line in body if re.match(r"v_\w+_f(32|64)|\.amdhsa_float_denorm", line)] for body in pair]
    modes = [[line for line in body if "denorm" in line] for body in pair]
    check(operations[0] != operations[1] or modes[0] != modes[1], flag, "does not change", name)
    print(f"{flag} changes what check_arithmetic() computes")
