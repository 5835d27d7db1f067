// SPDX-License-Identifier: Apache-2.0
// What adamant/c/state.h declares.
#include <adamant/c/state.h>

#include <cstddef>
#include <vector>

#include <adamant/c/errors.hpp>
#include <adamant/c/handles.hpp>
#include <adamant/checkpoint/safetensors.hpp>
#include <adamant/optimizer.hpp>

namespace adamant::c {

// Saving changes nothing that a caller can see: it may copy a device's part of the state to the host.
static optimizer& to_save(adamant_optimizer const* handle)
{
    return of(const_cast<adamant_optimizer*>(handle));
}

} // namespace adamant::c

using namespace adamant::c;

adamant_status adamant_save_safetensors(const adamant_optimizer* optimizer, const char* path)
{
    return guarded([&] {
        adamant::optimizer& o = to_save(optimizer);
        adamant::save_safetensors(&needed(path, "path"), o.state());
    });
}
adamant_status adamant_load_safetensors(adamant_optimizer* optimizer, const char* const* paths, size_t count)
{
    return guarded([&] {
        adamant::optimizer& o = of(optimizer);
        if (count == 0)
            throw adamant::invalid_argument("adamant: a state is to be loaded from no files; give one or more");
        needed(paths, "paths");
        std::vector<adamant::safetensors_state> files;
        for (std::size_t i = 0; i < count; ++i)
            files.emplace_back(&needed(paths[i], "a path"));
        std::vector<adamant::state_dict> states;
        for (adamant::safetensors_state const& file : files)
            states.push_back(file.state());
        o.load(adamant::merge(states));
    });
}
