// SPDX-License-Identifier: Apache-2.0
// The fused step, written once and included once per instruction set by kernel/targets.hpp,
// each time in a namespace of its own that holds a facade `simd`.
//
// dtypes   param, grad, moments and weight_out are widened exactly to float32, and narrowed to nearest even
// rounding as numerics/oracle.hpp, operation for operation
// speed    the fast path does sqrt and divide exactly and hides them behind memory; it looks ahead prefetch_bytes,
//          because the two long operations fill the out-of-order window that would otherwise find the misses

#include <adamant/kernel/formula.inl>
//
#include <adamant/kernel/careful_step.inl>

inline constexpr std::size_t group_elems = simd::lanes * simd::vectors;

// Asks for the cache lines that one group of T covers, so many bytes on.
template <class T>
ADAMANT_SIMD void prefetch(std::byte const* address, std::size_t ahead_bytes)
{
    ADAMANT_UNROLL
    for (std::size_t line = 0; line < group_elems * sizeof(T); line += 64)
        __builtin_prefetch(address + ahead_bytes + line);
}

// What is carried from the first half of a group's work to the second.
template <class Recorder>
struct started_group {
    param_update updates[simd::vectors];
    typename Recorder::started recorded;
};

// Keeps no record of what a step overwrites. kernel/journal.inl has the types that do. A fast path gets a record and
// makes its own recorder from it, so that the recorder's vectors stay in registers.
struct no_record {
    using recorder = struct no_recorder;
    ADAMANT_SIMD void keep_groups(step_pointers const&, std::size_t, std::size_t) {}
    ADAMANT_SIMD void keep_rest(step_pointers const&, std::size_t, std::size_t) {}
};
struct no_recorder : no_record {
    no_recorder() = default;
    ADAMANT_SIMD no_recorder(no_record const&, coefficients const&) {}
    struct started {
    };
    template <path>
    ADAMANT_SIMD void moments(step_pointers const&, std::size_t, coefficient_vectors const&,
                              state_vectors const (&)[simd::vectors], simd::f32 const (&)[simd::vectors],
                              state_vectors const (&)[simd::vectors], started&)
    {
    }
    ADAMANT_SIMD void params(step_pointers const&, std::size_t, started_group<no_recorder> const&,
                             simd::f32 const (&)[simd::vectors])
    {
    }
};

// The first half of the work on the group at element i of `a`: both moments stored, at element i of `to`, and its
// divisions begun. False, with nothing written, where the group is not tame.
template <path Path, bool Interleaved, class Param, class Grad, class ExpAvg, class ExpAvgSq, class Recorder>
ADAMANT_SIMD bool start_group(step_pointers const& a, step_pointers const& to, std::size_t i,
                              coefficient_vectors const& c, started_group<Recorder>& group, std::size_t ahead_bytes,
                              Recorder& recorder)
{
    param_update(&updates)[simd::vectors] = group.updates;
    std::byte const* const param = a.param + i * sizeof(Param);
    std::byte const* const grad = a.grad + i * sizeof(Grad);
    std::byte const* const exp_avg = a.exp_avg + i * sizeof(ExpAvg);
    std::byte const* const exp_avg_sq = a.exp_avg_sq + i * sizeof(ExpAvgSq);
    prefetch<Param>(param, ahead_bytes);
    prefetch<Grad>(grad, ahead_bytes);
    prefetch<ExpAvg>(exp_avg, ahead_bytes);
    prefetch<ExpAvgSq>(exp_avg_sq, ahead_bytes);

    state_vectors s[simd::vectors];
    simd::f32 g[simd::vectors];
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < simd::vectors; k += 2) {
        std::size_t const at = k * simd::lanes;
        simd::template load_pair<Param, Interleaved>(param + at * sizeof(Param), s[k].param, s[k + 1].param);
        simd::template load_pair<Grad, Interleaved>(grad + at * sizeof(Grad), g[k], g[k + 1]);
        simd::template load_pair<ExpAvg, Interleaved>(exp_avg + at * sizeof(ExpAvg), s[k].exp_avg, s[k + 1].exp_avg);
        simd::template load_pair<ExpAvgSq, Interleaved>(exp_avg_sq + at * sizeof(ExpAvgSq), s[k].exp_avg_sq,
                                                        s[k + 1].exp_avg_sq);
    }
    state_vectors old[simd::vectors];
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < simd::vectors; ++k)
        old[k] = s[k];
    bool done = false;
    if constexpr (Path == path::lenient)
        done = update_idle(s, g, c, updates);
    if (!done) {
        guard<Path> seen;
        clear(seen);
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < simd::vectors; ++k)
            update_moments<Path>(s[k], g[k], c, seen);
        if (!is_tame(seen)) [[unlikely]]
            return false;
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < simd::vectors; ++k)
            updates[k] = start_param<Path>(s[k], c);
    }
    recorder.template moments<Path>(a, i, c, old, g, s, group.recorded);
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < simd::vectors; k += 2)
        simd::template store_pair<ExpAvg, Interleaved>(to.exp_avg + (i + k * simd::lanes) * sizeof(ExpAvg),
                                                       s[k].exp_avg, s[k + 1].exp_avg);
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < simd::vectors; k += 2)
        simd::template store_pair<ExpAvgSq, Interleaved>(to.exp_avg_sq + (i + k * simd::lanes) * sizeof(ExpAvgSq),
                                                         s[k].exp_avg_sq, s[k + 1].exp_avg_sq);
    return true;
}
// The second half: params and weights.
template <path Path, bool Interleaved, class Param, class WeightOut, class Recorder>
ADAMANT_SIMD void finish_group(step_pointers const& a, step_pointers const& to, std::size_t i,
                               coefficient_vectors const& c, started_group<Recorder> const& group, bool stream,
                               Recorder& recorder)
{
    simd::f32 p[simd::vectors];
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < simd::vectors; ++k) {
        param_update u = group.updates[k];
        if constexpr (std::is_same_v<Param, float>) // made again, as that takes less than keeping it till now
            u.decayed_param = simd::mul(c.decay, simd::load<float>(a.param + (i + k * simd::lanes) * sizeof(float)));
        p[k] = finish_param<Path>(u, c);
    }
    recorder.params(a, i, group, p);
    std::byte* const param = to.param + i * sizeof(Param);
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < simd::vectors; k += 2)
        simd::template store_pair<Param, Interleaved>(param + k * simd::lanes * sizeof(Param), p[k], p[k + 1]);
    if constexpr (!std::is_void_v<WeightOut>) {
        std::byte* const out = to.weight_out + i * sizeof(WeightOut);
        if (stream) {
            ADAMANT_UNROLL
            for (std::size_t k = 0; k < simd::vectors; k += 2)
                simd::template stream_pair<WeightOut>(out + k * simd::lanes * sizeof(WeightOut), p[k], p[k + 1]);
        } else {
            ADAMANT_UNROLL
            for (std::size_t k = 0; k < simd::vectors; k += 2)
                simd::template store_pair<WeightOut, Interleaved>(out + k * simd::lanes * sizeof(WeightOut), p[k],
                                                                  p[k + 1]);
        }
    }
}

