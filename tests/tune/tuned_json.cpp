// SPDX-License-Identifier: Apache-2.0
// What tuning has found as a file: there and back, stale, damaged.
#include <filesystem>
#include <fstream>

#include <sys/stat.h>

#include <adamant/tuned_json.hpp>

#include "catch.hpp"
#include "folder.hpp"
#include "refusal.hpp"

using namespace adamant;

namespace {

tuned_cores example()
{
    tuned_cores found;
    found.key = {{{"processor", "one"}, {"ranks", "2"}, {"masks of ranks", ""}}};
    found.cores = 6;
    found.available_cores = 8;
    found.cpuadam_cores_perc = 0.75;
    found.finished = true;
    found.elements = 1 << 20;
    found.step_s = 0.125;
    found.curve = {{1, 0.5, 0.4, 0.6, 9}, {6, 0.125, 0.12, 0.13, 41}};
    found.prefetch_bytes = 4096;
    found.tried = {{"prefetch_bytes", 4096, 0.9, 0.88, 0.92}};
    return found;
}

} // namespace

TEST_CASE("tune: a result is saved and loaded, and a stale one is noticed")
{
    std::filesystem::path const folder = test::new_folder("tuned");
    std::filesystem::path const path = folder / "tuned.json";
    tuned_cores const saved = example();
    save_tuned(path, saved);
    tuned_cores const loaded = load_tuned(path, saved.key);
    CHECK(to_json(loaded) == to_json(saved));
    CHECK(loaded.cores == 6);
    CHECK(loaded.prefetch_bytes == 4096);
    CHECK(loaded.curve[1].measurements == 41);
    CHECK(loaded.request({.cpuadam_cores_perc = 0.5}).cpuadam_cores == 6);
    CHECK_FALSE(loaded.request({.cpuadam_cores_perc = 0.5}).cpuadam_cores_perc);

    tuning_key other = saved.key;
    other.entries[0].second = "two";
    other.entries.emplace_back("types", "all");
    CHECK(test::mentions(
        test::refusal<unavailable>([&] { (void)load_tuned(path, other); }),
        {path.string(), "processor was one and is two", "types was not known and is all", "Tune again"}));
    other = saved.key;
    other.entries.pop_back();
    CHECK(test::mentions(test::refusal<unavailable>([&] { (void)load_tuned(path, other); }),
                         "masks of ranks was none and is not known"));
    CHECK_NOTHROW(check_key(saved, saved.key));

    tuned_cores unfinished = saved;
    unfinished.finished = false;
    save_tuned(path, unfinished);
    CHECK_FALSE(read_tuned(path).finished);
    CHECK(test::mentions(test::refusal<unavailable>([&] { (void)load_tuned(path, saved.key); }),
                         {path.string(), "more than 6 of 8", "later deadline"}));

    CHECK(test::mentions(test::refusal<unavailable>([&] { (void)read_tuned(folder / "none"); }),
                         {"none", "adamant tune"}));
    CHECK(test::mentions(test::refusal<unavailable>([&] { (void)read_tuned(folder); }), "cannot read"));
    REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0); // without a writer
    CHECK(test::mentions(test::refusal<unavailable>([&] { (void)read_tuned(folder / "pipe"); }), "not a regular file"));
    std::ofstream(folder / "huge").put('{');
    std::filesystem::resize_file(folder / "huge", std::uintmax_t{1} << 40);
    CHECK(test::mentions(test::refusal<corrupted>([&] { (void)read_tuned(folder / "huge"); }), "1099511627776 bytes"));
    auto const refused = [&](std::string const& text) {
        std::ofstream(path) << text;
        return test::refusal<corrupted>([&] { (void)read_tuned(path); });
    };
    std::string const good = to_json(saved).dump();
    auto const with = [&](std::string const& from, std::string const& to) {
        std::string text = good;
        return text.replace(text.find(from), from.size(), to);
    };
    CHECK(test::mentions(refused(""), {path.string(), "Tune again"}));
    CHECK(test::mentions(refused(good.substr(0, good.size() / 2)), path.string()));
    CHECK(test::mentions(refused(with("\"cores\":6", "\"cores\":9")), "(cores)"));
    CHECK(test::mentions(refused(with("\"cores\":6", "\"cores\":-1")), "(cores)"));
    CHECK(test::mentions(refused(with("\"cores\":6", "\"kerne\":6")), "cores"));
    CHECK(test::mentions(refused(with("\"step_s\":0.125", "\"step_s\":\"x\"")), path.string()));
    CHECK(test::mentions(refused(with("\"cpuadam_cores_perc\":0.75", "\"cpuadam_cores_perc\":7.5")), "cores_perc"));
    CHECK(test::mentions(refused(with("cores 1\"", "cores 2\"")), "format"));
    CHECK(test::mentions(refused(with("\"prefetch_bytes\":4096", "\"prefetch_bytes\":4294967296")), "prefetch_bytes"));
    std::filesystem::remove_all(folder);
}

TEST_CASE("the processor's name is found where the kernel has it")
{
    std::filesystem::path const folder = test::new_folder("cpuinfo");
    auto const named = [&](char const* text) {
        std::ofstream(folder / "cpuinfo") << text;
        return cpu_model((folder / "cpuinfo").string());
    };
    CHECK(named("processor\t: 0\nmodel name\t: A Processor @ 2 GHz\nflags\t: x\n") == "A Processor @ 2 GHz");
    CHECK(named("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n\nCPU implementer\t: 0x41\n") ==
          "CPU implementer 0x41, part 0xd4f");
    CHECK(named("") == "unknown");
    CHECK(cpu_model("/no/such/file") == "unknown");
    CHECK(!cpu_model().empty());
    std::filesystem::remove_all(folder);
}
