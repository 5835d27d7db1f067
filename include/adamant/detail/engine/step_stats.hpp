// SPDX-License-Identifier: Apache-2.0
// Statistics of a step, from which its report is made: bytes, elements and times of both backends.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include <adamant/device.hpp>
#include <adamant/executor.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/detail/engine/block_table.hpp>
#include <adamant/detail/engine/cpu_backend.hpp>
#include <adamant/detail/engine/decision.hpp>
#include <adamant/detail/engine/device_backend.hpp>
#include <adamant/detail/engine/registry.hpp>
#include <adamant/detail/engine/report_fields.hpp>
#include <adamant/detail/engine/step_plan.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Passes whose busy time is not measured.
enum class unmeasured_passes { none, later, all };

class step_stats {
public:
    step_stats(registry const& shard_registry, step_plan const& plan, block_table const& blocks,
               cpu_backend const& host)
        : registry_(shard_registry), plan_(plan), blocks_(blocks), host_(host), pus_(bound_pus(host.cpu()))
    {
    }

    [[nodiscard]] optimizer_report& report() noexcept { return report_; }

    // Starts the statistics of a step. device: null without a device.
    void begin(device_backend const* device)
    {
        share_of_first_ = share_of_rest_ = ranks_s_ = 0;
        if (device != nullptr)
            usage_before_ = device->device().usage();
        counted_journal_bytes_ = 0;
        report_ = {};
        begin_report(report_, host_.cpu(), pus_, plan_.terms);
        started_ = std::chrono::steady_clock::now();
    }
    // Estimates the busy time of these passes by their duration: cpu_backend::run_all() does not measure it.
    void set_unmeasured(unmeasured_passes passes) noexcept
    {
        share_of_first_ = passes == unmeasured_passes::all ? host_.share_of_threads() : 0;
        share_of_rest_ = passes != unmeasured_passes::none ? host_.share_of_threads() : 0;
    }
    // Calls reduce() after the first pass, and measures how long this rank waits for the others.
    template <class Reduce>
    void wait_for_ranks(Reduce const& reduce)
    {
        auto const start = std::chrono::steady_clock::now();
        reduce();
        ranks_s_ = seconds_since(start);
    }
    // Records the norm over all ranks.
    void norm_is_known(grad_squares const& squares, norm_verdict const& verdict)
    {
        started_update_ = std::chrono::steady_clock::now();
        report_.gradients.seconds = std::chrono::duration<double>(started_update_ - started_).count();
        report_norm(report_, plan_.measures(), squares, verdict);
        count_first_pass();
    }
    [[nodiscard]] first_pass_facts facts(device_backend const* device) const
    {
        bool const assumed = plan_.first_pass == block_pass::speculate;
        bool const device_has_records = device != nullptr && device->has_records();
        first_pass_facts facts;
        facts.pass = plan_.first_pass;
        facts.skips = report_.outcome == step_outcome::skipped;
        facts.same_scales = plan_.assumption_holds();
        facts.stepped = rollback_bytes_ != 0 || (device_has_records && on_device_ != 0);
        facts.left_on_cpu = rest_bytes_ != 0;
        facts.left_on_device = device != nullptr && device->has_pieces() && !(assumed && device_has_records);
        facts.keeps_records = plan_.keeps_records();
        facts.has_device = device != nullptr;
        return facts;
    }
    void decided(decision const& next)
    {
        report_.rolled_back = next.rolled_back;
        if (next.state == step_state::over)
            return;
        if (next.pass == block_pass::rest)
            report_.update.bytes_moved = rest_bytes_;
        else
            report_.update.bytes_moved = rollback_bytes_ + (next.state == step_state::skipping ? 0 : step_bytes());
    }
    // The step's records are about to be cleared, in the middle of the step.
    void forgets_records() noexcept { counted_journal_bytes_ = 0; }
    // Completes the report after the last pass.
    void finish(device_backend const* device)
    {
        // Records of later passes, kept for rollback().
        std::size_t const recorded = blocks_.record_bytes() - counted_journal_bytes_;
        report_.journal_bytes += recorded;
        report_.update.bytes_moved += recorded;
        report_.ratio = report_.elements == 0
                            ? 1.0
                            : 1 - static_cast<double>(report_.device.elements) / static_cast<double>(report_.elements);
        if (device != nullptr)
            report_.device = device_report_since(usage_before_, device->device().usage(), report_.device.elements);
        report_.update.seconds = seconds_since(started_update_);
        report_.seconds = report_.gradients.seconds + report_.update.seconds;
        report_.cpu_busy_s = host_.busy_seconds() + share_of_first_ * (report_.gradients.seconds - ranks_s_) +
                             share_of_rest_ * report_.update.seconds;
    }

private:
    [[nodiscard]] static double seconds_since(std::chrono::steady_clock::time_point start)
    {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    // Bytes of n elements of a shard.
    [[nodiscard]] static std::size_t sum_bytes_of(tracked_shard const& s, std::size_t n) noexcept
    {
        return s.summed != 0 ? s.shard.bytes(shard_array::accumulator, n) : 0;
    }
    [[nodiscard]] static std::size_t grad_bytes_of(tracked_shard const& s, std::size_t n) noexcept
    {
        return s.shard.bytes(shard_array::grad, n) + sum_bytes_of(s, n);
    }
    [[nodiscard]] static std::size_t step_bytes_of(tracked_shard const& s, std::size_t n) noexcept
    {
        return adamant::step_bytes(s.shard.format().types, n) + sum_bytes_of(s, n);
    }
    // Bytes of a whole step on the CPU.
    [[nodiscard]] std::size_t step_bytes() const noexcept
    {
        std::size_t bytes = 0;
        for (std::size_t i = 0; i < registry_.size(); ++i)
            bytes += plan_.takes_part(i) ? step_bytes_of(registry_[i], host_.elements_of(i)) : 0;
        return bytes;
    }
    // Counts the bytes that the first pass moved, and those that finishing the step or rolling it back would move.
    void count_first_pass()
    {
        report_.journal_bytes = counted_journal_bytes_ = blocks_.record_bytes();
        rest_bytes_ = rollback_bytes_ = on_device_ = 0;
        bool const applied = report_.outcome == step_outcome::applied;
        for (std::size_t i = 0; i < registry_.size(); ++i) {
            if (!plan_.takes_part(i))
                continue;
            tracked_shard const& s = registry_[i];
            std::size_t const on_cpu = host_.elements_of(i);
            report_.elements += applied ? s.shard.size() : 0;
            on_device_ += s.shard.size() - on_cpu;
            std::size_t const stepped = plan_.first_pass == block_pass::step        ? on_cpu
                                        : plan_.first_pass == block_pass::speculate ? blocks_.recorded_elements(s)
                                                                                    : 0;
            std::size_t const waiting = on_cpu - stepped;
            report_.gradients.bytes_moved += step_bytes_of(s, stepped) + grad_bytes_of(s, waiting);
            rest_bytes_ += step_bytes_of(s, waiting);
            rollback_bytes_ += 2 * s.shard.state_bytes(stepped) + grad_bytes_of(s, stepped);
            report_.shards_waited += applied && plan_.first_pass == block_pass::speculate && waiting != 0;
        }
        report_.device.elements = applied ? on_device_ : 0;
        report_.gradients.bytes_moved += report_.journal_bytes;
        rollback_bytes_ += report_.journal_bytes;
    }

    registry const& registry_;
    step_plan const& plan_;
    block_table const& blocks_;
    cpu_backend const& host_;
    std::string pus_;
    optimizer_report report_;
    std::chrono::steady_clock::time_point started_, started_update_;
    double share_of_first_ = 0, share_of_rest_ = 0; // of the threads; see set_unmeasured()
    double ranks_s_ = 0;                            // waiting for other ranks
    std::size_t rest_bytes_ = 0;                    // to step the remaining blocks
    std::size_t rollback_bytes_ = 0;                // to roll back the first pass
    std::size_t on_device_ = 0;
    std::size_t counted_journal_bytes_ = 0; // of the current records, those in the report already
    device_usage usage_before_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
