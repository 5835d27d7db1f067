// SPDX-License-Identifier: Apache-2.0
// The team: its bindings, its queue, its end; queues, and shards that are stepped together.
#include <atomic>
#include <cfenv>
#include <climits>
#include <cstdlib>
#include <dirent.h>
#include <fstream>
#include <memory>
#include <numeric>
#include <pthread.h>
#include <sched.h>
#include <stdexcept>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#include <adamant/cores.hpp>
#include <adamant/executor.hpp>
#include <adamant/detail/exec/team_state.hpp>
#include <adamant/detail/exec/work_stealing.hpp>
#include <adamant/detail/topology/allowed.hpp>
#if !defined(ADAMANT_NO_HWLOC)
#include <adamant/detail/topology/hwloc.hpp>
#endif

#include "catch.hpp"
#include "child.hpp"
#include "forked.hpp"
#include "refusal.hpp"

#if !defined(ADAMANT_SANITIZED) // whose runtimes have these operators themselves
// Memory that ends: of the whole process, the allocation that comes after so many others fails, once. What is given
// back goes to free(), as it does anyway.
namespace {
std::atomic<long> allocations_left{-1}; // below 0: as many as there are
void* allocate(std::size_t bytes, std::size_t alignment)
{
    if (allocations_left.load() >= 0 && allocations_left.fetch_sub(1) == 0)
        throw std::bad_alloc();
    if (void* const memory = std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment))
        return memory;
    throw std::bad_alloc();
}
} // namespace
void* operator new(std::size_t bytes)
{
    return allocate(bytes, alignof(std::max_align_t));
}
void* operator new(std::size_t bytes, std::align_val_t alignment)
{
    return allocate(bytes, static_cast<std::size_t>(alignment));
}
#endif

using namespace adamant;
using test::in_child;

namespace {

#if !defined(ADAMANT_NO_HWLOC)
pu_set mask_of(pid_t thread)
{
    cpu_set_t mask[8];
    CPU_ZERO_S(sizeof mask, mask);
    pu_set set;
    if (sched_getaffinity(thread, sizeof mask, mask) == 0)
        for (unsigned i = 0; i < sizeof mask * 8; ++i)
            if (CPU_ISSET_S(i, sizeof mask, mask))
                set.insert(i);
    return set;
}
#endif

std::size_t thread_count()
{
    std::size_t n = 0;
    DIR* const tasks = opendir("/proc/self/task");
    REQUIRE(tasks != nullptr);
    while (dirent const* entry = readdir(tasks))
        n += entry->d_name[0] != '.';
    closedir(tasks);
    return n;
}

team_options any_threads(unsigned threads)
{
    return {.pus = detail::select_pus(threads), .threads = threads};
}

} // namespace

TEST_CASE("queues: every chunk is worked on once, whoever takes it, and first by whose it is")
{
    for (unsigned const threads : {1u, 2u, 3u, 8u})
        for (std::size_t const chunks : test::sizes{0, 1, 2, 7, 100, 5000}) {
            detail::work_stealing_queues queues(threads);
            for (unsigned takers = 1; takers <= threads; ++takers) {
                queues.fill(chunks, takers);
                std::vector<std::atomic<int>> worked(chunks);
                std::vector<std::size_t> first(takers, chunks);
                std::vector<std::thread> pool;
                for (unsigned t = 0; t < takers; ++t)
                    pool.emplace_back([&, t] {
                        queues.take_all(t, takers, [&](std::size_t begin, std::size_t end) {
                            if (first[t] == chunks)
                                first[t] = begin;
                            for (std::size_t c = begin; c < end; ++c)
                                ++worked[c];
                        });
                    });
                for (std::thread& t : pool)
                    t.join();
                for (std::atomic<int> const& count : worked)
                    REQUIRE(count == 1);
            }
        }
}

