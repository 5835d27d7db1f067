// SPDX-License-Identifier: Apache-2.0
// What core/error.hpp declares.
#pragma once

#include <cstdio>

#include <adamant/core/error.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

ADAMANT_DECL std::string text(double value)
{
    char buffer[40];
    std::snprintf(buffer, sizeof buffer, "%.9g", value);
    return buffer;
}

} // namespace detail

ADAMANT_END_NAMESPACE
