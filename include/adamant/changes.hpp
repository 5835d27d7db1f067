// SPDX-License-Identifier: Apache-2.0
// Collects the weights that steps have changed: their number, indices and values, or a mask.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <adamant/executor.hpp>
#include <adamant/shard.hpp>

ADAMANT_BEGIN_NAMESPACE

/// Published weights in host memory, and a bit for each weight: whether it has changed. A view of arrays of the caller.
/// A tracked shard converts to it.
///
/// The functions below use the threads of the executor; their results do not depend on the number of threads. Call none
/// of them during a step that sets the bits, and no two at the same time for the same bits. All but mark_changed()
/// clear bits beyond the last element.
class tracked_weights {
public:
    /// The weights that the shard publishes: weight_out, or param if it has no weight_out. Weights in host memory are
    /// out of date if the current ones are on a device: after optimizer::set_device_arrays(), and for params on a
    /// device that have no weight_out.
    /// @throws invalid_argument if the shard is not tracked
    tracked_weights(any_shard const& shard); // NOLINT: meant to convert
    /// Views any weights, such as those of a ZenFlow matrix, or a host copy of weights on a device. weights: `elements`
    /// elements of this type; null if only bits are read.
    /// @throws invalid_argument for another number of words than changed_words(elements), and for a type that no
    /// weights have
    tracked_weights(std::span<std::uint64_t> changed, std::size_t elements, void const* weights, dtype type);

    [[nodiscard]] std::uint64_t* changed() const noexcept { return changed_; }        ///< the bits
    [[nodiscard]] std::size_t size() const noexcept { return elements_; }             ///< number of weights
    [[nodiscard]] std::byte const* weights() const noexcept { return weights_; }      ///< the weights; may be null
    [[nodiscard]] std::size_t weight_bytes() const noexcept { return weight_bytes_; } ///< bytes of a weight, 2 or 4

private:
    std::uint64_t* changed_;
    std::size_t elements_;
    std::byte const* weights_;
    std::size_t weight_bytes_;
};

/// How changed weights are collected.
struct changed_options {
    /// Added to each index: position of the shard's first element in its parameter.
    std::uint64_t first_index = 0;
    /// Clears all bits. Does not clear any if the weights do not fit into the caller's arrays.
    bool clear = false;
};

/// Number of changed weights. Reads an eighth of a byte for each element.
[[nodiscard]] std::size_t count_changed_weights(executor const& cpu, tracked_weights const& tracked);

/// Writes the ascending indices of changed weights and, unless `values` is null, the weights in the same order. Returns
/// their number. If it is above indices.size(), the arrays hold only some of them: call again with larger arrays.
/// values: as many elements of the weights' type as `indices` has.
/// @throws invalid_argument if an index does not fit into 32 bits, and if `values` is given but the weights are null
std::size_t changed_weights(executor const& cpu, tracked_weights const& tracked, std::span<std::uint32_t> indices,
                            void* values, changed_options const& options = {});
/// The same with 64-bit indices.
std::size_t changed_weights(executor const& cpu, tracked_weights const& tracked, std::span<std::uint64_t> indices,
                            void* values, changed_options const& options = {});

/// Writes a byte for each element, 1 if its weight has changed, otherwise 0.
/// @throws invalid_argument for a mask of another size
void changed_mask(executor const& cpu, tracked_weights const& tracked, std::span<std::uint8_t> mask,
                  changed_options const& options = {});

/// Marks the weights of elements [begin, end) as changed. Call it after writing weights, or params from which weights
/// are made. optimizer::load() marks all weights itself.
/// @throws invalid_argument for elements beyond the last one, and for a begin above end
void mark_changed(tracked_weights const& tracked, std::size_t begin, std::size_t end);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/step/changes.ipp>
#endif
