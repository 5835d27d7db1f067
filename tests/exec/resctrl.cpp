// SPDX-License-Identifier: Apache-2.0
// The resctrl group, on a folder that behaves as the kernel's file system does (fs/resctrl in Linux 6.16).
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <adamant/resctrl.hpp>

#include "catch.hpp"
#include "folder.hpp"
#include "refusal.hpp"

using namespace adamant;
using test::mentions;
namespace fs = std::filesystem;

static std::string text_of(fs::path const& path)
{
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}
static void set_text(fs::path const& path, std::string const& text)
{
    std::ofstream(path) << text;
}

namespace {

struct resource {
    std::string name;
    std::vector<unsigned> domains;
    std::uint64_t most;          // all bits of a mask; the maximum of a bandwidth, which new groups have
    std::uint64_t least;         // bits of a mask; bandwidth
    std::uint64_t shared = 0;    // bits that devices use too
    std::uint64_t step = 1;      // of a bandwidth
    std::uint64_t fractions = 0; // in how many parts of the maximum the hardware keeps a bandwidth; 0: exactly
    bool sparse = false;         // a mask may have holes
    [[nodiscard]] bool is_mask() const { return name[0] == 'L'; }
};

std::vector<resource> intel()
{
    return {{"L3", {0, 1}, 0xfffff, 1}, {"L2", {0, 3}, 0xff, 1}, {"MB", {0, 1}, 100, 10, 0, 10}};
}

// Files in a folder are its only state, so that processes may share one. Calls are atomic only under the lock.
class kernel : public resctrl_files {
public:
    explicit kernel(std::vector<resource> resources, unsigned closids = 8)
        : resources_(std::move(resources)), closids_(closids)
    {
        root = test::new_folder("resctrl");
        for (resource const& r : resources_) {
            fs::path const info = fs::path(root) / "info" / r.name;
            fs::create_directories(info);
            set_text(info / "num_closids", std::to_string(closids) + '\n');
            if (r.is_mask()) {
                set_text(info / "cbm_mask", hex(r.most) + '\n');
                set_text(info / "min_cbm_bits", std::to_string(r.least) + '\n');
                set_text(info / "shareable_bits", hex(r.shared) + '\n');
            } else {
                set_text(info / "min_bandwidth", std::to_string(r.least) + '\n');
                set_text(info / "bandwidth_gran", std::to_string(r.step) + '\n');
            }
        }
        fs::create_directories(fs::path(root) / "info" / "L3_MON");
        fs::create_directories(fs::path(root) / "mon_groups");
        say("ok");
        populate(root);
        set_text(fs::path(root) / "tasks", "1\n100\n101\n102\n103\n");
    }
    kernel(kernel const&) = delete;
    kernel& operator=(kernel const&) = delete;
    ~kernel() override
    {
        if (creator_ == ::getpid())
            fs::remove_all(root);
    }

    int write(std::string const& path, std::string const& text) override
    {
        if (refuse)
            if (int const error = refuse(path, text); error != 0)
                return error;
        writes.push_back(path.substr(root.size() + 1));
        fs::path const file = path;
        if (!fs::exists(file))
            return ENOENT;
        if (file.filename() == "schemata")
            return write_schemata(file.parent_path(), text);
        if (file.filename() == "tasks")
            return write_task(file.parent_path(), text);
        return EPERM;
    }
    int make_dir(std::string const& path) override
    {
        if (mkdir_error != 0)
            return mkdir_error;
        if (fs::exists(path))
            return EEXIST;
        if (groups().size() == closids_) {
            say("Out of CLOSIDs");
            return ENOSPC;
        }
        if (int const error = resctrl_files::make_dir(path); error != 0)
            return error;
        populate(path);
        return 0;
    }
    int remove_dir(std::string const& path) override
    {
        if (rmdir_error != 0)
            return rmdir_error;
        if (!fs::exists(path))
            return ENOENT;
        set_text(fs::path(root) / "tasks", text_of(fs::path(root) / "tasks") + text_of(fs::path(path) / "tasks"));
        fs::remove_all(path);
        return 0;
    }

    // Every group: the root and those in it.
    [[nodiscard]] std::vector<fs::path> groups() const
    {
        std::vector<fs::path> result{root};
        for (auto const& entry : fs::directory_iterator(root))
            if (entry.is_directory() && entry.path().filename() != "info" && entry.path().filename() != "mon_groups")
                result.push_back(entry.path());
        return result;
    }
    [[nodiscard]] std::string schemata(std::string const& group = "") const
    {
        return text_of(fs::path(root) / group / "schemata");
    }
    // One value as the kernel shows it, without blanks.
    [[nodiscard]] std::string shown(std::string const& name, unsigned id, std::string const& group = "") const
    {
        std::string text = schemata(group);
        std::erase(text, ' ');
        text = '\n' + text;
        std::size_t at = text.find('\n' + name + ':');
        REQUIRE(at != std::string::npos);
        text = text.substr(at + 2 + name.size());
        text = ';' + text.substr(0, text.find('\n')) + ';';
        at = text.find(';' + std::to_string(id) + '=');
        REQUIRE(at != std::string::npos);
        at = text.find('=', at) + 1;
        return text.substr(at, text.find(';', at) - at);
    }
    [[nodiscard]] std::uint64_t value(std::string const& name, unsigned id, std::string const& group = "") const
    {
        return std::stoull(shown(name, id, group), nullptr, name[0] == 'L' ? 16 : 10);
    }
    // What an administrator does.
    void set(std::string const& text, std::string const& group = "")
    {
        REQUIRE(write_schemata(fs::path(root) / group, text) == 0);
    }
    void add_group(std::string const& name, std::string const& text = "")
    {
        REQUIRE(make_dir(root + '/' + name) == 0);
        if (!text.empty())
            set(text, name);
    }
    [[nodiscard]] std::string tasks(std::string const& group = "") const
    {
        return text_of(fs::path(root) / group / "tasks");
    }

    std::string root;
    std::function<int(std::string const&, std::string const&)> refuse; // an errno for some writes
    int mkdir_error = 0;
    int rmdir_error = 0;
    std::vector<std::string> writes; // to which files

private:
    static std::string hex(std::uint64_t value)
    {
        std::ostringstream text;
        text << std::hex << value;
        return text.str();
    }
    void say(std::string const& status) const { set_text(fs::path(root) / "info" / "last_cmd_status", status + '\n'); }
    int refuse_with(std::string const& status) const
    {
        say(status);
        return EINVAL;
    }

    using values = std::vector<std::vector<std::uint64_t>>; // of each resource, of each domain

