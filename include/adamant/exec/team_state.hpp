// SPDX-License-Identifier: Apache-2.0
// The inside of a team: its threads, their bindings, and the queue of work. See team.hpp.
#pragma once

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <adamant/core/error.hpp>
#include <adamant/exec/lanes.hpp>
#include <adamant/topology/index_set.hpp>
#if !defined(ADAMANT_NO_HWLOC)
#include <adamant/topology/hwloc.hpp>
#endif

ADAMANT_BEGIN_NAMESPACE

enum class binding {
    automatic,   // required; none in a program that was compiled without hwloc
    required,    // a thread that cannot be bound is an error
    if_possible, // it stays where the system puts it, and the report says so
    none         // not asked for
};
inline constexpr binding default_binding = binding::automatic;

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

constexpr binding resolved(binding bind) noexcept
{
    if (bind != binding::automatic)
        return bind;
#if defined(ADAMANT_NO_HWLOC)
    return binding::none;
#else
    return binding::required;
#endif
}

// A piece of work for all members of a team, in its submitter's memory.
struct team_request {
    void (*run)(team_request& self, unsigned member) = nullptr;
    std::size_t chunks = 0; // for the lanes; see lanes.hpp
    unsigned chunk_takers = 0;
    team_request* next = nullptr;
    std::uint32_t ticket = 0;
    std::atomic<bool> failed{false};
    std::exception_ptr error; // the first one thrown
};

inline void relax() noexcept
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    asm volatile("yield");
#endif
}

// Returns once the value is no longer `old`: looks for a while, then sleeps.
inline std::uint32_t wait_for_change(std::atomic<std::uint32_t> const& value, std::uint32_t old,
                                     std::chrono::nanoseconds spin) noexcept
{
    auto const until = std::chrono::steady_clock::now() + spin;
    do {
        for (int i = 0; i < 32; ++i) {
            if (std::uint32_t const now = value.load(std::memory_order_acquire); now != old)
                return now;
            relax();
        }
        // Whoever we wait for may want this very PU.
        if (spin.count() > 0)
            sched_yield();
    } while (std::chrono::steady_clock::now() < until);
    for (;;) {
        value.wait(old, std::memory_order_acquire);
        if (std::uint32_t const now = value.load(std::memory_order_acquire); now != old)
            return now;
    }
}

// What the threads share. The leader's thread keeps it alive, whatever becomes of the team object.
class team_state {
public:
    team_state(team_options const& options, unsigned threads)
        : lanes(threads), options_(options), members_(threads), process_(getpid())
    {
    }

    [[nodiscard]] team_options const& options() const noexcept { return options_; }
    [[nodiscard]] std::vector<team_member> const& members() const noexcept { return members_; }
    [[nodiscard]] bool in_this_process() const noexcept { return getpid() == process_; }
    [[nodiscard]] bool is_member() const noexcept { return of_this_thread() == this; }

    // The leader: opens the parallel region in which all members live. Does not return before stop().
    void lead()
    {
        unsigned const size = static_cast<unsigned>(members_.size());
#if defined(_OPENMP)
        int const threads = static_cast<int>(size);
        omp_set_dynamic(0); // of this thread only
        if (size > static_cast<unsigned>(omp_get_thread_limit())) {
            refuse(static_cast<unsigned>(omp_get_thread_limit()));
            return;
        }
#pragma omp parallel num_threads(threads)
        {
            unsigned const granted = static_cast<unsigned>(omp_get_num_threads());
            unsigned const member = static_cast<unsigned>(omp_get_thread_num());
            if (granted == size)
                live(member);
            else if (member == 0)
                refuse(granted);
        }
#else
        if (size == 1)
            live(0);
        else
            refuse(1);
#endif
    }

    // Returns when the members are there; throws where they cannot be had.
    void wait_until_ready()
    {
        while (ready_.load(std::memory_order_acquire) == 0)
            ready_.wait(0, std::memory_order_acquire);
        if (!problem_.empty())
            throw unavailable(problem_);
    }

    // Throws where submit() would.
    void check_submit() const
    {
        if (!in_this_process())
            throw unavailable("adamant: a team of process " + std::to_string(process_) + " is used in process " +
                              std::to_string(getpid()) +
                              ", which was forked from it: threads do not survive a fork; "
                              "make a team of its own after the fork");
        if (is_member())
            throw invalid_argument("adamant: a task of a team gives that team more work and would wait for itself; "
                                   "give it to another team, or do it in the task");
    }
    void submit(team_request& request)
    {
        check_submit();
        bool start = false;
        {
            std::lock_guard const lock(mutex_);
            request.ticket = ++last_ticket_;
            request.next = nullptr;
            if (head_ == nullptr) {
                head_ = tail_ = &request;
                publish(head_);
                start = true;
            } else {
                tail_ = tail_->next = &request;
            }
        }
        if (start)
            epoch_.notify_all();
    }

    [[nodiscard]] bool done(std::uint32_t ticket) const noexcept
    {
        return reached(completed_.load(std::memory_order_acquire), ticket);
    }

    void wait(std::uint32_t ticket) const noexcept
    {
        std::uint32_t now = completed_.load(std::memory_order_acquire);
        while (!reached(now, ticket))
            now = wait_for_change(completed_, now, options_.spin);
    }

    // All that was submitted is still done.
    void stop()
    {
        bool start = false;
        {
            std::lock_guard const lock(mutex_);
            stopping_ = true;
            if (head_ == nullptr) {
                publish(nullptr);
                start = true;
            }
        }
        if (start)
            epoch_.notify_all();
    }

