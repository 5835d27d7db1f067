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

// Any number of elements from `begin` on, one vector at a time, each operation flushed by hand. What is left over for
// less than a vector goes through buffers, so nothing outside the arrays is read or written.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
[[gnu::noinline]] std::uint64_t careful_step(step_pointers const& a, std::size_t begin, std::size_t end,
                                             coefficients const& scalars) noexcept
{
    coefficient_vectors const c = broadcast(scalars);
    std::uint64_t nonfinite = 0;
    for (std::size_t i = begin; i < end; i += simd::lanes) {
        std::size_t const count = end - i < simd::lanes ? end - i : simd::lanes;
        alignas(64) std::byte spare[5][simd::lanes * sizeof(float)];
        step_pointers at{a.param + i * sizeof(Param), a.grad + i * sizeof(Grad), a.exp_avg + i * sizeof(ExpAvg),
                         a.exp_avg_sq + i * sizeof(ExpAvgSq), nullptr};
        if constexpr (!std::is_void_v<WeightOut>)
            at.weight_out = a.weight_out + i * sizeof(WeightOut);
        step_pointers const in_place = at;
        if (count < simd::lanes) {
            at = {spare[0], spare[1], spare[2], spare[3], spare[4]};
            __builtin_memset(spare, 0, sizeof spare);
            __builtin_memcpy(at.param, in_place.param, count * sizeof(Param));
            __builtin_memcpy(spare[1], in_place.grad, count * sizeof(Grad));
            __builtin_memcpy(at.exp_avg, in_place.exp_avg, count * sizeof(ExpAvg));
            __builtin_memcpy(at.exp_avg_sq, in_place.exp_avg_sq, count * sizeof(ExpAvgSq));
        }
        simd::f32 const grad = simd::load<Grad>(at.grad);
        state_vectors s{simd::load<Param>(at.param), simd::load<ExpAvg>(at.exp_avg),
                        simd::load<ExpAvgSq>(at.exp_avg_sq)};
        guard<path::careful> nothing;
        nonfinite += simd::count_nonfinite(grad);
        update_moments<path::careful>(s, grad, c, nothing);
        simd::f32 const param = finish_param<path::careful>(start_param<path::careful>(s, c), c);
        store_carefully<Param>(at.param, param);
        store_carefully<ExpAvg>(at.exp_avg, s.exp_avg);
        store_carefully<ExpAvgSq>(at.exp_avg_sq, s.exp_avg_sq);
        if constexpr (!std::is_void_v<WeightOut>)
            store_carefully<WeightOut>(at.weight_out, param);
        if (count < simd::lanes) {
            __builtin_memcpy(in_place.param, at.param, count * sizeof(Param));
            __builtin_memcpy(in_place.exp_avg, at.exp_avg, count * sizeof(ExpAvg));
            __builtin_memcpy(in_place.exp_avg_sq, at.exp_avg_sq, count * sizeof(ExpAvgSq));
            if constexpr (!std::is_void_v<WeightOut>)
                __builtin_memcpy(in_place.weight_out, at.weight_out, count * sizeof(WeightOut));
        }
    }
    return nonfinite;
}
