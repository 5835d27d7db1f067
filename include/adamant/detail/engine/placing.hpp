// SPDX-License-Identifier: Apache-2.0
// Moves shards to a device and back: checks the placement, and creates the device backend on first use.
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

// partition: the current device backend, or null. Throws invalid_argument for an invalid placement.
inline void check_placement(device const* target, placement const& requested, registry const& shard_registry,
                            device_backend const* partition, optimizer_options const& options)
{
    if (options.keep_last_step && !options.device_records && requested.device_elems != 0)
        throw_invalid_argument({"cannot place shards on a device: keep_last_step requires records on the device. Set "
                                "device_records in the options."});
    validate(requested, shard_registry.sizes());
    if (target == nullptr && requested.device_elems != 0)
        throw_invalid_argument({"cannot place ", counted(requested.device_elems, "element"),
                                " on a device: the device is a null pointer"});
    if (shard_registry.has_device_arrays() && partition != nullptr && target != nullptr &&
        &partition->device() != target)
        throw_invalid_argument({"cannot place shards on ", target->name(), ": they have arrays on ",
                                partition->device().name(), ". Call place(nullptr, ...) first."});
}

// Throws as device_backend::place(). Only programs that call this compile the device backend.
inline void move_shards(std::shared_ptr<device> target, std::vector<shard_piece> const& pieces,
                        registry const& shard_registry, step_session& session, optimizer_options const& options)
{
    hybrid_dispatcher& dispatcher = session.dispatcher();
    if (dispatcher.device() == nullptr) {
        if (target == nullptr)
            return;
        dispatcher.set_device(
            std::make_unique<device_partition>(shard_registry, session.plan(), session.blocks(), dispatcher.host(),
                                               device_settings{options.device_timeout_s, options.device_records}));
    }
    auto const drop_empty = [&] {
        if (!dispatcher.device()->has_device())
            dispatcher.set_device(nullptr);
    };
    try {
        dispatcher.device()->place(std::move(target), pieces);
    } catch (...) {
        drop_empty();
        throw;
    }
    drop_empty();
}

} // namespace detail
ADAMANT_END_NAMESPACE
