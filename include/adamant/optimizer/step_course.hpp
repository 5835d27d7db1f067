// SPDX-License-Identifier: Apache-2.0
// The course of an optimizer's step: what it is opened with, what becomes of it once the norm is known, and its report.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <adamant/core/error.hpp>
#include <adamant/numerics/float_mode.hpp>
#include <adamant/optimizer/step_account.hpp>
#include <adamant/step/optimizer_options.hpp>
#include <adamant/step/optimizer_report.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// The inside of an optimizer, which checks who may call what when.
class step_course : protected step_account {
protected:
    enum class stage : std::uint8_t { idle, open, async };
    enum class progress : std::uint8_t { first_pass, back, last_pass, without_room };

    step_course(executor const& cpu, optimizer_options options)
        : step_account(cpu, [this] { return next_at_end(); }), options_(std::move(options))
    {
        validate(options_);
        passes_.keep_checksums = options_.keep_last_step;
        side_.set_options(options_.device_timeout_s, options_.device_records);
        if (options_.loss_scaling)
            scaler_ = initial_state(*options_.loss_scaling);
    }
    ~step_course() = default;

    void reserve_for_steps(std::size_t groups)
    {
        passes_.speculated.reserve(groups);
        passes_.settled.reserve(groups);
        lr_.reserve(groups);
        summed_before_.reserve(passes_.shards.size());
    }

    // What the next loss is to be multiplied with.
    [[nodiscard]] double next_loss_scale() const noexcept { return scaler_ ? scaler_->scale : 1.0; }

    void require_idle(char const* call) const
    {
        if (stage_ != stage::idle)
            throw invalid_argument(
                std::string("adamant: ") + call + " is called while a step is under way; " +
                (stage_ == stage::open ? "finish() or abandon() it first" : "wait for its ticket first"));
    }
    void require_step_open(char const* call) const
    {
        if (stage_ != stage::open)
            throw invalid_argument(std::string("adamant: ") + call +
                                   " is called, but no step is open; begin_step() first");
        passes_.check_caller();
    }

    // All is laid out. The groups stay where they are until the step is over.
    void open_step(std::vector<parameter_group> const& groups, step_values const& values, bool as_they_arrive)
    {
        bool const own_limit = !values.max_norm && !values.max_abs_grad; // one that is said replaces both
        double const max_norm = own_limit ? options_.max_norm : values.max_norm.value_or(0);
        double const max_abs = own_limit ? options_.max_abs_grad : values.max_abs_grad.value_or(0);
        check_limits(max_norm, max_abs);
        if (!values.lr.empty() && values.lr.size() != groups.size())
            throw invalid_argument("adamant: there are learning rates for " + std::to_string(values.lr.size()) +
                                   " groups, but there are " + std::to_string(groups.size()) + " groups");
        stepped_groups_ = &groups;
        max_norm_ = max_norm;
        max_abs_ = max_abs;
        loss_scale_ = values.loss_scale.value_or(next_loss_scale());
        scales_itself_ = !values.loss_scale;
        lr_.assign(values.lr.begin(), values.lr.end());
        // Throws what values cannot be.
        rounded_to_nearest([&] { make_group_steps(1.0, passes_.speculated); });
        passes_.settled = passes_.speculated;
        summed_before_.resize(passes_.shards.size()); // here, as nothing may fail once arrays have been written
        // With a device every step can be taken back until both sides are through with it, for a device may fail.
        passes_.keep_records = options_.keep_last_step || side_.there();
        passes_.waits_for_room = side_.there();
        passes_.on_weights = {};
        if (side_.there())
            passes_.on_weights = [this](std::size_t range) { send_weights(range); };
        passes_.now_skips = options_.on_nonfinite == nonfinite_policy::skip;
        norm_first_ = max_norm_ != 0 || passes_.now_skips || options_.reduce;
        bool const speculates =
            norm_first_ && as_they_arrive &&
            (options_.speculate == speculation::always ||
             (options_.speculate == speculation::automatic && std::popcount(taken_back_of_last_eight_) <= 4));
        first_pass_ = !norm_first_ ? (side_.there() ? block_pass::speculate : block_pass::step)
                      : speculates ? block_pass::speculate
                                   : block_pass::measure;
        for (tracked_shard& s : passes_.shards)
            s.submitted = s.left_out = false;
        passes_.forget_records();
        passes_.begin();
        can_go_back_ = false;
        error_ = nullptr;
        forget_failures();
        if (side_.there()) {
            close_gate(false);
            side_.forget_records();
        }
        at_ = progress::first_pass;
        begin_report();
        report_.step = steps_ + 1;
        report_.loss_scale = loss_scale_;
        stage_ = stage::open;
    }

