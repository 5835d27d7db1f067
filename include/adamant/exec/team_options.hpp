// SPDX-License-Identifier: Apache-2.0
// A team of threads as plain data: what is asked for, what was got, and a piece of work.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

#include <sys/types.h>

#include <adamant/core/error.hpp>
#include <adamant/topology/index_set.hpp>

ADAMANT_BEGIN_NAMESPACE

enum class binding {
    automatic,   // required; none in a program that was compiled without hwloc
    required,    // a thread that cannot be bound is an error
    if_possible, // it stays where the system puts it, and the report says so
    none         // not asked for
};

struct team_options {
    pu_set pus = {}; // one thread to each of them; may be empty with binding::none
    // 0: as many as PUs. More than PUs: they share them, in turns. Fewer: the first of them have one.
    unsigned threads = 0;
    binding bind = binding::automatic;
    // How long a thread without work looks for some before it sleeps: then it answers within a microsecond, afterwards
    // it has to be woken. An idle team burns no CPU after this.
    std::chrono::nanoseconds spin = std::chrono::microseconds(50);
};

// One thread of a team, as it is.
struct team_member {
    pid_t thread_id = 0; // the system's, as ps -L shows it
    pu_set asked;        // the PU that it was to be bound to; empty where none was
    pu_set bound_to;     // its mask as the kernel says it after binding; empty where it is not bound
    std::string problem; // why not
};

namespace detail {

// A piece of work for all members of a team, in its submitter's memory.
struct team_request {
    // Called once by each member, with 0 and 0; or, where work is cut into chunks, for ranges of these.
    void (*run)(team_request& self, unsigned member, std::size_t begin, std::size_t end) = nullptr;
    std::size_t chunks = 0;
    unsigned chunk_takers = 0; // 0: the work is not cut into chunks
    team_request* next = nullptr;
    std::uint32_t ticket = 0;
    std::atomic<bool> failed{false};
    std::exception_ptr error; // the first one thrown
};

} // namespace detail
ADAMANT_END_NAMESPACE
