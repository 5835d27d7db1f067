// SPDX-License-Identifier: Apache-2.0
// Memory of its own: what is got, what is noted, what is refused. Machines that tests have not are folders of files.
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <ranges>
#include <thread>
#include <utility>

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <adamant/memory.hpp>
#include <adamant/shard.hpp>
#include <adamant/detail/core/refused_call.hpp>
#include <adamant/detail/exec/system_memory.hpp>

#include "catch.hpp"
#include "child.hpp"
#include "fake_root.hpp"
#include "refusal.hpp"

using namespace adamant;
using test::fake_root;
using test::mentions;
using test::refusal;

namespace {

constexpr std::size_t kib = 1024;
constexpr std::size_t mib = 1024 * kib;
constexpr std::size_t gib = 1024 * mib;
std::size_t const page = detail::page_bytes(page_kind::normal);

// The sizes of all mappings of this process. (Not from statm: an emulator's own would count.)
std::vector<std::size_t> mappings()
{
    std::vector<std::size_t> sizes;
    std::ifstream file("/proc/self/maps");
    for (std::string line; std::getline(file, line);)
        sizes.push_back(std::stoull(line.substr(line.find('-') + 1), nullptr, 16) - std::stoull(line, nullptr, 16));
    return sizes;
}
// How many are of this size, or a little more. Those of others come and go in other sizes: malloc's are 64 MiB.
std::size_t mappings_of(std::size_t bytes)
{
    std::size_t count = 0;
    for (std::size_t const size : mappings())
        count += size >= bytes && size <= bytes + 4 * mib;
    return count;
}

bool all_zero(memory_block const& block)
{
    for (std::size_t i = 0; i < block.size(); ++i)
        if (block.data()[i] != std::byte{0})
            return false;
    return true;
}

std::size_t free_huge_pages(page_kind kind)
{
    auto const count = [&](char const* file) {
        return detail::read_number(detail::hugetlb_file("/sys/kernel/mm", kind, file)).value_or(0);
    };
    return count("free_hugepages") - std::min(count("free_hugepages"), count("resv_hugepages"));
}

constexpr page_kind all_kinds[] = {page_kind::transparent, page_kind::normal, page_kind::hugetlb_2m,
                                   page_kind::hugetlb_1g};
memory_options with(page_kind kind, bool required = false)
{
    return {.pages = kind, .pages_required = required};
}
memory_options on(node_set const& nodes, bool required = false)
{
    return {.pages = page_kind::normal, .nodes = nodes, .nodes_required = required};
}

// Whether this kernel lets this process bind and ask; emulators and some containers do not.
[[maybe_unused]] bool can_bind()
{
    static bool const can = [] {
        memory_block const probe(page);
        unsigned long node_0[64] = {1};
        int mode = 0;
        return ::syscall(SYS_mbind, probe.data(), page, MPOL_BIND, node_0, 4096ul, 0) == 0 &&
               ::syscall(SYS_get_mempolicy, &mode, node_0, 4096ul, probe.data(), MPOL_F_ADDR) == 0 && mode == MPOL_BIND;
    }();
    if (!can)
        WARN("skipped: memory cannot be bound here");
    return can;
}

// Of the mapping that begins there, as /proc/self/smaps shows them: "rd wr ... hg".
std::string flags_of(std::byte const* address)
{
    std::ifstream file("/proc/self/smaps");
    bool ours = false;
    for (std::string line; std::getline(file, line);) {
        if (line.find('-') != std::string::npos && line.find(':') > line.find('-'))
            ours = std::stoull(line, nullptr, 16) == reinterpret_cast<std::uintptr_t>(address);
        if (ours && line.starts_with("VmFlags:"))
            return line + " ";
    }
    return {};
}
bool measurable(memory_placement const& got)
{
    static bool told = false;
    if (!got.notes.empty() && !std::exchange(told, true))
        WARN("skipped: " << got.notes);
    return got.notes.empty();
}

} // namespace

TEST_CASE("memory of every kind is zero, aligned, writable to its last byte and no larger than it must be")
{
    for (page_kind const kind : all_kinds)
        for (std::size_t const bytes : test::sizes{1, page, page + 1, 2 * mib, 5 * mib + 100}) {
            CAPTURE(name(kind), bytes);
            memory_block block(bytes, with(kind));
            memory_report const& report = block.report();
            CAPTURE(report.notes);
            bool const hugetlb = detail::is_hugetlb(report.pages);
            CHECK((report.pages == kind || !report.notes.empty()));
            CHECK(block.size() == bytes);
            CHECK(report.bytes == bytes);
            CHECK(report.mapped_bytes == detail::round_up(bytes, detail::page_bytes(report.pages)));
            std::size_t const alignment = kind == page_kind::normal ? page : 2 * mib;
            CHECK(reinterpret_cast<std::uintptr_t>(block.data()) % alignment == 0);
            CHECK((hugetlb || measure_placement(block).resident_bytes == 0)); // not touched
            block.touch(0, bytes);
            CHECK(all_zero(block));
            std::memset(block.data(), 0x5a, bytes);
            CHECK(block.data()[bytes - 1] == std::byte{0x5a});
            CHECK(report.binding == memory_binding::none);
            CHECK(report.nodes.empty());
            memory_placement const got = measure_placement(block);
            if (measurable(got)) {
                CHECK(got.resident_bytes == report.mapped_bytes);
                std::size_t on_nodes = 0;
                for (auto const& [node, here] : got.node_bytes)
                    on_nodes += here;
                CHECK(on_nodes == report.mapped_bytes);
                if (kind == page_kind::normal)
                    CHECK(got.huge_bytes == 0);
                if (hugetlb)
                    CHECK(got.huge_bytes == report.mapped_bytes);
            }
        }
}

TEST_CASE("transparent huge pages are there, and counted for their own block")
{
    memory_block first(8 * mib);
    memory_block second(8 * mib);
    memory_block third(8 * mib, with(page_kind::normal));
    if (first.report().pages != page_kind::transparent) {
        WARN("skipped: " << first.report().notes);
        return;
    }
    first.touch(0, 4 * mib);
    second.touch(0, 2 * mib);
    third.touch(0, 8 * mib);
    memory_placement const got = measure_placement(first);
    if (!measurable(got))
        return;
    if (got.huge_bytes == 0) // the kernel has none at hand, or this machine's are of another size
        WARN("the kernel gave no huge pages");
    else {
        CHECK(got.resident_bytes == 4 * mib);
        CHECK(got.huge_bytes == 4 * mib);
        CHECK(measure_placement(second).huge_bytes == 2 * mib);
    }
    CHECK(measure_placement(third).huge_bytes == 0);
    CHECK(measure_placement(third).resident_bytes == 8 * mib);
}

