// SPDX-License-Identifier: Apache-2.0
// An optimizer's state as plain data: the contents of a checkpoint, in whatever file format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <adamant/core/dtype.hpp>
#include <adamant/step/loss_scaler.hpp>
#include <adamant/step/optimizer_options.hpp>

ADAMANT_BEGIN_NAMESPACE

// The arrays of a parameter that are state. The other arrays are made from them or are new in every step.
enum class state_array : std::uint8_t { param, exp_avg, exp_avg_sq };

[[nodiscard]] constexpr std::string_view name(state_array array) noexcept
{
    return array == state_array::param ? "param" : array == state_array::exp_avg ? "exp_avg" : "exp_avg_sq";
}

// The source of a state's bytes where they are not simply in memory: a file, which anyone may cut short while it is
// read, or masters in two halves.
class state_source {
public:
    // Copies bytes that begin at an address of this source. Throws corrupted or unavailable where they can no longer be
    // read. Thread-safe.
    virtual void read(std::byte const* from, std::size_t bytes, std::byte* to) const = 0;

protected:
    state_source() = default;
    ~state_source() = default;
};

// Where loading puts a state's bytes where that is not simply memory: masters in two halves.
class state_target {
public:
    // Copies bytes, whole elements, to an address of this target. Distinct elements from any thread.
    virtual void write(std::byte const* from, std::size_t bytes, std::byte const* at) const noexcept = 0;

protected:
    state_target() = default;
    ~state_target() = default;
};

// Elements [begin, begin + elements) of one array of one parameter, counted in row-major order. A view: the maker of
// the state_dict says how long the memory lives.
struct state_tensor {
    std::size_t param = 0; // index in state_dict::params
    state_array array = state_array::param;
    dtype type = dtype::float32;
    std::size_t begin = 0;
    std::size_t elements = 0;
    std::byte const* data = nullptr; // array_bytes(type, elements) bytes, at any address
    // If not null, loading and saving read the data through it instead of from `data`. So must whoever looks at the
    // elements of a state() with masters in two halves: these are no array of float32 in memory.
    state_source const* source = nullptr;
    state_target const* target = nullptr; // the same for an optimizer's own arrays, which a state is loaded into
};

struct state_param {
    std::string name;               // that no other parameter has
    std::vector<std::size_t> shape; // of the whole parameter; its product is the number of elements; empty: one
    std::size_t group = 0;          // index in state_dict::groups
};

struct state_dict {
    std::uint64_t step = 0;                       // steps taken; the next one is step + 1
    std::optional<loss_scaler_state> loss_scaler; // if the optimizer scales dynamically
    std::vector<parameter_group> groups;
    std::vector<state_param> params;
    // In any order, without overlaps. Where several ranks save files, each may hold a part of a parameter.
    std::vector<state_tensor> tensors;
    // The caller's own, such as a seed or the position in the data: kept in files, ignored by optimizers. Keys that
    // begin with "adamant." are the library's.
    std::map<std::string, std::string> metadata = {};
};

ADAMANT_END_NAMESPACE