TEST_CASE("queues: one that is held up loses its chunks to the others, but for the one it works on")
{
    detail::work_stealing_queues queues(2);
    queues.fill(100, 2);
    std::vector<std::size_t> done;
    queues.take_all(0, 2, [&](std::size_t begin, std::size_t) { done.push_back(begin); });
    CHECK(done.size() == 100);
    CHECK(std::is_sorted(done.begin(), done.begin() + 50)); // its own, in order
    CHECK(done[49] == 49);
    CHECK(done[50] == 75); // half of the other's, from the back
    std::sort(done.begin(), done.end());
    for (std::size_t c = 0; c < 100; ++c)
        CHECK(done[c] == c);
}

TEST_CASE("a team without PUs, and chunks without number, are errors")
{
    CHECK_THROWS_AS(team(team_options{}), invalid_argument);
    CHECK_THROWS_AS(executor(std::shared_ptr<team>()), invalid_argument);
#if defined(_OPENMP)
    team one(any_threads(1));
    CHECK_THROWS_AS(one.run(std::size_t{1} << 32, [](unsigned, std::size_t, std::size_t) {}), invalid_argument);
#endif
}

#if defined(_OPENMP)

TEST_CASE("values that are none of an enumeration are refused", "[once]")
{
    auto const wrong = static_cast<binding>(9);
    CHECK(
        test::mentions(test::refusal<invalid_argument>([&] { team({.threads = 1, .bind = wrong}); }), "valid binding"));
    CHECK(test::mentions(test::refusal<invalid_argument>([&] { executor({.threads = 1, .bind = wrong}); }),
                         "valid binding"));
}

TEST_CASE("a team spins for as long as it is told, also without end")
{
    team spinning({.threads = 2, .bind = binding::none, .spin = std::chrono::nanoseconds::max()});
    std::atomic<unsigned> calls{0};
    for (int i = 0; i < 3; ++i)
        spinning.run([&](unsigned) { ++calls; });
    CHECK(calls == 6);
}

TEST_CASE("every member takes part in every request, in order, from any number of threads")
{
    for (unsigned const size : {1u, 2u, 5u}) {
        team t(any_threads(size));
        REQUIRE(t.size() == size);
        std::vector<int> calls(size);
        for (int i = 0; i < 200; ++i)
            t.run([&](unsigned member) { ++calls[member]; });
        CHECK(calls == std::vector<int>(size, 200));

        // Each request sees all that those before it wrote.
        std::vector<unsigned> order;
        auto const append = [&](unsigned what) {
            return [&order, what](unsigned member) {
                if (member == 0)
                    order.push_back(what);
            };
        };
        {
            auto a = t.submit(append(1));
            auto b = t.submit(append(2));
            auto c = t.submit(append(3));
            c.wait();
            CHECK(a.done());
            CHECK(b.done());
            b.wait();
        }
        CHECK(order == std::vector<unsigned>{1, 2, 3});

        std::atomic<std::size_t> total{0};
        std::vector<std::thread> submitters;
        for (int s = 0; s < 4; ++s)
            submitters.emplace_back([&] {
                for (int i = 0; i < 50; ++i)
                    t.run(30, [&](unsigned, std::size_t begin, std::size_t end) { total += end - begin; });
            });
        for (std::thread& s : submitters)
            s.join();
        CHECK(total == 4 * 50 * 30);
    }
}

TEST_CASE("request_gate: members enter only an open gate of their request, and the last to leave completes it")
{
    detail::request_gate gate;
    CHECK_FALSE(gate.enter(1)); // no request yet
    gate.open(1, false, 0);
    CHECK_FALSE(gate.enter(2));
    CHECK_FALSE(gate.enter(0));
    CHECK(gate.enter(1));
    CHECK(gate.enter(1));
    CHECK_FALSE(gate.leave()); // closes
    CHECK_FALSE(gate.enter(1));
    CHECK(gate.leave());
    gate.open(2, false, 1); // with a caller that works in place of a member
    CHECK(gate.leave());
    CHECK_FALSE(gate.enter(2));
    gate.open(0xffffffff, true, 3); // everyone
    for (int i = 0; i < 3; ++i) {
        CHECK(gate.enter(0xffffffff));
        CHECK(gate.leave() == (i == 2));
    }
}

