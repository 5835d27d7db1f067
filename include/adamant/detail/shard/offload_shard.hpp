// SPDX-License-Identifier: Apache-2.0
// A shard of an optimizer: its arrays, an optional gradient accumulator, and the kernels of one instruction set.
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
#include <adamant/detail/core/stream_copy.hpp>
#include <adamant/detail/shard/block_pass.hpp>
#include <adamant/detail/shard/change_tracker.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

struct alignas(64) scratch_block {
    std::byte grad[norm_block_elems * sizeof(float)];
};

class offload_shard {
public:
    using enum shard_array::index;

    // sum: the accumulator's memory, of type sum_type. Without an accumulator, null and dtype::none.
    offload_shard(any_shard const& shard, isa tier, std::byte* sum = nullptr, dtype sum_type = dtype::none,
                  kernel::sum_kernels const* sum_kernels = nullptr) noexcept
        : shard_(shard), kernels_(&shard.format().block_kernels_for(tier)), sum_(sum), sum_kernels_(sum_kernels),
          sum_type_(sum_type), tier_(tier)
    {
    }

    [[nodiscard]] std::size_t size() const noexcept { return shard_.size(); }
    [[nodiscard]] shard_format const& format() const noexcept { return shard_.format(); }
    [[nodiscard]] std::size_t blocks() const noexcept { return (size() + norm_block_elems - 1) / norm_block_elems; }
    [[nodiscard]] dtype type(shard_array::index which) const noexcept
    {
        return which == shard_array::accumulator ? sum_type_ : shard_.format().types[which];
    }
    [[nodiscard]] bool has_accumulator() const noexcept { return sum_kernels_ != nullptr; }
    [[nodiscard]] bool has_weight_out() const noexcept { return type(weight_out) != dtype::none; }
    [[nodiscard]] bool is_state(shard_array::index which) const noexcept
    {
        return which != shard_array::accumulator && adamant::is_state(format().types, which);
    }
    [[nodiscard]] std::byte* data(shard_array::index which) const noexcept
    {
        return which == shard_array::accumulator ? sum_ : shard_.data(which);
    }
    // The position of element `begin` of the shard.
    [[nodiscard]] param_position position(std::size_t begin) const noexcept
    {
        param_position const& first = shard_.pointers().position;
        return {first.param, first.begin + begin};
    }
    // Replaces the gradient by an array of the same type and size.
    void set_gradient(std::byte const* gradient) noexcept
    {
        kernel::step_pointers pointers = shard_.pointers();
        pointers.grad = gradient;
        shard_ = any_shard(format(), pointers, size());
    }
    // The words for changed weights; null if they are not tracked.
    [[nodiscard]] std::uint64_t* changed() const noexcept { return shard_.changed(); }
    // Marks all weights as changed: something other than a step wrote them.
    void mark_all() const noexcept
    {
        if (changed() == nullptr || size() == 0)
            return;
        std::size_t const rest = size() % kernel::changed_word_elems;
        std::fill_n(changed(), size() / kernel::changed_word_elems, ~std::uint64_t{0});
        if (rest != 0)
            changed()[size() / kernel::changed_word_elems] |= (std::uint64_t{1} << rest) - 1;
    }
    // Bytes of n elements of the array, which is also the byte offset of element n.
    [[nodiscard, gnu::noinline]] std::size_t bytes(shard_array::index which, std::size_t n) const noexcept
    {
        return array_bytes(type(which), n);
    }
    [[nodiscard, gnu::noinline]] std::size_t state_bytes(std::size_t n) const noexcept
    {
        return adamant::state_bytes(shard_.format().types, n);
    }
    // Upper bound of the bytes of a record of n elements.
    [[nodiscard, gnu::noinline]] std::size_t record_bytes_at_most(std::size_t n) const noexcept
    {
        std::size_t const codes = kernels_->recorded == nullptr ? 0 : kernel::record_bytes_at_most(n, copies_params());
        return changes_bytes(n) + std::max(codes, may_copy_state() ? copies_bytes(n) : 0);
    }
    // The same for ordinary data. Codes take 2 bytes an element, and old values about one more. The elements after the
    // last whole group and the alignment of the record add to that.
    [[nodiscard]] std::size_t usual_record_bytes(std::size_t n) const noexcept
    {
        std::size_t const codes = 3 * n + (n == norm_block_elems ? 64 : 576);
        std::size_t const bytes = std::max(kernels_->recorded == nullptr ? 0 : param_copy_bytes(n) + codes,
                                           may_copy_state() ? copies_bytes(n) : 0);
        return std::min(changes_bytes(n) + bytes, record_bytes_at_most(n));
    }
    // Bytes of the copied params in a record of codes.
    [[nodiscard]] std::size_t param_copy_bytes(std::size_t n) const noexcept
    {
        return copies_params() ? kernel::param_copy_bytes(n) : 0;
    }
    // Bytes of a record of n elements for the words for changed weights before the step; a multiple of 64.
    [[nodiscard]] std::size_t changes_bytes(std::size_t n) const noexcept
    {
        return changed() == nullptr ? 0 : (n + 511) / 512 * 64;
    }

