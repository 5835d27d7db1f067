// SPDX-License-Identifier: Apache-2.0
// The arrays that rows work on: their memory, and what is in it.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <type_traits>

#include <adamant/executor.hpp>
#include <adamant/hyperparameters.hpp>
#include <adamant/memory.hpp>
#include <adamant/shard.hpp>
#include <adamant/detail/numerics/quantized8.hpp>

#include "random.hpp"

namespace bench {

using adamant::bfloat16;
using adamant::dtype;
using adamant::executor;
using adamant::page_kind;
using adamant::quantized8;
using adamant::shard_dtypes;
using adamant::slice;

using f32 = adamant::shard<float, float, float>;
using bf16_f32 = adamant::shard<bfloat16, bfloat16, float>;
using mixed = adamant::shard<float, bfloat16, float, float, bfloat16>; // what offloading uses
using bf16 = adamant::shard<bfloat16, bfloat16, bfloat16>;
using split = adamant::shard<adamant::split_float32, bfloat16, float, float, bfloat16>;
using split_bf16 = adamant::shard<adamant::split_float32, bfloat16, bfloat16, bfloat16, bfloat16>;
using q8 = adamant::shard<float, bfloat16, quantized8, quantized8, bfloat16>;
using split_q8 = adamant::shard<adamant::split_float32, bfloat16, quantized8, quantized8, bfloat16>;
using bf16_q8 = adamant::shard<bfloat16, bfloat16, quantized8>;

template <class Visitor>
void for_each_types(Visitor const& visit)
{
    visit.template operator()<f32>("f32");
    visit.template operator()<bf16_f32>("bf16_f32");
    visit.template operator()<mixed>("mixed");
    visit.template operator()<bf16>("bf16");
    visit.template operator()<split>("split");
    visit.template operator()<split_bf16>("split_bf16");
    visit.template operator()<q8>("q8");
    visit.template operator()<split_q8>("split_q8");
    visit.template operator()<bf16_q8>("bf16_q8");
}

// Up to five arrays of n elements, not touched yet. They begin at a cache line, and at different offsets in their
// pages, as a program's arrays do: at equal offsets each load would wait for the store of another array.
class arrays {
public:
    arrays(shard_dtypes const& types, std::size_t n, page_kind pages = page_kind::transparent)
        : memory_(place(types, n), {.pages = pages})
    {
        for (std::size_t k = 0; k < 5; ++k)
            pointers_[k] = types[k] == dtype::none ? nullptr : memory_.data() + begin_[k];
    }

    [[nodiscard]] std::byte* const* pointers() const { return pointers_.data(); }
    template <class T>
    [[nodiscard]] T* get(std::size_t k) const
    {
        return reinterpret_cast<T*>(pointers_[k]);
    }
    // The share of what has been touched that is in huge pages.
    [[nodiscard]] double huge_share() const
    {
        adamant::memory_placement const placed = measure_placement(memory_.block());
        return static_cast<double>(placed.huge_bytes) / static_cast<double>(placed.resident_bytes);
    }

private:
    std::size_t place(shard_dtypes const& types, std::size_t n)
    {
        constexpr std::size_t huge_page = std::size_t{2} << 20;
        std::size_t end = 0;
        for (std::size_t k = 0; k < 5; ++k) {
            begin_[k] = (end + huge_page - 1) / huge_page * huge_page + k * 1088;
            end = types[k] == dtype::none ? end : begin_[k] + array_bytes(types[k], n);
        }
        return end;
    }

