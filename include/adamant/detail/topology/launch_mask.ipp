// SPDX-License-Identifier: Apache-2.0
// Definitions of adamant/detail/topology/launch_mask.hpp.
#pragma once

#include <adamant/detail/topology/launch_mask.hpp>

ADAMANT_BEGIN_NAMESPACE

[[gnu::noinline]] ADAMANT_DECL pu_set launch_mask()
{
    pu_set mask;
    for (unsigned i = 0; i < sizeof launch_mask_storage * 8; ++i)
        if (CPU_ISSET_S(i, sizeof launch_mask_storage, launch_mask_storage))
            mask.insert(i);
    return mask;
}

ADAMANT_END_NAMESPACE