    // Elements of block `block`.
    [[nodiscard]] std::size_t length(std::size_t block) const noexcept
    {
        return std::min(norm_block_elems, size() - block * norm_block_elems);
    }

    // One block's gradient, ready for a step: in the shard's array, or in scratch.
    struct ready_gradient {
        std::byte const* elements;
        bool in_scratch;
        grad_squares squares; // of the accumulated gradient, before any rule
    };
    // summed: whether the accumulator holds the gradients of earlier micro-steps. Computes the squares only if
    // want_squares is set or rules.zero_nonfinite needs them.
    [[nodiscard]] ready_gradient gradient(std::size_t block, bool summed, gradient_rules const& rules,
                                          bool want_squares, scratch_block& scratch) const noexcept
    {
        std::size_t const n = length(block);
        std::size_t const begin = block * norm_block_elems;
        ready_gradient g{data(grad) + bytes(grad, begin), false, {}};
        if (summed) {
            sum_into_scratch(block, scratch);
            g.elements = scratch.grad;
            g.in_scratch = true;
        }
        if (want_squares || rules.zero_nonfinite)
            g.squares = (g.in_scratch ? kernels_->squares_scratch : kernels_->squares)(g.elements, n);
        bool const zero = rules.zero_nonfinite && g.squares.nonfinite != 0;
        if (zero || rules.limited) {
            into_scratch(block, g, scratch);
            kernels_->clamp_gradient(scratch.grad, n, zero, rules.limited ? rules.scale : 1.0f,
                                     rules.limited ? rules.bound : std::bit_cast<float>(float_infinity_bits));
        }
        return g;
    }

    // A checksum of a block's gradient and, if summed, of its accumulator. Different bits collide with a probability of
    // 2^-64.
    [[nodiscard]] std::uint64_t gradient_checksum(std::size_t block, bool summed) const noexcept
    {
        auto const array_checksum = [&](shard_array::index which) {
            return checksum(data(which) + bytes(which, block * norm_block_elems), bytes(which, length(block)));
        };
        return array_checksum(grad) + (summed ? 3 * array_checksum(accumulator) : 0);
    }

