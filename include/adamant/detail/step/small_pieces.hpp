// SPDX-License-Identifier: Apache-2.0
// Batches small pieces of many shards, each less than a group of vectors, and steps them together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

#include <adamant/shard.hpp>
#include <adamant/detail/kernels/copy_few.hpp>
#include <adamant/detail/shard/change_tracker.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Kernels are fast only over whole groups of vectors. So pieces that are smaller than a group and have the same types
// and coefficients are copied next to each other, stepped in one call, and copied back, which takes a third of the
// time. An element's result does not depend on its position, so no bit depends on which pieces share a batch. Larger
// pieces gain nothing.
class small_pieces {
public:
    small_pieces(isa tier, std::span<coefficients const> group_coefficients) noexcept
        : tier_(tier), smaller_than_(std::min(kernel::step_elems_for(tier), max_piece_elems)),
          group_coefficients_(group_coefficients)
    {
    }
    small_pieces(small_pieces const&) = delete;
    small_pieces& operator=(small_pieces const&) = delete;

    // Whether to add a piece of this many elements of s. False if stochastic rounding depends on the positions of
    // elements, if elements share a scale, or if weight_out is a copy of the params.
    [[nodiscard]] bool can_take(grouped_shard const& s, std::size_t elems) const noexcept
    {
        return elems < smaller_than_ && elems_together(s.shard.format().types) == 1 &&
               !has_param_copy(s.shard.format().types) &&
               !rounds_stochastically(s.shard.format().types, group_coefficients_[s.group].rounding);
    }
    // Adds elements [begin, end) of s, which can_take() has accepted. They are stepped in finish() at the latest; s
    // must stay valid until then.
    void add(grouped_shard const& s, std::size_t begin, std::size_t end) noexcept
    {
        batch& b = batch_for(s);
        std::size_t const n = end - begin;
        b.pieces[b.count++] = {&s.shard, begin, n};
        kernel::step_pointers const source = s.shard.pointers();
        kernel::copy_few(b.array<0>(b.elems), source.param + begin * b.elem_bytes[0], n * b.elem_bytes[0]);
        kernel::copy_few(b.array<1>(b.elems), source.grad + begin * b.elem_bytes[1], n * b.elem_bytes[1]);
        kernel::copy_few(b.array<2>(b.elems), source.exp_avg + begin * b.elem_bytes[2], n * b.elem_bytes[2]);
        kernel::copy_few(b.array<3>(b.elems), source.exp_avg_sq + begin * b.elem_bytes[3], n * b.elem_bytes[3]);
        if (has_split_param(s.shard.format().types))
            kernel::copy_few(b.array<4>(b.elems), source.weight_out + begin * b.elem_bytes[4], n * b.elem_bytes[4]);
        b.elems += n;
    }
    // Steps all pieces that are left, and returns the number of infinite and NaN gradients since construction.
    [[nodiscard]] std::uint64_t finish() noexcept
    {
        for (batch& b : batches_)
            step(b);
        return nonfinite_;
    }

private:
    static constexpr std::size_t max_elems = 256;
    static constexpr std::size_t max_piece_elems = 64;
    static constexpr std::size_t max_pieces = 64;
    struct piece {
        any_shard const* shard;
        std::size_t begin;
        std::size_t n;
    };
    struct batch {
        kernel::step_function run = nullptr;
        std::size_t group = 0;
        std::size_t elem_bytes[5];
        std::size_t elems = 0;
        std::size_t count = 0;
        piece pieces[max_pieces];
        alignas(64) std::byte arrays[5][max_elems * sizeof(float)];

        template <std::size_t Array>
        [[nodiscard]] std::byte* array(std::size_t element) noexcept
        {
            return arrays[Array] + element * elem_bytes[Array];
        }
    };

    [[nodiscard]] batch& batch_for(grouped_shard const& s) noexcept
    {
        kernel::step_function const run = s.shard.step_for(tier_);
        batch* chosen = &batches_[next_];
        for (batch& b : batches_)
            if (b.run == run && b.group == s.group)
                chosen = &b;
        if (chosen->run != run || chosen->group != s.group) {
            step(*chosen);
            next_ = (next_ + 1) % std::size(batches_);
            chosen->run = run;
            chosen->group = s.group;
            for (std::size_t a = 0; a < 5; ++a)
                chosen->elem_bytes[a] = s.shard.bytes(a, 1);
        } else if (chosen->count == max_pieces || chosen->elems > max_elems - max_piece_elems) {
            step(*chosen);
        }
        return *chosen;
    }
    void step(batch& b) noexcept
    {
        if (b.count == 0)
            return;
        nonfinite_ += b.run({b.arrays[0], b.arrays[1], b.arrays[2], b.arrays[3], b.arrays[4]}, 0, b.elems,
                            group_coefficients_[b.group], {false, 0});
        std::size_t offset = 0;
        for (std::size_t i = 0; i < b.count; ++i) {
            piece const& p = b.pieces[i];
            kernel::step_pointers const target = p.shard->pointers();
            if (target.changed != nullptr) {
                shard_array::index const compared = compared_array(p.shard->format().types);
                change_tracker(*p.shard, tier_)
                    .mark(p.begin, p.n, b.arrays[compared] + offset * b.elem_bytes[compared],
                          target.changed + p.begin / kernel::changed_word_elems);
            }
            kernel::copy_few(target.param + p.begin * b.elem_bytes[0], b.array<0>(offset), p.n * b.elem_bytes[0]);
            kernel::copy_few(target.exp_avg + p.begin * b.elem_bytes[2], b.array<2>(offset), p.n * b.elem_bytes[2]);
            kernel::copy_few(target.exp_avg_sq + p.begin * b.elem_bytes[3], b.array<3>(offset), p.n * b.elem_bytes[3]);
            kernel::copy_few(target.weight_out + p.begin * b.elem_bytes[4], b.array<4>(offset), p.n * b.elem_bytes[4]);
            offset += p.n;
        }
        b.elems = b.count = 0;
    }

    isa tier_;
    std::size_t smaller_than_;
    std::span<coefficients const> group_coefficients_;
    std::uint64_t nonfinite_ = 0;
    std::size_t next_ = 0;
    batch batches_[4]; // enough for shards with and without weight decay in a few types
};

} // namespace detail
ADAMANT_END_NAMESPACE
