// SPDX-License-Identifier: Apache-2.0
// The journal: memory for the records from which a step is rolled back, handed to threads in pages.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <vector>

#include <adamant/memory.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

class journal {
public:
    // Frees the old memory, and allocates budget_bytes for records of at most `longest` bytes. The executor's threads
    // touch the first usual_bytes now: records of ordinary data need no more, and are written there first. Throws as
    // buffer does.
    void allocate(executor const& cpu, std::size_t budget_bytes, std::size_t usual_bytes, std::size_t longest)
    {
        memory_ = {};
        pages_ = 0;
        writers_.assign(cpu.threads(), {});
        next_page_.store(0, std::memory_order_relaxed);
        if (longest == 0)
            return;
        // Pages are small enough that every thread gets some of a small budget, and large enough to waste little at
        // their ends.
        std::size_t const page =
            std::clamp(budget_bytes / (4 * writers_.size()), longest, std::max(longest, std::size_t{1} << 20));
        page_bytes_ = (page + line - 1) / line * line;
        if (std::size_t const pages = budget_bytes / page_bytes_; pages != 0) {
            memory_ = buffer<std::byte>(pages * page_bytes_);
            pages_ = pages;
            cpu.for_each_owned_slice(std::min(usual_bytes, memory_.size()),
                                     [&](slice part) { memory_.touch(part.begin, part.end); });
        }
    }

    // Returns the address, a multiple of 64, at which thread `member` may write a record of at most `max_bytes`; null
    // if the budget is used up. Different members may call this concurrently.
    [[nodiscard]] std::byte* room(unsigned member, std::size_t max_bytes) noexcept
    {
        writer& w = writers_[member];
        if (static_cast<std::size_t>(w.end - w.next) < max_bytes) {
            if (next_page_.load(std::memory_order_relaxed) >= pages_ || max_bytes > page_bytes_)
                return nullptr;
            std::size_t const page = next_page_.fetch_add(1, std::memory_order_relaxed);
            if (page >= pages_)
                return nullptr;
            w.next = memory_.data() + page * page_bytes_;
            w.end = w.next + page_bytes_;
        }
        return w.next;
    }
    // Commits the record that begins at room() and ends at `end`.
    void wrote(unsigned member, std::byte const* end) noexcept
    {
        writer& w = writers_[member];
        auto const bytes = static_cast<std::size_t>(end - w.next);
        w.bytes += bytes;
        w.next += (bytes + line - 1) / line * line;
    }

    // Forgets all records. Call while no thread writes.
    void clear() noexcept
    {
        if (is_empty())
            return;
        next_page_.store(0, std::memory_order_relaxed);
        std::fill(writers_.begin(), writers_.end(), writer{});
    }

    // Bytes of all records. Call while no thread writes.
    [[nodiscard]] std::size_t bytes() const noexcept
    {
        std::size_t total = 0;
        if (is_empty())
            return total;
        for (writer const& w : writers_)
            total += w.bytes;
        return total;
    }

private:
    static constexpr std::size_t line = 64;
    // Whether no thread has taken a page, so that a step without records does not visit the writers of a large team.
    [[nodiscard]] bool is_empty() const noexcept { return next_page_.load(std::memory_order_relaxed) == 0; }
    struct alignas(64) writer {
        std::byte* next = nullptr;
        std::byte* end = nullptr;
        std::size_t bytes = 0;
    };

    std::vector<writer> writers_;
    std::size_t page_bytes_ = 0;
    std::size_t pages_ = 0;
    buffer<std::byte> memory_;
    std::atomic<std::size_t> next_page_{0};
};

} // namespace detail
ADAMANT_END_NAMESPACE