TEST_CASE(
    "random requests from several threads: every member and every chunk is called once, late members at most once")
{
    test::random_bits random(GENERATE(1u, 2u, 3u));
    for (unsigned const size : {1u, 2u, 3u, 16u}) {
        for (binding const bind : {binding::none, binding::automatic}) {
            team t({.pus = detail::select_pus(size), .threads = size, .bind = bind});
            std::vector<std::thread> submitters;
            std::atomic<int> wrong{0};
            for (int s = 0; s < 3; ++s)
                submitters.emplace_back([&, seed = random.below(1u << 30)] {
                    test::random_bits own(seed);
                    for (int i = 0; i < 300; ++i) {
                        std::vector<std::atomic<int>> members(size);
                        std::vector<std::atomic<int>> chunks(own.below(50));
                        auto const call_member = [&](unsigned member) { ++members[member]; };
                        auto const takers = static_cast<unsigned>(own.below(size + 2));
                        auto const call_chunks = [&](unsigned member, std::size_t begin, std::size_t end) {
                            wrong += takers != 0 && member >= takers;
                            for (; begin < end; ++begin)
                                ++chunks[begin];
                        };
                        bool const whole = own.below(2) == 0;
                        bool const waits = own.below(2) == 0;
                        if (whole && waits)
                            t.run(call_member);
                        else if (whole)
                            t.submit(call_member).wait();
                        else if (waits)
                            t.run(chunks.size(), call_chunks, takers);
                        else
                            t.submit(chunks.size(), call_chunks, takers).wait();
                        for (std::atomic<int> const& calls : members)
                            wrong += calls != (whole ? 1 : 0);
                        std::vector<std::atomic<int>> punctual(size);
                        std::atomic<int> left{own.below(3) == 0 ? 1 : 50};
                        auto const take = [&] { return left.fetch_sub(1, std::memory_order_relaxed) > 1; };
                        t.submit_without_late_threads([&](unsigned member) {
                             ++punctual[member];
                             while (take())
                                 ;
                         }).wait();
                        int begun = 0;
                        for (std::atomic<int> const& calls : punctual) {
                            begun += calls;
                            wrong += calls > 1;
                        }
                        wrong += begun == 0 || left > 0;
                        for (std::atomic<int> const& calls : chunks)
                            wrong += calls != (whole ? 0 : 1);
                        if (own.below(20) == 0)
                            std::this_thread::sleep_for(std::chrono::microseconds(200)); // the members sleep
                    }
                });
            for (std::thread& s : submitters)
                s.join();
            CHECK(wrong == 0);
        }
    }
}