    [[nodiscard]] values parse(fs::path const& group) const
    {
        std::string const name = group == root ? "" : group.filename().string();
        values result;
        for (resource const& r : resources_) {
            result.emplace_back();
            for (unsigned const id : r.domains)
                result.back().push_back(value(r.name, id, name));
        }
        return result;
    }
    void show(fs::path const& group, values const& all) const
    {
        std::ostringstream text;
        for (std::size_t i = 0; i < resources_.size(); ++i) {
            text << std::string(6 - resources_[i].name.size(), ' ') << resources_[i].name << ':';
            for (std::size_t d = 0; d < all[i].size(); ++d) {
                text << (d == 0 ? "" : ";") << resources_[i].domains[d] << '=';
                std::string const number = resources_[i].is_mask() ? hex(all[i][d]) : std::to_string(all[i][d]);
                text << std::string(number.size() < 4 && !resources_[i].is_mask() ? 4 - number.size() : 0, ' ')
                     << number;
            }
            text << '\n';
        }
        set_text(group / "schemata", text.str());
    }
    [[nodiscard]] static bool is_exclusive(fs::path const& group) { return text_of(group / "mode") == "exclusive\n"; }

    void populate(fs::path const& group) const
    {
        values all;
        for (resource const& r : resources_)
            all.emplace_back(r.domains.size(), r.most);
        for (fs::path const& other : group == root ? std::vector<fs::path>{} : groups())
            if (is_exclusive(other)) {
                values const theirs = parse(other);
                for (std::size_t i = 0; i < all.size(); ++i)
                    for (std::size_t d = 0; d < all[i].size() && resources_[i].is_mask(); ++d)
                        all[i][d] &= ~theirs[i][d];
            }
        set_text(group / "tasks", "");
        set_text(group / "cpus", "0\n");
        set_text(group / "mode", "shareable\n");
        show(group, all);
    }

    int write_schemata(fs::path const& group, std::string const& text) const
    {
        if (text.empty() || text.back() != '\n')
            return EINVAL;
        say("ok");
        values all = parse(group);
        std::vector<std::pair<std::size_t, std::size_t>> seen;
        std::istringstream lines(text);
        for (std::string line; std::getline(lines, line);) {
            std::size_t const colon = line.find(':');
            if (colon == std::string::npos)
                return refuse_with("Missing ':'");
            std::size_t i = 0;
            while (i < resources_.size() && resources_[i].name != line.substr(0, colon))
                ++i;
            if (i == resources_.size())
                return refuse_with("Unknown or unsupported resource name");
            resource const& r = resources_[i];
            std::istringstream domains(line.substr(colon + 1));
            for (std::string domain; std::getline(domains, domain, ';');) {
                char* end = nullptr;
                unsigned long const id = std::strtoul(domain.c_str(), &end, 10);
                if (*end != '=' || end == domain.c_str() || domain[0] == ' ')
                    return refuse_with("Missing '=' or non-numeric domain");
                auto const at = std::find(r.domains.begin(), r.domains.end(), id);
                if (at == r.domains.end())
                    return EINVAL;
                auto const d = static_cast<std::size_t>(at - r.domains.begin());
                if (std::find(seen.begin(), seen.end(), std::pair(i, d)) != seen.end())
                    return refuse_with("Duplicate domain");
                seen.emplace_back(i, d);
                char const* const digits = end + 1;
                std::uint64_t number = std::strtoull(digits, &end, r.is_mask() ? 16 : 10);
                if (end == digits || *end != '\0')
                    return refuse_with("Invalid value");
                if (r.is_mask()) {
                    if ((r.least > 0 && number == 0) || number > r.most)
                        return refuse_with("Mask out of range");
                    int const first = std::countr_zero(number);
                    int const length = std::countr_one(number >> first);
                    if (!r.sparse && std::popcount(number) != length)
                        return refuse_with("The mask has non-consecutive 1-bits");
                    if (static_cast<std::uint64_t>(length) < r.least)
                        return refuse_with("Need at least more bits in the mask");
                    for (fs::path const& other : groups())
                        if (other != group && (is_exclusive(other) || is_exclusive(group)) &&
                            (parse(other)[i][d] & number) != 0)
                            return refuse_with("Overlaps with exclusive group");
                } else if (r.most <= 0xffff) { // else mba_MBps, where anything goes
                    if (number < r.least || number > r.most)
                        return refuse_with("MB value out of range");
                    number = (number + r.step - 1) / r.step * r.step;
                    if (r.fractions != 0) {
                        std::uint64_t const parts = std::min((number * r.fractions + r.most / 2) / r.most, r.fractions);
                        number = (parts * r.most + r.fractions / 2) / r.fractions;
                    }
                }
                all[i][d] = number;
            }
        }
        show(group, all);
        return 0;
    }

    int write_task(fs::path const& group, std::string const& text) const
    {
        std::string const line = std::to_string(std::stol(text)) + '\n';
        for (fs::path const& from : groups()) {
            std::string const tasks = '\n' + text_of(from / "tasks");
            std::size_t const at = tasks.find('\n' + line);
            if (at == std::string::npos)
                continue;
            set_text(from / "tasks", tasks.substr(1, at) + tasks.substr(at + 1 + line.size()));
            set_text(group / "tasks", text_of(group / "tasks") + line);
            return 0;
        }
        return ESRCH;
    }

    std::vector<resource> resources_;
    std::size_t closids_;
    pid_t creator_ = ::getpid();
};

std::shared_ptr<kernel> make_kernel(std::vector<resource> resources = intel(), unsigned closids = 8)
{
    return std::make_shared<kernel>(std::move(resources), closids);
}

resctrl_options shares(kernel const& k, double l3, double bandwidth, bool required = false)
{
    return {.l3_share = l3, .bandwidth_share = bandwidth, .required = required, .root = k.root};
}

// A child process that runs until told.
class child {
public:
    explicit child(std::function<void()> const& work)
    {
        int ready[2];
        REQUIRE(::pipe(ready) == 0);
        pid = ::fork();
        REQUIRE(pid >= 0);
        if (pid == 0) {
            ::close(ready[0]);
            work();
            [[maybe_unused]] ssize_t const put = ::write(ready[1], "x", 1);
            for (;;)
                ::pause();
        }
        ::close(ready[1]);
        char byte = 0;
        bool const started = ::read(ready[0], &byte, 1) == 1;
        ::close(ready[0]);
        REQUIRE(started);
    }
    child(child const&) = delete;
    child& operator=(child const&) = delete;
    ~child() { collect(); }
    void kill() const // a zombie afterwards
    {
        ::kill(pid, SIGKILL);
        siginfo_t info;
        ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT);
    }
    void collect()
    {
        if (pid <= 0)
            return;
        ::kill(pid, SIGKILL);
        ::waitpid(pid, nullptr, 0);
        pid = 0;
    }
    pid_t pid = 0;
};

// A pid that nobody has.
long dead_pid()
{
    child ended([] {});
    long const pid = ended.pid;
    ended.collect();
    return pid;
}

unsigned long long own_start()
{
    resctrl_files files;
    return detail::process_start(files, ::getpid(), 0);
}

