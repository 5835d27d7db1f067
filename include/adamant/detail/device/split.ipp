// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/split.hpp>: splitting shards between CPU and device.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include <adamant/error.hpp>
#include <adamant/split.hpp>
#include <adamant/detail/core/default_mode.hpp>
#include <adamant/detail/device/whole_shards.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

inline std::vector<std::size_t> device_order_of(split_request const& request, std::size_t shards)
{
    std::vector<std::size_t> order(shards);
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (request.order == split_order::back)
        std::reverse(order.begin(), order.end());
    if (request.device_order.empty())
        return order;
    std::vector<bool> seen(shards);
    for (std::size_t const shard : request.device_order)
        if (shard >= shards || seen[shard])
            throw_invalid_argument(
                {"device_order names shard ", shard,
                 shard < shards ? " twice" : text_of({", but there are ", shards, ", counted from 0"})});
        else
            seen[shard] = true;
    if (request.device_order.size() != shards)
        throw_invalid_argument({"device_order names ", request.device_order.size(), " of ", shards,
                                " shards; it must name each of them once"});
    return request.device_order;
}

// Above 2^53 elements, double cannot hold every number of elements, and sums may wrap around.
inline std::size_t total_elems(std::vector<std::size_t> const& sizes)
{
    std::uint64_t const most = std::uint64_t{1} << 53;
    std::uint64_t total = 0;
    for (std::size_t const elems : sizes) {
        if (elems > most - total)
            throw_invalid_argument({"cannot split shards with more than 2^53 elements."});
        total += elems;
    }
    return static_cast<std::size_t>(total);
}

inline void check_split(split_request const& request)
{
    if (!(request.ratio >= 0 && request.ratio <= 1))
        throw_invalid_argument(
            {"ratio is ", request.ratio, ", but must be from 0 to 1: it is the CPU's share of the elements"});
    if (request.unit > split_unit::deepspeed)
        throw_invalid_argument({"unit is not a valid split_unit"});
    if (request.order > split_order::back)
        throw_invalid_argument({"order is not a valid split_order"});
    if (request.unit == split_unit::deepspeed && (!request.device_order.empty() || request.order != split_order::front))
        throw_invalid_argument({"cannot use an order with split_unit::deepspeed: DeepSpeed's rule places the first "
                                "shards on the device. Omit the order, or set split_unit::shard."});
}

// Assigns shards to the device in their order until it has `target` elements. The last shard is cut: the device gets a
// part at its beginning, or at its end if from_the_end. The cut is at a block boundary, so the result is exact to half
// a block. Returns the elements of each shard on the device.
inline std::vector<std::size_t> take_elements(std::vector<std::size_t> const& sizes,
                                              std::vector<std::size_t> const& order, bool from_the_end,
                                              std::size_t target, std::size_t least, std::size_t most)
{
    std::vector<std::size_t> device_elems(sizes.size());
    std::size_t remaining = target;
    for (std::size_t const shard : order) {
        std::size_t const n = sizes[shard];
        if (remaining >= n) {
            device_elems[shard] = n;
            remaining -= n;
            continue;
        }
        // The block boundaries on both sides of the exact cut.
        std::size_t const cut = from_the_end ? n - remaining : remaining;
        std::size_t const lower_boundary = cut / norm_block_elems * norm_block_elems;
        std::size_t const upper_boundary = std::min(lower_boundary + (cut != lower_boundary) * norm_block_elems, n);
        std::size_t const low = from_the_end ? n - upper_boundary : lower_boundary;
        std::size_t const high = from_the_end ? n - lower_boundary : upper_boundary;
        bool const low_fits = target - remaining + low >= least;
        bool const high_fits = target - remaining + high <= most;
        device_elems[shard] = (high - remaining < remaining - low && high_fits) || !low_fits ? high : low;
        break;
    }
    return device_elems;
}

inline std::vector<std::size_t> take_whole_shards(std::vector<std::size_t> const& sizes,
                                                  std::vector<std::size_t> const& order, std::size_t target,
                                                  std::size_t least, std::size_t most, bool& nearest)
{
    std::vector<size_class> classes;
    std::map<std::size_t, std::size_t> class_of; // by size
    for (std::size_t const shard : order)
        if (sizes[shard] != 0) {
            auto const entry = class_of.emplace(sizes[shard], classes.size()).first;
            if (entry->second == classes.size())
                classes.push_back({sizes[shard], 0});
            ++classes[entry->second].shards;
        }
    nearest_set set = nearest_subset(classes, target, least, most).best();
    nearest = set.proven;
    std::vector<std::size_t> device_elems(sizes.size());
    for (std::size_t const shard : order)
        if (sizes[shard] != 0)
            if (std::size_t& remaining = set.counts[class_of.at(sizes[shard])]; remaining != 0) {
                device_elems[shard] = sizes[shard];
                --remaining;
            }
    return device_elems;
}

} // namespace detail

