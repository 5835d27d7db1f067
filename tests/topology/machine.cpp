// SPDX-License-Identifier: Apache-2.0
// What hwloc's eyes see: machines from files and descriptions, held against what lstopo says of them, and this machine.
#if !defined(ADAMANT_NO_HWLOC)
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <adamant/cores.hpp>
#include <adamant/detail/topology/hwloc.hpp>

#include "catch.hpp"
#include "child.hpp"
#include "fake_root.hpp"
#include "refusal.hpp"

using namespace adamant;
using test::mentions;
using test::refusal;

namespace {

std::string file(char const* name)
{
    return std::string(ADAMANT_TOPOLOGIES) + "/" + name;
}

// What is true of every machine that was read.
void check_whole(machine const& m)
{
    INFO(m.source);
    REQUIRE(!m.cores.empty());
    REQUIRE(!m.packages.empty());
    pu_set seen;
    for (topology::core const& c : m.cores) {
        CHECK(!c.pus.empty());
        CHECK_FALSE(c.pus.intersects(seen));
        seen |= c.pus;
        REQUIRE(c.package < m.packages.size());
        CHECK(m.packages[c.package].pus.includes(c.pus));
        if (topology::numa_node const* const memory = m.memory_of(c))
            CHECK(memory->pus.includes(c.pus));
        else
            CHECK(std::none_of(m.nodes.begin(), m.nodes.end(),
                               [&](auto const& n) { return n.pus.includes(c.pus) && m.holds_state(n); }));
    }
    CHECK(m.pus() == seen);
    CHECK(seen.includes(m.allowed));
    CHECK_FALSE(m.offline.intersects(seen));
    for (topology::cache const& c : m.caches)
        CHECK(seen.includes(c.pus));
    for (topology::gpu const& g : m.gpus)
        CHECK(seen.includes(g.pus));
}

using texts = std::vector<std::string>;

// "packages 0-3 4-7"
texts packages(machine const& m)
{
    texts all;
    for (topology::package const& p : m.packages)
        all.push_back(to_list(p.pus));
    return all;
}
// "os index: kind MiB of PUs"
texts nodes(machine const& m)
{
    texts all;
    for (topology::numa_node const& n : m.nodes)
        all.push_back(std::to_string(n.os_index) + ": " + std::string(name(n.kind)) + " " +
                      std::to_string(n.bytes >> 20) + " of " + to_list(n.pus));
    return all;
}
// The PUs of each speed, the slowest first.
texts speeds(machine const& m)
{
    std::vector<pu_set> all;
    for (topology::core const& c : m.cores) {
        all.resize(std::max<std::size_t>(all.size(), c.efficiency + 1));
        all[c.efficiency] |= c.pus;
    }
    texts shown;
    for (pu_set const& pus : all)
        shown.push_back(to_list(pus));
    return shown;
}
std::size_t caches(machine const& m, unsigned level)
{
    std::size_t count = 0;
    for (topology::cache const& c : m.caches)
        count += c.level == level;
    return count;
}
std::string cores(machine const& m)
{
    std::string text;
    for (topology::core const& c : m.cores)
        text += (text.empty() ? "" : " ") + to_list(c.pus);
    return text;
}

// A file that is gone at the end of the scope.
class scratch_file {
public:
    explicit scratch_file(std::string const& content)
    {
        path_ = (std::filesystem::temp_directory_path() / "adamant-machine-XXXXXX").string();
        int const descriptor = mkstemp(path_.data());
        REQUIRE(descriptor >= 0);
        close(descriptor);
        std::ofstream(path_) << content;
    }
    scratch_file(scratch_file const&) = delete;
    scratch_file& operator=(scratch_file const&) = delete;
    ~scratch_file() { std::remove(path_.c_str()); }
    [[nodiscard]] std::string const& path() const { return path_; }

private:
    std::string path_;
};

// Two packages of two cores and a NUMA node each, with devices. PU 3 and node 1 are not for us.
std::string machine_with_devices(std::string const& first_devices, std::string const& second_devices)
{
    auto const sets = [](char const* pus, char const* memory) {
        std::string const c = std::string("=\"") + pus + "\" ";
        std::string const n = std::string("=\"") + memory + "\" ";
        return "cpuset" + c + "complete_cpuset" + c + "nodeset" + n + "complete_nodeset" + n;
    };
    int id = 1;
    auto const gp = [&] { return " gp_index=\"" + std::to_string(++id) + "\""; };
    std::string text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
                       "<topology version=\"2.0\">\n<object type=\"Machine\" os_index=\"0\" " +
                       sets("0xf", "0x3") + "allowed_cpuset=\"0x7\" allowed_nodeset=\"0x1\" gp_index=\"1\">\n";
    for (int p = 0; p < 2; ++p) {
        std::string const memory = p == 0 ? "0x1" : "0x2";
        text += "<object type=\"Package\" os_index=\"" + std::to_string(p) + "\" " +
                sets(p == 0 ? "0x3" : "0xc", memory.c_str()) + gp() + ">\n<object type=\"NUMANode\" os_index=\"" +
                std::to_string(p) + "\" " + sets(p == 0 ? "0x3" : "0xc", memory.c_str()) + gp() +
                " local_memory=\"1048576\"/>\n";
        for (int c = 0; c < 2; ++c) {
            char const* const masks[] = {"0x1", "0x2", "0x4", "0x8"};
            std::string const own = sets(masks[2 * p + c], memory.c_str());
            text += "<object type=\"Core\" os_index=\"" + std::to_string(c) + "\" " + own + gp() +
                    "><object type=\"PU\" os_index=\"" + std::to_string(2 * p + c) + "\" " + own + gp() +
                    "/></object>\n";
        }
        std::string const& devices = p == 0 ? first_devices : second_devices;
        if (!devices.empty())
            text += "<object type=\"Bridge\"" + gp() + " bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"000" +
                    std::to_string(p) + ":[00-ff]\">\n" + devices + "</object>\n";
        text += "</object>\n";
    }
    return text + "</object>\n</topology>\n";
}
std::string with(std::string text, std::string const& before, std::string const& after)
{
    std::size_t at = text.find(before);
    REQUIRE(at != std::string::npos);
    for (; at != std::string::npos; at = text.find(before, at + after.size()))
        text.replace(at, before.size(), after);
    return text;
}
std::string device(int id, char const* address, char const* kind, char const* inside = "")
{
    return "<object type=\"PCIDev\" gp_index=\"" + std::to_string(id) + "\" pci_busid=\"" + address + "\" pci_type=\"" +
           kind + " [10de:2330] [10de:16c1] a1\" pci_link_speed=\"0.000000\">" + inside + "</object>\n";
}

pu_set affinity()
{
    cpu_set_t sets[8] = {};
    pu_set pus;
    if (sched_getaffinity(0, sizeof sets, sets) == 0)
        for (unsigned i = 0; i < 8 * sizeof sets; ++i)
            if (CPU_ISSET_S(i, sizeof sets, sets))
                pus.insert(i);
    return pus;
}

// What a new process sees that begins with these variables and on these PUs (all, where none are given): this program,
// started anew with the test case at the end of this file.
struct child_report {
    std::string allowed;  // by live_machine()
    std::string affinity; // by the kernel
    std::string error;    // what live_machine() threw
};
child_report ask_child(std::vector<std::string> const& variables, pu_set const& confined_to = {})
{
    std::string self(4096, '\0');
    auto const length = readlink("/proc/self/exe", self.data(), self.size());
    REQUIRE(length > 0);
    self.resize(static_cast<std::size_t>(length));
    texts environment = variables;
    environment.push_back("ADAMANT_TEST_CHILD=1");
    for (char** each = environ; *each != nullptr; ++each) {
        std::string const variable = *each; // no thread binding that the tests were started with
        if (!variable.starts_with("OMP_") && !variable.starts_with("GOMP_") && !variable.starts_with("KMP_") &&
            !variable.starts_with("HWLOC_"))
            environment.push_back(variable);
    }
    std::vector<char*> pointers;
    for (std::string& variable : environment)
        pointers.push_back(variable.data());
    pointers.push_back(nullptr);
    char test[] = "a child process says what it sees";
    char* arguments[] = {self.data(), test, nullptr};
    cpu_set_t sets[8] = {};
    for (unsigned const pu : confined_to.members())
        CPU_SET_S(pu, sizeof sets, sets);

    int ends[2];
    REQUIRE(pipe(ends) == 0);
    pid_t const child = fork();
    if (child == 0) {
        if (!confined_to.empty() && sched_setaffinity(0, sizeof sets, sets) != 0)
            _exit(125);
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        execve(self.c_str(), arguments, pointers.data());
        _exit(126);
    }
    REQUIRE(child > 0);
    close(ends[1]);
    std::string text;
    char buffer[4096];
    for (ssize_t got = 0; (got = read(ends[0], buffer, sizeof buffer)) > 0;)
        text.append(buffer, static_cast<std::size_t>(got));
    close(ends[0]);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    INFO(text);
    REQUIRE(WIFEXITED(status));
    REQUIRE(WEXITSTATUS(status) == 0);
    auto const after = [&](std::string const& key) {
        std::size_t const begin = text.find("child's " + key + ": ");
        REQUIRE(begin != std::string::npos);
        std::size_t const value = begin + key.size() + 10;
        return text.substr(value, text.find('\n', value) - value);
    };
    return {after("allowed"), after("affinity"), after("error")};
}

} // namespace

