// SPDX-License-Identifier: Apache-2.0
// An optimizer's state as plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <adamant/dtype.hpp>
#include <adamant/error.hpp>
#include <adamant/optimizer_options.hpp>

ADAMANT_BEGIN_NAMESPACE

/// The arrays of a parameter that are state.
enum class state_array : std::uint8_t { param, exp_avg, exp_avg_sq };

/// Name of the array, such as "exp_avg".
[[nodiscard]] constexpr std::string_view name(state_array array) noexcept
{
    return array == state_array::param ? "param" : array == state_array::exp_avg ? "exp_avg" : "exp_avg_sq";
}

/// Reads the parts of a state that are not stored as one array in memory. These are parts of a file (reading fails if
/// the file was truncated in the meantime) and split masters (float32 params stored as a bfloat16 weight and a
/// split_float32 residual), which are joined when they are read.
class state_source {
public:
    /// Copies `bytes` bytes from `src`, which is a tensor's `data` plus an offset. `data` may be null; `src` is then
    /// the offset alone. Thread-safe.
    /// @throws corrupted or unavailable if they can no longer be read
    virtual void read(std::byte const* src, std::size_t bytes, std::byte* dst) const = 0;

protected:
    state_source() = default;
    ~state_source() = default;
};

/// Writes the parts of a state that are not stored as one array in memory: split masters, which it splits again.
class state_target {
public:
    /// Copies whole elements to `dst`, which is a tensor's `data` plus an offset (see state_source::read()).
    /// Thread-safe for distinct elements.
    virtual void write(std::byte const* src, std::size_t bytes, std::byte const* dst) const noexcept = 0;

protected:
    state_target() = default;
    ~state_target() = default;
};

/// Elements [begin, begin + elements) of one array of one parameter, in row-major order. A view; the function that
/// returns the state_dict says how long it is valid.
struct state_tensor {
    std::size_t param = 0;                  ///< index in state_dict::params
    state_array array = state_array::param; ///< which array of the param
    dtype type = dtype::float32;            ///< element type
    std::size_t begin = 0;                  ///< index of the first element in the param
    std::size_t elements = 0;               ///< number of elements
    /// array_bytes(type, elements) bytes of any alignment. Null in the result of state() for a tensor without elements
    /// and for split masters, which have no float32 array: read_elements() copies their elements.
    std::byte const* data = nullptr;
    /// If not null, loading and saving read through it instead of `data`.
    state_source const* source = nullptr;
    state_target const* target =
        nullptr; ///< if not null, loading a state into an optimizer's own arrays writes through it
};

namespace detail {

// Address arithmetic that also works from null.
[[nodiscard]] inline std::byte const* bytes_behind(std::byte const* data, std::size_t bytes) noexcept
{
    return reinterpret_cast<std::byte const*>(reinterpret_cast<std::uintptr_t>(data) + bytes);
}

} // namespace detail

/// Copies elements of a tensor, beginning with number `begin`, to memory of
/// array_bytes(tensor.type, elements) bytes. Thread-safe.
/// @throws invalid_argument if the range goes beyond the tensor's elements, or has only a part of a quantized group
/// (see elems_together()); what the tensor's source throws
inline void read_elements(state_tensor const& tensor, std::size_t begin, std::size_t elements, std::byte* target)
{
    if (begin > tensor.elements || elements > tensor.elements - begin)
        detail::throw_invalid_argument({"cannot read ", detail::counted(elements, "element"), " from element ", begin,
                                        ": the tensor has ", tensor.elements, ". Pass a range inside it."});
    if (elements == 0)
        return;
    std::size_t const together = elems_together(tensor.type);
    if (begin % together != 0 || (elements % together != 0 && begin + elements != tensor.elements))
        detail::throw_invalid_argument({"cannot read ", detail::counted(elements, "element"), " from element ", begin,
                                        " of ", tensor.elements, ": they are in groups of ", together,
                                        ". Begin at a multiple of ", together,
                                        ", and end at one or at the end of the tensor."});
    std::size_t const bytes = array_bytes(tensor.type, elements);
    std::byte const* const first = detail::bytes_behind(tensor.data, array_bytes(tensor.type, begin));
    if (tensor.source != nullptr)
        tensor.source->read(first, bytes, target);
    else
        std::memcpy(target, first, bytes);
}

/// A param of a state: its name, group and shape.
struct state_param {
    std::string name; ///< name; no other parameter has it
    std::vector<std::size_t>
        shape;             ///< shape of the whole parameter: the product is the number of elements; empty: one element
    std::size_t group = 0; ///< index in state_dict::groups
};

/// The state of an optimizer as plain data.
struct state_dict {
    std::uint64_t step = 0;                       ///< steps taken; the next one is step + 1
    std::optional<loss_scaler_state> loss_scaler; ///< if the optimizer scales dynamically
    std::vector<parameter_group> groups;          ///< parameter groups in order
    std::vector<state_param> params;              ///< params in order
    /// In any order, without overlaps. The files of several ranks may each hold a part of a parameter.
    std::vector<state_tensor> tensors;
    /// The caller's own entries, such as a seed or a position in the data: kept in files, ignored by optimizers. Keys
    /// that begin with "adamant." are reserved.
    std::map<std::string, std::string> metadata = {};
    /// Keeps the sources and targets that state() creates for tensors alive. May be empty.
    std::vector<std::shared_ptr<void const>> owners = {};
};

ADAMANT_END_NAMESPACE
