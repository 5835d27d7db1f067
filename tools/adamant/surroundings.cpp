// SPDX-License-Identifier: Apache-2.0
// Definitions of surroundings.hpp.
#include "surroundings.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>

#include <sys/resource.h>
#include <unistd.h>

namespace cli {

namespace {

std::string first_line(char const* path)
{
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

double cpu_seconds(int processes)
{
    rusage used{};
    getrusage(processes, &used);
    return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

} // namespace

double measured_clock_ghz()
{
#if defined(__x86_64__) || defined(__aarch64__)
    constexpr int links = 2'000'000;
    double best = 1e9;
    for (int i = 0; i < 9; ++i) {
        std::uint64_t x = 1;
        std::uint64_t const step = 3;
        auto const begin = std::chrono::steady_clock::now();
        for (int k = 0; k < links / 8; ++k) // enough in an iteration to hide the loop's own work
#if defined(__x86_64__)
                                            // Adds a register: some processors add constants before execution.
            asm volatile("add %1,%0\n\tadd %1,%0\n\tadd %1,%0\n\tadd %1,%0\n\t"
                         "add %1,%0\n\tadd %1,%0\n\tadd %1,%0\n\tadd %1,%0"
                         : "+r"(x)
                         : "r"(step)
                         : "cc");
#else
            asm volatile("add %0,%0,%1\n\tadd %0,%0,%1\n\tadd %0,%0,%1\n\tadd %0,%0,%1\n\t"
                         "add %0,%0,%1\n\tadd %0,%0,%1\n\tadd %0,%0,%1\n\tadd %0,%0,%1"
                         : "+r"(x)
                         : "r"(step));
#endif
        best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    return links / best * 1e-9;
#else
    return 0;
#endif
}

std::string clock_governor()
{
    return first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
}

std::string huge_page_state()
{
    std::string const line = first_line("/sys/kernel/mm/transparent_hugepage/enabled"); // "always [madvise] never"
    std::size_t const open = line.find('[');
    std::size_t const close = line.find(']');
    return open == std::string::npos || close == std::string::npos ? "none" : line.substr(open + 1, close - open - 1);
}

other_load::other_load() : begin_(now()) {}

other_load::times other_load::now()
{
    times t;
    std::ifstream file("/proc/stat"); // "cpu  user nice system idle iowait irq softirq steal ..."
    std::string word;
    file >> word;
    double const ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
    double value = 0;
    for (int i = 0; i < 8 && file >> value; ++i) {
        t.all_s += value / ticks;
        t.busy_s += i == 3 || i == 4 ? 0 : value / ticks;
    }
    t.this_process_s = cpu_seconds(RUSAGE_SELF) + cpu_seconds(RUSAGE_CHILDREN);
    return t;
}

double other_load::share() const
{
    times const end = now();
    double const all = end.all_s - begin_.all_s;
    double const busy = end.busy_s - begin_.busy_s - (end.this_process_s - begin_.this_process_s);
    return all <= 0 ? 0 : std::clamp(busy / all, 0.0, 1.0);
}

} // namespace cli