    void step(std::size_t block, ready_gradient const& g, coefficients const& c,
              kernel::memory_access const& access) const noexcept
    {
        (g.in_scratch ? kernels_->step_scratch : kernels_->step)(arrays_at(block, g.elements), 0, length(block), c,
                                                                 access);
    }
    // Steps blocks [begin, end) in one call, with the gradient in the shard's array.
    void step(std::size_t begin, std::size_t end, coefficients const& c,
              kernel::memory_access const& access) const noexcept
    {
        kernels_->step(shard_.pointers(), begin * norm_block_elems, std::min(size(), end * norm_block_elems), c,
                       access);
    }
    // Steps blocks [begin, end) by these coefficients and gradient rules.
    void step_blocks(std::size_t begin, std::size_t end, coefficients const& c, gradient_rules const& rules,
                     kernel::memory_access const& access) const noexcept
    {
        scratch_block scratch;
        for (std::size_t b = begin; b < end; ++b)
            step(b, gradient(b, false, rules, false, scratch), c, access);
    }
    // Steps a block and writes a record for rollback(). Returns the end of the record.
    [[nodiscard]] std::byte* step_recorded(std::size_t block, ready_gradient const& g, coefficients const& c,
                                           kernel::memory_access const& access, std::byte* record) const noexcept
    {
        std::size_t const n = length(block);
        if (changed() != nullptr) {
            std::memcpy(record, words_of(block), changed_words(n) * sizeof(std::uint64_t));
            record += changes_bytes(n);
        }
        if (changed() == nullptr || kernels_->join == nullptr)
            return step_with_record(block, g, c, access, record);
        // Steps a joined copy of split masters, whose weights are compared afterwards.
        scratch_block before;
        change_tracker const changes(shard_, tier_);
        changes.copy(block * norm_block_elems, n, before.grad);
        std::byte* const end = step_with_record(block, g, c, access, record);
        changes.mark(block * norm_block_elems, n, before.grad, words_of(block));
        return end;
    }
    void rollback(std::size_t block, ready_gradient g, coefficients const& c, kernel::memory_access const& access,
                  std::byte const* record, scratch_block& scratch) const noexcept
    {
        if (changed() == nullptr)
            return roll_back_state(block, g, c, access, record, scratch);
        std::size_t const n = length(block);
        std::size_t const first = block * norm_block_elems;
        scratch_block after;
        change_tracker const changes(shard_, tier_);
        changes.copy(first, n, after.grad);
        roll_back_state(block, g, c, access, record + changes_bytes(n), scratch);
        std::uint64_t differing[norm_block_elems / kernel::changed_word_elems] = {};
        changes.mark(first, n, after.grad, differing);
        for (std::size_t w = 0; w < changed_words(n); ++w) {
            std::uint64_t before;
            std::memcpy(&before, record + w * sizeof before, sizeof before);
            restore_changes(words_of(block)[w], before, differing[w]);
        }
    }
    // Rolls back a word for changed weights that was `before` the step. differing: the weights that the step changed.
    // If the caller has cleared or set bits since then, the rollback is one more change of these weights.
    static void restore_changes(std::uint64_t& word, std::uint64_t before, std::uint64_t differing) noexcept
    {
        word = word == (before | differing) ? before : word | differing;
    }
    // Rounds param to weight_out for elements [begin, end).
    void round_weights(std::size_t begin, std::size_t end) const noexcept
    {
        if (kernels_->round_weights != nullptr)
            kernels_->round_weights(data(param) + bytes(param, begin), end - begin,
                                    data(weight_out) + bytes(weight_out, begin));
    }
    // Sets the accumulator to the gradient if first, else adds the gradient, for elements [begin, end).
    void accumulate(std::size_t begin, std::size_t end, bool first) const noexcept
    {
        scratch_block scratch;
        for (std::size_t n = 0; begin < end; begin += n) {
            n = std::min(norm_block_elems, end - begin);
            std::byte const* const gradient = float_gradient(begin, n, scratch);
            std::byte* const sum = sum_ + bytes(accumulator, begin);
            (first ? sum_kernels_->begin : sum_kernels_->add)(gradient, sum, n, sum);
        }
    }
    // The index in the shard of the block's first infinite or NaN gradient. The block must have one.
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

    // A shard of n elements of the same types that has only a gradient and an accumulator.
    [[nodiscard]] offload_shard with_gradient(std::byte const* gradient, std::byte* sum, std::size_t n) const noexcept
    {
        offload_shard other = *this;
        other.shard_ = any_shard(format(), {nullptr, gradient, nullptr, nullptr, nullptr}, n);
        other.sum_ = sum;
        return other;
    }

private:
    // 8-bit moments are copied in parts of this number of elements. The step of a part prefetches what is copied next.
    static constexpr std::size_t copied_elems = 512;

