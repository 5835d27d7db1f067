// SPDX-License-Identifier: Apache-2.0
// What the tool says: errors of the library in the tool's terms, lines of at most 100 columns, one of a thing in the
// singular, and warnings that are saved as they are shown.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <adamant/executor.hpp>
#include <adamant/tuned_json.hpp>

#include "../../tools/adamant/cores_text.hpp"
#include "../../tools/adamant/for_people.hpp"
#include "../../tools/adamant/tune_text.hpp"

#include "catch.hpp"
#include "refusal.hpp"

using namespace adamant;
using test::mentions;

namespace {

std::size_t widest_line(std::string const& text)
{
    std::size_t widest = 0;
    for (std::size_t begin = 0; begin < text.size();) {
        std::size_t const end = std::min(text.find('\n', begin), text.size());
        widest = std::max(widest, end - begin);
        begin = end + 1;
    }
    return widest;
}

// Words, without the breaks of lines.
std::string unbroken(std::string text)
{
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
}

tuned_cores tuned(unsigned cores, unsigned available_cores, double step_s)
{
    tuned_cores found;
    found.cores = cores;
    found.available_cores = available_cores;
    found.cpuadam_cores_perc = static_cast<double>(cores) / available_cores;
    found.finished = true;
    found.elements = 100'000'000'000;
    found.step_s = step_s;
    for (unsigned const n : {1u, cores, available_cores})
        found.curve.push_back({.cores = n, .median_s = step_s, .p10_s = step_s, .p90_s = step_s});
    return found;
}

} // namespace

TEST_CASE("no error of the library sends a user of the tool to the C++ interface")
{
    auto const team_of = [](team_options const& options) { return [options] { team made(options); }; };
    std::vector<std::string> errors = {test::refusal<invalid_argument>(team_of({}))};
    std::string const not_bound = test::refusal<unavailable>(team_of({.pus = {pu_set::max_index}}));
    errors.push_back(not_bound);
    auto const free = std::make_shared<team>(team_options{.threads = 1, .bind = binding::none});
    for (binding const asked : {binding::required, binding::if_possible})
        errors.push_back(test::refusal<invalid_argument>([&] { executor(free, {.bind = asked}); }));
    for (std::string const& error : errors) {
        CHECK(mentions(error, "::")); // else there is nothing to test
        std::string const shown = cli::for_people(error);
        CAPTURE(error, shown);
        CHECK(shown.starts_with("adamant: "));
        CHECK(shown.find("::") == std::string::npos);
    }
#if !defined(ADAMANT_NO_HWLOC)
    CHECK(cli::for_people(not_bound).ends_with(" `adamant cores` shows the PUs that may be used."));
#endif
    CHECK(cli::for_people("adamant: --perc is '2'") == "adamant: --perc is '2'");
}

TEST_CASE("lines end at words, and a word that is longer has a line to itself")
{
    std::string const path = "/" + std::string(200, 'x');
    CHECK(cli::wrapped("", "WARNING of " + path + ": the machine was busy") ==
          "WARNING of\n" + path + ":\nthe machine was busy\n");
    CHECK(cli::wrapped("in ", path) == "in " + path + "\n");
    CHECK(cli::wrapped("", " " + path + " x") == " " + path + "\nx\n");
    index_set odd;
    for (unsigned i = 0; i < 400; i += 3)
        odd.insert(i);
    std::string const threads = cli::threads_text(odd.size(), odd);
    CHECK(widest_line(threads) <= 100);
    CHECK(mentions(unbroken(threads), "the 134 threads are bound to PUs 0,3,6,"));
    CHECK(threads.ends_with(", one to each\n"));
}