TEST_CASE("every machine that is read makes sense")
{
    std::size_t files = 0;
    for (auto const& entry : std::filesystem::directory_iterator(ADAMANT_TOPOLOGIES))
        if (entry.path().extension() == ".xml") {
            check_whole(machine_from_xml(entry.path().string()));
            ++files;
        }
    CHECK(files == 7);
    for (char const* const description : {"pack:4 [numa] core:72 pu:1", "pack:2 group:4 [numa] core:16 pu:2", "pu:3"})
        check_whole(machine_from_synthetic(description));
    check_whole(live_machine());
}

TEST_CASE("nvidia-dgx-gb10: five kinds of cores")
{
    machine const m = machine_from_xml(file("nvidia-dgx-gb10.xml"));
    CHECK(m.source == file("nvidia-dgx-gb10.xml"));
    CHECK(m.cores.size() == 20);
    CHECK(speeds(m) == texts{"0-4", "10-14", "5-9", "15-18", "19"});
    CHECK(m.hybrid());
    CHECK(packages(m) == texts{"0-19"});
    CHECK(nodes(m) == texts{"0: DRAM 122566 of 0-19"});
    CHECK(caches(m, 2) == 20);
    CHECK(caches(m, 3) == 2);
    CHECK(m.caches.back().bytes == std::size_t{16} << 20);
    CHECK(to_list(m.caches.back().pus) == "10-19");
    CHECK(m.offline.empty());
    CHECK(m.gpus.empty());
}

