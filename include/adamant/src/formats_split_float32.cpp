// SPDX-License-Identifier: Apache-2.0
#include <adamant/src/formats.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

formats_part formats_split_float32() noexcept
{
    return make_formats<split_float32, bfloat16>();
}

} // namespace detail
ADAMANT_END_NAMESPACE
