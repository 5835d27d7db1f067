// SPDX-License-Identifier: Apache-2.0
// Internal to the C library: translates names of the C++ API in error texts to names of the C API.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace adamant::c {

struct c_name {
    std::string_view in_cpp;
    std::string_view in_c;
};

// No entry may begin with an earlier one. The test "C: texts name what C has" fails if an entry is missing.
inline constexpr c_name c_names[] = {
    // Functions
    {"abandon()", "adamant_abandon()"},
    {"accumulate()", "adamant_accumulate()"},
    {"add_group()", "adamant_add_group()"},
    {"add_shard()", "adamant_add_shard()"},
    {"any_shard::track()", "the field changed of adamant_shard"},
    {"begin_step()", "adamant_begin_step()"},
    {"clear_accumulators()", "adamant_clear_accumulators()"},
    {"find_group()", "adamant_find_group()"},
    {"find_shard()", "adamant_find_shard()"},
    {"finish()", "adamant_finish()"},
    {"flush()", "adamant_zenflow_flush()"},
    {"skip()", "adamant_skip()"},
    {"load()", "adamant_load_...()"},
    {"place()", "adamant_place()"},
    {"place(nullptr)", "adamant_place() without a device"},
    {"prepare()", "adamant_prepare()"},
    {"remove_group()", "adamant_remove_group()"},
    {"remove_shard()", "adamant_remove_shard()"},
    {"rollback()", "adamant_rollback()"},
    {"save_safetensors()", "adamant_save_safetensors()"},
    {"set_device_arrays()", "adamant_set_device_arrays()"},
    {"set_gradient()", "adamant_set_gradient()"},
    {"set_hyperparameters()", "adamant_set_hyperparameters()"},
    {"set_loss_scaler()", "adamant_set_loss_scaler()"},
    {"set_steps()", "adamant_set_steps()"},
    {"split()", "adamant_split()"},
    {"state()", "adamant_state_create() or adamant_save_...()"},
    {"step()", "adamant_step()"},
    {"step_gradients()", "adamant_step_gradients()"},
    {"step_async()", "adamant_step_async()"},
    {"submit()", "adamant_submit()"},
    {"update_host_arrays()", "adamant_update_host_arrays()"},
    {"wait()", "adamant_wait()"},
    {"Wait for its ticket first", "Call adamant_wait() first"},
    // Enumerators
    {"binding::if_possible", "ADAMANT_BIND_IF_POSSIBLE"},
    {"binding::none", "ADAMANT_BIND_NONE"},
    {"binding::required", "ADAMANT_BIND_REQUIRED"},
    {"decay_mode::decoupled", "ADAMANT_DECAY_DECOUPLED"},
    {"decay_mode::l2", "ADAMANT_DECAY_L2"},
    {"dtype::bfloat16", "ADAMANT_BFLOAT16"},
    {"dtype::float16", "ADAMANT_FLOAT16"},
    {"dtype::float32", "ADAMANT_FLOAT32"},
    {"dtype::quantized8", "ADAMANT_QUANTIZED8"},
    {"dtype::split_float32", "ADAMANT_SPLIT_FLOAT32"},
    {"rounding::nearest", "ADAMANT_ROUND_NEAREST"},
    {"rounding::stochastic", "ADAMANT_ROUND_STOCHASTIC"},
    {"split_unit::deepspeed", "ADAMANT_SPLIT_DEEPSPEED"},
    {"split_unit::element", "ADAMANT_SPLIT_ELEMENT"},
    {"split_unit::shard", "ADAMANT_SPLIT_SHARD"},
    // Options whose names differ
    {"mode is not a valid decay_mode", "decay is not a valid decay mode"},
    {"mode is unset", "decay is unset"},
    {"rounding is no valid choice", "exp_avg_sq_rounding or param_rounding is no valid choice"},
    {"set mode to", "set decay to"},
};

// Names for calls of zenflow_optimizer, which shares some function names with optimizer.
inline constexpr c_name c_zenflow_names[] = {
    {"abandon()", "adamant_zenflow_abandon()"},
    {"add_group()", "adamant_zenflow_add_group()"},
    {"add_param()", "adamant_zenflow_add_param()"},
    {"add_shard()", "adamant_zenflow_add_param()"},
    {"begin_step()", "adamant_zenflow_begin_step()"},
    {"finish()", "adamant_zenflow_finish()"},
    {"flush()", "adamant_zenflow_flush()"},
    {"skip()", "adamant_zenflow_skip()"},
    {"load()", "adamant_zenflow_load()"},
    {"place()", "adamant_zenflow_place()"},
    {"place(nullptr)", "adamant_zenflow_place() without a device"},
    {"prepare()", "adamant_zenflow_prepare()"},
    {"save_safetensors()", "adamant_zenflow_save_safetensors()"},
    {"set_device_arrays()", "adamant_zenflow_set_device_arrays()"},
    {"set_gradient()", "adamant_zenflow_set_gradient()"},
    {"set_hyperparameters()", "adamant_zenflow_set_hyperparameters()"},
    {"state()", "adamant_zenflow_get_...() or adamant_zenflow_save_safetensors()"},
    {"step()", "adamant_zenflow_step_gradients()"},
    {"step_gradients()", "adamant_zenflow_step_gradients()"},
    {"submit()", "adamant_zenflow_submit()"},
};

[[nodiscard]] constexpr bool is_name_char(char c) noexcept
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == ':';
}

// The entry whose C++ name begins at `offset` of a text; null if none does. Ignores parts of longer names and of paths.
[[nodiscard]] constexpr c_name const* c_name_at(std::string_view text, std::size_t offset,
                                                std::span<c_name const> names) noexcept
{
    if (offset != 0 && (is_name_char(text[offset - 1]) || text[offset - 1] == '/'))
        return nullptr;
    for (c_name const& name : names)
        if (text.substr(offset).starts_with(name.in_cpp)) {
            std::size_t const end = offset + name.in_cpp.size();
            bool const colon = text.substr(end).starts_with(':') && !text.substr(end).starts_with("::");
            if (end == text.size() || colon || !is_name_char(text[end - 1]) || !is_name_char(text[end]))
                return &name;
        }
    return nullptr;
}

// Calls visit(piece) for the pieces of the translated text. Entries of `names` take precedence over c_names. Text in
// single quotes comes from the caller and is not translated. Allocates nothing.
template <class Visit>
constexpr void each_piece_in_c(std::string_view text, std::span<c_name const> names, Visit const& visit)
{
    std::size_t done = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\'' && (i == 0 || text[i - 1] == ' ' || text[i - 1] == '(')) {
            std::size_t const end = text.find('\'', i + 1);
            i = end == text.npos ? i : end;
            continue;
        }
        c_name const* name = c_name_at(text, i, names);
        if (name == nullptr)
            name = c_name_at(text, i, c_names);
        if (name != nullptr) {
            visit(text.substr(done, i - done));
            visit(name->in_c);
            done = i + name->in_cpp.size();
            i = done - 1;
        }
    }
    visit(text.substr(done));
}

} // namespace adamant::c