TEST_CASE("128arm: many cores")
{
    machine const m = machine_from_xml(file("128arm-2pa2n8cluster4co.xml"));
    CHECK(m.cores.size() == 128);
    CHECK_FALSE(m.hybrid());
    CHECK(packages(m) == texts{"0-63", "64-127"});
    CHECK(nodes(m) == texts{"0: DRAM 128645 of 0-31", "1: DRAM 129021 of 32-63", "2: DRAM 129021 of 64-95",
                            "3: DRAM 127990 of 96-127"});
    CHECK(m.cores[95].package == 1);
    CHECK(m.cores[95].node == 2);
    CHECK(caches(m, 2) == 128);
    CHECK(caches(m, 3) == 4);
}

TEST_CASE("20em64t-hybrid: cores of two PUs and of one")
{
    machine const m = machine_from_xml(file("20em64t-hybrid-1p6c2t-2ca4co1t.xml"));
    CHECK(cores(m) == "0-1 2-3 4-5 6-7 8-9 10-11 12 13 14 15 16 17 18 19");
    CHECK(speeds(m) == texts{"12-19", "0-11"});
    CHECK(caches(m, 2) == 8);
    CHECK(caches(m, 3) == 1);
    CHECK(to_list(m.caches[6].pus) == "12-15"); // four slow cores share one
    CHECK(m.caches[6].bytes == 2048u << 10);
    CHECK(m.caches[6].level == 2);
    CHECK(to_list(m.allowed) == "0-19");
}

TEST_CASE("32em64t: siblings far apart")
{
    machine const m = machine_from_xml(file("32em64t-2n8c2t-pci-noio.xml"));
    CHECK(m.cores.size() == 16);
    for (unsigned c = 0; c < 16; ++c)
        CHECK(to_list(m.cores[c].pus) == std::to_string(c) + "," + std::to_string(c + 16));
    CHECK(packages(m) == texts{"0-7,16-23", "8-15,24-31"});
    CHECK(nodes(m) == texts{"0: DRAM 32739 of 0-7,16-23", "1: DRAM 32768 of 8-15,24-31"});
    CHECK(caches(m, 2) == 16);
    CHECK(caches(m, 3) == 2);
    CHECK(m.gpus.empty());
}

