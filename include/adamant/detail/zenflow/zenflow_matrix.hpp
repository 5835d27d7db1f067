// SPDX-License-Identifier: Apache-2.0
// A matrix with selected and deferred columns: its arrays, and the work on tiles of them. State is stored by columns,
// so that a column is contiguous memory. Gradients and weights are stored by rows, as in the model.
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

// The kernel that accumulates scaled gradients of this type.
[[nodiscard]] kernel::add_scaled_function add_scaled_for(dtype grad, isa tier) noexcept;

class zenflow_matrix {
public:
    using enum shard_array::index;

    // A tile of a deferred update: a strip of columns by strip_rows rows. Its two arrays of floats fit in cache.
    static constexpr std::size_t strip_columns = 32;
    static constexpr std::size_t strip_rows = 512;
    static_assert(strip_rows % quantized_group_elems == 0);

    zenflow_matrix(offload_shard const& shard, isa tier, std::size_t columns, std::size_t all_rows,
                   std::size_t first_row, std::byte* weights)
        : shard_(shard), tier_(tier), kernels_(&shard.format().block_kernels_for(tier)),
          sum_kernels_(&kernel::sum_kernels_of(dtype::float32)(tier)),
          add_scaled_(add_scaled_for(shard.type(grad), tier)), columns_(columns),
          rows_(columns == 0 ? 0 : shard.size() / columns), all_rows_(all_rows), first_row_(first_row),
          weights_(weights)
    {
    }