    std::array<std::size_t, 5> begin_{};
    adamant::buffer<std::byte> memory_;
    std::array<std::byte*, 5> pointers_{};
};

// Elements [begin, begin + n) of them; begin: a multiple of elems_together().
template <class Shard>
Shard shard_of(arrays const& a, std::size_t begin, std::size_t n)
{
    std::size_t const group = begin / elems_together(Shard::dtypes);
    auto* const param = a.get<typename Shard::param_type>(0) + begin;
    auto* const grad = a.get<typename Shard::grad_type>(1) + begin;
    auto* const exp_avg = a.get<typename Shard::exp_avg_type>(2) + group;
    auto* const exp_avg_sq = a.get<typename Shard::exp_avg_sq_type>(3) + group;
    if constexpr (std::is_void_v<typename Shard::weight_out_type>)
        return Shard(param, grad, exp_avg, exp_avg_sq, n);
    else
        return Shard(param, grad, exp_avg, exp_avg_sq, a.get<typename Shard::weight_out_type>(4) + begin, n);
}

inline adamant::coefficients adamw()
{
    return adamant::make_coefficients({.lr = 1e-5, .weight_decay = 0.01, .mode = adamant::decay_mode::decoupled}, 1000);
}

// ------------------------------------------------------------------------------------------------------------- data

template <class T>
T subnormal(std::uint32_t random)
{
    if constexpr (std::is_same_v<T, float>)
        return std::bit_cast<float>((random & 0x807fffffu) | 1u);
    else
        return {static_cast<std::uint16_t>((random >> 16 & 0x807fu) | 1u)};
}

// Of every magnitude between 2^-126 and 2^-50.
inline float tiny(std::uint32_t random)
{
    return std::bit_cast<float>((random & 0x807fffffu) | ((random >> 8) % 75 + 1) << 23);
}

enum class content {
    ordinary,
    subnormal, // param, grad and both moments
    idle,      // no gradient for so long that exp_avg has come to 0 and exp_avg_sq is well on its way
    fading,    // no gradient for some hundred steps: exp_avg is on its way to 0, far below anything ordinary
};

template <class T, class Make>
void fill_array(arrays const& a, std::size_t k, slice part, Make const& make)
{
    auto const salt = static_cast<std::uint32_t>(k * 0x9e3779b9u);
    T* const array = a.get<T>(k);
    for (std::size_t i = part.begin; i < part.end; ++i)
        array[i] = make(random_bits(static_cast<std::uint32_t>(i) ^ salt));
}

// As fill_array(); quantized8 gets its codes from the floats that make() returns.
template <class T, class Make>
void fill_moment(arrays const& a, std::size_t k, slice part, Make const& make)
{
    if constexpr (!std::is_same_v<T, quantized8>) {
        fill_array<T>(a, k, part, [&make](std::uint32_t random) { return adamant::narrow<T>(make(random)); });
    } else {
        auto const salt = static_cast<std::uint32_t>(k * 0x9e3779b9u);
        float group[adamant::quantized_group_elems];
        for (std::size_t i = part.begin; i < part.end; i += std::size(group)) {
            std::size_t const n = std::min(part.end - i, std::size(group));
            for (std::size_t j = 0; j < n; ++j)
                group[j] = make(random_bits(static_cast<std::uint32_t>(i + j) ^ salt));
            adamant::encode_group(k == 2 ? adamant::exp_avg_curve : adamant::exp_avg_sq_curve, group, n, false, {},
                                  a.pointers()[k] + array_bytes(dtype::quantized8, i));
        }
    }
}

template <class Grad>
void fill_ordinary_grad(arrays const& a, slice part)
{
    fill_array<Grad>(a, 1, part, [](std::uint32_t random) { return adamant::narrow<Grad>(1e-3f * bell(random)); });
}

// By the threads that will use it, so that each finds its part in memory of its own.
template <class Shard>
void fill(executor const& cpu, arrays const& a, std::size_t n, content what)
{
    using param = typename Shard::param_type;
    using grad = typename Shard::grad_type;
    using exp_avg = typename Shard::exp_avg_type;
    using exp_avg_sq = typename Shard::exp_avg_sq_type;
    auto const clear = [&a](std::size_t k, slice part) {
        dtype const type = Shard::dtypes[k];
        std::memset(a.pointers()[k] + array_bytes(type, part.begin), 0, array_bytes(type, part.size()));
    };
    cpu.for_each_owned_slice(n, [&](slice part) {
        if constexpr (has_split_param(Shard::dtypes))
            fill_array<bfloat16>(a, 4, part,
                                 [](std::uint32_t random) { return adamant::narrow<bfloat16>(0.05f * bell(random)); });
        else if constexpr (Shard::dtypes[4] != dtype::none)
            clear(4, part);
        if (what == content::subnormal) {
            if constexpr (has_split_param(Shard::dtypes))
                clear(4, part); // and the lower half of a subnormal number
            fill_array<param>(a, 0, part, subnormal<param>);
            fill_array<grad>(a, 1, part, subnormal<grad>);
            fill_moment<exp_avg>(a, 2, part, subnormal<float>);
            fill_moment<exp_avg_sq>(a, 3, part,
                                    [](std::uint32_t random) { return subnormal<float>(random & 0x7fffffffu); });
            return;
        }
        fill_array<param>(a, 0, part, [](std::uint32_t random) {
            if constexpr (has_split_param(Shard::dtypes))
                return param{static_cast<std::uint16_t>(random)};
            else
                return adamant::narrow<param>(0.05f * bell(random));
        });
        if (what == content::ordinary)
            fill_ordinary_grad<grad>(a, part);
        else
            clear(1, part);
        if (what == content::idle)
            clear(2, part);
        else if (what == content::fading)
            fill_moment<exp_avg>(a, 2, part, tiny);
        else
            fill_moment<exp_avg>(a, 2, part, [](std::uint32_t random) { return 3e-4f * bell(random); });
        float const variance = what == content::ordinary ? 1e-6f : 1e-7f;
        fill_moment<exp_avg_sq>(
            a, 3, part, [variance](std::uint32_t random) { return variance * (0.1f + bell(random) * bell(random)); });
    });
}

} // namespace bench
