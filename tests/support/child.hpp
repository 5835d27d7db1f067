// SPDX-License-Identifier: Apache-2.0
// Functions that run in a process of their own, because they change it or may end it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <initializer_list>
#include <vector>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "catch.hpp"

namespace test {

// Runs a function in a child, and returns its exit status: what the function returns, or 98 for an exception. A signal
// fails the test, and so does a child that is not done after a minute.
template <class Function>
int in_child(Function function)
{
    pid_t const child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        ::alarm(60);
        int status = 98;
        try {
            status = function();
        } catch (std::exception const& error) {
            std::fprintf(stderr, "in the child: %s\n", error.what());
        }
        ::_exit(status);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status)); // not killed
    return WEXITSTATUS(status);
}

// Runs a function in a child in which these system calls do nothing but set this errno. Returns the child's exit
// status; -1 where no filter is to be had.
template <class Function>
int without(std::initializer_list<long> calls, unsigned with_errno, Function function)
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
