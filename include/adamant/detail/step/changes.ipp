// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/changes.hpp>.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <sched.h>

#include <adamant/changes.hpp>
#include <adamant/error.hpp>
#include <adamant/detail/exec/for_each_part.hpp>
#include <adamant/detail/exec/wait_word.hpp>
#include <adamant/detail/kernels/collect_kernels.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// Words of a shard in parts that threads take one by one: at least 8 for each thread, of 32 to 128 KiB of bits. Each
// part begins and ends with waiting for memory.
class changed_parts {
public:
    changed_parts(executor const& cpu, tracked_weights const& tracked)
        : cpu_(cpu), tracked_(tracked), words_(changed_words(tracked.size())),
          part_words_(std::clamp<std::size_t>(words_ / (8 * cpu.threads()), 4096, 16384))
    {
    }
    [[nodiscard]] std::size_t part_words() const noexcept { return part_words_; }
    [[nodiscard]] std::size_t count() const noexcept { return (words_ + part_words_ - 1) / part_words_; }
    // Whether one thread does the work of `bytes_each` bytes an element.
    [[nodiscard]] bool work_in_one_thread(std::size_t bytes_each) const noexcept
    {
        return count() < 2 || cpu_.works_itself(elems_weighing(bytes_each));
    }
    // Calls work(part, first word, number of words) for each part.
    template <class Work>
    void for_each(Work const& work, std::size_t bytes_each = 1) const
    {
        for_each_part(cpu_, count(), elems_weighing(bytes_each), [&](std::size_t part) { call(work, part); });
    }
    // The same in order: a part begins after all parts before it have begun.
    template <class Work>
    void for_each_in_order(Work const& work, std::size_t bytes_each) const
    {
        std::atomic<std::size_t> next{0};
        for_each_part(cpu_, std::min<std::size_t>(cpu_.threads(), count()), elems_weighing(bytes_each),
                      [&](std::size_t) {
                          for (std::size_t part; (part = next.fetch_add(1, std::memory_order_relaxed)) < count();)
                              call(work, part);
                      });
    }
    // Bits beyond the last element are not the shard's.
    [[nodiscard]] std::uint64_t rest_mask() const noexcept
    {
        std::size_t const rest = tracked_.size() % kernel::changed_word_elems;
        return rest == 0 ? ~std::uint64_t{0} : (std::uint64_t{1} << rest) - 1;
    }
    void clear_rest() const noexcept
    {
        if (words_ != 0)
            tracked_.changed()[words_ - 1] &= rest_mask();
    }

private:
    template <class Work>
    void call(Work const& work, std::size_t part) const
    {
        std::size_t const first = part * part_words_;
        work(part, first, std::min(part_words_, words_ - first));
    }
    // Executors weigh work by the elements of a step, of some 28 bytes.
    [[nodiscard]] std::size_t elems_weighing(std::size_t bytes_each) const noexcept
    {
        return tracked_.size() * bytes_each / 28;
    }

    executor const& cpu_;
    tracked_weights const& tracked_;
    std::size_t words_;
    std::size_t part_words_;
};

// Waits without sleeping for a thread that counts a part, which takes microseconds. Waking threads would take longer.
[[nodiscard]] inline std::size_t wait_for_nonzero(std::atomic<std::size_t> const& value) noexcept
{
    for (unsigned spins = 0;; ++spins) {
        if (std::size_t const known = value.load(std::memory_order_acquire); known != 0)
            return known;
        if (spins % 64 != 63)
            relax();
        else
            sched_yield(); // the other thread may need this PU
    }
}