    void make_group_steps(double clip, std::vector<group_step>& out) const
    {
        std::vector<parameter_group> const& groups = *stepped_groups_;
        out.resize(groups.size());
        for (std::size_t i = 0; i < groups.size(); ++i) {
            hyperparameters hyper = groups[i].hyper;
            if (!lr_.empty())
                hyper.lr = lr_[i];
            coefficients c =
                make_coefficients(hyper, steps_ + 1, {.loss_scale = loss_scale_, .clip_coefficient = clip});
            if (groups[i].maximize)
                c.grad_scale = -c.grad_scale;
            gradient_rules rules{.zero_nonfinite = options_.on_nonfinite == nonfinite_policy::zero};
            if (max_abs_ != 0) {
                rules.limited = true;
                rules.scale = c.grad_scale;
                rules.bound = static_cast<float>(max_abs_);
                c.grad_scale = 1;
            }
            out[i] = {c, rules};
        }
    }

    void set_summed(std::vector<unsigned> const& summed) noexcept
    {
        for (std::size_t i = 0; i < passes_.shards.size(); ++i)
            passes_.shards[i].summed = summed.empty() ? 0 : summed[i];
    }
    // Whether what the open step has done can be undone: not where shards are stepped without waiting for a norm, and
    // nothing is kept of them. Waits for what was submitted.
    [[nodiscard]] bool can_take_back()
    {
        passes_.line().wait();
        return first_pass_ != block_pass::step || passes_.unrecorded_blocks() == 0;
    }
    // What the open step has done is undone, where it can be. A device that does not answer is left for settle().
    void take_back()
    {
        device_failed_ = false;
        close_gate(true);
        bool const answers = side_.stop();
        passes_.line().wait();
        if (side_.there() && at_ >= progress::last_pass)
            passes_.speculated = passes_.settled; // which its records were made with
        if (side_.there() || (first_pass_ != block_pass::measure && at_ == progress::first_pass))
            undo_recorded();
        is_lost_ = is_lost_ || side_.stepped_for_good();
        device_is_behind_ = !answers || !side_.take_back();
        passes_.forget_records();
        stage_ = stage::idle;
    }
    // In a handler.
    [[noreturn]] void take_back_and_rethrow()
    {
        if (at_ == progress::without_room) // all is stepped, and some of it for good: weights are all that is missing
            complete_and_rethrow();
        take_back();
        if (!is_lost_)
            throw;
        try {
            throw;
        } catch (std::exception const& failure) {
            throw device_error(std::string(failure.what()) +
                               "; as there are no records (see device_records in the options), what it has is of no "
                               "known step now: load() a state");
        }
    }

    [[noreturn]] void complete_and_rethrow()
    {
        device_failed_ = false;
        (void)side_.stop();
        passes_.line().wait();
        complete();
        passes_.forget_records();
        side_.forget_records();
        can_go_back_ = false;
        device_is_behind_ = true; // so settle() sends them
        stage_ = stage::idle;
        try {
            throw;
        } catch (std::exception const& failure) {
            throw device_error(std::string(failure.what()) + "; step " + std::to_string(report_.step) +
                               " has been taken all the same, and the weights that could not be sent are sent again "
                               "before anything else");
        }
    }

    // When a pass is over: whether there is another, which is then next_pass_. Throws what options.reduce throws, with
    // nothing changed.
    bool next_stage()
    {
        bool more = false;
        if (at_ == progress::first_pass) {
            more = decide();
        } else if (at_ == progress::back) {
            passes_.forget_records();
            if (side_.there())
                side_.forget_records();
            records_were_forgotten_ = true;
            next_pass_ = block_pass::rest;
            at_ = progress::last_pass;
            more = true;
        } else if (at_ == progress::last_pass && passes_.waits_for_room && report_.outcome == step_outcome::applied &&
                   passes_.unrecorded_blocks() != 0) {
            // The device is through: what is left cannot fail, and need not be taken back.
            step_without_room();
            more = true;
        }
        if (!more)
            complete();
        return more;
    }

    void step_without_room() noexcept
    {
        passes_.waits_for_room = false;
        next_pass_ = block_pass::rest;
        at_ = progress::without_room;
    }
    bool decide()
    {
        grad_squares found = passes_.total();
        find_nonfinite(found);
        if (options_.reduce)
            found = reduced(options_, found);
        report_.gradients.seconds = seconds_since(started_);
        report_.nonfinite_grads = found.nonfinite;
        bool const skips = passes_.now_skips && found.nonfinite != 0;
        report_.outcome = skips ? step_outcome::skipped : step_outcome::applied;
        bool const speculated = first_pass_ == block_pass::speculate;
        report_.speculated = speculated && norm_first_;
        rounded_to_nearest([&] {
            report_.global_norm = std::sqrt(found.sum) / loss_scale_;
            if (skips || max_norm_ == 0)
                return;
            report_.clip_coefficient = clip_coefficient(report_.global_norm, max_norm_);
            if (!float_holds(report_.clip_coefficient / loss_scale_)) // see the report
                report_.clip_coefficient = 0;
            make_group_steps(report_.clip_coefficient, passes_.settled);
        });
        bool const fits = same_scales(); // what was speculated on
        count_first_pass();
        started_update_ = std::chrono::steady_clock::now();
        taken_back_of_last_eight_ = static_cast<std::uint8_t>(taken_back_of_last_eight_ << 1 | (skips || !fits));
        at_ = progress::last_pass;
        if (skips) {
            report_.rolled_back = speculated && something_stepped_;
            report_.update.bytes_moved = report_.rolled_back ? undo_bytes_ : 0;
            next_pass_ = block_pass::undo;
            return report_.rolled_back;
        }
        if (first_pass_ == block_pass::step)
            return false;
        if (!speculated || fits) {
            next_pass_ = block_pass::rest;
            report_.update.bytes_moved = rest_bytes_;
            bool const device_waits = side_.has_pieces() && (!speculated || !side_.with_records());
            if (side_.there() && !device_waits)
                step_without_room();
            return rest_bytes_ != 0 || device_waits;
        }
        report_.rolled_back = something_stepped_;
        report_.update.bytes_moved = step_bytes() + undo_bytes_;
        if (passes_.keep_records && report_.rolled_back) {
            next_pass_ = block_pass::undo;
            at_ = progress::back;
        } else {
            next_pass_ = block_pass::redo;
        }
        return true;
    }

