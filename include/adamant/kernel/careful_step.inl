// SPDX-License-Identifier: Apache-2.0
// The step over anything that the fast paths do not take: values next to zero, infinities, NaNs, and what is left over
// for less than a group. Included by kernel/fused_step.inl, once per instruction set.

// A result that the careful path stores: rounding to bfloat16 can reach 2^-126 from above.
template <class T>
ADAMANT_SIMD void store_carefully(std::byte* address, simd::f32 x)
{
    x = simd::canonical(x, x);
    if constexpr (std::is_same_v<T, bfloat16>)
        x = simd::flush(x, bfloat16_flush_bits);
    simd::store<T>(address, x);
}

// The arrays from element i on.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
ADAMANT_SIMD step_pointers pointers_at(step_pointers const& a, std::size_t i)
{
    step_pointers at{a.param + i * sizeof(Param), a.grad + i * sizeof(Grad), a.exp_avg + i * sizeof(ExpAvg),
                     a.exp_avg_sq + i * sizeof(ExpAvgSq), nullptr};
    if constexpr (!std::is_void_v<WeightOut>)
        at.weight_out = a.weight_out + i * sizeof(WeightOut);
    return at;
}

// What a step has written for `count` elements, from buffers to where it belongs.
template <class Param, class ExpAvg, class ExpAvgSq, class WeightOut>
ADAMANT_SIMD void copy_results(step_pointers const& to, step_pointers const& from, std::size_t count)
{
    copy_few(to.param, from.param, count * sizeof(Param));
    copy_few(to.exp_avg, from.exp_avg, count * sizeof(ExpAvg));
    copy_few(to.exp_avg_sq, from.exp_avg_sq, count * sizeof(ExpAvgSq));
    if constexpr (!std::is_void_v<WeightOut>)
        copy_few(to.weight_out, from.weight_out, count * sizeof(WeightOut));
}

// One vector, each operation flushed by hand, from there to there; returns how many of its gradients are not finite.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
ADAMANT_SIMD unsigned careful_vector(step_pointers const& from, step_pointers const& to, coefficient_vectors const& c)
{
    simd::f32 const grad = simd::load<Grad>(from.grad);
    state_vectors s{simd::load<Param>(from.param), simd::load<ExpAvg>(from.exp_avg),
                    simd::load<ExpAvgSq>(from.exp_avg_sq)};
    guard<path::careful> nothing;
    update_moments<path::careful>(s, grad, c, nothing);
    simd::f32 const param = finish_param<path::careful>(start_param<path::careful>(s, c), c);
    store_carefully<Param>(to.param, param);
    store_carefully<ExpAvg>(to.exp_avg, s.exp_avg);
    store_carefully<ExpAvgSq>(to.exp_avg_sq, s.exp_avg_sq);
    if constexpr (!std::is_void_v<WeightOut>)
        store_carefully<WeightOut>(to.weight_out, param);
    return simd::count_nonfinite(grad);
}

// Elements [begin, end), one vector at a time. Elements from `readable` on, at most `begin`, have not been stepped yet.
// What is left over for less than a vector goes first and through buffers, so nothing outside the arrays is read or
// written: it is read as the end of the last whole vector. Only where there is none is it copied into buffers, which a
// load of a whole vector has to wait for.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
[[gnu::noinline]] std::uint64_t careful_step(step_pointers const& a, std::size_t readable, std::size_t begin,
                                             std::size_t end, coefficients const& scalars) noexcept
{
    coefficient_vectors const c = broadcast(scalars);
    std::uint64_t nonfinite = 0;
    std::size_t const rest = (end - begin) % simd::lanes;
    if (rest != 0) {
        alignas(64) std::byte spare[5][simd::lanes * sizeof(float)];
        step_pointers const to{spare[0], spare[1], spare[2], spare[3], spare[4]};
        step_pointers const in_place = pointers_at<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, end - rest);
        if (end - readable >= simd::lanes) {
            unsigned const bad = careful_vector<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(
                pointers_at<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, end - simd::lanes), to, c);
            if (bad != 0) // of elements before the rest, too
                for (std::size_t i = 0; i < rest; ++i)
                    nonfinite += !is_finite(widen(load_unaligned<Grad>(in_place.grad + i * sizeof(Grad))));
            copy_results<Param, ExpAvg, ExpAvgSq, WeightOut>(
                in_place, pointers_at<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(to, simd::lanes - rest), rest);
        } else { // by calls of memcpy, whose wider stores keep the load waiting for less
            __builtin_memset(spare, 0, sizeof spare);
            __builtin_memcpy(to.param, in_place.param, rest * sizeof(Param));
            __builtin_memcpy(spare[1], in_place.grad, rest * sizeof(Grad));
            __builtin_memcpy(to.exp_avg, in_place.exp_avg, rest * sizeof(ExpAvg));
            __builtin_memcpy(to.exp_avg_sq, in_place.exp_avg_sq, rest * sizeof(ExpAvgSq));
            nonfinite += careful_vector<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(to, to, c);
            __builtin_memcpy(in_place.param, to.param, rest * sizeof(Param));
            __builtin_memcpy(in_place.exp_avg, to.exp_avg, rest * sizeof(ExpAvg));
            __builtin_memcpy(in_place.exp_avg_sq, to.exp_avg_sq, rest * sizeof(ExpAvgSq));
            if constexpr (!std::is_void_v<WeightOut>)
                __builtin_memcpy(in_place.weight_out, to.weight_out, rest * sizeof(WeightOut));
        }
    }
    for (std::size_t i = begin; i < end - rest; i += simd::lanes) {
        step_pointers const at = pointers_at<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, i);
        nonfinite += careful_vector<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(at, at, c);
    }
    return nonfinite;
}