// Steps the last `rest` elements before `end`, which are fewer than a group. It reads the whole group that ends there
// in place, so none of that may have been stepped yet, and keeps only the results of the last `rest` elements. Returns
// false, with nothing written, if the group is not tame.
template <path Path, bool Interleaved, class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
ADAMANT_SIMD bool step_rest(step_pointers const& a, std::size_t end, std::size_t rest, coefficient_vectors const& c)
{
    alignas(64) std::byte spare[5][group_elems * sizeof(float)];
    step_pointers const to{spare[0], spare[1], spare[2], spare[3], spare[4]};
    step_pointers const from = pointers_at<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, end - group_elems);
    no_recorder none;
    started_group<no_recorder> group;
    if (!start_group<Path, Interleaved, Param, Grad, ExpAvg, ExpAvgSq>(from, to, 0, c, group, 0, none)) [[unlikely]]
        return false;
    finish_group<Path, Interleaved, Param, WeightOut>(from, to, 0, c, group, false, none);
    copy_results<Param, ExpAvg, ExpAvgSq, WeightOut>(
        pointers_at<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, end - rest),
        pointers_at<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(to, group_elems - rest), rest);
    return true;
}

// Whole groups from `begin` to `end` while they are tame; returns where it stopped. Nothing of the group it stopped at
// has been written. A group is finished after the next one has been started, so that few operations wait for a
// division: what waits fills the out-of-order window, and keeps the next divisions out.
// The ordinary path steps the `rest` elements after `end` first, which are fewer than a group, and sets `rest` to 0. If
// they are not tame, it does nothing at all.
template <path Path, class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut, class Record>
[[gnu::noinline]] std::size_t fast_step(step_pointers const& arrays, std::size_t begin, std::size_t end,
                                        std::size_t& rest, coefficients const& scalars, memory_access const how,
                                        Record& record) noexcept
{
    step_pointers const a = arrays; // copies, which no store below can change
    using recorder_type = typename Record::recorder;
    recorder_type recorder(record, scalars);
    coefficient_vectors const c = broadcast(scalars);
    // In any order, if in all arrays the same.
    constexpr bool interleaved = std::is_same_v<Param, bfloat16> && std::is_same_v<Grad, bfloat16> &&
                                 std::is_same_v<ExpAvg, bfloat16> && std::is_same_v<ExpAvgSq, bfloat16> &&
                                 std::is_void_v<WeightOut>;
    if constexpr (Path == path::ordinary) {
        if (rest != 0) {
            if (!step_rest<Path, interleaved, Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, end + rest, rest, c))
                return begin;
            rest = 0;
        }
    }
    started_group<recorder_type> group;
    if (begin == end || !start_group<Path, interleaved, Param, Grad, ExpAvg, ExpAvgSq>(a, a, begin, c, group,
                                                                                       how.prefetch_bytes, recorder))
        return begin;
    std::size_t i = begin + group_elems;
    for (; i < end; i += group_elems) {
        started_group<recorder_type> next;
        if (!start_group<Path, interleaved, Param, Grad, ExpAvg, ExpAvgSq>(a, a, i, c, next, how.prefetch_bytes,
                                                                           recorder)) [[unlikely]]
            break;
        finish_group<Path, interleaved, Param, WeightOut>(a, a, i - group_elems, c, group, how.stream, recorder);
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < simd::vectors; ++k)
            group.updates[k] = next.updates[k];
        group.recorded = next.recorded;
    }
    finish_group<Path, interleaved, Param, WeightOut>(a, a, i - group_elems, c, group, how.stream, recorder);
    record = recorder;
    return i;
}

