// SPDX-License-Identifier: Apache-2.0
// Definitions of roofline_ranks.hpp.
#include "roofline_ranks.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <numeric>
#include <thread>

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <adamant/executor.hpp>
#include <adamant/memory.hpp>

#include "plan_numbers.hpp"

namespace cli {

namespace {

using namespace adamant;

constexpr std::size_t most_rounds = 1000;
constexpr std::size_t most_contenders = 4; // the step and some loops

double now()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The state that the processes share. All of them use the same clock.
struct shared_state {
    std::atomic<unsigned> arrivals;    // at the barrier, over all rounds
    std::atomic<unsigned> ready_ranks; // ranks whose arrays are filled
    std::atomic<bool> stop_requested;  // by the parent
    std::atomic<bool> should_quit;     // set by rank 0 before a barrier, read by all ranks after it
    std::atomic<bool> has_failed;
    char failure[400];
    std::atomic<std::size_t> completed_rounds;
    std::atomic<std::size_t> huge_bytes;
    std::atomic<std::size_t> resident_bytes;
    char isa[32];
};
struct interval {
    double begin;
    double end;
};

// A mapping that is shared with child processes.
class shared_memory {
public:
    explicit shared_memory(std::size_t ranks)
        : ranks_(ranks), bytes_(sizeof(shared_state) + sizeof(interval) * ranks * most_contenders * most_rounds)
    {
        address_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (address_ == MAP_FAILED)
            throw unavailable("adamant: memory for the ranks to share could not be mapped: " +
                              std::string(std::strerror(errno)));
        new (address_) shared_state{};
    }
    ~shared_memory() { ::munmap(address_, bytes_); }
    shared_memory(shared_memory const&) = delete;
    shared_memory& operator=(shared_memory const&) = delete;

