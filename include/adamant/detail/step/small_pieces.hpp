// SPDX-License-Identifier: Apache-2.0
// Pieces of many shards that are less than a group of vectors each, gathered and stepped together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

#include <adamant/shard.hpp>
#include <adamant/detail/kernels/copy_few.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// A kernel is fast over whole groups of vectors only. So pieces smaller than a group that have the same types and
// coefficients are copied next to each other, stepped as one, and copied back, in a third of the time. Each element is
// computed as it would be in place, so no bit depends on which pieces share a batch. Larger pieces gain nothing by it.
class small_pieces {
public:
    small_pieces(isa tier, std::span<coefficients const> of_groups) noexcept
        : tier_(tier), smaller_than_(std::min(kernel::step_elems_for(tier), most_each)), of_groups_(of_groups)
    {
    }
    small_pieces(small_pieces const&) = delete;
    small_pieces& operator=(small_pieces const&) = delete;

    // Whether a piece of this many elements of s should be added. Not where rounding goes by an element's place, or
    // elements share a scale.
    [[nodiscard]] bool takes(grouped_shard const& s, std::size_t elems) const noexcept
    {
        return elems < smaller_than_ && elems_together(s.shard.format().types) == 1 &&
               !rounds_stochastically(s.shard.format().types, of_groups_[s.group].rounding);
    }
    // Elements [begin, end) of s, as few as it takes. They are stepped by finish() at the latest; the shard stays where
    // it is until then.
    void add(grouped_shard const& s, std::size_t begin, std::size_t end) noexcept
    {
        batch& in = batch_for(s);
        std::size_t const n = end - begin;
        in.pieces[in.count++] = {&s.shard, begin, n};
        kernel::step_pointers const from = s.shard.pointers();
        kernel::copy_few(in.array<0>(in.elems), from.param + begin * in.elem_bytes[0], n * in.elem_bytes[0]);
        kernel::copy_few(in.array<1>(in.elems), from.grad + begin * in.elem_bytes[1], n * in.elem_bytes[1]);
        kernel::copy_few(in.array<2>(in.elems), from.exp_avg + begin * in.elem_bytes[2], n * in.elem_bytes[2]);
        kernel::copy_few(in.array<3>(in.elems), from.exp_avg_sq + begin * in.elem_bytes[3], n * in.elem_bytes[3]);
        in.elems += n;
    }
    // Steps what has been added, and returns how many gradients were not finite, of all since the beginning.
    [[nodiscard]] std::uint64_t finish() noexcept
    {
        for (batch& b : batches_)
            step(b);
        return nonfinite_;
    }

private:
    static constexpr std::size_t most_elems = 256;
    static constexpr std::size_t most_each = 64;
    static constexpr std::size_t most_pieces = 64;
    struct piece {
        any_shard const* of;
        std::size_t begin;
        std::size_t n;
    };
    struct batch {
        kernel::step_function run = nullptr;
        std::size_t group = 0;
        std::size_t elem_bytes[5];
        std::size_t elems = 0;
        std::size_t count = 0;
        piece pieces[most_pieces];
        alignas(64) std::byte arrays[5][most_elems * sizeof(float)];

        template <std::size_t Array>
        [[nodiscard]] std::byte* array(std::size_t element) noexcept
        {
            return arrays[Array] + element * elem_bytes[Array];
        }
    };

    [[nodiscard]] batch& batch_for(grouped_shard const& s) noexcept
    {
        kernel::step_function const run = s.shard.step_for(tier_);
        batch* found = &batches_[next_];
        for (batch& b : batches_)
            if (b.run == run && b.group == s.group)
                found = &b;
        if (found->run != run || found->group != s.group) {
            step(*found);
            next_ = (next_ + 1) % std::size(batches_);
            found->run = run;
            found->group = s.group;
            for (std::size_t a = 0; a < 5; ++a)
                found->elem_bytes[a] = s.shard.bytes(a, 1);
        } else if (found->count == most_pieces || found->elems > most_elems - most_each) {
            step(*found);
        }
        return *found;
    }
    void step(batch& b) noexcept
    {
        if (b.count == 0)
            return;
        nonfinite_ += b.run({b.arrays[0], b.arrays[1], b.arrays[2], b.arrays[3], b.arrays[4]}, 0, b.elems,
                            of_groups_[b.group], {false, 0});
        std::size_t at = 0;
        for (std::size_t i = 0; i < b.count; ++i) {
            piece const& p = b.pieces[i];
            kernel::step_pointers const to = p.of->pointers();
            kernel::copy_few(to.param + p.begin * b.elem_bytes[0], b.array<0>(at), p.n * b.elem_bytes[0]);
            kernel::copy_few(to.exp_avg + p.begin * b.elem_bytes[2], b.array<2>(at), p.n * b.elem_bytes[2]);
            kernel::copy_few(to.exp_avg_sq + p.begin * b.elem_bytes[3], b.array<3>(at), p.n * b.elem_bytes[3]);
            kernel::copy_few(to.weight_out + p.begin * b.elem_bytes[4], b.array<4>(at), p.n * b.elem_bytes[4]);
            at += p.n;
        }
        b.elems = b.count = 0;
    }

    isa tier_;
    std::size_t smaller_than_;
    std::span<coefficients const> of_groups_;
    std::uint64_t nonfinite_ = 0;
    std::size_t next_ = 0;
    batch batches_[4]; // lists have decayed and other shards, and not many types
};

} // namespace detail
ADAMANT_END_NAMESPACE