template <class Index>
std::size_t collect_changed_weights(executor const& cpu, tracked_weights const& tracked, std::span<Index> indices,
                                    void* values, changed_options const& options)
{
    changed_parts const parts(cpu, tracked);
    constexpr std::size_t last_index = std::numeric_limits<Index>::max();
    if (tracked.size() != 0 &&
        (tracked.size() - 1 > last_index || options.first_index > last_index - (tracked.size() - 1)))
        throw_invalid_argument({"cannot collect changed weights with ", sizeof(Index) * 8, "-bit indices: there are ",
                                counted(tracked.size(), "weight"), " from index ", options.first_index, " on. Use ",
                                sizeof(Index) == 8 ? "a smaller first index." : "64-bit indices."});
    if (values != nullptr && tracked.weights() == nullptr && tracked.size() != 0)
        throw_invalid_argument({"cannot collect the values of ", counted(tracked.size(), "weight"),
                                ": weights is null. Pass the weights, or a null pointer for values."});
    parts.clear_rest();
    kernel::count_changes_function const count_changes = kernel::count_changes_for(cpu.tier());
    kernel::collect_changes_function const collect_changes = kernel::collect_changes_for(cpu.tier());
    std::size_t const weight_bytes = tracked.weight_bytes();
    auto const collect = [&](std::size_t word, std::size_t n, std::size_t prefetch_words,
                             kernel::changed_weights_out& out) {
        std::size_t const element = word * kernel::changed_word_elems;
        return collect_changes(tracked.changed() + word, n, prefetch_words,
                               values == nullptr ? nullptr : tracked.weights() + element * weight_bytes, weight_bytes,
                               options.first_index + element, options.clear, out);
    };
    auto const out_from = [&](std::size_t begin, std::size_t room) {
        kernel::changed_weights_out out{nullptr, nullptr, nullptr, room};
        if constexpr (sizeof(Index) == sizeof(std::uint32_t))
            out.indices = indices.data() + begin;
        else
            out.wide_indices = indices.data() + begin;
        if (values != nullptr)
            out.values = static_cast<std::byte*>(values) + begin * weight_bytes;
        return out;
    };
    // Sets the bits of changes that were written and cleared. Their indices are known.
    auto const restore = [&](std::size_t written) {
        for (Index const index : indices.first(written)) {
            auto const element = static_cast<std::size_t>(index - options.first_index);
            tracked.changed()[element / kernel::changed_word_elems] |= std::uint64_t{1}
                                                                       << element % kernel::changed_word_elems;
        }
    };
    constexpr std::size_t bytes_each = 3;
    if (parts.work_in_one_thread(bytes_each)) {
        // No position depends on what another thread finds, so nothing is counted before.
        kernel::changed_weights_out out = out_from(0, indices.size());
        bool fits = true;
        constexpr std::size_t prefetch_words = 256;
        parts.for_each(
            [&](std::size_t, std::size_t word, std::size_t n) { fits = fits && collect(word, n, prefetch_words, out); },
            bytes_each);
        std::size_t const written = indices.size() - out.room;
        if (fits)
            return written;
        restore(options.clear ? written : 0);
        return count_changed_weights(cpu, tracked);
    }
    // Each part is counted, which reads its bits into the cache, and collected as soon as those before it are counted.
    // Counting alone would only wait for memory. So while a part is collected, the bits of the part that this thread
    // probably takes next are prefetched.
    std::size_t const next_part = cpu.threads() * parts.part_words();
    // ends[part]: number of changes up to the part's end, plus 1; 0 before it is known.
    std::vector<std::atomic<std::size_t>> ends(parts.count());
    parts.for_each_in_order(
        [&](std::size_t part, std::size_t word, std::size_t n) {
            std::size_t const count = count_changes(tracked.changed() + word, n);
            std::size_t const begin = part == 0 ? 0 : wait_for_nonzero(ends[part - 1]) - 1;
            ends[part].store(begin + count + 1, std::memory_order_release);
            if (begin + count > indices.size())
                return;
            kernel::changed_weights_out out = out_from(begin, count);
            collect(word, n, next_part, out);
        },
        bytes_each);
    std::size_t const total = ends.back().load(std::memory_order_relaxed) - 1;
    if (total > indices.size() && options.clear)
        for (auto end = ends.rbegin(); end != ends.rend(); ++end)
            if (std::size_t const written = end->load(std::memory_order_relaxed) - 1; written <= indices.size()) {
                restore(written);
                break;
            }
    return total;
}

} // namespace detail

ADAMANT_DECL tracked_weights::tracked_weights(any_shard const& shard)
    : changed_(shard.changed()), elements_(shard.size()), weights_(shard.data(published_array(shard.format().types))),
      weight_bytes_(shard.bytes(published_array(shard.format().types), 1))
{
    if (changed_ == nullptr && elements_ != 0)
        detail::throw_invalid_argument({"cannot read the changed weights of a shard of ",
                                        detail::counted(elements_, "element"),
                                        ": they are not tracked. Pass bits to any_shard::track()."});
}

