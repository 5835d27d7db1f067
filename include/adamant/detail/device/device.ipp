// SPDX-License-Identifier: Apache-2.0
// Definitions of adamant/device.hpp.
#pragma once

#include <adamant/device.hpp>
#include <adamant/dtype.hpp>

ADAMANT_BEGIN_NAMESPACE

ADAMANT_DECL std::size_t device_piece::blocks() const noexcept
{
    return (elems + norm_block_elems - 1) / norm_block_elems;
}

ADAMANT_DECL void device::claim(void const* by)
{
    void const* none = nullptr;
    if (!user_.compare_exchange_strong(none, by) && none != by)
        detail::throw_invalid_argument({name(), " has the shards of another optimizer already; give each "
                                                "optimizer a device object of its own"});
}

ADAMANT_DECL void device::leave(void const* by) noexcept
{
    void const* user = by;
    (void)user_.compare_exchange_strong(user, nullptr);
}

ADAMANT_END_NAMESPACE