TEST_CASE("48amd64-sparse: nodes with holes in their numbers")
{
    machine const m = machine_from_xml(file("48amd64-4pa2n6c-sparse.xml"));
    CHECK(m.cores.size() == 48);
    CHECK(packages(m) == texts{"0-11", "12-23", "24-35", "36-47"});
    CHECK(nodes(m) == texts{"0: DRAM 8189 of 0-5", "1: DRAM 16384 of 6-11", "2: DRAM 8192 of 12-17",
                            "33: DRAM 16384 of 18-23", "34: DRAM 8192 of 24-29", "45: DRAM 16384 of 30-35",
                            "72: DRAM 8192 of 36-41", "73: DRAM 16384 of 42-47"});
    CHECK(m.cores[47].node == 7);
}

TEST_CASE("16em64t-offlines: PUs that are switched off")
{
    machine const m = machine_from_xml(file("16em64t-4s2c2t-offlines.xml"));
    CHECK(cores(m) == "0 4,12 1 6 3 15");
    CHECK(packages(m) == texts{"0,4,12", "1", "6", "3,15"});
    CHECK(to_list(m.offline) == "2,5,7-11,13-14");
    CHECK(to_list(m.allowed) == "0-1,3-4,6,12,15");
    CHECK(nodes(m) == texts{"0: DRAM 0 of 0-1,3-4,6,12,15"});
}

TEST_CASE("fakeheteromemtiers: memory of several kinds")
{
    machine const m = machine_from_xml(file("fakeheteromemtiers.xml"));
    CHECK(nodes(m) == texts{"0: DRAM 2934 of 0-1", "8: NVM 384 of 0-1", "1: DRAM 978 of 2-3", "4: HBM 512 of 2-3",
                            "6: NVM 384 of 2-3", "2: HBM 512 of 4-5", "9: NVM 384 of 4-5"});
    std::string memory;
    for (topology::core const& c : m.cores)
        memory += std::to_string(m.nodes[c.node].os_index) + " ";
    CHECK(memory == "0 0 1 1 2 2 ");
}

TEST_CASE("machines from descriptions")
{
    machine const xeon = machine_from_synthetic("pack:2 [numa] core:96 pu:2");
    CHECK(xeon.source == "pack:2 [numa] core:96 pu:2");
    CHECK(xeon.cores.size() == 192);
    CHECK(packages(xeon) == texts{"0-191", "192-383"});
    CHECK(xeon.nodes.size() == 2);
    CHECK(to_list(xeon.cores[100].pus) == "200-201");
    CHECK(to_list(xeon.allowed) == "0-383");
    CHECK(machine_from_synthetic("pack:2 group:4 [numa] core:16 pu:2").nodes.size() == 8);
    machine const poor = machine_from_synthetic("pu:3"); // neither packages nor cores
    CHECK(cores(poor) == "0 1 2");
    CHECK(packages(poor) == texts{"0-2"});
    CHECK(read_machine("pack:1 [numa] core:72 pu:1").cores.size() == 72);
    CHECK(read_machine(file("fakeheteromemtiers.xml")).cores.size() == 6);
}

TEST_CASE("GPUs are accelerators and, where there is none, display adapters")
{
    std::string const h100 =
        device(101, "0000:9a:00.0", "0302",
               "<info name=\"PCIVendor\" value=\"Maker\"/><info name=\"PCIDevice\" value=\"H100\"/>");
    std::string const management = device(102, "0000:02:00.0", "0300");
    std::string const network = device(103, "0000:03:00.0", "0200");
    std::string const npu = device(104, "0001:0A:01.3", "1200");
    std::string const gaming = device(105, "0001:01:00.0", "0300",
                                      "<object type=\"OSDev\" gp_index=\"106\" name=\"cuda0\" osdev_type=\"5\"/>");
    auto const gpus = [](std::string const& first, std::string const& second) {
        scratch_file const xml(machine_with_devices(first, second));
        machine const m = machine_from_xml(xml.path());
        check_whole(m);
        CHECK(to_list(m.allowed) == "0-2");
        CHECK(m.nodes[0].allowed);
        CHECK_FALSE(m.nodes[1].allowed);
        texts all;
        for (topology::gpu const& g : m.gpus)
            all.push_back(g.pci + " " + g.name + " near " + to_list(g.pus));
        return all;
    };
    CHECK(gpus("", "") == texts{});
    CHECK(gpus(h100 + management + network, npu) ==
          texts{"0000:9a:00.0 Maker H100 10de:2330 near 0-1", "0001:0a:01.3 10de:2330 near 2-3"});
    CHECK(gpus(management + network, "") == texts{"0000:02:00.0 10de:2330 near 0-1"});
    CHECK(gpus(management, gaming) == texts{"0001:01:00.0 10de:2330 near 2-3"});
}