    [[nodiscard]] std::uint64_t* words_of(std::size_t block) const noexcept
    {
        return changed() + block * (norm_block_elems / kernel::changed_word_elems);
    }
    [[nodiscard]] std::byte* step_with_record(std::size_t block, ready_gradient const& g, coefficients const& c,
                                              kernel::memory_access const& access, std::byte* record) const noexcept
    {
        std::size_t const n = length(block);
        if (!copies_state(c, access)) {
            kernel::memory_access with_grad = access;
            with_grad.grad = g.in_scratch ? dtype::float32 : dtype::none;
            return with_float_masters(block, g.elements, [&](kernel::step_pointers const& arrays) {
                return kernels_->recorded(arrays, n, c, with_grad, record);
            });
        }
        kernel::step_pointers arrays = arrays_at(block, g.elements);
        kernel::step_function const function = g.in_scratch ? kernels_->step_scratch : kernels_->step;
        if (type(exp_avg) == dtype::quantized8) {
            for (std::size_t begin = 0; begin < n; begin += copied_elems) {
                std::size_t const end = std::min(n, begin + copied_elems);
                for_each_copied(block, n, record, [&](shard_array::index which, std::byte* state, std::byte* old) {
                    std::size_t const first = bytes(which, begin);
                    if (access.stream) // a large model: the record leaves the caches before it is read
                        stream_copy(old + first, state + first, bytes(which, end) - first);
                    else
                        std::memcpy(old + first, state + first, bytes(which, end) - first);
                });
                function(arrays, begin, end, c, access);
            }
        } else {
            std::byte* copies[shard_arrays] = {};
            for_each_copied(block, n, record,
                            [&](shard_array::index which, std::byte*, std::byte* old) { copies[which] = old; });
            kernel::state_copies const state{copies[param], copies[exp_avg], copies[exp_avg_sq], copies[weight_out],
                                             access.stream};
            arrays.copies = &state;
            function(arrays, 0, n, c, access);
        }
        if (access.stream && access.fences)
            stream_fence();
        return record + copies_bytes(n);
    }
    void roll_back_state(std::size_t block, ready_gradient g, coefficients const& c,
                         kernel::memory_access const& access, std::byte const* record,
                         scratch_block& scratch) const noexcept
    {
        std::size_t const n = length(block);
        if (!copies_state(c, access)) {
            into_scratch(block, g, scratch);
            if (copies_params())
                return roll_back_copied_params(block, g, c, access, record);
            with_float_masters(block, g.elements, [&](kernel::step_pointers const& arrays) {
                kernels_->rollback_scratch(arrays, n, c, access, record);
            });
            return;
        }
        for_each_copied(block, n, record, [&](shard_array::index which, std::byte* state, std::byte const* old) {
            std::memcpy(state, old, bytes(which, n));
        });
    }

