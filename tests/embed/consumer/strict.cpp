// SPDX-License-Identifier: Apache-2.0
// A file of a program whose warnings are errors, at -O3: GCC finds some of its own making only there, in what is inline
// in a header and called.
#include <adamant/dtype.hpp> // which has what -Wuseless-cast warns of
#include <adamant/memory.hpp>

void strict()
{
    adamant::check_memory(1000);
}
