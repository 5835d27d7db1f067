// SPDX-License-Identifier: Apache-2.0
// The check for sizes that no array can have, such as negative numbers that were converted.
#pragma once

#include <cstddef>
#include <limits>

#include <adamant/error.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Throws invalid_argument if no memory has room for so large an array. kind: "an array of", "a shard of".
inline void check_array_size(char const* kind, std::size_t elements)
{
    if (elements > std::numeric_limits<std::size_t>::max() / 8)
        throw_invalid_argument(
            {kind, " ", counted(elements, "element"), " does not fit in memory. Was a negative size converted?"});
}

} // namespace detail
ADAMANT_END_NAMESPACE
