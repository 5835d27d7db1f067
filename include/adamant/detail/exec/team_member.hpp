// SPDX-License-Identifier: Apache-2.0
// Sets up an OpenMP thread as a member of a team, and restores it afterwards.
#pragma once

#include <cerrno>
#include <cfenv>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <adamant/error.hpp>
#include <adamant/team.hpp>
#include <adamant/detail/core/refused_call.hpp>
#if !defined(ADAMANT_NO_HWLOC)
#include <adamant/detail/topology/hwloc.hpp>
#endif

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// Scope of a thread's membership in a team. OpenMP runtimes reuse threads for any later parallel region, so the
// destructor restores the thread's name, affinity mask and floating-point environment. Inside the scope the thread has
// the default floating-point environment: round to nearest, no traps.
class member_thread {
public:
    explicit member_thread(unsigned member) noexcept
    {
        pthread_getname_np(pthread_self(), name_, sizeof name_);
        char member_name[sizeof name_];
        std::snprintf(member_name, sizeof member_name, "adamant/%u", member);
        pthread_setname_np(pthread_self(), member_name);
        std::fegetenv(&environment_);
        std::fesetenv(FE_DFL_ENV);
    }
    member_thread(member_thread const&) = delete;
    member_thread& operator=(member_thread const&) = delete;
    ~member_thread()
    {
#if !defined(ADAMANT_NO_HWLOC)
        if (old_mask_)
            bind_this_thread(old_mask_.get());
#endif
        std::fesetenv(&environment_);
        pthread_setname_np(pthread_self(), name_);
    }

    // Binds the thread to the PU of `member` and writes the result to `self`. Throws bad_alloc.
    [[gnu::noinline]] void bind(team_member& self, unsigned member, team_options const& options)
    {
        self.thread_id = static_cast<pid_t>(syscall(SYS_gettid));
        if (options.bind == binding::none)
            return;
#if defined(ADAMANT_NO_HWLOC)
        static_cast<void>(member);
        self.problem =
            "adamant: cannot bind threads: this program was compiled without hwloc (ADAMANT_NO_HWLOC). Request "
            "binding::none.";
#else
        std::vector<unsigned> const pus = options.pus.members();
        self.asked = {pus[member % pus.size()]};
        old_mask_ = bitmap_of_this_thread();
        self.bound_to = bind_this_thread(self.asked);
        if (self.bound_to == self.asked)
            return;
        int const error = errno;
        bool const unknown = self.bound_to.empty();
        std::string const usual = "check whether the PU is online and allowed to this process";
        std::string const reason =
            !unknown ? text_of({"it now runs on PUs ", to_list(self.bound_to), "; ", usual})
                     : refused_text("sched_setaffinity", error,
                                    advice_on(error, error == ENOMEM ? "free memory, or see ulimit -v" : usual));
        self.problem = text_of({"adamant: cannot bind a thread to PU ", to_list(self.asked), ": ", reason,
                                ". To continue unbound, request binding::if_possible."});
        self.bound_to = {};
#endif
    }

private:
    char name_[16] = "";
    std::fenv_t environment_;
#if !defined(ADAMANT_NO_HWLOC)
    unique_bitmap old_mask_;
#endif
};

} // namespace detail
ADAMANT_END_NAMESPACE
