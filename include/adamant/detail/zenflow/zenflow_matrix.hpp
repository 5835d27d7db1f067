// SPDX-License-Identifier: Apache-2.0
// A matrix with columns that are updated every step and others that are deferred: its arrays, and what is done to tiles
// of them. State lies by columns, so that a column is a stretch of memory like any other; gradients and weights lie by
// rows, as the model has them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <adamant/detail/kernels/transpose.hpp>
#include <adamant/detail/numerics/float_mode.hpp>
#include <adamant/detail/shard/offload_shard.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// For gradients of that type.
[[nodiscard]] kernel::add_scaled_function add_scaled_for(dtype grad, isa tier) noexcept;

class zenflow_matrix {
public:
    using enum shard_array::index;

    // A deferred tile: a strip of columns and a range of their rows. Both arrays of floats that it takes stay in
    // cache.
    static constexpr std::size_t strip_columns = 32;
    static constexpr std::size_t strip_rows = 512;
    static_assert(strip_rows % quantized_group_elems == 0);

    zenflow_matrix(offload_shard const& of, isa tier, std::size_t columns, std::size_t all_rows, std::size_t first_row,
                   std::byte* weights)
        : shard_(of), tier_(tier), kernels_(&of.format().block_kernels_for(tier)),
          sum_kernels_(&kernel::sum_kernels_of(dtype::float32)(tier)), add_scaled_(add_scaled_for(of.type(grad), tier)),
          columns_(columns), rows_(columns == 0 ? 0 : of.size() / columns), all_rows_(all_rows), first_row_(first_row),
          weights_(weights)
    {
    }

