// SPDX-License-Identifier: Apache-2.0
// The step over anything that the fast paths do not take: values next to zero, infinities, NaNs, and what is left over
// for less than a group. Included by kernel/fused_step.inl, once per instruction set.

// A whole vector, or only its first `count` elements: then no byte beyond them is touched, and the other lanes are
// zero. Without masks they go through a buffer. That is slow, because a load waits for all earlier stores that it
// spans.
template <class T, bool Whole, class Simd = simd>
ADAMANT_SIMD simd::f32 load_first(std::byte const* address, std::size_t count)
{
    if constexpr (Whole) {
        return simd::template load<T>(address);
    } else if constexpr (Simd::has_masks) {
        return Simd::template load_first<T>(address, count);
    } else {
        alignas(64) std::byte buffer[simd::lanes * sizeof(T)] = {};
        __builtin_memcpy(buffer, address, count * sizeof(T));
        return simd::template load<T>(buffer);
    }
}
template <class T, bool Whole, class Simd = simd>
ADAMANT_SIMD void store_first(std::byte* address, simd::f32 x, std::size_t count)
{
    if constexpr (Whole) {
        simd::template store<T>(address, x);
    } else if constexpr (Simd::has_masks) {
        Simd::template store_first<T>(address, x, count);
    } else {
        alignas(64) std::byte buffer[simd::lanes * sizeof(T)];
        simd::template store<T>(buffer, x);
        __builtin_memcpy(address, buffer, count * sizeof(T));
    }
}

// A result of the careful path: rounding to bfloat16 can reach 2^-126 from above.
template <class T, bool Whole = true>
ADAMANT_SIMD void store_carefully(std::byte* address, simd::f32 x, std::size_t count = simd::lanes)
{
    x = simd::canonical(x, x);
    if constexpr (std::is_same_v<T, bfloat16>)
        x = simd::flush(x, bfloat16_flush_bits);
    store_first<T, Whole>(address, x, count);
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

// Copies the results of `count` elements from buffers into the arrays.
template <class Param, class ExpAvg, class ExpAvgSq, class WeightOut>
ADAMANT_SIMD void copy_results(step_pointers const& to, step_pointers const& from, std::size_t count)
{
    copy_few(to.param, from.param, count * sizeof(Param));
    copy_few(to.exp_avg, from.exp_avg, count * sizeof(ExpAvg));
    copy_few(to.exp_avg_sq, from.exp_avg_sq, count * sizeof(ExpAvgSq));
    if constexpr (!std::is_void_v<WeightOut>)
        copy_few(to.weight_out, from.weight_out, count * sizeof(WeightOut));
}

// Steps one vector, or its first `count` elements, and flushes each operation by hand. Reads at `from`, writes at `to`,
// and returns how many of the gradients are not finite.
template <bool Whole, class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
ADAMANT_SIMD unsigned careful_vector(step_pointers const& from, step_pointers const& to, std::size_t count,
                                     coefficient_vectors const& c)
{
    simd::f32 const grad = load_first<Grad, Whole>(from.grad, count);
    state_vectors s{load_first<Param, Whole>(from.param, count), load_first<ExpAvg, Whole>(from.exp_avg, count),
                    load_first<ExpAvgSq, Whole>(from.exp_avg_sq, count)};
    guard<path::careful> nothing;
    update_moments<path::careful>(s, grad, c, nothing);
    simd::f32 const param = finish_param<path::careful>(start_param<path::careful>(s, c), c);
    store_carefully<Param, Whole>(to.param, param, count);
    store_carefully<ExpAvg, Whole>(to.exp_avg, s.exp_avg, count);
    store_carefully<ExpAvgSq, Whole>(to.exp_avg_sq, s.exp_avg_sq, count);
    if constexpr (!std::is_void_v<WeightOut>)
        store_carefully<WeightOut, Whole>(to.weight_out, param, count);
    return simd::count_nonfinite(grad);
}

// Steps elements [begin, end), one vector at a time. `readable` is at most `begin`; no element from there on has been
// stepped yet. The rest, less than a vector, goes first. Without masks it is computed as the end of a whole vector, if
// there is one from `readable` on, and only the results of the rest are kept.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
[[gnu::noinline]] std::uint64_t careful_step(step_pointers const& a, std::size_t readable, std::size_t begin,
                                             std::size_t end, coefficients const& scalars) noexcept
{
    coefficient_vectors const c = broadcast(scalars);
    std::uint64_t nonfinite = 0;
    std::size_t const rest = (end - begin) % simd::lanes;
    if (rest != 0) {
        step_pointers const in_place = pointers_at<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, end - rest);
        if (!simd::has_masks && end - readable >= simd::lanes) {
            alignas(64) std::byte spare[5][simd::lanes * sizeof(float)];
            step_pointers const to{spare[0], spare[1], spare[2], spare[3], spare[4]};
            unsigned const bad = careful_vector<true, Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(
                pointers_at<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, end - simd::lanes), to, simd::lanes, c);
            if (bad != 0) // some of these may lie before the rest
                for (std::size_t i = 0; i < rest; ++i)
                    nonfinite += !is_finite(widen(load_unaligned<Grad>(in_place.grad + i * sizeof(Grad))));
            copy_results<Param, ExpAvg, ExpAvgSq, WeightOut>(
                in_place, pointers_at<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(to, simd::lanes - rest), rest);
        } else {
            nonfinite += careful_vector<false, Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(in_place, in_place, rest, c);
        }
    }
    for (std::size_t i = begin; i < end - rest; i += simd::lanes) {
        step_pointers const at = pointers_at<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, i);
        nonfinite += careful_vector<true, Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(at, at, simd::lanes, c);
    }
    return nonfinite;
}
