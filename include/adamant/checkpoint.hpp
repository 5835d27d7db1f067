// SPDX-License-Identifier: Apache-2.0
// An optimizer's state as plain data: parameters, groups and views of the arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <adamant/dtype.hpp>
#include <adamant/error.hpp>
#include <adamant/optimizer_options.hpp>

ADAMANT_BEGIN_NAMESPACE

/// Arrays of a parameter that belong to the state.
///
/// The other arrays are derived from these or are new in every step.
enum class state_array : std::uint8_t {
    param,      ///< Master weights.
    exp_avg,    ///< First moment.
    exp_avg_sq, ///< Second moment.
};

/// Returns the name of an array: "param", "exp_avg" or "exp_avg_sq".
[[nodiscard]] constexpr std::string_view name(state_array array) noexcept
{
    return array == state_array::param ? "param" : array == state_array::exp_avg ? "exp_avg" : "exp_avg_sq";
}

/// Reads a state's bytes that are not plain memory.
///
/// Examples are a file, which another process may truncate during a read, and split master weights.
class state_source {
public:
    /// Copies `bytes` bytes from an address in a tensor's `data`, which may be null. Thread-safe.
    /// @throws corrupted, unavailable if the bytes can no longer be read.
    virtual void read(std::byte const* from, std::size_t bytes, std::byte* to) const = 0;

protected:
    state_source() = default;
    ~state_source() = default;
};

/// Writes loaded bytes to a destination that is not plain memory, such as split master weights.
class state_target {
public:
    /// Copies `bytes` bytes of whole elements to address `to` of this target.
    ///
    /// May be called concurrently for distinct elements.
    virtual void write(std::byte const* from, std::size_t bytes, std::byte const* to) const noexcept = 0;

protected:
    state_target() = default;
    ~state_target() = default;
};

/// View of elements [begin, begin + elements) of one array of one parameter, in row-major order.
///
/// The function that returns the state_dict documents the lifetime of the memory.
struct state_tensor {
    std::size_t param = 0;                  ///< Index in state_dict::params.
    state_array array = state_array::param; ///< Which array of the parameter.
    dtype type = dtype::float32;            ///< Type of the elements.
    std::size_t begin = 0;                  ///< Index of the first element in the parameter.
    std::size_t elements = 0;               ///< Number of elements.
    /// The elements: array_bytes(type, elements) bytes, at any alignment.
    ///
    /// Null in an optimizer's state() if there are no elements, and for split master weights, which are not a float32
    /// array in memory. read_elements() copies their elements.
    std::byte const* data = nullptr;
    /// If not null, loading and saving read the data through this source instead of from `data`.
    state_source const* source = nullptr;
    /// If not null, loading into an optimizer's own arrays writes the data through this target.
    state_target const* target = nullptr;
};

namespace detail {

// Adds an offset to a pointer that may be null.
[[nodiscard]] inline std::byte const* bytes_behind(std::byte const* data, std::size_t bytes) noexcept
{
    return reinterpret_cast<std::byte const*>(reinterpret_cast<std::uintptr_t>(data) + bytes);
}

} // namespace detail

/// Copies elements [begin, begin + elements) of a tensor to memory. Thread-safe.
///
/// `to` must have room for array_bytes(tensor.type, elements) bytes. `begin` counts from the tensor's first element.
/// @throws invalid_argument if the tensor does not have these elements, or if they are not whole groups (see
/// elems_together()), and what the tensor's source throws.
inline void read_elements(state_tensor const& tensor, std::size_t begin, std::size_t elements, std::byte* to)
{
    if (begin > tensor.elements || elements > tensor.elements - begin)
        detail::throw_invalid_argument({"cannot read ", elements, " elements from index ", begin,
                                        " of a tensor: it has ", tensor.elements, ". Read a part of it."});
    if (elements == 0)
        return;
    std::size_t const together = elems_together(tensor.type);
    if (begin % together != 0 || (elements % together != 0 && begin + elements != tensor.elements))
        detail::throw_invalid_argument(
            {"cannot read ", elements, " elements from index ", begin, " of a tensor of ", tensor.elements,
             ": they are stored in groups of ", together,
             ". Begin at a multiple of that, and end at a multiple or at the tensor's end."});
    std::size_t const bytes = array_bytes(tensor.type, elements);
    std::byte const* const first = detail::bytes_behind(tensor.data, array_bytes(tensor.type, begin));
    if (tensor.source != nullptr)
        tensor.source->read(first, bytes, to);
    else
        std::memcpy(to, first, bytes);
}

/// Parameter of a state.
struct state_param {
    std::string name;               ///< Name; unique in the state.
    std::vector<std::size_t> shape; ///< Shape of the whole parameter; empty: a scalar (one element).
    std::size_t group = 0;          ///< Index in state_dict::groups.
};

/// State of an optimizer.
struct state_dict {
    std::uint64_t step = 0;                       ///< Steps taken; the next step is number step + 1.
    std::optional<loss_scaler_state> loss_scaler; ///< State of dynamic loss scaling; unset without it.
    std::vector<parameter_group> groups;          ///< Parameter groups.
    std::vector<state_param> params;              ///< Parameters.
    /// Views of the arrays, in any order and without overlaps.
    ///
    /// If several ranks save files, each may hold a part of a parameter.
    std::vector<state_tensor> tensors;
    /// Data of the caller, such as a seed or a position in the training data.
    ///
    /// Files keep it, optimizers ignore it. Keys that begin with "adamant." are reserved for the library.
    std::map<std::string, std::string> metadata = {};
};

ADAMANT_END_NAMESPACE
