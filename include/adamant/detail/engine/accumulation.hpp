// SPDX-License-Identifier: Apache-2.0
// Gradient accumulation: adds a shard's gradient to its accumulator, on both backends.
#pragma once

#include <cstddef>
#include <string>

#include <adamant/error.hpp>
#include <adamant/detail/engine/registry.hpp>
#include <adamant/detail/engine/step_session.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Accumulates the device's pieces of the shard. A failure in an open step fails the step, and finish() reports it.
// Throws device_error.
inline void accumulate_on_device(device_backend& backend, std::size_t shard, bool first, registry& shard_registry,
                                 step_session& session)
{
    bool const in_step = !session.machine().is_between_steps();
    auto const watch = [&](auto const& work) { in_step ? session.watch(work) : backend.at_rest(work); };
    if (!backend.has_pieces_of(shard) && !shard_registry.has_device_arrays(shard))
        return;
    watch([&] { backend.bring_gradients(shard); });
    if (!backend.has_pieces_of(shard))
        return;
    try {
        watch([&] { backend.accumulate(shard, first); });
    } catch (...) { // std::bad_alloc included: some pieces may have been added
        shard_registry.forget_sum(shard);
        rethrow_as_device_error(
            text_of({"; the gradients accumulated for shard ", shard_registry.text(shard), " are lost"}));
    }
}

// Accumulates the whole shard and waits. Call after build_layout(). Throws what the team and the device throw.
inline void accumulate_gradient(std::size_t shard, registry& shard_registry, step_session& session)
{
    tracked_shard const& s = shard_registry[shard];
    bool const first = s.summed == 0;
    if (device_backend* const backend = session.dispatcher().device())
        accumulate_on_device(*backend, shard, first, shard_registry, session);
    cpu_backend const& host = session.dispatcher().host();
    for (std::size_t r = host.first_range(shard); r < host.first_range(shard + 1); ++r)
        host.for_each_slice_of(host.ranges()[r],
                               [&](std::size_t begin, std::size_t end) { s.shard.accumulate(begin, end, first); });
    shard_registry.count_micro_step(shard);
}

} // namespace detail
ADAMANT_END_NAMESPACE
