// SPDX-License-Identifier: Apache-2.0
// A team of threads as plain data: the request, the result, and a piece of work.
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
    if_possible, // a thread that cannot be bound stays unbound, and the report says so
    none         // no thread is bound
};

struct team_options {
    pu_set pus = {}; // one thread for each; may be empty with binding::none
    // 0: as many as PUs. With more threads than PUs, threads share PUs in turns; with fewer, the first PUs have one.
    unsigned threads = 0;
    binding bind = binding::automatic;
    // How long a thread without work spins before it sleeps. While it spins, it starts new work within a microsecond;
    // later it has to be woken. An idle team uses no CPU after this.
    std::chrono::nanoseconds spin = std::chrono::microseconds(50);
};

// One thread of a team, as it is.
struct team_member {
    pid_t thread_id = 0; // the system's, as ps -L shows it
    pu_set asked;        // the requested PU; empty where no binding was requested
    pu_set bound_to;     // its mask, read back from the kernel after binding; empty where it is not bound
    std::string problem; // why it is not bound
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