ADAMANT_DECL tracked_weights::tracked_weights(std::span<std::uint64_t> changed, std::size_t elements,
                                              void const* weights, dtype type)
    : changed_(changed.data()), elements_(elements), weights_(static_cast<std::byte const*>(weights)),
      weight_bytes_(size_bytes(type))
{
    if (changed.size() != changed_words(elements))
        detail::throw_invalid_argument({"cannot read the changes of ", detail::counted(elements, "weight"),
                                        ": changed has ", detail::counted(changed.size(), "word"), ". It needs ",
                                        changed_words(elements), ", one bit for each weight."});
    if (type != dtype::float32 && type != dtype::bfloat16 && type != dtype::float16)
        detail::throw_invalid_argument(
            {"cannot read changed weights of type ", name(type), ". Weights are float32, bfloat16 or float16."});
}

ADAMANT_DECL std::size_t count_changed_weights(executor const& cpu, tracked_weights const& tracked)
{
    detail::changed_parts const parts(cpu, tracked);
    parts.clear_rest();
    kernel::count_changes_function const count_changes = kernel::count_changes_for(cpu.tier());
    std::vector<std::size_t> counts(parts.count());
    parts.for_each([&](std::size_t part, std::size_t word, std::size_t n) {
        counts[part] = count_changes(tracked.changed() + word, n);
    });
    std::size_t total = 0;
    for (std::size_t const each : counts)
        total += each;
    return total;
}

ADAMANT_DECL std::size_t changed_weights(executor const& cpu, tracked_weights const& tracked,
                                         std::span<std::uint32_t> indices, void* values, changed_options const& options)
{
    return detail::collect_changed_weights(cpu, tracked, indices, values, options);
}

ADAMANT_DECL std::size_t changed_weights(executor const& cpu, tracked_weights const& tracked,
                                         std::span<std::uint64_t> indices, void* values, changed_options const& options)
{
    return detail::collect_changed_weights(cpu, tracked, indices, values, options);
}

ADAMANT_DECL void changed_mask(executor const& cpu, tracked_weights const& tracked, std::span<std::uint8_t> mask,
                               changed_options const& options)
{
    detail::changed_parts const parts(cpu, tracked);
    if (mask.size() != tracked.size())
        detail::throw_invalid_argument({"cannot write a mask of ", detail::counted(mask.size(), "byte"), ": there are ",
                                        detail::counted(tracked.size(), "weight"), ". Pass one byte for each."});
    parts.clear_rest();
    parts.for_each([&](std::size_t, std::size_t word, std::size_t n) {
        for (std::size_t w = word; w < word + n; ++w) {
            std::uint64_t const bits = tracked.changed()[w];
            std::size_t const first = w * kernel::changed_word_elems;
            std::size_t const last = std::min(mask.size(), first + kernel::changed_word_elems);
            for (std::size_t i = first; i < last; i += 8) {
                // Byte k of the product has bit k of the eight alone; adding 127 moves it to the byte's highest bit.
                std::uint64_t const eight = bits >> (i - first) & 0xffu;
                std::uint64_t const spread = (eight * 0x0101010101010101u) & 0x8040201008040201u;
                std::uint64_t flags = (spread + 0x7f7f7f7f7f7f7f7fu) >> 7 & 0x0101010101010101u;
                if constexpr (std::endian::native == std::endian::big)
                    flags = __builtin_bswap64(flags);
                std::memcpy(mask.data() + i, &flags, std::min<std::size_t>(8, last - i));
            }
            if (options.clear)
                tracked.changed()[w] = 0;
        }
    });
}

ADAMANT_DECL void mark_changed(tracked_weights const& tracked, std::size_t begin, std::size_t end)
{
    if (begin > end || end > tracked.size())
        detail::throw_invalid_argument(
            {"cannot mark elements ", begin, " to ", end, " as changed: there are ",
             detail::counted(tracked.size(), "weight"),
             ". Pass a begin that is at most end, and an end that is at most their number."});
    for (std::size_t next; begin < end; begin = next) {
        std::size_t const bit = begin % kernel::changed_word_elems;
        next = std::min(end, begin - bit + kernel::changed_word_elems);
        std::uint64_t const all = ~std::uint64_t{0};
        tracked.changed()[begin / kernel::changed_word_elems] |= all >> (kernel::changed_word_elems - (next - begin))
                                                                            << bit;
    }
}

ADAMANT_END_NAMESPACE
