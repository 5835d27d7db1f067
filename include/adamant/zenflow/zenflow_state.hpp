// SPDX-License-Identifier: Apache-2.0
// The state of an optimizer that puts gradients off, as plain data: all that another one needs to go on with the same
// bits, in the middle of a window, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <adamant/checkpoint/state_dict.hpp>
#include <adamant/shard/dtypes.hpp>
#include <adamant/step/loss_scaler.hpp>
#include <adamant/step/optimizer_options.hpp>
#include <adamant/zenflow/zenflow_options.hpp>

ADAMANT_BEGIN_NAMESPACE

// One param, or a rank's rows of it. The arrays are views, of the optimizer's params or of whatever was saved.
struct zenflow_state_param {
    std::string name;
    std::size_t group = 0;    // index in zenflow_state::groups
    std::size_t columns = 0;  // of a matrix; 0: a vector
    std::size_t all_rows = 0; // of the whole matrix; of a vector, its elements
    std::size_t first_row = 0;
    std::size_t rows = 0; // of a vector, elements
    shard_dtypes types = {};
    // By shard_array: those that are state. A matrix's lie by columns: `rows` elements of the first column, then of the
    // next.
    std::byte const* arrays[shard_arrays] = {};
    // A matrix's weights by rows, of the type of weight_out, or of param where there is none. Null: they are made from
    // the masters.
    std::byte const* weights = nullptr;
    std::vector<std::uint64_t> counts = {};  // of updates, for each column; of a vector, one
    std::vector<std::uint8_t> selected = {}; // of each column: 0 or 1
    // Columns whose masters are ahead of the weights, which follow at the end of the window.
    std::vector<std::uint8_t> landing = {};
    float const* sums = nullptr; // by rows; null where nothing has been put off in this window
    std::uint64_t summed = 0;    // steps in them
    // If not null, loading and saving read what the pointers point to through it, as of a state_tensor.
    state_source const* source = nullptr;
};

struct zenflow_state {
    zenflow_position position;
    double put_off_norm = 0; // the sum of the norms in this window, for a bound of what has been put off
    std::optional<loss_scaler_state> loss_scaler;
    std::vector<parameter_group> groups;
    std::vector<zenflow_state_param> params;
    // The caller's own, as in a state_dict.
    std::map<std::string, std::string> metadata = {};
};

ADAMANT_END_NAMESPACE