    chunk_lanes lanes; // of the request that is being worked on

private:
    static bool reached(std::uint32_t completed, std::uint32_t ticket) noexcept
    {
        return static_cast<std::int32_t>(completed - ticket) >= 0;
    }
    static team_state const*& of_this_thread() noexcept
    {
        static thread_local team_state const* state = nullptr;
        return state;
    }

    void announce(std::string problem)
    {
        problem_ = std::move(problem);
        ready_.store(1, std::memory_order_release);
        ready_.notify_all();
    }

    void refuse(unsigned granted)
    {
#if defined(_OPENMP)
        announce("adamant: " + std::to_string(members_.size()) + " threads are asked for, but OpenMP grants " +
                 std::to_string(granted) +
                 "; look at OMP_THREAD_LIMIT, OMP_MAX_ACTIVE_LEVELS and KMP_DEVICE_THREAD_LIMIT, or ask for fewer");
#else
        announce("adamant: " + std::to_string(members_.size()) +
                 " threads are asked for, but this program was compiled without OpenMP, which gives " +
                 std::to_string(granted) + "; add -fopenmp");
#endif
    }

    // One member, from beginning to end.
    void live(unsigned member)
    {
        of_this_thread() = this;
        // OpenMP runtimes keep threads for the next region of anyone, so each leaves as it came.
        char name[16] = "";
        pthread_getname_np(pthread_self(), name, sizeof name);
        std::string own_name = "adamant/";
        own_name += std::to_string(member);
        pthread_setname_np(pthread_self(), own_name.c_str());
        pu_set const before = bind(member);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == members_.size()) {
            std::string problem;
            for (team_member const& m : members_)
                if (!m.problem.empty() && options_.bind == binding::required)
                    problem = m.problem;
            if (!problem.empty())
                publish(nullptr); // nobody can have submitted anything yet
            announce(std::move(problem));
            epoch_.notify_all();
        }
        for (std::uint32_t seen = 0;;) {
            seen = wait_for_change(epoch_, seen, options_.spin);
            if (current_ == nullptr)
                break;
            work(*current_, member);
        }
#if !defined(ADAMANT_NO_HWLOC)
        if (!before.empty())
            bind_this_thread(before);
#endif
        pthread_setname_np(pthread_self(), name);
        of_this_thread() = nullptr;
    }

    // Returns the mask from before; empty where nothing was changed.
    pu_set bind(unsigned member)
    {
        team_member& self = members_[member];
        self.thread_id = static_cast<pid_t>(syscall(SYS_gettid));
        if (options_.bind == binding::none)
            return {};
#if defined(ADAMANT_NO_HWLOC)
        self.problem =
            "adamant: threads cannot be bound, as this program was compiled without hwloc (ADAMANT_NO_HWLOC)";
        return {};
#else
        std::vector<unsigned> const pus = options_.pus.members();
        self.asked = {pus[member % pus.size()]};
        pu_set before = affinity_of(self.thread_id);
        self.bound_to = bind_this_thread(self.asked);
        if (self.bound_to != self.asked) {
            self.problem =
                "adamant: a thread could not be bound to PU " + to_list(self.asked) + ": " +
                (self.bound_to.empty() ? std::strerror(errno) : "it is now on PUs " + to_list(self.bound_to)) +
                "; is the PU online and allowed to this process? binding::if_possible goes on without";
            self.bound_to = {};
        }
        return before;
#endif
    }

    void work(team_request& request, unsigned member) noexcept
    {
        try {
            request.run(request, member);
        } catch (...) {
            if (!request.failed.exchange(true))
                request.error = std::current_exception();
        }
        if (remaining_.fetch_sub(1, std::memory_order_acq_rel) != 1)
            return;
        // The last one out hands the next request on, and only then is this one over: its memory is the submitter's
        // again.
        bool start = false;
        {
            std::lock_guard const lock(mutex_);
            std::uint32_t const ticket = request.ticket;
            head_ = request.next;
            if (head_ != nullptr || stopping_) {
                publish(head_);
                start = true;
            }
            completed_.store(ticket, std::memory_order_release);
        }
        if (start)
            epoch_.notify_all();
        completed_.notify_all();
    }

    // Shows the members what to do next; they look at it after epoch_ has changed. null: stop.
    void publish(team_request* request) noexcept
    {
        current_ = request;
        if (request != nullptr && request->chunks != 0)
            lanes.fill(request->chunks, request->chunk_takers);
        remaining_.store(static_cast<unsigned>(members_.size()), std::memory_order_relaxed);
        epoch_.fetch_add(1, std::memory_order_release);
    }

    team_options options_;
    std::vector<team_member> members_;
    pid_t process_;
    std::string problem_;
    std::atomic<std::uint32_t> ready_{0};
    std::atomic<std::size_t> arrived_{0};

    std::mutex mutex_; // guards the queue
    team_request* head_ = nullptr;
    team_request* tail_ = nullptr;
    std::uint32_t last_ticket_ = 0;
    bool stopping_ = false;

    team_request* current_ = nullptr;
    // Apart, as different threads wait for them.
    alignas(64) std::atomic<std::uint32_t> epoch_{0};
    alignas(64) std::atomic<unsigned> remaining_{0};
    alignas(64) std::atomic<std::uint32_t> completed_{0};
};

} // namespace detail

ADAMANT_END_NAMESPACE
