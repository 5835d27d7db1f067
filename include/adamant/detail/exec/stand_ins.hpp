// SPDX-License-Identifier: Apache-2.0
// Decides whether a thread that runs a request should work in place of a member of the team.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <vector>

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <adamant/team.hpp>
#include <adamant/detail/exec/probe_threads.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// PUs of a team's members, in a form that is looked up within a request.
class stand_ins {
public:
    static constexpr unsigned no_member = ~0u;

    [[gnu::noinline]] explicit stand_ins(std::vector<team_member> const& members)
        : size_(static_cast<unsigned>(members.size()))
    {
        for (unsigned m = 0; m < size_; ++m) {
            if (members[m].bound_to.size() != 1) { // unbound
                member_on_.clear();
                return;
            }
            unsigned const pu = members[m].bound_to.front();
            if (pu >= most_pus)
                continue;
            while (pu >= member_on_.size())
                member_on_.push_back(no_member);
            if (member_on_[pu] == no_member)
                member_on_[pu] = m;
            while (pu / word_bits >= pus_.size())
                pus_.push_back(0);
            pus_[pu / word_bits] |= 1ul << pu % word_bits;
        }
    }

    // Returns the member on the calling thread's PU, if the thread may use no PU without a member and has room on its
    // stack; otherwise no_member. Members that are not bound count as one for each PU.
    [[nodiscard]] unsigned member_for_this_thread() const noexcept
    {
        int const pu = sched_getcpu();
        if (pu < 0)
            return no_member;
        bool const bound = !member_on_.empty();
        if (bound && (static_cast<std::size_t>(pu) >= member_on_.size() ||
                      member_on_[static_cast<std::size_t>(pu)] == no_member))
            return no_member;
        // The system call itself says how many bytes the kernel has written, so that only these are looked at.
        unsigned long allowed[most_pus / word_bits];
        long const bytes = syscall(SYS_sched_getaffinity, 0, sizeof allowed, allowed);
        if (bytes < 0 || !has_large_stack())
            return no_member;
        std::size_t const words = static_cast<std::size_t>(bytes) / sizeof allowed[0];
        if (!bound) {
            unsigned pus = 0;
            for (std::size_t w = 0; w < words; ++w)
                pus += static_cast<unsigned>(std::popcount(allowed[w]));
            return pus <= size_ ? 0 : no_member;
        }
        for (std::size_t w = 0; w < words; ++w)
            if ((allowed[w] & ~(w < pus_.size() ? pus_[w] : 0)) != 0)
                return no_member;
        return member_on_[static_cast<std::size_t>(pu)];
    }

private:
    static constexpr std::size_t most_pus = team::max_threads;
    static constexpr std::size_t word_bits = 8 * sizeof(unsigned long);

    [[nodiscard]] static bool has_large_stack() noexcept
    {
        static thread_local bool const is_large = [] {
            std::size_t const bytes = stack_bytes_of_this_thread();
            return bytes == 0 || bytes >= min_stack_bytes;
        }();
        return is_large;
    }

    unsigned size_;
    std::vector<unsigned> member_on_; // by PU; empty: members are not bound
    std::vector<unsigned long> pus_;  // their mask, as the kernel writes it
};

} // namespace detail
ADAMANT_END_NAMESPACE
