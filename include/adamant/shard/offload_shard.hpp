// SPDX-License-Identifier: Apache-2.0
// A shard as the optimizer holds it: its arrays, its name, and the kernels for its types on one instruction set.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <type_traits>

#include <adamant/core/checksum.hpp>
#include <adamant/kernel/dispatch.hpp>
#include <adamant/shard/shard.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Everything that is done to a shard, a block of norm_block_elems at a time. The gradient of a block is used where it
// lies, or made in a scratch block of floats first. A step is taken back from there only, as that is rare.
struct offload_kernels {
    kernel::step_function step;
    kernel::step_function step_scratch; // the same with a gradient of floats
    kernel::block_squares_function squares;
    kernel::block_squares_function squares_scratch;
    kernel::recorded_step_function recorded; // null: records are copies
    kernel::recorded_step_function recorded_scratch;
    kernel::undo_function undo_scratch;
    kernel::add_gradients_function to_scratch;     // grad (+ accumulator) -> float
    kernel::add_gradients_function begin_sum;      // grad -> accumulator; null: there is none
    kernel::add_gradients_function add_to_sum;     // grad + accumulator -> accumulator
    kernel::add_gradients_function sum_to_scratch; // grad + accumulator -> float
    kernel::tame_gradient_function tame;
    kernel::round_weights_function round_weights; // null: there is no weight_out
};

// But for the two steps, which a program may have in a table. Accumulator is void, float or bfloat16; has_float_state:
// param and both moments are floats.
template <class Grad, class WeightOut, class Accumulator>
[[nodiscard]] offload_kernels offload_kernels_beside_step(isa tier, bool has_float_state) noexcept
{
    offload_kernels k{};
    k.squares = kernel::block_squares_for<Grad>(tier);
    k.squares_scratch = kernel::block_squares_for<float>(tier);
    if (has_float_state) {
        k.recorded = kernel::recorded_step_for<Grad, WeightOut>(tier);
        k.recorded_scratch = kernel::recorded_step_for<float, WeightOut>(tier);
        k.undo_scratch = kernel::undo_for<float>(tier);
    }
    k.to_scratch = kernel::add_gradients_for<Grad, void, float>(tier);
    if constexpr (!std::is_void_v<Accumulator>) {
        k.begin_sum = kernel::add_gradients_for<Grad, void, Accumulator>(tier);
        k.add_to_sum = kernel::add_gradients_for<Grad, Accumulator, Accumulator>(tier);
        k.sum_to_scratch = kernel::add_gradients_for<Grad, Accumulator, float>(tier);
    }
    k.tame = kernel::tame_gradient_for(tier);
    if constexpr (!std::is_void_v<WeightOut>)
        k.round_weights = kernel::round_weights_for<WeightOut>(tier);
    return k;
}
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut, class Accumulator>
[[nodiscard]] offload_kernels offload_kernels_for(isa tier) noexcept
{
    offload_kernels k = offload_kernels_beside_step<Grad, WeightOut, Accumulator>(
        tier, std::is_same_v<Param, float> && std::is_same_v<ExpAvg, float> && std::is_same_v<ExpAvgSq, float>);
    k.step = kernel::step_for<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(tier);
    k.step_scratch = kernel::step_for<Param, float, ExpAvg, ExpAvgSq, WeightOut>(tier);
    return k;
}

// What a block's gradient is before the step sees it.
struct gradient_rules {
    bool zero_nonfinite = false;
    bool limited = false; // to +-bound, once scaled; then the step scales no more
    float scale = 1;
    float bound = 0;
};

// What a pass does to each block.
enum class block_pass : std::uint8_t {
    measure,   // sum of squares
    step,      // sum of squares, and the step
    speculate, // the same with a record; where there is no room for one, the block waits
    rest,      // the step, of blocks without a record
    redo,      // back by the record where there is one, and the step
    undo,      // back by the record
    compare,   // whether the gradients are those of the last step
};

[[nodiscard]] constexpr char const* name(block_pass of) noexcept
{
    constexpr char const* names[] = {"measure", "step", "speculate", "rest", "redo", "undo", "compare"};
    return names[static_cast<std::size_t>(of)];
}
// Whether it leaves sums of squares.
[[nodiscard]] constexpr bool is_first(block_pass of) noexcept
{
    return of <= block_pass::speculate || of == block_pass::compare;
}
// Whether it leaves params and moments as they are.
[[nodiscard]] constexpr bool only_reads(block_pass of) noexcept
{
    return of == block_pass::measure || of == block_pass::compare;
}

// How the shards of one parameter group are stepped.
struct group_step {
    coefficients c;
    gradient_rules rules;
};

