// SPDX-License-Identifier: Apache-2.0
// The command-line tool `adamant`.

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

#include <adamant/core/abi.hpp>
#include <adamant/topology/launch_mask.hpp>

#include "arguments.hpp"
#include "cores.hpp"
#include "plan.hpp"
#include "roofline.hpp"
#include "tune.hpp"
#include "verify.hpp"

ADAMANT_KEEP_LAUNCH_MASK

namespace {

constexpr char const* usage = R"(adamant: the optimizer step of offloaded training, on this machine

  adamant verify [--isa NAME] [--threads N] [--json]
      Runs a fixed trajectory of 200 steps over every combination of element types and compares the bits with
      those of every other machine. Exit status 0: the same; 1: not, and the first combination that differs is named.
        --isa      automatic (default; obeys ADAMANT_ISA), scalar, generic, avx2, avx512, avx512_bf16
        --threads  0 (default): one per core that this process may use
        --json     the result as one JSON object

  adamant cores [--ranks N] [--perc P | --count N | --reserve N|SHARE] [--list PUS] [--smt one|all] ...
      Shows the machine, and which cores the optimizer and the host framework of each rank get. Exit status 2: that
      cannot be had, and why.
        --ranks     processes on this host (default: what torchrun, MPI or Slurm have set, else 1)
        --perc      the optimizer's share of a rank's cores, 0.8 or 80% (default; cpuadam_cores_perc)
        --count     the optimizer's cores of each rank (cpuadam_cores)
        --reserve   the host's cores of each rank: a number, or a share as 0.25 or 25% (pt_reserved_cores)
        --list      the optimizer's PUs; with one of the three sizes, all that there is to share out
        --smt       one (default): one PU of each core; all, or --smt alone: every PU
        --fast      who gets the fast cores of a machine with unequal ones: optimizer (default) or host
        --gpu       the GPU of each rank, with commas: PCI address, or its number in the drawing
        --allowed   the mask that the ranks were started with; given once for each rank: that of each
        --topology  another machine: FILE.xml of hwloc's lstopo, or "pack:2 [numa] core:96 pu:2"
        --rank      show this rank only
        --json      the result as one JSON object
        --bind-test starts the optimizer's threads there, and says where the kernel has them
      PUs are a list (0,4-11), a mask (0x7ff1) or places (numa:1, package:0, core:0-7), joined with +.

