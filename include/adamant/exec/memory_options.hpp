// SPDX-License-Identifier: Apache-2.0
// Memory for optimizer state as plain data: the request and the result.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

#include <adamant/core/abi.hpp>
#include <adamant/topology/index_set.hpp>

ADAMANT_BEGIN_NAMESPACE

// transparent: huge where the kernel has huge pages available (MADV_HUGEPAGE). normal: never huge. hugetlb_*: from a
// pool that the administrator fills; reserved when mapped.
enum class page_kind { transparent, normal, hugetlb_2m, hugetlb_1g };

[[nodiscard]] constexpr std::string_view name(page_kind kind) noexcept
{
    constexpr std::string_view names[] = {"transparent", "normal", "hugetlb 2 MiB", "hugetlb 1 GiB"};
    return names[static_cast<unsigned>(kind)];
}

struct memory_limit {
    std::size_t bytes = std::numeric_limits<std::size_t>::max(); // left; the maximum where no limit is known
    std::string source = {};                                     // of this limit
};

// preferred: other nodes are used where these are full. bound: they never are, so the OOM killer may act while other
// nodes have room.
enum class memory_binding { none, preferred, bound };

[[nodiscard]] constexpr std::string_view name(memory_binding binding) noexcept
{
    constexpr std::string_view names[] = {"none", "preferred", "bound"};
    return names[static_cast<unsigned>(binding)];
}

struct memory_options {
    page_kind pages = page_kind::transparent;
    bool pages_required = false; // otherwise hugetlb falls back to transparent, and transparent to normal
    node_set nodes = {};         // empty: no binding; the policy of the process, as numactl sets it, holds
    bool nodes_required = false; // otherwise bound falls back to preferred, and preferred to none
    bool check_available = true; // call check_memory() first
};

struct memory_report {
    std::size_t bytes = 0;                         // requested
    std::size_t mapped_bytes = 0;                  // in whole pages
    page_kind pages = page_kind::transparent;      // of the mapping; measure_placement() says how much of it is huge
    memory_binding binding = memory_binding::none; // this and the nodes are read back from the kernel
    node_set nodes = {};
    std::string notes = {}; // requests that could not be met, and why, joined by "; "
};

ADAMANT_END_NAMESPACE
