// SPDX-License-Identifier: Apache-2.0
// A shard of any types: its arrays, its size and its format.
#pragma once

#include <cstddef>

#include <adamant/shard/format.hpp>
#include <adamant/shard/shard.hpp>

ADAMANT_BEGIN_NAMESPACE

// A view as shard is, from which it converts.
class any_shard {
public:
    template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
    ADAMANT_ALWAYS_INLINE
    any_shard(shard<Param, Grad, ExpAvg, ExpAvgSq, WeightOut> const& of) noexcept // NOLINT: meant to convert
        : any_shard(step_format<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(), of.pointers(), of.size())
    {
    }
    // From arrays whose types are known at run time, unchecked.
    ADAMANT_ALWAYS_INLINE any_shard(shard_format const& format, kernel::step_pointers const& pointers,
                                    std::size_t size) noexcept
        : pointers_(pointers), size_(size), format_(&format)
    {
    }

    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    // The same shard as elements of that parameter, by which stochastic rounding goes. Without, it is elements 0 to
    // size() of parameter 0. An optimizer goes by the names and places that it was given.
    [[nodiscard]] any_shard at(place_in_param const& place) const noexcept
    {
        any_shard placed = *this;
        placed.pointers_.place = place;
        return placed;
    }
    [[nodiscard]] kernel::step_pointers const& pointers() const noexcept { return pointers_; }
    [[nodiscard]] shard_format const& format() const noexcept { return *format_; }
    // Reads no other pointer: a gradient may be changed while threads are at work on the rest.
    [[nodiscard]] std::byte* data(shard_array::index array) const noexcept
    {
        switch (array) {
        case shard_array::param: return pointers_.param;
        case shard_array::grad: return const_cast<std::byte*>(pointers_.grad);
        case shard_array::exp_avg: return pointers_.exp_avg;
        case shard_array::exp_avg_sq: return pointers_.exp_avg_sq;
        default: return pointers_.weight_out;
        }
    }
    // Bytes of n elements in that array, and where element n is.
    [[nodiscard]] std::size_t bytes(std::size_t array, std::size_t n) const noexcept
    {
        return array_bytes(format_->types[array], n);
    }
    // The kernel for its types on a tier that resolve_isa() returned.
    [[nodiscard]] kernel::step_function step_for(isa tier) const noexcept { return format_->step_for(tier); }
    // See step_bytes() in shard/dtypes.hpp: on average, and of a step over the whole shard.
    [[nodiscard]] double bytes_per_element() const noexcept { return step_bytes(format_->types); }
    [[nodiscard]] std::size_t bytes_moved() const noexcept { return step_bytes(format_->types, size_); }

private:
    kernel::step_pointers pointers_;
    std::size_t size_;
    shard_format const* format_;
};

ADAMANT_END_NAMESPACE