    [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
    [[nodiscard]] std::size_t columns() const noexcept { return columns_; }
    [[nodiscard]] std::size_t all_rows() const noexcept { return all_rows_; }
    [[nodiscard]] std::size_t first_row() const noexcept { return first_row_; }
    [[nodiscard]] std::size_t size() const noexcept { return rows_ * columns_; }
    [[nodiscard]] std::byte* weights() const noexcept { return weights_; }
    [[nodiscard]] offload_shard const& shard() const noexcept { return shard_; }
    // What the model's weights are copies of.
    [[nodiscard]] shard_array::index weights_source() const noexcept
    {
        return shard_.has_weight_out() ? weight_out : param;
    }
    [[nodiscard]] dtype weights_type() const noexcept { return shard_.type(weights_source()); }
    void set_gradient(std::byte const* at) noexcept { shard_.set_gradient(at); }

    // ---- What a step does with a gradient

    // Rows [begin, end) of the gradient, scaled and limited by the step's rules, go into the sum, or are added to it.
    void add_up(std::size_t begin, std::size_t end, group_step const& by, bool first, float* sums) const noexcept
    {
        float_mode_scope const mode(subnormals::flushed);
        std::size_t const last = end * columns_;
        if (!by.rules.zero_nonfinite && !by.rules.limited) {
            std::byte const* const from = shard_.data(grad) + shard_.bytes(grad, begin * columns_);
            add_scaled_(from, last - begin * columns_, by.c.grad_scale, first, sums + begin * columns_);
            return;
        }
        scratch_block scratch;
        for (std::size_t i = begin * columns_, n = 0; i < last; i += n) {
            n = std::min(norm_block_elems, last - i);
            clamp_gradient(i, n, by, scratch);
            auto* const sum = reinterpret_cast<std::byte*>(sums + i);
            (first ? sum_kernels_->begin : sum_kernels_->add)(scratch.grad, sum, n, sum);
        }
    }
    // Rows [begin, end) of these columns of the gradient are copied: `of` has a column after the other.
    void gather(std::vector<std::uint32_t> const& of, std::size_t begin, std::size_t end, std::byte* to) const noexcept
    {
        std::byte const* const from = shard_.data(grad);
        if (shard_.type(grad) == dtype::float32)
            gather_as<std::uint32_t>(from, of, begin, end, to);
        else
            gather_as<std::uint16_t>(from, of, begin, end, to);
    }
    // A column is stepped with that gradient, of its rows.
    void step_column(std::size_t column, std::byte const* gradient, group_step const& by,
                     kernel::memory_access how) const noexcept
    {
        float_mode_scope const mode(subnormals::flushed);
        offload_shard const of = part(column, 0, rows_, gradient);
        scratch_block scratch;
        for (std::size_t b = 0; b < of.blocks(); ++b)
            of.step(b, of.gradient(b, false, by.rules, false, scratch), by.c, how);
    }
    // The squares of a norm block of the gradient, as add_up() scales it and with the sums so far where there are any,
    // over the columns whose flag is `flag`; and of the sums alone.
    [[nodiscard]] grad_squares squares_of_gradient(std::size_t block, group_step const& by,
                                                   std::vector<std::uint8_t> const& flags, std::uint8_t flag,
                                                   float const* sums) const noexcept
    {
        float_mode_scope const mode(subnormals::flushed);
        scratch_block scratch;
        std::size_t const n = shard_.length(block);
        std::size_t const begin = block * norm_block_elems;
        clamp_gradient(begin, n, by, scratch);
        if (sums != nullptr)
            sum_kernels_->add(scratch.grad, reinterpret_cast<std::byte const*>(sums + begin), n, scratch.grad);
        return squares_of(block, n, flags, flag, scratch);
    }
    [[nodiscard]] grad_squares squares_of_sums(std::size_t block, float const* sums,
                                               std::vector<std::uint8_t> const& flags, std::uint8_t flag) const noexcept
    {
        scratch_block scratch;
        std::size_t const n = shard_.length(block);
        std::memcpy(scratch.grad, sums + block * norm_block_elems, n * sizeof(float));
        return squares_of(block, n, flags, flag, scratch);
    }

    // ---- Deferred gradients

    [[nodiscard]] std::size_t strips() const noexcept { return (columns_ + strip_columns - 1) / strip_columns; }
    [[nodiscard]] std::size_t strip_parts() const noexcept { return (rows_ + strip_rows - 1) / strip_rows; }
    // Steps part number `at` of a strip's columns whose flag is set, with the accumulated gradients, times `scale`.
    // steps and step_of: how, by column. zero: what is not finite counts as zero.
    void step_strip(std::size_t strip, std::size_t at, std::vector<std::uint8_t> const& flags, float const* sums,
                    float scale, bool zero, std::vector<coefficients> const& steps,
                    std::vector<std::uint32_t> const& step_of, kernel::memory_access how) const noexcept
    {
        float_mode_scope const mode(subnormals::flushed);
        std::size_t const first = strip * strip_columns;
        std::size_t const n = std::min(strip_columns, columns_ - first);
        if (std::none_of(flags.begin() + static_cast<std::ptrdiff_t>(first),
                         flags.begin() + static_cast<std::ptrdiff_t>(first + n), [](auto flag) { return flag != 0; }))
            return;
        std::size_t const begin = at * strip_rows;
        std::size_t const some = std::min(strip_rows, rows_ - begin);
        constexpr std::size_t pitch = strip_rows + 16; // columns of a strip begin in different sets of a cache
        alignas(64) float transposed[strip_columns * pitch];
        kernel::transpose<std::uint32_t>(reinterpret_cast<std::byte const*>(sums + begin * columns_ + first),
                                         columns_ * sizeof(float), reinterpret_cast<std::byte*>(transposed),
                                         pitch * sizeof(float), some, n, 32);
        for (std::size_t c = 0; c < n; ++c) {
            if (flags[first + c] == 0)
                continue;
            coefficients by = steps[step_of[first + c]];
            by.grad_scale = scale;
            auto* const gradient = reinterpret_cast<std::byte*>(transposed + c * pitch);
            if (zero)
                kernels_->clamp_gradient(gradient, some, true, 1.0f, std::bit_cast<float>(float_infinity_bits));
            part(first + c, begin, some, gradient).step(0, {gradient, true, {}}, by, how);
        }
    }
    // ---- Weights

    // Rows [begin, end) of the model's weights; and of these columns of them.
    void copy_weights(std::size_t begin, std::size_t end) const noexcept
    {
        if (weights_type() == dtype::float32)
            copy_all_weights_as<std::uint32_t>(begin, end);
        else
            copy_all_weights_as<std::uint16_t>(begin, end);
    }
    void copy_weights(std::vector<std::uint32_t> const& of, std::size_t begin, std::size_t end) const noexcept
    {
        if (weights_type() == dtype::float32)
            copy_weights_as<std::uint32_t>(of, begin, end);
        else
            copy_weights_as<std::uint16_t>(of, begin, end);
    }
    // weight_out of masters, where it is not state itself.
    void round_weights() const noexcept { shard_.round_weights(0, size()); }
    // The bytes of rows [begin, begin + n) of a column in an array of the state.
    [[nodiscard]] std::byte* state_at(shard_array::index which, std::size_t column, std::size_t row) const noexcept
    {
        return shard_.data(which) + shard_.bytes(which, column * rows_ + row);
    }

private:
    [[nodiscard]] offload_shard part(std::size_t column, std::size_t row, std::size_t n,
                                     std::byte const* gradient) const noexcept
    {
        place_in_param const place = {shard_.place(0).param, column * all_rows_ + first_row_ + row};
        return {any_shard(shard_.format(),
                          {state_at(param, column, row), gradient, state_at(exp_avg, column, row),
                           state_at(exp_avg_sq, column, row),
                           shard_.has_weight_out() ? state_at(weight_out, column, row) : nullptr, place},
                          n),
                tier_};
    }
    // n gradients from element i on as a step would see them.
    void clamp_gradient(std::size_t i, std::size_t n, group_step const& by, scratch_block& scratch) const noexcept
    {
        kernels_->to_scratch(shard_.data(grad) + shard_.bytes(grad, i), nullptr, n, scratch.grad);
        float const infinity = std::bit_cast<float>(float_infinity_bits);
        if (by.rules.limited)
            kernels_->clamp_gradient(scratch.grad, n, by.rules.zero_nonfinite, by.rules.scale, by.rules.bound);
        kernels_->clamp_gradient(scratch.grad, n, !by.rules.limited && by.rules.zero_nonfinite, by.c.grad_scale,
                                 infinity);
    }
    [[nodiscard]] grad_squares squares_of(std::size_t block, std::size_t n, std::vector<std::uint8_t> const& flags,
                                          std::uint8_t flag, scratch_block& scratch) const noexcept
    {
        std::size_t column = block * norm_block_elems % columns_;
        for (std::size_t i = 0; i < n; ++i) {
            if (flags[column] != flag)
                std::memset(scratch.grad + i * sizeof(float), 0, sizeof(float));
            column = column + 1 == columns_ ? 0 : column + 1;
        }
        return kernels_->squares_scratch(scratch.grad, n);
    }
    // Both turn tiles in the first cache. Columns of many matrices begin at multiples of a large power of two, so that
    // more than a few of them at once would push each other out of any cache.
    static constexpr std::size_t tile = 64;
    template <class Bits>
    struct transposed_tile {
        static constexpr std::size_t pitch = tile + 64 / sizeof(Bits) / 2;
        Bits column[tile][pitch];
    };
    template <class Bits>
    void gather_as(std::byte const* from, std::vector<std::uint32_t> const& of, std::size_t begin, std::size_t end,
                   std::byte* to) const noexcept
    {
        transposed_tile<Bits> transposed;
        for (std::size_t row = begin; row < end; row += tile)
            for (std::size_t first = 0; first < of.size(); first += tile) {
                std::size_t const n = std::min(tile, of.size() - first);
                std::size_t const some = std::min(tile, end - row);
                for (std::size_t r = 0; r < some; ++r)
                    for (std::size_t i = 0; i < n; ++i)
                        std::memcpy(&transposed.column[i][r],
                                    from + ((row + r) * columns_ + of[first + i]) * sizeof(Bits), sizeof(Bits));
                for (std::size_t i = 0; i < n; ++i)
                    std::memcpy(to + ((first + i) * rows_ + row) * sizeof(Bits), transposed.column[i],
                                some * sizeof(Bits));
            }
    }
    template <class Bits>
    void copy_all_weights_as(std::size_t begin, std::size_t end) const noexcept
    {
        constexpr std::size_t pitch = transposed_tile<Bits>::pitch * sizeof(Bits);
        transposed_tile<Bits> transposed;
        std::byte const* const from = shard_.data(weights_source());
        for (std::size_t row = begin; row < end; row += tile)
            for (std::size_t first = 0; first < columns_; first += tile) {
                std::size_t const n = std::min(tile, columns_ - first);
                std::size_t const some = std::min(tile, end - row);
                kernel::transpose<Bits>(from + (first * rows_ + row) * sizeof(Bits), rows_ * sizeof(Bits),
                                        reinterpret_cast<std::byte*>(transposed.column), pitch, n, some, tile);
                for (std::size_t r = 0; r < some; ++r)
                    std::memcpy(weights_ + ((row + r) * columns_ + first) * sizeof(Bits), transposed.column[r],
                                n * sizeof(Bits));
            }
    }
    template <class Bits>
    void copy_weights_as(std::vector<std::uint32_t> const& of, std::size_t begin, std::size_t end) const noexcept
    {
        transposed_tile<Bits> transposed;
        std::byte const* const from = shard_.data(weights_source());
        for (std::size_t row = begin; row < end; row += tile)
            for (std::size_t first = 0; first < of.size(); first += tile) {
                std::size_t const n = std::min(tile, of.size() - first);
                std::size_t const some = std::min(tile, end - row);
                for (std::size_t i = 0; i < n; ++i)
                    std::memcpy(transposed.column[i], from + (of[first + i] * rows_ + row) * sizeof(Bits),
                                some * sizeof(Bits));
                for (std::size_t r = 0; r < some; ++r)
                    for (std::size_t i = 0; i < n; ++i)
                        std::memcpy(weights_ + ((row + r) * columns_ + of[first + i]) * sizeof(Bits),
                                    &transposed.column[i][r], sizeof(Bits));
            }
    }

    offload_shard shard_;
    isa tier_;
    kernel::block_kernels const* kernels_;
    kernel::sum_kernels const* sum_kernels_;
    kernel::add_scaled_function add_scaled_;
    std::size_t columns_, rows_, all_rows_, first_row_;
    std::byte* weights_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