    [[nodiscard]] shared_state& state() const { return *static_cast<shared_state*>(address_); }
    [[nodiscard]] interval& time_of(std::size_t round, std::size_t contender, std::size_t rank) const
    {
        auto* const all = reinterpret_cast<interval*>(static_cast<std::byte*>(address_) + sizeof(shared_state));
        return all[(round * most_contenders + contender) * ranks_ + rank];
    }

private:
    std::size_t ranks_;
    std::size_t bytes_;
    void* address_;
};

// A barrier: returns when all ranks have called it. False: a rank has failed. arrivals: of this rank's earlier calls,
// in total over all ranks.
bool wait_for_all(shared_state& state, unsigned ranks, unsigned& arrivals)
{
    arrivals += ranks;
    state.arrivals.fetch_add(1);
    while (state.arrivals.load() < arrivals) {
        if (state.has_failed.load())
            return false;
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return true;
}

std::size_t share_of(std::size_t params, std::size_t ranks)
{
    return (params + ranks - 1) / ranks;
}

// The work of one rank.
void run_rank(job_request const& job, std::size_t params, std::size_t rank, shared_memory const& memory)
{
    shared_state& state = memory.state();
    auto const ranks = static_cast<unsigned>(job.ranks.size());
    rank_cores const& cores = job.ranks[rank];
    executor const cpu(std::make_shared<team>(team_options{.pus = cores.adam_pus}));
    trial_step arrays(
        cpu, *job.types.format, share_of(params, ranks),
        {.nodes = cores.numa_nodes, .check_available = false}); // params_that_fit() checks all ranks together
    for (memory_block const& block : arrays.blocks())
        if (block.size() != 0) {
            memory_placement const placement = measure_placement(block);
            state.huge_bytes += placement.huge_bytes;
            state.resident_bytes += placement.resident_bytes;
        }
    if (rank == 0)
        std::strncpy(state.isa, std::string(name(cpu.tier())).c_str(), sizeof state.isa - 1);
    ++state.ready_ranks;
    unsigned arrivals = 0;
    for (std::size_t round = 0; round <= job.rounds; ++round) {
        if (rank == 0 && state.stop_requested.load())
            state.should_quit.store(true);
        if (!wait_for_all(state, ranks, arrivals) || state.should_quit.load())
            return;
        for (std::size_t k = 0; k <= job.loops.size(); ++k) {
            interval& time = memory.time_of(round, k, rank);
            time.begin = now();
            if (k == job.loops.size())
                arrays.seconds(cpu);
            else
                limit_seconds(job.loops[k], cpu, arrays);
            time.end = now();
            if (!wait_for_all(state, ranks, arrivals))
                return;
        }
        if (rank == 0)
            state.completed_rounds.store(round + 1);
    }
}

[[noreturn]] void run_child(job_request const& job, std::size_t params, std::size_t rank, shared_memory const& memory)
{
    int status = 0;
    try {
        for (int const signal : {SIGINT, SIGTERM, SIGHUP})
            std::signal(signal, SIG_IGN); // the parent handles it
        run_rank(job, params, rank, memory);
    } catch (std::exception const& e) {
        shared_state& state = memory.state();
        if (!state.has_failed.exchange(true))
            std::strncpy(state.failure, e.what(), sizeof state.failure - 1);
        status = 1;
    }
    ::_exit(status);
}

// The child processes. The destructor ends those that still run.
class children {
public:
    ~children()
    {
        for (pid_t const child : running_)
            ::kill(child, SIGKILL);
        for (pid_t const child : running_)
            ::waitpid(child, nullptr, 0);
    }
    void add(pid_t child) { running_.push_back(child); }
    // Reaps ended processes. Returns whether others still run. Throws if one has failed.
    bool reap(shared_state const& state)
    {
        for (std::size_t i = 0; i < running_.size();) {
            int status = 0;
            if (::waitpid(running_[i], &status, WNOHANG) != running_[i]) {
                ++i;
                continue;
            }
            running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
            if (WIFSIGNALED(status))
                throw unavailable("adamant: a rank was ended by signal " + std::to_string(WTERMSIG(status)) +
                                  (WTERMSIG(status) == SIGKILL ? ", as the kernel does when memory is short" : "") +
                                  "; ask for fewer --params");
            if (status != 0)
                throw unavailable(state.failure[0] != '\0' ? state.failure : "adamant: a rank has failed");
        }
        return !running_.empty();
    }

private:
    std::vector<pid_t> running_;
};

std::size_t params_that_fit(job_request const& job)
{
    // Leaves a tenth for page tables and other processes, of the machine's memory and of the nodes that ranks are bound
    // to.
    double const elem_bytes = memory_bytes(job.types.format->types);
    double most = static_cast<double>(available_memory().bytes) * 0.9 / elem_bytes;
    for (rank_cores const& cores : job.ranks) {
        if (cores.numa_nodes.empty())
            continue;
        double sharers = 0; // ranks that may allocate on the same nodes
        for (rank_cores const& other : job.ranks)
            sharers += other.numa_nodes.intersects(cores.numa_nodes);
        double const node_elems = static_cast<double>(available_memory(cores.numa_nodes).bytes) * 0.9 / elem_bytes;
        most = std::min(most, node_elems / sharers * static_cast<double>(job.ranks.size()));
    }
    auto const whole = static_cast<std::size_t>(most);
    return job.params <= whole ? job.params : whole / 4096 * 4096;
}

std::string all_pus(job_request const& job)
{
    std::string text;
    for (rank_cores const& cores : job.ranks)
        text += (text.empty() ? "" : " | ") + to_list(cores.adam_pus);
    return text;
}

} // namespace

double expected_rounds(job_request const& job)
{
    return static_cast<double>(2 * (job.rounds + 1)); // they take longer than those of measure_cores()
}

job_result run_job(job_request const& requested, progress& bar)
{
    job_request job = requested;
    job.rounds = std::min(job.rounds, most_rounds - 1);
    job.loops.resize(std::min(job.loops.size(), most_contenders - 1));
    job_result result;
    result.params_measured = params_that_fit(job);
    result.projected = result.params_measured != job.params;
    if (result.params_measured < 4096 * job.ranks.size())
        throw unavailable("adamant: there is too little memory for a job of any size");
    bar.set_activity("filling " + gb(memory_bytes(job.types.format->types, result.params_measured)) + " GB");
    shared_memory const memory(job.ranks.size());
    shared_state& state = memory.state();
    children all;
    pid_t const parent = ::getpid();
    for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
        pid_t const child = ::fork();
        if (child < 0)
            throw unavailable("adamant: rank " + std::to_string(rank) +
                              " could not be started: " + std::strerror(errno));
        if (child == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (::getppid() != parent)
                ::_exit(1);
            run_child(job, result.params_measured, rank, memory);
        }
        all.add(child);
    }
    std::size_t shown_rounds = 0;
    while (all.reap(state)) {
        if (interruption::is_set())
            state.stop_requested.store(true);
        if (state.ready_ranks.load() == job.ranks.size())
            bar.set_activity("the whole job");
        for (; shown_rounds < state.completed_rounds.load(); ++shown_rounds)
            bar.advance(2);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }

    std::vector<timed_work> limits(job.loops.size());
    std::vector<double> steps;
    for (std::size_t round = 1; round < state.completed_rounds.load(); ++round) // the first does not count
        for (std::size_t k = 0; k <= job.loops.size(); ++k) {
            double begin = memory.time_of(round, k, 0).begin;
            double end = 0;
            for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
                begin = std::min(begin, memory.time_of(round, k, rank).begin);
                end = std::max(end, memory.time_of(round, k, rank).end);
            }
            (k == job.loops.size() ? steps : limits[k].times).push_back(end - begin);
        }
    if (steps.empty())
        return result;
    roofline_row common;
    common.types = job.types.name;
    for (rank_cores const& cores : job.ranks) // of the rank with the most
        common.threads = std::max(common.threads, static_cast<unsigned>(cores.adam_pus.size()));
    common.ranks = static_cast<unsigned>(job.ranks.size());
    common.pus = all_pus(job);
    common.elements = share_of(result.params_measured, job.ranks.size()) * job.ranks.size();
    common.bytes_per_element = step_bytes(job.types.format->types);
    common.isa = state.isa;
    result.rows = rows_of(common, steps, limits, job.loops);
    result.step_s = result.rows.back().ns_per_element * 1e-9 * static_cast<double>(job.params);
    result.huge_share = state.resident_bytes == 0 ? 0
                                                  : static_cast<double>(state.huge_bytes.load()) /
                                                        static_cast<double>(state.resident_bytes.load());
    return result;
}

} // namespace cli
