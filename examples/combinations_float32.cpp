// SPDX-License-Identifier: Apache-2.0
#include "combinations_of.hpp"

void append_float32(std::vector<combination_entry>& entries)
{
    append_combinations_of<float>(entries);
}

std::vector<combination_entry> const& all_combinations()
{
    static std::vector<combination_entry> const entries = [] {
        std::vector<combination_entry> list;
        append_float32(list);
        append_bfloat16(list);
        append_float16(list);
        return list;
    }();
    return entries;
}
