// SPDX-License-Identifier: Apache-2.0
// split_view: a float32 view of split master weights for states.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <adamant/checkpoint.hpp>
#include <adamant/dtype.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Its addresses are byte offsets in the float32 array; they point to no memory.
class split_view final : public state_source, public state_target {
public:
    split_view(std::byte* weight, std::byte* low) noexcept : weight_(weight), low_(low) {}

    void read(std::byte const* src, std::size_t bytes, std::byte* dst) const override
    {
        visit(src, bytes, [&](std::size_t element, std::size_t first, std::size_t n) {
            float const x = joined_master(load_unaligned<bfloat16>(weight_ + element * sizeof(bfloat16)),
                                          load_unaligned<split_float32>(low_ + element * sizeof(split_float32)));
            std::memcpy(dst, reinterpret_cast<std::byte const*>(&x) + first, n);
            dst += n;
        });
    }
    void write(std::byte const* src, std::size_t bytes, std::byte const* dst) const noexcept override
    {
        visit(dst, bytes, [&](std::size_t element, std::size_t, std::size_t n) {
            split_parts const parts = split_master(load_unaligned<float>(src));
            store_unaligned(weight_ + element * sizeof(bfloat16), parts.weight);
            store_unaligned(low_ + element * sizeof(split_float32), parts.low);
            src += n;
        });
    }

private:
    // Calls work(element, first, n) for each element of a range of bytes: n bytes from byte `first` of the element.
    template <class Work>
    static void visit(std::byte const* begin_address, std::size_t bytes, Work const& work)
    {
        std::size_t offset = reinterpret_cast<std::uintptr_t>(begin_address);
        for (std::size_t const end = offset + bytes; offset != end;) {
            std::size_t const first = offset % sizeof(float);
            std::size_t const n = std::min(sizeof(float) - first, end - offset);
            work(offset / sizeof(float), first, n);
            offset += n;
        }
    }

    std::byte* weight_;
    std::byte* low_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
