// SPDX-License-Identifier: Apache-2.0
// How shards move to a device and back: the checks, and the one place where a device's side is made.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <adamant/device.hpp>
#include <adamant/error.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/detail/engine/device_partition.hpp>
#include <adamant/detail/engine/registry.hpp>
#include <adamant/detail/engine/step_session.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// placed: the device's side that there is, or null. Throws invalid_argument for a placement that cannot be.
inline void check_placement(device const* on, placement const& where, registry const& over,
                            device_backend const* placed, optimizer_options const& options)
{
    if (options.keep_last_step && !options.device_records && where.device_elems != 0)
        throw_invalid_argument({"the last step is to be kept for rollback(), but a device is to have shards "
                                "without records of it; set device_records in the options"});
    validate(where, over.sizes());
    if (on == nullptr && where.device_elems != 0)
        throw_invalid_argument(
            {"a placement gives ", where.device_elems, " elements to a device, but there is none (a null pointer)"});
    if (over.has_device_arrays() && placed != nullptr && on != nullptr && &placed->device() != on)
        throw_invalid_argument({"shards have arrays on ", placed->device().name(), " and are to be placed on ",
                                on->name(), "; take everything back with place(nullptr, ...) first"});
}

// Throws what device_backend::place() does. A program that never comes here compiles nothing of a device's side.
inline void move_shards(std::shared_ptr<device> on, std::vector<shard_piece> const& pieces, registry const& over,
                        step_session& session, optimizer_options const& options)
{
    hybrid_dispatcher& sides = session.sides();
    if (sides.device() == nullptr) {
        if (on == nullptr)
            return;
        sides.set_device(
            std::make_unique<device_partition>(over, session.plan(), session.blocks(), sides.host(),
                                               device_settings{options.device_timeout_s, options.device_records}));
    }
    auto const drop_empty = [&] {
        if (!sides.device()->has_device())
            sides.set_device(nullptr);
    };
    try {
        sides.device()->place(std::move(on), pieces);
    } catch (...) {
        drop_empty();
        throw;
    }
    drop_empty();
}

} // namespace detail
ADAMANT_END_NAMESPACE
