// SPDX-License-Identifier: Apache-2.0
// The inside of the C library: from C's structs to those of C++, and back.
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
#include <adamant/detail/c/about.hpp>

namespace adamant::c {

template <class Enum>
Enum to_enum(std::int32_t value, Enum last, char const* what)
{
    if (value < 0 || value > static_cast<std::int32_t>(last))
        detail::throw_invalid_argument(
            {what, " is ", value, ", but it is from 0 to ", static_cast<std::int32_t>(last)});
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

adamant_hyperparameters to_c(hyperparameters const& from);
hyperparameters from_c(adamant_hyperparameters const* from);

adamant_loss_scaling to_c(loss_scaling_options const& from);
loss_scaling_options from_c(adamant_loss_scaling const* from);

// The machine that the options mean, and what is asked of it, for which rank.
machine machine_of(adamant_core_options const& from);
struct request_of_rank {
    core_request request;
    unsigned rank;
};
request_of_rank request_of(adamant_core_options const& from);

binding binding_of(adamant_binding from);
isa isa_of(char const* name);

// The types alone, and all of a shard. Both throw invalid_argument for types that no shard has.
shard_format const& format_of(adamant_shard const& from);
struct shard_of_c {
    any_shard view;
    accumulator_array accumulator;
};
shard_of_c shard_of(adamant_shard const& from);
// Where it lies in its parameter.
shard_place place_of(adamant_shard const& from);

optimizer_options from_c(adamant_optimizer_options const& from);
// The learning rates stay the caller's.
step_values from_c(adamant_step_values const* values);
// to may be null.
void give_report(optimizer_report const& from, adamant_report* to) noexcept;

} // namespace adamant::c
