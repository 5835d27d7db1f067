// SPDX-License-Identifier: Apache-2.0
// Steps that are taken to be timed: arrays of one shard with values as training has them, out of anybody's use.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <adamant/core/dtype.hpp>
#include <adamant/core/error.hpp>
#include <adamant/exec/executor.hpp>
#include <adamant/exec/memory.hpp>
#include <adamant/numerics/convert.hpp>
#include <adamant/shard/shard.hpp>
#include <adamant/step/step.hpp>

ADAMANT_BEGIN_NAMESPACE

// Which step: the types of param, grad, exp_avg, exp_avg_sq and weight_out (none: there is none), and its kernels.
struct trial_types {
    std::array<dtype, 5> dtypes;
    kernel::step_function (*step_for)(isa) noexcept;

    // A step reads param and both moments and writes them back, reads grad, and writes weight_out.
    [[nodiscard]] std::size_t bytes_per_element() const noexcept
    {
        return 2 * (size_bytes(dtypes[0]) + size_bytes(dtypes[2]) + size_bytes(dtypes[3])) + size_bytes(dtypes[1]) +
               size_bytes(dtypes[4]);
    }
    // All five arrays'.
    [[nodiscard]] std::size_t memory_per_element() const noexcept
    {
        std::size_t bytes = 0;
        for (dtype const type : dtypes)
            bytes += size_bytes(type);
        return bytes;
    }
    // The same types have the same text: "float32/bfloat16/float32/float32/bfloat16".
    [[nodiscard]] std::string text() const
    {
        std::string all;
        for (dtype const type : dtypes) {
            all += all.empty() ? "" : "/";
            all += type == dtype::none ? "-" : name(type);
        }
        return all;
    }
};

template <class Param, class Grad, class ExpAvg, class ExpAvgSq = ExpAvg, class WeightOut = void>
[[nodiscard]] constexpr trial_types trial_types_of() noexcept
{
    return {{dtype_of<Param>, dtype_of<Grad>, dtype_of<ExpAvg>, dtype_of<ExpAvgSq>, dtype_of<WeightOut>},
            kernel::step_for<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>};
}

namespace detail {

// The finalizer of MurmurHash3 (Appleby): as good as random, and any element's is found without the others'.
[[nodiscard]] constexpr std::uint32_t scattered(std::uint32_t x) noexcept
{
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}

// From -1 to 1, never 0: the sum of two even numbers, so that the middle is more frequent.
[[nodiscard]] constexpr float around_zero(std::uint32_t random) noexcept
{
    int const sum = static_cast<std::int16_t>(random & 0xffff) + static_cast<std::int16_t>(random >> 16);
    return static_cast<float>(2 * sum + 1) * (1 / 131072.0f);
}

} // namespace detail

// Arrays of n elements, first touched by the executor's threads, each where it will be used, in memory of these
// options. Values decide which path a kernel takes, so they are those of training: no two neighbours alike, no zeros,
// second moments that go with the gradients. The arrays begin at a cache line and at different offsets in their pages,
// as a program's do; at equal ones each load would wait for another array's store.
class trial_step {
public:
    // Throws what memory_block does, unavailable where there is too little memory among others.
    trial_step(executor const& cpu, trial_types const& types, std::size_t n, memory_options const& memory = {})
        : types_(types), n_(n)
    {
        if (memory.check_available)
            check_memory(n * types.memory_per_element());
        for (std::size_t k = 0; k < 5; ++k)
            blocks_.emplace_back(size_bytes(types.dtypes[k]) == 0 ? 0 : n * size_bytes(types.dtypes[k]) + k * apart,
                                 memory);
        cpu.for_each_home(n, [&](slice part) {
            for (std::size_t k = 0; k < 5; ++k)
                fill(k, part);
        });
    }

    [[nodiscard]] std::size_t size() const noexcept { return n_; }
    [[nodiscard]] trial_types const& types() const noexcept { return types_; }
    [[nodiscard]] std::vector<memory_block> const& blocks() const noexcept { return blocks_; }
    [[nodiscard]] std::byte* array(std::size_t k) noexcept
    {
        return size_bytes(types_.dtypes[k]) == 0 ? nullptr : blocks_[k].data() + k * apart;
    }

    // Takes one step, AdamW with a learning rate so small that nothing runs away, and returns what it took.
    double seconds(executor const& cpu)
    {
        coefficients const c =
            make_coefficients({.lr = 1e-5, .weight_decay = 0.01, .mode = decay_mode::decoupled}, 1000);
        auto const from = std::chrono::steady_clock::now();
        detail::run_step(cpu, types_.step_for(cpu.tier()), {array(0), array(1), array(2), array(3), array(4)}, n_,
                         types_.bytes_per_element(), c);
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
    }

private:
    static constexpr std::size_t apart = 1088;        // bytes, a multiple of a cache line, odd in a page
    static constexpr std::size_t period_elems = 4096; // after which values come again, so that arrays are made soon

    void fill(std::size_t k, slice part)
    {
        std::byte* const to = array(k);
        if (to == nullptr)
            return;
        auto const salt = static_cast<std::uint32_t>(k * 0x9e3779b9u);
        constexpr float scales[] = {0.05f, 1e-3f, 3e-4f, 1e-6f, 0.05f};
        std::size_t const each = size_bytes(types_.dtypes[k]);
        std::size_t const made = std::min(part.end, part.begin + period_elems);
        for (std::size_t i = part.begin; i < made; ++i) {
            float const x = detail::around_zero(detail::scattered(static_cast<std::uint32_t>(i) ^ salt));
            float const value = scales[k] * (k == 3 ? 0.1f + x * x : x);
            switch (types_.dtypes[k]) {
            case dtype::float32: store_unaligned(to + 4 * i, value); break;
            case dtype::bfloat16: store_unaligned(to + 2 * i, narrow<bfloat16>(value)); break;
            case dtype::float16: store_unaligned(to + 2 * i, narrow<float16>(value)); break;
            default: break;
            }
        }
        for (std::size_t i = made; i < part.end; i += period_elems) // which is far quicker
            std::memcpy(to + i * each, to + part.begin * each, std::min(period_elems, part.end - i) * each);
    }

    trial_types types_;
    std::size_t n_;
    std::vector<memory_block> blocks_;
};

ADAMANT_END_NAMESPACE