// The reason, and that nothing has changed for it.
std::string refused(std::shared_ptr<kernel> const& k, resctrl_options options)
{
    std::string const before = k->schemata();
    std::size_t const groups = k->groups().size();
    std::string reason;
    {
        resctrl_group const group(options, k);
        CHECK_FALSE(group.active());
        CHECK(group.name().empty());
        CHECK(group.report().optimizer.empty());
        CHECK(group.add_thread(100) == group.reason());
        reason = group.reason();
        CHECK(k->schemata() == before);
        CHECK(k->groups().size() == groups);
    }
    CHECK(k->schemata() == before);
    options.required = true;
    std::string thrown;
    try {
        resctrl_group const group(options, k);
    } catch (unavailable const& error) {
        thrown = error.what();
    }
    CHECK(thrown == reason);
    CHECK(k->schemata() == before);
    CHECK(k->groups().size() == groups);
    CHECK(reason.starts_with("adamant: "));
    return reason;
}

} // namespace

TEST_CASE("a resctrl group takes its shares, and gives them back")
{
    auto const k = make_kernel();
    std::string const before = k->schemata();
    {
        resctrl_group const group(shares(*k, 0.25, 0.3, true), k);
        REQUIRE(group.active());
        CHECK(group.reason().empty());
        CHECK(group.name() == "adamant." + std::to_string(::getpid()) + '.' + std::to_string(own_start()) + ".0");
        CHECK(own_start() != 0);
        CHECK(k->schemata(group.name()) == "    L3:0=f8000;1=f8000\n    L2:0=ff;3=ff\n    MB:0=  30;1=  30\n");
        CHECK(k->schemata() == "    L3:0=7fff;1=7fff\n    L2:0=ff;3=ff\n    MB:0=  70;1=  70\n");
        CHECK(group.report().optimizer == "L3:0=f8000;1=f8000 L2:0=ff;3=ff MB:0=30;1=30");
        CHECK(group.report().host == "L3:0=7fff;1=7fff L2:0=ff;3=ff MB:0=70;1=70");
        CHECK(group.report().notes.empty());
        // One write each, so that the kernel takes all of it or nothing; the modes stay as they are.
        CHECK(k->writes == std::vector<std::string>{group.name() + "/schemata", "schemata"});

        CHECK(group.add_thread(101).empty());
        CHECK(group.add_thread(103).empty());
        CHECK(k->tasks(group.name()) == "101\n103\n");
        CHECK(k->tasks() == "1\n100\n102\n");
        k->set("L2:0=f\n");
        CHECK(group.report().host == "L3:0=7fff;1=7fff L2:0=f;3=ff MB:0=70;1=70"); // what is, not what was
        k->set("L2:0=ff\n");
    }
    CHECK(k->schemata() == before);
    CHECK(k->groups().size() == 1);
    CHECK(k->tasks() == "1\n100\n102\n101\n103\n");
}

TEST_CASE("only one of the two is divided where only one is asked for")
{
    auto const k = make_kernel();
    k->set("L3:1=ffff\n");
    {
        resctrl_group const group(shares(*k, 0.5, 0), k);
        CHECK(group.report().optimizer == "L3:0=ffc00;1=ffc0 L2:0=ff;3=ff MB:0=100;1=100");
        CHECK(group.report().host == "L3:0=3ff;1=3f L2:0=ff;3=ff MB:0=100;1=100");
    }
    CHECK(k->shown("L3", 1) == "ffff");
    resctrl_group const group(shares(*k, 0, 0.5), k); // its L3 is the host's, not all of it
    CHECK(group.report().optimizer == "L3:0=fffff;1=ffff L2:0=ff;3=ff MB:0=50;1=50");
    CHECK(group.report().host == "L3:0=fffff;1=ffff L2:0=ff;3=ff MB:0=50;1=50");
}

TEST_CASE("shares are rounded to what the hardware has, and leave the host something")
{
    struct one {
        double share;
        char const* l3;
        char const* bandwidth;
    };
    auto const k = make_kernel({{"L3", {0}, 0xfff, 2}, {"MB", {0}, 100, 20, 0, 10}});
    for (one const& c : {one{1e-9, "c00", "20"}, one{0.2, "c00", "20"}, one{0.21, "e00", "20"}, one{0.26, "e00", "30"},
                         one{0.5, "fc0", "50"}, one{0.99, "ffc", "80"}}) {
        CAPTURE(c.share);
        resctrl_group const group(shares(*k, c.share, c.share), k);
        CHECK(k->shown("L3", 0, group.name()) == c.l3);
        CHECK(k->shown("MB", 0, group.name()) == c.bandwidth);
        CHECK((k->value("L3", 0) | k->value("L3", 0, group.name())) == 0xfff);
        CHECK((k->value("L3", 0) & k->value("L3", 0, group.name())) == 0);
        CHECK(k->value("MB", 0) + k->value("MB", 0, group.name()) == 100);
    }
}

TEST_CASE("the end of the mask that devices do not use is taken")
{
    auto const k = make_kernel({{"L3", {0}, 0x7ff, 1, 0x600}});
    {
        resctrl_group const group(shares(*k, 0.25, 0), k);
        CHECK(group.report().optimizer == "L3:0=7");
        CHECK(group.report().host == "L3:0=7f8");
    }
    CHECK(k->shown("L3", 0) == "7ff");
    STATIC_REQUIRE(detail::end_of_mask(0xff, 3, 0) == 0xe0);
    STATIC_REQUIRE(detail::end_of_mask(0xff, 3, 0x81) == 0xe0);
    STATIC_REQUIRE(detail::end_of_mask(0xff, 3, 0xc1) == 0x07);
    STATIC_REQUIRE(detail::end_of_mask(0x8f, 3, 0) == 0x07); // the other end is in pieces
    STATIC_REQUIRE(detail::end_of_mask(0xf1, 3, 0xff0) == 0xe0);
    STATIC_REQUIRE(detail::end_of_mask(0x99, 2, 0) == 0);
    STATIC_REQUIRE(detail::end_of_mask(~std::uint64_t{0}, 63, 0) == ~std::uint64_t{1});
}

TEST_CASE("code and data are both divided where the L3 keeps them apart")
{
    auto const k =
        make_kernel({{"L3CODE", {0, 1}, 0xfff, 1}, {"L3DATA", {0, 1}, 0xfff, 1}, {"MB", {0, 1}, 100, 10, 0, 10}});
    std::string const before = k->schemata();
    k->set("L3DATA:1=ff\n");
    {
        resctrl_group const group(shares(*k, 0.25, 0), k);
        CHECK(group.report().optimizer == "L3CODE:0=e00;1=e00 L3DATA:0=e00;1=e0 MB:0=100;1=100");
        CHECK(group.report().host == "L3CODE:0=1ff;1=1ff L3DATA:0=1ff;1=1f MB:0=100;1=100");
    }
    k->set("L3DATA:1=fff\n");
    CHECK(k->schemata() == before);
}

