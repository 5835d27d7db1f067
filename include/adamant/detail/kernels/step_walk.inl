// SPDX-License-Identifier: Apache-2.0
// Steps a part of a shard on the fastest paths that its data allow. Included by detail/kernels/fused_step.inl, once per
// instruction set.

// The functions of the paths for the types of a shard.
template <class Record>
struct paths_of_types {
    path_function<Record> ordinary, lenient;
    path_function<no_record> part; // the ordinary path, for step_part()
    array_types types;
};
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut, class Record>
inline constexpr paths_of_types<Record> paths_for = {
    ordinary_step<Param, Grad, ExpAvg, ExpAvgSq, WeightOut, Record>,
    fast_step<path::lenient, native_bfloat16::either, Param, Grad, ExpAvg, ExpAvgSq, WeightOut, Record>,
    ordinary_step<Param, Grad, ExpAvg, ExpAvgSq, WeightOut, no_record>,
    types_of<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>};

template <class Record>
ADAMANT_SIMD std::uint64_t careful_groups(step_pointers const& a, std::size_t begin, std::size_t end,
                                          step_scalars const& c, array_types const& types, Record& record)
{
    record.keep_groups(a, begin, end);
    return careful_step(a, types, begin, end, c);
}

// Steps whole groups, each run of them on the fastest path that it allows. When a path fails at its first group, the
// next slower path takes a stretch whose length doubles each time, up to `longest`, so that data that is nowhere
// ordinary is not computed twice. Returns the number of gradients that are not finite.
template <class Record>
ADAMANT_SIMD std::uint64_t step_groups(step_pointers const& a, std::size_t begin, std::size_t end,
                                       step_scalars const& c, memory_access const& access, bool stream, bool ordinary,
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
            i = paths.ordinary(a, i, end, c, access, stream, record);
            if (i == end)
                break;
            lenient_stretch = i > start ? shortest : lenient_stretch < longest ? 2 * lenient_stretch : longest;
        } else {
            lenient_stretch = end - i;
        }
        std::size_t const lenient_end = end - i < lenient_stretch ? end : i + lenient_stretch;
        std::size_t const start = i;
        i = paths.lenient(a, i, lenient_end, c, access, stream, record);
        careful_stretch = i > start ? shortest : careful_stretch < longest ? 2 * careful_stretch : longest;
        if (i < lenient_end) {
            std::size_t const careful_end = end - i < careful_stretch ? end : i + careful_stretch;
            nonfinite += careful_groups(a, i, careful_end, c, paths.types, record);
            i = careful_end;
        }
    }
    return nonfinite;
}

// Steps elements [begin, end), in one function for all types. The whole groups begin after the first `head` elements.
// Steps head and rest first, which are less than a group each: as the beginning and the end of a whole group, whose
// elements must not have been stepped yet. stream: as in path_function. Returns the number of gradients that are not
// finite.
template <class Record>
[[gnu::noinline]] std::uint64_t step_stretch(step_pointers const& a, std::size_t begin, std::size_t head,
                                             std::size_t end, step_scalars const& c, memory_access const& access,
                                             bool stream, paths_of_types<Record> const& paths, Record& record) noexcept
{
    std::size_t const rest = (end - begin - head) % group_elems;
    std::size_t const whole_end = end - rest;
    record.keep_rest(a, whole_end, end);
    bool const fast = begin + head < whole_end && fast_paths_apply(c);
    bool const ordinary = fast && ordinary_path_applies(c);
    std::uint64_t nonfinite = 0;
    if (rest != 0 &&
        !(ordinary && step_part(a, paths.types, end - group_elems, whole_end, rest, c, access, paths.part)))
        nonfinite += careful_step(a, paths.types, whole_end, end, c);
    if (head != 0 && !(ordinary && step_part(a, paths.types, begin, begin, head, c, access, paths.part)))
        nonfinite += careful_step(a, paths.types, begin, begin + head, c);
    begin += head;
    if (fast)
        nonfinite += step_groups(a, begin, whole_end, c, access, stream, ordinary, paths, record);
    else if (begin < whole_end)
        nonfinite += careful_groups(a, begin, whole_end, c, paths.types, record);
    return nonfinite;
}

