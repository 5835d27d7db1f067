// SPDX-License-Identifier: Apache-2.0
// What an optimizer carries from step to step, and what it needs to take the last one back, beside the records.
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
    std::uint8_t wrong_assumptions = 0; // a bit for each of the last eight steps
    void assumed(bool rightly) noexcept
    {
        wrong_assumptions = static_cast<std::uint8_t>(wrong_assumptions << 1 | !rightly);
    }
    [[nodiscard]] double loss_scale() const noexcept { return scaler ? scaler->scale : 1.0; }
};

class step_history {
public:
    // For this number of shards, so that nothing is allocated in a step.
    void reserve(std::size_t shards) { sums_.resize(shards); }
    static constexpr std::size_t bytes_for_each_shard = sizeof(unsigned);

    // Whether the last step can be rolled back.
    [[nodiscard]] bool has_step() const noexcept { return has_step_; }
    void forget() noexcept { has_step_ = false; }
    // A step is about to change these.
    void keep(std::optional<loss_scaler_state> const& scaler, registry const& over) noexcept
    {
        scaler_ = scaler;
        over.copy_sums_to(sums_);
        has_step_ = true;
    }
    [[nodiscard]] std::optional<loss_scaler_state> const& scaler() const noexcept { return scaler_; }
    // How many micro-steps the accumulator of each shard held.
    [[nodiscard]] std::vector<unsigned> const& sums() const noexcept { return sums_; }

private:
    bool has_step_ = false;
    std::optional<loss_scaler_state> scaler_;
    std::vector<unsigned> sums_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