    [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
    [[nodiscard]] std::size_t columns() const noexcept { return columns_; }
    [[nodiscard]] std::size_t all_rows() const noexcept { return all_rows_; }
    [[nodiscard]] std::size_t first_row() const noexcept { return first_row_; }
    [[nodiscard]] std::size_t size() const noexcept { return rows_ * columns_; }
    // Rows of a matrix, and elements of a vector, whose state has one column.
    [[nodiscard]] std::size_t state_rows() const noexcept { return columns_ == 0 ? shard_.size() : rows_; }
    // The weights in host memory that steps publish.
    [[nodiscard]] std::byte* published() const noexcept
    {
        return columns_ == 0 ? shard_.data(weights_source()) : weights_;
    }
    [[nodiscard]] std::byte* weights() const noexcept { return weights_; }
    [[nodiscard]] offload_shard const& shard() const noexcept { return shard_; }
    // The state array that is published: weights() is its row-major copy.
    [[nodiscard]] shard_array::index weights_source() const noexcept
    {
        return shard_.has_weight_out() ? weight_out : param;
    }
    [[nodiscard]] dtype weights_type() const noexcept { return shard_.type(weights_source()); }
    void set_gradient(std::byte const* gradient) noexcept { shard_.set_gradient(gradient); }

    // ---- Gradients

    // Scales and limits rows [begin, end) of the gradient by the step's rules, and adds them to the sum. first:
    // overwrites the sum.
    void accumulate(std::size_t begin, std::size_t end, group_step const& step, bool first, float* sums) const noexcept
    {
        float_mode_scope const mode(subnormals::flushed);
        std::size_t const last = end * columns_;
        if (!step.rules.zero_nonfinite && !step.rules.limited) {
            std::byte const* const source = shard_.data(grad) + shard_.bytes(grad, begin * columns_);
            add_scaled_(source, last - begin * columns_, step.c.grad_scale, first, sums + begin * columns_);
            return;
        }
        scratch_block scratch;
        for (std::size_t i = begin * columns_, n = 0; i < last; i += n) {
            n = std::min(norm_block_elems, last - i);
            clamp_gradient(i, n, step, scratch);
            auto* const sum = reinterpret_cast<std::byte*>(sums + i);
            (first ? sum_kernels_->begin : sum_kernels_->add)(scratch.grad, sum, n, sum);
        }
    }
    // Copies rows [begin, end) of the given columns of the gradient to `target`, column after column.
    void gather(std::vector<std::uint32_t> const& columns, std::size_t begin, std::size_t end,
                std::byte* target) const noexcept
    {
        std::byte const* const source = shard_.data(grad);
        if (shard_.type(grad) == dtype::float32)
            gather_as<std::uint32_t>(source, columns, begin, end, target);
        else
            gather_as<std::uint16_t>(source, columns, begin, end, target);
    }
    // Steps a column with this gradient of its rows.
    void step_column(std::size_t column, std::byte const* gradient, group_step const& step,
                     kernel::memory_access const& access) const noexcept
    {
        float_mode_scope const mode(subnormals::flushed);
        offload_shard const view = part(column, 0, rows_, gradient);
        view.step_blocks(0, view.blocks(), step.c, step.rules, access);
    }
    // Sum of squares of one norm block, over the columns whose flag equals `flag`. The gradient is scaled as in
    // accumulate(); if `sums` is not null, they are added first. squares_of_sums(): of the sums alone.
    [[nodiscard]] grad_squares squares_of_gradient(std::size_t block, group_step const& step,
                                                   std::vector<std::uint8_t> const& flags, std::uint8_t flag,
                                                   float const* sums) const noexcept
    {
        float_mode_scope const mode(subnormals::flushed);
        scratch_block scratch;
        std::size_t const n = shard_.length(block);
        std::size_t const begin = block * norm_block_elems;
        clamp_gradient(begin, n, step, scratch);
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

    // ---- Deferred update

    [[nodiscard]] std::size_t strips() const noexcept { return (columns_ + strip_columns - 1) / strip_columns; }
    [[nodiscard]] std::size_t strip_parts() const noexcept { return (rows_ + strip_rows - 1) / strip_rows; }
    // Steps the flagged columns of part number `strip_part` of a strip, with the accumulated gradients times `scale`.
    // Column c uses steps[step_of[c]]. zero: non-finite sums count as zero.
    void step_strip(std::size_t strip, std::size_t strip_part, std::vector<std::uint8_t> const& flags,
                    float const* sums, float scale, bool zero, std::vector<coefficients> const& steps,
                    std::vector<std::uint32_t> const& step_of, kernel::memory_access const& access) const noexcept
    {
        float_mode_scope const mode(subnormals::flushed);
        std::size_t const first = strip * strip_columns;
        std::size_t const n = std::min(strip_columns, columns_ - first);
        if (std::none_of(flags.begin() + static_cast<std::ptrdiff_t>(first),
                         flags.begin() + static_cast<std::ptrdiff_t>(first + n), [](auto flag) { return flag != 0; }))
            return;
        std::size_t const begin = strip_part * strip_rows;
        std::size_t const row_count = std::min(strip_rows, rows_ - begin);
        constexpr std::size_t pitch = strip_rows + 16; // so that columns of a strip begin in different cache sets
        alignas(64) float transposed[strip_columns * pitch];
        kernel::transpose<std::uint32_t>(reinterpret_cast<std::byte const*>(sums + begin * columns_ + first),
                                         columns_ * sizeof(float), reinterpret_cast<std::byte*>(transposed),
                                         pitch * sizeof(float), row_count, n, 32);
        for (std::size_t c = 0; c < n; ++c) {
            if (flags[first + c] == 0)
                continue;
            coefficients step = steps[step_of[first + c]];
            step.grad_scale = scale;
            auto* const gradient = reinterpret_cast<std::byte*>(transposed + c * pitch);
            if (zero)
                kernels_->clamp_gradient(gradient, row_count, true, 1.0f, std::bit_cast<float>(float_infinity_bits));
            part(first + c, begin, row_count, gradient).step(0, {gradient, true, {}}, step, access);
        }
    }

    // ---- Weights

    // Copies rows [begin, end) of the weights to the model's weights, and marks those that it changes: of all columns,
    // or of the given ones. begin: a multiple of 64, so that threads share no word of bits.
    void copy_weights(std::size_t begin, std::size_t end) const noexcept
    {
        if (weights_type() == dtype::float32)
            copy_all_weights_as<std::uint32_t>(begin, end);
        else
            copy_all_weights_as<std::uint16_t>(begin, end);
    }
    void copy_weights(std::vector<std::uint32_t> const& columns, std::size_t begin, std::size_t end) const noexcept
    {
        copy_weights({shard_.data(weights_source()), rows_, false}, columns, begin, end);
    }
    // Source of listed columns. Column list[i] begins at i * pitch if in_list_order, otherwise at list[i] * pitch.
    struct column_source {
        std::byte const* begin;
        std::size_t pitch;
        bool in_list_order;
    };
    void copy_weights(column_source const& source, std::vector<std::uint32_t> const& columns, std::size_t begin,
                      std::size_t end) const noexcept
    {
        if (weights_type() == dtype::float32)
            copy_weights_as<std::uint32_t>(source, columns, begin, end);
        else
            copy_weights_as<std::uint16_t>(source, columns, begin, end);
    }
    // The same for a vector, whose weights are an array of the state.
    void copy_vector_weights(std::byte const* source) const noexcept
    {
        std::byte* const target = shard_.data(weights_source());
        if (shard_.changed() != nullptr)
            mark_raw_changes()(target, source, shard_.size(), shard_.changed());
        std::memcpy(target, source, shard_.bytes(weights_source(), shard_.size()));
    }
    // The first byte of `row` of a column in an array of the state.
    [[nodiscard]] std::byte* state_at(shard_array::index which, std::size_t column, std::size_t row) const noexcept
    {
        return shard_.data(which) + shard_.bytes(which, column * rows_ + row);
    }

private:
    // Rows [row, row + n) of a column as a shard.
    [[nodiscard]] offload_shard part(std::size_t column, std::size_t row, std::size_t n,
                                     std::byte const* gradient) const noexcept
    {
        param_position const position = {shard_.position(0).param, column * all_rows_ + first_row_ + row};
        return {any_shard(shard_.format(),
                          {state_at(param, column, row), gradient, state_at(exp_avg, column, row),
                           state_at(exp_avg_sq, column, row),
                           shard_.has_weight_out() ? state_at(weight_out, column, row) : nullptr, position},
                          n),
                tier_};
    }
    // Converts n gradients from element i on to float, scaled and limited as in a step.
    void clamp_gradient(std::size_t i, std::size_t n, group_step const& step, scratch_block& scratch) const noexcept
    {
        kernels_->to_scratch(shard_.data(grad) + shard_.bytes(grad, i), nullptr, n, scratch.grad);
        float const infinity = std::bit_cast<float>(float_infinity_bits);
        if (step.rules.limited)
            kernels_->clamp_gradient(scratch.grad, n, step.rules.zero_nonfinite, step.rules.scale, step.rules.bound);
        kernels_->clamp_gradient(scratch.grad, n, !step.rules.limited && step.rules.zero_nonfinite, step.c.grad_scale,
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
    // The functions below transpose tiles that fit in L1. In many matrices columns begin at multiples of a large power
    // of two, so that working on more than a few columns together would cause conflict misses in every cache.
    static constexpr std::size_t tile = 64;
    template <class Bits>
    struct transposed_tile {
        static constexpr std::size_t pitch = tile + 64 / sizeof(Bits) / 2;
        Bits column[tile][pitch];
    };
    template <class Bits>
    void gather_as(std::byte const* source, std::vector<std::uint32_t> const& columns, std::size_t begin,
                   std::size_t end, std::byte* target) const noexcept
    {
        transposed_tile<Bits> transposed;
        for (std::size_t row = begin; row < end; row += tile)
            for (std::size_t first = 0; first < columns.size(); first += tile) {
                std::size_t const n = std::min(tile, columns.size() - first);
                std::size_t const row_count = std::min(tile, end - row);
                for (std::size_t r = 0; r < row_count; ++r)
                    for (std::size_t i = 0; i < n; ++i)
                        std::memcpy(&transposed.column[i][r],
                                    source + ((row + r) * columns_ + columns[first + i]) * sizeof(Bits), sizeof(Bits));
                for (std::size_t i = 0; i < n; ++i)
                    std::memcpy(target + ((first + i) * rows_ + row) * sizeof(Bits), transposed.column[i],
                                row_count * sizeof(Bits));
            }
    }
    template <class Bits>
    void copy_all_weights_as(std::size_t begin, std::size_t end) const noexcept
    {
        constexpr std::size_t pitch = transposed_tile<Bits>::pitch * sizeof(Bits);
        transposed_tile<Bits> transposed;
        std::byte const* const source = shard_.data(weights_source());
        for (std::size_t row = begin; row < end; row += tile)
            for (std::size_t first = 0; first < columns_; first += tile) {
                std::size_t const n = std::min(tile, columns_ - first);
                std::size_t const row_count = std::min(tile, end - row);
                kernel::transpose<Bits>(source + (first * rows_ + row) * sizeof(Bits), rows_ * sizeof(Bits),
                                        reinterpret_cast<std::byte*>(transposed.column), pitch, n, row_count, tile);
                for (std::size_t r = 0; r < row_count; ++r) {
                    std::size_t const i = (row + r) * columns_ + first;
                    auto const* const weights = reinterpret_cast<std::byte const*>(transposed.column[r]);
                    if (shard_.changed() != nullptr)
                        mark_changes(i, weights, n);
                    std::memcpy(weights_ + i * sizeof(Bits), weights, n * sizeof(Bits));
                }
            }
    }
    // Kernel that compares weights as they are stored.
    [[nodiscard]] kernel::mark_changes_function mark_raw_changes() const noexcept
    {
        return kernel::mark_changes_for({weights_type()}, tier_);
    }
    // Marks the changes that up to 64 weights from element i on are about to get.
    void mark_changes(std::size_t i, std::byte const* weights, std::size_t n) const noexcept
    {
        std::uint64_t word = 0;
        mark_raw_changes()(weights_ + i * size_bytes(weights_type()), weights, n, &word);
        std::size_t const bit = i % kernel::changed_word_elems;
        std::uint64_t* const words = shard_.changed() + i / kernel::changed_word_elems;
        if (word << bit != 0)
            words[0] |= word << bit;
        if (bit != 0 && word >> (kernel::changed_word_elems - bit) != 0)
            words[1] |= word >> (kernel::changed_word_elems - bit);
    }
    template <class Bits>
    void copy_weights_as(column_source const& source, std::vector<std::uint32_t> const& columns, std::size_t begin,
                         std::size_t end) const noexcept
    {
        transposed_tile<Bits> transposed;
        for (std::size_t row = begin; row < end; row += tile)
            for (std::size_t first = 0; first < columns.size(); first += tile) {
                std::size_t const n = std::min(tile, columns.size() - first);
                std::size_t const row_count = std::min(tile, end - row);
                for (std::size_t i = 0; i < n; ++i)
                    std::memcpy(transposed.column[i],
                                source.begin +
                                    ((source.in_list_order ? first + i : columns[first + i]) * source.pitch + row) *
                                        sizeof(Bits),
                                row_count * sizeof(Bits));
                for (std::size_t r = 0; r < row_count; ++r)
                    for (std::size_t i = 0; i < n; ++i) {
                        std::size_t const element = (row + r) * columns_ + columns[first + i];
                        std::byte* const weight = weights_ + element * sizeof(Bits);
                        Bits const updated = transposed.column[i][r];
                        Bits before;
                        std::memcpy(&before, weight, sizeof before);
                        if (shard_.changed() != nullptr && before != updated)
                            shard_.changed()[element / kernel::changed_word_elems] |=
                                std::uint64_t{1} << element % kernel::changed_word_elems;
                        std::memcpy(weight, &updated, sizeof updated);
                    }
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