  adamant plan MODEL --gpus 4xGH200 [--ratio R] [--batch N] [--seq N] ...
      What lies where when MODEL is trained with its optimizer offloaded, whether it fits, how long a step takes, and
      which ratio is best. Exit status 0: it fits; 1: it does not fit, and what would help is named; 2: the question
      is not understood, or cannot be answered.
        --list        the models and machines that are known by name
        --gpus        how many of which machine: 4xGH200, GH200-144, 8xH100-PCIe; or a number, with
                      --gpu-memory 80GB --host-memory 500GB (for each GPU) [--link GB/S, or --link-down and --link-up]
                      [--flops N]. These also replace what is known of a machine
        --params      instead of MODEL: --params 7e9 --layers 32 --hidden 4096 [--vocab N] [--active-params N]
        --shapes      instead of MODEL: a file with a line for each tensor, its name and dimensions; with --layers,
                      --hidden and --vocab activations and logits are counted, too
        --ratio       the share of the elements that the CPU steps, 0.9 or 90% (default: the best that fits)
        --batch       sequences on each GPU (default 1), --seq  tokens of each (default 4096)
        --param, --grad, --exp-avg, --exp-avg-sq, --weight-out
                      types (default: float32, and bfloat16 for grad and weight-out)
        --bucket      elements of a bucket of gradients on the GPU (default 8e8, as SuperOffload's examples have it)
        --journal     budget for taking steps back, in bytes an element (default 3); 0: steps wait for the norm
        --device-records  the GPU has room to take its part back, too;  --give-back  its part has no pages on the host
        --gpu-reserve, --host-reserve  what others need (default 4GB and 24GB)
        --measure     the CPU's rate from steps on this machine; or --cpu-rate, --gpu-rate in elements a second
        --backward, --forward  in seconds; or --utilisation of the GPU's peak (default 50%)
        --overlap-forward      forward begins while the last weights are still on their way
        --json        the result as one JSON object, with "fits" and all figures

  adamant roofline [--params N] [--ranks N] [--dtypes NAMES] [--plot FILE.svg|png] ...
      What this machine can do for an optimizer step: loops that move a step's bytes and compute nothing, by number of
      cores and by NUMA node, and real steps against them; then the whole job, a process for each rank, all at once.
      Takes minutes, and the machine to itself. Ctrl-C leaves what was measured.
        --params    of the job (default 3085938688); what does not fit in memory is projected from what does
        --ranks     processes that share them (default 1), each on cores of its own
        --perc      the share of a rank's cores that steps (default: all of them)
        --dtypes    mixed (float32 state, bfloat16 gradients and weights), f32, bf16_f32, bf16, or the five types as
                    float32/bfloat16/float32/float32/bfloat16; with commas (default: those four; the job has the first)
        --threads   numbers of cores, with commas (default: 1, 2, 4, ... and all)
        --bytes     of the arrays of each row (default 2.25GB), --rounds  of each row (default 9)
        --no-job    leaves the whole job out
        --json FILE, --csv FILE (or --csv: instead of the table), --plot FILE.svg or FILE.png
        --peers     others' steps, for the picture: a file that benchmarks/peers.py has made here

  adamant tune [--ranks N] [--dtypes NAME] [--host-load N] [--save FILE] [--plot FILE.svg|png] ...
      How many cores the optimizer needs: grows their number until more are not worth having. Takes a minute at most,
      and the machine to itself.
        --ranks     processes on this host (default 1), stepping all at once
        --dtypes    mixed (default), f32, bf16_f32, bf16, or the five types
        --worth     more cores are worth having where they bring this share of what they would if the time were
                    inversely proportional to their number (default 0.25)
        --deadline  in seconds (default 60), --elements  of each rank (default: out of cache)
        --cores-only  does not try other chunks and prefetching
        --host-load N threads that launch, copy and compute beside the optimizer: the split of the cores with which
                    both are through first, and how much the host is delayed; --rounds of that (default 61)
        --save FILE what was found, for adamant::load_tuned() and --load FILE, which refuse it on another machine
        --json FILE, --plot FILE.svg or FILE.png

  adamant --version
  adamant --help
)";

int run(int argc, char** argv)
{
    std::string_view const command = argc > 1 ? argv[1] : "--help";
    if (command == "--help" || command == "-h" || command == "help") {
        std::fputs(usage, stdout);
        return argc > 1 ? 0 : 2;
    }
    if (command == "--version") {
        std::printf("adamant %d.%d.%d\n", ADAMANT_VERSION_MAJOR, ADAMANT_VERSION_MINOR, ADAMANT_VERSION_PATCH);
        return 0;
    }
    cli::arguments arguments(argc, argv, 2);
    if (arguments.flag("--help")) {
        std::fputs(usage, stdout);
        return 0;
    }
    if (command == "verify")
        return cli::verify(arguments);
    if (command == "cores")
        return cli::cores(arguments);
    if (command == "plan")
        return cli::plan(arguments);
    if (command == "roofline")
        return cli::roofline(arguments);
    if (command == "tune")
        return cli::tune(arguments);
    throw cli::usage_error("there is no command '" + std::string(command) + "'; try adamant --help");
}

} // namespace

int main(int argc, char** argv)
{
    try {
        int const status = run(argc, argv);
        if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
            throw std::runtime_error("the output could not be written; is the disk full?");
        return status;
    } catch (std::exception const& error) {
        std::string_view const text = error.what();
        std::fprintf(stderr, "%s%s\n", text.starts_with("adamant: ") ? "" : "adamant: ", error.what());
        return 2;
    }
}
