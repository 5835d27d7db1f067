// SPDX-License-Identifier: Apache-2.0
// Internal to the C library: converts structs of C to those of C++, and back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <adamant/adamant.h>
#include <adamant/cores.hpp>
#include <adamant/executor.hpp>
#include <adamant/formats.hpp>
#include <adamant/hyperparameters.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/shard.hpp>
#include <adamant/detail/c/struct_descriptions.hpp>

namespace adamant::c {

template <class Enum>
Enum to_enum(std::int32_t value, Enum last, char const* name)
{
    if (value < 0 || value > static_cast<std::int32_t>(last))
        detail::throw_invalid_argument(
            {name, " is ", value, ", but must be from 0 to ", static_cast<std::int32_t>(last)});
    return static_cast<Enum>(value);
}

inline std::string text_or_empty(char const* text)
{
    return text == nullptr ? std::string() : std::string(text);
}
template <class T>
std::optional<T> unless_zero(T value)
{
    return value == T{} ? std::nullopt : std::optional<T>(value);
}

adamant_hyperparameters to_c(hyperparameters const& source);
hyperparameters from_c(adamant_hyperparameters const* source);

adamant_loss_scaling to_c(loss_scaling_options const& source);
loss_scaling_options from_c(adamant_loss_scaling const* source);

// The machine of the options; and their request for cores, with the rank.
machine machine_of(adamant_core_options const& source);
struct request_of_rank {
    core_request request;
    unsigned rank;
};
request_of_rank request_of(adamant_core_options const& source);

binding binding_of(adamant_binding value);
isa isa_of(char const* name);

// The format of a shard, and the whole shard. Both throw invalid_argument for an unsupported combination of types.
using find_format_function = shard_format const* (*)(shard_dtypes const&) noexcept;
shard_format const& format_of(adamant_shard const& source, find_format_function find = find_format);
struct shard_of_c {
    any_shard view;
    accumulator_array accumulator;
};
shard_of_c shard_of(adamant_shard const& source);
// A shard for a step without an optimizer: without an accumulator. function: the caller's name in errors.
any_shard step_shard_of(adamant_shard const& source, char const* function);
// The shard's position in its parameter.
shard_position position_of(adamant_shard const& source);

optimizer_options from_c(adamant_optimizer_options const& source);
// The result refers to the caller's learning rates.
step_values from_c(adamant_step_values const* values);
// report may be null.
void give_report(optimizer_report const& source, adamant_report* report) noexcept;

} // namespace adamant::c