ADAMANT_SIMD bool begins_line(std::byte const* address)
{
    return reinterpret_cast<std::uintptr_t>(address) % 64 == 0;
}
// Elements of T from `address` to the next cache line, rounded down.
template <class T>
ADAMANT_SIMD std::size_t elems_before_line(std::byte const* address)
{
    return -reinterpret_cast<std::uintptr_t>(address) % 64 / sizeof(T);
}
// The number of arrays in which a cache line begins at element i.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq>
ADAMANT_SIMD int arrays_aligned_at(step_pointers const& a, std::size_t i)
{
    return begins_line(a.param + i * sizeof(Param)) + begins_line(a.grad + i * sizeof(Grad)) +
           begins_line(a.exp_avg + i * sizeof(ExpAvg)) + begins_line(a.exp_avg_sq + i * sizeof(ExpAvgSq));
}

// Calls step_stretch() after deciding whether the weights can be streamed, and where whole groups begin.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
ADAMANT_SIMD std::uint64_t step_line(step_pointers const& a, std::size_t begin, std::size_t end, step_scalars const& c,
                                     memory_access const& access)
{
    // A vector that lies in two cache lines takes time: if all do, a step takes 1.4 times as long in cache and twice as
    // long in memory. Arrays from malloc() begin 16 bytes past a line, so in most shards aligning exp_avg aligns all
    // arrays of floats. In shorter ranges, and where the first elements need the careful step, stepping them separately
    // takes as long. Copies of the state are streamed, and so the copies are what begins at a line.
    constexpr std::size_t shortest = 1024;
    std::size_t head = 0;
    bool const streams_copies = a.copies != nullptr && a.copies->stream;
    if (simd::lanes * sizeof(float) > 16 && end - begin >= shortest && !streams_copies && ordinary_path_applies(c)) {
        head = elems_before_line<ExpAvg>(a.exp_avg + begin * sizeof(ExpAvg));
        if (head != 0 && arrays_aligned_at<Param, Grad, ExpAvg, ExpAvgSq>(a, begin + head) <=
                             arrays_aligned_at<Param, Grad, ExpAvg, ExpAvgSq>(a, begin))
            head = 0;
    }
    bool stream = false;
    if constexpr (simd::can_stream && !std::is_void_v<WeightOut> && !is_split<Param>) {
        // Streams whole cache lines only, because a line that is written in two parts goes to memory twice.
        if (access.stream) {
            std::byte const* const weights = a.weight_out + begin * sizeof(WeightOut);
            std::size_t const before_line = elems_before_line<WeightOut>(weights);
            stream = begins_line(weights + before_line * sizeof(WeightOut)) && before_line < end - begin;
            head = stream ? before_line : head;
        }
    }
    no_record none;
    std::uint64_t const nonfinite = step_stretch(a, begin, head, end, c, access, stream,
                                                 paths_for<Param, Grad, ExpAvg, ExpAvgSq, WeightOut, no_record>, none);
    if (stream && access.fences)
        simd::stream_fence();
    return nonfinite;
}

#include <adamant/detail/kernels/quantized.inl>

// See step_function.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
std::uint64_t fused_step(step_pointers const& a, std::size_t begin, std::size_t end, coefficients const& c,
                         memory_access const& access) noexcept
{
    float_mode_scope const mode(subnormals::flushed);
    if constexpr (is_quantized<ExpAvg>) {
        std::uint64_t const nonfinite = quantized_step(
            a, begin, end, c, access,
            quantized_paths_for<Param, Grad, WeightOut>(fused_step<Param, Grad, float, float, WeightOut>));
        if (access.stream && access.fences)
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
                scalars.lines = rounding_lines_at(c.rounding.key, a.position, begin);
                std::size_t const line_end = rounding_line_end(a.position, begin);
                stop = line_end < end ? line_end : end;
            }
            nonfinite += step_line<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, begin, stop, scalars, access);
        }
        return nonfinite;
    }
}
