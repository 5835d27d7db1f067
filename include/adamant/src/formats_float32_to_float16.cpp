// SPDX-License-Identifier: Apache-2.0
#include <adamant/src/formats.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

formats_part formats_float32_to_float16() noexcept
{
    return make_formats<float, float16>();
}

} // namespace detail
ADAMANT_END_NAMESPACE
