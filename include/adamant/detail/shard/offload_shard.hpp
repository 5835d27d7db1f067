// SPDX-License-Identifier: Apache-2.0
// A shard as an optimizer holds it: with an accumulator, and bound to the kernels of one instruction set.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <adamant/dtype.hpp>
#include <adamant/shard.hpp>
#include <adamant/detail/core/checksum.hpp>
#include <adamant/detail/shard/block_pass.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

struct alignas(64) scratch_block {
    std::byte grad[norm_block_elems * sizeof(float)];
};

class offload_shard {
public:
    using enum shard_array::index;

    // sum: the accumulator's memory, of that type; null and dtype::none without an accumulator.
    offload_shard(any_shard const& of, isa tier, std::byte* sum = nullptr, dtype sum_type = dtype::none,
                  kernel::sum_kernels const* sum_kernels = nullptr) noexcept
        : of_(of), kernels_(&of.format().block_kernels_for(tier)), sum_(sum), sum_kernels_(sum_kernels),
          sum_type_(sum_type)
    {
    }

    [[nodiscard]] std::size_t size() const noexcept { return of_.size(); }
    [[nodiscard]] shard_format const& format() const noexcept { return of_.format(); }
    [[nodiscard]] std::size_t blocks() const noexcept { return (size() + norm_block_elems - 1) / norm_block_elems; }
    [[nodiscard]] dtype type(shard_array::index which) const noexcept
    {
        return which == shard_array::accumulator ? sum_type_ : of_.format().types[which];
    }
    [[nodiscard]] bool has_accumulator() const noexcept { return sum_kernels_ != nullptr; }
    [[nodiscard]] bool has_weight_out() const noexcept { return type(weight_out) != dtype::none; }
    [[nodiscard]] bool is_state(shard_array::index which) const noexcept
    {
        return which != shard_array::accumulator && adamant::is_state(format().types, which);
    }
    [[nodiscard]] std::byte* data(shard_array::index which) const noexcept
    {
        return which == shard_array::accumulator ? sum_ : of_.data(which);
    }
    // Of element `begin`.
    [[nodiscard]] place_in_param place(std::size_t begin) const noexcept
    {
        place_in_param const& first = of_.pointers().place;
        return {first.param, first.begin + begin};
    }
    // From now on the gradient is there, of the same type and size.
    void set_gradient(std::byte const* at) noexcept
    {
        kernel::step_pointers pointers = of_.pointers();
        pointers.grad = at;
        of_ = any_shard(format(), pointers, size());
    }
    // Bytes of n elements in that array, and where element n is.
    [[nodiscard]] std::size_t bytes(shard_array::index which, std::size_t n) const noexcept
    {
        return array_bytes(type(which), n);
    }
    [[nodiscard]] std::size_t state_bytes(std::size_t n) const noexcept
    {
        return adamant::state_bytes(of_.format().types, n);
    }
    [[nodiscard]] bool records_are_copies() const noexcept { return kernels_->recorded == nullptr; }
    // The longest record of n elements.
    [[nodiscard]] std::size_t record_bytes_at_most(std::size_t n) const noexcept
    {
        return kernels_->recorded != nullptr ? kernel::record_bytes_at_most(n) : state_bytes(n) + 64;
    }

    // How many elements block `block` has.
    [[nodiscard]] std::size_t length(std::size_t block) const noexcept
    {
        return std::min(norm_block_elems, size() - block * norm_block_elems);
    }

