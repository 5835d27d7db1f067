// SPDX-License-Identifier: Apache-2.0
// `adamant cores`: shows the machine, and the result of select_cores() for each rank, for this machine or one in a
// file.

#include "cores.hpp"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

#include <adamant/cores.hpp>
#include <adamant/error.hpp>

#include "bind_test.hpp"
#include "cores_drawing.hpp"
#include "this_machine.hpp"

namespace cli {

namespace {

using namespace adamant;

// Options that do not depend on the machine.
struct parsed_options {
    core_request request;     // without PUs
    std::string ranks_source; // source of the number of ranks, for the drawing
    std::string this_rank;    // this process's rank, for the drawing
    std::optional<unsigned> only_rank;
    std::optional<std::string> list;
    std::vector<std::string> allowed;
    std::optional<std::string> topology;
    std::optional<double> quota;
    bool json = false;
    bool bind_test = false;
};

// Parses "0.25" or "25%". select_cores() checks the range.
double share(std::string_view option, std::string const& text)
{
    std::string_view digits = text;
    bool const percent = digits.ends_with('%');
    if (percent)
        digits.remove_suffix(1);
    double value = 0;
    auto const [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size())
        throw usage_error(std::string(option) + " is '" + text + "', but must be a share, such as 0.8 or 80%");
    return percent ? value / 100 : value;
}

void read_sizes(arguments& options, core_request& request)
{
    std::string first_option;
    auto const check_single = [&](std::string const& option) {
        if (!first_option.empty())
            throw usage_error(first_option + " and " + option +
                              " are both given, but each decides the other; give one");
        first_option = option;
    };
    if (std::optional<std::string> const text = options.value("--perc")) {
        check_single("--perc");
        request.cpuadam_cores_perc = share("--perc", *text);
    }
    if (std::optional<unsigned> const count = options.number("--count", 0, index_set::max_index)) {
        check_single("--count");
        request.cpuadam_cores = count;
    }
    if (std::optional<std::string> const text = options.value("--reserve")) {
        check_single("--reserve");
        unsigned count = 0;
        auto const [end, error] = std::from_chars(text->data(), text->data() + text->size(), count);
        if (error == std::errc() && end == text->data() + text->size())
            request.pt_reserved_cores = count;
        else if (text->find_first_of(".%") != std::string::npos)
            request.pt_reserved_cores_perc = share("--reserve", *text);
        else
            throw usage_error("--reserve is '" + *text +
                              "', but must be a number of cores, such as 4, or a share of them, such as 0.25 or 25%");
    }
}

// Parses one of two words.
template <class T>
T choice(std::string_view option, std::string const& text, std::pair<std::string_view, T> first,
         std::pair<std::string_view, T> second)
{
    if (text == first.first)
        return first.second;
    if (text == second.first)
        return second.second;
    throw usage_error(std::string(option) + " is '" + text + "', but must be " + std::string(first.first) + " or " +
                      std::string(second.first));
}

void read_ranks(arguments& options, parsed_options& parsed)
{
    if (std::optional<unsigned> const ranks = options.number("--ranks", 1, index_set::max_index)) {
        parsed.request.ranks = *ranks;
        parsed.ranks_source = "as --ranks says";
    } else if (local_rank const self = rank_from_environment(); !self.source.empty()) {
        parsed.request.ranks = self.ranks;
        parsed.ranks_source = "as " + self.source + " say";
        parsed.this_rank = "; this process is rank " + std::to_string(self.rank);
    } else {
        parsed.ranks_source = "for neither --ranks nor a launcher's variables say more";
    }
    parsed.only_rank = options.number("--rank", 0, index_set::max_index);
    if (parsed.only_rank && *parsed.only_rank >= parsed.request.ranks)
        throw usage_error("--rank is " + std::to_string(*parsed.only_rank) + ", but the number of ranks is " +
                          std::to_string(parsed.request.ranks) + ", " + parsed.ranks_source + "; ranks count from 0");
}

parsed_options read_options(arguments& options)
{
    parsed_options parsed;
    parsed.json = options.flag("--json");
    parsed.bind_test = options.flag("--bind-test");
    read_sizes(options, parsed.request);
    parsed.request.smt = choice<smt_policy>("--smt", options.value("--smt", "one", "all"),
                                            {"one", smt_policy::one_per_core}, {"all", smt_policy::all});
    parsed.request.fast = choice<fast_cores>("--fast", options.value("--fast", "optimizer"),
                                             {"optimizer", fast_cores::optimizer}, {"host", fast_cores::host});
    if (std::optional<std::string> const gpus = options.value("--gpu")) {
        if (gpus->empty())
            throw usage_error("--gpu is empty; it has the GPU of each rank, with commas between them");
        for (std::size_t begin = 0; begin <= gpus->size();) {
            std::size_t const end = std::min(gpus->find(',', begin), gpus->size());
            parsed.request.gpus.push_back(gpus->substr(begin, end - begin));
            begin = end + 1;
        }
    }
    parsed.list = options.value("--list");
    parsed.allowed = options.values("--allowed");
    parsed.topology = options.value("--topology");
    if (std::optional<std::string> const text = options.value("--quota")) {
        double cpus = 0;
        auto const [end, error] = std::from_chars(text->data(), text->data() + text->size(), cpus);
        if (error != std::errc() || end != text->data() + text->size() || !(cpus > 0) || cpus > index_set::max_index)
            throw usage_error("--quota is '" + *text + "', but must be a number of CPUs, such as 2.5");
        parsed.quota = cpus;
    }
    read_ranks(options, parsed);
    options.check_empty();
    if (parsed.bind_test && parsed.topology)
        throw usage_error("cannot use --bind-test with --topology: bindings can only be tested on the machine that the "
                          "program runs on. Remove one of the two");
    if (parsed.bind_test && parsed.json)
        throw usage_error("cannot use --bind-test with --json, which does not include its result. Remove one of the "
                          "two");
    return parsed;
}

// Returns the text as a JSON string. Bytes that are not UTF-8, for example of file names, become U+FFFD.
std::string json_string(std::string_view text)
{
    auto const continues = [&](std::size_t i) {
        return i < text.size() && (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80;
    };
    std::string json = "\"";
    for (std::size_t i = 0; i < text.size();) {
        auto const c = static_cast<unsigned char>(text[i]);
        if (c < 0x80) {
            char escaped[8];
            if (c == '"' || c == '\\')
                json += {'\\', text[i]};
            else if (c < 0x20 || c == 0x7f) {
                std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
                json += escaped;
            } else
                json += text[i];
            ++i;
            continue;
        }
        std::size_t const length = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
        bool is_valid = c >= 0xc2 && c <= 0xf4;
        for (std::size_t k = 1; k < length; ++k)
            is_valid = is_valid && continues(i + k);
        if (is_valid) { // no overlong form, no surrogate, not above U+10ffff
            auto const next = static_cast<unsigned char>(text[i + 1]);
            is_valid = !(c == 0xe0 && next < 0xa0) && !(c == 0xed && next >= 0xa0) && !(c == 0xf0 && next < 0x90) &&
                       !(c == 0xf4 && next >= 0x90);
        }
        json += is_valid ? text.substr(i, length) : "\\ufffd";
        i += is_valid ? length : 1;
    }
    return json + '"';
}

std::string to_json(std::vector<rank_cores> const& ranks, cpu_quota const& quota)
{
    std::string json = "{\"ranks\":[";
    for (rank_cores const& r : ranks) {
        json += &r == &ranks.front() ? "" : ", ";
        json += "{\"rank\":" + std::to_string(r.rank) + ",\"adam_pus\":" + json_string(to_list(r.adam_pus)) +
                ",\"host_pus\":" + json_string(to_list(r.host_pus)) +
                ",\"numa_nodes\":" + json_string(to_list(r.numa_nodes)) + ",\"why\":" + json_string(r.why) + "}";
    }
    json += "]";
    if (quota.cpus > 0)
        json += detail::text_of({",\"cpu_quota\":", quota.cpus, ",\"cpu_quota_source\":", json_string(quota.source)});
    return json + "}\n";
}

bool uses_colours() // NO_COLOR: see no-color.org
{
    char const* const terminal = std::getenv("TERM");
    return isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr && terminal != nullptr &&
           std::string_view(terminal) != "dumb";
}

// Returns the PUs that all ranks together may use.
pu_set usable(machine const& host, core_request const& request)
{
    if (request.masks.empty())
        return host.allowed;
    pu_set all;
    for (pu_set const& mask : request.masks)
        all |= mask;
    return all & host.allowed;
}

} // namespace

int cores(arguments& options)
{
    parsed_options parsed = read_options(options);
    machine host = machine_of(parsed.topology);
    if (parsed.quota)
        host.quota = {*parsed.quota, "--quota"};
    if (parsed.list) {
        parsed.request.list = parse_pus(*parsed.list, host);
        if (parsed.request.list.empty())
            throw usage_error("--list is '" + *parsed.list + "', which has no PU");
    }
    for (std::string const& mask : parsed.allowed)
        parsed.request.masks.push_back(parse_pus(mask, host));

    std::vector<rank_cores> const ranks = select_cores(host, parsed.request);
    std::vector<rank_cores> selected = ranks;
    if (parsed.only_rank)
        selected = {ranks[*parsed.only_rank]};
    if (parsed.bind_test)
        return bind_test(selected);
    pu_set const usable_pus = usable(host, parsed.request);
    pu_set const pool = parsed.list ? usable_pus & parsed.request.list : usable_pus;
    std::string const text = parsed.json ? to_json(selected, host.quota)
                                         : draw({host, usable_pus, pool, ranks, parsed.only_rank,
                                                 parsed.ranks_source + parsed.this_rank, uses_colours()});
    std::fputs(text.c_str(), stdout);
    return 0;
}

} // namespace cli