TEST_CASE("run() works in the caller's thread where the team covers its PUs, and only there")
{
    auto const callers_members = [](team& t) {
        std::vector<pid_t> threads(t.size());
        t.run([&](unsigned member) { threads[member] = static_cast<pid_t>(syscall(SYS_gettid)); });
        return std::count(threads.begin(), threads.end(), static_cast<pid_t>(syscall(SYS_gettid)));
    };
    cpu_set_t mask[8];
    REQUIRE(sched_getaffinity(0, sizeof mask, mask) == 0);
    auto const pus = static_cast<unsigned>(CPU_COUNT_S(sizeof mask, mask));
    team unbound({.threads = pus, .bind = binding::none});
    CHECK(callers_members(unbound) == 1);
    team refuses({.threads = pus, .bind = binding::none, .caller_joins = false});
    CHECK(callers_members(refuses) == 0);
    if (pus > 1) {
        team few({.threads = pus - 1, .bind = binding::none});
        CHECK(callers_members(few) == 0);
    }
#if !defined(ADAMANT_NO_HWLOC)
    pu_set const all = mask_of(0);
    team bound({.pus = all});
    CHECK(callers_members(bound) == 1);
    if (all.size() > 1) {
        team part({.pus = {all.members().back()}});
        std::thread([&] { // whose first PU the team does not have
            CHECK(callers_members(part) == 0);
            cpu_set_t last[8];
            CPU_ZERO_S(sizeof last, last);
            CPU_SET_S(all.members().back(), sizeof last, last);
            CHECK(sched_setaffinity(0, sizeof last, last) == 0);
            CHECK(callers_members(part) == 1);
        })
            .join();
    }
#endif
    // A member's environment, and the caller's own again afterwards; its own team refuses it meanwhile.
    std::fesetround(FE_UPWARD);
    int usual = 0;
    int refused = 0;
    pid_t const caller = static_cast<pid_t>(syscall(SYS_gettid));
    unbound.run([&](unsigned) {
        if (static_cast<pid_t>(syscall(SYS_gettid)) != caller)
            return;
        usual += std::fegetround() == FE_TONEAREST;
        try {
            unbound.run([](unsigned) {});
        } catch (invalid_argument const&) {
            ++refused;
        }
    });
    CHECK(usual == 1);
    CHECK(refused == 1);
    CHECK(std::fegetround() == FE_UPWARD);
    std::fesetround(FE_TONEAREST);
    unbound.run([](unsigned) {});

    // A thread with a small stack does not join. The stack is ours: from its cache the C library may take a larger one,
    // and ThreadSanitizer enlarges what it allocates.
    std::size_t const stack_bytes = std::max(detail::min_stack_bytes / 2, static_cast<std::size_t>(PTHREAD_STACK_MIN));
    if (stack_bytes >= detail::min_stack_bytes)
        return; // no thread of this system has such a small stack
    std::unique_ptr<void, decltype(&std::free)> const stack(std::aligned_alloc(4096, stack_bytes), &std::free);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    REQUIRE(pthread_attr_setstack(&attributes, stack.get(), stack_bytes) == 0);
    struct small_stack {
        team* threads;
        decltype(callers_members) const* count;
        std::ptrdiff_t joined;
    } job{&unbound, &callers_members, -1};
    pthread_t thread;
    REQUIRE(pthread_create(
                &thread, &attributes,
                [](void* given) -> void* {
                    auto& own = *static_cast<small_stack*>(given);
                    own.joined = (*own.count)(*own.threads);
                    return nullptr;
                },
                &job) == 0);
    pthread_join(thread, nullptr);
    pthread_attr_destroy(&attributes);
    CHECK(job.joined == 0);
}

TEST_CASE("an exception in a task reaches who waits, and the team goes on")
{
    team t(any_threads(3));
    for (unsigned thrower = 0; thrower < 3; ++thrower) {
        CHECK_THROWS_WITH(t.run([&](unsigned member) {
            if (member == thrower)
                throw std::runtime_error("from a task");
        }),
                          "from a task");
        std::atomic<int> calls{0};
        t.run([&](unsigned) { ++calls; });
        CHECK(calls == 3);
    }
    CHECK_THROWS_AS(t.run(100, [](unsigned, std::size_t, std::size_t) { throw 1; }), int);
    {
        auto dropped = t.submit([](unsigned) { throw 1; }); // nobody waits: dropped with the submission
    }
    t.run([](unsigned) {});
}

TEST_CASE("a task that gives its own team work is an error, not a hang; another team is fine")
{
    team t(any_threads(2));
    team other(any_threads(2));
    CHECK_THROWS_AS(t.run([&](unsigned) { t.run([](unsigned) {}); }), invalid_argument);
    std::atomic<int> calls{0};
    t.run([&](unsigned) { other.run([&](unsigned) { ++calls; }); });
    CHECK(calls == 4);
}