TEST_CASE("the kernel is asked for huge pages, or for none")
{
    memory_block probe(4 * mib, with(page_kind::normal));
    if (::madvise(probe.data(), 4 * mib, MADV_HUGEPAGE) != 0 ||
        flags_of(probe.data()).find(" hg ") == std::string::npos) {
        WARN("skipped: this kernel has no huge pages, or does not say");
        return;
    }
    CHECK(mentions(flags_of(memory_block(4 * mib).data()), " hg "));
    CHECK(mentions(flags_of(memory_block(4 * mib, with(page_kind::normal)).data()), " nh "));
}

// User reports: systemd #39085.
TEST_CASE("where a process gets no huge pages, the report says so and a requirement fails", "[thp_off]")
{
    // Returns the number of the first thing that is wrong.
    auto const check = [](bool off) {
        memory_block block(4 * mib);
        bool const reported = block.report().pages == page_kind::transparent;
        block.touch(0, block.size());
        if (reported == off)
            return 1;
        if (off && measure_placement(block).huge_bytes != 0)
            return 2;
        if (off != (block.report().notes.find("switched off for this process; start it without PR_SET_THP_DISABLE") !=
                    std::string::npos))
            return 3;
        std::string const text =
            refusal<unavailable>([] { memory_block(4 * mib, with(page_kind::transparent, true)); });
        bool const refused = text.find("transparent huge pages were requested, but they are switched off for this "
                                       "process; start it without PR_SET_THP_DISABLE") != std::string::npos;
        return refused == off ? 0 : 4;
    };
    if (memory_block(4 * mib).report().pages != page_kind::transparent) {
        WARN("skipped: this machine has no huge pages");
        return;
    }
    CHECK(test::in_child([&] { return check(false); }) == 0);
    int const switched_off =
        test::in_child([&] { return ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0 ? 99 : check(true); });
    if (switched_off == 99) { // as qemu's user mode does
        WARN("skipped: this system refuses PR_SET_THP_DISABLE");
        return;
    }
    CHECK(switched_off == 0);
    // Since Linux 6.18: off, but for memory that asks for them.
    int const excepted =
        test::in_child([&] { return ::prctl(PR_SET_THP_DISABLE, 1, 2, 0, 0) != 0 ? 99 : check(false); });
    CHECK((excepted == 0 || excepted == 99));
    // The kernel may refuse to be asked; then its files say it.
    int const unasked = test::without({SYS_prctl}, EPERM, [] {
        fake_root root;
        root.put("proc/self/status", "Name:\tx\nTHP_enabled:\t0\n");
        bool const off = detail::transparent_pages_are_off(root.path());
        root.put("proc/self/status", "Name:\tx\nTHP_enabled:\t1\n");
        return off && !detail::transparent_pages_are_off(root.path()) &&
                       !detail::transparent_pages_are_off((root.path() / "none").string())
                   ? 0
                   : 1;
    });
    CHECK((unasked == 0 || unasked == -1));
}

TEST_CASE("memory smaller than a huge page is none, and cannot be required to be one")
{
    if (memory_block(4 * mib).report().pages != page_kind::transparent)
        return;
    std::size_t const huge_page = detail::transparent_bytes({});
    memory_block const small(huge_page - 1);
    CHECK(small.report().pages == page_kind::normal);
    CHECK(mentions(small.report().notes, "and the block only "));
    CHECK(memory_block(huge_page, with(page_kind::transparent, true)).report().pages == page_kind::transparent);
    CHECK(mentions(refusal<unavailable>([&] { memory_block(huge_page - 1, with(page_kind::transparent, true)); }),
                   "and the block only "));
}

TEST_CASE("memory for huge pages begins where one can, however large they are")
{
    for (std::size_t const huge_mib :
         {std::size_t{2}, std::size_t{32}, std::size_t{512}}) { // pages of 4, 16 and 64 KiB
        fake_root root;
        root.put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
            .put("sys/kernel/mm/transparent_hugepage/hpage_pmd_size", std::to_string(huge_mib * mib) + "\n");
        memory_options unchecked;
        unchecked.check_available = false; // the memory is not touched
        memory_block const some[] = {memory_block(huge_mib * mib, unchecked, root.path()),
                                     memory_block(huge_mib * mib + mib, unchecked, root.path())};
        for (memory_block const& block : some)
            CHECK(reinterpret_cast<std::uintptr_t>(block.data()) % (huge_mib * mib) == 0);
    }
}

#if !defined(ADAMANT_SANITIZED) // who has terabytes of address space
TEST_CASE("without address space for large huge pages, memory has normal ones, and says so", "[once]")
{
    std::size_t const huge_page = 512 * mib;
    fake_root root;
    root.put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
        .put("sys/kernel/mm/transparent_hugepage/hpage_pmd_size", std::to_string(huge_page) + "\n");
    CHECK(test::in_child([&] {
              std::size_t pages = 0;
              std::ifstream("/proc/self/statm") >> pages;
              std::size_t const room = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + huge_page + 64 * mib;
              rlimit const limit = {room, room};
              if (setrlimit(RLIMIT_AS, &limit) != 0)
                  return 6;
              memory_options unchecked;
              unchecked.check_available = false;
              memory_block const block(huge_page, unchecked, root.path());
              bool const is_said = block.report().notes.find("no room to align them") != std::string::npos;
              bool const is_aligned = // emulators do not limit address space
                  reinterpret_cast<std::uintptr_t>(block.data()) % huge_page == 0;
              return (block.report().pages == page_kind::normal && is_said) || is_aligned ? 5 : 7;
          }) == 5);
}
#endif

