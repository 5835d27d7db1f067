// SPDX-License-Identifier: Apache-2.0
// The report of an optimizer's step: bytes, elements and times on both sides.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

#include <adamant/optimizer/both_sides.hpp>
#include <adamant/step/optimizer_report.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

class step_account : protected both_sides {
protected:
    step_account(executor const& cpu, work_line::end_function at_end) : both_sides(cpu, std::move(at_end))
    {
        pus_ = passes_.cpu().team()->bound() ? to_list(passes_.cpu().team()->bound_to()) : std::string();
    }
    ~step_account() = default;

    // Of a step that begins now.
    void begin_report()
    {
        records_were_forgotten_ = false;
        if (side_.there())
            usage_before_ = side_.device().usage();
        report_ = {};
        report_.tier = passes_.cpu().tier();
        report_.threads = passes_.cpu().threads();
        report_.pus = pus_;
        started_ = std::chrono::steady_clock::now();
    }
    [[nodiscard]] static std::size_t step_bytes_of(tracked_shard const& s) noexcept
    {
        namespace arrays = shard_array;
        return 2 * s.shard.state_bytes() + s.shard.elem_bytes(arrays::weight_out) + grad_bytes_of(s);
    }
    [[nodiscard]] static std::size_t grad_bytes_of(tracked_shard const& s) noexcept
    {
        namespace arrays = shard_array;
        return s.shard.elem_bytes(arrays::grad) + (s.summed != 0 ? s.shard.elem_bytes(arrays::accumulator) : 0);
    }
    [[nodiscard]] std::size_t step_bytes() const noexcept
    {
        std::size_t bytes = 0;
        for (tracked_shard const& s : passes_.shards)
            bytes += s.left_out ? 0 : s.cpu_elems * step_bytes_of(s);
        return bytes;
    }
    // The first pass is over, and its outcome known: what it did, and what would be left to do or to undo.
    void count_first_pass()
    {
        report_.journal_bytes = passes_.journal_bytes();
        rest_bytes_ = undo_bytes_ = 0;
        something_stepped_ = false;
        for (tracked_shard const& s : passes_.shards) {
            if (s.left_out)
                continue;
            report_.elements += report_.outcome == step_outcome::applied ? s.shard.size() : 0;
            report_.device.elements += report_.outcome == step_outcome::applied ? s.shard.size() - s.cpu_elems : 0;
            std::size_t const stepped = first_pass_ == block_pass::step        ? s.cpu_elems
                                        : first_pass_ == block_pass::speculate ? passes_.recorded_elements(s)
                                                                               : 0;
            std::size_t const waiting = s.cpu_elems - stepped;
            something_stepped_ =
                something_stepped_ || stepped != 0 || (s.cpu_elems != s.shard.size() && side_.with_records());
            report_.gradients.bytes_moved += stepped * step_bytes_of(s) + waiting * grad_bytes_of(s);
            rest_bytes_ += waiting * step_bytes_of(s);
            undo_bytes_ += stepped * (2 * s.shard.state_bytes() + grad_bytes_of(s));
            report_.shards_waited +=
                first_pass_ == block_pass::speculate && report_.outcome == step_outcome::applied && waiting != 0;
        }
        report_.gradients.bytes_moved += report_.journal_bytes;
        undo_bytes_ += report_.journal_bytes;
    }

    // All passes are over.
    void finish_report()
    {
        // What the last pass has recorded, for rollback().
        std::size_t const recorded = passes_.journal_bytes() - (records_were_forgotten_ ? 0 : report_.journal_bytes);
        report_.journal_bytes += recorded;
        report_.update.bytes_moved += recorded;
        report_.cpu_busy_s = passes_.busy_seconds();
        report_.ratio = report_.elements == 0
                            ? 1.0
                            : 1 - static_cast<double>(report_.device.elements) / static_cast<double>(report_.elements);
        if (side_.there())
            report_device();
        report_.update.seconds = seconds_since(started_update_);
        report_.seconds = seconds_since(started_);
    }
    [[nodiscard]] static double seconds_since(std::chrono::steady_clock::time_point start)
    {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }

    optimizer_report report_;
    std::chrono::steady_clock::time_point started_, started_update_;
    bool something_stepped_ = false; // by the first pass, on either side
    std::size_t rest_bytes_ = 0;
    std::size_t undo_bytes_ = 0;
    bool records_were_forgotten_ = false; // those of the first pass, so that a later one's are all there are

private:
    void report_device()
    {
        device_usage const now = side_.device().usage();
        auto const bytes = [&](device_lane lane) {
            auto const i = static_cast<std::size_t>(lane);
            return static_cast<std::size_t>(now.bytes[i] - usage_before_.bytes[i]);
        };
        auto const seconds = [&](device_lane lane) {
            auto const i = static_cast<std::size_t>(lane);
            return now.busy_s[i] - usage_before_.busy_s[i];
        };
        report_.device = {report_.device.elements,    seconds(device_lane::work), seconds(device_lane::up),
                          seconds(device_lane::down), bytes(device_lane::work),   bytes(device_lane::up),
                          bytes(device_lane::down)};
    }

    std::string pus_;
    device_usage usage_before_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
