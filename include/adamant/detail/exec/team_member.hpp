// SPDX-License-Identifier: Apache-2.0
// A thread of a team, for as long as it is one: bound to its PU, and given back to OpenMP as it came.
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

// For as long as a thread is a team's. OpenMP runtimes keep threads for the next region of anyone, so each leaves as it
// came: with its name, its mask, and the floating-point environment that it had from its creator. A task of a team
// has the default one: nearest, and no traps.
class member_thread {
public:
    explicit member_thread(unsigned member) noexcept
    {
        pthread_getname_np(pthread_self(), name_, sizeof name_);
        char own_name[sizeof name_];
        std::snprintf(own_name, sizeof own_name, "adamant/%u", member);
        pthread_setname_np(pthread_self(), own_name);
        std::fegetenv(&environment_);
        std::fesetenv(FE_DFL_ENV);
    }
    member_thread(member_thread const&) = delete;
    member_thread& operator=(member_thread const&) = delete;
    ~member_thread()
    {
#if !defined(ADAMANT_NO_HWLOC)
        if (before_)
            bind_this_thread(before_.get());
#endif
        std::fesetenv(&environment_);
        pthread_setname_np(pthread_self(), name_);
    }

    // To the PU that is its own, and says how that went. Throws bad_alloc.
    void bind(team_member& self, unsigned member, team_options const& options)
    {
        self.thread_id = static_cast<pid_t>(syscall(SYS_gettid));
        if (options.bind == binding::none)
            return;
#if defined(ADAMANT_NO_HWLOC)
        static_cast<void>(member);
        self.problem =
            "adamant: threads cannot be bound, as this program was compiled without hwloc (ADAMANT_NO_HWLOC)";
#else
        std::vector<unsigned> const pus = options.pus.members();
        self.asked = {pus[member % pus.size()]};
        before_ = bitmap_of_this_thread();
        self.bound_to = bind_this_thread(self.asked);
        if (self.bound_to == self.asked)
            return;
        int const refused = errno;
        bool const unknown = self.bound_to.empty();
        std::string const usual = "look whether the PU is online and allowed to this process";
        std::string const why =
            !unknown ? "it is now on PUs " + to_list(self.bound_to) + "; " + usual
                     : refused_text("sched_setaffinity", refused,
                                    advice_on(refused, refused == ENOMEM ? "free memory, or see ulimit -v" : usual));
        self.problem = text_of({"adamant: a thread could not be bound to PU ", to_list(self.asked), ": ", why,
                                "; binding::if_possible goes on without"});
        self.bound_to = {};
#endif
    }

private:
    char name_[16] = "";
    std::fenv_t environment_;
#if !defined(ADAMANT_NO_HWLOC)
    unique_bitmap before_; // its mask
#endif
};

} // namespace detail
ADAMANT_END_NAMESPACE
