// SPDX-License-Identifier: Apache-2.0
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
             {"--isa", "NAME", "automatic (default; obeys ADAMANT_ISA), scalar, generic, avx2, avx512 or avx512_bf16",
              "automatic scalar generic avx2 avx512 avx512_bf16"},
             {"--threads", "N", "0 (default): one per core that this process may use"},
             {"--json", "", "the result as one JSON object"},
         },
         "",
         verify},
        {"cores",
         "[--ranks N] [--perc P | --count N | --reserve N|SHARE] ...",
         "the machine, and which of its cores the optimizer gets",
         "Shows the machine, and which cores the optimizer and the host framework of each rank get. Exit status 2: "
         "that cannot be had, and why.",
         {
             {"--ranks", "N", "processes on this host (default: what torchrun, MPI or Slurm have set, else 1)"},
             {"--perc", "P", "the optimizer's share of a rank's cores, 0.8 or 80% (default; cpuadam_cores_perc)"},
             {"--count", "N", "the optimizer's cores of each rank (cpuadam_cores)"},
             {"--reserve", "N|SHARE",
              "the host's cores of each rank: a number, or a share as 0.25 or 25% (pt_reserved_cores)"},
             {"--list", "PUS", "the optimizer's PUs; with one of the three sizes, all that there is to share out"},
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
             {"--bind-test", "", "starts the optimizer's threads there, and says where the kernel has them"},
         },
         "PUS are a list (0,4-11), a mask (0x7ff1) or places (numa:1, package:0, core:0-7), joined with +.",
         cores},
        {"plan",
         "MODEL --gpus 4xGH200 [--ratio R] [--batch N] [--seq N] ...",
         "will a model fit with its optimizer offloaded, and how fast?",
         "What lies where when MODEL is trained with its optimizer offloaded, whether it fits, how long a step takes, "
         "and which ratio is best. Exit status 0: it fits; 1: it does not fit, and what would help is named; 2: the "
         "question is not understood, or cannot be answered.",
         {
             {"--list", "", "the models and machines that are known by name"},
             {"--gpus", "NxMACHINE",
              "number and kind of machines: 4xGH200, GH200-144, 8xH100-PCIe; or a number, with --gpu-memory and "
              "--host-memory",
              "", machine_names},
             {"--gpu-memory", "SIZE",
              "of each GPU: 80GB, 81559MiB. This and the next ones also replace what is known of a machine"},
             {"--host-memory", "SIZE", "of the host, for each GPU: 500GB"},
             {"--link", "GB/S", "between them, each way; or --link-down and --link-up"},
             {"--link-down", "GB/S", "from the GPU to the host"},
             {"--link-up", "GB/S", "from the host to the GPU"},
             {"--flops", "N", "operations a second of the GPU's dense 16-bit matrix products, at its peak"},
             {"--params", "N", "instead of MODEL: --params 7e9 --layers 32 --hidden 4096 [--vocab N]"},
             {"--layers", "N", "layers of such a model"},
             {"--hidden", "N", "its width"},
             {"--vocab", "N", "its vocabulary"},
             {"--active-params", "N", "of its parameters, those that a token goes through (default: all)"},
             {"--shapes", "FILE",
              "instead of MODEL: a file with a line for each tensor, its name and dimensions; with --layers, --hidden "
              "and --vocab activations and logits are counted, too"},
             {"--ratio", "R", "the share of the elements that the CPU steps, 0.9 or 90% (default: the best that fits)"},
             {"--batch", "N", "sequences on each GPU (default 1)"},
             {"--seq", "N", "tokens of each (default 4096)"},
             {"--state", "NAME",
              "what masters and moments are stored as: float32 (default), split_float32, bfloat16, quantized8, "
              "split_float32+bfloat16 or split_float32+quantized8",
              "float32 split_float32 bfloat16 quantized8 split_float32+bfloat16 split_float32+quantized8"},
             {"--param", "TYPE", "float32 (default), bfloat16 or float16", dtypes},
             {"--grad", "TYPE", "the same; default: bfloat16", dtypes},
             {"--exp-avg", "TYPE", "float32 (default), bfloat16 or, for both moments, quantized8",
              "float32 bfloat16 quantized8"},
             {"--exp-avg-sq", "TYPE", "the same", "float32 bfloat16 quantized8"},
             {"--weight-out", "TYPE", "bfloat16 (default), float16, or none", "bfloat16 float16 none"},
             {"--bucket", "N",
              "elements of a bucket of gradients on the GPU (default 8e8, as SuperOffload's examples have it)"},
             {"--journal", "BYTES",
              "budget for taking steps back, in bytes an element (default 3); what has no room waits for the norm, "
              "with 0 "
              "every update"},
             {"--device-records", "", "the GPU has room to take its part back, too"},
             {"--give-back", "", "the GPU's part has no pages on the host"},
             {"--zenflow", "K",
              "compares with ZenFlow: the GPU steps the share K of each matrix's columns, 0.1 or 10%, and the CPU adds "
              "up the gradients of the others"},
             {"--update-interval", "N", "steps of a window, at whose end the CPU steps those (default 4)"},
             {"--select-interval", "N", "steps between selections of columns (default: they are not counted)"},
             {"--no-overlap", "", "a window waits for that step; else it goes on during the next window"},
             {"--gpu-reserve", "SIZE", "GPU memory reserved for other users (default 4GB)"},
             {"--host-reserve", "SIZE", "what others need of the host (default 24GB)"},
             {"--measure", "", "the CPU's rate from steps on this machine"},
             {"--cpu-rate", "N", "the CPU's rate, in elements a second of a step without records"},
             {"--gpu-rate", "N", "the GPU's rate, in elements a second"},
             {"--backward", "S", "in seconds"},
             {"--forward", "S", "in seconds"},
             {"--utilisation", "SHARE", "of the GPU's peak, by forward and backward (default 50%)"},
             {"--overlap-forward", "", "forward begins while the last weights are still on their way"},
             {"--json", "", "the result as one JSON object, with \"fits\" and all figures"},
         },
         "",
         plan,
         model_names},
        {"roofline",
         "[--params N] [--ranks N] [--dtypes NAMES] [--plot FILE] ...",
         "measure the memory roofline of an optimizer step",
         "What this machine can do for an optimizer step: loops that move a step's bytes and compute nothing, by "
         "number of cores and by NUMA node, and real steps against them; then the whole job, a process for each rank, "
         "all at once. Takes minutes, and the machine to itself. Ctrl-C leaves what was measured.",
         {
             {"--params", "N", "of the job (default 3085938688); what does not fit in memory is projected"},
             {"--ranks", "N", "processes that share them (default 1), each on cores of its own"},
             {"--perc", "P", "the share of a rank's cores that steps (default: all of them)"},
             {"--dtypes", "NAMES",
              "mixed (float32 state, bfloat16 gradients and weights), f32, bf16_f32, bf16, split, split_bf16, q8, "
              "split_q8, bf16_q8, or the five types as float32/bfloat16/float32/float32/bfloat16; with commas "
              "(default: the first four; the job has the first)",
              dtype_sets},
             {"--threads", "LIST", "numbers of cores, with commas (default: 1, 2, 4, ... and all)"},
             {"--bytes", "SIZE", "of the arrays of each row (default 2.25GB)"},
             {"--rounds", "N", "of each row (default 9)"},
             {"--no-job", "", "leaves the whole job out"},
             {"--json", "FILE", "everything, as one JSON object"},
             {"--csv", "FILE", "the table as CSV; --csv alone: instead of the table", "", nullptr, true},
             {"--plot", "FILE", "a picture, FILE.svg or FILE.png"},
             {"--from", "FILE",
              "measures nothing, and shows what benchmarks/peers.py --json has measured in one run: the roof, "
              "adamant's "
              "steps and others'"},
         },
         "",
         roofline},
        {"tune",
         "[--ranks N] [--dtypes NAME] [--host-load N] [--save FILE] ...",
         "how many cores does the optimizer need?",
         "How many cores the optimizer needs: adds cores until the next one gains too little. Takes a minute at "
         "most, and the machine to itself.",
         {
             {"--ranks", "N", "processes on this host (default 1), stepping concurrently"},
             {"--dtypes", "NAME",
              "mixed (default), f32, bf16_f32, bf16, split, split_bf16, q8, split_q8, bf16_q8, or the five types",
              dtype_sets},
             {"--worth", "SHARE",
              "more cores are worth using where they gain this share of what they would if the time were inversely "
              "proportional to their number (default 0.25)"},
             {"--deadline", "S", "in seconds (default 60)"},
             {"--elements", "N", "of each rank (default: out of cache)"},
             {"--cores-only", "", "does not try other chunks and prefetching"},
             {"--host-load", "N",
              "threads that launch, copy and compute beside the optimizer: the split of the cores with which both are "
              "through first, and how much the host is delayed"},
             {"--rounds", "N", "of that (default 61)"},
             {"--save", "FILE", "what was found, for adamant::load_tuned() and --load"},
             {"--load", "FILE", "shows what was saved; refused on another machine"},
             {"--json", "FILE", "everything, as one JSON object"},
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
    auto const at = std::find_if(all.begin(), all.end(), [&](command const& one) { return one.name == name; });
    return at == all.end() ? nullptr : &*at;
}

std::vector<std::string> command_names()
{
    std::vector<std::string> names;
    for (command const& one : commands())
        names.emplace_back(one.name);
    return names;
}

} // namespace cli
