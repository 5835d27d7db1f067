// SPDX-License-Identifier: Apache-2.0
// The list of commands, their options and help texts.
#include "commands.hpp"

#include <algorithm>

#include "cores.hpp"
#include "plan.hpp"
#include "plan_machines.hpp"
#include "plan_models.hpp"
#include "roofline.hpp"
#include "tune.hpp"
#include "verify.hpp"

namespace cli {

namespace {

constexpr std::string_view dtypes = "float32 bfloat16 float16";
constexpr std::string_view dtype_sets = "mixed f32 bf16_f32 bf16 split split_bf16 q8 split_q8 bf16_q8";

} // namespace

std::span<command const> commands()
{
    static std::vector<command> const all{
        {"verify",
         "[--isa NAME] [--threads N] [--json]",
         "does this machine compute the same bits as every other?",
         "Runs a fixed trajectory of 200 steps over every combination of element types and compares the bits with "
         "those of every other machine. Exit status 0: the same; 1: not, and the first combination that differs is "
         "named.",
         {
             {"--isa", "NAME", "automatic (default; obeys ADAMANT_ISA), scalar, neon, avx2, avx512 or avx512_bf16",
              "automatic scalar neon avx2 avx512 avx512_bf16"},
             {"--threads", "N", "0 (default): one per core that this process may use"},
             {"--json", "", "the result as one JSON object"},
         },
         "",
         verify},
        {"cores",
         "[--ranks N] [--perc P | --count N | --reserve N|SHARE] ...",
         "the machine, and which of its cores the optimizer gets",
         "Shows the machine, and which cores the optimizer and the host framework of each rank get. Exit status 2: "
         "the request is impossible, and why.",
         {
             {"--ranks", "N", "processes on this host (default: what torchrun, MPI or Slurm have set, else 1)"},
             {"--perc", "P", "the optimizer's share of a rank's cores, 0.8 or 80% (default; cpuadam_cores_perc)"},
             {"--count", "N", "the optimizer's cores of each rank (cpuadam_cores)"},
             {"--reserve", "N|SHARE",
              "the host's cores of each rank: a number, or a share as 0.25 or 25% (pt_reserved_cores)"},
             {"--list", "PUS", "the optimizer's PUs; with one of the three sizes, the PUs to divide with the host"},
             {"--smt", "one|all", "one (default): one PU of each core; all, or --smt alone: every PU", "one all",
              nullptr, true},
             {"--fast", "WHO", "who gets the fast cores of a machine with unequal ones: optimizer (default) or host",
              "optimizer host"},
             {"--gpu", "LIST", "the GPU of each rank, with commas: PCI address, or its number in the drawing"},
             {"--allowed", "PUS", "the mask that the ranks were started with; given once for each rank: that of each"},
             {"--topology", "FILE", "another machine: FILE.xml of hwloc's lstopo, or \"pack:2 [numa] core:96 pu:2\""},
             {"--quota", "CPUS", "the CPU quota that the ranks share, such as 2.5 (default: that of this process)"},
             {"--rank", "N", "show this rank only"},
             {"--json", "", "the result as one JSON object"},
             {"--bind-test", "", "starts the optimizer's threads there, and shows where the kernel has bound them"},
         },
         "PUS are a list (0,4-11), a mask (0x7ff1) or places (numa:1, package:0, core:0-7), joined with +.",
         cores},
        {"plan",
         "MODEL --gpus 4xGH200 [--ratio R] [--batch N] [--seq N] ...",
         "will a model fit with its optimizer offloaded, and how fast?",
         "The memory of each part when MODEL is trained with its optimizer offloaded, whether it fits, how long a step "
         "takes, and which ratio is best. Exit status 0: it fits; 1: it does not fit, with advice; 2: invalid "
         "arguments, or no answer is possible.",
         {
             {"--list", "", "the models and machines that are known by name"},
             {"--gpus", "NxMACHINE",
              "number and kind of machines: 4xGH200, GH200-144, 8xH100-PCIe; or a number, with --gpu-memory and "
              "--host-memory",
              "", machine_names},
             {"--gpu-memory", "SIZE",
              "memory of each GPU: 80GB, 81559MiB. This and the next ones override the known values of a machine"},
             {"--host-memory", "SIZE", "memory of the host for each GPU: 500GB"},
             {"--link", "GB/S", "bandwidth between GPU and host, each way; or --link-down and --link-up"},
             {"--link-down", "GB/S", "bandwidth from the GPU to the host"},
             {"--link-up", "GB/S", "bandwidth from the host to the GPU"},
             {"--flops", "N", "peak operations per second of the GPU's dense 16-bit matrix products"},
             {"--params", "N", "instead of MODEL: --params 7e9 --layers 32 --hidden 4096 [--vocab N]"},
             {"--layers", "N", "number of layers of a described model"},
             {"--hidden", "N", "width of a described model"},
             {"--vocab", "N", "vocabulary of a described model"},
             {"--active-params", "N", "parameters that a token uses (default: all)"},
             {"--shapes", "FILE",
              "instead of MODEL: a file with a line for each tensor, its name and dimensions; --layers, --hidden and "
              "--vocab add activations and logits"},
             {"--ratio", "R", "the share of the elements that the CPU steps, 0.9 or 90% (default: the best that fits)"},
             {"--batch", "N", "sequences on each GPU (default 1)"},
             {"--seq", "N", "tokens of each sequence (default 4096)"},
             {"--state", "NAME",
              "format of masters and moments: float32 (default), split_float32, bfloat16, quantized8, "
              "split_float32+bfloat16 or split_float32+quantized8",
              "float32 split_float32 bfloat16 quantized8 split_float32+bfloat16 split_float32+quantized8"},
             {"--param", "TYPE", "type of params: float32 (default), bfloat16 or float16", dtypes},
             {"--grad", "TYPE", "type of gradients: bfloat16 (default), float16 or float32", dtypes},
             {"--exp-avg", "TYPE",
              "type of first moments: float32 (default), bfloat16 or, for both moments, quantized8",
              "float32 bfloat16 quantized8"},
             {"--exp-avg-sq", "TYPE", "type of second moments, as for --exp-avg", "float32 bfloat16 quantized8"},
             {"--weight-out", "TYPE", "type of rounded weights: bfloat16 (default), float16, or none",
              "bfloat16 float16 none"},
             {"--bucket", "N",
              "elements of a bucket of gradients on the GPU (default 8e8, as in SuperOffload's examples)"},
             {"--journal", "BYTES",
              "budget of records for rollback, in bytes per element (default 3); elements without records wait for "
              "the norm, with 0 all of them"},
             {"--device-records", "", "the GPU records its part for rollback, too"},
             {"--give-back", "", "the GPU's part has no pages on the host"},
             {"--track-changes", "", "with bits for changed weights"},
             {"--zenflow", "K",
              "compares with ZenFlow: the GPU steps the share K of each matrix's columns, 0.1 or 10%, and the CPU "
              "accumulates the gradients of the others"},
             {"--update-interval", "N", "steps of a window, at whose end the CPU steps deferred columns (default 4)"},
             {"--select-interval", "N", "steps between selections of columns (default: selections are not counted)"},
             {"--no-overlap", "", "a window waits for the deferred update; by default it overlaps the next window"},
             {"--gpu-reserve", "SIZE", "GPU memory reserved for other users (default 4GB)"},
             {"--host-reserve", "SIZE", "host memory reserved for other users (default 24GB)"},
             {"--measure", "", "measure the CPU's rate with steps on this machine"},
             {"--cpu-rate", "N", "the CPU's rate in elements per second, for steps without records"},
             {"--gpu-rate", "N", "the GPU's rate in elements per second"},
             {"--backward", "S", "duration of backward in seconds"},
             {"--forward", "S", "duration of forward in seconds"},
             {"--utilisation", "SHARE", "share of the GPU's peak that forward and backward reach (default 50%)"},
             {"--overlap-forward", "", "forward begins before the last weights have arrived"},
             {"--json", "", "the result as one JSON object, with \"fits\" and all figures"},
         },
         "",
         plan,
         model_names},
        {"roofline",
         "[--params N] [--ranks N] [--dtypes NAMES] [--plot FILE] ...",
         "measure the memory roofline of an optimizer step",
         "The memory limit of an optimizer step: loops that move a step's bytes and compute nothing, by number of "
         "cores "
         "and by NUMA node, and real steps relative to them; then the whole job, a process for each rank, all "
         "concurrently. Takes minutes; nothing else should run. Ctrl-C keeps the results so far.",
         {
             {"--params", "N", "parameters of the job (default 3085938688); projected if they do not fit in memory"},
             {"--ranks", "N", "processes that share them (default 1), each on separate cores"},
             {"--perc", "P", "the optimizer's share of a rank's cores (default: all of them)"},
             {"--dtypes", "NAMES",
              "mixed (float32 state, bfloat16 gradients and weights), f32, bf16_f32, bf16, split, split_bf16, q8, "
              "split_q8, bf16_q8, or the five types as float32/bfloat16/float32/float32/bfloat16; with commas "
              "(default: the first four; the job has the first)",
              dtype_sets},
             {"--threads", "LIST", "numbers of cores, with commas (default: 1, 2, 4, ... and all)"},
             {"--bytes", "SIZE", "size of the arrays of each row (default 2.25GB)"},
             {"--rounds", "N", "rounds of each row (default 9)"},
             {"--no-job", "", "skip the whole job"},
             {"--json", "FILE", "all results as one JSON object"},
             {"--csv", "FILE", "the table as CSV; --csv alone: instead of the table", "", nullptr, true},
             {"--plot", "FILE", "a picture, FILE.svg or FILE.png"},
             {"--from", "FILE",
              "shows the results of benchmarks/peers.py --json instead of measuring: the limit, adamant's steps and "
              "others'"},
         },
         "",
         roofline},
        {"tune",
         "[--ranks N] [--dtypes NAME] [--host-load N] [--save FILE] ...",
         "how many cores does the optimizer need?",
         "How many cores the optimizer needs: adds cores until the next one gains too little. Takes at most a minute; "
         "nothing else should run.",
         {
             {"--ranks", "N", "processes on this host (default 1), stepping concurrently"},
             {"--dtypes", "NAME",
              "mixed (default), f32, bf16_f32, bf16, split, split_bf16, q8, split_q8, bf16_q8, or the five types",
              dtype_sets},
             {"--worth", "SHARE",
              "share of the perfect speed-up, inversely proportional to the number of cores, that makes more cores "
              "worth using (default 0.25)"},
             {"--deadline", "S", "time limit in seconds (default 60)"},
             {"--elements", "N", "elements of each rank (default: far more than fit in cache)"},
             {"--cores-only", "", "do not try other chunk sizes and prefetch distances"},
             {"--host-load", "N",
              "threads that launch, copy and compute concurrently with the optimizer: finds the fastest split of the "
              "cores, and the delay of the host"},
             {"--rounds", "N", "rounds with --host-load (default 61)"},
             {"--save", "FILE", "save the result for adamant::load_tuned() and --load"},
             {"--load", "FILE", "show a saved result; refused on another machine"},
             {"--json", "FILE", "all results as one JSON object"},
             {"--plot", "FILE", "a picture, FILE.svg or FILE.png"},
         },
         "",
         tune},
    };
    return all;
}

command const* find_command(std::string_view name)
{
    auto const all = commands();
    auto const match = std::find_if(all.begin(), all.end(), [&](command const& entry) { return entry.name == name; });
    return match == all.end() ? nullptr : &*match;
}

std::vector<std::string> command_names()
{
    std::vector<std::string> names;
    for (command const& entry : commands())
        names.emplace_back(entry.name);
    return names;
}

} // namespace cli