// User reports: numactl #165.
TEST_CASE("cores whose node has no DIMM have no memory of their own", "[node_without_memory]")
{
    std::ifstream whole(file("48amd64-4pa2n6c-sparse.xml"));
    std::string text(std::istreambuf_iterator<char>(whole), {});
    std::size_t const node = text.find("<object type=\"NUMANode\" os_index=\"1\"");
    REQUIRE(node != std::string::npos);
    std::size_t const bytes = text.find("local_memory=\"", node) + 14;
    text.replace(bytes, text.find('"', bytes) - bytes, "0");
    scratch_file const xml(text);
    machine const m = machine_from_xml(xml.path());
    check_whole(m);
    CHECK(nodes(m)[1] == "1: DRAM 0 of 6-11");
    for (topology::core const& c : m.cores)
        CHECK((m.memory_of(c) == nullptr) == (c.pus.front() >= 6 && c.pus.front() < 12));
}

TEST_CASE("cores whose memory is offline have none of their own")
{
    std::string text = machine_with_devices("", "");
    std::size_t const node = text.find("<object type=\"NUMANode\" os_index=\"1\"");
    REQUIRE(node != std::string::npos);
    text.erase(node, text.find('\n', node) - node);
    scratch_file const xml(
        with(with(text, "nodeset=\"0x2\"", "nodeset=\"0x0\""), "nodeset=\"0x3\"", "nodeset=\"0x1\""));
    machine const m = machine_from_xml(xml.path());
    check_whole(m);
    CHECK(nodes(m) == texts{"0: DRAM 1 of 0-1"});
    CHECK(cores(m) == "0 1 2 3");
    for (topology::core const& c : m.cores)
        CHECK((m.memory_of(c) == nullptr) == (c.package == 1));
    CHECK(m.cores[3].node == no_node);
}

TEST_CASE("files that give one number twice are refused, and so are numbers that are too large")
{
    std::string const good = machine_with_devices("", "");
    auto const said = [](std::string const& text) {
        scratch_file const xml(text);
        std::string const why = refusal<invalid_argument>([&] { (void)machine_from_xml(xml.path()); });
        CHECK(mentions(why, xml.path() + " has a "));
        return why;
    };
    std::string const pu = "type=\"PU\" os_index=\"3\"";
    CHECK(mentions(said(with(good, pu, "type=\"PU\" os_index=\"2\"")), "PU with the number 2 and another one"));
    CHECK(mentions(said(with(good, pu, "type=\"PU\" os_index=\"5\"")), "PU with the number 5 but the cpuset \"3\""));
    CHECK(mentions(said(with(good, pu, "type=\"PU\" os_index=\"70000\"")),
                   {"PU with the number 70000,", "largest that is understood is 65535"}));
    std::string const node = "type=\"NUMANode\" os_index=\"1\"";
    CHECK(mentions(said(with(good, node, "type=\"NUMANode\" os_index=\"0\"")),
                   "NUMA node with the number 0 and another"));
    CHECK(mentions(said(with(good, node, "type=\"NUMANode\" os_index=\"65536\"")), "NUMA node with the number 65536,"));
}

TEST_CASE("a file of a later version than hwloc reads is refused by its version")
{
    std::string const next = std::to_string((hwloc_get_api_version() >> 16) + 1) + ".0";
    scratch_file const xml(with(machine_with_devices("", ""), "version=\"2.0\"", "version=\"" + next + "\""));
    CHECK(mentions(refusal<unavailable>([&] { (void)machine_from_xml(xml.path()); }),
                   {"\"" + xml.path() + "\" is XML of version " + next, "lstopo --of v"}));
}

