// SPDX-License-Identifier: Apache-2.0
// Split master weights as the float32 array that they stand for, in a state.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <adamant/checkpoint.hpp>
#include <adamant/dtype.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Its addresses count from null: nothing is there.
class split_view final : public state_source, public state_target {
public:
    split_view(std::byte* weight, std::byte* low) noexcept : weight_(weight), low_(low) {}

    void read(std::byte const* from, std::size_t bytes, std::byte* to) const override
    {
        visit(from, bytes, [&](std::size_t element, std::size_t first, std::size_t n) {
            float const x = joined_master(load_unaligned<bfloat16>(weight_ + element * sizeof(bfloat16)),
                                          load_unaligned<split_float32>(low_ + element * sizeof(split_float32)));
            std::memcpy(to, reinterpret_cast<std::byte const*>(&x) + first, n);
            to += n;
        });
    }
    void write(std::byte const* from, std::size_t bytes, std::byte const* at) const noexcept override
    {
        visit(at, bytes, [&](std::size_t element, std::size_t, std::size_t n) {
            split_parts const parts = split_master(load_unaligned<float>(from));
            store_unaligned(weight_ + element * sizeof(bfloat16), parts.weight);
            store_unaligned(low_ + element * sizeof(split_float32), parts.low);
            from += n;
        });
    }

private:
    // The elements in which bytes are, with the first of these bytes in each, and how many.
    template <class Work>
    static void visit(std::byte const* at, std::size_t bytes, Work const& work)
    {
        std::size_t done = reinterpret_cast<std::uintptr_t>(at);
        for (std::size_t const end = done + bytes; done != end;) {
            std::size_t const first = done % sizeof(float);
            std::size_t const n = std::min(sizeof(float) - first, end - done);
            work(done / sizeof(float), first, n);
            done += n;
        }
    }

    std::byte* weight_;
    std::byte* low_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