TEST_CASE("bandwidth in amounts is not limited, and the report says so")
{
    std::uint64_t const most = GENERATE(as<std::uint64_t>{}, 2048u, 4294967295u); // AMD; mba_MBps
    resource const l3{"L3", {0, 1}, 0xffff, 0, 0, 1, 0, true};
    auto const k = make_kernel({l3, {"MB", {0, 1}, most, 0, 0, 1}});
    CHECK(mentions(refused(k, shares(*k, 0, 0.3)), "bandwidth_share is 0.3, but the kernel shows amounts"));
    if (most == 2048)
        k->set("MB:0=80;1=80\n"); // 10 GB/s, and no percentage
    std::string const before = k->schemata();
    {
        resctrl_group const group(shares(*k, 0.25, 0.3), k);
        REQUIRE(group.active());
        CHECK(mentions(group.report().notes, std::to_string(most)));
        CHECK(k->shown("L3", 1, group.name()) == "f000");
        CHECK(k->value("MB", 0, group.name()) == most);
        CHECK(k->shown("L3", 1) == "fff");
    }
    CHECK(k->schemata() == before);
    CHECK_THROWS_AS(resctrl_group(shares(*k, 0.25, 0.3, true), k), unavailable);
    CHECK(k->schemata() == before);
    CHECK(k->groups().size() == 1);
    // That of the dead is not added to it either.
    k->set("L3:0=fff;1=fff\nMB:0=" + std::to_string(most) + '\n');
    k->add_group(detail::group_name(dead_pid(), 1, 0), "L3:0=f000;1=f000\nMB:0=80;1=80\n");
    resctrl_group const group(shares(*k, 1e-9, 0), k); // no mask without a bit, though AMD allows it
    CHECK(k->groups().size() == 2);
    CHECK(k->value("MB", 0) == most);
    CHECK(k->shown("L3", 0) == "7fff");
    CHECK(k->shown("L3", 0, group.name()) == "8000");
}

TEST_CASE("what is reported is what the hardware made of it, and all of that comes back")
{
    // MPAM keeps sixteenths here, and allows masks with holes.
    auto const k = make_kernel({{"L3", {1, 7}, 0xffff, 1, 0, 1, 0, true}, {"MB", {1, 7}, 100, 6, 0, 6, 16}});
    std::string const before = k->schemata();
    {
        resctrl_group const group(shares(*k, 0.15, 0.3), k);
        CHECK(k->shown("MB", 7, group.name()) == "31"); // 30, but for the hardware
        CHECK(mentions(group.report().optimizer, "7=31"));
        CHECK(mentions(group.report().host, "7=69"));
    }
    for (double const share : {0.05, 0.12, 0.15, 0.18, 0.3, 0.36, 0.45}) {
        CAPTURE(share);
        for (unsigned limit = 12; limit <= 100; limit += limit == 96 ? 4 : 6) {
            k->set("L3:1=c7f3\nMB:1=" + std::to_string(limit) + '\n');
            std::string const limited = k->schemata();
            CAPTURE(limit, limited);
            {
                resctrl_group const first(shares(*k, 0.15, share), k);
                resctrl_group const second(shares(*k, 0.1, 0.1), k);
                CHECK(k->shown("L3", 1, first.name()) == "c000");
                CHECK(k->shown("L3", 1, second.name()) == "600");
            }
            REQUIRE(k->schemata() == limited);
        }
        // And after crashes, but for the administrator's limit.
        k->set("L3:1=ffff\nMB:1=100\n");
        std::vector<std::optional<resctrl_group>> groups(3);
        for (unsigned i = 0; i < groups.size(); ++i) {
            groups[i].emplace(shares(*k, 0.15, i == 1 ? 0.1 : share), k);
            fs::rename(k->root + '/' + groups[i]->name(),
                       k->root + '/' + detail::group_name(::getpid(), own_start(), 7 + i));
        }
        for (unsigned i = 0; i < groups.size(); ++i)
            fs::rename(k->root + '/' + detail::group_name(::getpid(), own_start(), 7 + i),
                       k->root + '/' + detail::group_name(dead_pid(), 1, i));
        groups.clear();
        CHECK(resctrl_group(shares(*k, 0.5, 0), k).active());
        REQUIRE(k->schemata() == before);
    }
}

TEST_CASE("what the CPU cannot divide is said")
{
    auto const no_bandwidth = make_kernel({{"L3", {0}, 0xfff, 1}});
    CHECK(mentions(refused(no_bandwidth, shares(*no_bandwidth, 0, 0.5)), "bandwidth_share is 0.5, but the CPU cannot"));
    CHECK_THROWS_AS(resctrl_group(shares(*no_bandwidth, 0.5, 0.5, true), no_bandwidth), unavailable);
    CHECK(no_bandwidth->groups().size() == 1);
    {
        resctrl_group const group(shares(*no_bandwidth, 0.5, 0.5), no_bandwidth);
        CHECK(group.active());
        CHECK(mentions(group.report().notes, "bandwidth_share is 0.5, but the CPU cannot"));
        CHECK(group.report().host == "L3:0=3f");
    }
    CHECK(no_bandwidth->shown("L3", 0) == "fff");
    auto const no_l3 = make_kernel({{"L2", {0}, 0xfff, 1}, {"MB", {0}, 100, 10, 0, 10}});
    CHECK(mentions(refused(no_l3, shares(*no_l3, 0.5, 0)), "l3_share is 0.5, but the CPU cannot"));
    {
        resctrl_group const group(shares(*no_l3, 0.5, 0.5), no_l3);
        CHECK(mentions(group.report().notes, "l3_share is 0.5, but the CPU cannot"));
        CHECK(group.report().host == "L2:0=fff MB:0=50");
    }
    auto const neither = make_kernel({{"L2", {0}, 0xfff, 1}});
    std::string const why = refused(neither, shares(*neither, 0.5, 0.25));
    CHECK(mentions(why, "l3_share is 0.5"));
    CHECK(mentions(why, "bandwidth_share is 0.25"));
}

TEST_CASE("masks and bandwidths too small to divide are said")
{
    auto const one_way = make_kernel({{"L3", {0}, 0x1, 1}});
    CHECK(mentions(refused(one_way, shares(*one_way, 0.5, 0)), "the CPU has 1 ways of L3"));
    auto const three_ways = make_kernel({{"L3", {0}, 0x7, 2}});
    CHECK(mentions(refused(three_ways, shares(*three_ways, 0.5, 0)), "a group has at least 2"));
    auto const coarse = make_kernel({{"L3", {0}, 0xff, 1}, {"MB", {0}, 100, 60, 0, 10}});
    CHECK(mentions(refused(coarse, shares(*coarse, 0, 0.5)), "a group has at least 60"));
    auto const coarser = make_kernel({{"MB", {0}, 100, 41, 0, 40}});
    CHECK(mentions(refused(coarser, shares(*coarser, 0, 0.5)), "a group has at least 80"));
    // One domain that has nothing left is enough, and the L3 stays whole where only the bandwidth can be divided.
    auto const k = make_kernel();
    k->set("L3:1=1\n");
    CHECK(
        mentions(refused(k, shares(*k, 0.5, 0)), "the host's group has only 1 ways of L3 in domain 1 and must keep 1"));
    resctrl_group const group(shares(*k, 0.5, 0.5), k);
    CHECK(group.report().optimizer == "L3:0=fffff;1=1 L2:0=ff;3=ff MB:0=50;1=50");
    CHECK(group.report().host == "L3:0=fffff;1=1 L2:0=ff;3=ff MB:0=50;1=50");
    CHECK(mentions(group.report().notes, "in domain 1"));
}

