// SPDX-License-Identifier: Apache-2.0
// Work that is done in a forked process, where system calls are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include "catch.hpp"
#include "forked.hpp"

namespace test {

// Runs a function in a child in which these system calls do nothing but set this errno. Returns the child's exit
// status; -1 where no filter is to be had.
template <class Function>
int without(std::initializer_list<long> calls, unsigned with_errno, Function const& function)
{
    std::vector<sock_filter> program = {{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)}};
    for (long const call : calls) {
        program.push_back({BPF_JMP | BPF_JEQ | BPF_K, 0, 1, static_cast<std::uint32_t>(call)});
        program.push_back({BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | with_errno});
    }
    program.push_back({BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW});
    sock_fprog const filter = {static_cast<unsigned short>(program.size()), program.data()};
    int const status = in_child([&] {
        if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
            return 99;
        return function();
    });
    if (status != 99)
        return status;
    WARN("skipped: no system call can be refused here");
    return -1;
}

} // namespace test
