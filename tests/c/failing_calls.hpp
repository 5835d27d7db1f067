// SPDX-License-Identifier: Apache-2.0
// Calls of the C interface in which one allocation fails.
#pragma once

#include <cstddef>
#include <string>

#include "allocation.hpp"
#include "c_test.hpp"

// Makes a call whose allocation number `n` fails, and once more without a failure if that was an error, which is to say
// what it is. Returns whether it was.
template <class Call>
std::size_t make_twice(Call const& call, long n, int call_number)
{
    INFO("call " << call_number << ", allocation " << n);
    allocation_failed = false;
    allocations_left = n;
    adamant_status status = call();
    allocations_left = -1;
    bool const failed = allocation_failed && status != ADAMANT_OK;
    if (failed) {
        if (status == ADAMANT_DEVICE_FAILED)
            REQUIRE(last_error().find("no step is open") != std::string::npos); // as whole_step() has left it
        else
            fails(status, ADAMANT_OUT_OF_MEMORY, "memory");
        status = call();
    }
    ok(status);
    return failed;
}

// Makes calls so with allocation 0, 1 and so on of each call, until none of them fails. Returns how many have.
template <class Calls>
std::size_t fail_at_each_allocation(Calls const& calls)
{
    std::size_t failed = 0;
    std::size_t now = 1;
    for (long n = 0; now != 0; ++n) {
        now = 0;
        int call_number = 0;
        calls([&](auto const& call) { now += make_twice(call, n, ++call_number); });
        failed += now;
    }
    return failed;
}