TEST_CASE("files and descriptions that hold no machine are refused")
{
    std::string const missing = file("no-such-machine.xml");
    for (auto read : {machine_from_xml, read_machine}) {
        std::string const text = refusal<unavailable>([&] { (void)read(missing); });
        CHECK(mentions(text, "cannot open \"" + missing + "\": No such file"));
    }
    CHECK(mentions(refusal<invalid_argument>([] { (void)machine_from_xml(file("README.md")); }), "is not a topology"));
    CHECK(mentions(refusal<invalid_argument>([] { (void)read_machine(ADAMANT_TOPOLOGIES); }), "is not a topology"));
    for (char const* const content : {"", "<?xml version=\"1.0\"?>\n<topology version=\"2.0\">\n</topology>\n",
                                      "<?xml version=\"1.0\"?>\n<html></html>\n"}) {
        scratch_file const xml(content);
        CHECK(mentions(refusal<invalid_argument>([&] { (void)machine_from_xml(xml.path()); }), xml.path()));
    }
    {
        std::ifstream whole(file("nvidia-dgx-gb10.xml"));
        std::string half(12000, ' ');
        whole.read(half.data(), 12000);
        scratch_file const xml(half);
        CHECK(mentions(refusal<invalid_argument>([&] { (void)machine_from_xml(xml.path()); }), xml.path()));
    }
    for (char const* const wrong : {"", "hello", "pack:2 core", "pack:0 core:2 pu:1", "core:2 pack:2 pu:1 numa"}) {
        INFO(wrong);
        CHECK(mentions(refusal<invalid_argument>([&] { (void)machine_from_synthetic(wrong); }),
                       "is not a synthetic topology"));
        if (*wrong != '\0')
            CHECK(mentions(refusal<invalid_argument>([&] { (void)read_machine(wrong); }), std::string("\"") + wrong));
    }
}

namespace {

// A text with its attributes changed, so that hwloc is not given what it never wrote.
struct mutant {
    std::string what;
    std::string text;
};
// Of each kind of tag in a file, each attribute dropped, emptied and set to what makes no sense; and the sets of
// objects dropped two and four together. But for those that were seen in another file.
std::vector<mutant> mutants_of(std::string const& text, std::set<std::string>& seen)
{
    std::vector<mutant> all;
    auto const attribute = [](std::string const& tag, std::string const& name) {
        std::size_t const begin = tag.find(" " + name + "=\"");
        return begin == std::string::npos ? std::pair(begin, begin)
                                          : std::pair(begin, tag.find('"', begin + name.size() + 3) + 1);
    };
    for (std::size_t begin = text.find('<'); begin != std::string::npos; begin = text.find('<', begin + 1)) {
        std::size_t const end = text.find('>', begin);
        std::string const tag = text.substr(begin, end - begin);
        auto const [type, type_end] = attribute(tag, "type");
        std::string const kind =
            tag.substr(0, tag.find(' ')) + (type == type_end ? "" : tag.substr(type, type_end - type));
        auto const add = [&](std::string const& what, std::string const& changed) {
            if (changed != tag && seen.insert(kind + what).second)
                all.push_back({kind + " " + what, text.substr(0, begin) + changed + text.substr(end)});
        };
        for (std::size_t at = tag.find("=\""); at != std::string::npos; at = tag.find("=\"", tag.find('"', at + 2))) {
            std::string const name = tag.substr(tag.rfind(' ', at) + 1, at - tag.rfind(' ', at) - 1);
            auto const [from, to] = attribute(tag, name);
            if (from == to)
                continue;
            for (std::string const& value : {std::string(), " " + name + "=\"\"", " " + name + "=\"zz\"",
                                             " " + name + "=\"-1\"", " " + name + "=\"99999999999999999999\""})
                add(name + " ->" + value, tag.substr(0, from) + value + tag.substr(to));
        }
        for (texts const& names : {texts{"cpuset", "complete_cpuset"}, texts{"nodeset", "complete_nodeset"},
                                   texts{"complete_cpuset", "complete_nodeset"}, texts{"cpuset", "nodeset"},
                                   texts{"cpuset", "complete_cpuset", "nodeset", "complete_nodeset"}}) {
            std::string changed = tag;
            std::string what = "without";
            for (std::string const& name : names)
                if (auto const [from, to] = attribute(changed, name); from != to) {
                    changed.erase(from, to - from);
                    what += " " + name;
                }
            add(what, changed);
        }
    }
    return all;
}

} // namespace

