// SPDX-License-Identifier: Apache-2.0
// How a range of elements is cut into chunks that threads take. Pure arithmetic.
#pragma once

#include <algorithm>
#include <cstddef>

#include <adamant/kernel/step_pointers.hpp>

ADAMANT_BEGIN_NAMESPACE

// Elements from begin, a multiple of granule_elems, to end.
struct slice {
    std::size_t begin;
    std::size_t end;
    [[nodiscard]] std::size_t size() const noexcept { return end - begin; }
};

// n elements as chunks of one size, in order; the last may be shorter.
struct chunking {
    std::size_t n = 0;
    std::size_t chunk_elems = granule_elems; // a multiple of granule_elems
    std::size_t chunks = 1;
    unsigned threads = 1; // worth dividing them between; from 1 to the number of chunks

    // The elements of chunks begin to end - 1.
    [[nodiscard]] constexpr slice elements(std::size_t begin, std::size_t end) const noexcept
    {
        return {begin * chunk_elems, end == chunks ? n : end * chunk_elems};
    }
    // The elements that thread number `thread` begins with, every time. The ranges of all threads are in order and
    // disjoint, together are all elements, and differ in size by at most a chunk.
    [[nodiscard]] constexpr slice home(unsigned thread) const noexcept
    {
        std::size_t const most = chunks / threads; // no product, which could overflow
        std::size_t const longer = chunks % threads;
        std::size_t const begin = thread * most + std::min<std::size_t>(thread, longer);
        return elements(begin, begin + most + (thread < longer));
    }
};

// By default no thread takes more elements than this at once; otherwise the others would wait for it at the end.
inline constexpr std::size_t default_max_chunk_elems = 65536;
// The least value of that limit. Chunks are shorter where there is little work.
inline constexpr std::size_t min_chunk_elems = 4096;

// Cuts n elements for up to `threads` threads, none of which is worth waking for fewer than min_slice_elems (at least
// 1). A thread has some sixteen chunks, so that others can take some where it is delayed. No chunk is so small that
// taking it costs more than a hundredth of working on it, and none has more than max_chunk_elems.
[[nodiscard]] constexpr chunking chunks_of(std::size_t n, unsigned threads, std::size_t min_slice_elems,
                                           std::size_t max_chunk_elems = default_max_chunk_elems) noexcept
{
    constexpr std::size_t smallest = min_chunk_elems;
    std::size_t const largest = std::max(max_chunk_elems, smallest);
    std::size_t const granules = n / granule_elems + (n % granule_elems != 0);
    std::size_t const useful = std::clamp<std::size_t>(std::min(n / min_slice_elems, granules), 1, threads);
    std::size_t chunk = std::clamp(n / useful / 16, std::min(smallest, n / useful), largest);
    chunk = std::max(chunk / granule_elems * granule_elems, granule_elems);
    chunk = std::max(chunk, (n / 0xffffff00 / granule_elems + 1) * granule_elems); // fewer than 2^32 chunks
    std::size_t const chunks = std::max<std::size_t>(n / chunk + (n % chunk != 0), 1);
    return {n, chunk, chunks, static_cast<unsigned>(std::min(useful, chunks))};
}

ADAMANT_END_NAMESPACE
