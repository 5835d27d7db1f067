// SPDX-License-Identifier: Apache-2.0
// Every kernel of every combination of element types, chosen at run time: shared by `adamant verify` and the tests, and
// compiled once for both, in one file per param type.
#pragma once

#include <array>
#include <vector>

#include <adamant/core/dtype.hpp>
#include <adamant/isa/isa.hpp>
#include <adamant/kernel/step_pointers.hpp>
#include <adamant/shard/shard.hpp>

struct combination_entry {
    std::array<adamant::dtype, 5> dtypes; // param, grad, exp_avg, exp_avg_sq, weight_out
    std::size_t bytes_per_element;
    adamant::kernel::step_function (*step_for)(adamant::isa) noexcept;
};

using adamant::detail::array_names;

// Always in the same order.
std::vector<combination_entry> const& all_combinations();
