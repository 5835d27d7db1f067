// SPDX-License-Identifier: Apache-2.0
// The fused step, written once and included once per instruction set by detail/kernels/targets.hpp,
// each time in a namespace of its own that holds a facade `simd`.
//
// dtypes   param, grad, moments and weight_out are widened exactly to float32, and narrowed to nearest even
// rounding as reference.hpp, operation for operation
// speed    the fast path does sqrt and divide exactly and hides them behind memory; it looks ahead prefetch_bytes,
//          because the two long operations fill the out-of-order window that would otherwise find the misses

#include <adamant/detail/kernels/formula.inl>
//
#include <adamant/detail/kernels/careful_step.inl>
#include <adamant/detail/kernels/stores.inl>

inline constexpr std::size_t group_elems = simd::lanes * simd::vectors;

// Prefetches the cache lines of `Vectors` vectors of T, a number of bytes ahead.
template <class T, std::size_t Vectors = simd::vectors>
ADAMANT_SIMD void prefetch(std::byte const* address, std::size_t ahead_bytes)
{
    ADAMANT_UNROLL
    for (std::size_t line = 0; line < Vectors * simd::lanes * sizeof(T); line += 64)
        __builtin_prefetch(address + ahead_bytes + line);
}

// A gradient of T, or of floats where memory_access says so: one loop for both, as two take a compiler twice the time.
template <class T>
struct or_float {
};
template <class T>
using or_float_unless_it_is = std::conditional_t<std::is_same_v<T, float>, float, or_float<T>>;

template <bool Interleaved, class Grad, std::size_t Vectors>
ADAMANT_SIMD void load_grads(std::byte const* array, std::size_t i, memory_access how, Grad, simd::f32 (&g)[Vectors])
{
    std::byte const* const grad = array + i * sizeof(Grad);
    prefetch<Grad, Vectors>(grad, how.prefetch_bytes);
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < Vectors; k += 2)
        simd::template load_pair<Grad, Interleaved>(grad + k * simd::lanes * sizeof(Grad), g[k], g[k + 1]);
}
template <bool Interleaved, class T, std::size_t Vectors>
ADAMANT_SIMD void load_grads(std::byte const* array, std::size_t i, memory_access how, or_float<T>,
                             simd::f32 (&g)[Vectors])
{
    if (how.grad_is_float)
        load_grads<Interleaved>(array, i, how, float{}, g);
    else
        load_grads<Interleaved>(array, i, how, T{}, g);
}

// What is carried from the first half of a group's work to the second.
template <class Recorder, std::size_t Vectors = simd::vectors>
struct started_group {
    param_update updates[Vectors];
    typename Recorder::started recorded;
};

// Keeps no record of what a step overwrites. detail/kernels/journal.inl has the types that do. A fast path gets a
// record and makes its own recorder from it, so that the recorder's vectors stay in registers.
struct no_record {
    using recorder = struct no_recorder;
    ADAMANT_SIMD void keep_groups(step_pointers const&, std::size_t, std::size_t) {}
    ADAMANT_SIMD void keep_rest(step_pointers const&, std::size_t, std::size_t) {}
};
struct no_recorder : no_record {
    no_recorder() = default;
    ADAMANT_SIMD no_recorder(no_record const&, coefficients const&) {}
    struct started {};
    template <path, std::size_t Vectors>
    ADAMANT_SIMD void moments(step_pointers const&, std::size_t, coefficient_vectors const&,
                              state_vectors const (&)[Vectors], simd::f32 const (&)[Vectors],
                              state_vectors const (&)[Vectors], started&)
    {
    }
    template <std::size_t Vectors>
    ADAMANT_SIMD void params(step_pointers const&, std::size_t, started_group<no_recorder, Vectors> const&,
                             simd::f32 const (&)[Vectors])
    {
    }
};

// The first half of the work on the group at element i: both moments stored, and its divisions begun. False, with
// nothing written, where the group is not in range.
template <path Path, bool Interleaved, class Param, class Grad, class ExpAvg, class ExpAvgSq, class Recorder,
          std::size_t Vectors>
