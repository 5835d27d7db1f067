// SPDX-License-Identifier: Apache-2.0
// Memory for optimizer state as plain data: what is asked for, and what was got.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

#include <adamant/core/abi.hpp>
#include <adamant/topology/index_set.hpp>

ADAMANT_BEGIN_NAMESPACE

// transparent: as huge as the kernel has them at hand (MADV_HUGEPAGE). normal: never huge. hugetlb_*: from a pool that
// the administrator fills; set aside when mapped.
enum class page_kind { transparent, normal, hugetlb_2m, hugetlb_1g };

[[nodiscard]] constexpr std::string_view name(page_kind kind) noexcept
{
    constexpr std::string_view names[] = {"transparent", "normal", "hugetlb 2 MiB", "hugetlb 1 GiB"};
    return names[static_cast<unsigned>(kind)];
}

struct memory_limit {
    std::size_t bytes = std::numeric_limits<std::size_t>::max(); // left; so large where nothing is known
    std::string source = {};                                     // what says so
};

// preferred: on other nodes where these are full. bound: never, so the OOM killer may come while other nodes have room.
enum class memory_binding { none, preferred, bound };

[[nodiscard]] constexpr std::string_view name(memory_binding binding) noexcept
{
    constexpr std::string_view names[] = {"none", "preferred", "bound"};
    return names[static_cast<unsigned>(binding)];
}

struct memory_options {
    page_kind pages = page_kind::transparent;
    bool pages_required = false; // else hugetlb falls back to transparent, and transparent to normal
    node_set nodes = {};         // empty: no binding; the policy of the process, as numactl sets it, stays in force
    bool nodes_required = false; // else bound falls back to preferred, and preferred to none
    bool check_available = true; // refuse what check_memory() refuses
};

struct memory_report {
    std::size_t bytes = 0;                         // asked for
    std::size_t mapped_bytes = 0;                  // in whole pages
    page_kind pages = page_kind::transparent;      // what the mapping is; how much of it is huge, measure() tells
    memory_binding binding = memory_binding::none; // and its nodes: the kernel's word, not ours
    node_set nodes = {};
    std::string notes = {}; // what was asked for and not got, and why, joined by "; "
};

ADAMANT_END_NAMESPACE
