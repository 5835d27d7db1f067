// SPDX-License-Identifier: Apache-2.0
// Definitions of limit_loops.hpp.
#include "limit_loops.hpp"

#include <chrono>
#include <cstring>

#include "../../benchmarks/limit.hpp"
#include "arguments.hpp"

namespace cli {

namespace {

using adamant::dtype;
using adamant::shard_dtypes;
using adamant::size_bytes;
using adamant::slice;
using move_function = void (*)(std::byte* const*, std::size_t, std::size_t, std::size_t);

// Elements of one iteration of the loops.
constexpr std::size_t granule = 64;

template <std::size_t Param, std::size_t Grad, std::size_t Moment, std::size_t WeightOut>
move_function select_stores(limit::stores stores)
{
    switch (stores) {
    case limit::stores::cached: return limit::move_bytes<Param, Grad, Moment, WeightOut, limit::stores::cached>;
    case limit::stores::weight_out_streamed:
        return limit::move_bytes<Param, Grad, Moment, WeightOut, limit::stores::weight_out_streamed>;
    case limit::stores::all_streamed: break;
    }
    return limit::move_bytes<Param, Grad, Moment, WeightOut, limit::stores::all_streamed>;
}

template <std::size_t Param, std::size_t Grad, std::size_t Moment>
move_function select_weight_out(std::size_t weight_out, limit::stores stores)
{
    return weight_out == 0 ? select_stores<Param, Grad, Moment, 0>(stores)
                           : select_stores<Param, Grad, Moment, 2>(stores);
}

template <std::size_t Grad, std::size_t Moment>
move_function select_split(limit::stores stores)
{
    if (stores == limit::stores::all_streamed)
        return limit::move_bytes<2, Grad, Moment, 2, limit::stores::all_streamed, true>;
    return limit::move_bytes<2, Grad, Moment, 2, limit::stores::cached, true>;
}

template <std::size_t Moment>
move_function select_moment(shard_dtypes const& types, limit::stores stores)
{
    bool const wide_grad = types[1] == dtype::float32;
    if (adamant::has_split_param(types))
        return wide_grad ? select_split<4, Moment>(stores) : select_split<2, Moment>(stores);
    std::size_t const out = size_bytes(types[4]);
    if (types[0] == dtype::float32)
        return wide_grad ? select_weight_out<4, 4, Moment>(out, stores) : select_weight_out<4, 2, Moment>(out, stores);
    return wide_grad ? select_weight_out<2, 4, Moment>(out, stores) : select_weight_out<2, 2, Moment>(out, stores);
}

move_function select_move(shard_dtypes const& types, limit::stores stores)
{
    switch (types[2]) {
    case dtype::float32: return select_moment<4>(types, stores);
    case dtype::quantized8: return select_moment<limit::in_groups>(types, stores);
    default: return select_moment<2>(types, stores);
    }
}

template <class Work>
double measure_seconds(adamant::executor const& cpu, std::size_t n, Work const& work)
{
    auto const begin = std::chrono::steady_clock::now();
    cpu.for_each_slice(n, work);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

} // namespace

std::vector<limit_loop> limit_loops(adamant::shard_dtypes const& types)
{
    if (size_bytes(types[2]) != size_bytes(types[3]))
        throw usage_error("the roof is measured for moments of one size, but the types are " + to_text(types));
    std::vector<limit_loop> all;
    auto const add = [&](limit::stores stores, char const* name) {
        for (std::size_t const bytes : {std::size_t{0}, std::size_t{1024}, std::size_t{2048}, std::size_t{4096}})
            all.push_back({std::string(name) + (bytes == 0 ? ", no prefetch" : ", prefetch " + std::to_string(bytes)),
                           name, bytes, select_move(types, stores)});
    };
    add(limit::stores::cached, "cached stores");
    if (limit::can_stream && types[4] != dtype::none && !adamant::has_split_param(types))
        add(limit::stores::weight_out_streamed, "weight_out streamed");
    if (limit::can_stream)
        add(limit::stores::all_streamed, "all stores streamed");
    return all;
}

double limit_seconds(limit_loop const& loop, adamant::executor const& cpu, adamant::trial_step& arrays)
{
    std::byte* const pointers[] = {arrays.array(0), arrays.array(1), arrays.array(2), arrays.array(3), arrays.array(4)};
    return measure_seconds(cpu, arrays.size() / granule * granule,
                           [&](slice part) { loop.move(pointers, part.begin, part.end, loop.prefetch_bytes); });
}

double read_bytes_per_element(adamant::shard_dtypes const& types)
{
    return state_bytes(types);
}

double read_seconds(adamant::executor const& cpu, adamant::trial_step& arrays)
{
    return measure_seconds(cpu, arrays.size() / granule * granule, [&](slice part) {
        for (adamant::shard_array::index const k : adamant::state_arrays) {
            if (!is_state(arrays.format().types, k))
                continue;
            size_bytes(arrays.format().types[k]) == 4
                ? limit::read_bytes<4>(arrays.array(k), part.begin, part.end, 2048)
                : limit::read_bytes<2>(arrays.array(k), part.begin, part.end, 2048);
        }
    });
}

double copy_seconds(adamant::executor const& cpu, adamant::trial_step& arrays, std::byte* target)
{
    std::size_t const elem_bytes = size_bytes(arrays.format().types[1]);
    return measure_seconds(cpu, arrays.size(), [&](slice part) {
        std::memcpy(target + part.begin * elem_bytes, arrays.array(1) + part.begin * elem_bytes,
                    part.size() * elem_bytes);
    });
}

} // namespace cli