TEST_CASE("files that say nonsense are read or refused, and end no process")
{
    texts contents;
    for (auto const& entry : std::filesystem::directory_iterator(ADAMANT_TOPOLOGIES))
        if (entry.path().extension() == ".xml") {
            std::ifstream in(entry.path());
            contents.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
        }
    std::sort(contents.begin(), contents.end(), [](auto const& a, auto const& b) { return a.size() < b.size(); });
    std::set<std::string> seen;
    for (std::string const& text : contents) {
        std::vector<mutant> const all = mutants_of(text, seen);
        scratch_file const xml(text);
        // A child for all of them, and after a crash another one for the rest.
        auto* const at = static_cast<std::size_t*>(
            mmap(nullptr, sizeof(std::size_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
        REQUIRE(at != MAP_FAILED);
        for (*at = 0; *at < all.size(); ++*at) {
            pid_t const child = fork();
            if (child == 0) {
                if (freopen("/dev/null", "w", stderr) == nullptr) // where hwloc's remarks go
                    _exit(1);
                for (; *at < all.size(); ++*at) {
                    alarm(20);
                    std::ofstream(xml.path()) << all[*at].text;
                    try {
                        (void)machine_from_xml(xml.path());
                    } catch (error const&) {
                    }
                }
                _exit(0);
            }
            REQUIRE(child > 0);
            int status = 0;
            REQUIRE(waitpid(child, &status, 0) == child);
            INFO((*at < all.size() ? all[*at].what : "the end"));
            CHECK(WIFEXITED(status));
            CHECK(status == 0);
        }
        munmap(at, sizeof(std::size_t));
    }
    CHECK(seen.size() > 500); // or they are not made
}

TEST_CASE("objects without a set that hwloc crashes without are refused by their line")
{
    std::string const good = machine_with_devices("", "");
    for (auto const& [set, counterpart] :
         {std::pair(std::string("cpuset"), "complete_cpuset"), std::pair(std::string("nodeset"), "complete_nodeset")}) {
        std::string text = good;
        std::size_t const core = text.find("type=\"Core\"");
        std::size_t const begin = text.find(std::string(" ") + counterpart, core);
        text.erase(begin, text.find('"', text.find('"', begin) + 1) + 1 - begin);
        auto const line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(core), '\n');
        scratch_file const xml(text);
        CHECK(mentions(refusal<invalid_argument>([&] { (void)machine_from_xml(xml.path()); }),
                       "cannot read \"" + xml.path() + "\": line " + std::to_string(line) + ": the Core has a " + set +
                           " and no " + counterpart));
        CHECK(mentions(ask_child({"HWLOC_XMLFILE=" + xml.path(), "HWLOC_THISSYSTEM=1"}).error,
                       "(HWLOC_XMLFILE): line " + std::to_string(line)));
        // What is a comment, or quoted in the other way, is no reason.
        scratch_file const commented(
            with(good, "</topology>", "<!-- <object type=\"Core\" " + set + "=\"0x1\"/> --></topology>"));
        CHECK(machine_from_xml(commented.path()).cores.size() == 4);
    }
    CHECK(detail::problem_of_xml("<object type='Core' cpuset='0x1' complete_cpuset = '0x1' nodeset=\"'\" "
                                 "complete_nodeset=\">\">") == "");
    for (char const* const cut : {"<", "<object", "<object ", "<object type", "<object type=", "<object type=\"",
                                  "<object type=\"Core", "<object cpuset=\"0x1\"", "<!--", "<!-- <object cpuset=\"\">"})
        (void)detail::problem_of_xml(cut); // no read past an end
}

TEST_CASE("a machine whose folder of NUMA nodes is empty is refused, where hwloc would abort")
{
    test::fake_root root;
    std::filesystem::create_directories(root.path() / "sys/devices/system/node");
    root.put("sys/devices/system/cpu/online", "0-1\n").put("sys/devices/system/cpu/possible", "0-1\n");
    std::vector<std::string> const variables = {"HWLOC_FSROOT=" + root.path().string(), "HWLOC_THISSYSTEM=1"};
    std::string const said = "system/node names no NUMA node. Mount all of sysfs at /sys";
    CHECK(mentions(ask_child(variables).error, said));
    root.put("sys/devices/system/node/has_cpu", "\n").put("sys/devices/system/node/nodes", "\n");
    CHECK(mentions(ask_child(variables).error, said));
    root.put("sys/devices/system/node/node0/cpumap", "3\n");
    CHECK(ask_child(variables).error.find(said) == std::string::npos);
    CHECK(mentions(ask_child({variables[0]}).error, "another machine than this one"));
}

TEST_CASE("where the kernel does not say which PUs a process may use, that is an error and no endless loop")
{
    for (unsigned const why : {unsigned{EPERM}, unsigned{ENOSYS}, unsigned{EINVAL}}) {
        int const status = test::without({SYS_sched_getaffinity}, why, [&] {
            alarm(10); // less than in_child() waits
            std::string const text = refusal<unavailable>([] { (void)live_machine(); });
            bool const said = text.find("sched_getaffinity: " + std::string(std::strerror(static_cast<int>(why)))) !=
                              std::string::npos;
            // Nor does a thread that is bound wait for ever to hear where.
            return said && detail::bind_this_thread(pu_set{0}).empty() ? 0 : 1;
        });
        CHECK((status == 0 || status == -1));
    }
}

TEST_CASE("this machine may use what the kernel lets it")
{
    machine const m = live_machine();
    check_whole(m);
    CHECK(m.source == "this machine");
    CHECK(m.pus().includes(affinity()));
    child_report const free = ask_child({});
    CHECK(free.error.empty());
    CHECK(free.allowed == free.affinity);
    CHECK(!free.allowed.empty());
}

// User reports: DeepSpeed #7478, sglang #39552.
TEST_CASE("a process that was confined may use no more than that", "[slurm_mask]")
{
    pu_set const all = parse_index_set(ask_child({}).affinity);
    for (unsigned const pu : {all.front(), all.members().back()}) {
        child_report const confined = ask_child({}, {pu});
        CHECK(confined.error.empty());
        CHECK(confined.affinity == std::to_string(pu));
        CHECK(confined.allowed == std::to_string(pu));
    }
    if (all.size() < 2)
        WARN("skipped: with a single PU nothing can be confined");
}

// User reports: prime-rl #3248, Megatron-LM fork #188, DeepSpeed #4687.
TEST_CASE("what OpenMP's variables bind is not taken for what the process may use", "[omp_env]")
{
    pu_set const all = parse_index_set(ask_child({}).affinity);
    std::string const last = std::to_string(all.members().back());
    for (std::vector<std::string> const& variables :
         {std::vector<std::string>{"OMP_PROC_BIND=true", "OMP_PLACES=threads"},
          std::vector<std::string>{"OMP_PROC_BIND=close"}, std::vector<std::string>{"GOMP_CPU_AFFINITY=" + last}}) {
        INFO(variables[0]);
        child_report const bound = ask_child(variables);
        CHECK(bound.error.empty());
        CHECK(bound.allowed == to_list(all));
        if (!variables[0].starts_with("GOMP")) // GCC's runtime obeys that one outside the mask too
            CHECK(ask_child(variables, {all.front()}).allowed == std::to_string(all.front()));
    }
}

TEST_CASE("another machine in this one's place is refused")
{
    CHECK(mentions(ask_child({"HWLOC_SYNTHETIC=pack:2 core:2 pu:1"}).error, "unset HWLOC_XMLFILE, HWLOC_SYNTHETIC"));
    CHECK(mentions(ask_child({"HWLOC_XMLFILE=" + file("fakeheteromemtiers.xml")}).error,
                   "another machine than this one"));
}

TEST_CASE("a thread is bound where it was told, or nowhere")
{
    pu_set const all = live_machine().allowed;
    unsigned const last = all.members().back();
    pu_set bound, asked, nowhere;
    std::thread([&] {
        bound = detail::bind_this_thread({last});
        asked = affinity();
        nowhere = detail::bind_this_thread({index_set::max_index});
    }).join();
    CHECK(to_list(bound) == std::to_string(last));
    CHECK(asked == bound);
    CHECK(nowhere.empty());
}

// Not a test: what ask_child() starts.
TEST_CASE("a child process says what it sees", "[.child]")
{
    if (std::getenv("ADAMANT_TEST_CHILD") == nullptr)
        return;
    std::string allowed, error;
    std::string const before = to_list(affinity());
    try {
        allowed = to_list(live_machine().allowed);
    } catch (unavailable const& e) {
        error = e.what();
    }
    std::printf("\nchild's allowed: %s\nchild's affinity: %s\nchild's error: %s\n", allowed.c_str(), before.c_str(),
                error.c_str());
    std::fflush(stdout);
}
#endif