    // One block's gradient, ready for a step: in the shard's array, or in scratch.
    struct ready_gradient {
        std::byte const* at;
        bool in_scratch;
        grad_squares squares; // of the accumulated gradients, before any rule
    };
    // summed: whether the accumulator holds earlier micro-steps' gradients. Squares are computed only if they are
    // wanted, or needed to know whether something has to be made zero.
    [[nodiscard]] ready_gradient gradient(std::size_t block, bool summed, gradient_rules const& rules,
                                          bool want_squares, scratch_block& scratch) const noexcept
    {
        std::size_t const n = length(block);
        std::size_t const begin = block * norm_block_elems;
        ready_gradient g{data(grad) + bytes(grad, begin), false, {}};
        if (summed) {
            sum_into_scratch(block, scratch);
            g.at = scratch.grad;
            g.in_scratch = true;
        }
        if (want_squares || rules.zero_nonfinite)
            g.squares = (g.in_scratch ? kernels_->squares_scratch : kernels_->squares)(g.at, n);
        bool const zero = rules.zero_nonfinite && g.squares.nonfinite != 0;
        if (zero || rules.limited) {
            into_scratch(block, g, scratch);
            kernels_->clamp_gradient(scratch.grad, n, zero, rules.limited ? rules.scale : 1.0f,
                                     rules.limited ? rules.bound : std::bit_cast<float>(float_infinity_bits));
        }
        return g;
    }

    // A checksum of a block's gradient and, if summed, of its accumulator. Other bits have another checksum, except by
    // a chance of one in 2^64.
    [[nodiscard]] std::uint64_t gradient_checksum(std::size_t block, bool summed) const noexcept
    {
        auto const of = [&](shard_array::index which) {
            return checksum(data(which) + bytes(which, block * norm_block_elems), bytes(which, length(block)));
        };
        return of(grad) + (summed ? 3 * of(accumulator) : 0);
    }

    void step(std::size_t block, ready_gradient const& g, coefficients const& c,
              kernel::memory_access how) const noexcept
    {
        (g.in_scratch ? kernels_->step_scratch : kernels_->step)(at(block, g.at), 0, length(block), c, how);
    }
    // Blocks [begin, end) at once, with the gradient where it lies.
    void step(std::size_t begin, std::size_t end, coefficients const& c, kernel::memory_access how) const noexcept
    {
        kernels_->step(of_.pointers(), begin * norm_block_elems, std::min(size(), end * norm_block_elems), c, how);
    }
    // With a record for rollback(); returns its end.
    [[nodiscard]] std::byte* step_recorded(std::size_t block, ready_gradient const& g, coefficients const& c,
                                           kernel::memory_access how, std::byte* record) const noexcept
    {
        std::size_t const n = length(block);
        if (!records_are_copies()) {
            how.grad_is_float = g.in_scratch;
            return over_masters(block, g.at, [&](kernel::step_pointers const& arrays) {
                return kernels_->recorded(arrays, n, c, how, record);
            });
        }
        for (shard_array::index const which : state_arrays) {
            if (!is_state(which))
                continue;
            std::memcpy(record, data(which) + bytes(which, block * norm_block_elems), bytes(which, n));
            record += bytes(which, n);
        }
        step(block, g, c, how);
        return record;
    }
    void rollback(std::size_t block, ready_gradient g, coefficients const& c, kernel::memory_access how,
                  std::byte const* record, scratch_block& scratch) const noexcept
    {
        std::size_t const n = length(block);
        if (!records_are_copies()) {
            into_scratch(block, g, scratch);
            over_masters(block, g.at, [&](kernel::step_pointers const& arrays) {
                kernels_->rollback_scratch(arrays, n, c, how, record);
            });
            return;
        }
        for (shard_array::index const which : state_arrays) {
            if (!is_state(which))
                continue;
            std::memcpy(data(which) + bytes(which, block * norm_block_elems), record, bytes(which, n));
            record += bytes(which, n);
        }
    }
    // weight_out from param, for elements [begin, end).
    void round_weights(std::size_t begin, std::size_t end) const noexcept
    {
        if (kernels_->round_weights != nullptr)
            kernels_->round_weights(data(param) + bytes(param, begin), end - begin,
                                    data(weight_out) + bytes(weight_out, begin));
    }
    // accumulator = grad, or += grad, for elements [begin, end).
    void accumulate(std::size_t begin, std::size_t end, bool first) const noexcept
    {
        scratch_block scratch;
        for (std::size_t n = 0; begin < end; begin += n) {
            n = std::min(norm_block_elems, end - begin);
            std::byte const* const from = floats(begin, n, scratch);
            std::byte* const sum = sum_ + bytes(accumulator, begin);
            (first ? sum_kernels_->begin : sum_kernels_->add)(from, sum, n, sum);
        }
    }
    // The index of the first gradient that is infinite or NaN in a block that has one.
    [[nodiscard]] std::size_t first_nonfinite(std::size_t block, bool summed) const noexcept
    {
        scratch_block scratch;
        if (summed)
            sum_into_scratch(block, scratch);
        else
            kernels_->to_scratch(data(grad) + bytes(grad, block * norm_block_elems), nullptr, length(block),
                                 scratch.grad);
        std::size_t i = 0;
        while (i + 1 < length(block) && is_finite(load_unaligned<float>(scratch.grad + i * sizeof(float))))
            ++i;
        return block * norm_block_elems + i;
    }

