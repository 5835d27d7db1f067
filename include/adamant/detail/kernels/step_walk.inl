// SPDX-License-Identifier: Apache-2.0
// The walk over a stretch of a shard: which path takes which part of it. Included by detail/kernels/fused_step.inl,
// once per instruction set.

// What a step over a stretch of a shard calls for its types.
template <class Record>
struct paths_of_types {
    using path_function = std::size_t (*)(step_pointers const&, std::size_t, std::size_t, step_scalars const&,
                                          memory_access, Record&) noexcept;
    path_function ordinary, lenient;
    bool (*rest)(step_pointers const&, std::size_t, std::size_t, step_scalars const&, memory_access) noexcept;
    array_types types;
};
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut, class Record>
inline constexpr paths_of_types<Record> paths_for = [] {
    paths_of_types<Record> paths{nullptr, nullptr, nullptr, types_of<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>};
    if constexpr (simd::has_fast_paths) {
        paths.ordinary = ordinary_step<Param, Grad, ExpAvg, ExpAvgSq, WeightOut, Record>;
        paths.lenient =
            fast_step<path::lenient, native_bfloat16::either, Param, Grad, ExpAvg, ExpAvgSq, WeightOut, Record>;
        paths.rest = step_rest<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>;
    }
    return paths;
}();

template <class Record>
ADAMANT_SIMD std::uint64_t careful_groups(step_pointers const& a, std::size_t begin, std::size_t end,
                                          step_scalars const& c, array_types const& types, Record& record)
{
    record.keep_groups(a, begin, end);
    return careful_step(a, types, begin, end, c);
}

// Whole groups, each part of them on the fastest path that it can go. Where a path fails at once, the one below it
// takes ever longer stretches, so that data that is nowhere ordinary is not computed twice. Returns how many of the
// gradients are not finite.
template <class Record>
ADAMANT_SIMD std::uint64_t step_groups(step_pointers const& a, std::size_t begin, std::size_t end,
                                       step_scalars const& c, memory_access how, bool ordinary,
                                       paths_of_types<Record> const& paths, Record& record)
{
    constexpr std::size_t shortest = 64;
    constexpr std::size_t longest = 4096;
    static_assert(shortest % group_elems == 0);
    std::size_t lenient_stretch = shortest;
    std::size_t careful_stretch = shortest;
    std::uint64_t nonfinite = 0;
    for (std::size_t i = begin; i < end;) {
        if (ordinary) {
            std::size_t const start = i;
            i = paths.ordinary(a, i, end, c, how, record);
            if (i == end)
                break;
            lenient_stretch = i > start ? shortest : lenient_stretch < longest ? 2 * lenient_stretch : longest;
        } else {
            lenient_stretch = end - i;
        }
        std::size_t const lenient_end = end - i < lenient_stretch ? end : i + lenient_stretch;
        std::size_t const start = i;
        i = paths.lenient(a, i, lenient_end, c, how, record);
        careful_stretch = i > start ? shortest : careful_stretch < longest ? 2 * careful_stretch : longest;
        if (i < lenient_end) {
            std::size_t const careful_end = end - i < careful_stretch ? end : i + careful_stretch;
            nonfinite += careful_groups(a, i, careful_end, c, paths.types, record);
            i = careful_end;
        }
    }
    return nonfinite;
}

// A step over a stretch of a shard, one function for all types. The rest, less than a group, goes first: it is stepped
// as the end of a whole group, none of which has been stepped yet. Returns how many of the gradients are not finite.
template <class Record>
[[gnu::noinline]] std::uint64_t step_stretch(step_pointers const& a, std::size_t begin, std::size_t end,
                                             step_scalars const& c, memory_access how,
                                             paths_of_types<Record> const& paths, Record& record) noexcept
{
    std::size_t const rest = (end - begin) % group_elems;
    std::size_t const whole_end = end - rest;
    record.keep_rest(a, whole_end, end);
    bool const fast = simd::has_fast_paths && begin < whole_end && fast_paths_apply(c);
    bool const ordinary = fast && ordinary_path_applies(c);
    std::uint64_t nonfinite = 0;
    if (rest != 0 && !(ordinary && paths.rest(a, end, rest, c, how)))
        nonfinite += careful_step(a, paths.types, whole_end, end, c);
    if (fast)
        nonfinite += step_groups(a, begin, whole_end, c, how, ordinary, paths, record);
    else if (begin < whole_end)
        nonfinite += careful_groups(a, begin, whole_end, c, paths.types, record);
    return nonfinite;
}

// The same, and it finds out whether weights can be streamed.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
ADAMANT_SIMD std::uint64_t step_line(step_pointers const& a, std::size_t begin, std::size_t end, step_scalars const& c,
                                     memory_access how)
{
    std::uint64_t nonfinite = 0;
    if constexpr (simd::can_stream && !std::is_void_v<WeightOut> && !is_split<Param>) {
        // Whole cache lines only: a line written in two goes to memory twice. So the first elements go by themselves.
        std::size_t const before_line =
            -reinterpret_cast<std::uintptr_t>(a.weight_out + begin * sizeof(WeightOut)) % 64;
        std::size_t const aligned = begin + before_line / sizeof(WeightOut);
        how.stream = how.stream && before_line % sizeof(WeightOut) == 0 && aligned < end;
        if (how.stream && begin < aligned) {
            nonfinite = careful_step(a, types_of<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>, begin, aligned, c);
            begin = aligned;
        }
    } else {
        how.stream = false;
    }
    no_record none;
    nonfinite +=
        step_stretch(a, begin, end, c, how, paths_for<Param, Grad, ExpAvg, ExpAvgSq, WeightOut, no_record>, none);
    if (how.stream)
        simd::stream_fence();
    return nonfinite;
}

#include <adamant/detail/kernels/quantized.inl>

// See step_function.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
std::uint64_t fused_step(step_pointers const& a, std::size_t begin, std::size_t end, coefficients const& c,
                         memory_access how) noexcept
{
    float_mode_scope const mode(subnormals::flushed);
    if constexpr (is_quantized<ExpAvg>) {
        std::uint64_t const nonfinite = quantized_step(
            a, begin, end, c, how,
            quantized_paths_for<Param, Grad, WeightOut>(fused_step<Param, Grad, float, float, WeightOut>));
        if (how.stream)
            simd::stream_fence();
        return nonfinite;
    } else {
        constexpr bool may_round_stochastically = std::is_same_v<Param, bfloat16> || std::is_same_v<ExpAvgSq, bfloat16>;
        bool const stochastic = may_round_stochastically && (c.rounding.param || c.rounding.exp_avg_sq);
        step_scalars scalars{c, {}};
        std::uint64_t nonfinite = 0;
        for (std::size_t stop; begin < end; begin = stop) {
            stop = end;
            if (stochastic) {
                scalars.lines = rounding_lines_at(c.rounding.key, a.place, begin);
                std::size_t const line_end = rounding_line_end(a.place, begin);
                stop = line_end < end ? line_end : end;
            }
            nonfinite += step_line<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, begin, stop, scalars, how);
        }
        return nonfinite;
    }
}