TEST_CASE("shares that can never be right are refused")
{
    auto const k = make_kernel();
    for (double const share : {-0.1, 1.0, 1.5, std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
        CHECK_THROWS_AS(resctrl_group(shares(*k, share, 0), k), invalid_argument);
        std::string text;
        try {
            resctrl_group const group(shares(*k, 0.5, share), k);
        } catch (invalid_argument const& error) {
            text = error.what();
        }
        CHECK(mentions(text, "bandwidth_share is"));
    }
    CHECK_THROWS_AS(resctrl_group(shares(*k, 0, 0, true), k), invalid_argument);
    CHECK_THROWS_AS(resctrl_group(shares(*k, 0.5, 0), nullptr), invalid_argument);
    resctrl_group const nothing(shares(*k, 0, 0), k);
    CHECK_FALSE(nothing.active());
    CHECK(mentions(nothing.reason(), "are 0"));
    CHECK(k->groups().size() == 1);
    CHECK(k->writes.empty());
}

TEST_CASE("where resctrl is not mounted or not there, everything else goes on")
{
    auto const k = make_kernel();
    fs::create_directory(k->root + "/empty");
    for (std::string const& root : {k->root + "/empty", k->root + "/nowhere"}) {
        resctrl_options options{.l3_share = 0.5, .root = root};
        resctrl_group const group(options);
        CHECK_FALSE(group.active());
        CHECK(mentions(group.reason(), "nothing is mounted on " + root));
        CHECK(mentions(group.reason(), "mount -t resctrl"));
        CHECK(group.add_thread(::getpid()) == group.reason());
        options.required = true;
        CHECK_THROWS_AS(resctrl_group(options), unavailable);
    }
    fs::remove(k->root + "/schemata");
    fs::create_directory(k->root + "/schemata"); // cannot be read
    resctrl_group const group({.l3_share = 0.5, .root = k->root});
    CHECK(mentions(group.reason(), "cannot read " + k->root + "/schemata: Is a directory"));
}

TEST_CASE("what the kernel refuses is a reason, and all is as before")
{
    auto const k = make_kernel(intel(), 3);
    for (int const error : {EPERM, EACCES, EROFS}) {
        k->mkdir_error = error;
        CHECK(mentions(refused(k, shares(*k, 0.5, 0.5)), "run as root"));
    }
    k->mkdir_error = 0;
    k->add_group("a");
    k->add_group("b");
    std::string const why = refused(k, shares(*k, 0.5, 0.5));
    CHECK(mentions(why, "No space left"));
    CHECK(mentions(why, "Out of CLOSIDs"));
    CHECK(mentions(why, "num_closids"));
    REQUIRE(k->remove_dir(k->root + "/a") == 0);

    for (bool const host : {false, true}) {
        k->refuse = [&](std::string const& path, std::string const&) {
            return (path == k->root + "/schemata") == host ? EACCES : 0;
        };
        CHECK(mentions(refused(k, shares(*k, 0.5, 0.5)), "cannot write 'L3:0="));
        k->refuse = [&](std::string const& path, std::string const&) {
            if ((path == k->root + "/schemata") != host)
                return 0;
            set_text(fs::path(k->root) / "info" / "last_cmd_status", "Mask out of temper\n");
            return EINVAL;
        };
        CHECK(mentions(refused(k, shares(*k, 0.5, 0.5)), "Mask out of temper"));
    }
}

TEST_CASE("threads that cannot be moved are said")
{
    auto const k = make_kernel();
    resctrl_group const group(shares(*k, 0.5, 0), k);
    CHECK(mentions(group.add_thread(4711), "No such process"));
    CHECK(mentions(group.add_thread(4711), "'4711'"));
    CHECK(k->tasks(group.name()).empty());
    CHECK_THROWS_AS(group.add_thread(0), invalid_argument);
    CHECK_THROWS_AS(group.add_thread(-1), invalid_argument);
    resctrl_group const required(shares(*k, 0.2, 0, true), k);
    CHECK_THROWS_AS(required.add_thread(4711), unavailable);
    CHECK(required.add_thread(102).empty());
    CHECK(group.add_thread(102).empty()); // from one group to another
    CHECK(k->tasks(required.name()).empty());
    CHECK(k->tasks(group.name()) == "102\n");
}

#if defined(_OPENMP)
TEST_CASE("a whole team is moved, or the first thread that cannot be is said")
{
    auto const k = make_kernel();
    resctrl_group const group(shares(*k, 0.5, 0), k);
    team const threads({.threads = 2, .bind = binding::none});
    CHECK(mentions(group.add_team(threads), std::to_string(threads.members()[0].thread_id)));
    std::string ids;
    for (team_member const& member : threads.members())
        ids += std::to_string(member.thread_id) + '\n';
    set_text(fs::path(k->root) / "tasks", ids + "100\n");
    CHECK(group.add_team(threads).empty());
    CHECK(k->tasks(group.name()) == ids);
    CHECK(k->tasks() == "100\n");
}
#endif

TEST_CASE("groups of the dead are removed, and what they took goes back")
{
    auto const k = make_kernel();
    std::string const before = k->schemata();
    // The second ends between two others; and what is not ours by its whole name is nobody's business here.
    std::vector<std::string> const foreign = {"adamant", "adamant.1.2", "adamant.1.2.3.4", "adamant.01.2.3", "admin"};
    auto const big = make_kernel(intel(), 16);
    for (std::string const& name : foreign)
        big->add_group(name, "L3:0=3\n");
    for (auto const& machine : {k, big}) {
        long const pid = dead_pid();
        machine->set("L3:0=7f;1=7f\nMB:0=10;1=40\n");
        machine->add_group(detail::group_name(pid, 77, 0), "L3:0=f8000;1=f8000\nMB:0=30;1=30\n");
        machine->add_group(detail::group_name(pid, 77, 1), "L3:0=7c00;1=7c00\nMB:0=30;1=30\n");
        machine->add_group(detail::group_name(::getpid(), own_start() - 1, 0), "L3:0=380;1=380\nMB:0=30\n");
        set_text(fs::path(machine->root) / detail::group_name(pid, 77, 1) / "tasks", "500\n");
        {
            resctrl_group const group(shares(*machine, 0.25, 0.3), machine);
            REQUIRE(group.active());
            CHECK(machine->shown("L3", 0, group.name()) == "f8000");
            CHECK(machine->shown("MB", 0) == "70");
            CHECK(mentions(machine->tasks(), "500\n"));
        }
        CHECK(machine->schemata() == before);
    }
    CHECK(k->groups().size() == 1);
    CHECK(big->groups().size() == 1 + foreign.size());
}

TEST_CASE("a group of the dead that was not divided gives nothing back")
{
    auto const k = make_kernel();
    k->set("L3:0=ffff;1=ffff\nMB:0=50;1=50\n"); // the administrator's
    std::string const before = k->schemata();
    auto const crash = [&](resctrl_group& group) {
        fs::rename(k->root + '/' + group.name(), k->root + '/' + detail::group_name(dead_pid(), 1, 0));
    };
    {
        // The host's mask at the time, of which a living rank has bits now.
        resctrl_group bandwidth(shares(*k, 0, 0.2), k);
        resctrl_group const l3(shares(*k, 0.25, 0), k);
        CHECK(k->shown("L3", 0, l3.name()) == "f800");
        crash(bandwidth);
        resctrl_group const next(shares(*k, 0.1, 0), k);
        CHECK(k->shown("L3", 0, l3.name()) == "f800");
        CHECK(k->shown("L3", 0, next.name()) == "600");
        CHECK(k->shown("L3", 0) == "1ff");
        CHECK(k->shown("MB", 0) == "50");
    }
    CHECK(k->schemata() == before);
    {
        // No bandwidth of its own, where a living rank has some.
        resctrl_group l3(shares(*k, 0.25, 0), k);
        resctrl_group const bandwidth(shares(*k, 0, 0.2), k);
        crash(l3);
        resctrl_group const next(shares(*k, 0.1, 0), k);
        CHECK(k->shown("MB", 0) == "30");
    }
    CHECK(k->schemata() == before);
    // One whose process died before it had divided anything.
    k->add_group(detail::group_name(dead_pid(), 1, 0));
    CHECK(resctrl_group(shares(*k, 0.25, 0.2), k).active());
    CHECK(k->schemata() == before);
    CHECK(k->groups().size() == 1);
}

TEST_CASE("ranks of one host take their shares side by side")
{
    auto const k = make_kernel();
    std::string const before = k->schemata();
    {
        std::optional<resctrl_group> mine;
        child rank([&] {
            mine.emplace(shares(*k, 0.25, 0.3), k);
            if (!mine->active())
                ::_exit(1);
        });
        std::string const theirs = "adamant." + std::to_string(rank.pid);
        auto const exists = [&] {
            auto const all = k->groups();
            return std::any_of(all.begin(), all.end(),
                               [&](fs::path const& p) { return p.filename().string().starts_with(theirs); });
        };
        CHECK(k->shown("L3", 0) == "7fff");
        mine.emplace(shares(*k, 0.25, 0.3), k);
        CHECK(exists());
        CHECK(mine->report().optimizer == "L3:0=7c00;1=7c00 L2:0=ff;3=ff MB:0=30;1=30");
        CHECK(mine->report().host == "L3:0=3ff;1=3ff L2:0=ff;3=ff MB:0=40;1=40");
        {
            resctrl_group const third(shares(*k, 0.25, 0.3), k);
            CHECK(third.report().host == "L3:0=1f;1=1f L2:0=ff;3=ff MB:0=10;1=10");
            std::string const why = refused(k, shares(*k, 0.25, 0.3));
            CHECK(mentions(why, "has only 5 ways of L3 in domain 0 and must keep 1; the share needs 5 of 20"));
            CHECK(mentions(why, "has only 10 percent of MB in domain 0 and must keep 10; the share needs 30 of 100"));
            resctrl_group const fourth(shares(*k, 0.2, 0), k); // the host keeps one way
            CHECK(k->shown("L3", 0) == "1");
        }
        CHECK(k->shown("L3", 0) == "3ff");
        bool const zombie = GENERATE(false, true);
        if (zombie)
            rank.kill();
        else
            rank.collect();
        CHECK(exists());
        std::optional<resctrl_group> const next(std::in_place, shares(*k, 0.1, 0.1), k);
        CHECK_FALSE(exists());
        CHECK(k->shown("MB", 0) == "60");
    }
    CHECK(k->schemata() == before);
}

TEST_CASE("ranks come, go and crash in any order, and nothing is lost")
{
    test::random_bits random(1);
    long const pid = dead_pid();
    unsigned crashes = 0;
    unsigned divided = 0;
    for (int round = 0; round < 30; ++round) {
        resource l3{"L3", {0}, 0xfffff, 1};
        l3.shared = round % 2 == 0 ? 0 : 0xc0001;
        auto const k = make_kernel({l3, {"MB", {0}, 100, 10, 0, 10}}, 16);
        std::string const before = k->schemata();
        std::vector<std::optional<resctrl_group>> ranks(5);
        for (int event = 0; event < 25; ++event) {
            auto& rank = ranks[random.below(ranks.size())];
            if (rank && random.below(3) == 0) {
                fs::rename(k->root + '/' + rank->name(), k->root + '/' + detail::group_name(pid, 5, crashes++));
                rank.reset();
            } else if (rank) {
                rank.reset();
            } else {
                rank.emplace(shares(*k, 0.15, 0.1), k);
                REQUIRE(rank->active());
                if (!rank->report().notes.empty()) // its neighbors hold what others have left
                    rank.reset();
                divided += rank.has_value();
            }
            std::uint64_t all = 0;
            std::uint64_t bandwidth = 0;
            for (fs::path const& group : k->groups()) {
                std::string const name = group == k->root ? "" : group.filename().string();
                std::uint64_t const mask = k->value("L3", 0, name);
                REQUIRE((all & mask) == 0);
                REQUIRE(detail::pieces(mask) == 1);
                all |= mask;
                bandwidth += k->value("MB", 0, name);
            }
            REQUIRE(all == 0xfffff);
            REQUIRE(bandwidth == 100);
        }
        ranks.clear();
        REQUIRE(resctrl_group(shares(*k, 0.15, 0.1), k).active()); // finds those that crashed last
        REQUIRE(k->schemata() == before);
        REQUIRE(k->groups().size() == 1);
    }
    CHECK(crashes > 20);
    CHECK(divided > 300);
}

TEST_CASE("bits are not left with a group that shares the host's")
{
    auto const k = make_kernel();
    std::string const before = k->schemata();
    {
        resctrl_group const first(shares(*k, 0, 0.1), k);
        std::optional<resctrl_group> high(std::in_place, shares(*k, 0.25, 0), k);
        resctrl_group const low(shares(*k, 0.25, 0), k);
        resctrl_group const last(shares(*k, 0, 0.1), k); // found before `low`, or else `first` is
        k->set("L3:0=fffff;1=fffff\n", last.name());
        high.reset();
        CHECK(k->shown("L3", 1, low.name()) == "ffc00");
    }
    CHECK(k->schemata() == before);
}

TEST_CASE("ranks that begin and end concurrently wait for each other")
{
    auto const k = make_kernel(intel(), 16);
    std::string const before = k->schemata();
    std::vector<pid_t> children;
    for (int i = 0; i < 4; ++i) {
        pid_t const pid = ::fork();
        REQUIRE(pid >= 0);
        if (pid == 0) {
            bool good = true;
            for (int turn = 0; turn < 15; ++turn)
                good = resctrl_group(shares(*k, 0.15, 0.1), k).active() && good;
            ::_exit(good ? 0 : 1);
        }
        children.push_back(pid);
    }
    for (pid_t const pid : children) {
        int status = -1;
        CHECK(::waitpid(pid, &status, 0) == pid);
        CHECK(status == 0);
    }
    CHECK(k->schemata() == before);
    CHECK(k->groups().size() == 1);
}

TEST_CASE("the lock of the file system is waited for, but not for ever")
{
    auto const k = make_kernel();
    int const file = ::open(k->root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    REQUIRE(::flock(file, LOCK_EX) == 0);
    bool released = false;
    std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        released = true;
        ::flock(file, LOCK_UN);
    });
    {
        resctrl_group const group(shares(*k, 0.5, 0), k);
        other.join();
        CHECK(released);
        CHECK(group.active());
        CHECK(::flock(file, LOCK_EX | LOCK_NB) == 0); // held only while it divides
        ::close(file);
    }
    class locked : public kernel {
    public:
        using kernel::kernel;
        std::shared_ptr<void> lock(std::string const&, int& error) override
        {
            error = EWOULDBLOCK;
            return nullptr;
        }
    };
    auto const busy = std::make_shared<locked>(intel());
    CHECK(mentions(refused(busy, shares(*busy, 0.5, 0)), "holds the lock"));
}