struct alignas(64) scratch_block {
    std::byte grad[norm_block_elems * sizeof(float)];
};

class offload_shard {
public:
    template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
    offload_shard(shard<Param, Grad, ExpAvg, ExpAvgSq, WeightOut> const& of, std::byte* sum, dtype sum_type,
                  offload_kernels const& kernels)
        : kernels_(kernels), pointers_(of.pointers()), sum_(sum),
          size_(of.size()), types_{dtype_of<Param>,    dtype_of<Grad>,      dtype_of<ExpAvg>,
                                   dtype_of<ExpAvgSq>, dtype_of<WeightOut>, sum_type}
    {
    }

    // The same from arrays whose types are known at run time.
    offload_shard(kernel::step_pointers const& pointers, std::byte* sum, std::size_t size, dtype const (&types)[6],
                  offload_kernels const& kernels) noexcept
        : kernels_(kernels), pointers_(pointers), sum_(sum), size_(size)
    {
        std::copy(std::begin(types), std::end(types), std::begin(types_));
    }

    enum array : std::size_t { param, grad, exp_avg, exp_avg_sq, weight_out, accumulator };

    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] std::size_t blocks() const noexcept { return (size_ + norm_block_elems - 1) / norm_block_elems; }
    [[nodiscard]] dtype type(array which) const noexcept { return types_[which]; }
    [[nodiscard]] offload_kernels const& kernels() const noexcept { return kernels_; }
    [[nodiscard]] bool has_accumulator() const noexcept { return kernels_.begin_sum != nullptr; }
    [[nodiscard]] bool has_weight_out() const noexcept { return kernels_.round_weights != nullptr; }
    [[nodiscard]] std::byte* data(array which) const noexcept
    {
        std::byte* const all[] = {pointers_.param,      const_cast<std::byte*>(pointers_.grad),
                                  pointers_.exp_avg,    pointers_.exp_avg_sq,
                                  pointers_.weight_out, sum_};
        return all[which];
    }
    // Read or written once for each element.
    [[nodiscard]] std::size_t elem_bytes(array which) const noexcept { return size_bytes(types_[which]); }
    [[nodiscard]] std::size_t state_bytes() const noexcept
    {
        return elem_bytes(param) + elem_bytes(exp_avg) + elem_bytes(exp_avg_sq);
    }
    [[nodiscard]] bool records_are_copies() const noexcept { return kernels_.recorded == nullptr; }
    // The longest record of n elements.
    [[nodiscard]] std::size_t record_bytes_at_most(std::size_t n) const noexcept
    {
        return kernels_.recorded != nullptr ? kernel::record_bytes_at_most(n) : n * state_bytes() + 64;
    }

    // How many elements block `block` has.
    [[nodiscard]] std::size_t length(std::size_t block) const noexcept
    {
        return std::min(norm_block_elems, size_ - block * norm_block_elems);
    }

    // One block's gradient, ready for a step: where it lies, or in scratch.
    struct ready_gradient {
        std::byte const* at;
        bool in_scratch;
        grad_squares squares; // of what was added up, before any rule
    };
    // summed: whether the accumulator holds earlier micro-steps' gradients. Squares are looked at only if asked for, or
    // needed to know whether there is anything to be made zero.
    [[nodiscard]] ready_gradient gradient(std::size_t block, bool summed, gradient_rules const& rules,
                                          bool want_squares, scratch_block& scratch) const noexcept
    {
        std::size_t const n = length(block);
        std::size_t const begin = block * norm_block_elems;
        ready_gradient g{pointers_.grad + begin * elem_bytes(grad), false, {}};
        if (summed) {
            kernels_.sum_to_scratch(g.at, sum_ + begin * elem_bytes(accumulator), n, scratch.grad);
            g.at = scratch.grad;
            g.in_scratch = true;
        }
        if (want_squares || rules.zero_nonfinite)
            g.squares = (g.in_scratch ? kernels_.squares_scratch : kernels_.squares)(g.at, n);
        bool const zero = rules.zero_nonfinite && g.squares.nonfinite != 0;
        if (zero || rules.limited) {
            into_scratch(block, g, scratch);
            kernels_.tame(scratch.grad, n, zero, rules.limited ? rules.scale : 1.0f,
                          rules.limited ? rules.bound : std::bit_cast<float>(float_infinity_bits));
        }
        return g;
    }

    // Of a block's gradient, and of what its accumulator holds where that is part of it: other for any other bits, but
    // by chance of one in 2^64.
    [[nodiscard]] std::uint64_t gradient_checksum(std::size_t block, bool summed) const noexcept
    {
        auto const of = [&](array which) {
            return checksum(data(which) + block * norm_block_elems * elem_bytes(which),
                            length(block) * elem_bytes(which));
        };
        return of(grad) + (summed ? 3 * of(accumulator) : 0);
    }

    void step(std::size_t block, ready_gradient const& g, coefficients const& c,
              kernel::memory_access how) const noexcept
    {
        (g.in_scratch ? kernels_.step_scratch : kernels_.step)(at(block, g.at), 0, length(block), c, how);
    }
    // Blocks [begin, end) at once, with the gradient where it lies.
    void step(std::size_t begin, std::size_t end, coefficients const& c, kernel::memory_access how) const noexcept
    {
        kernels_.step(pointers_, begin * norm_block_elems, std::min(size_, end * norm_block_elems), c, how);
    }
    // With a record for undo(); returns its end.
    [[nodiscard]] std::byte* step_recorded(std::size_t block, ready_gradient const& g, coefficients const& c,
                                           kernel::memory_access how, std::byte* record) const noexcept
    {
        std::size_t const n = length(block);
        if (!records_are_copies())
            return (g.in_scratch ? kernels_.recorded_scratch : kernels_.recorded)(at(block, g.at), n, c, how, record);
        for (array const which : {param, exp_avg, exp_avg_sq}) {
            std::memcpy(record, data(which) + block * norm_block_elems * elem_bytes(which), n * elem_bytes(which));
            record += n * elem_bytes(which);
        }
        step(block, g, c, how);
        return record;
    }
    void undo(std::size_t block, ready_gradient g, coefficients const& c, std::byte const* record,
              scratch_block& scratch) const noexcept
    {
        std::size_t const n = length(block);
        if (!records_are_copies()) {
            into_scratch(block, g, scratch);
            kernels_.undo_scratch(at(block, g.at), n, c, record);
            return;
        }
        for (array const which : {param, exp_avg, exp_avg_sq}) {
            std::memcpy(data(which) + block * norm_block_elems * elem_bytes(which), record, n * elem_bytes(which));
            record += n * elem_bytes(which);
        }
    }
    // weight_out from param, for elements [begin, end).
    void round_weights(std::size_t begin, std::size_t end) const noexcept
    {
        if (has_weight_out())
            kernels_.round_weights(pointers_.param + begin * elem_bytes(param), end - begin,
                                   pointers_.weight_out + begin * elem_bytes(weight_out));
    }
    // accumulator = grad, or += grad, for elements [begin, end).
    void accumulate(std::size_t begin, std::size_t end, bool first) const noexcept
    {
        std::byte* const sum = sum_ + begin * elem_bytes(accumulator);
        (first ? kernels_.begin_sum : kernels_.add_to_sum)(pointers_.grad + begin * elem_bytes(grad), sum, end - begin,
                                                           sum);
    }
    // The index of the first gradient that is infinite or NaN in a block that has one.
    [[nodiscard]] std::size_t first_nonfinite(std::size_t block, bool summed) const noexcept
    {
        std::size_t const begin = block * norm_block_elems;
        scratch_block scratch;
        std::byte const* const from = pointers_.grad + begin * elem_bytes(grad);
        if (summed)
            kernels_.sum_to_scratch(from, sum_ + begin * elem_bytes(accumulator), length(block), scratch.grad);
        else
            kernels_.to_scratch(from, nullptr, length(block), scratch.grad);
        std::size_t i = 0;
        while (i + 1 < length(block) && is_finite(load_unaligned<float>(scratch.grad + i * sizeof(float))))
            ++i;
        return begin + i;
    }

private:
    void into_scratch(std::size_t block, ready_gradient& g, scratch_block& scratch) const noexcept
    {
        if (!g.in_scratch)
            kernels_.to_scratch(g.at, nullptr, length(block), scratch.grad);
        g.at = scratch.grad;
        g.in_scratch = true;
    }
    // The arrays from a block on.
    [[nodiscard]] kernel::step_pointers at(std::size_t block, std::byte const* gradient) const noexcept
    {
        std::size_t const begin = block * norm_block_elems;
        return {pointers_.param + begin * elem_bytes(param), gradient, pointers_.exp_avg + begin * elem_bytes(exp_avg),
                pointers_.exp_avg_sq + begin * elem_bytes(exp_avg_sq),
                has_weight_out() ? pointers_.weight_out + begin * elem_bytes(weight_out) : nullptr};
    }

    offload_kernels kernels_;
    kernel::step_pointers pointers_;
    std::byte* sum_;
    std::size_t size_;
    dtype types_[6];
};

} // namespace detail
ADAMANT_END_NAMESPACE