ADAMANT_SIMD bool start_group(step_pointers const& a, std::size_t i, coefficient_vectors const& c,
                              started_group<Recorder, Vectors>& group, memory_access how, Recorder& recorder,
                              random_vectors<ExpAvgSq>& random)
{
    param_update(&updates)[Vectors] = group.updates;
    std::byte const* const param = a.param + i * sizeof(Param);
    std::byte const* const exp_avg = a.exp_avg + i * sizeof(ExpAvg);
    std::byte const* const exp_avg_sq = a.exp_avg_sq + i * sizeof(ExpAvgSq);
    prefetch<Param, Vectors>(param, how.prefetch_bytes);
    if constexpr (is_split<Param>)
        prefetch<bfloat16, Vectors>(a.weight_out + i * sizeof(bfloat16), how.prefetch_bytes);
    prefetch<ExpAvg, Vectors>(exp_avg, how.prefetch_bytes);
    prefetch<ExpAvgSq, Vectors>(exp_avg_sq, how.prefetch_bytes);

    state_vectors s[Vectors];
    simd::f32 g[Vectors];
    load_grads<Interleaved>(a.grad, i, how, Grad{}, g);
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < Vectors; k += 2) {
        std::size_t const at = k * simd::lanes;
        load_params<Param, Interleaved>(param + at * sizeof(Param), a.weight_out + (i + at) * sizeof(bfloat16),
                                        s[k].param, s[k + 1].param);
        simd::template load_pair<ExpAvg, Interleaved>(exp_avg + at * sizeof(ExpAvg), s[k].exp_avg, s[k + 1].exp_avg);
        simd::template load_pair<ExpAvgSq, Interleaved>(exp_avg_sq + at * sizeof(ExpAvgSq), s[k].exp_avg_sq,
                                                        s[k + 1].exp_avg_sq);
    }
    state_vectors old[Vectors];
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < Vectors; ++k)
        old[k] = s[k];
    bool done = false;
    if constexpr (Path == path::lenient)
        done = update_idle<ExpAvg>(s, g, c, updates);
    if (!done) {
        guard<Path> seen;
        clear(seen);
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < Vectors; ++k)
            update_moments<Path>(s[k], g[k], c, seen);
        if (!is_in_range(seen)) [[unlikely]]
            return false;
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < Vectors; ++k)
            updates[k] = start_param<Path>(s[k], c);
    }
    recorder.template moments<Path>(a, i, c, old, g, s, group.recorded);
    constexpr bool is_ordinary = Path == path::ordinary;
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < Vectors; k += 2)
        simd::template store_pair<ExpAvg, Interleaved, is_ordinary>(
            a.exp_avg + (i + k * simd::lanes) * sizeof(ExpAvg), s[k].exp_avg, s[k + 1].exp_avg, how.native_bfloat16);
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < Vectors; k += 2)
        store_rounded<ExpAvgSq, Interleaved, is_ordinary>(a.exp_avg_sq + (i + k * simd::lanes) * sizeof(ExpAvgSq),
                                                          s[k].exp_avg_sq, s[k + 1].exp_avg_sq, how.native_bfloat16,
                                                          random);
    return true;
}
// The second half: params and weights.
template <path Path, bool Interleaved, class Param, class WeightOut, class Recorder, std::size_t Vectors>
ADAMANT_SIMD void finish_group(step_pointers const& a, std::size_t i, coefficient_vectors const& c,
                               started_group<Recorder, Vectors> const& group, memory_access how, Recorder& recorder,
                               random_vectors<Param>& random)
{
    simd::f32 p[Vectors];
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < Vectors; ++k) {
        param_update u = group.updates[k];
        if constexpr (std::is_same_v<Param, float>) // made again, as that takes less than keeping it till now
            u.decayed_param = simd::mul(c.decay, simd::load<float>(a.param + (i + k * simd::lanes) * sizeof(float)));
        p[k] = finish_param<Path>(u, c);
    }
    recorder.params(a, i, group, p);
    store_params<Param, WeightOut, Interleaved, Path == path::ordinary>(a, i, p, how, random);
}

enum class native_bfloat16 { no, yes, either };

// Whole groups from `begin` to `end` while they are clamp_gradient; returns where it stopped, which may be inside a
// group where all is bfloat16. Nothing from there on has been written. A group is finished after the next one has been
// started, so that few operations wait for a division: what waits fills the out-of-order window, and keeps the next
// divisions out. The loop has one start and one finish, and so does the code, which is what takes a compiler its time.
//
// Rounding to bfloat16 by an instruction or without is chosen here or, where Native says so, when compiled: the code of
// the most common loop only, for the choice costs it a tenth in cache, and two loops take a compiler twice the time.
template <path Path, native_bfloat16 Native, class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut,
          class Record>
