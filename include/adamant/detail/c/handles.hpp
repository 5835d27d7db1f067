// SPDX-License-Identifier: Apache-2.0
// Internal to the C library: the structs behind its handles.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <adamant/adamant.h>
#include <adamant/device.hpp>
#include <adamant/executor.hpp>
#include <adamant/optimizer.hpp>
#include <adamant/detail/c/errors.hpp>

struct adamant_team {
    struct thread_texts {
        std::string asked;
        std::string bound_to;
    };
    std::shared_ptr<adamant::team> team;
    std::string pus;
    std::vector<thread_texts> threads;
};

struct adamant_executor {
    adamant::executor cpu;
    std::string pus;
};

struct adamant_optimizer {
    adamant_optimizer(adamant::executor const& cpu, adamant::optimizer_options options)
        : optimizer(cpu, std::move(options))
    {
    }

    adamant::optimizer optimizer;
    std::optional<adamant::optimizer::ticket> ticket = {}; // of adamant_step_async()
};

struct adamant_placement {
    adamant::placement placement;
};

struct adamant_device {
    std::shared_ptr<adamant::device> device;
    std::string name;
};

namespace adamant::c {

inline executor const& cpu_of(adamant_executor const* handle)
{
    return needed(handle, "the executor").cpu;
}
inline placement const& unwrap(adamant_placement const* handle)
{
    return needed(handle, "the placement").placement;
}
inline optimizer& unwrap(adamant_optimizer* handle)
{
    return needed(handle, "the optimizer").optimizer;
}
inline optimizer const& unwrap(adamant_optimizer const* handle)
{
    return needed(handle, "the optimizer").optimizer;
}

} // namespace adamant::c
