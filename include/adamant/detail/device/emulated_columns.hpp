// SPDX-License-Identifier: Apache-2.0
// Gathers and scatters columns as an emulated device does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <adamant/device.hpp>
#include <adamant/detail/kernels/transpose.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Copies in tiles that stay in the first-level cache. Runs of adjacent columns are transposed by vectors.
template <class Bits>
void copy_columns_as(column_copy const& copy, std::vector<std::uint32_t> const& list, std::byte* by_rows,
                     std::byte* by_columns, bool gathers)
{
    constexpr std::size_t tile = 64;
    constexpr std::size_t min_run = 8; // shorter runs of adjacent columns are copied element by element
    constexpr std::size_t pitch = (tile + 16) * sizeof(Bits);
    alignas(64) std::byte transposed[tile * pitch]; // column-major when gathering, else row-major
    std::size_t const row_bytes = copy.columns * sizeof(Bits);
    std::size_t const column_bytes = copy.pitch * sizeof(Bits);
    auto const run_end = [&](std::size_t first) {
        std::size_t end = first + 1;
        while (end < std::min(list.size(), first + tile) && list[end] == list[end - 1] + 1)
            ++end;
        return end;
    };
    auto const column_at = [&](std::size_t i, std::size_t row) {
        return by_columns + (copy.indexed ? list[i] : i) * column_bytes + row * sizeof(Bits);
    };
    for (std::size_t row = 0; row < copy.rows; row += tile)
        for (std::size_t first = 0, end = 0; first < list.size(); first = end) {
            std::size_t const n_rows = std::min(tile, copy.rows - row);
            std::byte* const tile_rows = by_rows + row * row_bytes;
            end = run_end(first);
            if (end - first >= min_run) {
                std::byte* const run = tile_rows + list[first] * sizeof(Bits);
                if (gathers) {
                    kernel::transpose<Bits>(run, row_bytes, transposed, pitch, n_rows, end - first, 0);
                    for (std::size_t i = first; i < end; ++i)
                        std::memcpy(column_at(i, row), transposed + (i - first) * pitch, n_rows * sizeof(Bits));
                } else {
                    kernel::transpose<Bits>(column_at(first, row), column_bytes, transposed, pitch, end - first, n_rows,
                                            0);
                    for (std::size_t r = 0; r < n_rows; ++r)
                        std::memcpy(run + r * row_bytes, transposed + r * pitch, (end - first) * sizeof(Bits));
                }
                continue;
            }
            while (end < std::min(list.size(), first + tile) && run_end(end) - end < min_run)
                ++end;
            for (std::size_t i = first; i < end && !gathers; ++i)
                std::memcpy(transposed + (i - first) * pitch, column_at(i, row), n_rows * sizeof(Bits));
            for (std::size_t r = 0; r < n_rows; ++r)
                for (std::size_t i = first; i < end; ++i) {
                    std::byte* const in_row = tile_rows + r * row_bytes + list[i] * sizeof(Bits);
                    std::byte* const in_tile = transposed + (i - first) * pitch + r * sizeof(Bits);
                    std::memcpy(gathers ? in_tile : in_row, gathers ? in_row : in_tile, sizeof(Bits));
                }
            for (std::size_t i = first; i < end && gathers; ++i)
                std::memcpy(column_at(i, row), transposed + (i - first) * pitch, n_rows * sizeof(Bits));
        }
}
inline void copy_listed_columns(column_copy const& copy, std::vector<std::uint32_t> const& list, std::byte* by_rows,
                                std::byte* by_columns, bool gathers)
{
    if (copy.elem_bytes == sizeof(std::uint16_t))
        copy_columns_as<std::uint16_t>(copy, list, by_rows, by_columns, gathers);
    else
        copy_columns_as<std::uint32_t>(copy, list, by_rows, by_columns, gathers);
}

} // namespace detail
ADAMANT_END_NAMESPACE
