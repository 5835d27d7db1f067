// SPDX-License-Identifier: Apache-2.0
// `adamant cores --bind-test`.

#include "bind_test.hpp"

#include <cstdio>
#include <memory>

#include <sched.h>

#include <adamant/team.hpp>

namespace cli {

int bind_test(std::vector<adamant::rank_cores> const& ranks)
{
    std::vector<std::unique_ptr<adamant::team>> teams; // all at the same time, like those of a job
    for (adamant::rank_cores const& rank : ranks)
        teams.push_back(std::make_unique<adamant::team>(adamant::team_options{.pus = rank.adam_pus}));
    int status = 0;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
        adamant::team& team = *teams[r];
        std::vector<int> runs_on(team.size());
        team.submit([&](unsigned member) { runs_on[member] = sched_getcpu(); }).wait();
        std::printf("rank %u: %u thread%s\n", ranks[r].rank, team.size(), team.size() == 1 ? "" : "s");
        for (unsigned m = 0; m < team.size(); ++m) {
            adamant::team_member const& thread = team.members()[m];
            bool const is_bound =
                thread.bound_to == thread.asked && thread.asked.contains(static_cast<unsigned>(runs_on[m]));
            std::printf("  thread %d  asked PU %s  bound to PU %s, says the kernel  runs on PU %d%s\n",
                        thread.thread_id, to_list(thread.asked).c_str(), to_list(thread.bound_to).c_str(), runs_on[m],
                        is_bound ? "" : "  WRONG");
            if (!is_bound)
                status = 1;
        }
    }
    return status;
}

} // namespace cli
