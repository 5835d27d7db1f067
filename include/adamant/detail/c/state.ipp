// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/adamant.h>: states, safetensors files and loss scalers.
#include <adamant/adamant.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <adamant/optimizer.hpp>
#include <adamant/safetensors.hpp>
#include <adamant/detail/c/handles.hpp>
#include <adamant/detail/c/struct_descriptions.hpp>
#include <adamant/detail/io/split_view.hpp>

struct adamant_state {
    // The optimizer owns the views of split master weights and destroys them with its shards. This list may live
    // longer, so copy them.
    explicit adamant_state(adamant::state_dict state) : views(std::move(state))
    {
        for (adamant::state_tensor& t : views.tensors)
            if (t.source != nullptr) {
                auto const& shard_view = static_cast<adamant::detail::split_view const&>(*t.source);
                split.push_back(std::make_unique<adamant::detail::split_view>(shard_view));
                t.source = split.back().get();
                t.target = nullptr; // load() never writes to it
            }
    }

    adamant::state_dict views;
    std::vector<std::unique_ptr<adamant::detail::split_view>> split;
};

namespace adamant::c {

static adamant_loss_scaler to_c(loss_scaler_state const& source)
{
    return {sizeof(adamant_loss_scaler), source.scale, source.good_steps, source.hysteresis_left};
}
adamant_loss_scaler struct_description<adamant_loss_scaler>::defaults()
{
    return to_c(loss_scaler_state{});
}

// Saving is logically const: it only copies a device's part of the state to the host.
static optimizer& to_save(adamant_optimizer const* handle)
{
    return unwrap(const_cast<adamant_optimizer*>(handle));
}

static void load_all(optimizer& target, std::vector<safetensors_state> const& read)
{
    std::vector<state_dict> states;
    for (safetensors_state const& r : read)
        states.push_back(r.state());
    target.load(merge(states));
}

static state_dict const& unwrap(adamant_state const* handle)
{
    return needed(handle, "the state").views;
}
static state_tensor const& tensor_of(state_dict const& state, std::size_t index)
{
    if (index >= state.tensors.size())
        detail::throw_invalid_argument({"there is no tensor ", index, "; the state has ", state.tensors.size()});
    return state.tensors[index];
}

} // namespace adamant::c

using namespace adamant::c;

adamant_status adamant_set_steps(adamant_optimizer* optimizer, uint64_t steps)
{
    return guarded([&] { unwrap(optimizer).set_steps(steps); });
}
adamant_status adamant_loss_scaler_init(adamant_loss_scaler* scaler, size_t struct_bytes)
{
    return init(scaler, struct_bytes);
}
adamant_status adamant_get_loss_scaler(const adamant_optimizer* optimizer, adamant_loss_scaler* scaler, int32_t* found)
{
    return guarded([&] {
        std::optional<adamant::loss_scaler_state> const state = unwrap(optimizer).loss_scaler();
        check_target(scaler);
        needed(found, "found") = state.has_value();
        if (state)
            write(to_c(*state), scaler);
    });
}
adamant_status adamant_set_loss_scaler(adamant_optimizer* optimizer, const adamant_loss_scaler* scaler)
{
    return guarded([&] {
        adamant::optimizer& o = unwrap(optimizer);
        adamant_loss_scaler const s = read(scaler);
        o.set_loss_scaler({s.scale, s.good_steps, s.hysteresis_left});
    });
}

adamant_status adamant_save_safetensors(const adamant_optimizer* optimizer, const char* path)
{
    return guarded([&] {
        adamant::optimizer& o = to_save(optimizer);
        note_of_save(adamant::save_safetensors(&needed(path, "path"), o.state()).reason);
    });
}
adamant_status adamant_check_can_save(const char* path)
{
    return guarded([&] { note_of_save(adamant::check_can_save(&needed(path, "path")).reason); });
}
adamant_status adamant_load_safetensors(adamant_optimizer* optimizer, const char* const* paths, size_t count)
{
    return guarded([&] {
        adamant::optimizer& o = unwrap(optimizer);
        if (count == 0)
            adamant::detail::throw_invalid_argument({"cannot load a state from no files. Pass one or more."});
        needed(paths, "paths");
        std::vector<adamant::safetensors_state> files;
        for (std::size_t i = 0; i < count; ++i)
            files.emplace_back(&needed(paths[i], "a path"));
        load_all(o, files);
    });
}

adamant_status adamant_save_bytes(const adamant_optimizer* optimizer, size_t* bytes)
{
    return guarded([&] {
        adamant::optimizer& o = to_save(optimizer);
        needed(bytes, "bytes") = adamant::safetensors_bytes(o.state());
    });
}
adamant_status adamant_save_memory(const adamant_optimizer* optimizer, void* destination, size_t bytes, size_t* written)
{
    return guarded([&] {
        adamant::optimizer& o = to_save(optimizer);
        std::span const memory(&needed(static_cast<std::byte*>(destination), "destination"), bytes);
        give(written, adamant::write_safetensors(memory, o.state()));
    });
}
adamant_status adamant_load_memory(adamant_optimizer* optimizer, const void* const* states, const size_t* bytes,
                                   size_t count)
{
    return guarded([&] {
        adamant::optimizer& o = unwrap(optimizer);
        if (count == 0)
            adamant::detail::throw_invalid_argument({"cannot load a state from nothing. Pass one or more in memory."});
        needed(states, "states");
        needed(bytes, "bytes");
        std::vector<adamant::safetensors_state> read;
        for (std::size_t i = 0; i < count; ++i)
            read.emplace_back(std::span(&needed(static_cast<std::byte const*>(states[i]), "a state"), bytes[i]));
        load_all(o, read);
    });
}

adamant_status adamant_state_create(adamant_optimizer* optimizer, adamant_state** made)
{
    return guarded([&] {
        adamant::optimizer& o = unwrap(optimizer);
        needed(made, "made");
        *made = new adamant_state(o.state());
    });
}
void adamant_state_free(adamant_state* state)
{
    delete state;
}
adamant_status adamant_state_tensor_count(const adamant_state* state, size_t* count)
{
    return guarded([&] { needed(count, "count") = unwrap(state).tensors.size(); });
}
adamant_status adamant_state_tensor_init(adamant_state_tensor* tensor, size_t struct_bytes)
{
    return init(tensor, struct_bytes);
}
adamant_status adamant_state_get_tensor(const adamant_state* state, size_t index, adamant_state_tensor* tensor)
{
    return guarded([&] {
        adamant::state_dict const& source = unwrap(state);
        check_target(tensor);
        adamant::state_tensor const& t = tensor_of(source, index);
        adamant::state_param const& param = source.params[t.param];
        adamant_state_tensor result{};
        result.param = param.name.c_str();
        result.group = source.groups[param.group].name.c_str();
        result.data = t.data;
        result.elements = t.elements;
        result.begin = t.begin;
        result.shape = param.shape.data();
        result.dims = param.shape.size();
        result.dtype = static_cast<adamant_dtype>(t.type);
        result.array = static_cast<adamant_state_array>(t.array);
        write(result, tensor);
    });
}
adamant_status adamant_state_read_tensor(const adamant_state* state, size_t index, size_t begin, size_t elements,
                                         void* destination)
{
    return guarded([&] {
        adamant::state_tensor const& t = tensor_of(unwrap(state), index);
        if (elements != 0)
            needed(static_cast<std::byte*>(destination), "destination");
        adamant::read_elements(t, begin, elements, static_cast<std::byte*>(destination));
    });
}