// A step over a stretch of a shard: each part of it on the fastest path that it can go.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut, class Record>
struct stepper {
    step_pointers const& a;
    coefficients const& c;
    memory_access how;
    Record& record;
    std::size_t rest;        // elements that follow the whole groups, until they have been stepped
    std::uint64_t nonfinite; // gradients so far

    // The rest, less than a group, goes first: it is stepped as the end of a whole group, none of which has been
    // stepped yet.
    ADAMANT_SIMD void run(std::size_t begin, std::size_t end)
    {
        rest = (end - begin) % group_elems;
        std::size_t const whole_end = end - rest;
        record.keep_rest(a, whole_end, end);
        bool const fast = begin < whole_end && fast_paths_apply(c);
        bool const ordinary = fast && ordinary_path_applies(c);
        if (!ordinary && rest != 0)
            step_rest_carefully(begin, whole_end);
        if (fast)
            alternate(begin, whole_end, ordinary);
        else if (begin < whole_end)
            careful(begin, whole_end);
    }

private:
    // Where a path fails at once, the one below it takes ever longer stretches, so that data that is nowhere ordinary
    // is not computed twice.
    ADAMANT_SIMD void alternate(std::size_t begin, std::size_t end, bool ordinary)
    {
        constexpr std::size_t shortest = 64;
        constexpr std::size_t longest = 4096;
        static_assert(shortest % group_elems == 0);
        std::size_t lenient_stretch = shortest;
        std::size_t careful_stretch = shortest;
        for (std::size_t i = begin; i < end;) {
            if (ordinary) {
                std::size_t const start = i;
                i = fast<path::ordinary>(i, end);
                if (rest != 0) [[unlikely]] {
                    step_rest_carefully(i, end);
                    continue;
                }
                lenient_stretch = i > start ? shortest : lenient_stretch < longest ? 2 * lenient_stretch : longest;
            } else {
                lenient_stretch = end - i;
            }
            std::size_t const lenient_end = end - i < lenient_stretch ? end : i + lenient_stretch;
            std::size_t const start = i;
            i = fast<path::lenient>(i, lenient_end);
            careful_stretch = i > start ? shortest : careful_stretch < longest ? 2 * careful_stretch : longest;
            if (i < lenient_end) {
                std::size_t const careful_end = end - i < careful_stretch ? end : i + careful_stretch;
                careful(i, careful_end);
                i = careful_end;
            }
        }
    }
    template <path Path>
    ADAMANT_SIMD std::size_t fast(std::size_t begin, std::size_t end)
    {
        return fast_step<Path, Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, begin, end, rest, c, how, record);
    }
    ADAMANT_SIMD void careful(std::size_t begin, std::size_t end)
    {
        record.keep_groups(a, begin, end);
        nonfinite += careful_step<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, begin, begin, end, c);
    }
    ADAMANT_SIMD void step_rest_carefully(std::size_t readable, std::size_t whole_end)
    {
        nonfinite +=
            careful_step<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, readable, whole_end, whole_end + rest, c);
        rest = 0;
    }
};

// See step_function.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
std::uint64_t fused_step(step_pointers const& a, std::size_t begin, std::size_t end, coefficients const& c,
                         memory_access how) noexcept
{
    float_mode_scope const mode(subnormals::flushed);
    std::uint64_t nonfinite = 0;
    if constexpr (simd::can_stream && !std::is_void_v<WeightOut>) {
        // Whole cache lines only: a line written in two goes to memory twice. So the first elements go by themselves.
        std::size_t const before_line =
            -reinterpret_cast<std::uintptr_t>(a.weight_out + begin * sizeof(WeightOut)) % 64;
        std::size_t const aligned = begin + before_line / sizeof(WeightOut);
        how.stream = how.stream && before_line % sizeof(WeightOut) == 0 && aligned < end;
        if (how.stream && begin < aligned) {
            nonfinite = careful_step<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, begin, begin, aligned, c);
            begin = aligned;
        }
    } else {
        how.stream = false;
    }
    no_record none;
    stepper<Param, Grad, ExpAvg, ExpAvgSq, WeightOut, no_record> steps{a, c, how, none, 0, nonfinite};
    steps.run(begin, end);
    if (how.stream)
        simd::stream_fence();
    return steps.nonfinite;
}
