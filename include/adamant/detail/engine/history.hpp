// SPDX-License-Identifier: Apache-2.0
// State that an optimizer carries from step to step, and the values that rollback() restores in addition to the
// records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <adamant/optimizer_options.hpp>
#include <adamant/detail/engine/registry.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

struct training_state {
    std::uint64_t steps = 0;
    std::optional<loss_scaler_state> scaler = {};
    // A bit for each of the last eight steps: its assumed clip coefficient was wrong.
    std::uint8_t wrong_assumptions = 0;
    void record_assumption(bool was_right) noexcept
    {
        wrong_assumptions = static_cast<std::uint8_t>(wrong_assumptions << 1 | !was_right);
    }
    [[nodiscard]] double loss_scale() const noexcept { return scaler ? scaler->scale : 1.0; }
};

class step_history {
public:
    // Reserves memory for this number of shards, so that steps do not allocate.
    void reserve(std::size_t shards) { sums_.resize(shards); }
    static constexpr std::size_t bytes_for_each_shard = sizeof(unsigned);

    // Whether the last step can be rolled back.
    [[nodiscard]] bool has_step() const noexcept { return has_step_; }
    void forget() noexcept { has_step_ = false; }
    // Saves the values that a step is about to change.
    void keep(std::optional<loss_scaler_state> const& scaler, registry const& shard_registry) noexcept
    {
        scaler_ = scaler;
        shard_registry.copy_sums_to(sums_);
        has_step_ = true;
    }
    [[nodiscard]] std::optional<loss_scaler_state> const& scaler() const noexcept { return scaler_; }
    // Number of micro-steps in the accumulator of each shard.
    [[nodiscard]] std::vector<unsigned> const& sums() const noexcept { return sums_; }

private:
    bool has_step_ = false;
    std::optional<loss_scaler_state> scaler_;
    std::vector<unsigned> sums_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
