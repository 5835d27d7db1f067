// SPDX-License-Identifier: Apache-2.0
// The team: its bindings, its queue, its end; lanes, and shards that are stepped together.
#include <atomic>
#include <cstdlib>
#include <dirent.h>
#include <fstream>
#include <numeric>
#include <sched.h>
#include <stdexcept>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <adamant/exec/executor.hpp>

#include "catch.hpp"

using namespace adamant;

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

// Exit status of work done in a forked process.
template <class Work>
int in_child(Work const& work)
{
    pid_t const child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        alarm(20);
        int status = 99;
        try {
            status = work();
        } catch (...) {
        }
        _exit(status);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

team_options any_threads(unsigned threads)
{
    return {.pus = detail::pus_for(threads), .threads = threads};
}

} // namespace

TEST_CASE("lanes: every chunk is worked on once, whoever takes it, and first by whose it is")
{
    for (unsigned const threads : {1u, 2u, 3u, 8u})
        for (std::size_t const chunks : test::sizes{0, 1, 2, 7, 100, 5000}) {
            detail::chunk_lanes lanes(threads);
            for (unsigned takers = 1; takers <= threads; ++takers) {
                lanes.fill(chunks, takers);
                std::vector<std::atomic<int>> worked(chunks);
                std::vector<std::size_t> first(takers, chunks);
                std::vector<std::thread> pool;
                for (unsigned t = 0; t < takers; ++t)
                    pool.emplace_back([&, t] {
                        lanes.take_all(t, takers, [&](std::size_t begin, std::size_t end) {
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

TEST_CASE("lanes: one that is held up loses its chunks to the others, but for the one it works on")
{
    detail::chunk_lanes lanes(2);
    lanes.fill(100, 2);
    std::vector<std::size_t> done;
    lanes.take_all(0, 2, [&](std::size_t begin, std::size_t) { done.push_back(begin); });
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

TEST_CASE("a thousand teams leave no threads behind")
{
    team(any_threads(2)).run([](unsigned) {}); // what a runtime keeps for good is there now
    std::size_t const before = thread_count();
    int const rounds = 1000;
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
        t.run([&](unsigned member) {
            masks[member] = mask_of(0);
            ran_on[member] = static_cast<unsigned>(sched_getcpu());
        });
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

TEST_CASE("slurm_mask: a process that is confined to one PU has a team there and nowhere else")
{
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