    // n elements of the same types: only a gradient and its accumulator.
    [[nodiscard]] offload_shard with_gradient(std::byte const* gradient, std::byte* sum, std::size_t n) const noexcept
    {
        offload_shard other = *this;
        other.of_ = any_shard(format(), {nullptr, gradient, nullptr, nullptr, nullptr}, n);
        other.sum_ = sum;
        return other;
    }

private:
    // Gradients from element `begin` on as floats: where they lie, or in scratch.
    [[nodiscard]] std::byte const* floats(std::size_t begin, std::size_t n, scratch_block& scratch) const noexcept
    {
        std::byte const* const from = data(grad) + bytes(grad, begin);
        if (type(grad) == dtype::float32)
            return from;
        kernels_->to_scratch(from, nullptr, n, scratch.grad);
        return scratch.grad;
    }
    // A block's gradient and what its accumulator holds.
    void sum_into_scratch(std::size_t block, scratch_block& scratch) const noexcept
    {
        std::size_t const begin = block * norm_block_elems;
        sum_kernels_->to_scratch(floats(begin, length(block), scratch), sum_ + bytes(accumulator, begin), length(block),
                                 scratch.grad);
    }
    void into_scratch(std::size_t block, ready_gradient& g, scratch_block& scratch) const noexcept
    {
        if (!g.in_scratch)
            kernels_->to_scratch(g.at, nullptr, length(block), scratch.grad);
        g.at = scratch.grad;
        g.in_scratch = true;
    }
    // Calls work with a block's arrays, param as floats: where it is split in two, a copy that is then
    // split.
    template <class Work>
    std::invoke_result_t<Work, kernel::step_pointers const&> over_masters(std::size_t block, std::byte const* gradient,
                                                                          Work const& work) const noexcept
    {
        kernel::step_pointers arrays = at(block, gradient);
        if (kernels_->join == nullptr)
            return work(arrays);
        scratch_block masters;
        kernels_->join(arrays.weight_out, arrays.param, length(block), masters.grad);
        struct split_again {
            kernel::block_kernels const* kernels;
            kernel::step_pointers to;
            std::byte const* from;
            std::size_t n;
            ~split_again() { kernels->split(from, n, to.weight_out, to.param); }
        } const at_the_end{kernels_, arrays, masters.grad, length(block)};
        arrays.param = masters.grad;
        arrays.weight_out = nullptr;
        return work(arrays);
    }
    // The arrays from a block on.
    [[nodiscard]] kernel::step_pointers at(std::size_t block, std::byte const* gradient) const noexcept
    {
        std::size_t const begin = block * norm_block_elems;
        return {data(param) + bytes(param, begin),
                gradient,
                data(exp_avg) + bytes(exp_avg, begin),
                data(exp_avg_sq) + bytes(exp_avg_sq, begin),
                has_weight_out() ? data(weight_out) + bytes(weight_out, begin) : nullptr,
                place(begin)};
    }

    any_shard of_;
    kernel::block_kernels const* kernels_;
    std::byte* sum_;
    kernel::sum_kernels const* sum_kernels_;
    dtype sum_type_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
