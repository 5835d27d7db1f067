// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/device.hpp>: placement of shards on CPU and device.
#pragma once

#include <string>

#include <adamant/device.hpp>
#include <adamant/error.hpp>
#include <adamant/detail/core/default_mode.hpp>

ADAMANT_BEGIN_NAMESPACE

ADAMANT_DECL double placement::ratio() const noexcept
{
    detail::default_mode_scope const mode;
    std::size_t const total = cpu_elems + device_elems;
    return total == 0 ? 1.0 : static_cast<double>(cpu_elems) / static_cast<double>(total);
}

ADAMANT_DECL void validate(placement const& candidate, std::vector<std::size_t> const& sizes)
{
    std::size_t shard = 0;
    std::size_t next = 0;
    std::size_t elems[2] = {};
    auto const refuse = [](std::initializer_list<detail::text_part> defect) {
        detail::throw_invalid_argument({"invalid placement: it ", detail::text_of(defect),
                                        ". Call split() with the sizes of the shards, in the optimizer's order."});
    };
    auto const pass_full_shards = [&] {
        while (shard < sizes.size() && next == sizes[shard]) {
            ++shard;
            next = 0;
        }
    };
    for (shard_piece const& piece : candidate.pieces) {
        pass_full_shards();
        if (piece.elems == 0)
            refuse({"has a piece without elements, of shard ", piece.shard});
        if (piece.backend != backend_kind::cpu && piece.backend != backend_kind::device)
            refuse({"has a piece of shard ", piece.shard, " that is neither on the CPU nor on the device"});
        if (piece.shard != shard || piece.begin != next || shard == sizes.size() || piece.elems > sizes[shard] - next)
            refuse({"has elements ", piece.begin, " to ", piece.begin + piece.elems, " of shard ", piece.shard,
                    " where ",
                    shard == sizes.size()
                        ? "all shards are complete"
                        : detail::text_of({"elements from ", next, " of shard ", shard, " (",
                                           detail::counted(sizes[shard], "element"), ") are expected"})});
        if (piece.begin % norm_block_elems != 0)
            refuse({"cuts shard ", shard, " at element ", next, ", which is not a multiple of ", norm_block_elems});
        next += piece.elems;
        elems[static_cast<std::size_t>(piece.backend)] += piece.elems;
    }
    pass_full_shards();
    if (shard != sizes.size())
        refuse(
            {"ends before element ", next, " of shard ", shard, " (", detail::counted(sizes[shard], "element"), ")"});
    if (elems[0] != candidate.cpu_elems || elems[1] != candidate.device_elems)
        refuse({"counts ", detail::counted(candidate.cpu_elems, "element"), " on the CPU and ", candidate.device_elems,
                " on the device, but its pieces have ", elems[0], " and ", elems[1]});
}

namespace detail {

ADAMANT_DECL void append_piece(placement& target, std::size_t shard, std::size_t begin, std::size_t elems,
                               backend_kind kind)
{
    if (elems == 0)
        return;
    (kind == backend_kind::cpu ? target.cpu_elems : target.device_elems) += elems;
    target.pieces.push_back({shard, begin, elems, kind});
}

} // namespace detail

ADAMANT_END_NAMESPACE