TEST_CASE("one of a thing is in the singular")
{
    CHECK(cli::threads_text(1, {7}) == "the thread is bound to PU 7\n");
    CHECK(cli::threads_text(1, {}) == "the thread is not bound to a PU\n");
    CHECK(cli::threads_text(2, {7}) == "the 2 threads are bound to PU 7, which they share\n");
    tuned_cores found = tuned(1, 2, 1e-3);
    found.tried.resize(1);
    std::string const text = unbroken(cli::verdict_text(found, 1, true));
    CHECK(mentions(text, "1 core of 2 is enough; 1 left for the host"));
    CHECK(mentions(text, "of 1 setting none is surely faster"));
    CHECK(mentions(cli::verdict_text(tuned(2, 4, 1e-3), 1, true), "2 cores of 4 are enough"));
    cli::host_tuning with;
    with.threads = 1;
    with.host_alone_s = 1;
    with.splits = {{}, {.cores = 1}};
    CHECK(mentions(cli::host_text(with, 2, cli::advice_of(found, with)), "with 1 host thread whose work"));
    CHECK(mentions(cli::advice_of(found, with).why, "1 core for the optimizer is not surely worse"));
}

TEST_CASE("what tuning has found fits into 100 columns, for steps of up to 100 seconds")
{
    for (double const s : {1e-9, 9.9996e-3, 0.123456, 0.99996, 99.9994})
        for (unsigned const of : {2u, 96u, 4096u})
            for (unsigned const cores : {1u, of / 2, of})
                for (unsigned const ranks : {1u, 8u})
                    for (bool const finished : {true, false}) {
                        tuned_cores found = tuned(cores, of, s);
                        found.finished = finished;
                        found.tried.resize(9);
                        CAPTURE(s, of, cores, ranks, finished);
                        cli::host_tuning with;
                        with.threads = 4096;
                        with.host_alone_s = s;
                        with.step_alone_s = s;
                        for (unsigned const n : {0u, cores, of - 1})
                            with.splits.push_back({.cores = n,
                                                   .both_s = s,
                                                   .both_p10_s = s,
                                                   .both_p90_s = s,
                                                   .step_s = s,
                                                   .host_s = s,
                                                   .gain = 9.8765,
                                                   .gain_low = 9.8765,
                                                   .gain_high = 19.8765});
                        for (unsigned const best : {0u, of - 1}) {
                            with.best = best;
                            cli::tune_advice const what = cli::advice_of(found, with);
                            std::string const table = cli::host_text(with, of, what);
                            CHECK(widest_line(table) <= 100);
                            CHECK((best == 0) == (table.find("<- best") == std::string::npos));
                        }
                        shard_format const& format = step_format<float, bfloat16, float, float, bfloat16>();
                        CHECK(widest_line(cli::curve_text(found, format)) <= 100);
                        for (bool const alone : {true, false})
                            CHECK(widest_line(cli::verdict_text(found, ranks, alone)) <= 100);
                        found.max_chunk_elems = 123456789012345;
                        CHECK(widest_line(cli::verdict_text(found, ranks, true)) <= 100);
                    }
}

TEST_CASE("every warning that tuning shows is in the file that it saves")
{
    for (unsigned reasons = 0; reasons < 16; ++reasons) {
        CAPTURE(reasons);
        tuned_cores found = tuned(1, 2, 1e-3);
        bool const busy = (reasons & 1) != 0;
        found.finished = (reasons & 2) == 0;
        bool const interrupted = (reasons & 4) != 0;
        bool const loaded = (reasons & 8) != 0;
        if (loaded)
            found.warnings = {"of old"};
        std::vector<std::string> const shown =
            cli::add_warnings(found, {loaded ? "a.json" : "", busy ? 0.4 : 0.04, interrupted});
        std::vector<std::string> expected;
        if (loaded)
            expected.push_back("of old");
        if (busy)
            expected.push_back("the machine was busy with something else for 40% of its processors' time; tune again "
                               "when it is quiet");
        if (!found.finished)
            expected.push_back("the deadline came before it was known whether more cores pay");
        if (interrupted)
            expected.push_back("interrupted: the rounds with a host's threads are fewer than asked for");
        REQUIRE(shown.size() == expected.size());
        CHECK(to_json(found)["warnings"] == nlohmann::ordered_json(expected));
        for (std::size_t i = 0; i < shown.size(); ++i) {
            bool const is_old = loaded && i == 0;
            bool const stopped = interrupted && i + 1 == shown.size();
            std::string const text = stopped ? expected[i].substr(13) : expected[i];
            CHECK(shown[i] == (is_old ? "WARNING of a.json: " : stopped ? "INTERRUPTED: " : "WARNING: ") + text);
        }
    }
}
