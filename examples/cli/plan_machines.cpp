// SPDX-License-Identifier: Apache-2.0
// The built-in machines. Gigabytes of data sheets are taken as 1e9 bytes; tools that show some more count what they
// call GiB, so a plan errs on the safe side.

#include "plan_machines.hpp"

#include <cctype>
#include <charconv>
#include <string_view>
#include <vector>

#include "arguments.hpp"
#include "plan_numbers.hpp"
#include "suggestion.hpp"

namespace cli {

namespace {

struct known_machine {
    gpu_host what;
    std::vector<char const*> aliases;
};

constexpr char const* c2c = "80% (assumed) of the 450 GB/s each way of NVLink-C2C, data sheet of GH200";
constexpr char const* half_c2c =
    "80% (assumed) of half of the 450 GB/s each way of Grace's NVLink-C2C: it has two GPUs";
constexpr char const* pcie = "PCIe 5.0 x16: 64 GB/s each way by its standard, of which 55 are assumed to be reached";
constexpr char const* host_share = "assumed: an eighth of a host with 8 GPUs and 2 TB (--host-memory)";
constexpr char const* host_rate = "75% (assumed) of an eighth of two sockets with 8 channels of DDR5-4800, 614 GB/s";
// 28 bytes for each of 1e9 parameters in 0.082 s.
constexpr char const* grace = "GraceAdam's 0.082 s for 1e9 parameters on GH200 (SuperOffload blog, figure 5)";
constexpr char const* half_grace =
    "half of GraceAdam's on GH200, 0.082 s for 1e9 parameters (SuperOffload blog, figure 5): Grace has two GPUs here";

std::vector<known_machine> const& machines()
{
    static std::vector<known_machine> const all{
        {{"GH200-96",
          false,
          {96e9, "HBM3, data sheet of GH200"},
          {480e9, "LPDDR5X, data sheet of GH200"},
          {4.0e12, "data sheet of GH200"},
          {28e9 / 0.082, grace},
          {360e9, c2c},
          {360e9, c2c},
          {989e12, "data sheet of GH200, dense"}},
         {"GH200"}},
        {{"GH200-144",
          false,
          {144e9, "HBM3e, data sheet of GH200"},
          {480e9, "LPDDR5X, data sheet of GH200"},
          {4.9e12, "data sheet of GH200"},
          {28e9 / 0.082, grace},
          {360e9, c2c},
          {360e9, c2c},
          {989e12, "data sheet of GH200, dense"}},
         {}},
        {{"GB200",
          false,
          {186e9, "HBM3e, data sheet of GB200 NVL72: 13.4 TB for 72 GPUs"},
          {240e9, "half of Grace's 480 GB of LPDDR5X, data sheet of GB200: it has two GPUs"},
          {8.0e12, "data sheet of GB200"},
          {14e9 / 0.082, half_grace},
          {180e9, half_c2c},
          {180e9, half_c2c},
          {2500e12, "data sheet of GB200 NVL72, dense"}},
         {}},
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
        {{"H100-PCIe",
          false,
          {80e9, "HBM2e, data sheet of H100 PCIe"},
          {256e9, host_share},
          {2.0e12, "data sheet of H100 PCIe"},
          {57.6e9, host_rate},
          {55e9, pcie},
          {55e9, pcie},
          {756e12, "data sheet of H100 PCIe, dense"}},
         {}},
        {{"H100-SXM",
          false,
          {80e9, "HBM3, data sheet of H100 SXM"},
          {256e9, host_share},
          {3.35e12, "data sheet of H100 SXM"},
          {57.6e9, host_rate},
          {55e9, pcie},
          {55e9, pcie},
          {989e12, "data sheet of H100 SXM, dense"}},
         {}},
        {{"H200-PCIe",
          false,
          {141e9, "HBM3e, data sheet of H200 NVL"},
          {256e9, host_share},
          {4.8e12, "data sheet of H200 NVL"},
          {57.6e9, host_rate},
          {55e9, pcie},
          {55e9, pcie},
          {835e12, "data sheet of H200 NVL, dense"}},
         {"H200-NVL"}},
        {{"H200-SXM",
          false,
          {141e9, "HBM3e, data sheet of H200 SXM"},
          {256e9, host_share},
          {4.8e12, "data sheet of H200 SXM"},
          {57.6e9, host_rate},
          {55e9, pcie},
          {55e9, pcie},
          {989e12, "data sheet of H200 SXM, dense"}},
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
    for (known_machine const& one : machines()) {
        bool named = plain(one.what.name) == plain(rest);
        for (char const* const alias : one.aliases)
            named = named || plain(alias) == plain(rest);
        if (named) {
            result.each = one.what;
            return result;
        }
    }
    std::vector<std::pair<std::string, std::string>> names;
    for (known_machine const& one : machines()) {
        names.emplace_back(plain(one.what.name), one.what.name);
        for (char const* const alias : one.aliases)
            names.emplace_back(plain(alias), one.what.name);
    }
    refuse("which names no machine that is known" + did_you_mean(plain(rest), names));
    return result;
}

std::vector<std::string> machine_names()
{
    std::vector<std::string> names;
    for (known_machine const& one : machines())
        names.push_back(one.what.name);
    return names;
}

std::string list_of_machines()
{
    std::string text = "machines, for --gpus; for each GPU\n";
    for (known_machine const& one : machines()) {
        std::string line = "  " + one.what.name;
        line.resize(18, ' ');
        auto const of = [](figure const& f) { return fixed(f.value / 1e9, 0) + " GB"; };
        text += line + of(one.what.gpu_bytes) +
                (one.what.unified ? ", one memory for CPU and GPU" : ", host " + of(one.what.host_bytes)) + "\n";
    }
    return text;
}

} // namespace cli
