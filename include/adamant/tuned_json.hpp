// SPDX-License-Identifier: Apache-2.0
// A tuning result in a JSON file. Opt-in: needs nlohmann-json.
#pragma once

#if !__has_include(<nlohmann/json.hpp>)
#error                                                                                                                 \
    "adamant's tuning files need nlohmann-json 3.11 or newer, and the compiler finds no nlohmann/json.hpp (Debian and Ubuntu: nlohmann-json3-dev)."
#endif

#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>

#include <nlohmann/json.hpp>

#include <adamant/error.hpp>
#include <adamant/tune.hpp>
#include <adamant/detail/core/default_mode.hpp>
#include <adamant/detail/io/durable_file.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

inline constexpr std::string_view tuned_format = "adamant tuned cores 1";

// Throws nlohmann-json's exceptions for missing members and wrong types, and corrupted for impossible numbers.
inline tuned_cores tuned_from_json(nlohmann::ordered_json const& from)
{
    auto const demand = [](bool condition, char const* what) {
        if (!condition)
            throw corrupted(what);
    };
    demand(from.at("format").get<std::string>() == tuned_format, "its format is a different one");
    tuned_cores found;
    for (auto const& [name, text] : from.at("key").items())
        found.key.entries.emplace_back(name, text.get<std::string>());
    auto const whole = [&](nlohmann::ordered_json const& in, char const* name, std::uint64_t most) {
        nlohmann::ordered_json const& value = in.at(name);
        demand(value.is_number_unsigned() && value.get<std::uint64_t>() <= most, name);
        return value.get<std::uint64_t>();
    };
    auto const number = [&](nlohmann::ordered_json const& in, char const* name) {
        double const value = in.at(name).get<double>();
        demand(std::isfinite(value) && value >= 0, name);
        return value;
    };
    found.cores = static_cast<unsigned>(whole(from, "cores", index_set::max_index));
    found.of = static_cast<unsigned>(whole(from, "of", index_set::max_index));
    demand(found.cores >= 1 && found.cores <= found.of, "cores");
    found.cpuadam_cores_perc = number(from, "cpuadam_cores_perc");
    found.finished = from.at("finished").get<bool>();
    if (auto const warnings = from.find("warnings"); warnings != from.end()) // older files have none
        found.warnings = warnings->get<std::vector<std::string>>();
    found.elements = whole(from, "elements", std::numeric_limits<std::size_t>::max());
    found.step_s = number(from, "step_s");
    found.max_chunk_elems = whole(from, "max_chunk_elems", std::numeric_limits<std::size_t>::max());
    found.prefetch_bytes = static_cast<std::uint32_t>(whole(from, "prefetch_bytes", 0xffffffffu));
    for (auto const& at : from.at("curve"))
        found.curve.push_back({static_cast<unsigned>(whole(at, "cores", index_set::max_index)), number(at, "median_s"),
                               number(at, "p10_s"), number(at, "p90_s"),
                               whole(at, "measurements", std::numeric_limits<std::size_t>::max())});
    for (auto const& t : from.at("tried"))
        found.tried.push_back({t.at("name").get<std::string>(),
                               whole(t, "value", std::numeric_limits<std::uint64_t>::max()), number(t, "time_ratio"),
                               number(t, "low"), number(t, "high")});
    return found;
}

} // namespace detail

/// The members of tuned_cores under their names, and "host_cores" besides.
[[nodiscard]] inline nlohmann::ordered_json to_json(tuned_cores const& found)
{
    nlohmann::ordered_json json = {{"format", detail::tuned_format}};
    for (auto const& [name, text] : found.key.entries)
        json["key"][name] = text;
    json["cores"] = found.cores;
    json["of"] = found.of;
    json["cpuadam_cores_perc"] = found.cpuadam_cores_perc;
    json["host_cores"] = found.host_cores();
    json["finished"] = found.finished;
    json["warnings"] = found.warnings;
    json["elements"] = found.elements;
    json["step_s"] = found.step_s;
    json["max_chunk_elems"] = found.max_chunk_elems;
    json["prefetch_bytes"] = found.prefetch_bytes;
    json["curve"] = nlohmann::ordered_json::array();
    for (core_time const& at : found.curve)
        json["curve"].push_back({{"cores", at.cores},
                                 {"median_s", at.median_s},
                                 {"p10_s", at.p10_s},
                                 {"p90_s", at.p90_s},
                                 {"measurements", at.measurements}});
    json["tried"] = nlohmann::ordered_json::array();
    for (tried_setting const& t : found.tried)
        json["tried"].push_back(
            {{"name", t.name}, {"value", t.value}, {"time_ratio", t.time_ratio}, {"low", t.low}, {"high", t.high}});
    return json;
}

/// Replaces the file as a whole or leaves the old one. Throws unavailable with the path and the system's reason.
/// Returns what the file system could not do although the file is complete.
inline save_report save_tuned(std::filesystem::path const& path, tuned_cores const& found)
{
    detail::default_mode_scope const mode;
    detail::durable_file file(path);
    file.write(to_json(found).dump(2) + "\n");
    return file.commit();
}

/// Reads a result for any machine. Throws unavailable for a file that cannot be read, and corrupted for one that does
/// not hold a tuning result.
[[nodiscard]] inline tuned_cores read_tuned(std::filesystem::path const& path)
{
    detail::default_mode_scope const mode;
    std::error_code none;
    bool const folder = std::filesystem::is_directory(path, none);
    errno = 0;
    std::ifstream file(path);
    int const reason = folder ? EISDIR : errno;
    std::string text;
    if (!folder)
        text.assign(std::istreambuf_iterator<char>(file), {});
    if (!file || folder)
        detail::throw_unavailable({path.string(), ": this tuning result cannot be read",
                                   reason != 0 ? std::string(": ") + std::strerror(reason) : std::string(),
                                   "; `adamant tune --save ", path.string(), "` makes one"});
    auto const refused = [&](std::string const& why) {
        return corrupted("adamant: " + path.string() + " does not hold a tuning result of this version (" + why +
                         "); tune again");
    };
    try {
        return detail::tuned_from_json(nlohmann::ordered_json::parse(text));
    } catch (nlohmann::json::exception const& e) {
        throw refused(e.what());
    } catch (corrupted const& e) {
        throw refused(e.what());
    }
}

/// Reads a result for this machine and work; `here` is made by tuning_key_of(). Throws what read_tuned() and
/// check_key() throw, and unavailable for a result that is not finished.
[[nodiscard]] inline tuned_cores load_tuned(std::filesystem::path const& path, tuning_key const& here)
{
    tuned_cores found = read_tuned(path);
    if (!found.finished)
        detail::throw_unavailable({path.string(),
                                   ": this tuning reached its deadline before it was known whether "
                                   "more than ",
                                   found.cores, " of ", found.of,
                                   " cores are worth using; tune again with a later deadline"});
    try {
        check_key(found, here);
    } catch (unavailable const& e) {
        detail::throw_unavailable({path.string(), ": ", std::string(e.what()).substr(9)});
    }
    return found;
}

ADAMANT_END_NAMESPACE