[[gnu::noinline]] std::size_t fast_step(step_pointers const& arrays, std::size_t begin, std::size_t end,
                                        step_scalars const& scalars, memory_access how, Record& record) noexcept
{
    if constexpr (Native != native_bfloat16::either)
        how.native_bfloat16 = Native == native_bfloat16::yes;
    step_pointers const a = arrays; // copies, which no store below can change
    using recorder_type = typename Record::recorder;
    recorder_type recorder(record, scalars);
    coefficient_vectors const c = broadcast(scalars);
    // In any order, if in all arrays the same.
    constexpr bool has_narrow_params =
        is_split<Param> || (std::is_same_v<Param, bfloat16> && std::is_void_v<WeightOut>);
    constexpr bool interleaved = has_narrow_params && std::is_same_v<Grad, bfloat16> &&
                                 std::is_same_v<ExpAvg, bfloat16> && std::is_same_v<ExpAvgSq, bfloat16>;
    constexpr std::size_t vectors = interleaved ? simd::vectors_of_bfloat16 : simd::vectors;
    constexpr std::size_t elems = vectors * simd::lanes;
    random_vectors<ExpAvgSq> for_exp_avg_sq;
    random_vectors<Param> for_param;
    for_exp_avg_sq.template begin<interleaved>(scalars.rounding.exp_avg_sq, scalars.lines.exp_avg_sq, begin);
    for_param.template begin<interleaved>(scalars.rounding.param, scalars.lines.param, begin);
    started_group<recorder_type, vectors> group;
    std::size_t i = begin;
    for (;; i += elems) {
        started_group<recorder_type, vectors> next;
        bool const started = i < end && start_group<Path, interleaved, Param, Grad, ExpAvg, ExpAvgSq>(
                                            a, i, c, next, how, recorder, for_exp_avg_sq);
        if (i != begin)
            finish_group<Path, interleaved, Param, WeightOut>(a, i - elems, c, group, how, recorder, for_param);
        if (!started) [[unlikely]]
            break;
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < vectors; ++k)
            group.updates[k] = next.updates[k];
        group.recorded = next.recorded;
    }
    record = recorder;
    return i;
}

template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut, class Record>
std::size_t ordinary_step(step_pointers const& a, std::size_t begin, std::size_t end, step_scalars const& c,
                          memory_access how, Record& record) noexcept
{
    constexpr bool stores_bfloat16 = std::is_same_v<Param, bfloat16> || std::is_same_v<ExpAvg, bfloat16> ||
                                     std::is_same_v<ExpAvgSq, bfloat16> || std::is_same_v<WeightOut, bfloat16>;
    if constexpr (simd::may_have_bfloat16 && stores_bfloat16 && std::is_same_v<Record, no_record>) {
        if (how.native_bfloat16)
            return fast_step<path::ordinary, native_bfloat16::yes, Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(
                a, begin, end, c, how, record);
        return fast_step<path::ordinary, native_bfloat16::no, Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, begin, end,
                                                                                                        c, how, record);
    } else {
        return fast_step<path::ordinary, native_bfloat16::either, Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(
            a, begin, end, c, how, record);
    }
}

// Pointers to element i of each array.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
ADAMANT_SIMD step_pointers pointers_at(step_pointers const& a, std::size_t i)
{
    step_pointers at{a.param + i * sizeof(Param), a.grad + i * sizeof(Grad), a.exp_avg + i * sizeof(ExpAvg),
                     a.exp_avg_sq + i * sizeof(ExpAvgSq), nullptr};
    if constexpr (!std::is_void_v<WeightOut>)
        at.weight_out = a.weight_out + i * sizeof(WeightOut);
    return at;
}
// One group of an array. By whole vectors, as a step loads them: a load waits for all earlier stores that it spans.
template <class T>
ADAMANT_SIMD void copy_group(std::byte* to, std::byte const* from)
{
    for (std::size_t at = 0; at < group_elems * sizeof(T); at += simd::lanes * sizeof(float))
        simd::template store<float>(to + at, simd::template load<float>(from + at));
}
// Steps the last `rest` elements before `end`, which are fewer than a group, on a copy of the whole group that ends
// there. None of that may have been stepped yet. Returns false, with nothing written, if the group is not in range.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
[[gnu::noinline]] bool step_rest(step_pointers const& a, std::size_t end, std::size_t rest, step_scalars const& c,
                                 memory_access how) noexcept
{
    alignas(64) std::byte copies[5][group_elems * sizeof(float)];
    step_pointers const copy{copies[0], copies[1], copies[2], copies[3], copies[4]};
    step_pointers const from = pointers_at<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, end - group_elems);
    copy_group<Param>(copies[0], from.param);
    copy_group<Grad>(copies[1], from.grad);
    copy_group<ExpAvg>(copies[2], from.exp_avg);
    copy_group<ExpAvgSq>(copies[3], from.exp_avg_sq);
    if constexpr (is_split<Param>)
        copy_group<WeightOut>(copies[4], from.weight_out);
    how.stream = false;
    no_record none;
    step_scalars const of_copy = c.from(end - group_elems);
    if (ordinary_step<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(copy, 0, group_elems, of_copy, how, none) !=
        group_elems) [[unlikely]]
        return false;
    step_pointers const to = pointers_at<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, end - rest);
    step_pointers const results = pointers_at<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(copy, group_elems - rest);
    copy_few(to.param, results.param, rest * sizeof(Param));
    copy_few(to.exp_avg, results.exp_avg, rest * sizeof(ExpAvg));
    copy_few(to.exp_avg_sq, results.exp_avg_sq, rest * sizeof(ExpAvgSq));
    if constexpr (!std::is_void_v<WeightOut>)
        copy_few(to.weight_out, results.weight_out, rest * sizeof(WeightOut));
    return true;
}

#include <adamant/detail/kernels/step_walk.inl>
