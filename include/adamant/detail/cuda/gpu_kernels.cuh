// SPDX-License-Identifier: Apache-2.0
// The passes over blocks as GPU kernels, with the bits of the reference implementation: what detail::cpu_backend does
// on the CPU. A thread block does one norm block of one piece; a launch does any number of blocks of any number of
// pieces.
//
// dtypes   of the common combinations known when compiled; of the others looked up, the same in all of a block
// memory   each array is read once and written once, 16 bytes of float a thread (8 of the 16-bit types, 4 of the 8-bit
//          one), and a thread asks for its next group before it works on this one
// sums     one after another as the reference implementation says, by a warp that does nothing else, from gradients
// that the others have
//          put into shared memory; so the chain of additions runs beside the step
#pragma once

#include <cstddef>
#include <cstdint>

#include <adamant/detail/cuda/gpu_codes.cuh>
#include <adamant/detail/cuda/gpu_launch.cuh>

ADAMANT_BEGIN_NAMESPACE
namespace detail::cuda {

// Gradients as the step sees them, but for its rules: with the accumulator where that counts. Flushed.
template <int Grad>
[[nodiscard]] __device__ inline float_group load_gradients(piece const& p, bool summed, std::size_t at, unsigned count)
{
    dtype const type = type_of<Grad>(p, shard_array::grad);
    float_group g = widen_group(load_group(p.arrays[shard_array::grad], at, count, type), type);
    float_group sum = {{0, 0, 0, 0}};
    if (summed) {
        dtype const sum_type = p.types[shard_array::accumulator];
        sum = widen_group(load_group(p.arrays[shard_array::accumulator], at, count, sum_type), sum_type);
    }
    ADAMANT_GPU_UNROLL(4)
    for (unsigned k = 0; k < group_elems; ++k)
        g.value[k] = summed ? added(g.value[k], sum.value[k]) : flush(g.value[k]);
    return g;
}

// Two of reference::block_squares()'s partial sums, over flushed gradients: `which` and the one half of them further
// on.
__device__ inline void add_lanes(float const* grads, unsigned elems, unsigned which, double (&partial)[norm_lanes])
{
    float sums[2] = {norm_lane_start, norm_lane_start};
    ADAMANT_GPU_UNROLL(8)
    for (unsigned i = which; i < elems; i += norm_lanes) {
        sums[0] = __fmaf_rn(grads[i], grads[i], sums[0]);
        if (unsigned const other = i + norm_lanes / 2; other < elems)
            sums[1] = __fmaf_rn(grads[other], grads[other], sums[1]);
    }
    for (unsigned k = 0; k < 2; ++k)
        partial[which + k * (norm_lanes / 2)] =
            __dadd_rn(static_cast<double>(sums[k]), -static_cast<double>(norm_lane_start));
}
// The same in double, for reference::block_squares_in_double(). What is not finite adds +0: no sum changes.
__device__ inline void add_lanes_in_double(float const* grads, unsigned elems, unsigned which,
                                           double (&partial)[norm_lanes], unsigned& nonfinite)
{
    nonfinite = 0;
    for (unsigned lane = which; lane < norm_lanes; lane += norm_lanes / 2) {
        double sum = 0;
        for (unsigned i = lane; i < elems; i += norm_lanes) {
            bool const finite = is_finite(grads[i]);
            double const wide = static_cast<double>(finite ? grads[i] : 0.0f);
            sum = __fma_rn(wide, wide, sum);
            nonfinite += finite ? 0u : 1u;
        }
        partial[lane] = sum;
    }
}
[[nodiscard]] __device__ inline double add_partial_sums(double (&partial)[norm_lanes])
{
    for (unsigned width = norm_lanes / 2; width > 0; width /= 2)
        for (unsigned j = 0; j < width; ++j)
            partial[j] = __dadd_rn(partial[j], partial[j + width]);
    return partial[0];
}

struct raw_state {
    raw_group param, exp_avg, exp_avg_sq;
    raw_group weight; // of a split param
};
template <int Param>
[[nodiscard]] __device__ inline bool has_split_param(piece const& p)
{
    return type_of<Param>(p, shard_array::param) == dtype::split_float32;
}
template <int Known>
[[nodiscard]] __device__ inline raw_group load_moments(piece const& p, void const* array, unsigned which,
                                                       std::size_t at, unsigned count)
{
    if constexpr (is_coded<Known>)
        return load_codes(array, at);
    else
        return load_group(array, at, count, type_of<Known>(p, which));
}
template <int Known>
__device__ inline void store_moments(piece const& p, void* array, unsigned which, std::size_t at, unsigned count,
                                     raw_group const& raw)
{
    if constexpr (is_coded<Known>)
        store_codes(array, at, raw);
    else
        store_group(array, at, count, type_of<Known>(p, which), raw);
}
template <int Param, int ExpAvg, int ExpAvgSq>
[[nodiscard]] __device__ inline raw_state load_state(piece const& p, bool from_record, std::size_t at, unsigned count)
{
    namespace arrays = shard_array;
    raw_state s = {
        load_group(from_record ? p.records[0] : p.arrays[arrays::param], at, count, type_of<Param>(p, arrays::param)),
        load_moments<ExpAvg>(p, from_record ? p.records[1] : p.arrays[arrays::exp_avg], arrays::exp_avg, at, count),
        load_moments<ExpAvgSq>(p, from_record ? p.records[2] : p.arrays[arrays::exp_avg_sq], arrays::exp_avg_sq, at,
                               count),
        {}};
    if (has_split_param<Param>(p))
        s.weight = load_group(from_record ? p.records[3] : p.arrays[arrays::weight_out], at, count, dtype::bfloat16);
    return s;
}
template <int Param, int ExpAvg, int ExpAvgSq>
__device__ inline void store_state(piece const& p, bool to_record, std::size_t at, unsigned count, raw_state const& s)
{
    namespace arrays = shard_array;
    store_group(to_record ? p.records[0] : p.arrays[arrays::param], at, count, type_of<Param>(p, arrays::param),
                s.param);
    store_moments<ExpAvg>(p, to_record ? p.records[1] : p.arrays[arrays::exp_avg], arrays::exp_avg, at, count,
                          s.exp_avg);
    store_moments<ExpAvgSq>(p, to_record ? p.records[2] : p.arrays[arrays::exp_avg_sq], arrays::exp_avg_sq, at, count,
                            s.exp_avg_sq);
    if (has_split_param<Param>(p))
        store_group(to_record ? p.records[3] : p.arrays[arrays::weight_out], at, count, dtype::bfloat16, s.weight);
}

// A norm block's random numbers, of two lines at most.
struct block_randoms {
    rounding_lines lines[2];
    std::size_t second_begin; // the piece's element with which the second begins
};
// What rounds to bfloat16 stochastically.
__device__ inline void round_stochastically(raw_group& raw, float_group const& of, block_randoms const& randoms,
                                            rounding_line rounding_lines::*array, std::size_t at)
{
    raw = {{0, 0, 0, 0}};
    for (unsigned k = 0; k < group_elems; ++k) {
        rounding_line const& line = randoms.lines[at + k >= randoms.second_begin].*array;
        raw.word[k / 2] |= stored_stochastically(of.value[k], random_half(line, at + k)) << (k % 2 * 16);
    }
}

// What moments become in memory.
template <int ExpAvg, int ExpAvgSq>
__device__ inline void set_moments(raw_state& now, piece const& p, step_rounding const& rounding,
                                   block_randoms const& randoms, float_group& exp_avg, float_group& exp_avg_sq,
                                   std::size_t at, unsigned count)
{
    if constexpr (is_coded<ExpAvg>) {
        ADAMANT_GPU_UNROLL(4)
        for (unsigned k = 0; k < group_elems; ++k)
            if (k >= count) // after the piece's end
                exp_avg.value[k] = exp_avg_sq.value[k] = 0;
        std::size_t const first = at / quantized_group_elems * quantized_group_elems; // whose line is the group's
        moment_codes const codes = encoded_moments(exp_avg, exp_avg_sq, rounding.exp_avg_sq,
                                                   randoms.lines[first >= randoms.second_begin].exp_avg_sq, at);
        now.exp_avg = codes.exp_avg;
        now.exp_avg_sq = codes.exp_avg_sq;
    } else {
        dtype const exp_avg_sq_type = type_of<ExpAvgSq>(p, shard_array::exp_avg_sq);
        now.exp_avg = stored_group(exp_avg, type_of<ExpAvg>(p, shard_array::exp_avg));
        now.exp_avg_sq = stored_group(exp_avg_sq, exp_avg_sq_type);
        if (rounding.exp_avg_sq && exp_avg_sq_type == dtype::bfloat16)
            round_stochastically(now.exp_avg_sq, exp_avg_sq, randoms, &rounding_lines::exp_avg_sq, at);
    }
}

// One step of a group.
template <int Param, int ExpAvg, int ExpAvgSq, int WeightOut>
__device__ inline void step_group(piece const& p, group_rules const& rules, block_randoms const& randoms,
                                  float_group const& grads, raw_state const& old, std::size_t at, unsigned count)
{
    namespace arrays = shard_array;
    dtype const param_type = type_of<Param>(p, arrays::param);
    bool const is_split = has_split_param<Param>(p);
    float_group param = is_split ? joined_group(old.weight, old.param) : widen_group(old.param, param_type);
    float_group exp_avg;
    float_group exp_avg_sq;
    if constexpr (is_coded<ExpAvg>) {
        exp_avg = decoded_exp_avg_group(old.exp_avg);
        exp_avg_sq = decoded_exp_avg_sq_group(old.exp_avg_sq);
    } else {
        exp_avg = widen_group(old.exp_avg, type_of<ExpAvg>(p, arrays::exp_avg));
        exp_avg_sq = widen_group(old.exp_avg_sq, type_of<ExpAvgSq>(p, arrays::exp_avg_sq));
    }
    ADAMANT_GPU_UNROLL(4)
    for (unsigned k = 0; k < group_elems; ++k) {
        float g = grads.value[k];
        if (rules.clamps)
            g = clamped(g, rules.zero_nonfinite, rules.scale, rules.bound);
        reference::element const next = update({param.value[k], exp_avg.value[k], exp_avg_sq.value[k]}, g, rules.c);
        param.value[k] = next.param;
        exp_avg.value[k] = next.exp_avg;
        exp_avg_sq.value[k] = next.exp_avg_sq;
    }
    raw_state now{stored_group(param, param_type), {}, {}, {}};
    set_moments<ExpAvg, ExpAvgSq>(now, p, rules.c.rounding, randoms, exp_avg, exp_avg_sq, at, count);
    if (is_split)
        split_group(param, now.weight, now.param);
    if (rules.c.rounding.param && param_type == dtype::bfloat16)
        round_stochastically(now.param, param, randoms, &rounding_lines::param, at);
    store_state<Param, ExpAvg, ExpAvgSq>(p, false, at, count, now);
    if (dtype const out = type_of<WeightOut>(p, arrays::weight_out); out != dtype::none && !is_split)
        store_group(p.arrays[arrays::weight_out], at, count, out, stored_group(param, out));
}

// weight_out of params as they are.
__device__ inline void round_group(piece const& p, raw_group const& raw, dtype param_type, std::size_t at,
                                   unsigned count)
{
    float_group param = widen_group(raw, param_type);
    ADAMANT_GPU_UNROLL(4)
    for (unsigned k = 0; k < group_elems; ++k)
        param.value[k] = canonical(flush(param.value[k]));
    dtype const out = p.types[shard_array::weight_out];
    store_group(p.arrays[shard_array::weight_out], at, count, out, stored_group(param, out));
}

// How many thread blocks of a kernel a multiprocessor is to have room for: three keep enough loads under way to fill
// the memory's bus, and leave 72 registers a thread. Those are too few where types are looked up, but for moments of
// 8 bits, which take less room themselves.
template <int Param, int ExpAvg>
inline constexpr int thread_blocks = Param == any_dtype && !is_coded<ExpAvg> ? 2 : 3;

// The passes that look at gradients. Types that are not any_dtype are those of all pieces of the launch. With sums,
// step_threads + sum_threads threads; else step_threads. Every thread comes to every barrier.
template <int Param, int Grad, int ExpAvg, int ExpAvgSq, int WeightOut>
__global__ void __launch_bounds__(step_threads + sum_threads, thread_blocks<Param, ExpAvg>)
    pass_kernel(__grid_constant__ launch const of)
{
    alignas(16) __shared__ float staged[norm_block_elems];
    __shared__ double partial_sums[norm_lanes];
    __shared__ unsigned partial_counts[sum_threads];
    __shared__ block_randoms randoms;

    unsigned const thread = threadIdx.x;
    block const b = find_block(of, blockIdx.x);
    piece const& in_memory = of.part.pieces[b.piece];
    piece const p = in_memory; // a copy: what is stored could be it, for all that a compiler knows
    bool const works = thread < step_threads;
    bool const has_record = (of.tasks & reads_state) != 0 && of.part.recorded[b.part_block] == of.epoch;
    if ((of.tasks & unrecorded) != 0 && has_record)
        return; // all of them
    bool const from_record = (of.tasks & back) != 0 && has_record;
    bool const steps_here = (of.tasks & steps) != 0 && works;
    auto const at = [&](unsigned group) { return b.begin + group * group_elems; };
    unsigned const held = held_elems<ExpAvg>(b.elems);

    raw_state next = {};
    if (steps_here && group_count(held, thread) != 0)
        next = load_state<Param, ExpAvg, ExpAvgSq>(p, from_record, at(thread), group_count(b.elems, thread));
    if ((of.tasks & sums) != 0 && works) {
        ADAMANT_GPU_UNROLL(4)
        for (unsigned k = 0; k < groups_each; ++k) {
            unsigned const group = k * step_threads + thread;
            if (group_count(held, group) != 0) {
                float_group const g = load_gradients<Grad>(p, b.summed, at(group), group_count(b.elems, group));
                *reinterpret_cast<float4*>(staged + group * group_elems) =
                    make_float4(g.value[0], g.value[1], g.value[2], g.value[3]);
            }
        }
    }
    if (constexpr bool rounds_stochastically = Param == any_dtype || is_coded<ExpAvg>;
        rounds_stochastically && (of.tasks & steps) != 0 && thread == 0) {
        std::uint64_t const key = of.group[p.group - of.first_group].c.rounding.key;
        randoms.second_begin = rounding_line_end(p.place, b.begin);
        randoms.lines[0] = rounding_lines_at(key, p.place, b.begin);
        randoms.lines[1] = rounding_lines_at(key, p.place, randoms.second_begin);
    }
    __syncthreads(); // all have seen whether there is a record, and gradients and random numbers are there

    if (steps_here) {
        group_rules const& rules = of.group[p.group - of.first_group];
        bool const makes_record = (of.tasks & keeps) != 0 && !from_record;
        ADAMANT_GPU_UNROLL(1)
        for (unsigned k = 0; k < groups_each; ++k) {
            unsigned const group = k * step_threads + thread;
            unsigned const count = group_count(b.elems, group);
            if (group_count(held, group) == 0)
                break;
            raw_state const old = next;
            if (k + 1 < groups_each && group_count(held, group + step_threads) != 0)
                next = load_state<Param, ExpAvg, ExpAvgSq>(p, from_record, at(group + step_threads),
                                                           group_count(b.elems, group + step_threads));
            float_group g;
            if ((of.tasks & sums) != 0) {
                float4 const all = *reinterpret_cast<float4 const*>(staged + group * group_elems);
                g = {{all.x, all.y, all.z, all.w}};
            } else {
                g = load_gradients<Grad>(p, b.summed, at(group), count);
            }
            if (makes_record) // where to, is asked for each time: that leaves registers for the rest
                store_state<Param, ExpAvg, ExpAvgSq>(in_memory, true, at(group), count, old);
            step_group<Param, ExpAvg, ExpAvgSq, WeightOut>(p, rules, randoms, g, old, at(group), count);
        }
        if (thread == 0 && (of.tasks & (keeps | back)) != 0)
            of.part.recorded[b.part_block] = (of.tasks & keeps) != 0 ? of.epoch : 0;
    } else if (!works) {
        add_lanes(staged, b.elems, thread - step_threads, partial_sums);
    }
    if ((of.tasks & sums) == 0)
        return;
    __syncthreads();
    grad_squares& total = of.part.squares[b.part_block];
    if (thread == step_threads)
        total = {add_partial_sums(partial_sums), 0};
    __syncthreads();
    if (is_safe(partial_sums[0]))
        return;      // all of them
    __syncthreads(); // all have seen that
    if (!works)
        add_lanes_in_double(staged, b.elems, thread - step_threads, partial_sums,
                            partial_counts[thread - step_threads]);
    __syncthreads();
    if (thread == step_threads) {
        total.sum = add_partial_sums(partial_sums);
        for (unsigned const count : partial_counts)
            total.nonfinite += count;
    }
}

// Goes back, where there is a record, and uses it up. Moments: coded, or any others.
template <int Moments>
__global__ void __launch_bounds__(step_threads) rollback_kernel(__grid_constant__ launch const of)
{
    block const b = find_block(of, blockIdx.x);
    piece const p = of.part.pieces[b.piece]; // a copy: what is stored could be it, for all that a compiler knows
    bool const has_record = of.part.recorded[b.part_block] == of.epoch;
    __syncthreads(); // all have seen that
    if (!has_record)
        return;
    for (unsigned group = threadIdx.x; group * group_elems < held_elems<Moments>(b.elems); group += step_threads) {
        unsigned const count = group_count(b.elems, group);
        std::size_t const at = b.begin + group * group_elems;
        raw_state const old = load_state<any_dtype, Moments, Moments>(p, true, at, count);
        store_state<any_dtype, Moments, Moments>(p, false, at, count, old);
        if (p.types[shard_array::weight_out] != dtype::none && !has_split_param<any_dtype>(p))
            round_group(p, old.param, p.types[shard_array::param], at, count);
    }
    if (threadIdx.x == 0)
        of.part.recorded[b.part_block] = 0;
}

// accumulator = grad, or += grad where blocks are summed.
template <int = 0>
__global__ void __launch_bounds__(step_threads) accumulate_kernel(__grid_constant__ launch const of)
{
    block const b = find_block(of, blockIdx.x);
    piece const p = of.part.pieces[b.piece]; // a copy: what is stored could be it, for all that a compiler knows
    dtype const type = p.types[shard_array::accumulator];
    for (unsigned group = threadIdx.x; group * group_elems < b.elems; group += step_threads) {
        unsigned const count = group_count(b.elems, group);
        std::size_t const at = b.begin + group * group_elems;
        float_group sum = load_gradients<any_dtype>(p, b.summed, at, count);
        ADAMANT_GPU_UNROLL(4)
        for (unsigned k = 0; k < group_elems; ++k)
            sum.value[k] = canonical(sum.value[k]);
        store_group(p.arrays[shard_array::accumulator], at, count, type, stored_group(sum, type));
    }
}

// weight_out of param, of pieces that have one.
template <int = 0>
__global__ void __launch_bounds__(step_threads) round_kernel(__grid_constant__ launch const of)
{
    block const b = find_block(of, blockIdx.x);
    piece const p = of.part.pieces[b.piece]; // a copy: what is stored could be it, for all that a compiler knows
    dtype const type = p.types[shard_array::param];
    for (unsigned group = threadIdx.x; group * group_elems < b.elems; group += step_threads) {
        unsigned const count = group_count(b.elems, group);
        std::size_t const at = b.begin + group * group_elems;
        round_group(p, load_group(p.arrays[shard_array::param], at, count, type), type, at, count);
    }
}

} // namespace detail::cuda
ADAMANT_END_NAMESPACE
