// SPDX-License-Identifier: Apache-2.0
// Who works on which chunk: a queue of chunks for each thread, the same every time, from which others take when they
// are through with theirs.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

class work_stealing_queues {
public:
    static constexpr std::size_t max_chunks = 0xffffffff;

    explicit work_stealing_queues(unsigned threads) : queues_(threads) {}

    // Chunks 0 to chunks - 1 in order to the first `takers` queues, of lengths that differ by at most one. Not beside
    // take_all().
    void fill(std::size_t chunks, unsigned takers) noexcept
    {
        for (unsigned i = 0; i < queues_.size(); ++i) {
            std::size_t const first =
                chunks / takers * i + std::min<std::size_t>(i, chunks % takers); // as chunking::home()
            std::size_t const last = first + chunks / takers + (i < chunks % takers);
            queues_[i].left.store(i < takers ? pack(first, last) : 0, std::memory_order_relaxed);
        }
    }

    // Calls work(begin, end) for chunks until there are none left in any queue: those of queue `own` from the front one
    // by one, then half of what the fullest queue has left, from its back, and so on. To be called by each taker once.
    template <class Work>
    void take_all(unsigned own, unsigned takers, Work const& work)
    {
        for (;;) {
            for (std::uint64_t left = queues_[own].left.load(std::memory_order_relaxed); size(left) != 0;)
                if (queues_[own].left.compare_exchange_weak(left, left + one_from_front, std::memory_order_relaxed)) {
                    work(begin(left), begin(left) + 1);
                    left = queues_[own].left.load(std::memory_order_relaxed);
                }
            unsigned fullest = own;
            std::uint64_t most = 0;
            for (unsigned step = 1; step < takers; ++step) { // from the neighbour on, so that thieves do not all meet
                unsigned const i = own + step < takers ? own + step : own + step - takers;
                std::uint64_t const left = queues_[i].left.load(std::memory_order_relaxed);
                if (size(left) > size(most)) {
                    most = left;
                    fullest = i;
                }
            }
            if (fullest == own)
                return;
            // A chunk never comes back to a queue that it has left (a thief works on its first one at once), so equal
            // values are the same state.
            std::size_t const middle = begin(most) + size(most) / 2;
            if (queues_[fullest].left.compare_exchange_strong(most, pack(begin(most), middle),
                                                              std::memory_order_relaxed)) {
                queues_[own].left.store(pack(middle + 1, end(most)), std::memory_order_relaxed);
                work(middle, middle + 1);
            }
        }
    }

private:
    // Begin and end of what is left, in one word.
    static constexpr std::uint64_t one_from_front = std::uint64_t{1} << 32;
    static std::uint64_t pack(std::size_t first, std::size_t last) noexcept
    {
        return std::uint64_t{first} << 32 | last;
    }
    static std::size_t begin(std::uint64_t left) noexcept { return left >> 32; }
    static std::size_t end(std::uint64_t left) noexcept { return left & 0xffffffff; }
    static std::size_t size(std::uint64_t left) noexcept { return end(left) - begin(left); }

    struct alignas(64) queue { // on a cache line of its own
        std::atomic<std::uint64_t> left{0};
    };
    std::vector<queue> queues_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