TEST_CASE("fork: a team is not usable in the child, which is told so, and usable in the parent")
{
    team t(any_threads(2));
    executor const cpu(std::make_shared<team>(any_threads(2)));
    t.run([](unsigned) {});
    CHECK(in_child([&] {
              try {
                  t.run([](unsigned) {});
                  return 1;
              } catch (unavailable const& e) {
                  if (std::string(e.what()).find("fork") == std::string::npos)
                      return 2;
              }
              try {
                  cpu.for_each_slice(1000000, [](slice) {});
                  return 3;
              } catch (unavailable const&) {
              }
              {
                  auto* const copy = new executor(cpu);
                  delete copy;
              }
              return 0;
          }) == 0);
    std::atomic<int> calls{0};
    t.run([&](unsigned) { ++calls; });
    CHECK(calls == 2);
    // Its destructor does nothing in the child.
    auto* const on_heap = new team(any_threads(2));
    CHECK(in_child([&] {
              delete on_heap;
              return 7;
          }) == 7);
    on_heap->run([&](unsigned) { ++calls; });
    CHECK(calls == 4);
    delete on_heap;
}

TEST_CASE("a team may end in the midst of work, which it finishes, and by its own last task")
{
    std::atomic<int> calls{0};
    {
        auto t = std::make_unique<team>(any_threads(2));
        auto a = t->submit([&](unsigned) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            ++calls;
        });
        auto b = t->submit([&](unsigned) { ++calls; });
        t.reset();
        CHECK(calls == 4);
        CHECK(a.done());
        CHECK(b.done());
    }
    auto t = std::make_unique<team>(any_threads(2));
    {
        auto last = t->submit([&](unsigned member) {
            if (member == 1)
                t.reset();
        });
        last.wait();
    }
    CHECK(t == nullptr);
}

TEST_CASE("hundreds of teams leave no threads behind")
{
    team(any_threads(2)).run([](unsigned) {}); // what a runtime keeps for good is there now
    std::size_t const before = thread_count();
    int const rounds = 300;
    for (int i = 0; i < rounds; ++i) {
        team t(any_threads(2));
        if (i % 10 == 0)
            t.run([](unsigned) {});
    }
    std::size_t now = thread_count();
    for (int patience = 0; patience < 200 && now > before; ++patience) { // the system takes its time to end threads
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        now = thread_count();
    }
    CHECK(now <= before + 2); // LLVM's runtime keeps its threads for the next team
}

// The words that the refusal of a team of so many threads holds; empty where it was made, or refused for want of
// memory.
std::string refusal_of(unsigned threads)
{
    try {
        team t({.threads = threads, .bind = binding::none});
        t.run([](unsigned) {});
    } catch (unavailable const& e) {
        return e.what();
    } catch (std::bad_alloc const&) {
    }
    return {};
}

// Not in an emulator: qemu 7.2 ends now and then where the system refuses it a thread.
TEST_CASE("threads that the system does not have are an error that says so, and not the end of the process", "[both]")
{
    CHECK(refusal_of(200000).find("cannot start 200000 threads: a team has at most 8192") != std::string::npos);
    CHECK(in_child([] {
              bool const counts = geteuid() == 0; // as a user that has no other processes
              rlimit const few{3, 3};
              if (setrlimit(RLIMIT_NPROC, &few) != 0 || (counts && setuid(54321) != 0))
                  return 1;
              std::string const refused = refusal_of(20);
              if (refused.find("ulimit -u") == std::string::npos ||
                  (counts && refused.find("cannot start 20 threads: the system allows only 2 ") == std::string::npos))
                  return 2;
              return !counts || refusal_of(2).empty() ? 0 : 3; // nothing of the attempt is left
          }) == 0);
}

#if !defined(ADAMANT_SANITIZED) // who has terabytes of address space
// LLVM's threads take memory in an order that a trial cannot foresee, so there it may still end in the runtime;
// emulators do not limit address space.
#if !defined(KMP_VERSION_MAJOR)
TEST_CASE("memory that ends while a team is made is an error that says so, wherever that is", "[both]")
{
    std::size_t refused = 0;
    std::size_t made = 0;
    for (rlim_t room = 0; room < 240 << 20; room += 4 << 20) {
        INFO("with " << room << " bytes of address space left");
        int const status = in_child([&] {
            std::size_t pages = 0;
            std::ifstream("/proc/self/statm") >> pages;
            rlim_t const all = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + room;
            rlimit const limit{all, all};
            if (setrlimit(RLIMIT_AS, &limit) != 0)
                return 1;
            try {
                team t(any_threads(16));
                t.run([](unsigned) {});
            } catch (unavailable const&) {
                return 10;
            } catch (std::bad_alloc const&) {
                return 10;
            }
            return 0;
        });
        REQUIRE((status == 0 || status == 10));
        ++(status == 0 ? made : refused);
    }
    CHECK(refused > 0);
    CHECK(made > 0);
}
#endif

