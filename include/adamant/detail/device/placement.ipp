// SPDX-License-Identifier: Apache-2.0
// Definitions of adamant/device.hpp.
#pragma once

#include <string>

#include <adamant/device.hpp>
#include <adamant/error.hpp>
#include <adamant/detail/core/default_mode.hpp>

ADAMANT_BEGIN_NAMESPACE

ADAMANT_DECL double placement::ratio() const noexcept
{
    detail::default_mode_scope const mode;
    std::size_t const all = cpu_elems + device_elems;
    return all == 0 ? 1.0 : static_cast<double>(cpu_elems) / static_cast<double>(all);
}

ADAMANT_DECL void validate(placement const& of, std::vector<std::size_t> const& sizes)
{
    std::size_t shard = 0;
    std::size_t at = 0;
    std::size_t elems[2] = {};
    auto const refuse = [](std::initializer_list<detail::text_part> what) {
        detail::throw_invalid_argument({"a placement ", detail::text_of(what),
                                        "; make it by split() from the sizes of the shards, in their order"});
    };
    auto const pass_full_shards = [&] {
        while (shard < sizes.size() && at == sizes[shard]) {
            ++shard;
            at = 0;
        }
    };
    for (shard_piece const& piece : of.pieces) {
        pass_full_shards();
        if (piece.elems == 0)
            refuse({"has a piece without elements, of shard ", piece.shard});
        if (piece.on != backend_kind::cpu && piece.on != backend_kind::device)
            refuse({"has a piece of shard ", piece.shard, " that is neither on the CPU nor on the device"});
        if (piece.shard != shard || piece.begin != at || shard == sizes.size() || piece.elems > sizes[shard] - at)
            refuse({"has elements ", piece.begin, " to ", piece.begin + piece.elems, " of shard ", piece.shard,
                    " where ",
                    shard == sizes.size() ? "all shards are complete"
                                          : detail::text_of({"element ", at, " of shard ", shard, ", which has ",
                                                             sizes[shard], ", is next"})});
        if (piece.begin % norm_block_elems != 0)
            refuse({"cuts shard ", shard, " at element ", at, ", which is not a multiple of ", norm_block_elems});
        at += piece.elems;
        elems[static_cast<std::size_t>(piece.on)] += piece.elems;
    }
    pass_full_shards();
    if (shard != sizes.size())
        refuse({"lacks element ", at, " of shard ", shard, ", which has ", sizes[shard]});
    if (elems[0] != of.cpu_elems || elems[1] != of.device_elems)
        refuse({"counts ", of.cpu_elems, " elements on the CPU and ", of.device_elems,
                " on the device, but its pieces have ", elems[0], " and ", elems[1]});
}

namespace detail {

ADAMANT_DECL void append_piece(placement& to, std::size_t shard, std::size_t begin, std::size_t elems, backend_kind on)
{
    if (elems == 0)
        return;
    (on == backend_kind::cpu ? to.cpu_elems : to.device_elems) += elems;
    to.pieces.push_back({shard, begin, elems, on});
}

} // namespace detail

ADAMANT_END_NAMESPACE