    [[nodiscard]] bool same_scales() const noexcept
    {
        for (std::size_t i = 0; i < passes_.settled.size(); ++i)
            if (passes_.speculated[i].c.grad_scale != passes_.settled[i].c.grad_scale)
                return false;
        return true;
    }
    void find_nonfinite(grad_squares const& found)
    {
        if (found.nonfinite == 0)
            return;
        for (std::size_t i = 0; i < passes_.shards.size(); ++i) {
            tracked_shard const& s = passes_.shards[i];
            if (s.left_out)
                continue;
            std::size_t const b = passes_.first_nonfinite_block(s);
            if (b < s.shard.blocks()) {
                std::optional<std::size_t> there;
                if (side_.there())
                    on_device([&] { there = side_.first_nonfinite(i, b); });
                report_.first_nonfinite = {i, there ? *there : s.shard.first_nonfinite(b, s.summed != 0)};
                return;
            }
        }
    }
    void complete()
    {
        finish_report();
        scaler_before_ = scaler_;
        if (scaler_ && scales_itself_)
            rounded_to_nearest([&] { scaler_ = after_step(*scaler_, *options_.loss_scaling, report_.nonfinite_grads != 0); });
        for (std::size_t i = 0; i < passes_.shards.size(); ++i)
            summed_before_[i] = passes_.shards[i].summed;
        set_summed({});
        if (report_.outcome == step_outcome::applied) {
            ++steps_;
            can_go_back_ = options_.keep_last_step;
        }
        if (!can_go_back_)
            passes_.forget_records();
    }
    // For step_async(): in one of the team's threads, when a pass is over.
    bool next_at_end() noexcept
    {
        if (stage_ != stage::async || error_ != nullptr)
            return false;
        try {
            wait_until_all_is_submitted();
            for (;;) {
                if (side_.there()) {
                    bool awaited = false;
                    on_device([&] { awaited = awaits_gradients(); });
                    if (awaited || passes_.line().done() != passes_.line().added())
                        return true; // they may be stepped meanwhile
                    on_device([&] { take_results(); });
                }
                if (!next_stage())
                    return false;
                begin_on_device(next_pass_);
                if (std::size_t const blocks = passes_.describe_all(next_pass_); blocks != 0) {
                    passes_.line().add_at_end(blocks);
                    return true;
                }
            }
        } catch (...) {
            error_ = std::current_exception();
            return false;
        }
    }
    optimizer_report collect()
    {
        if (stage_ != stage::async)
            throw invalid_argument("adamant: a ticket is waited for twice, or its step is over");
        passes_.line().wait();
        stage_ = stage::idle; // first: who comes to the end from now on has nothing more to decide
        if (error_ == nullptr)
            return report_;
        try {
            std::rethrow_exception(std::exchange(error_, nullptr));
        } catch (...) {
            if (device_failed_)
                take_back_and_rethrow();
            throw;
        }
    }

    optimizer_options options_;
    std::uint64_t steps_ = 0;
    std::optional<loss_scaler_state> scaler_;
    std::uint8_t taken_back_of_last_eight_ = 0; // a bit for each

    // Of the last step, for rollback().
    bool can_go_back_ = false;
    std::optional<loss_scaler_state> scaler_before_;
    std::vector<unsigned> summed_before_;

    // Of the step that is under way.
    std::atomic<stage> stage_ = stage::idle; // read where a pass ends, too
    progress at_ = progress::first_pass;
    block_pass next_pass_ = block_pass::rest;
    std::vector<parameter_group> const* stepped_groups_ = nullptr;
    double max_norm_ = 0;
    double max_abs_ = 0;
    double loss_scale_ = 1;
    bool scales_itself_ = true;
    std::vector<double> lr_;
    bool norm_first_ = false; // it must be known before anything may stay stepped
    std::exception_ptr error_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