// Not in an emulator: of so many processes that fork beside threads, qemu 7.2 loses one now and then.
TEST_CASE("an allocation that fails while a team is made or ends, in whichever thread, is an error", "[both]")
{
    team(any_threads(3)).run([](unsigned) {});
    std::size_t refused = 0;
    for (long n = 0;; ++n) {
        INFO("allocation " << n);
        int const status = in_child([&] {
            allocations_left = n;
            bool failed = false;
            try {
                team t(any_threads(3));
                t.run([](unsigned) {});
            } catch (unavailable const&) { // to the thread there was, "cannot allocate memory"
                failed = true;
            } catch (std::bad_alloc const&) {
                failed = true;
            }
            if (allocations_left >= 0)
                return 11; // there were not as many
            allocations_left = -1;
            team(any_threads(2)).run([](unsigned) {}); // all is as it was
            return failed ? 10 : 0;
        });
        REQUIRE((status == 0 || status == 10 || status == 11));
        refused += status == 10;
        if (status == 11)
            break;
    }
    CHECK(refused > 5); // without hwloc there are few
}
#endif

TEST_CASE("a member's floating-point environment is the default, whatever its maker's")
{
    int const before = feenableexcept(FE_INEXACT);
    std::fesetround(FE_UPWARD);
    team t(any_threads(2));
    fedisableexcept(FE_INEXACT);
    feenableexcept(before);
    std::fesetround(FE_TONEAREST);
    std::atomic<int> usual{0};
    t.run([&](unsigned) { usual += std::fegetround() == FE_TONEAREST && fegetexcept() == 0; });
    CHECK(usual == 2);
}

#if !defined(ADAMANT_NO_HWLOC)

TEST_CASE("each member is bound to its PU, as the kernel says, and the caller's thread is left alone")
{
    pu_set const own = mask_of(0);
    machine const here = live_machine();
    {
        team t({.pus = here.allowed});
        REQUIRE(t.size() == here.allowed.size());
        std::vector<unsigned> const pus = here.allowed.members();
        std::vector<pu_set> masks(t.size());
        std::vector<unsigned> ran_on(t.size());
        t.submit([&](unsigned member) {
             masks[member] = mask_of(0);
             ran_on[member] = static_cast<unsigned>(sched_getcpu());
         }).wait();
        for (unsigned m = 0; m < t.size(); ++m) {
            CHECK(masks[m] == pu_set{pus[m]});
            CHECK(ran_on[m] == pus[m]);
            CHECK(mask_of(t.members()[m].thread_id) == pu_set{pus[m]});
            CHECK(t.members()[m].bound_to == pu_set{pus[m]});
            CHECK(t.members()[m].problem.empty());
        }
        CHECK(t.bound());
        CHECK(t.bound_to() == here.allowed);
        CHECK(mask_of(0) == own);
    }
    CHECK(mask_of(0) == own);
    // More threads than PUs share them, in turns.
    team shared({.pus = {here.allowed.front()}, .threads = 3});
    CHECK(shared.size() == 3);
    CHECK(shared.bound_to() == pu_set{here.allowed.front()});
}

TEST_CASE("threads that a runtime keeps are given back as they came")
{
    machine const here = live_machine();
    {
        team t({.pus = {here.allowed.front()}, .threads = 2});
        t.run([](unsigned) {});
    }
    std::atomic<int> whole{0};
    std::thread([&] {
#pragma omp parallel num_threads(2)
        whole += mask_of(0) == here.allowed;
    }).join();
    CHECK(whole == 2);
}

