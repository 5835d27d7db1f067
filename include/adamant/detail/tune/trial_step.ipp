// SPDX-License-Identifier: Apache-2.0
// Definitions of adamant/detail/tune/trial_step.hpp.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>

#include <adamant/dtype.hpp>
#include <adamant/memory.hpp>
#include <adamant/step.hpp>
#include <adamant/tune.hpp>
#include <adamant/detail/numerics/quantized8.hpp>
#include <adamant/detail/tune/mix_bits.hpp>

ADAMANT_BEGIN_NAMESPACE

ADAMANT_DECL trial_step::trial_step(executor const& cpu, shard_format const& format, std::size_t n,
                                    memory_options const& memory)
    : format_(&format), n_(n)
{
    if (memory.check_available)
        check_memory(memory_bytes(format.types, n));
    for (std::size_t k = 0; k < 5; ++k)
        blocks_.emplace_back(
            format.types[k] == dtype::none ? 0 : array_bytes(format.types[k], n) + k * offset_step_bytes, memory);
    cpu.for_each_owned_slice(n, [&](slice part) {
        for (std::size_t k = 0; k < 5; ++k)
            fill(k, part);
    });
}

ADAMANT_DECL std::byte* trial_step::array(std::size_t k) noexcept
{
    return format_->types[k] == dtype::none ? nullptr : blocks_[k].data() + k * offset_step_bytes;
}

ADAMANT_DECL double trial_step::seconds(executor const& cpu)
{
    coefficients const c = make_coefficients({.lr = 1e-5, .weight_decay = 0.01, .mode = decay_mode::decoupled}, 1000);
    auto const begin = std::chrono::steady_clock::now();
    step(cpu, any_shard(*format_, {array(0), array(1), array(2), array(3), array(4)}, n_), c);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

ADAMANT_DECL void trial_step::fill(std::size_t k, slice part)
{
    std::byte* const dst = array(k);
    if (dst == nullptr)
        return;
    auto const salt = static_cast<std::uint32_t>(k * 0x9e3779b9u);
    constexpr float scales[] = {0.05f, 1e-3f, 3e-4f, 1e-6f, 0.05f};
    dtype const type = format_->types[k];
    float group[quantized_group_elems]; // of quantized8
    std::size_t const computed_end = std::min(part.end, part.begin + period_elems);
    for (std::size_t i = part.begin; i < computed_end; ++i) {
        float const x = detail::to_symmetric_float(detail::mix_bits(static_cast<std::uint32_t>(i) ^ salt));
        float const value = scales[k] * (k == 3 ? 0.1f + x * x : x);
        switch (type) {
        case dtype::float32: store_unaligned(dst + 4 * i, value); break;
        case dtype::bfloat16: store_unaligned(dst + 2 * i, narrow<bfloat16>(value)); break;
        case dtype::float16: store_unaligned(dst + 2 * i, narrow<float16>(value)); break;
        case dtype::split_float32: store_unaligned(dst + 2 * i, split_master(value).low); break;
        case dtype::quantized8:
            group[i % quantized_group_elems] = value;
            if (std::size_t const n = i % quantized_group_elems + 1;
                n == quantized_group_elems || i + 1 == computed_end)
                encode_group(k == 2 ? exp_avg_curve : exp_avg_sq_curve, group, n, false, {},
                             dst + array_bytes(type, i + 1 - n));
            break;
        case dtype::none: break;
        }
    }
    for (std::size_t i = computed_end; i < part.end; i += period_elems) // a copy is far faster
        std::memcpy(dst + array_bytes(type, i), dst + array_bytes(type, part.begin),
                    array_bytes(type, std::min(period_elems, part.end - i)));
}

ADAMANT_END_NAMESPACE