ADAMANT_DECL placement split(std::vector<std::size_t> const& sizes, split_request const& request)
{
    detail::default_mode_scope const mode;
    detail::check_split(request);
    std::vector<std::size_t> const order = detail::device_order_of(request, sizes.size());
    std::size_t const total = detail::total_elems(sizes);
    std::size_t const most_on_cpu = std::min(total, request.most_on_cpu.value_or(total));
    std::size_t const most_on_device = std::min(total, request.most_on_device.value_or(total));
    std::size_t const least_on_device = total - most_on_cpu;
    auto const refuse = [&](std::string const& why) {
        detail::throw_unavailable({"cannot split ", detail::counted(total, "element"), " with at most ", most_on_cpu,
                                   " on the CPU and ", most_on_device, " on the device: ", why});
    };
    if (least_on_device > most_on_device)
        refuse(std::to_string(least_on_device - most_on_device) +
               " elements fit on neither. Use more memory, more ranks, or smaller types.");

    placement result;
    result.ratio_asked = request.ratio;
    std::vector<std::size_t> on_device(sizes.size());
    if (request.unit == split_unit::deepspeed) {
        auto const n = static_cast<std::size_t>((1 - request.ratio) * static_cast<double>(sizes.size()));
        std::copy_n(sizes.begin(), n, on_device.begin());
        std::size_t const elems = std::accumulate(on_device.begin(), on_device.end(), std::size_t{0});
        if (elems > most_on_device || elems < least_on_device)
            refuse(
                "DeepSpeed's rule puts the first " + std::to_string(n) + " of " + std::to_string(sizes.size()) +
                " shards, " + std::to_string(elems) +
                " elements, on the device, which does not fit. Set another ratio, or a unit that respects the limits.");
    } else {
        // Computed from the ratio, not from 1 - ratio, which is inexact: 1 - 0.9 is not the nearest double to 0.1.
        std::size_t const on_cpu =
            std::min(total, static_cast<std::size_t>(std::llround(request.ratio * static_cast<double>(total))));
        std::size_t const target = std::clamp(total - on_cpu, least_on_device, most_on_device);
        result.limited = target != total - on_cpu;
        on_device =
            request.unit == split_unit::element
                ? detail::take_elements(sizes, order, request.order == split_order::back, target, least_on_device,
                                        most_on_device)
                : detail::take_whole_shards(sizes, order, target, least_on_device, most_on_device, result.nearest);
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        std::size_t const cpu_elems = sizes[i] - on_device[i];
        bool const device_first = request.order == split_order::front;
        detail::append_piece(result, i, 0, device_first ? on_device[i] : cpu_elems,
                             device_first ? backend_kind::device : backend_kind::cpu);
        detail::append_piece(result, i, device_first ? on_device[i] : cpu_elems,
                             device_first ? cpu_elems : on_device[i],
                             device_first ? backend_kind::cpu : backend_kind::device);
    }
    if (result.device_elems > most_on_device || result.cpu_elems > most_on_cpu)
        refuse(request.unit == split_unit::element
                   ? detail::text_of({"no cut at a multiple of ", norm_block_elems, " elements fits both limits."})
               : result.nearest ? "no set of whole shards fits both limits. Set split_unit::element."
                                : "no set of whole shards that fits both limits was found. Set split_unit::element.");
    return result;
}

ADAMANT_DECL std::vector<subgroup> form_subgroups(std::vector<std::size_t> const& param_sizes,
                                                  std::size_t sub_group_size, std::size_t ranks)
{
    if (sub_group_size == 0)
        detail::throw_invalid_argument({"sub_group_size is 0, but must be above 0. DeepSpeed's default is 1e9."});
    if (ranks == 0)
        detail::throw_invalid_argument({"cannot partition parameters between 0 ranks. Pass at least 1."});
    std::vector<subgroup> subgroups;
    for (std::size_t i = 0; i < param_sizes.size(); ++i) {
        if (i == 0 || subgroups.back().elems >= sub_group_size)
            subgroups.push_back({i, 0, 0});
        ++subgroups.back().params;
        subgroups.back().elems += param_sizes[i] / ranks + (param_sizes[i] % ranks != 0);
    }
    return subgroups;
}

ADAMANT_END_NAMESPACE