TEST_CASE("a binding that does not take is an error that names the PU, unless it was allowed to fail")
{
    machine const here = live_machine();
    unsigned absent = 0;
    while (here.pus().contains(absent))
        ++absent;
    try {
        team t({.pus = {absent}});
        FAIL("bound to a PU that is not there");
    } catch (unavailable const& e) {
        CHECK(std::string(e.what()).find("PU " + std::to_string(absent)) != std::string::npos);
    }
    team t({.pus = {here.allowed.front(), absent}, .bind = binding::if_possible});
    CHECK_FALSE(t.bound());
    CHECK(t.bound_to() == pu_set{here.allowed.front()});
    std::string problems;
    for (team_member const& m : t.members())
        problems += m.problem;
    CHECK(problems.find("PU " + std::to_string(absent)) != std::string::npos);
    std::atomic<int> calls{0};
    t.run([&](unsigned) { ++calls; });
    CHECK(calls == 2);
    team free({.threads = 2, .bind = binding::none});
    CHECK(free.size() == 2);
    CHECK_FALSE(free.bound());
    CHECK(free.members()[0].problem.empty());
}

#if !defined(KMP_VERSION_MAJOR) // LLVM's OpenMP ends the process where this call is refused
TEST_CASE("where threads may not be bound, the advice follows the error")
{
    pu_set const one = {live_machine().allowed.front()};
    struct refused {
        unsigned error;
        char const* advice;
    };
    for (refused const& r :
         {refused{EPERM, "look for a seccomp filter"}, refused{ENOSYS, "the kernel does not have this call"},
          refused{EINVAL, "check whether the PU is online and allowed"}, refused{ENOMEM, "see ulimit -v"}}) {
        CAPTURE(r.error);
        int const status = test::without({SYS_sched_setaffinity}, r.error, [&] {
            std::string const text = test::refusal<unavailable>([&] { team({.pus = one}); });
            bool const online = text.find("online") != std::string::npos;
            return text.find(r.advice) != std::string::npos && online == (r.error == EINVAL) ? 0 : 1;
        });
        CHECK((status == 0 || status == -1));
    }
}
#endif

// User reports: DeepSpeed #7478, sglang #39552.
TEST_CASE("a process that is confined to one PU has a team there and nowhere else", "[slurm_mask]")
{
    if (!test::child_may_start_threads) {
        WARN("skipped: ThreadSanitizer cannot start threads in a forked process");
        return;
    }
    machine const here = live_machine();
    if (here.allowed.size() < 2) {
        WARN("skipped: there is only one PU");
        return;
    }
    unsigned const last = here.allowed.members().back();
    CHECK(in_child([&] {
              cpu_set_t mask;
              CPU_ZERO(&mask);
              CPU_SET(last, &mask);
              if (sched_setaffinity(0, sizeof mask, &mask) != 0)
                  return 1;
              if (live_machine().allowed != pu_set{last})
                  return 2;
              executor const cpu;
              if (cpu.threads() != 1)
                  return 3;
              executor const two({.threads = 2});
              return two.threads() == 2 && two.team()->bound_to() == pu_set{last} ? 0 : 4;
          }) == 0);
}

#endif

TEST_CASE("an idle team burns no CPU")
{
    team t(any_threads(2));
    t.run([](unsigned) {});
    // Asleep, says the kernel, and not only for want of a CPU.
    auto const all_asleep = [&] {
        for (team_member const& m : t.members()) {
            std::ifstream stat("/proc/self/task/" + std::to_string(m.thread_id) + "/stat");
            std::string text;
            std::getline(stat, text);
            if (text.substr(text.rfind(')') + 1, 2) != " S")
                return false;
        }
        return true;
    };
    for (int patience = 0; patience < 500 && !all_asleep(); ++patience)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    for (int i = 0; i < 20; ++i) {
        CHECK(all_asleep());
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
}

#endif
