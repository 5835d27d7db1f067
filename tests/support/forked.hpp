// SPDX-License-Identifier: Apache-2.0
// Work that is done in a forked process.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include <adamant/error.hpp>

#include "catch.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ADAMANT_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ADAMANT_SANITIZED
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define ADAMANT_THREAD_SANITIZED
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ADAMANT_THREAD_SANITIZED
#endif
#endif

namespace test {

// Whether a forked child may start threads. ThreadSanitizer's runtime fails to start one in some of ten runs, if many
// threads have lived in the parent.
#if defined(ADAMANT_THREAD_SANITIZED)
inline constexpr bool child_may_start_threads = false;
#else
inline constexpr bool child_may_start_threads = true;
#endif

// Exit status of work done in a forked process: what it returns, 98 for an exception, above 1000 where a signal ended
// it. One that hangs is ended by SIGALRM.
template <class Work>
int in_child(Work const& work)
{
    std::fflush(nullptr); // or a child that calls exit() writes it once more
    pid_t const child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        alarm(60);
        int status = 98;
        try {
            status = work();
        } catch (std::exception const& error) {
            std::fprintf(stderr, "in the child: %s\n", error.what());
        } catch (...) {
        }
        _exit(status);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

// Whether the call throws unavailable in a forked process, and says that it was forked.
template <class Call>
bool is_refused_in_child(char const* name, Call const& call)
{
    int const status = in_child([&] {
        try {
            call();
        } catch (adamant::unavailable const& error) {
            return std::string(error.what()).find("forked") != std::string::npos ? 0 : 2;
        }
        return 1;
    });
    UNSCOPED_INFO(name << " in the child: " << status);
    return status == 0;
}

// Whether a forked process can destroy what `made` points to, and whether it can exit with it in a static object.
template <class Owner>
bool is_destroyed_in_child(Owner& made)
{
    int const destroyed = in_child([&] {
        made.reset();
        return 7;
    });
    UNSCOPED_INFO("destruction in the child: " << destroyed);
    bool good = destroyed == 7;
#if !defined(ADAMANT_SANITIZED) // AddressSanitizer calls what the child leaks a leak
    int const ended = in_child([&] {
        static Owner to_the_end;
        to_the_end = std::move(made);
        std::exit(8);
        return 0;
    });
    UNSCOPED_INFO("exit() in the child: " << ended);
    good = good && ended == 8;
#endif
    return good;
}

} // namespace test