TEST_CASE("a byte before or after the memory faults")
{
    for (page_kind const kind : {page_kind::transparent, page_kind::normal}) {
        memory_block block(3 * mib, with(kind));
        std::byte const* const end = block.data() + block.report().mapped_bytes;
        // The kernel reads for us, and says so where it may not.
        int both[2];
        REQUIRE(::pipe(both) == 0);
        CHECK(::write(both[1], block.data(), 1) == 1);
        CHECK(::write(both[1], end - 1, 1) == 1);
        CHECK(::write(both[1], block.data() - 1, 1) == -1);
        CHECK(errno == EFAULT);
        CHECK(::write(both[1], end, 1) == -1);
        CHECK(errno == EFAULT);
        ::close(both[0]);
        ::close(both[1]);
    }
}

// [once]: it counts mappings, and sanitizers add mappings of any size.
TEST_CASE("empty blocks and buffers, and moves", "[once]")
{
    memory_block const none(0);
    CHECK(none.data() == nullptr);
    CHECK(none.size() == 0);
    CHECK(measure_placement(none).resident_bytes == 0);
    buffer<float> const empty(0);
    CHECK(empty.begin() == empty.end());

    STATIC_REQUIRE(!std::is_copy_constructible_v<memory_block>);
    STATIC_REQUIRE(std::is_nothrow_move_constructible_v<memory_block>);
    STATIC_REQUIRE(std::is_nothrow_move_assignable_v<buffer<float>>);
    std::size_t const before = mappings_of(80 * mib);
    {
        memory_options unchecked;
        unchecked.check_available = false;
        memory_block a(80 * mib, unchecked);
        CHECK(mappings_of(80 * mib) == before + 1);
        std::byte* const data = a.data();
        memory_block b(std::move(a));
        // NOLINTBEGIN(bugprone-use-after-move,clang-analyzer-cplusplus.Move): what is left is what is tested
        CHECK(a.data() == nullptr);
        CHECK(a.size() == 0);
        a.touch(0, 100);
        // NOLINTEND(bugprone-use-after-move,clang-analyzer-cplusplus.Move)
        CHECK(b.data() == data);
        CHECK(b.size() == 80 * mib);
        memory_block c(80 * mib + page, unchecked);
        CHECK(mappings_of(80 * mib) == before + 2);
        c = std::move(b);
        CHECK(c.data() == data);
        CHECK(c.size() == 80 * mib);
        CHECK(mappings_of(80 * mib) == before + 1);
    }
    CHECK(mappings_of(80 * mib) == before);
}

TEST_CASE("nothing but the memory and its guards stays mapped")
{
    auto const mapped = [] {
        std::vector<std::size_t> const sizes = mappings();
        return std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
    };
    for (page_kind const kind : {page_kind::transparent, page_kind::normal})
        for (std::size_t const bytes : test::sizes{40 * mib, 41 * mib + 3 * page, 2 * mib + page}) {
            mapped(); // so that what the test itself needs is there already
            std::size_t const before = mapped();
            {
                memory_block const block(bytes, with(kind));
                CHECK(mapped() - before == bytes + 2 * page);
            }
            CHECK(mapped() == before);
        }
}

TEST_CASE("sizes that no machine has are refused")
{
    std::size_t const most = std::numeric_limits<std::size_t>::max();
    for (page_kind const kind : all_kinds) {
        CHECK(mentions(refusal([&] { memory_block(most, with(kind)); }), "negative"));
        CHECK(mentions(refusal([&] { buffer<float>(most / 4 + 2, with(kind)); }), "of 4 bytes"));
    }
    CHECK(mentions(refusal<invalid_argument>([&] { memory_block(1, with(static_cast<page_kind>(9))); }), "page_kind"));
    std::size_t const wraps_to_4 = most / 4 + 2; // times four: 4
    CHECK(refusal([&] { buffer<float>{wraps_to_4}; }).find(std::to_string(wraps_to_4)) != std::string::npos);
}

TEST_CASE("sizes in errors are rounded to a tenth of a MiB or GiB", "[once]")
{
    using detail::bytes_text;
    CHECK(bytes_text(0) == "0 bytes");
    CHECK(bytes_text(1) == "1 byte");
    CHECK(bytes_text(mib - 1) == "1048575 bytes");
    CHECK(bytes_text(mib) == "1048576 bytes (1 MiB)");
    CHECK(bytes_text(mib + mib / 4) == "1310720 bytes (1.3 MiB)");
    CHECK(bytes_text(1024 * mib - 1) == "1073741823 bytes (1024 MiB)");
    CHECK(bytes_text(1024 * mib) == "1073741824 bytes (1 GiB)");
    CHECK(bytes_text(23890325504) == "23890325504 bytes (22.2 GiB)");
    CHECK(bytes_text(std::numeric_limits<std::size_t>::max()) == "18446744073709551615 bytes (17179869184 GiB)");
}

// User reports: DeepSpeed #6666, bitsandbytes #1402, torchao #959.
TEST_CASE("too much memory is refused before anything is mapped", "[host_oom]")
{
    std::size_t const much = std::size_t{1} << 44;
    std::size_t const before = mappings_of(96 * mib);
    for (page_kind const kind : all_kinds) {
        std::string const text = refusal<unavailable>([&] { memory_block(much, with(kind)); });
        CHECK(mentions(text, std::to_string(much) + " bytes (16384 GiB)"));
        CHECK(mentions(text, "only "));
        CHECK(mappings_of(much) == 0);
    }
    // mmap's own refusal.
    CHECK(mentions(refusal<unavailable>([&] {
                       memory_options anyway;
                       anyway.check_available = false;
                       memory_block(std::size_t{1} << 60, anyway);
                   }),
                   ": Cannot allocate memory"));
    CHECK(mappings_of(96 * mib) == before);

    fake_root root;
    root.put("proc/meminfo", "MemTotal:  262144 kB\nMemFree: 1 kB\nMemAvailable:  98304 kB\n");
    std::string const text = refusal<unavailable>([&] { memory_block(96 * mib + 1, {}, root.path()); });
    CHECK(mentions(text, "adamant: cannot allocate 100663297 bytes (96 MiB): "));
    CHECK(mentions(text, "only 100663296 bytes (96 MiB) are left according to MemAvailable in /proc/meminfo"));
    CHECK(mappings_of(96 * mib) == before);
    memory_block const fits(96 * mib, {}, root.path());
    CHECK(fits.size() == 96 * mib);
    memory_options unchecked;
    unchecked.check_available = false;
    memory_block const forced(97 * mib, unchecked, root.path());
    CHECK(forced.size() == 97 * mib);
    // A total is asked for before the first allocation.
    check_memory(96 * mib, {}, root.path());
    CHECK(mentions(refusal<unavailable>([&] { check_memory(3 * 64 * mib, {}, root.path()); }),
                   "201326592 bytes (192 MiB)"));
}

