// SPDX-License-Identifier: Apache-2.0
// From a ratio to a placement: which shards, and parts of shards, the CPU steps, and which the device. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <adamant/split/placement.hpp>

ADAMANT_BEGIN_NAMESPACE

// What may be cut.
enum class split_unit : std::uint8_t {
    element,   // one shard, at a multiple of norm_block_elems: the ratio is reached to half of that
    shard,     // none: the set of shards that comes nearest. Of shards of one size the order says which
    deepspeed, // none, and DeepSpeed's rule: the first int((1 - ratio) * n) of n go to the device, whatever their sizes
};

// Which shards go to the device first.
enum class split_order : std::uint8_t {
    // The first ones that were added. With shards in the order in which forward uses them, backward brings their
    // gradients last and forward needs their weights first, so all others leave the CPU time to hide its work in.
    front,
    back, // the last ones
};

struct split_request {
    double ratio = 1; // of the elements, that the CPU steps: `ratio` in DeepSpeed's offload_optimizer
    split_unit unit = split_unit::element;
    split_order order = split_order::front;
    // All shards by their numbers, the first for the device first; empty: as `order` says, which in any case says
    // whether the shard that is cut gives its beginning to the device or its end. Not for split_unit::deepspeed, which
    // has an order of its own.
    std::vector<std::size_t> device_order = {};
    // What memory allows, in elements.
    std::optional<std::size_t> most_on_cpu = {};
    std::optional<std::size_t> most_on_device = {};
};

// Shards of these sizes, in elements, in the order in which an optimizer has them. Throws invalid_argument for a
// request that cannot be or more than 2^53 elements, and unavailable where both memories together are too small, or
// where no cut in this order, or no set of whole shards, fits them. A limit that stands against the ratio is kept, and
// the placement says so; for split_unit::deepspeed, whose rule does not bend, it is unavailable. Pure.
[[nodiscard]] placement split(std::vector<std::size_t> const& sizes, split_request const& request);

// Consecutive parameters that are stepped together.
struct subgroup {
    std::size_t first_param = 0;
    std::size_t params = 0;
    std::size_t elems = 0; // of one rank
};

// The subgroups that DeepSpeed's ZeRO stage 3 forms of one parameter group: parameters are added in order, each with
// the share of a rank (rounded up), until there are sub_group_size elements or more; then the next one begins. Throws
// invalid_argument for a sub_group_size or number of ranks of 0. Pure. Source: the behaviour of
// deepspeed/runtime/zero/stage3.py.
[[nodiscard]] std::vector<subgroup> form_subgroups(std::vector<std::size_t> const& param_sizes,
                                                   std::size_t sub_group_size, std::size_t ranks = 1);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/split/split.ipp>
#endif
