// SPDX-License-Identifier: Apache-2.0
// From a ratio to a placement: which shards, and parts of shards, the CPU steps, and which the device. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <adamant/device/placement.hpp>

ADAMANT_BEGIN_NAMESPACE

// Which cuts are allowed.
enum class split_unit : std::uint8_t {
    element,   // one shard is cut, at a multiple of norm_block_elems: the ratio is met to half of that
    shard,     // no cut: the nearest set of whole shards; the order chooses between shards of one size
    deepspeed, // no cut, DeepSpeed's rule: the first int((1 - ratio) * n) of n go to the device, whatever their sizes
};

// Which shards go to the device first.
enum class split_order : std::uint8_t {
    // Those that were added first. With shards in the order in which forward uses them, backward makes their gradients
    // last and forward needs their weights first. So the CPU's shards leave time to hide its work in.
    front,
    back, // the last ones
};

struct split_request {
    double ratio = 1; // the share of the elements that the CPU steps: `ratio` in DeepSpeed's offload_optimizer
    split_unit unit = split_unit::element;
    split_order order = split_order::front;
    // The numbers of all shards, in the order in which they go to the device; empty: as `order` says. `order` also says
    // whether the shard that is cut gives its beginning or its end to the device. Not for split_unit::deepspeed, which
    // has its own order.
    std::vector<std::size_t> device_order = {};
    // Limits by memory, in elements.
    std::optional<std::size_t> most_on_cpu = {};
    std::optional<std::size_t> most_on_device = {};
};

// sizes: of the shards, in elements, in the optimizer's order. Where a limit does not allow the ratio, the placement
// keeps the limit and says so (placement::limited). Throws invalid_argument for an impossible request or more than 2^53
// elements; and unavailable where both memories together are too small, where no cut in this order or no set of whole
// shards fits them, and where a limit does not allow what split_unit::deepspeed prescribes. Pure.
[[nodiscard]] placement split(std::vector<std::size_t> const& sizes, split_request const& request);

// Consecutive parameters that are stepped together.
struct subgroup {
    std::size_t first_param = 0;
    std::size_t params = 0;
    std::size_t elems = 0; // of one rank
};

// The subgroups that DeepSpeed's ZeRO stage 3 forms of one parameter group. Parameters are added in order, each with
// one rank's share of its elements (rounded up). Once a subgroup has sub_group_size elements or more, the next one
// begins. Throws invalid_argument for a sub_group_size or number of ranks of 0. Pure. Source:
// deepspeed/runtime/zero/stage3.py.
[[nodiscard]] std::vector<subgroup> form_subgroups(std::vector<std::size_t> const& param_sizes,
                                                   std::size_t sub_group_size, std::size_t ranks = 1);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/device/split.ipp>
#endif
