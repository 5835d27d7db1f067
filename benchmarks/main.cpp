// SPDX-License-Identifier: Apache-2.0
// The benchmarks: options, what is said about the machine, and all workloads in one program. Each of the other files is
// one workload and says what its rows measure; rows.hpp, what they report.
//
// A shared machine drifts by more than what is to be seen here. So whatever is compared is timed in one row, in rounds
// (race.hpp).

#include <sys/utsname.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include <benchmark/benchmark.h>

#include <adamant/executor.hpp>

#include "limit.hpp"
#include "rows.hpp"

namespace {

using bench::options;
using bench::setup;

void print_help()
{
    benchmark::PrintDefaultHelp();
    std::fputs("\n          [--bytes=<bytes>]   of all arrays together in rows out of cache (default: 2.25e9)\n"
               "          [--rounds=<rounds>] of rows out of cache; up to ten times as many where they are short "
               "(default: 9)\n"
               "          [--quick]           --bytes=256e6 --rounds=5, and fewer rows: to see whether it all works\n"
               "          [--folder=<path>]   where checkpoints are written for a while (default: the system's for "
               "temporary files)\n"
               "\nADAMANT_ISA chooses the library's instruction set; taskset, the processors and so the threads.\n",
               stdout);
}

// The value of an option --key=value that has to be a number in [least, most].
bool take(std::string_view argument, std::string_view key, double least, double most, double& value)
{
    if (!argument.starts_with(key))
        return false;
    std::string const text(argument.substr(key.size()));
    char* end = nullptr;
    value = std::strtod(text.c_str(), &end);
    if (end == text.c_str() || *end != '\0' || !(value >= least && value <= most))
        throw std::invalid_argument(std::string(argument) + " is not understood: give a number from " +
                                    adamant::detail::text_of({least}) + " to " + adamant::detail::text_of({most}));
    return true;
}

options parse(int argc, char** argv)
{
    options chosen;
    for (int i = 1; i < argc; ++i)
        if (std::string_view(argv[i]) == "--quick")
            chosen = {.bytes = 256e6, .rounds = 5, .quick = true, .folder = chosen.folder};
    double rounds = static_cast<double>(chosen.rounds);
    for (int i = 1; i < argc; ++i) {
        std::string_view const argument = argv[i];
        if (argument.starts_with("--folder="))
            chosen.folder = argument.substr(9);
        else if (argument != "--quick" && !take(argument, "--rounds=", 1, 1e6, rounds) &&
                 !take(argument, "--bytes=", 1, 1e15, chosen.bytes))
            throw std::invalid_argument(std::string(argument) + " is not understood; try --help");
    }
    chosen.rounds = static_cast<std::int64_t>(rounds);
    if (chosen.folder.empty())
        chosen.folder = std::filesystem::temp_directory_path().string();
    return chosen;
}

setup make_setup(options const& chosen)
{
    setup made{chosen, {}};
    adamant::executor const all;
    for (unsigned threads = 1; threads < all.threads(); threads *= 2)
        made.cpus.push_back(adamant::executor({.threads = threads}));
    made.cpus.push_back(all);
    return made;
}

// What follows the first "key :" in a file, or nothing.
std::string value_in(char const* path, std::string_view key)
{
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);)
        if (std::size_t const colon = line.find(':'); line.starts_with(key) && colon != std::string::npos)
            return line.substr(line.find_first_not_of(" \t", colon + 1));
    return {};
}

// What a reader of the numbers has to know, and of what measured them. Tables say it.
void add_context(setup const& given)
{
    auto const add = [](char const* key, std::string const& value) { benchmark::AddCustomContext(key, value); };
    utsname system{};
    uname(&system);
    add("cpu", value_in("/proc/cpuinfo", "model name"));
    add("memory", value_in("/proc/meminfo", "MemTotal"));
    add("system", std::string(system.sysname) + " " + system.release + " " + system.machine);
#if defined(__clang__)
    add("compiler", __VERSION__);
#else
    add("compiler", "GCC " __VERSION__);
#endif
    add("adamant_isa", std::string(adamant::name(given.one().tier())));
    add("adamant_threads", std::to_string(given.all().threads()));
    if (given.all().team() != nullptr)
        add("adamant_pus", to_list(given.all().team()->bound_to()));
    add("limit_vector_bytes", std::to_string(limit::vector_bytes()));
    add("bytes_out_of_cache", adamant::detail::text_of({given.chosen.bytes}));
    add("rounds", std::to_string(given.chosen.rounds));
}

int run(int argc, char** argv)
{
    // Where standard output is to be read by a program, the table goes to standard error.
    char const* const format = std::getenv("BENCHMARK_FORMAT");
    bool for_person = format == nullptr || std::string_view(format) == "console";
    for (int i = 1; i < argc; ++i) {
        std::string_view const argument = argv[i];
        if (argument.starts_with("--benchmark_format="))
            for_person = argument.ends_with("=console");
    }
    benchmark::Initialize(&argc, argv, print_help);
    setup const given = make_setup(parse(argc, argv));
    add_context(given);
    for (auto const add :
         {bench::add_big_shards, bench::add_small_shards, bench::add_offload_step, bench::add_rollback,
          bench::add_reductions, bench::add_checkpoint, bench::add_hand_over, bench::add_scaling, bench::add_subnormals,
          bench::add_unequal_cores, bench::add_memory, bench::add_hybrid, bench::add_changes})
        add(given);
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    bench::print_table(for_person ? stdout : stderr);
    return bench::any_skipped() ? 1 : 0;
}

} // namespace

int main(int argc, char** argv)
{
    try {
        return run(argc, argv);
    } catch (std::exception const& error) {
        std::fprintf(stderr, "adamant_benchmark: %s\n", error.what());
        return 2;
    }
}
