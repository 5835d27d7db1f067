// SPDX-License-Identifier: Apache-2.0
// Random states of optimizers that defer gradients, and the difference of two.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <string>
#include <vector>

#include <adamant/formats.hpp>
#include <adamant/zenflow.hpp>

#include "checkpoint_states.hpp"

namespace test {

struct owned_zenflow_state {
    adamant::zenflow_state state;
    std::deque<std::vector<std::byte>> memory; // which the arrays are in; all but sums at an odd address

    std::byte const* add(std::vector<std::byte> const& bytes, std::size_t at = 1)
    {
        memory.emplace_back(at + bytes.size() + 1); // or an empty array would be null
        std::copy(bytes.begin(), bytes.end(), memory.back().begin() + static_cast<std::ptrdiff_t>(at));
        return memory.back().data() + at;
    }
    // All that goes by the rest of the param.
    void add(adamant::zenflow_state_param p, random_bits& random)
    {
        using namespace adamant;
        std::size_t const n = p.rows * std::max<std::size_t>(1, p.columns);
        for (shard_array::index const which : state_arrays)
            if (is_state(p.types, which))
                p.arrays[which] = add(random_bytes(random, array_bytes(p.types[which], n)));
        p.counts.resize(std::max<std::size_t>(1, p.columns));
        for (std::uint64_t& count : p.counts)
            count = random() >> random.below(64);
        p.selected.resize(p.columns);
        p.publishing.resize(p.columns);
        for (std::size_t c = 0; c < p.columns; ++c) {
            p.selected[c] = random.below(2) == 0;
            p.publishing[c] = random.below(3) == 0;
        }
        if (p.columns != 0) {
            dtype const weights = p.types[p.types[4] == dtype::none ? 0 : 4];
            if (random.below(6) != 0)
                p.weights = add(random_bytes(random, array_bytes(weights, n)));
            if (random.below(3) != 0) {
                p.summed = 1 + (random() >> random.below(64)) / 2;
                p.sums = reinterpret_cast<float const*>(add(random_bytes(random, n * sizeof(float)), 0));
            }
        }
        state.params.push_back(std::move(p));
    }
};

// Any bits at all in a third of the cases.
inline double any_number(random_bits& random)
{
    if (random.below(3) == 0)
        return std::bit_cast<double>(random() | (random.below(2) == 0 ? 0x7ff0000000000000u : 0u));
    return random_number(random, false);
}

// Whole params and ranks' rows, of one param several, params without rows; groups, metadata and names as random_state()
// has them.
inline owned_zenflow_state random_zenflow_state(random_bits& random)
{
    using namespace adamant;
    owned_state const plain = random_state(random);
    owned_zenflow_state result;
    zenflow_state& state = result.state;
    state.position = {random() >> random.below(64), random() >> random.below(64), random() >> random.below(64),
                      random.below(2) == 0, any_number(random)};
    state.deferred_norm = any_number(random);
    state.loss_scaler = plain.state.loss_scaler;
    state.groups = plain.state.groups;
    state.metadata = plain.state.metadata;
    std::vector<shard_format const*> formats;
    for (shard_format const& each : all_formats())
        formats.push_back(&each);
    for (state_param const& param : plain.state.params) {
        zenflow_state_param whole;
        whole.name = param.name;
        whole.group = param.group;
        whole.columns = random.below(4) == 0 ? 0 : 1 + random.below(9);
        whole.types = formats[random.below(formats.size())]->types;
        std::size_t const together = elems_together(whole.types);
        whole.all_rows = random.below(8) == 0 ? 0 : (1 + random.below(5)) * (together == 1 ? 1 : 64);
        if (whole.columns == 0 && random.below(2) == 0)
            whole.all_rows += random.below(9); // of a vector the last group may be short
        if (random.below(3) != 0) {
            whole.rows = whole.all_rows;
            result.add(whole, random);
            continue;
        }
        std::size_t begin = 0;
        while (begin < whole.all_rows) {
            zenflow_state_param part = whole;
            part.first_row = begin;
            part.rows = std::min(whole.all_rows - begin, random.below(4) * (together == 1 ? 1 : 64));
            begin += std::max<std::size_t>(part.rows, together);
            if (random.below(3) != 0)
                result.add(part, random);
        }
    }
    for (std::size_t i = state.params.size(); i > 1; --i)
        std::swap(state.params[i - 1], state.params[random.below(i)]);
    return result;
}

// The first thing in which two states differ; empty where there is none. Every byte is looked at.
inline std::string difference(adamant::zenflow_state const& a, adamant::zenflow_state const& b)
{
    using namespace adamant;
    auto const bits = [](double x) { return std::bit_cast<std::uint64_t>(x); };
    state_dict one, two; // for what both kinds of states have
    one.groups = a.groups, two.groups = b.groups;
    one.loss_scaler = a.loss_scaler, two.loss_scaler = b.loss_scaler;
    one.metadata = a.metadata, two.metadata = b.metadata;
    one.step = a.position.steps, two.step = b.position.steps;
    if (std::string const text = difference(one, two); !text.empty())
        return text;
    for (std::size_t g = 0; g < a.groups.size(); ++g)
        if (a.groups[g].hyper.rounding != b.groups[g].hyper.rounding)
            return "rounding of group " + a.groups[g].name;
    zenflow_position const& x = a.position;
    zenflow_position const& y = b.position;
    if (x.since_selection != y.since_selection || x.in_window != y.in_window || x.has_selection != y.has_selection ||
        bits(x.done_squares) != bits(y.done_squares))
        return "position";
    if (bits(a.deferred_norm) != bits(b.deferred_norm))
        return "deferred_norm";
    if (a.params.size() != b.params.size())
        return "how many params";
    for (std::size_t i = 0; i < a.params.size(); ++i) {
        zenflow_state_param const& p = a.params[i];
        zenflow_state_param const& q = b.params[i];
        auto const of = [&](char const* what) { return what + (" of param " + p.name); };
        if (p.name != q.name || p.group != q.group || p.columns != q.columns || p.all_rows != q.all_rows ||
            p.first_row != q.first_row || p.rows != q.rows || p.types != q.types || p.summed != q.summed)
            return of("what is no array");
        if (p.counts != q.counts || p.selected != q.selected || p.publishing != q.publishing)
            return of("counts or flags");
        std::size_t const n = p.rows * std::max<std::size_t>(1, p.columns);
        auto const same = [](void const* one_at, void const* other_at, std::size_t bytes) {
            if (one_at == nullptr || other_at == nullptr)
                return one_at == other_at;
            return bytes == 0 || std::memcmp(one_at, other_at, bytes) == 0;
        };
        for (std::size_t which = 0; which < shard_arrays; ++which)
            if (n != 0 && !same(p.arrays[which], q.arrays[which], array_bytes(p.types[which], n)))
                return of(shard_array::names[which]);
        if (!same(p.weights, q.weights, array_bytes(p.types[p.types[4] == dtype::none ? 0 : 4], n)))
            return of("weights");
        if (!same(p.sums, q.sums, n * sizeof(float)))
            return of("sums");
    }
    return {};
}

} // namespace test
