// SPDX-License-Identifier: Apache-2.0
// Tuning results in JSON files. Opt-in: needs nlohmann-json.
#pragma once

#if !__has_include(<nlohmann/json.hpp>)
#error                                                                                                                 \
    "adamant's tuning files need nlohmann-json 3.11 or newer, and the compiler finds no nlohmann/json.hpp (Debian and Ubuntu: nlohmann-json3-dev)."
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include <adamant/error.hpp>
#include <adamant/tune.hpp>
#include <adamant/detail/core/default_mode.hpp>
#include <adamant/detail/io/durable_file.hpp>
#include <adamant/detail/io/file_source.hpp>
#include <adamant/detail/io/state_check.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

inline constexpr std::string_view tuned_format = "adamant tuned cores 1";

// Throws nlohmann-json's exceptions for missing members and wrong types, and corrupted for invalid numbers.
inline tuned_cores tuned_from_json(nlohmann::ordered_json const& document)
{
    auto const demand = [](bool condition, char const* reason) {
        if (!condition)
            throw corrupted(reason);
    };
    demand(document.at("format").get<std::string>() == tuned_format, "unknown format");
    tuned_cores result;
    for (auto const& [name, text] : document.at("key").items())
        result.key.entries.emplace_back(name, text.get<std::string>());
    auto const whole = [&](nlohmann::ordered_json const& object, char const* name, std::uint64_t maximum) {
        nlohmann::ordered_json const& value = object.at(name);
        demand(value.is_number_unsigned() && value.get<std::uint64_t>() <= maximum, name);
        return value.get<std::uint64_t>();
    };
    auto const number = [&](nlohmann::ordered_json const& object, char const* name) {
        double const value = object.at(name).get<double>();
        demand(std::isfinite(value) && value >= 0, name);
        return value;
    };
    result.cores = static_cast<unsigned>(whole(document, "cores", index_set::max_index));
    result.available_cores = static_cast<unsigned>(whole(document, "of", index_set::max_index));
    demand(result.cores >= 1 && result.cores <= result.available_cores, "cores");
    result.cpuadam_cores_perc = number(document, "cpuadam_cores_perc");
    demand(result.cpuadam_cores_perc <= 1, "cpuadam_cores_perc");
    result.finished = document.at("finished").get<bool>();
    if (auto const warnings = document.find("warnings"); warnings != document.end()) // older files have none
        result.warnings = warnings->get<std::vector<std::string>>();
    result.elements = whole(document, "elements", std::numeric_limits<std::size_t>::max());
    result.step_s = number(document, "step_s");
    result.max_chunk_elems = whole(document, "max_chunk_elems", std::numeric_limits<std::size_t>::max());
    result.prefetch_bytes = static_cast<std::uint32_t>(whole(document, "prefetch_bytes", 0xffffffffu));
    for (auto const& point : document.at("curve"))
        result.curve.push_back({static_cast<unsigned>(whole(point, "cores", index_set::max_index)),
                                number(point, "median_s"), number(point, "p10_s"), number(point, "p90_s"),
                                whole(point, "measurements", std::numeric_limits<std::size_t>::max())});
    for (auto const& t : document.at("tried"))
        result.tried.push_back({t.at("name").get<std::string>(),
                                whole(t, "value", std::numeric_limits<std::uint64_t>::max()), number(t, "time_ratio"),
                                number(t, "low"), number(t, "high")});
    return result;
}

} // namespace detail

/// Converts a tuning result to JSON: the members of tuned_cores by their names (available_cores as "of"), and
/// "host_cores".
[[nodiscard]] inline nlohmann::ordered_json to_json(tuned_cores const& result)
{
    nlohmann::ordered_json document = {{"format", detail::tuned_format}};
    for (auto const& [name, text] : result.key.entries)
        document["key"][name] = text;
    document["cores"] = result.cores;
    document["of"] = result.available_cores;
    document["cpuadam_cores_perc"] = result.cpuadam_cores_perc;
    document["host_cores"] = result.host_cores();
    document["finished"] = result.finished;
    document["warnings"] = result.warnings;
    document["elements"] = result.elements;
    document["step_s"] = result.step_s;
    document["max_chunk_elems"] = result.max_chunk_elems;
    document["prefetch_bytes"] = result.prefetch_bytes;
    document["curve"] = nlohmann::ordered_json::array();
    for (core_time const& point : result.curve)
        document["curve"].push_back({{"cores", point.cores},
                                     {"median_s", point.median_s},
                                     {"p10_s", point.p10_s},
                                     {"p90_s", point.p90_s},
                                     {"measurements", point.measurements}});
    document["tried"] = nlohmann::ordered_json::array();
    for (tried_setting const& t : result.tried)
        document["tried"].push_back(
            {{"name", t.name}, {"value", t.value}, {"time_ratio", t.time_ratio}, {"low", t.low}, {"high", t.high}});
    return document;
}

/// Writes a tuning result to a file, and replaces an existing file atomically.
/// @return the steps of the save that the file system refused although the file is complete.
/// @throws unavailable with the path and the system's reason if the file cannot be written.
inline save_report save_tuned(std::filesystem::path const& path, tuned_cores const& result)
{
    detail::default_mode_scope const mode;
    detail::durable_file file(path);
    file.write(to_json(result).dump(2) + "\n");
    return file.commit();
}

/// Reads a tuning result of any machine.
/// @throws unavailable if the file cannot be read.
/// @throws corrupted if the file does not contain a tuning result.
[[nodiscard]] inline tuned_cores read_tuned(std::filesystem::path const& path)
{
    detail::default_mode_scope const mode;
    constexpr std::size_t most_bytes = std::size_t{1} << 24;
    auto const refusal = [&](std::string const& reason_text) {
        return corrupted("adamant: cannot read " + path.string() + ": it is not a tuning result of this version (" +
                         reason_text + "). Tune again.");
    };
    std::string text;
    try {
        detail::file_source const file(path);
        if (file.size() > most_bytes)
            throw refusal("it has " + std::to_string(file.size()) + " bytes");
        text.resize(file.size());
        file.read(file.data(), text.size(), reinterpret_cast<std::byte*>(text.data()));
    } catch (unavailable const& e) {
        detail::throw_unavailable({detail::reason(e), ". Create a tuning result with `adamant tune --save FILE`."});
    }
    try {
        return detail::tuned_from_json(nlohmann::ordered_json::parse(text));
    } catch (nlohmann::json::exception const& e) {
        throw refusal(e.what());
    } catch (corrupted const& e) {
        throw refusal(e.what());
    }
}

/// Reads a tuning result for this machine and work, given by the key from tuning_key_of().
/// @throws unavailable if the result is not finished, and what read_tuned() and check_key() throw.
[[nodiscard]] inline tuned_cores load_tuned(std::filesystem::path const& path, tuning_key const& current)
{
    tuned_cores result = read_tuned(path);
    if (!result.finished)
        detail::throw_unavailable({"cannot use the tuning result ", path.string(),
                                   ": tuning reached its deadline before it was known whether more than ", result.cores,
                                   " of ", result.available_cores,
                                   " cores are worth using. Tune again with a later deadline."});
    try {
        check_key(result, current);
    } catch (unavailable const& e) {
        constexpr std::string_view begin = "adamant: cannot use the tuning result";
        detail::throw_unavailable(
            {"cannot use the tuning result ", path.string(), std::string_view(e.what()).substr(begin.size())});
    }
    return result;
}

ADAMANT_END_NAMESPACE
