// SPDX-License-Identifier: Apache-2.0
// What combinations_<param>.cpp share.
#pragma once

#include <adamant/adamant.hpp>
#include <adamant/shard/combinations.hpp>

#include "combinations.hpp"

template <class Param>
void append_combinations_of(std::vector<combination_entry>& entries)
{
    adamant::for_each_combination_of<Param>(
        [&]<class P, class G, class M, class V, class W>(adamant::combination<P, G, M, V, W> types) {
            entries.push_back({types.dtypes, decltype(types)::shard_type::bytes_per_element(),
                               adamant::kernel::step_for<P, G, M, V, W>});
        });
}

void append_float32(std::vector<combination_entry>& entries);
void append_bfloat16(std::vector<combination_entry>& entries);
void append_float16(std::vector<combination_entry>& entries);
