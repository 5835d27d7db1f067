// SPDX-License-Identifier: Apache-2.0
#include <adamant/src/formats.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

formats_part formats_float16() noexcept
{
    return make_formats<float16, void>();
}

} // namespace detail
ADAMANT_END_NAMESPACE
