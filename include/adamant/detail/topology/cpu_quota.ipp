// SPDX-License-Identifier: Apache-2.0
// Definitions of adamant/detail/topology/cpu_quota.hpp.
#pragma once

#include <charconv>
#include <string_view>
#include <system_error>

#include <adamant/detail/core/system_file.hpp>
#include <adamant/detail/topology/cgroup.hpp>
#include <adamant/detail/topology/cpu_quota.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// Returns 0 for other words: "max", and -1 of version 1.
inline double positive_number(std::string_view word)
{
    long long value = 0;
    auto const read = std::from_chars(word.data(), word.data() + word.size(), value);
    return read.ec == std::errc{} && value > 0 ? static_cast<double>(value) : 0;
}

} // namespace detail

ADAMANT_DECL cpu_quota read_cpu_quota(std::string const& root)
{
    cpu_quota least;
    for (detail::cgroup_folder const& cgroup : detail::cgroup_folders(root, "cpu")) {
        std::string const file = detail::text_of({cgroup.path, cgroup.v2 ? "/cpu.max" : "/cpu.cfs_quota_us"});
        std::string text = detail::read_file(file);
        if (!cgroup.v2)
            text.append(" ").append(detail::read_file(detail::text_of({cgroup.path, "/cpu.cfs_period_us"})));
        std::string_view words = text; // "250000 100000"
        double const time = detail::positive_number(detail::next_word(words));
        double const period = detail::positive_number(detail::next_word(words));
        if (time > 0 && period > 0 && (least.cpus == 0 || time / period < least.cpus))
            least = {time / period, file};
    }
    return least;
}

ADAMANT_END_NAMESPACE
