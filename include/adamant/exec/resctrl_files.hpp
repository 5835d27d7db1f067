// SPDX-License-Identifier: Apache-2.0
// The files of Linux's resctrl, their text, and whose group is whose. The inside of resctrl.hpp.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <adamant/core/error.hpp>

ADAMANT_BEGIN_NAMESPACE

// The file system underneath. Derive from it to test, or to reach a resctrl that another process has to write. What
// returns an int returns 0 or an errno. May be called from several threads at once.
class resctrl_files {
public:
    resctrl_files() = default;
    resctrl_files(resctrl_files const&) = delete;
    resctrl_files& operator=(resctrl_files const&) = delete;
    virtual ~resctrl_files() = default;

    // The whole of a file.
    [[nodiscard]] virtual int read(std::string const& path, std::string& text);
    // In one write(2), which the kernel takes or refuses as a whole. The file exists.
    [[nodiscard]] virtual int write(std::string const& path, std::string const& text);
    [[nodiscard]] virtual int make_dir(std::string const& path);
    [[nodiscard]] virtual int remove_dir(std::string const& path);
    // The names of the folders in a folder; more names do no harm.
    [[nodiscard]] virtual int list_dirs(std::string const& path, std::vector<std::string>& names);
    // The lock that the kernel's documentation wants tools to hold while they look and then write: flock on the root,
    // until the result is destroyed. Tries for five seconds, then EWOULDBLOCK.
    [[nodiscard]] virtual std::shared_ptr<void> lock(std::string const& root, int& error);

private:
    static int close_with(int file, int error) noexcept;
};

namespace detail {

// One thing that is divided, of a schemata file: a resource (L3, L3CODE, L3DATA, MB), a domain (cache id) of it, and
// the mask or the bandwidth there.
struct schema {
    std::string resource;
    unsigned long id = 0;
    std::uint64_t value = 0;
    [[nodiscard]] bool is_bandwidth() const;
};
using schemata = std::vector<schema>;

schemata parse_schemata(std::string const& text);

std::string to_text(schemata const& all);

// The same resource and domain of another group, or `otherwise`.
std::uint64_t value_in(schemata const& all, schema const& like, std::uint64_t otherwise);

// In how many pieces the bits of a mask lie. Many processors take masks of one piece only.
constexpr int pieces(std::uint64_t mask) noexcept
{
    return std::popcount(mask & ~(mask << 1));
}

// `count` adjacent bits from one end of a mask that has more; 0 where neither end has so many in one piece. The end is
// the one with fewer of the bits that devices use too (`shared`), and the upper one where they are equal.
constexpr std::uint64_t end_of_mask(std::uint64_t mask, std::uint64_t count, std::uint64_t shared) noexcept
{
    std::uint64_t const run = (std::uint64_t{1} << count) - 1;
    std::uint64_t const low = run << std::countr_zero(mask);
    std::uint64_t const high = run << (static_cast<std::uint64_t>(std::bit_width(mask)) - count);
    bool const low_fits = (low & ~mask) == 0;
    if ((high & ~mask) != 0)
        return low_fits ? low : 0;
    return low_fits && std::popcount(low & shared) < std::popcount(high & shared) ? low : high;
}

// When a process began, in clock ticks since boot: pids are used again, the pair is not. 0 where it is gone, or only a
// zombie is left that nobody has collected; `otherwise` where that cannot be known.
unsigned long long process_start(resctrl_files& files, long pid, unsigned long long otherwise);

std::string group_name(long pid, unsigned long long start, unsigned n);

// Whose group this is, by its name.
enum class owner { foreign, alive, gone };
owner owner_of(resctrl_files& files, std::string const& group);

} // namespace detail

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/exec/resctrl_files.ipp>
#endif
