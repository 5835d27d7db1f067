// SPDX-License-Identifier: Apache-2.0
// The memory for the records that a step is rolled back from: a budget, given in pages to the threads that write them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <adamant/memory.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

class journal {
public:
    // Frees what there is, and allocates budget_bytes for records of at most `longest` bytes, which the executor's
    // threads write. Throws what buffer does.
    void allocate(executor const& cpu, std::size_t budget_bytes, std::size_t longest)
    {
        memory_ = {};
        pages_ = 0;
        writers_.assign(cpu.threads(), {});
        next_page_.store(0, std::memory_order_relaxed);
        if (longest == 0)
            return;
        // Small enough that every thread gets some pages of a small budget, large enough to waste little at their ends.
        std::size_t const page =
            std::clamp(budget_bytes / (4 * writers_.size()), longest, std::max(longest, std::size_t{1} << 20));
        page_bytes_ = (page + line - 1) / line * line;
        if (std::size_t const pages = budget_bytes / page_bytes_; pages != 0) {
            memory_ = make_buffer<std::byte>(cpu, pages * page_bytes_);
            pages_ = pages;
        }
    }

    // Where thread `member` may write a record of at most `most` bytes, at a multiple of 64; null where the budget is
    // used up. Different members may call this concurrently.
    [[nodiscard]] std::byte* room(unsigned member, std::size_t most) noexcept
    {
        writer& own = writers_[member];
        if (static_cast<std::size_t>(own.end - own.at) < most) {
            if (next_page_.load(std::memory_order_relaxed) >= pages_ || most > page_bytes_)
                return nullptr;
            std::size_t const page = next_page_.fetch_add(1, std::memory_order_relaxed);
            if (page >= pages_)
                return nullptr;
            own.at = memory_.data() + page * page_bytes_;
            own.end = own.at + page_bytes_;
        }
        return own.at;
    }
    // The record that begins where room() said ends here.
    void wrote(unsigned member, std::byte const* end) noexcept
    {
        writer& own = writers_[member];
        auto const bytes = static_cast<std::size_t>(end - own.at);
        own.bytes += bytes;
        own.at += (bytes + line - 1) / line * line;
    }

    // Forgets all records. While no thread writes.
    void clear() noexcept
    {
        next_page_.store(0, std::memory_order_relaxed);
        std::fill(writers_.begin(), writers_.end(), writer{});
    }

    // Of all records. While no thread writes.
    [[nodiscard]] std::size_t bytes() const noexcept
    {
        std::size_t all = 0;
        for (writer const& each : writers_)
            all += each.bytes;
        return all;
    }

private:
    static constexpr std::size_t line = 64;
    struct alignas(64) writer {
        std::byte* at = nullptr;
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