TEST_CASE("the least of the machine and all cgroups is what is available")
{
    fake_root root;
    CHECK(available_memory({}, root.path()).bytes == std::numeric_limits<std::size_t>::max());
    CHECK(available_memory({}, root.path()).source.empty());
    root.put("proc/meminfo", "MemTotal: 9999999 kB\nMemAvailable: 1048576 kB\nHugePages_Free: 3\n");
    auto const is = [&](std::size_t bytes, std::string const& source) {
        memory_limit const limit = available_memory({}, root.path());
        CHECK(limit.bytes == bytes);
        return mentions(limit.source, source);
    };
    CHECK(is(gib, "MemAvailable in /proc/meminfo"));

    SECTION("version 2")
    {
        root.put("proc/self/cgroup", "0::/slurm/job_7/step 0\n");
        CHECK(is(gib, "/proc/meminfo"));
        root.put("sys/fs/cgroup/slurm/job_7/step 0/memory.max", "max\n");
        root.put("sys/fs/cgroup/slurm/job_7/step 0/memory.current", "1000\n");
        CHECK(is(gib, "/proc/meminfo"));
        root.put("sys/fs/cgroup/slurm/job_7/memory.max", "5000000\n");
        CHECK(is(gib, "/proc/meminfo")); // without its usage nothing is known
        root.put("sys/fs/cgroup/slurm/job_7/memory.current", "3000000\n");
        CHECK(is(2000000, "/sys/fs/cgroup/slurm/job_7/memory.max"));
        // The file cache gives way, but there cannot be more of it than is used.
        root.put("sys/fs/cgroup/slurm/job_7/memory.stat",
                 "anon 2\ninactive_anon 9\ninactive_file 100000\nactive_file 20000\n");
        CHECK(is(2120000, "job_7/memory.max"));
        root.put("sys/fs/cgroup/slurm/job_7/memory.stat", "inactive_file 9000000\n");
        CHECK(is(5000000, "job_7/memory.max"));
        root.put("sys/fs/cgroup/slurm/job_7/step 0/memory.max", "900\n");
        CHECK(is(0, "step 0/memory.max")); // used is above the limit
        root.put("sys/fs/cgroup/slurm/job_7/step 0/memory.max", "max\n");
        root.put("sys/fs/cgroup/memory.max", "10\n").put("sys/fs/cgroup/memory.current", "3\n");
        CHECK(is(7, "/sys/fs/cgroup/memory.max")); // the top, which in a container may be all there is
    }
    SECTION("version 1")
    {
        root.put("proc/self/cgroup", "12:cpuset:/other\n9:hugetlb,memory:/docker/abc\n1:name=systemd:/x\n0::/\n");
        root.put("sys/fs/cgroup/memory/other/memory.limit_in_bytes", "5\n");
        root.put("sys/fs/cgroup/memory/other/memory.usage_in_bytes", "1\n");
        CHECK(is(gib, "/proc/meminfo"));
        root.put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        root.put("sys/fs/cgroup/memory/memory.usage_in_bytes", "4000000\n");
        CHECK(is(gib, "/proc/meminfo"));
        root.put("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "7000000\n");
        root.put("sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "4000000\n");
        CHECK(is(3000000, "/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes"));
        root.put("sys/fs/cgroup/memory/docker/abc/memory.stat",
                 "inactive_file 1\ntotal_inactive_file 100\ntotal_active_file 20\n");
        CHECK(is(3000120, "abc/memory.limit_in_bytes"));
        root.put("sys/fs/cgroup/memory/memory.limit_in_bytes", "4000500\n");
        CHECK(is(500, "memory/memory.limit_in_bytes"));
    }
    SECTION("version 1: the limits of ancestors that a container does not see, and those of swap")
    {
        root.put("proc/self/cgroup", "9:memory:/docker/abc\n");
        std::string const folder = "sys/fs/cgroup/memory/docker/abc/memory.";
        root.put(folder + "limit_in_bytes", "9223372036854771712\n").put(folder + "usage_in_bytes", "4000\n");
        root.put(folder + "stat", "inactive_file 7\nhierarchical_memory_limit 7000\ntotal_inactive_file 100\n");
        CHECK(is(3100, "abc/memory.stat (hierarchical_memory_limit)"));
        // What is swapped out counts on memory and swap together.
        root.put(folder + "memsw.limit_in_bytes", "8000\n").put(folder + "memsw.usage_in_bytes", "5000\n");
        CHECK(is(3100, "hierarchical_memory_limit"));
        root.put(folder + "memsw.usage_in_bytes", "6000\n");
        CHECK(is(2100, "abc/memory.memsw.limit_in_bytes"));
        root.put(folder + "stat", "hierarchical_memory_limit 7000\nhierarchical_memsw_limit 6500\n");
        CHECK(is(500, "abc/memory.stat (hierarchical_memsw_limit)"));
        root.put(folder + "memsw.limit_in_bytes", "6000\n");
        CHECK(is(0, "abc/memory.memsw.limit_in_bytes"));
    }
    SECTION("version 2: swap is no memory")
    {
        root.put("proc/self/cgroup", "0::/pod\n");
        std::string const folder = "sys/fs/cgroup/pod/memory.";
        root.put(folder + "max", "7000\n").put(folder + "current", "4000\n");
        for (char const* const swap : {"0\n", "max\n", "9000000\n"}) {
            root.put(folder + "swap.max", swap).put(folder + "swap.current", "100\n");
            CHECK(is(3000, "pod/memory.max"));
        }
    }
    SECTION("cgroup namespaces: a path outside of the mount stands for the mount itself")
    {
        root.put("other/memory.max", "10\n").put("other/memory.current", "10\n"); // outside of sys/fs/cgroup
        root.put("sys/fs/cgroup/other/memory.max", "20\n").put("sys/fs/cgroup/other/memory.current", "20\n");
        root.put("sys/fs/cgroup/memory.max", "5000\n").put("sys/fs/cgroup/memory.current", "3000\n");
        for (char const* const path : {"/../../../other", "/..", "/../other", "/../..", "/", "/other/../../../other"}) {
            INFO(path);
            root.put("proc/self/cgroup", std::string("0::") + path + "\n");
            std::filesystem::remove(root.path() / "proc/self/mountinfo");
            CHECK(is(2000, "/sys/fs/cgroup/memory.max"));
            root.put("proc/self/mountinfo",
                     "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
            CHECK(is(2000, "/sys/fs/cgroup/memory.max"));
        }
        // The mount shows what lies above the namespace.
        root.put("proc/self/cgroup", "0::/../sibling\n");
        root.put("proc/self/mountinfo", "30 23 0:26 /.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        root.put("sys/fs/cgroup/sibling/memory.max", "500\n").put("sys/fs/cgroup/sibling/memory.current", "300\n");
        CHECK(is(200, "/sys/fs/cgroup/sibling/memory.max"));
    }
    SECTION("hierarchies are read where they are mounted")
    {
        root.put("sys/fs/cgroup/memory.max", "10\n").put("sys/fs/cgroup/memory.current", "10\n");
        root.put("proc/self/cgroup", "4:memory:/docker/abc\n3:cpu,cpuacct:/\n0::/docker/abc\n");
        std::string const other = "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw,cgroup,memory\n"
                                  "33 22 0:30 / /mnt/cpu rw - cgroup cgroup rw,cpu,cpuacct\n";
        root.put("proc/self/mountinfo", other);
        CHECK(is(gib, "/proc/meminfo")); // nowhere
        // Version 1, of the container's own cgroup alone, in a folder with a space.
        root.put("proc/self/mountinfo",
                 other + "34 22 0:31 /docker/abc /mnt/my\\040memory rw,relatime master:3 - cgroup cgroup rw,memory\n");
        root.put("mnt/my memory/memory.limit_in_bytes", "7000\n").put("mnt/my memory/memory.usage_in_bytes", "4000\n");
        root.put("mnt/my memory/docker/abc/memory.limit_in_bytes", "1\n");
        root.put("mnt/my memory/docker/abc/memory.usage_in_bytes", "1\n");
        CHECK(is(3000, "/mnt/my memory/memory.limit_in_bytes"));
        // Both versions together.
        root.put("proc/self/mountinfo", other + "34 22 0:31 / /mnt/v1 rw - cgroup cgroup rw,memory\n"
                                                "35 22 0:32 / /mnt/v2 rw - cgroup2 cgroup2 rw\n");
        root.put("mnt/v1/docker/memory.limit_in_bytes", "7000\n").put("mnt/v1/docker/memory.usage_in_bytes", "4000\n");
        CHECK(is(3000, "/mnt/v1/docker/memory.limit_in_bytes"));
        root.put("mnt/v2/docker/abc/memory.max", "7000\n").put("mnt/v2/docker/abc/memory.current", "6000\n");
        CHECK(is(1000, "/mnt/v2/docker/abc/memory.max"));
        // Mounted twice: where the ancestors are seen too.
        std::string const part = "36 22 0:32 /docker /mnt/part rw - cgroup2 cgroup2 rw\n";
        std::string const whole = "35 22 0:32 / /mnt/v2 rw - cgroup2 cgroup2 rw\n";
        std::string const elsewhere = "37 22 0:32 /other /mnt/other rw - cgroup2 cgroup2 rw\n";
        root.put("mnt/v2/docker/memory.max", "600\n").put("mnt/v2/docker/memory.current", "400\n");
        root.put("mnt/other/memory.max", "1\n").put("mnt/other/memory.current", "1\n");
        for (std::string const& mounts : {part + whole + elsewhere, elsewhere + whole + part}) {
            root.put("proc/self/mountinfo", mounts);
            CHECK(is(200, "/mnt/v2/docker/memory.max"));
        }
        for (char const* const text :
             {"35", "35 22 0:32", "35 22 0:32 / /mnt/v2 rw", "35 22 0:32 / /mnt/v2 rw - cgroup2", "a - b",
              "- - - - - - - - - -", "\\", "35 22 0:32 \\04 \\9 rw - cgroup2 x rw"}) {
            root.put("proc/self/mountinfo", text);
            (void)available_memory({}, root.path()); // no read past an end
        }
    }
    SECTION("nodes")
    {
        std::string const zero = "Node 0 MemTotal: 900 kB\nNode 0 MemFree:  100 kB\nNode 0 Active(file): 20 kB\n"
                                 "Node 0 Inactive(file): 3 kB\nNode 0 FilePages: 500 kB\nNode 0 SReclaimable: 4 kB\n";
        root.put("sys/devices/system/node/node0/meminfo", zero);
        root.put("sys/devices/system/node/node3/meminfo", "Node 3 MemFree: 1000 kB\n");
        CHECK(available_memory({0}, root.path()).bytes == 127 * kib);
        CHECK(available_memory({0, 3}, root.path()).bytes == 1127 * kib);
        CHECK(mentions(available_memory({0, 3}, root.path()).source, "NUMA nodes 0,3"));
        CHECK(available_memory({0, 1}, root.path()).bytes == gib); // what node 1 has is not known
        CHECK(mentions(refusal<unavailable>([&] { check_memory(127 * kib + 1, {0}, root.path()); }), "NUMA nodes 0"));
    }
    SECTION("files that make no sense")
    {
        for (char const* const text : {"", "MemAvailable:", "MemAvailable: x kB", "MemAvailable: -5 kB",
                                       "MemAvailable: 99999999999999999999999 kB"}) {
            root.put("proc/meminfo", text);
            CHECK(available_memory({}, root.path()).source.empty());
        }
        for (char const* const text : {"", ":", "::", "0:", "0::", "0::relative/path", "0::/../../up"}) {
            root.put("proc/self/cgroup", text);
            CHECK(available_memory({}, root.path()).source.empty());
        }
    }
}

TEST_CASE("this machine has memory available")
{
    memory_limit const limit = available_memory();
    CHECK(limit.bytes > mib);
    CHECK(limit.bytes < std::size_t{1} << 50);
    CHECK(!limit.source.empty());
}

TEST_CASE("transparent pages where the kernel has switched them off are normal ones, by its own word")
{
    std::string const folder = "sys/kernel/mm/transparent_hugepage/";
    fake_root root;
    auto const pages = [&] { return memory_block(page, {}, root.path()).report().pages; };
    page_kind const here = pages(); // of a kernel that does not say
    root.put(folder + "enabled", "always madvise [never]\n");
    memory_block const block(page, {}, root.path());
    CHECK(block.report().pages == page_kind::normal);
    CHECK(mentions(block.report().notes, "transparent_hugepage/enabled is never; as root, write madvise to it"));
    CHECK(mentions(refusal<unavailable>([&] { memory_block(page, with(page_kind::transparent, true), root.path()); }),
                   "is never"));
    CHECK(memory_block(page, with(page_kind::normal, true), root.path()).report().notes.empty());
    // Since Linux 6.8 each size has a switch of its own.
    root.put(folder + "hpage_pmd_size", "33554432\n");
    root.put(folder + "hugepages-2048kB/enabled", "always inherit [madvise] never\n");
    CHECK(pages() == page_kind::normal);
    root.put(folder + "hugepages-32768kB/enabled", "always [inherit] madvise never\n");
    CHECK(pages() == page_kind::normal);
    root.put(folder + "hugepages-32768kB/enabled", "always inherit [madvise] never\n");
    CHECK(pages() == here);
    root.put(folder + "enabled", "[always] madvise never\n");
    root.put(folder + "hugepages-32768kB/enabled", "always inherit madvise [never]\n");
    CHECK(pages() == page_kind::normal);
    root.put(folder + "hugepages-32768kB/enabled", "always [inherit] madvise never\n");
    CHECK(pages() == here);
}

TEST_CASE("hugetlb pages are taken where the pool has them, else it is said how to fill it")
{
    for (page_kind const kind : {page_kind::hugetlb_2m, page_kind::hugetlb_1g}) {
        std::size_t const huge = detail::page_bytes(kind);
        std::size_t const there = free_huge_pages(kind);
        CAPTURE(name(kind), there);
        if (there == 0)
            WARN("not taken here, for the pool is empty: " << name(kind));
        else {
            std::size_t const some = std::min<std::size_t>(there, 2); // a pool may be as large as the machine
            memory_block block(huge * some - 5, with(kind, true));
            CHECK(block.report().pages == kind);
            CHECK(block.report().notes.empty());
            CHECK(block.report().mapped_bytes == huge * some);
            CHECK(free_huge_pages(kind) == there - some); // set aside before they are touched
            block.touch(0, block.size());
            CHECK(measure_placement(block).huge_bytes == huge * some);
            CHECK(all_zero(block));
        }
        CHECK(free_huge_pages(kind) == there);
        // One page more than there is.
        std::size_t const more = huge * there + 1;
        fake_root root; // the true pool is asked by mmap; these are the numbers for the text
        std::string const pool = "sys/kernel/mm/hugepages/hugepages-" + std::to_string(huge / kib) + "kB/";
        root.put(pool + "nr_hugepages", "10\n").put(pool + "free_hugepages", "1\n").put(pool + "resv_hugepages", "1\n");
        std::size_t const before = mappings_of(more);
        std::string const text = refusal<unavailable>([&] { memory_block(more, with(kind, true), root.path()); });
        CHECK(mentions(text, std::to_string(there + 1) + (there == 0 ? " page of kind " : " pages of kind ") +
                                 std::string(name(kind)) + (there == 0 ? " was requested" : " were requested")));
        CHECK(mentions(text, "but 0 are free (mmap: "));
        CHECK(mentions(text, "write " + std::to_string(10 + there + 1) + " to"));
        CHECK(mentions(text, pool + "nr_hugepages"));
        CHECK(mappings_of(more) == before);
        memory_block const fallback(more, with(kind), root.path());
        CHECK(!detail::is_hugetlb(fallback.report().pages));
        CHECK(mentions(fallback.report().notes, "but 0 are free"));
        fake_root const without;
        CHECK(mentions(refusal<unavailable>([&] { memory_block(more, with(kind, true), without.path()); }),
                       "the system has no "));
    }
}

TEST_CASE("where huge pages are refused, the advice follows the error")
{
    fake_root root; // whose pools have many
    for (char const* const pool : {"hugepages-2048kB", "hugepages-1048576kB"})
        root.put(std::string("sys/kernel/mm/hugepages/") + pool + "/free_hugepages", "1000\n");
    struct refused {
        unsigned error;
        char const* advice;
    };
    for (page_kind const kind : {page_kind::hugetlb_2m, page_kind::hugetlb_1g, page_kind::transparent}) {
        bool const hugetlb = detail::is_hugetlb(kind);
        long const call = hugetlb ? SYS_mmap : SYS_madvise;
        std::vector<refused> all = {{EPERM, "seccomp"},
                                    {ENOSYS, "the kernel does not have this call"},
                                    {ENOMEM, hugetlb ? "ulimit -v" : "vm.max_map_count"}};
        if (!hugetlb)
            all.push_back({EINVAL, "CONFIG_TRANSPARENT_HUGEPAGE"});
        for (refused const& r : all) {
            CAPTURE(name(kind), r.error, r.advice);
            int const status = test::without({call}, r.error, [&] {
                std::string const text =
                    refusal<unavailable>([&] { memory_block(3 * mib, with(kind, true), root.path()); });
                for (char const* const other : {"seccomp", "the kernel does not have this call", "ulimit -v",
                                                "vm.max_map_count", "CONFIG_TRANSPARENT_HUGEPAGE", "as root"})
                    if (std::string_view(other) != r.advice && text.find(other) != std::string::npos &&
                        !(r.error == ENOSYS && std::string_view(other) == "seccomp") && // which may hide it
                        !(hugetlb && std::string_view(other) == "vm.max_map_count")) {
                        std::fprintf(stderr, "%s\n", text.c_str());
                        return 1;
                    }
                return text.find(r.advice) != std::string::npos ? 0 : 2;
            });
            CHECK((status == 0 || status == -1));
        }
    }
}

TEST_CASE("hugetlb pages over a cgroup's limit, which the first touch would die of, are not taken")
{
    for (bool const v2 : {true, false}) {
        fake_root root;
        root.put("proc/self/cgroup", v2 ? "0::/pod\n" : "3:hugetlb:/pod\n");
        std::string const limit =
            v2 ? "sys/fs/cgroup/pod/hugetlb.2MB.max" : "sys/fs/cgroup/hugetlb/pod/hugetlb.2MB.limit_in_bytes";
        root.put(limit, "2097152\n");
        root.put(v2 ? "sys/fs/cgroup/pod/hugetlb.2MB.current" : "sys/fs/cgroup/hugetlb/pod/hugetlb.2MB.usage_in_bytes",
                 "1\n");
        std::string const text =
            refusal<unavailable>([&] { memory_block(mib, with(page_kind::hugetlb_2m, true), root.path()); });
        CHECK(mentions(text, limit + " leaves 2097151 bytes"));
        memory_block const fallback(mib, with(page_kind::hugetlb_2m), root.path());
        CHECK(!detail::is_hugetlb(fallback.report().pages));
        CHECK(mentions(fallback.report().notes, limit));
        // The limit of another size means nothing.
        CHECK(!mentions(
            refusal<unavailable>([&] { memory_block(mib, with(page_kind::hugetlb_1g, true), root.path()); }), limit));
    }
}

TEST_CASE("nodes that there are not are named beside those that there are")
{
    node_set const none = {4000};
    std::string const text = refusal<unavailable>([&] { memory_block(page, on(none, true)); });
    CHECK(mentions(text, "NUMA nodes 4000 were requested, but this "));
    memory_block const block(page, on(none));
    CHECK(block.report().binding == memory_binding::none);
    CHECK(block.report().nodes.empty());
    CHECK("adamant: " + block.report().notes == text);
    memory_options nowhere = with(page_kind::normal);
    nowhere.nodes_required = true; // of which there are none
    CHECK(memory_block(page, nowhere).report().notes.empty());
#if !defined(ADAMANT_NO_HWLOC)
    CHECK(mentions(text, "this machine has nodes 0"));
    if (!can_bind())
        return;
    // Those that there are, are used.
    memory_block const partly(page, on({0, 4000}));
    CHECK(partly.report().binding == memory_binding::bound);
    CHECK(partly.report().nodes == node_set{0});
    CHECK(mentions(partly.report().notes, "4000"));
#endif
}

#if !defined(ADAMANT_NO_HWLOC)
TEST_CASE("memory is bound to its nodes, and the kernel says so too")
{
    if (!can_bind())
        return;
    node_set const nodes = {0};
    for (page_kind const kind : {page_kind::transparent, page_kind::normal}) {
        memory_options options = on(nodes, true);
        options.pages = kind;
        memory_block block(5 * mib + 1, options);
        CHECK(block.report().binding == memory_binding::bound);
        CHECK(block.report().nodes == nodes);
        CHECK((block.report().notes.empty() || block.report().pages != kind));
        for (std::byte const* const at : {block.data(), block.data() + block.size() - 1}) {
            int mode = -1;
            unsigned long mask[64] = {};
            REQUIRE(::syscall(SYS_get_mempolicy, &mode, mask, 4096ul, at, MPOL_F_ADDR) == 0);
            CHECK(mode == MPOL_BIND);
            CHECK(mask[0] == 1);
        }
        block.touch(0, block.size());
        memory_placement const got = measure_placement(block);
        if (measurable(got))
            CHECK(got.node_bytes == std::map<unsigned, std::size_t>{{0, block.report().mapped_bytes}});
    }
    memory_block const unbound(page);
    CHECK(detail::binding_of(unbound.data()).value().first == memory_binding::none);
    CHECK(!detail::binding_of(nullptr)); // nothing is mapped there
}

TEST_CASE("memory is not bound to nodes with less free than it needs: the OOM killer would come")
{
    if (!can_bind())
        return;
    fake_root root;
    root.put("sys/devices/system/node/node0/meminfo", "Node 0 MemFree: 1024 kB\n");
    std::size_t const before = mappings_of(80 * mib);
    CHECK(mentions(refusal<unavailable>([&] { memory_block(80 * mib, on({0}, true), root.path()); }),
                   "meminfo of the NUMA nodes 0"));
    CHECK(mappings_of(80 * mib) == before);
    memory_block const block(80 * mib, on({0}), root.path());
    CHECK(block.report().binding == memory_binding::preferred);
    CHECK(block.report().nodes == node_set{0});
    CHECK(mentions(block.report().notes, "NUMA nodes 0 are only preferred, because less than requested is free there"));
    CHECK(detail::binding_of(block.data()).value().first == memory_binding::preferred);
    memory_options unchecked = on({0}, true);
    unchecked.check_available = false;
    CHECK(memory_block(64 * mib, unchecked, root.path()).report().binding == memory_binding::bound);
}

TEST_CASE("hugetlb pages are bound only where that is required and the nodes have all that are promised")
{
    if (!can_bind())
        return;
    if (free_huge_pages(page_kind::hugetlb_2m) == 0) {
        WARN("skipped: the pool of huge pages is empty");
        return;
    }
    memory_options options = on({0});
    options.pages = page_kind::hugetlb_2m;
    options.pages_required = true;
    memory_block const preferred(mib, options);
    CHECK(preferred.report().binding == memory_binding::preferred);
    CHECK(mentions(preferred.report().notes, "SIGBUS"));
    options.nodes_required = true;
    fake_root root;
    std::string const pool = "hugepages/hugepages-2048kB/";
    root.put("sys/kernel/mm/" + pool + "resv_hugepages", "3\n");
    root.put("sys/devices/system/node/node0/" + pool + "free_hugepages", "2\n");
    std::size_t const free = free_huge_pages(page_kind::hugetlb_2m);
    CHECK(mentions(refusal<unavailable>([&] { memory_block(mib, options, root.path()); }),
                   "2 free huge pages, but 3 are reserved"));
    CHECK(free_huge_pages(page_kind::hugetlb_2m) == free);
    root.put("sys/devices/system/node/node0/" + pool + "free_hugepages", "3\n");
    if (free == 0) // the block above has the only one
        return;
    memory_block const bound(mib, options, root.path());
    CHECK(bound.report().binding == memory_binding::bound);
    CHECK(bound.report().notes.empty());
}

// User reports: DeepSpeed #4971, #6565, sglang #28401, vllm #45438.
TEST_CASE("where binding is refused, as in containers, memory is there all the same, or it is said why not",
          "[no_numactl]")
{
    // Returns the number of the first thing that is wrong.
    auto const check = [](std::string const& call) {
        memory_block block(3 * mib, on({0}));
        std::string const& notes = block.report().notes;
        if (block.report().binding != memory_binding::none || !block.report().nodes.empty())
            return 1;
        if (notes.find("binding to the NUMA nodes 0 failed: " + call) == std::string::npos ||
            notes.find("preferring the NUMA nodes 0 failed: " + call) == std::string::npos ||
            notes.find("Operation not permitted") == std::string::npos)
            return 2;
        block.touch(0, block.size());
        if (!all_zero(block))
            return 3;
        std::string const text = refusal<unavailable>([] { memory_block(3 * mib, on({0}, true)); });
        if (text.find("binding to the NUMA nodes 0 failed: " + call) == std::string::npos)
            return 4;
        memory_placement const got = measure_placement(block);
        if (got.notes.find("move_pages: Operation not permitted; a seccomp filter forbids it") == std::string::npos ||
            !got.node_bytes.empty() || got.resident_bytes == 0)
            return 5;
        if (notes.find("Operation not permitted; a seccomp filter forbids it; in a container, add CAP_SYS_NICE") ==
            std::string::npos)
            return 6;
        return 0;
    };
    int const all = test::without({SYS_mbind, SYS_set_mempolicy, SYS_get_mempolicy, SYS_move_pages}, EPERM,
                                  [&] { return check("mbind: "); });
    CHECK((all == 0 || all == -1));
    if (all == -1 || !can_bind())
        return;
    // Bound, perhaps, but not known to be.
    CHECK(test::without({SYS_get_mempolicy, SYS_move_pages}, EPERM, [&] { return check("get_mempolicy, "); }) == 0);
    // The kernel of another machine has none of them.
    CHECK(test::without({SYS_get_mempolicy, SYS_move_pages}, ENOSYS, [] {
              memory_block const block(3 * mib, on({0}));
              std::string const notes = block.report().notes + measure_placement(block).notes;
              return notes.find("confirm it: " + detail::refused_text("", ENOSYS, "").substr(2) +
                                "; the kernel does not have this call") != std::string::npos &&
                             notes.find("move_pages: " + detail::refused_text("", ENOSYS, "").substr(2) +
                                        "; the kernel does not have this call") != std::string::npos &&
                             notes.find("CAP_SYS_NICE") == std::string::npos
                         ? 0
                         : 1;
          }) == 0);
    // What an mbind that says yes and does nothing has done, only the kernel knows.
    CHECK(test::without({SYS_mbind}, 0, [] {
              memory_block const block(3 * mib, on({0}));
              return block.report().binding == memory_binding::none && block.report().nodes.empty() &&
                             block.report().notes.find("the kernel's policy is none") != std::string::npos
                         ? 0
                         : 1;
          }) == 0);
}
#endif

TEST_CASE("threads touch their parts without a byte outside of them")
{
    std::size_t const n = 3 * mib / sizeof(float) + 77;
    buffer<float> values(n);
    values.touch(0, 0);
    values.touch(n, n + 100);
    values.touch(5, 3);
    CHECK(measure_placement(values.block()).resident_bytes == 0);
    std::size_t const first = 100;
    std::size_t const last = n - 1000;
    // Beside what is touched, data may be there already.
    for (std::size_t i = 0; i < n; ++i)
        if (i < first || i >= last)
            values[i] = 1;
    std::vector<std::thread> team;
    for (std::size_t t = 0; t < 5; ++t)
        team.emplace_back(
            [&, t] { values.touch(first + (last - first) * t / 5, first + (last - first) * (t + 1) / 5); });
    for (std::thread& thread : team)
        thread.join();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < n; ++i)
        wrong += values[i] != (i < first || i >= last ? 1.0f : 0.0f);
    CHECK(wrong == 0);
    memory_placement const got = measure_placement(values.block());
    if (measurable(got))
        CHECK(got.resident_bytes == values.block().report().mapped_bytes);
}

TEST_CASE("touching takes the pages of the range and no others")
{
    buffer<std::byte> bytes(64 * page, with(page_kind::normal));
    bytes.touch(10 * page - 1, 12 * page + 1); // 9, 10, 11, 12
    bytes.touch(20 * page, 21 * page);
    bytes.touch(63 * page + 5, 64 * page + 100 * page); // the end is clipped
    memory_placement const got = measure_placement(bytes.block());
    if (measurable(got))
        CHECK(got.resident_bytes == 6 * page);
    // It writes where a read would do: reading maps a page that is not the memory's own.
    buffer<std::byte> read(64 * page, with(page_kind::normal));
    for (std::size_t i = 0; i < read.size(); i += page)
        CHECK(read[i] == std::byte{0});
    memory_placement const own = measure_placement(read.block());
    if (measurable(own))
        CHECK(own.node_bytes.empty());
}

TEST_CASE("above a size the nodes are estimated from some of the pages")
{
    std::size_t const large = 2 * memory_placement::sampled_bytes + 3 * page;
    if (available_memory().bytes < 2 * large) {
        WARN("skipped: there is too little memory");
        return;
    }
    memory_block block(large);
    block.touch(large / 2, large);
    memory_placement const got = measure_placement(block);
    if (!measurable(got))
        return;
    std::size_t on_nodes = 0;
    for (auto const& [node, bytes] : got.node_bytes)
        on_nodes += bytes;
    CHECK(on_nodes <= got.resident_bytes + 3 * page);
    CHECK(on_nodes + 3 * page >= got.resident_bytes);
}

TEST_CASE("buffers are arrays of a shard")
{
    STATIC_REQUIRE(std::ranges::contiguous_range<buffer<float>>);
    STATIC_REQUIRE(std::ranges::contiguous_range<buffer<float> const>);
    STATIC_REQUIRE(std::ranges::sized_range<buffer<bfloat16>>);
    std::size_t const n = 1000;
    buffer<float> param(n), exp_avg(n), exp_avg_sq(n);
    buffer<bfloat16> grad(n), weight_out(n);
    shard const whole(param, std::as_const(grad), exp_avg, exp_avg_sq, weight_out);
    STATIC_REQUIRE(std::is_same_v<decltype(whole), shard<float, bfloat16, float, float, bfloat16> const>);
    CHECK(whole.size() == n);
    CHECK(whole.pointers().param == param.block().data());
    CHECK(whole.pointers().exp_avg == exp_avg.block().data());
    param[n - 1] = 2.5f;
    CHECK(param.end()[-1] == 2.5f);
    CHECK(std::as_const(param)[n - 1] == 2.5f);
    CHECK(param.data()[0] == 0.0f);
    buffer<float> const three(3);
    CHECK(mentions(refusal([&] { shard(param, three, exp_avg, exp_avg_sq); }), "grad has 3"));
}
