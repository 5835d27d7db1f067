// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/device.hpp>: ownership of a device.
#pragma once

#include <adamant/device.hpp>
#include <adamant/dtype.hpp>

ADAMANT_BEGIN_NAMESPACE

ADAMANT_DECL std::size_t device_piece::blocks() const noexcept
{
    return (elems + norm_block_elems - 1) / norm_block_elems;
}

ADAMANT_DECL void device::claim(void const* user)
{
    void const* current = nullptr;
    if (!user_.compare_exchange_strong(current, user) && current != user)
        detail::throw_invalid_argument({"cannot place shards on ", name(),
                                        ": it has the shards of another optimizer already. Use a separate device "
                                        "object for each optimizer."});
}

ADAMANT_DECL void device::leave(void const* user) noexcept
{
    void const* current = user;
    (void)user_.compare_exchange_strong(current, nullptr);
}

ADAMANT_END_NAMESPACE