    void roll_back_copied_params(std::size_t block, ready_gradient const& g, coefficients const& c,
                                 kernel::memory_access const& access, std::byte const* record) const noexcept
    {
        std::size_t const n = length(block);
        kernel::step_pointers arrays = arrays_at(block, g.elements);
        std::memcpy(arrays.param, record, bytes(param, n));
        scratch_block floats;
        kernels_->widen_params(arrays.param, nullptr, n, floats.grad);
        arrays.param = floats.grad;
        kernel::memory_access old_params = access;
        old_params.param_is_old = true;
        kernels_->rollback_scratch(arrays, n, c, old_params, record + param_copy_bytes(n));
    }
    // Whether records of codes begin with a copy of the params.
    [[nodiscard]] bool copies_params() const noexcept { return kernels_->widen_params != nullptr; }
    // Whether the records of some steps are copies of the state.
    [[nodiscard]] bool may_copy_state() const noexcept { return kernels_->recorded == nullptr || copies_params(); }
    // Whether the record of a step is a copy of the state, not codes. With 16-bit params, copies are faster in cache,
    // and steps with codes round to nearest only. A rollback needs the same coefficients and access as the step.
    [[nodiscard]] bool copies_state(coefficients const& c, kernel::memory_access const& access) const noexcept
    {
        return kernels_->recorded == nullptr || (copies_params() && (!access.stream || c.rounding.param));
    }
    // A record that is a copy has the arrays of a block's state, one after another. Calls
    // work(array, a block's state, its copy) for each.
    template <class Record, class Work>
    void for_each_copied(std::size_t block, std::size_t n, Record* record, Work const& work) const
    {
        for (shard_array::index const which : state_arrays)
            if (is_state(which)) {
                work(which, data(which) + bytes(which, block * norm_block_elems), record);
                record += copy_bytes(which, n);
            }
    }
    // Bytes of one array's copy, up to the next cache line.
    [[nodiscard]] std::size_t copy_bytes(shard_array::index which, std::size_t n) const noexcept
    {
        return (bytes(which, n) + 63) / 64 * 64;
    }
    // Bytes of a record that is a copy.
    [[nodiscard]] std::size_t copies_bytes(std::size_t n) const noexcept
    {
        std::size_t total = 0;
        for (shard_array::index const which : state_arrays)
            total += is_state(which) ? copy_bytes(which, n) : 0;
        return total;
    }
    // The gradients from element `begin` on as floats, in the shard's array or in scratch.
    [[nodiscard]] std::byte const* float_gradient(std::size_t begin, std::size_t n,
                                                  scratch_block& scratch) const noexcept
    {
        std::byte const* const gradient = data(grad) + bytes(grad, begin);
        if (type(grad) == dtype::float32)
            return gradient;
        kernels_->to_scratch(gradient, nullptr, n, scratch.grad);
        return scratch.grad;
    }
    // Writes the sum of a block's gradient and its accumulator to scratch.
    void sum_into_scratch(std::size_t block, scratch_block& scratch) const noexcept
    {
        std::size_t const begin = block * norm_block_elems;
        sum_kernels_->to_scratch(float_gradient(begin, length(block), scratch), sum_ + bytes(accumulator, begin),
                                 length(block), scratch.grad);
    }
    void into_scratch(std::size_t block, ready_gradient& g, scratch_block& scratch) const noexcept
    {
        if (!g.in_scratch)
            kernels_->to_scratch(g.elements, nullptr, length(block), scratch.grad);
        g.elements = scratch.grad;
        g.in_scratch = true;
    }
    // Calls work() with a block's arrays, in which param holds float masters. Split masters are joined in a copy, which
    // is split again afterwards.
    template <class Work>
    std::invoke_result_t<Work, kernel::step_pointers const&>
    with_float_masters(std::size_t block, std::byte const* gradient, Work const& work) const noexcept
    {
        kernel::step_pointers arrays = arrays_at(block, gradient);
        if (kernels_->join == nullptr)
            return work(arrays);
        scratch_block masters;
        kernels_->join(arrays.weight_out, arrays.param, length(block), masters.grad);
        struct split_on_exit {
            kernel::block_kernels const* kernels;
            kernel::step_pointers halves;
            std::byte const* floats;
            std::size_t n;
            ~split_on_exit() { kernels->split(floats, n, halves.weight_out, halves.param); }
        } const splitter{kernels_, arrays, masters.grad, length(block)};
        arrays.param = masters.grad;
        arrays.weight_out = nullptr;
        arrays.changed = nullptr;
        return work(arrays);
    }
    // The arrays, starting at a block.
    [[nodiscard]] kernel::step_pointers arrays_at(std::size_t block, std::byte const* gradient) const noexcept
    {
        std::size_t const begin = block * norm_block_elems;
        return {data(param) + bytes(param, begin),
                gradient,
                data(exp_avg) + bytes(exp_avg, begin),
                data(exp_avg_sq) + bytes(exp_avg_sq, begin),
                has_weight_out() ? data(weight_out) + bytes(weight_out, begin) : nullptr,
                position(begin),
                changed() == nullptr ? nullptr : words_of(block)};
    }

    any_shard shard_;
    kernel::block_kernels const* kernels_;
    std::byte* sum_;
    kernel::sum_kernels const* sum_kernels_;
    dtype sum_type_;
    isa tier_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