TEST_CASE("a forked child leaves its parent's group alone")
{
    auto const k = make_kernel();
    resctrl_group group(shares(*k, 0.5, 0.5), k);
    std::string const host = k->schemata();
    pid_t const pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        bool const refusal = group.add_thread(100).find("parent process's") != std::string::npos;
        {
            resctrl_group const copy(std::move(group));
        }
        ::_exit(refusal ? 0 : 1);
    }
    int status = -1;
    CHECK(::waitpid(pid, &status, 0) == pid);
    CHECK(status == 0);
    CHECK(k->schemata() == host);
    CHECK(k->groups().size() == 2);
    CHECK(k->tasks(group.name()).empty());
    CHECK(group.add_thread(100).empty());
}

TEST_CASE("a group can be moved, not copied")
{
    STATIC_REQUIRE(!std::is_copy_constructible_v<resctrl_group>);
    STATIC_REQUIRE(!std::is_copy_assignable_v<resctrl_group>);
    STATIC_REQUIRE(std::is_nothrow_move_constructible_v<resctrl_group>);
    STATIC_REQUIRE(std::is_nothrow_move_assignable_v<resctrl_group>);
    auto const k = make_kernel();
    std::string const before = k->schemata();
    {
        resctrl_group first(shares(*k, 0.5, 0.5), k);
        std::string const name = first.name();
        resctrl_group second(std::move(first));
        CHECK(second.active());
        CHECK(second.name() == name);
        // NOLINTBEGIN(bugprone-use-after-move): what is left is inactive and says so
        CHECK_FALSE(first.active());
        CHECK(first.name().empty());
        CHECK(first.reason() == "moved away");
        CHECK(first.add_thread(100) == "moved away");
        CHECK(first.report().optimizer.empty());
        // NOLINTEND(bugprone-use-after-move)
        CHECK(k->groups().size() == 2);
        resctrl_group third(shares(*k, 0.25, 0.25), k);
        CHECK(k->groups().size() == 3);
        second = std::move(third); // removes what it had
        CHECK(k->groups().size() == 2);
        CHECK(second.name() != name);
        CHECK(k->shown("MB", 0) == "70");
        resctrl_group& same = second;
        second = std::move(same);
        CHECK(second.active());
        CHECK(k->groups().size() == 2);
        first = std::move(second);
        CHECK(first.active());
    }
    CHECK(k->schemata() == before);
    CHECK(k->groups().size() == 1);
}

