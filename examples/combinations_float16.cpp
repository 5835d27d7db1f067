// SPDX-License-Identifier: Apache-2.0
#include "combinations_of.hpp"

void append_float16(std::vector<combination_entry>& entries)
{
    append_combinations_of<adamant::float16>(entries);
}
