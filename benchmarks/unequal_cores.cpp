// SPDX-License-Identifier: Apache-2.0
// One of the team's cores is wanted by another process: the step, whose chunks others take, against an even split, and
// against the limit on the same cores.
//
//   unequal_cores/TYPES/elems:N/threads:T

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <adamant/shard.hpp>

#include "arrays.hpp"
#include "references.hpp"
#include "rows.hpp"

namespace bench {

namespace {

// A process that keeps a PU busy, as long as this object lives.
class busy_process {
public:
    explicit busy_process(unsigned pu) : child_(fork())
    {
        if (child_ < 0)
            throw std::runtime_error(std::string("a busy process could not be started: ") + std::strerror(errno));
        if (child_ == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            cpu_set_t mask;
            CPU_ZERO(&mask);
            CPU_SET(pu, &mask);
            if (sched_setaffinity(0, sizeof mask, &mask) != 0)
                _exit(1);
            for (std::uint64_t volatile work = 0;;)
                work = work + 1;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ~busy_process()
    {
        kill(child_, SIGKILL);
        waitpid(child_, nullptr, 0);
    }
    busy_process(busy_process const&) = delete;
    busy_process& operator=(busy_process const&) = delete;

private:
    pid_t child_;
};

template <class Shard>
void busy_core(benchmark::State& state, executor const& cpu, std::size_t n)
{
    arrays const a(Shard::dtypes, n);
    fill<Shard>(cpu, a, n, content::ordinary);
    Shard const whole = shard_of<Shard>(a, 0, n);
    adamant::coefficients const c = adamw();
    adamant::kernel::step_function const run = adamant::any_shard(whole).step_for(cpu.tier());
    busy_process const neighbor(cpu.team()->bound_to().members().back());
    std::vector<contender> contenders;
    contenders.push_back({part_in_race::subject, "step", "", [&] { adamant::step(cpu, whole, c); }});
    contenders.push_back({part_in_race::aside, "even_split", "", [&] {
                              cpu.for_each_owned_slice(
                                  n, [&](slice part) { run(whole.pointers(), part.begin, part.end, c, true); });
                          }});
    add_limits<Shard>(contenders, cpu, a, n);
    race::run(state, contenders);
    report(state, contenders, moving(n, Shard::bytes_per_element()));
}

template <class Shard>
void add(setup const& given, std::string const& types)
{
    // Long enough that a few milliseconds at the end, when all may wait for the thread that has to wait for its PU, do
    // not decide.
    std::size_t const n = elements_for(given.chosen.bytes, memory_bytes(Shard::dtypes));
    add_row("unequal_cores/" + types + "/" + row_name(given.all(), n), 2 * given.chosen.rounds,
            [&given, n](benchmark::State& state) { busy_core<Shard>(state, given.all(), n); });
}

} // namespace

void add_unequal_cores(setup const& given)
{
    if (given.all().team() == nullptr || !given.all().team()->bound())
        return; // one core, or none to call one's own
    add<mixed>(given, "mixed");
    add<bf16>(given, "bf16");
}

} // namespace bench