TEST_CASE("what others have changed meanwhile stays changed")
{
    auto const k = make_kernel();
    {
        resctrl_group const group(shares(*k, 0.25, 0.3), k); // leaves 7fff and 70
        k->set("L3:1=fff\nL2:0=f\nMB:0=50;1=90\n");
        k->set("L3:0=fffff\n"); // the administrator gives the host the optimizer's bits, too
    }
    CHECK(k->schemata() == "    L3:0=fffff;1=fff\n    L2:0=f;3=ff\n    MB:0=  80;1= 100\n");
    k->set("L3:1=fffff\nL2:0=ff\nMB:0=100\n");
    {
        // Bits that nobody else has cannot come back where a group that is not ours lies between.
        k->add_group("admin", "L3:0=1;1=1\n");
        resctrl_group const group(shares(*k, 0.25, 0), k);
        k->set("L3:0=fff;1=fff\n");
        k->set("L3:0=7000;1=7000\n", "admin");
    }
    CHECK(k->shown("L3", 0) == "fff");
    CHECK(k->shown("L3", 0, "admin") == "7000");
    CHECK(k->groups().size() == 2);
}

TEST_CASE("what cannot be given back keeps nothing else from it")
{
    auto const k = make_kernel();
    {
        resctrl_group const group(shares(*k, 0.25, 0.3), k);
        k->refuse = [](std::string const&, std::string const& text) { return text.find("L3:0=") == 0 ? EINVAL : 0; };
    }
    CHECK(k->schemata() == "    L3:0=7fff;1=fffff\n    L2:0=ff;3=ff\n    MB:0= 100;1= 100\n");
    CHECK(k->groups().size() == 1);
}

TEST_CASE("exclusive groups stay exclusive")
{
    auto const k = make_kernel();
    k->set("L3:0=ffff;1=ffff\n");
    k->add_group("mine", "L3:0=f0000;1=f0000\nL2:0=f0;3=f0\n");
    set_text(fs::path(k->root) / "mine" / "mode", "exclusive\n");
    std::string const before = k->schemata();
    std::string const mine = k->schemata("mine");
    {
        resctrl_group const group(shares(*k, 0.25, 0), k);
        REQUIRE(group.active());
        CHECK(mentions(group.report().optimizer, "L3:0=f800;1=f800"));
        CHECK(text_of(fs::path(k->root) / group.name() / "mode") == "shareable\n");
    }
    CHECK(k->schemata() == before);
    CHECK(k->schemata("mine") == mine);
}

