// SPDX-License-Identifier: Apache-2.0
// Work-stealing queues: each thread starts with the same chunks every time, and takes chunks of others when its own
// queue is empty.
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

    // Distributes chunks 0 to chunks - 1, in order, to the first `takers` queues, in lengths that differ by at most
    // one. Do not call during take_all().
    void fill(std::size_t chunks, unsigned takers) noexcept
    {
        for (unsigned i = 0; i < queues_.size(); ++i) {
            std::size_t const first =
                chunks / takers * i + std::min<std::size_t>(i, chunks % takers); // same split as chunking::home()
            std::size_t const last = first + chunks / takers + (i < chunks % takers);
            queues_[i].left.store(i < takers ? pack(first, last) : 0, std::memory_order_relaxed);
        }
    }

    // Calls work(begin, end) for chunks until all queues are empty. Takes the chunks of queue `taker` one by one from
    // the front, then half of the fullest queue from its back, and repeats. Each taker calls this once.
    template <class Work>
    void take_all(unsigned taker, unsigned takers, Work const& work)
    {
        for (;;) {
            for (std::uint64_t left = queues_[taker].left.load(std::memory_order_relaxed); size(left) != 0;)
                if (queues_[taker].left.compare_exchange_weak(left, left + one_from_front, std::memory_order_relaxed)) {
                    work(begin(left), begin(left) + 1);
                    left = queues_[taker].left.load(std::memory_order_relaxed);
                }
            unsigned fullest = taker;
            std::uint64_t most = 0;
            for (unsigned step = 1; step < takers; ++step) { // start at the neighbor, so that thieves spread out
                unsigned const i = taker + step < takers ? taker + step : taker + step - takers;
                std::uint64_t const left = queues_[i].left.load(std::memory_order_relaxed);
                if (size(left) > size(most)) {
                    most = left;
                    fullest = i;
                }
            }
            if (fullest == taker)
                return;
            // A chunk never returns to a queue that it has left, because a thief works on its first chunk immediately.
            // Equal values of `left` are therefore the same state: the exchange has no ABA problem.
            std::size_t const middle = begin(most) + size(most) / 2;
            if (queues_[fullest].left.compare_exchange_strong(most, pack(begin(most), middle),
                                                              std::memory_order_relaxed)) {
                queues_[taker].left.store(pack(middle + 1, end(most)), std::memory_order_relaxed);
                work(middle, middle + 1);
            }
        }
    }

private:
    // Begin and end of a queue's remaining chunks, packed into one word.
    static constexpr std::uint64_t one_from_front = std::uint64_t{1} << 32;
    static std::uint64_t pack(std::size_t first, std::size_t last) noexcept
    {
        return std::uint64_t{first} << 32 | last;
    }
    static std::size_t begin(std::uint64_t left) noexcept { return left >> 32; }
    static std::size_t end(std::uint64_t left) noexcept { return left & 0xffffffff; }
    static std::size_t size(std::uint64_t left) noexcept { return end(left) - begin(left); }

    struct alignas(64) queue { // one cache line each, against false sharing
        std::atomic<std::uint64_t> left{0};
    };
    std::vector<queue> queues_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
