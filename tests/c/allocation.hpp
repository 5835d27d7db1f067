// SPDX-License-Identifier: Apache-2.0
// Memory that ends, for tests.
#pragma once

// Of this thread, the allocation that comes after so many others fails, once; below 0 none does.
extern thread_local long allocations_left;
// Whether it has.
extern thread_local bool allocation_failed;