TEST_CASE("the end of a group never throws")
{
    class failing : public kernel {
    public:
        using kernel::kernel;
        int read(std::string const& path, std::string& text) override
        {
            if (fail)
                throw std::bad_alloc();
            return kernel::read(path, text);
        }
        bool fail = false;
    };
    auto const k = std::make_shared<failing>(intel());
    {
        resctrl_group const group(shares(*k, 0.25, 0.3), k);
        k->fail = true;
    }
    k->fail = false;
    CHECK(k->groups().size() == 2);
    k->refuse = [](std::string const&, std::string const&) { return EIO; };
    {
        k->refuse = nullptr;
        resctrl_group const group(shares(*k, 0.25, 0.3), k);
        REQUIRE(group.active());
        k->rmdir_error = EBUSY;
        k->refuse = [](std::string const&, std::string const&) { return EIO; };
    }
    CHECK(k->groups().size() == 3);
    // What is thrown at the beginning, too, leaves nothing behind.
    auto const other = std::make_shared<failing>(intel());
    std::string const before = other->schemata();
    other->refuse = [&](std::string const&, std::string const&) -> int { throw std::bad_alloc(); };
    CHECK_THROWS_AS(resctrl_group(shares(*other, 0.25, 0.3), other), std::bad_alloc);
    CHECK(other->schemata() == before);
    CHECK(other->groups().size() == 1);
}

TEST_CASE("a host whose schemata cannot be read keeps its bandwidth")
{
    class failing : public kernel {
    public:
        using kernel::kernel;
        int read(std::string const& path, std::string& text) override
        {
            return fails && path == root + "/schemata" ? EIO : kernel::read(path, text);
        }
        bool fails = false;
    };
    auto const k = std::make_shared<failing>(intel());
    std::string limited;
    {
        resctrl_group const group(shares(*k, 0.25, 0.3), k);
        REQUIRE(group.active());
        limited = k->schemata();
        k->fails = true;
    }
    k->fails = false;
    CHECK(k->schemata() == limited);
}

TEST_CASE("schemata are read as kernels of any age write them")
{
    detail::schemata const all =
        detail::parse_schemata("\n  \n    L3:0=00fff;2=0000f\n  SMBA:0=2048\n    L2:0=ff\nL3CODE:1=7\n"
                               "L3DATA:uninitialized\n    MB:0= 10;1=2048");
    CHECK(detail::to_text(all) == "L3:0=fff\nL3:2=f\nL3CODE:1=7\nMB:0=10\nMB:1=2048\n");
    for (char const* const text : {"", "\n\n", "L3", "L3:", "L3:\n", "L3:0", "L3:;", ":", "MB:x=1\n", "=1;"})
        CHECK(detail::parse_schemata(text).empty());
}

TEST_CASE("who is alive is known by pid and start")
{
    resctrl_files files;
    unsigned long long const start = own_start();
    auto const of = [&](long pid, unsigned long long began) {
        return detail::owner_of(files, detail::group_name(pid, began, 0));
    };
    CHECK(of(::getpid(), start) == detail::owner::alive);
    CHECK(of(::getpid(), start + 1) == detail::owner::gone);
    CHECK(of(dead_pid(), start) == detail::owner::gone);
    CHECK(detail::owner_of(files, "adamant.0.1.2") == detail::owner::foreign);
    CHECK(detail::owner_of(files, "adamant.-1.1.2") == detail::owner::foreign);
    CHECK(detail::owner_of(files, "adamant.1.1.2x") == detail::owner::foreign);
    child other([] {});
    unsigned long long const began = detail::process_start(files, other.pid, 0);
    CHECK(began >= start);
    CHECK(of(other.pid, began) == detail::owner::alive);
    other.kill();
    CHECK(of(other.pid, began) == detail::owner::gone); // though nobody has collected it

    // /proc may hide processes, and their names may hold anything.
    class proc : public resctrl_files {
    public:
        int read(std::string const&, std::string& text) override
        {
            text = stat;
            return text.empty() ? ENOENT : 0;
        }
        std::string stat;
    };
    proc hidden;
    CHECK(detail::process_start(hidden, ::getpid(), 77) == 77);
    CHECK(detail::process_start(hidden, dead_pid(), 77) == 0);
    std::string const fields = " 1 1 1 0 -1 4194560 5 0 0 0 3 4 0 0 20 0 ";
    hidden.stat = "5 (a) R 1 (b) S" + fields + "1 0 4242 99 1\n";
    CHECK(detail::process_start(hidden, 5, 77) == 4242);
    hidden.stat = "5 (a) Z" + fields + "2 0 4242 99 1\n"; // the first thread has ended, another runs
    CHECK(detail::process_start(hidden, 5, 77) == 4242);
    hidden.stat = "5 (a) Z" + fields + "1 0 4242 99 1\n";
    CHECK(detail::process_start(hidden, 5, 77) == 0);
    hidden.stat = "nonsense";
    CHECK(detail::process_start(hidden, 5, 77) == 77);
}

TEST_CASE("the system's files say what went wrong")
{
    auto const k = make_kernel();
    fs::path const folder = k->root;
    resctrl_files files;
    std::string text = "old";
    CHECK(files.read(folder / "none", text) == ENOENT);
    CHECK(text.empty());
    CHECK(files.read(folder, text) == EISDIR);
    std::string const longer(10000, 'x');
    set_text(folder / "file", longer);
    CHECK(files.read(folder / "file", text) == 0);
    CHECK(text == longer);
    CHECK(files.write(folder / "file", "ab\n") == 0);
    CHECK(files.read(folder / "file", text) == 0);
    CHECK(text == "ab\n" + std::string(9997, 'x')); // as it is, not cut
    CHECK(files.write(folder / "none", "ab\n") == ENOENT);
    CHECK_FALSE(fs::exists(folder / "none"));
    CHECK(files.write(folder, "ab\n") == EISDIR);
    CHECK(files.write("/dev/full", "ab\n") == ENOSPC);
    CHECK(files.make_dir(folder / "made") == 0);
    CHECK(files.make_dir(folder / "made") == EEXIST);
    CHECK(files.make_dir(folder / "none" / "made") == ENOENT);
    std::vector<std::string> names = {"old"};
    CHECK(files.list_dirs(folder, names) == 0);
    std::sort(names.begin(), names.end());
    CHECK(names == std::vector<std::string>{"info", "made", "mon_groups"});
    CHECK(files.list_dirs(folder / "none", names) == ENOENT);
    CHECK(names.empty());
    CHECK(files.remove_dir(folder / "info") == ENOTEMPTY);
    CHECK(files.remove_dir(folder / "made") == 0);
    CHECK(files.remove_dir(folder / "made") == ENOENT);
    int error = 0;
    {
        auto const none = files.lock(folder / "none", error);
        CHECK(error == ENOENT);
    }
    auto held = files.lock(folder, error);
    CHECK(error == 0);
    int const other = ::open(k->root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(::flock(other, LOCK_EX | LOCK_NB) != 0);
    held = nullptr;
    CHECK(::flock(other, LOCK_EX | LOCK_NB) == 0);
    ::close(other);
}
