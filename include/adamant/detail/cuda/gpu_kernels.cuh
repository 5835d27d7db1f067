// SPDX-License-Identifier: Apache-2.0
// The passes over blocks as GPU kernels, with the bits of the reference implementation, as detail::cpu_backend on the
// CPU. A thread block processes one norm block of one piece. A launch processes any number of blocks of any number of
// pieces.
//
// dtypes   Common combinations are template arguments. Other types are looked up; they are the same in all of a block.
// memory   Each array is read once and written once, 16 bytes of float per thread (8 of the 16-bit types, 4 of the
// 8-bit
//          type). A thread loads its next group before it computes the current one.
// sums     A separate warp adds squares in the order of the reference implementation. The other warps put gradients
// into
//          shared memory, so the chain of additions overlaps the step.
#pragma once

#include <cstddef>
#include <cstdint>

#include <adamant/detail/cuda/gpu_codes.cuh>
#include <adamant/detail/cuda/gpu_launch.cuh>

ADAMANT_BEGIN_NAMESPACE
namespace detail::cuda {

// Loads flushed gradients, plus the accumulator if `summed`, before the step's rules.
template <int Grad>
[[nodiscard]] __device__ inline float_group load_gradients(piece const& p, bool summed, std::size_t begin,
                                                           unsigned count)
{
    dtype const type = type_of<Grad>(p, shard_array::grad);
    float_group g = widen_group(load_group(p.arrays[shard_array::grad], begin, count, type), type);
    float_group sum = {{0, 0, 0, 0}};
    if (summed) {
        dtype const sum_type = p.types[shard_array::accumulator];
        sum = widen_group(load_group(p.arrays[shard_array::accumulator], begin, count, sum_type), sum_type);
    }
    ADAMANT_GPU_UNROLL(4)
    for (unsigned k = 0; k < group_elems; ++k)
        g.value[k] = summed ? added(g.value[k], sum.value[k]) : flush(g.value[k]);
    return g;
}

// Computes two of the partial sums of reference::block_squares() over flushed gradients: `lane` and
// lane + norm_lanes / 2.
__device__ inline void add_lanes(float const* grads, unsigned elems, unsigned lane, double (&partial)[norm_lanes])
{
    float sums[2] = {norm_lane_start, norm_lane_start};
    ADAMANT_GPU_UNROLL(8)
    for (unsigned i = lane; i < elems; i += norm_lanes) {
        sums[0] = __fmaf_rn(grads[i], grads[i], sums[0]);
        if (unsigned const other = i + norm_lanes / 2; other < elems)
            sums[1] = __fmaf_rn(grads[other], grads[other], sums[1]);
    }
    for (unsigned k = 0; k < 2; ++k)
        partial[lane + k * (norm_lanes / 2)] =
            __dadd_rn(static_cast<double>(sums[k]), -static_cast<double>(norm_lane_start));
}
// The same in double, for reference::block_squares_in_double(). Non-finite values add +0, which changes no sum.
__device__ inline void add_lanes_in_double(float const* grads, unsigned elems, unsigned first_lane,
                                           double (&partial)[norm_lanes], unsigned& nonfinite)
{
    nonfinite = 0;
    for (unsigned lane = first_lane; lane < norm_lanes; lane += norm_lanes / 2) {
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
[[nodiscard]] __device__ inline raw_group load_moments(piece const& p, void const* array, unsigned array_index,
                                                       std::size_t begin, unsigned count)
{
    if constexpr (is_coded<Known>)
        return load_codes(array, begin);
    else
        return load_group(array, begin, count, type_of<Known>(p, array_index));
}
template <int Known>
__device__ inline void store_moments(piece const& p, void* array, unsigned array_index, std::size_t begin,
                                     unsigned count, raw_group const& raw)
{
    if constexpr (is_coded<Known>)
        store_codes(array, begin, raw);
    else
        store_group(array, begin, count, type_of<Known>(p, array_index), raw);
}
template <int Param, int ExpAvg, int ExpAvgSq>
[[nodiscard]] __device__ inline raw_state load_state(piece const& p, bool from_record, std::size_t begin,
                                                     unsigned count)
{
    namespace arrays = shard_array;
    raw_state s = {
        load_group(from_record ? p.records[0] : p.arrays[arrays::param], begin, count,
                   type_of<Param>(p, arrays::param)),
        load_moments<ExpAvg>(p, from_record ? p.records[1] : p.arrays[arrays::exp_avg], arrays::exp_avg, begin, count),
        load_moments<ExpAvgSq>(p, from_record ? p.records[2] : p.arrays[arrays::exp_avg_sq], arrays::exp_avg_sq, begin,
                               count),
        {}};
    if (has_split_param<Param>(p))
        s.weight = load_group(from_record ? p.records[3] : p.arrays[arrays::weight_out], begin, count, dtype::bfloat16);
    return s;
}
template <int Param, int ExpAvg, int ExpAvgSq>
__device__ inline void store_state(piece const& p, bool to_record, std::size_t begin, unsigned count,
                                   raw_state const& s)
{
    namespace arrays = shard_array;
    store_group(to_record ? p.records[0] : p.arrays[arrays::param], begin, count, type_of<Param>(p, arrays::param),
                s.param);
    store_moments<ExpAvg>(p, to_record ? p.records[1] : p.arrays[arrays::exp_avg], arrays::exp_avg, begin, count,
                          s.exp_avg);
    store_moments<ExpAvgSq>(p, to_record ? p.records[2] : p.arrays[arrays::exp_avg_sq], arrays::exp_avg_sq, begin,
                            count, s.exp_avg_sq);
    if (has_split_param<Param>(p))
        store_group(to_record ? p.records[3] : p.arrays[arrays::weight_out], begin, count, dtype::bfloat16, s.weight);
}

// A norm block's random numbers, which are of at most two lines.
struct block_randoms {
    rounding_lines lines[2];
    std::size_t second_begin; // first element of the second line in the piece
};
// Rounds stochastically to bfloat16.
__device__ inline void round_stochastically(raw_group& raw, float_group const& values, block_randoms const& randoms,
                                            rounding_line rounding_lines::*array, std::size_t begin)
{
    raw = {{0, 0, 0, 0}};
    for (unsigned k = 0; k < group_elems; ++k) {
        rounding_line const& line = randoms.lines[begin + k >= randoms.second_begin].*array;
        raw.word[k / 2] |= stored_stochastically(values.value[k], random_half(line, begin + k)) << (k % 2 * 16);
    }
}

// Converts moments to their types in memory.
template <int ExpAvg, int ExpAvgSq>
__device__ inline void set_moments(raw_state& result, piece const& p, step_rounding const& rounding,
                                   block_randoms const& randoms, float_group& exp_avg, float_group& exp_avg_sq,
                                   std::size_t begin, unsigned count)
{
    if constexpr (is_coded<ExpAvg>) {
        ADAMANT_GPU_UNROLL(4)
        for (unsigned k = 0; k < group_elems; ++k)
            if (k >= count) // beyond the piece's end
                exp_avg.value[k] = exp_avg_sq.value[k] = 0;
        std::size_t const first = begin / quantized_group_elems * quantized_group_elems; // its line is the group's
        moment_codes const codes = encoded_moments(exp_avg, exp_avg_sq, rounding.exp_avg_sq,
                                                   randoms.lines[first >= randoms.second_begin].exp_avg_sq, begin);
        result.exp_avg = codes.exp_avg;
        result.exp_avg_sq = codes.exp_avg_sq;
    } else {
        dtype const exp_avg_sq_type = type_of<ExpAvgSq>(p, shard_array::exp_avg_sq);
        result.exp_avg = stored_group(exp_avg, type_of<ExpAvg>(p, shard_array::exp_avg));
        result.exp_avg_sq = stored_group(exp_avg_sq, exp_avg_sq_type);
        if (rounding.exp_avg_sq && exp_avg_sq_type == dtype::bfloat16)
            round_stochastically(result.exp_avg_sq, exp_avg_sq, randoms, &rounding_lines::exp_avg_sq, begin);
    }
}

// The bits of the elements of a group in which two arrays differ. wide: they are of 32 bits.
[[nodiscard]] __device__ inline unsigned differing_elements(raw_group const& a, raw_group const& b, bool wide)
{
    unsigned differing = 0;
    ADAMANT_GPU_UNROLL(4)
    for (unsigned k = 0; k < group_elems; ++k) {
        std::uint32_t const x =
            wide ? a.word[k] ^ b.word[k] : (a.word[k / 2] ^ b.word[k / 2]) >> (k % 2 * 16) & 0xffffu;
        differing |= (x != 0 ? 1u : 0u) << k;
    }
    return differing;
}
// Writes the bits of the elements whose published weight a step changes; see device_piece::changed. weight: that of the
// step, if there is a 16-bit weight_out.
__device__ inline void store_changes(std::uint8_t* changed, raw_state const& old, raw_state const& result,
                                     raw_group const& weight, dtype param_type, dtype out, std::size_t begin,
                                     unsigned count)
{
    unsigned differing;
    if (param_type == dtype::split_float32) {
        differing = differing_elements(old.weight, result.weight, false);
    } else if (param_type == dtype::float32 && out != dtype::none) {
        float_group before = widen_group(old.param, param_type);
        ADAMANT_GPU_UNROLL(4)
        for (unsigned k = 0; k < group_elems; ++k)
            before.value[k] = canonical(flush(before.value[k]));
        differing = differing_elements(stored_group(before, out), weight, is_wide(out));
    } else {
        differing = differing_elements(old.param, result.param, is_wide(param_type));
    }
    ADAMANT_GPU_IS_GLOBAL(changed);
    if (count != 0)
        changed[begin / group_elems] = static_cast<std::uint8_t>(differing & ((1u << count) - 1));
}

// Takes one step of a group. in_memory: the original of p.
template <int Param, int ExpAvg, int ExpAvgSq, int WeightOut>
__device__ inline void step_group(piece const& p, piece const& in_memory, group_rules const& rules,
                                  block_randoms const& randoms, float_group const& grads, raw_state const& old,
                                  std::size_t begin, unsigned count)
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
    raw_state result{stored_group(param, param_type), {}, {}, {}};
    set_moments<ExpAvg, ExpAvgSq>(result, p, rules.c.rounding, randoms, exp_avg, exp_avg_sq, begin, count);
    if (is_split)
        split_group(param, result.weight, result.param);
    if (rules.c.rounding.param && param_type == dtype::bfloat16)
        round_stochastically(result.param, param, randoms, &rounding_lines::param, begin);
    store_state<Param, ExpAvg, ExpAvgSq>(p, false, begin, count, result);
    dtype const out = type_of<WeightOut>(p, arrays::weight_out);
    raw_group weight = {};
    if (out != dtype::none && !is_split) {
        weight = stored_group(param, out);
        store_group(p.arrays[arrays::weight_out], begin, count, out, weight);
    }
    if (std::uint8_t* const changed = in_memory.changed; changed != nullptr) // reloads it, which saves registers
        store_changes(changed, old, result, weight, param_type, out, begin, count);
}

// Rounds params to weight_out.
__device__ inline void round_group(piece const& p, raw_group const& raw, dtype param_type, std::size_t begin,
                                   unsigned count)
{
    float_group param = widen_group(raw, param_type);
    ADAMANT_GPU_UNROLL(4)
    for (unsigned k = 0; k < group_elems; ++k)
        param.value[k] = canonical(flush(param.value[k]));
    dtype const out = p.types[shard_array::weight_out];
    store_group(p.arrays[shard_array::weight_out], begin, count, out, stored_group(param, out));
}

// Minimum of thread blocks per multiprocessor. Three keep enough loads in flight to saturate the memory bus and leave
// 72 registers per thread. That is too few if types are looked up, except for 8-bit moments, which need fewer
// registers.
template <int Param, int ExpAvg>
inline constexpr int thread_blocks = Param == any_dtype && !is_coded<ExpAvg> ? 2 : 3;

// The passes that read gradients. Types other than any_dtype are those of all pieces of the launch. With sums, a block
// has step_threads + sum_threads threads, otherwise step_threads. Every thread reaches every barrier.
template <int Param, int Grad, int ExpAvg, int ExpAvgSq, int WeightOut>
__global__ void __launch_bounds__(step_threads + sum_threads, (thread_blocks<Param, ExpAvg>))
    pass_kernel(__grid_constant__ launch const args)
{
    alignas(16) __shared__ float staged[norm_block_elems];
    __shared__ double partial_sums[norm_lanes];
    __shared__ unsigned partial_counts[sum_threads];
    __shared__ block_randoms randoms;

    unsigned const thread = threadIdx.x;
    block const b = find_block(args, blockIdx.x);
    piece const& in_memory = args.part.pieces[b.piece];
    piece const p = in_memory; // a copy, because the compiler must assume that stores may change the original
    bool const is_step_thread = thread < step_threads;
    bool const has_record = (args.tasks & reads_state) != 0 && args.part.recorded[b.part_block] == args.epoch;
    if ((args.tasks & unrecorded) != 0 && has_record)
        return; // all threads
    bool const from_record = (args.tasks & from_records) != 0 && has_record;
    bool const takes_step = (args.tasks & steps) != 0 && is_step_thread;
    auto const begin_of = [&](unsigned group) { return b.begin + group * group_elems; };
    unsigned const stored_elems = elems_in_memory<ExpAvg>(b.elems);

    raw_state next = {};
    if (takes_step && group_count(stored_elems, thread) != 0)
        next = load_state<Param, ExpAvg, ExpAvgSq>(p, from_record, begin_of(thread), group_count(b.elems, thread));
    if ((args.tasks & sums) != 0 && is_step_thread) {
        ADAMANT_GPU_UNROLL(4)
        for (unsigned k = 0; k < groups_each; ++k) {
            unsigned const group = k * step_threads + thread;
            if (group_count(stored_elems, group) != 0) {
                float_group const g = load_gradients<Grad>(p, b.summed, begin_of(group), group_count(b.elems, group));
                *reinterpret_cast<float4*>(staged + group * group_elems) =
                    make_float4(g.value[0], g.value[1], g.value[2], g.value[3]);
            }
        }
    }
    if (constexpr bool rounds_stochastically = Param == any_dtype || is_coded<ExpAvg>;
        rounds_stochastically && (args.tasks & steps) != 0 && thread == 0) {
        std::uint64_t const key = args.group[p.group - args.first_group].c.rounding.key;
        randoms.second_begin = rounding_line_end(p.position, b.begin);
        randoms.lines[0] = rounding_lines_at(key, p.position, b.begin);
        randoms.lines[1] = rounding_lines_at(key, p.position, randoms.second_begin);
    }
    __syncthreads(); // all threads have read `recorded`, and gradients and random numbers are in shared memory

    if (takes_step) {
        group_rules const& rules = args.group[p.group - args.first_group];
        bool const makes_record = (args.tasks & keeps_records) != 0 && !from_record;
        ADAMANT_GPU_UNROLL(1)
        for (unsigned k = 0; k < groups_each; ++k) {
            unsigned const group = k * step_threads + thread;
            unsigned const count = group_count(b.elems, group);
            if (group_count(stored_elems, group) == 0)
                break;
            raw_state const old = next;
            if (k + 1 < groups_each && group_count(stored_elems, group + step_threads) != 0)
                next = load_state<Param, ExpAvg, ExpAvgSq>(p, from_record, begin_of(group + step_threads),
                                                           group_count(b.elems, group + step_threads));
            float_group g;
            if ((args.tasks & sums) != 0) {
                float4 const all = *reinterpret_cast<float4 const*>(staged + group * group_elems);
                g = {{all.x, all.y, all.z, all.w}};
            } else {
                g = load_gradients<Grad>(p, b.summed, begin_of(group), count);
            }
            if (makes_record) // reloads the addresses, which saves registers
                store_state<Param, ExpAvg, ExpAvgSq>(in_memory, true, begin_of(group), count, old);
            step_group<Param, ExpAvg, ExpAvgSq, WeightOut>(p, in_memory, rules, randoms, g, old, begin_of(group),
                                                           count);
        }
        if (thread == 0 && (args.tasks & (keeps_records | from_records)) != 0)
            args.part.recorded[b.part_block] = (args.tasks & keeps_records) != 0 ? args.epoch : 0;
    } else if (!is_step_thread) {
        add_lanes(staged, b.elems, thread - step_threads, partial_sums);
    }
    if ((args.tasks & sums) == 0)
        return;
    __syncthreads();
    grad_squares& total = args.part.squares[b.part_block];
    if (thread == step_threads)
        total = {add_partial_sums(partial_sums), 0};
    __syncthreads();
    if (is_safe(partial_sums[0]))
        return;      // all threads
    __syncthreads(); // all threads have read partial_sums[0]
    if (!is_step_thread)
        add_lanes_in_double(staged, b.elems, thread - step_threads, partial_sums,
                            partial_counts[thread - step_threads]);
    __syncthreads();
    if (thread == step_threads) {
        total.sum = add_partial_sums(partial_sums);
        for (unsigned const count : partial_counts)
            total.nonfinite += count;
    }
}

// Rolls blocks with a record back and invalidates the record. Moments: 8-bit moments, or any_dtype for others.
template <int Moments>
__global__ void __launch_bounds__(step_threads) rollback_kernel(__grid_constant__ launch const args)
{
    block const b = find_block(args, blockIdx.x);
    piece const p =
        args.part.pieces[b.piece]; // a copy, because the compiler must assume that stores may change the original
    bool const has_record = args.part.recorded[b.part_block] == args.epoch;
    __syncthreads(); // all threads have read `recorded`
    if (!has_record)
        return;
    for (unsigned group = threadIdx.x; group * group_elems < elems_in_memory<Moments>(b.elems); group += step_threads) {
        unsigned const count = group_count(b.elems, group);
        std::size_t const begin = b.begin + group * group_elems;
        raw_state const old = load_state<any_dtype, Moments, Moments>(p, true, begin, count);
        store_state<any_dtype, Moments, Moments>(p, false, begin, count, old);
        if (p.types[shard_array::weight_out] != dtype::none && !has_split_param<any_dtype>(p))
            round_group(p, old.param, p.types[shard_array::param], begin, count);
    }
    if (threadIdx.x == 0)
        args.part.recorded[b.part_block] = 0;
}

// accumulator = grad, or accumulator += grad for summed blocks.
template <int = 0>
__global__ void __launch_bounds__(step_threads) accumulate_kernel(__grid_constant__ launch const args)
{
    block const b = find_block(args, blockIdx.x);
    piece const p =
        args.part.pieces[b.piece]; // a copy, because the compiler must assume that stores may change the original
    dtype const type = p.types[shard_array::accumulator];
    for (unsigned group = threadIdx.x; group * group_elems < b.elems; group += step_threads) {
        unsigned const count = group_count(b.elems, group);
        std::size_t const begin = b.begin + group * group_elems;
        float_group sum = load_gradients<any_dtype>(p, b.summed, begin, count);
        ADAMANT_GPU_UNROLL(4)
        for (unsigned k = 0; k < group_elems; ++k)
            sum.value[k] = canonical(sum.value[k]);
        store_group(p.arrays[shard_array::accumulator], begin, count, type, stored_group(sum, type));
    }
}

// Rounds param to weight_out.
template <int = 0>
__global__ void __launch_bounds__(step_threads) round_kernel(__grid_constant__ launch const args)
{
    block const b = find_block(args, blockIdx.x);
    piece const p =
        args.part.pieces[b.piece]; // a copy, because the compiler must assume that stores may change the original
    dtype const type = p.types[shard_array::param];
    for (unsigned group = threadIdx.x; group * group_elems < b.elems; group += step_threads) {
        unsigned const count = group_count(b.elems, group);
        std::size_t const begin = b.begin + group * group_elems;
        round_group(p, load_group(p.arrays[shard_array::param], begin, count, type), type, begin, count);
    }
}

} // namespace detail::cuda
ADAMANT_END_NAMESPACE
