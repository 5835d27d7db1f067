// SPDX-License-Identifier: Apache-2.0
// The built-in machines. A GPU's memory is the size that its driver's tool shows, which differs from the data sheet's
// and between cards of one size. A size from a data sheet, where no other is known, counts gigabytes of 1e9 bytes and
// so errs on the safe side.

#include "plan_machines.hpp"

#include <cctype>
#include <charconv>
#include <string_view>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "plan_numbers.hpp"
#include "suggestion.hpp"

namespace cli {

namespace {

struct known_machine {
    gpu_host specs;
    std::vector<char const*> aliases;
};

constexpr double mib = 0x1p20;

// The host of a GPU: its memory, and the rates of steps and copies.
struct surroundings {
    figure bytes, step_bytes_per_s, link_bytes_per_s;
};

// 28 bytes for each of 1e9 parameters in 0.082 s.
surroundings const grace{
    {490037 * mib, "LPDDR5X: what numactl -H shows for GH200 480GB, 490,037 MiB"},
    {28e9 / 0.082, "GraceAdam's 0.082 s for 1e9 parameters on GH200 (SuperOffload blog, figure 5)"},
    {360e9, "80% (assumed) of the 450 GB/s each way of NVLink-C2C, data sheet of GH200"}};
surroundings const half_grace{
    {240e9, "half of Grace's 480 GB of LPDDR5X, data sheet of GB200: it has two GPUs"},
    {14e9 / 0.082,
     "half of GraceAdam's on GH200, 0.082 s for 1e9 parameters (SuperOffload blog, figure 5): Grace has two "
     "GPUs here"},
    {180e9, "80% (assumed) of half of the 450 GB/s each way of Grace's NVLink-C2C: it has two GPUs"}};
constexpr char const* pcie5 = "PCIe 5.0 x16: 64 GB/s each way by its standard; 55 are assumed to be reached";
constexpr char const* pcie4 = "PCIe 4.0 x16: 32 GB/s each way by its standard; 26 are assumed to be reached";
constexpr char const* of_eight = "assumed: an eighth of a host with 8 GPUs and 2 TB (--host-memory)";
constexpr char const* of_ddr5 = "75% (assumed) of an eighth of two sockets with 8 channels of DDR5-4800, 614 GB/s";
surroundings const server_of_8{{256e9, of_eight}, {57.6e9, of_ddr5}, {55e9, pcie5}};
surroundings const server_of_8_pcie4{{256e9, of_eight}, {57.6e9, of_ddr5}, {26e9, pcie4}};
surroundings const server_of_8_ddr4{
    {256e9, of_eight},
    {38.4e9, "75% (assumed) of an eighth of two sockets with 8 channels of DDR4-3200, 410 GB/s"},
    {26e9, pcie4}};
constexpr char const* desk = "assumed: a workstation with 128 GB for each GPU (--host-memory)";
constexpr char const* of_desk = "75% (assumed) of two channels of DDR5-5600, 90 GB/s";
surroundings const workstation{{128e9, desk}, {67.2e9, of_desk}, {55e9, pcie5}};
surroundings const workstation_pcie4{{128e9, desk}, {67.2e9, of_desk}, {26e9, pcie4}};

// A GPU: MiB of memory, as nvidia-smi shows them beside that name; bytes a second of its memory and dense 16-bit
// operations a second, as their source has them.
known_machine nvidia(char const* name, std::vector<char const*> aliases, unsigned mib_shown, char const* shown_as,
                     double bytes_per_s, double flops, std::string const& source, surroundings const& host)
{
    return {
        {name,
         false,
         {mib_shown * mib, "what nvidia-smi shows for " + std::string(shown_as) + ", " + grouped(mib_shown) + " MiB"},
         host.bytes,
         {bytes_per_s, source},
         host.step_bytes_per_s,
         host.link_bytes_per_s,
         host.link_bytes_per_s,
         {flops, source + ", dense"}},
        std::move(aliases)};
}

std::vector<known_machine> const& machines()
{
    static std::vector<known_machine> const all{
        nvidia("GH200-96", {"GH200"}, 97871, "NVIDIA GH200 480GB", 4.0e12, 989e12, "data sheet of GH200", grace),
        nvidia("GH200-144", {}, 146831, "NVIDIA GH200 144G HBM3e", 4.9e12, 989e12, "data sheet of GH200", grace),
        nvidia("GB200", {}, 189471, "NVIDIA GB200", 8.0e12, 2500e12, "data sheet of GB200 NVL72", half_grace),
        nvidia("A100-40GB", {"A100-SXM4-40GB", "A100-PCIe-40GB"}, 40960, "NVIDIA A100-SXM4-40GB", 1.555e12, 312e12,
               "data sheet of A100 40GB", server_of_8_ddr4),
        nvidia("A100-80GB", {"A100-SXM4-80GB"}, 81920, "NVIDIA A100-SXM4-80GB", 2.039e12, 312e12,
               "data sheet of A100 80GB SXM", server_of_8_ddr4),
        nvidia("A100-80GB-PCIe", {"A100-PCIe-80GB"}, 81920, "NVIDIA A100 80GB PCIe", 1.935e12, 312e12,
               "data sheet of A100 80GB PCIe", server_of_8_ddr4),
        nvidia("H100-PCIe", {}, 81559, "NVIDIA H100 PCIe", 2.0e12, 756e12, "data sheet of H100 PCIe", server_of_8),
        nvidia("H100-SXM", {"H100-SXM5"}, 81559, "NVIDIA H100 80GB HBM3", 3.35e12, 989e12, "data sheet of H100 SXM",
               server_of_8),
        nvidia("H100-NVL", {}, 95830, "NVIDIA H100 NVL", 3.9e12, 835e12, "data sheet of H100 NVL", server_of_8),
        nvidia("H200-PCIe", {"H200-NVL"}, 143771, "NVIDIA H200 NVL", 4.8e12, 835e12, "data sheet of H200 NVL",
               server_of_8),
        nvidia("H200-SXM", {"H200"}, 143771, "NVIDIA H200", 4.8e12, 989e12, "data sheet of H200 SXM", server_of_8),
        nvidia("B200", {}, 183359, "NVIDIA B200", 8.0e12, 2250e12, "data sheet of HGX B200", server_of_8),
        nvidia("L40S", {}, 46068, "NVIDIA L40S", 0.864e12, 362e12, "data sheet of L40S", server_of_8_pcie4),
        nvidia("RTX-A6000", {"A6000"}, 49140, "NVIDIA RTX A6000", 0.768e12, 155e12, "data sheet of RTX A6000",
               workstation_pcie4),
        nvidia("RTX-6000-Ada", {"RTX-6000-Ada-Generation"}, 49140, "NVIDIA RTX 6000 Ada Generation", 0.96e12, 364e12,
               "data sheet of RTX 6000 Ada", workstation_pcie4),
        nvidia("RTX-3090", {"3090"}, 24576, "NVIDIA GeForce RTX 3090", 0.936e12, 71e12,
               "white paper of the GA102 architecture", workstation_pcie4),
        nvidia("RTX-4090", {"4090"}, 24564, "NVIDIA GeForce RTX 4090", 1.008e12, 165e12,
               "white paper of the Ada architecture", workstation_pcie4),
        nvidia("RTX-5090", {"5090"}, 32607, "NVIDIA GeForce RTX 5090", 1.792e12, 210e12,
               "white paper of the RTX Blackwell architecture", workstation),
        {{"MI300A",
          true,
          {128e9, "HBM3 for CPU and GPU, data sheet of MI300A"},
          {},
          {5.3e12, "data sheet of MI300A"},
          {200e9, "assumed for 24 Zen 4 cores; --measure or --cpu-rate know better"},
          {},
          {},
          {980.6e12, "data sheet of MI300A, dense"}},
         {}},
    };
    return all;
}

std::string plain(std::string_view text)
{
    std::string result;
    for (char const c : text)
        if (std::isalnum(static_cast<unsigned char>(c)) != 0)
            result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return result;
}

} // namespace

gpu_count parse_gpus(std::string const& text)
{
    auto const refuse = [&](std::string const& why) {
        std::string known;
        for (std::string const& name : machine_names())
            known += (known.empty() ? "" : ", ") + name;
        throw usage_error("--gpus is '" + text + "', " + why + (why.ends_with('?') ? " It is" : "; it is") +
                          " a number and a machine, as in 4xGH200, of " + known +
                          "; or a number alone, with --gpu-memory and --host-memory");
    };
    gpu_count result;
    std::string_view rest = text;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), result.gpus);
    if (error == std::errc::result_out_of_range)
        refuse("which is more GPUs than 65536");
    if (error == std::errc()) {
        rest.remove_prefix(static_cast<std::size_t>(end - text.data()));
        if (result.gpus == 0 || result.gpus > 65536)
            refuse("but there are from 1 to 65536 GPUs");
        while (rest.starts_with(' '))
            rest.remove_prefix(1);
        if (rest.empty())
            return result;
        if (rest.front() != 'x' && rest.front() != 'X' && rest.front() != '*')
            refuse("which is not understood");
        rest.remove_prefix(1);
    }
    for (known_machine const& known : machines()) {
        bool is_match = plain(known.specs.name) == plain(rest);
        for (char const* const alias : known.aliases)
            is_match = is_match || plain(alias) == plain(rest);
        if (is_match) {
            result.machine = known.specs;
            return result;
        }
    }
    std::vector<std::pair<std::string, std::string>> names;
    for (known_machine const& known : machines()) {
        names.emplace_back(plain(known.specs.name), known.specs.name);
        for (char const* const alias : known.aliases)
            names.emplace_back(plain(alias), known.specs.name);
    }
    refuse("which names no machine that is known" + did_you_mean(plain(rest), names));
    return result;
}

std::vector<std::string> machine_names()
{
    std::vector<std::string> names;
    for (known_machine const& known : machines())
        names.push_back(known.specs.name);
    return names;
}

std::string list_of_machines()
{
    std::string text = "machines, for --gpus; for each GPU, in GB of 1e9 bytes\n";
    for (known_machine const& known : machines()) {
        std::string line = "  " + known.specs.name;
        line.resize(18, ' ');
        auto const gb_text = [](figure const& f) { return fixed(f.value / 1e9, 0) + " GB"; };
        text += line + gb_text(known.specs.gpu_bytes) +
                (known.specs.unified ? ", one memory for CPU and GPU" : ", host " + gb_text(known.specs.host_bytes)) +
                "\n";
    }
    return text;
}

} // namespace cli
