// SPDX-License-Identifier: Apache-2.0
// Definitions of this_machine.hpp.
#include "this_machine.hpp"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string_view>
#include <utility>

#include <adamant/cores.hpp>
#include <adamant/error.hpp>
#include <adamant/tune.hpp>

#include "arguments.hpp"
#include "cores_text.hpp"

namespace cli {

namespace {

using namespace adamant;

constexpr std::pair<std::string_view, std::string_view> names[] = {
    {"mixed", "float32/bfloat16/float32/float32/bfloat16"},
    {"f32", "float32/float32/float32/float32/-"},
    {"bf16_f32", "bfloat16/bfloat16/float32/float32/-"},
    {"bf16", "bfloat16/bfloat16/bfloat16/bfloat16/-"},
    {"split", "split_float32/bfloat16/float32/float32/bfloat16"},
    {"split_bf16", "split_float32/bfloat16/bfloat16/bfloat16/bfloat16"},
    {"q8", "float32/bfloat16/quantized8/quantized8/bfloat16"},
    {"split_q8", "split_float32/bfloat16/quantized8/quantized8/bfloat16"},
    {"bf16_q8", "bfloat16/bfloat16/quantized8/quantized8/-"},
};

} // namespace

machine machine_of(std::optional<std::string> const& topology)
{
    return topology ? read_machine(*topology) : live_machine();
}

std::vector<named_types> parse_types(std::string const& text)
{
    std::vector<named_types> all;
    for (std::size_t begin = 0; begin <= text.size();) {
        std::size_t const end = std::min(text.find(',', begin), text.size());
        std::string const word = text.substr(begin, end - begin);
        begin = end + 1;
        std::string_view type_list = word;
        for (auto const& [name, types] : names)
            if (word == name)
                type_list = types;
        bool is_known = false;
        for (shard_format const& format : all_formats())
            if (to_text(format.types) == type_list) {
                all.push_back({word, &format});
                is_known = true;
            }
        if (!is_known)
            throw usage_error("the types '" + word +
                              "' are unknown: name mixed, f32, bf16_f32, bf16, split, split_bf16, q8, split_q8, "
                              "bf16_q8, or the types of param, grad, exp_avg, exp_avg_sq and weight_out, such as "
                              "float32/bfloat16/float32/float32/bfloat16 (- for no weight_out); `adamant verify` "
                              "lists all combinations");
    }
    return all;
}

std::string describe(machine const& host)
{
    std::size_t memories = 0;
    for (topology::numa_node const& node : host.nodes)
        memories += !node.pus.empty();
    std::size_t last_cache = 0;
    for (topology::cache const& c : host.caches)
        last_cache += c.level == 3 ? c.bytes : 0;
    return cpu_model() + ", " + plural(host.cores.size(), "core") + " (" + plural(host.pus().size(), "PU") + "), " +
           plural(memories, "NUMA node") + (last_cache == 0 ? "" : ", " + size_text(last_cache) + " L3") +
           (host.quota.cpus > 0 ? ", " + quota_text(host) : "");
}

std::string quota_text(machine const& host)
{
    if (!(host.quota.cpus > 0))
        return {};
    char cpus[32];
    std::snprintf(cpus, sizeof cpus, "%.4g", host.quota.cpus);
    return std::string("quota ") + cpus + " of " + plural(host.allowed.size(), "CPU");
}

std::string date_and_time()
{
    std::time_t const now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    char text[40];
    std::strftime(text, sizeof text, "%Y-%m-%d %H:%M", &local);
    return text;
}

} // namespace cli
