// SPDX-License-Identifier: Apache-2.0
// `adamant cores`: the machine, and which cores each rank's optimizer and host framework get. Shows what
// select_cores() answers, for this machine or for one in a file, before a job is started there.

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

// The command line, as far as it can be understood before the machine is known.
struct options_read {
    core_request request;   // all but the PUs
    std::string ranks_from; // who says how many
    std::string this_rank;  // and which of them this is
    std::optional<unsigned> only_rank;
    std::optional<std::string> list;
    std::vector<std::string> allowed;
    std::optional<std::string> topology;
    std::optional<double> quota;
    bool json = false;
    bool bind_test = false;
};

// "0.25" or "25%". Whether it is a share at all, selection says.
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
    std::string given;
    auto const once = [&](std::string const& option) {
        if (!given.empty())
            throw usage_error(given + " and " + option + " are both given, but each decides the other; give one");
        given = option;
    };
    if (std::optional<std::string> const text = options.value("--perc")) {
        once("--perc");
        request.cpuadam_cores_perc = share("--perc", *text);
    }
    if (std::optional<unsigned> const count = options.number("--count", 0, index_set::max_index)) {
        once("--count");
        request.cpuadam_cores = count;
    }
    if (std::optional<std::string> const text = options.value("--reserve")) {
        once("--reserve");
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

// One of two words.
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

void read_ranks(arguments& options, options_read& read)
{
    if (std::optional<unsigned> const ranks = options.number("--ranks", 1, index_set::max_index)) {
        read.request.ranks = *ranks;
        read.ranks_from = "as --ranks says";
    } else if (local_rank const here = rank_from_environment(); !here.source.empty()) {
        read.request.ranks = here.ranks;
        read.ranks_from = "as " + here.source + " say";
        read.this_rank = "; this process is rank " + std::to_string(here.rank);
    } else {
        read.ranks_from = "for neither --ranks nor a launcher's variables say more";
    }
    read.only_rank = options.number("--rank", 0, index_set::max_index);
    if (read.only_rank && *read.only_rank >= read.request.ranks)
        throw usage_error("--rank is " + std::to_string(*read.only_rank) + ", but the number of ranks is " +
                          std::to_string(read.request.ranks) + ", " + read.ranks_from + "; ranks count from 0");
}

options_read read_options(arguments& options)
{
    options_read read;
    read.json = options.flag("--json");
    read.bind_test = options.flag("--bind-test");
    read_sizes(options, read.request);
    read.request.smt = choice<smt_policy>("--smt", options.value("--smt", "one", "all"),
                                          {"one", smt_policy::one_per_core}, {"all", smt_policy::all});
    read.request.fast = choice<fast_cores>("--fast", options.value("--fast", "optimizer"),
                                           {"optimizer", fast_cores::optimizer}, {"host", fast_cores::host});
    if (std::optional<std::string> const gpus = options.value("--gpu")) {
        if (gpus->empty())
            throw usage_error("--gpu is empty; it has the GPU of each rank, with commas between them");
        for (std::size_t begin = 0; begin <= gpus->size();) {
            std::size_t const end = std::min(gpus->find(',', begin), gpus->size());
            read.request.gpus.push_back(gpus->substr(begin, end - begin));
            begin = end + 1;
        }
    }
    read.list = options.value("--list");
    read.allowed = options.values("--allowed");
    read.topology = options.value("--topology");
    if (std::optional<std::string> const text = options.value("--quota")) {
        double cpus = 0;
        auto const [end, error] = std::from_chars(text->data(), text->data() + text->size(), cpus);
        if (error != std::errc() || end != text->data() + text->size() || !(cpus > 0) || cpus > index_set::max_index)
            throw usage_error("--quota is '" + *text + "', but must be a number of CPUs, such as 2.5");
        read.quota = cpus;
    }
    read_ranks(options, read);
    options.done();
    if (read.bind_test && read.topology)
        throw usage_error("--bind-test is asked for with --topology, but bindings can only be tested on the machine "
                          "that the program runs on; leave one of the two away");
    if (read.bind_test && read.json)
        throw usage_error("--bind-test is asked for with --json, which has no place for its result; leave one of the "
                          "two away");
    return read;
}

// As JSON. What is no UTF-8, as file names may be, becomes the replacement character.
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
        bool good = c >= 0xc2 && c <= 0xf4;
        for (std::size_t k = 1; k < length; ++k)
            good = good && continues(i + k);
        if (good) { // neither longer than need be, nor half of a surrogate pair, nor above U+10ffff
            auto const next = static_cast<unsigned char>(text[i + 1]);
            good = !(c == 0xe0 && next < 0xa0) && !(c == 0xed && next >= 0xa0) && !(c == 0xf0 && next < 0x90) &&
                   !(c == 0xf4 && next >= 0x90);
        }
        json += good ? text.substr(i, length) : "\\ufffd";
        i += good ? length : 1;
    }
    return json + '"';
}

std::string to_json(std::vector<rank_cores> const& ranks, cpu_quota const& quota)
{
    std::string json = "{\"ranks\":[";
    for (rank_cores const& one : ranks) {
        json += &one == &ranks.front() ? "" : ", ";
        json += "{\"rank\":" + std::to_string(one.rank) + ",\"adam_pus\":" + json_string(to_list(one.adam_pus)) +
                ",\"host_pus\":" + json_string(to_list(one.host_pus)) +
                ",\"numa_nodes\":" + json_string(to_list(one.numa_nodes)) + ",\"why\":" + json_string(one.why) + "}";
    }
    json += "]";
    if (quota.cpus > 0)
        json += detail::text_of({",\"cpu_quota\":", quota.cpus, ",\"cpu_quota_source\":", json_string(quota.source)});
    return json + "}\n";
}

bool colours_wanted() // NO_COLOR: see no-color.org
{
    char const* const terminal = std::getenv("TERM");
    return isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr && terminal != nullptr &&
           std::string_view(terminal) != "dumb";
}

// The PUs that the ranks may use among them.
pu_set usable(machine const& on, core_request const& request)
{
    if (request.masks.empty())
        return on.allowed;
    pu_set all;
    for (pu_set const& mask : request.masks)
        all |= mask;
    return all & on.allowed;
}

} // namespace

int cores(arguments& options)
{
    options_read read = read_options(options);
    machine on = machine_of(read.topology);
    if (read.quota)
        on.quota = {*read.quota, "--quota"};
    if (read.list) {
        read.request.list = parse_pus(*read.list, on);
        if (read.request.list.empty())
            throw usage_error("--list is '" + *read.list + "', which has no PU");
    }
    for (std::string const& mask : read.allowed)
        read.request.masks.push_back(parse_pus(mask, on));

    std::vector<rank_cores> const ranks = select_cores(on, read.request);
    std::vector<rank_cores> shown = ranks;
    if (read.only_rank)
        shown = {ranks[*read.only_rank]};
    if (read.bind_test)
        return bind_test(shown);
    pu_set const may_use = usable(on, read.request);
    pu_set const pool = read.list ? may_use & read.request.list : may_use;
    std::string const text =
        read.json
            ? to_json(shown, on.quota)
            : draw({on, may_use, pool, ranks, read.only_rank, read.ranks_from + read.this_rank, colours_wanted()});
    std::fputs(text.c_str(), stdout);
    return 0;
}

} // namespace cli
