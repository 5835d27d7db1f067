// SPDX-License-Identifier: Apache-2.0
// The optimizer that an engine embeds: gradients in, weights out, with the norm, clipping, finiteness and the step in
// one or two passes over memory, begun before the last gradient is there if need be, and taken back exactly.
#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <adamant/checkpoint/restore.hpp>
#include <adamant/checkpoint/state_dict.hpp>
#include <adamant/core/error.hpp>
#include <adamant/exec/executor.hpp>
#include <adamant/shard/overlaps.hpp>
#include <adamant/step/loss_scaler.hpp>
#include <adamant/step/offload_step.hpp>
#include <adamant/step/optimizer_report.hpp>

ADAMANT_BEGIN_NAMESPACE

// Whether begin_step() lets shards be stepped before the norm is known. It changes no bit.
enum class speculation : std::uint8_t {
    automatic, // unless most of the last eight steps had to be taken back for it
    always,
    never, // submit() only measures
};

struct optimizer_options {
    double max_norm = 0;     // see step_values; 0: not clipped
    double max_abs_grad = 0; // the same
    nonfinite_policy on_nonfinite = nonfinite_policy::skip;
    std::optional<loss_scaling_options> loss_scaling = {}; // dynamic; else every step says its scale, or it is 1
    speculation speculate = speculation::automatic;
    // For what it takes to go back. Absent: 3 bytes an element with float params and moments (ordinary training takes
    // 2.1), the state's bytes with others; with keep_last_step, all that it can take. A shard that finds it full waits
    // for the norm.
    std::optional<std::size_t> journal_budget_bytes = {};
    bool keep_last_step = false; // so that rollback() can take it back
    // Where gradients are spread over ranks: is given this process's sum and count, returns those of all (a sum by MPI
    // or NCCL). Every rank must add in the same order, or their bits differ. Called once in every step, by finish(),
    // step(), or, for step_async(), in one of the team's threads. May throw: the step is then taken back.
    std::function<grad_squares(grad_squares)> reduce = {};
};

// Where a shard lies in its parameter.
struct shard_place {
    std::vector<std::size_t> shape = {}; // of the whole parameter, kept for checkpoints; empty: the shard is all of it
    std::size_t begin = 0;               // the shard's first element in it, in row-major order
};

// Adam or AdamW over parameter groups, with all memory the caller's. Set up: groups, shards; prepare(). Then for every
// batch either step(), or begin_step(), a submit() for each shard as its gradient arrives, and finish(). Both have the
// same bits, whatever the order, the number of threads and the journal's budget.
//
// The norm adds sums over blocks of norm_block_elems elements, in the order in which shards were added: a model whose
// tensors are cut at multiples of that has the norm of the uncut one.
//
// submit() may be called from any thread, from several at once; everything else from one at a time. Gradients must not
// change between their submit() and the end of finish(). An exception leaves the optimizer as it was before the call,
// but where said otherwise.
class optimizer {
public:
    // Works with the executor's team; an executor without one gets a team of one thread, bound to nothing. Throws
    // invalid_argument for options that cannot be.
    explicit optimizer(executor const& cpu, optimizer_options options = {})
        : options_(std::move(options)), passes_(cpu, [this] { return next_at_end(); })
    {
        check_limit("max_norm", options_.max_norm);
        check_limit("max_abs_grad", options_.max_abs_grad);
        check_one_limit(options_.max_norm, options_.max_abs_grad);
        if (options_.on_nonfinite > nonfinite_policy::apply)
            throw invalid_argument("adamant: on_nonfinite holds no nonfinite_policy");
        if (options_.speculate > speculation::never)
            throw invalid_argument("adamant: speculate holds no speculation");
        if (options_.loss_scaling) {
            check(*options_.loss_scaling);
            scaler_ = initial_state(*options_.loss_scaling);
        }
        pus_ = passes_.cpu().team()->bound() ? to_list(passes_.cpu().team()->bound_to()) : std::string();
    }
    optimizer(optimizer const&) = delete;
    optimizer& operator=(optimizer const&) = delete;
    // A step that is under way is waited for; one that has been begun and not finished is taken back.
    ~optimizer()
    {
        passes_.line().wait();
        if (stage_ == stage::open)
            take_back();
    }

    // A new group, by its number; its name must be new. Throws invalid_argument where check() does.
    std::size_t add_group(state_group group)
    {
        require_idle("add_group()");
        check(group.hyper);
        for (state_group const& other : groups_)
            if (other.name == group.name)
                throw invalid_argument("adamant: there is a parameter group '" + group.name + "' already");
        groups_.push_back(std::move(group));
        return groups_.size() - 1;
    }
    std::size_t add_group(std::string name, hyperparameters const& hyper, bool maximize = false)
    {
        return add_group({std::move(name), hyper, maximize});
    }
    [[nodiscard]] std::vector<state_group> const& groups() const noexcept { return groups_; }
    // From the next step on. Throws invalid_argument as add_group() does, and while a step is under way.
    void set_hyperparameters(std::size_t group, hyperparameters const& hyper)
    {
        require_idle("set_hyperparameters()");
        check(hyper);
        require_group(group);
        groups_[group].hyper = hyper;
    }

    // A new shard, by its number. Its arrays stay the caller's and must outlive the optimizer. `name` is the
    // parameter's, of which there may be several shards. accumulator: an array of the shard's size for accumulate(), of
    // float or bfloat16, or null. Throws invalid_argument for a place outside the parameter, and for arrays that
    // overlap others' (here or in prepare()).
    template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut, class Accumulator = float>
        requires(std::is_same_v<Accumulator, float> || std::is_same_v<Accumulator, bfloat16>)
    std::size_t add_shard(std::size_t group, std::string const& name,
                          shard<Param, Grad, ExpAvg, ExpAvgSq, WeightOut> const& added, shard_place place = {},
                          Accumulator* accumulator = nullptr)
    {
        isa const tier = passes_.cpu().tier();
        if (accumulator == nullptr)
            return add_shard(group, name,
                             detail::offload_shard(
                                 added, static_cast<void*>(nullptr),
                                 detail::offload_kernels_for<Param, Grad, ExpAvg, ExpAvgSq, WeightOut, void>(tier)),
                             std::move(place));
        return add_shard(
            group, name,
            detail::offload_shard(
                added, accumulator,
                detail::offload_kernels_for<Param, Grad, ExpAvg, ExpAvgSq, WeightOut, Accumulator>(tier)),
            std::move(place));
    }
    // The same for kernels that were chosen elsewhere, for this optimizer's instruction set.
    std::size_t add_shard(std::size_t group, std::string const& name, detail::offload_shard const& added,
                          shard_place place = {})
    {
        require_idle("add_shard()");
        require_group(group);
        if (name.empty())
            throw invalid_argument("adamant: a shard has no name; checkpoints go by the parameter's name");
        std::size_t const number = places_.size();
        passes_.shards.reserve(number + 1); // so that what follows either fails before anything is added, or does not
        places_.reserve(number + 1);
        std::size_t const param = place_in_param(name, group, added.size(), place);
        passes_.shards.push_back({added, group});
        places_.push_back({param, place.begin});
        laid_out_ = false;
        return number;
    }
    [[nodiscard]] std::size_t shards() const noexcept { return places_.size(); }
    [[nodiscard]] std::string const& name(std::size_t shard) const { return params_[places_.at(shard).param].name; }

    // What prepare() will allocate, in bytes, with the journal of begin_step() or without.
    [[nodiscard]] std::size_t memory_bytes(bool with_journal = true) const noexcept
    {
        std::size_t blocks = 0;
        for (detail::tracked_shard const& s : passes_.shards)
            blocks += s.shard.blocks();
        return blocks * (sizeof(grad_squares) + sizeof(void*)) +
               (with_journal || options_.keep_last_step ? journal_budget() : 0);
    }
    // Allocates what steps need; else the first one does, and after it nothing is allocated. with_journal: for
    // begin_step(), too. Throws invalid_argument where arrays overlap, and what buffer does.
    void prepare(bool with_journal = true)
    {
        require_idle("prepare()");
        if (!laid_out_) {
            refuse_overlaps();
            passes_.lay_out();
            has_journal_ = false;
            can_go_back_ = false;
            laid_out_ = true;
        }
        if ((with_journal || options_.keep_last_step) && !has_journal_) {
            passes_.make_journal(journal_budget());
            has_journal_ = true;
        }
    }

    // Steps taken so far.
    [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }
    // What the next loss is to be multiplied with.
    [[nodiscard]] double loss_scale() const noexcept { return scaler_ ? scaler_->scale : 1.0; }
    [[nodiscard]] executor const& cpu() const noexcept { return passes_.cpu(); }

    // The whole step: all gradients are there. One pass over memory; two where the norm or the finiteness has to be
    // known first. Throws invalid_argument for values that cannot be, before anything is written.
    optimizer_report step(step_values const& values = {})
    {
        open_step(values, false);
        submit_all();
        return finish();
    }

    // Opens a step; see the class. The first call allocates, unless prepare() has.
    void begin_step(step_values const& values = {}) { open_step(values, true); }
    // This shard's gradient is there: work on it begins at once, in the team's threads. Returns at once. Throws
    // invalid_argument where no step is open or the shard has been submitted.
    void submit(std::size_t shard)
    {
        std::lock_guard const lock(submit_mutex_);
        require_open(shard);
        passes_.line().add([&] { return passes_.describe(shard, first_pass_); });
        passes_.shards[shard].submitted = true;
    }
    // This shard has no gradient in this step and stays as it is; what was accumulated for it is forgotten.
    void leave_out(std::size_t shard)
    {
        std::lock_guard const lock(submit_mutex_);
        require_open(shard);
        passes_.shards[shard].left_out = true;
    }
    // Waits for what was submitted, and completes the step: applied as it is, or taken back and done again with the
    // clip coefficient, or skipped. Throws invalid_argument where a shard was neither submitted nor left out (the step
    // stays open), and what options.reduce throws (it stays open, too: finish again, or abandon()).
    optimizer_report finish()
    {
        require_step_open("finish()");
        std::string missing;
        std::size_t how_many = 0;
        for (std::size_t i = 0; i < passes_.shards.size(); ++i)
            if (!passes_.shards[i].submitted && !passes_.shards[i].left_out && ++how_many <= 3)
                missing += (how_many == 1 ? "" : ", ") + std::to_string(i) + " ('" + name(i) + "')";
        if (how_many != 0)
            throw invalid_argument("adamant: finish() is called, but of " + std::to_string(shards()) + " shards " +
                                   std::to_string(how_many) + " have not been submitted: " + missing +
                                   (how_many > 3 ? ", ..." : "") +
                                   "; submit() them, or leave_out() those without a gradient");
        passes_.line().wait();
        while (next_stage()) {
            passes_.line().add([&] { return passes_.describe_all(next_pass_); });
            passes_.line().wait();
        }
        stage_ = stage::idle;
        return report_;
    }
    // Gives up the step that is open: what it has stepped is taken back. Accumulated gradients stay.
    void abandon()
    {
        require_step_open("abandon()");
        take_back();
    }

    // Takes back the last step, which must have been applied with keep_last_step; its gradients must still be there
    // (which is looked at, by their sums of squares). Restores every bit of param, exp_avg and exp_avg_sq, the step
    // count and the loss scale, and makes weight_out of param. Throws invalid_argument where there is none or the
    // gradients are others, and unavailable where the journal's budget was too small.
    void rollback()
    {
        require_idle("rollback()");
        if (!can_go_back_)
            throw invalid_argument(
                !options_.keep_last_step
                    ? "adamant: rollback() is called, but the last step was not kept; set keep_last_step in the options"
                    : "adamant: rollback() is called, but there is no step to take back: none was applied since the "
                      "start, the last rollback() or the last skipped step");
        if (std::size_t const n = passes_.unrecorded_blocks(); n != 0)
            throw unavailable("adamant: the last step cannot be taken back: for " + std::to_string(n) + " of " +
                              std::to_string(passes_.blocks()) + " blocks the journal's budget of " +
                              std::to_string(journal_budget()) + " bytes was full; set journal_budget_bytes to " +
                              std::to_string(longest_journal()) + " to be sure");
        set_summed(summed_before_);
        passes_.begin();
        run_all(detail::block_pass::compare);
        if (!passes_.same_gradients()) {
            set_summed({});
            throw invalid_argument("adamant: the last step cannot be taken back: it needs that step's gradients, and "
                                   "they have changed since");
        }
        passes_.speculated = passes_.settled;
        run_all(detail::block_pass::undo);
        passes_.forget_records();
        can_go_back_ = false;
        --steps_;
        scaler_ = scaler_before_;
    }

    // Adds the shard's gradient to its accumulator: for the micro-steps before the last one, whose gradient submit() or
    // step() adds by the way. Returns when it is done, so that the gradient's memory may be used again. The first one
    // after a step overwrites what the accumulator holds. The sum is not divided: have loss_scale count the
    // micro-steps. Throws invalid_argument for a shard without accumulator, or one that was submitted.
    void accumulate(std::size_t shard)
    {
        require_shard(shard);
        detail::tracked_shard& s = passes_.shards[shard];
        if (!s.shard.has_accumulator())
            throw invalid_argument("adamant: a gradient of shard " + std::to_string(shard) + " ('" + name(shard) +
                                   "') is to be accumulated, but it was added without an accumulator");
        if (stage_ == stage::async || (stage_ == stage::open && (s.submitted || s.left_out)))
            throw invalid_argument(
                "adamant: a gradient of shard " + std::to_string(shard) + " ('" + name(shard) +
                "') is to be accumulated, but the shard is being stepped; accumulate before submit()");
        can_go_back_ = false;
        bool const first = s.summed == 0;
        passes_.cpu().for_each_slice(s.shard.size(),
                                     [&](slice part) { s.shard.accumulate(part.begin, part.end, first); });
        ++s.summed;
    }
    // Forgets what was accumulated.
    void clear_accumulators()
    {
        require_idle("clear_accumulators()");
        can_go_back_ = false;
        for (detail::tracked_shard& s : passes_.shards)
            s.summed = 0;
    }

    // A step under way in the team's threads. Refers to the optimizer.
    class ticket {
    public:
        // Whether it is over. Never blocks for long.
        [[nodiscard]] bool done() const { return of_->passes_.line().idle(); }
        // The share of the work that is done, from 0 to 1; of the passes that are known to be needed.
        [[nodiscard]] double progress() const
        {
            return done() ? 1.0 : of_->passes_.progress();
        }
        // False where it is not over by then; it goes on all the same.
        bool wait_until(std::chrono::steady_clock::time_point deadline) const
        {
            return of_->passes_.line().wait_until(deadline);
        }
        bool wait_for(std::chrono::nanoseconds time) const
        {
            return wait_until(std::chrono::steady_clock::now() + time);
        }
        // Waits for as long as it takes. Throws what options.reduce threw; nothing is changed by that step then.
        optimizer_report wait() const { return of_->collect(); }

    private:
        friend class optimizer;
        explicit ticket(optimizer* of) : of_(of) {}
        optimizer* of_;
    };
    // As step(), and returns at once. The optimizer takes no other call but the ticket's until that was waited for.
    [[nodiscard]] ticket step_async(step_values const& values = {})
    {
        open_step(values, false);
        stage_ = stage::async;
        try {
            submit_all();
        } catch (...) {
            stage_ = stage::idle;
            throw;
        }
        if (passes_.nothing_described()) // nothing to do, so nobody comes to the end
            next_at_end();
        return ticket(this);
    }

    // The state as views of the shards' arrays, which last as long as those; their bits are those of the last step.
    // Throws invalid_argument while a step is under way.
    [[nodiscard]] state_dict state() const
    {
        require_idle("state()");
        using arrays = detail::offload_shard;
        state_dict all{.step = steps_, .loss_scaler = scaler_, .groups = groups_, .params = params_, .tensors = {}};
        for (std::size_t i = 0; i < places_.size(); ++i) {
            arrays const& s = passes_.shards[i].shard;
            for (auto const& [array, kept] :
                 {std::pair{arrays::param, state_array::param}, std::pair{arrays::exp_avg, state_array::exp_avg},
                  std::pair{arrays::exp_avg_sq, state_array::exp_avg_sq}})
                all.tensors.push_back(
                    {places_[i].param, kept, s.type(array), places_[i].begin, s.size(), s.data(array)});
        }
        return all;
    }
    // Takes over a state: step count, loss scale, the groups' hyperparameters (by name), and all arrays (by the
    // parameter's name), however they were cut; weight_out is made of param. What the state has besides is ignored.
    // Checks everything first: throws invalid_argument that says what is missing or does not fit, with nothing changed.
    void load(state_dict const& from)
    {
        require_idle("load()");
        state_dict const here = state();
        std::vector<detail::state_copy> const copies = detail::plan_copies(from, here);
        std::vector<state_group> groups = groups_;
        for (state_group& group : groups) {
            auto const found = std::find_if(from.groups.begin(), from.groups.end(),
                                            [&](state_group const& g) { return g.name == group.name; });
            if (found == from.groups.end())
                throw invalid_argument("adamant: the state that is loaded has no parameter group '" + group.name + "'");
            group = *found;
        }
        if (from.loss_scaler.has_value() != scaler_.has_value())
            throw invalid_argument(std::string("adamant: the state that is loaded ") +
                                   (scaler_ ? "has no dynamic loss scale, but this optimizer scales"
                                            : "has a dynamic loss scale, but this optimizer does not scale") +
                                   " dynamically; set loss_scaling in the options as it was");
        for (detail::state_copy const& copy : copies)
            std::memcpy(copy.to, copy.from, copy.bytes);
        for (detail::tracked_shard& s : passes_.shards) {
            passes_.cpu().for_each_slice(s.shard.size(),
                                         [&](slice part) { s.shard.round_weights(part.begin, part.end); });
            s.summed = 0;
        }
        groups_ = std::move(groups);
        scaler_ = from.loss_scaler;
        steps_ = from.step;
        taken_back_of_last_eight_ = 0;
        can_go_back_ = false;
    }

private:
    enum class stage : std::uint8_t { idle, open, async };
    enum class progress : std::uint8_t { first_pass, back, last_pass };
    struct placed {
        std::size_t param;
        std::size_t begin;
    };

    static void check_limit(char const* key, double value)
    {
        if (!std::isfinite(value) || value < 0)
            detail::refuse_hyperparameter(key, value, "a finite number, 0 or above");
    }
    static void check_one_limit(double max_norm, double max_abs_grad)
    {
        if (max_norm != 0 && max_abs_grad != 0)
            throw invalid_argument("adamant: max_norm is " + detail::text(max_norm) + " and max_abs_grad is " +
                                   detail::text(max_abs_grad) +
                                   ", but a gradient is clipped by one of them; set the other to 0");
    }
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
    }
    void require_group(std::size_t group) const
    {
        if (group >= groups_.size())
            throw invalid_argument("adamant: there is no parameter group " + std::to_string(group) + "; there are " +
                                   std::to_string(groups_.size()));
    }
    void require_shard(std::size_t shard) const
    {
        if (shard >= places_.size())
            throw invalid_argument("adamant: there is no shard " + std::to_string(shard) + "; there are " +
                                   std::to_string(places_.size()));
    }
    void require_open(std::size_t shard) const
    {
        require_step_open("submit()");
        require_shard(shard);
        detail::tracked_shard const& s = passes_.shards[shard];
        if (s.submitted || s.left_out)
            throw invalid_argument("adamant: shard " + std::to_string(shard) + " ('" + name(shard) + "') has been " +
                                   (s.submitted ? "submitted" : "left out") + " in this step already");
    }

    // The parameter of a new shard, made where it is new.
    std::size_t place_in_param(std::string const& name, std::size_t group, std::size_t size, shard_place& place)
    {
        bool const whole = place.shape.empty() && place.begin == 0;
        if (place.shape.empty())
            place.shape = {size};
        std::size_t const all = detail::element_count({name, place.shape, group});
        if (place.begin > all || size > all - place.begin)
            throw invalid_argument("adamant: a shard of '" + name + "' has elements " + std::to_string(place.begin) +
                                   " to " + std::to_string(place.begin + size) + " of " + std::to_string(all) +
                                   "; give the whole parameter's shape, and a place inside it");
        auto const at = param_by_name_.find(name);
        if (at == param_by_name_.end()) {
            params_.push_back({name, place.shape, group});
            try {
                param_by_name_.emplace(name, params_.size() - 1);
            } catch (...) {
                params_.pop_back();
                throw;
            }
            return params_.size() - 1;
        }
        state_param const& known = params_[at->second];
        if (whole || known.shape != place.shape || known.group != group)
            throw invalid_argument("adamant: there is a shard of '" + name + "' already, " +
                                   (known.group != group ? "in another group" : "of another shape") +
                                   "; shards of one parameter have one group, and the whole parameter's shape");
        return at->second;
    }

    void refuse_overlaps() const
    {
        using arrays = detail::offload_shard;
        std::vector<detail::array_extent> extents;
        for (std::size_t i = 0; i < passes_.shards.size(); ++i) {
            arrays const& s = passes_.shards[i].shard;
            for (auto const which : {arrays::param, arrays::grad, arrays::exp_avg, arrays::exp_avg_sq, arrays::weight_out,
                                     arrays::accumulator})
                detail::append_extent(extents, s.data(which), s.size() * s.elem_bytes(which), i, which != arrays::grad);
        }
        detail::refuse_overlaps(std::move(extents));
    }
    // What the journal needs for records of so many bytes: it loses some at the ends of pages, of which each thread has
    // one open.
    [[nodiscard]] std::size_t with_losses(std::size_t bytes) const noexcept
    {
        return bytes + bytes / 8 + 16 * std::size_t{passes_.cpu().threads()} * passes_.longest_record();
    }
    // For the most that records of one step can take.
    [[nodiscard]] std::size_t longest_journal() const noexcept
    {
        std::size_t bytes = 0;
        for (detail::tracked_shard const& s : passes_.shards)
            if (std::size_t const blocks = s.shard.blocks(); blocks != 0)
                bytes += (blocks - 1) * s.shard.record_bytes_at_most(norm_block_elems) +
                         s.shard.record_bytes_at_most(s.shard.length(blocks - 1));
        return with_losses(bytes);
    }
    [[nodiscard]] std::size_t journal_budget() const noexcept
    {
        if (options_.journal_budget_bytes)
            return *options_.journal_budget_bytes;
        if (options_.keep_last_step)
            return longest_journal();
        std::size_t bytes = 0;
        for (detail::tracked_shard const& s : passes_.shards)
            bytes += s.shard.size() * (s.shard.records_are_copies() ? s.shard.state_bytes() : 3);
        return std::min(longest_journal(), with_losses(bytes));
    }

    void open_step(step_values const& values, bool as_they_arrive)
    {
        require_idle(as_they_arrive ? "begin_step()" : "step()");
        bool const own_limit = !values.max_norm && !values.max_abs_grad; // one that is said replaces both
        double const max_norm = own_limit ? options_.max_norm : values.max_norm.value_or(0);
        double const max_abs = own_limit ? options_.max_abs_grad : values.max_abs_grad.value_or(0);
        check_limit("max_norm", max_norm);
        check_limit("max_abs_grad", max_abs);
        check_one_limit(max_norm, max_abs);
        if (!values.lr.empty() && values.lr.size() != groups_.size())
            throw invalid_argument("adamant: there are learning rates for " + std::to_string(values.lr.size()) +
                                   " groups, but there are " + std::to_string(groups_.size()) + " groups");
        max_norm_ = max_norm;
        max_abs_ = max_abs;
        loss_scale_ = values.loss_scale.value_or(loss_scale());
        scales_itself_ = !values.loss_scale;
        lr_.assign(values.lr.begin(), values.lr.end());
        make_group_steps(1.0, passes_.speculated); // throws what values cannot be
        prepare(as_they_arrive);
        passes_.settled = passes_.speculated;
        summed_before_.resize(passes_.shards.size()); // here, as nothing may fail once arrays have been written
        passes_.keep_records = options_.keep_last_step;
        passes_.now_skips = options_.on_nonfinite == nonfinite_policy::skip;
        bool const norm_first = max_norm_ != 0 || passes_.now_skips || options_.reduce;
        bool const speculates =
            norm_first && as_they_arrive &&
            (options_.speculate == speculation::always ||
             (options_.speculate == speculation::automatic && std::popcount(taken_back_of_last_eight_) <= 4));
        first_pass_ = !norm_first  ? detail::block_pass::step
                      : speculates ? detail::block_pass::speculate
                                   : detail::block_pass::measure;
        for (detail::tracked_shard& s : passes_.shards)
            s.submitted = s.left_out = false;
        passes_.forget_records();
        passes_.begin();
        can_go_back_ = false;
        error_ = nullptr;
        at_ = progress::first_pass;
        report_ = {};
        report_.step = steps_ + 1;
        report_.loss_scale = loss_scale_;
        report_.tier = passes_.cpu().tier();
        report_.threads = passes_.cpu().threads();
        report_.pus = pus_;
        started_ = std::chrono::steady_clock::now();
        stage_ = stage::open;
    }

    void make_group_steps(double clip, std::vector<detail::group_step>& out) const
    {
        out.resize(groups_.size());
        // Gradients so large that nothing a float can hold brings them down count for nothing.
        if (clip / loss_scale_ < 0x1p-125)
            clip = 0;
        for (std::size_t i = 0; i < groups_.size(); ++i) {
            hyperparameters hyper = groups_[i].hyper;
            if (!lr_.empty())
                hyper.lr = lr_[i];
            coefficients c =
                make_coefficients(hyper, steps_ + 1, {.loss_scale = loss_scale_, .clip_coefficient = clip});
            if (groups_[i].maximize)
                c.grad_scale = -c.grad_scale;
            detail::gradient_rules rules{.zero_nonfinite = options_.on_nonfinite == nonfinite_policy::zero};
            if (max_abs_ != 0) {
                rules.limited = true;
                rules.scale = c.grad_scale;
                rules.bound = static_cast<float>(max_abs_);
                c.grad_scale = 1;
            }
            out[i] = {c, rules};
        }
    }

    void submit_all()
    {
        for (detail::tracked_shard& s : passes_.shards)
            s.submitted = true;
        passes_.line().add([&] { return passes_.describe_all(first_pass_); });
    }
    void run_all(detail::block_pass pass)
    {
        passes_.line().add([&] { return passes_.describe_all(pass); });
        passes_.line().wait();
    }
    void set_summed(std::vector<unsigned> const& summed) noexcept
    {
        for (std::size_t i = 0; i < passes_.shards.size(); ++i)
            passes_.shards[i].summed = summed.empty() ? 0 : summed[i];
    }
    // Whatever the open step has done is undone.
    void take_back()
    {
        passes_.line().wait();
        if (first_pass_ == detail::block_pass::speculate && at_ == progress::first_pass)
            run_all(detail::block_pass::undo);
        passes_.forget_records();
        stage_ = stage::idle;
    }

    [[nodiscard]] static double seconds_since(std::chrono::steady_clock::time_point start)
    {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }

    // When a pass is over: whether there is another, which is then next_pass_. Throws what options.reduce throws, with
    // nothing changed.
    bool next_stage()
    {
        using detail::block_pass;
        bool more = false;
        if (at_ == progress::first_pass) {
            more = decide();
        } else if (at_ == progress::back) {
            passes_.forget_records();
            next_pass_ = block_pass::rest;
            at_ = progress::last_pass;
            more = true;
        }
        if (!more)
            complete();
        return more;
    }

    bool decide()
    {
        using detail::block_pass;
        grad_squares found = passes_.total();
        find_nonfinite(found);
        if (options_.reduce)
            found = options_.reduce(found);
        report_.gradients.seconds = seconds_since(started_);
        report_.nonfinite_grads = found.nonfinite;
        report_.global_norm = std::sqrt(found.sum) / loss_scale_;
        bool const skips = passes_.now_skips && found.nonfinite != 0;
        report_.outcome = skips ? step_outcome::skipped : step_outcome::applied;
        bool const speculated = first_pass_ == block_pass::speculate;
        report_.speculated = speculated;
        bool fits = true; // what was speculated on
        if (!skips && max_norm_ != 0) {
            report_.clip_coefficient = clip_coefficient(report_.global_norm, max_norm_);
            make_group_steps(report_.clip_coefficient, passes_.settled);
            fits = same_scales();
        }
        count_first_pass();
        started_update_ = std::chrono::steady_clock::now();
        taken_back_of_last_eight_ = static_cast<std::uint8_t>(taken_back_of_last_eight_ << 1 | (skips || !fits));
        at_ = progress::last_pass;
        if (skips) {
            report_.rolled_back = speculated && report_.journal_bytes != 0;
            next_pass_ = block_pass::undo;
            return report_.rolled_back;
        }
        if (first_pass_ == block_pass::step)
            return false;
        if (!speculated || fits) {
            next_pass_ = block_pass::rest;
            report_.update.bytes_moved = rest_bytes_;
            return !speculated || report_.shards_waited != 0;
        }
        report_.rolled_back = report_.journal_bytes != 0;
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
        for (std::size_t i = 0; i < groups_.size(); ++i)
            if (passes_.speculated[i].c.grad_scale != passes_.settled[i].c.grad_scale)
                return false;
        return true;
    }
    void find_nonfinite(grad_squares const& found)
    {
        if (found.nonfinite == 0)
            return;
        for (std::size_t i = 0; i < passes_.shards.size(); ++i) {
            detail::tracked_shard const& s = passes_.shards[i];
            if (s.left_out)
                continue;
            std::size_t const b = passes_.first_nonfinite_block(s);
            if (b < s.shard.blocks()) {
                report_.first_nonfinite = {i, s.shard.first_nonfinite(b, s.summed != 0)};
                return;
            }
        }
    }
    [[nodiscard]] static std::size_t step_bytes_of(detail::tracked_shard const& s) noexcept
    {
        using arrays = detail::offload_shard;
        return 2 * s.shard.state_bytes() + s.shard.elem_bytes(arrays::weight_out) + grad_bytes_of(s);
    }
    [[nodiscard]] static std::size_t grad_bytes_of(detail::tracked_shard const& s) noexcept
    {
        using arrays = detail::offload_shard;
        return s.shard.elem_bytes(arrays::grad) + (s.summed != 0 ? s.shard.elem_bytes(arrays::accumulator) : 0);
    }
    [[nodiscard]] std::size_t step_bytes() const noexcept
    {
        std::size_t bytes = 0;
        for (detail::tracked_shard const& s : passes_.shards)
            bytes += s.left_out ? 0 : s.shard.size() * step_bytes_of(s);
        return bytes;
    }
    void count_first_pass()
    {
        using detail::block_pass;
        report_.journal_bytes = passes_.journal_bytes();
        rest_bytes_ = undo_bytes_ = 0;
        for (detail::tracked_shard const& s : passes_.shards) {
            if (s.left_out)
                continue;
            report_.elements += report_.outcome == step_outcome::applied ? s.shard.size() : 0;
            std::size_t const stepped = first_pass_ == block_pass::step        ? s.shard.size()
                                        : first_pass_ == block_pass::speculate ? passes_.recorded_elements(s)
                                                                               : 0;
            std::size_t const waiting = s.shard.size() - stepped;
            report_.gradients.bytes_moved += stepped * step_bytes_of(s) + waiting * grad_bytes_of(s);
            rest_bytes_ += waiting * step_bytes_of(s);
            undo_bytes_ += stepped * (2 * s.shard.state_bytes() + grad_bytes_of(s));
            report_.shards_waited += first_pass_ == block_pass::speculate && waiting != 0;
        }
        report_.gradients.bytes_moved += report_.journal_bytes;
        undo_bytes_ += report_.journal_bytes;
    }

    void complete()
    {
        report_.update.seconds = seconds_since(started_update_);
        report_.seconds = seconds_since(started_);
        scaler_before_ = scaler_;
        if (scaler_ && scales_itself_)
            scaler_ = next(*scaler_, *options_.loss_scaling, report_.nonfinite_grads != 0);
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
        if (stage_ != stage::async)
            return false;
        if (error_ != nullptr) // what was speculated is back
            return false;
        try {
            while (next_stage())
                if (std::size_t const blocks = passes_.describe_all(next_pass_); blocks != 0) {
                    passes_.line().add_at_end(blocks);
                    return true;
                }
            return false;
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
        stage_ = stage::idle;
        if (error_ != nullptr)
            std::rethrow_exception(std::exchange(error_, nullptr));
        return report_;
    }

    optimizer_options options_;
    std::vector<state_group> groups_;
    std::vector<state_param> params_;
    std::map<std::string, std::size_t> param_by_name_;
    std::vector<placed> places_;
    detail::offload_passes passes_;
    std::string pus_;
    bool laid_out_ = false;
    bool has_journal_ = false;

    std::uint64_t steps_ = 0;
    std::optional<loss_scaler_state> scaler_;
    std::uint8_t taken_back_of_last_eight_ = 0; // a bit for each

    // Of the last step, for rollback().
    bool can_go_back_ = false;
    std::optional<loss_scaler_state> scaler_before_;
    std::vector<unsigned> summed_before_;

    // Of the step that is under way.
    stage stage_ = stage::idle;
    progress at_ = progress::first_pass;
    detail::block_pass first_pass_ = detail::block_pass::measure;
    detail::block_pass next_pass_ = detail::block_pass::rest;
    std::mutex submit_mutex_;
    double max_norm_ = 0;
    double max_abs_ = 0;
    double loss_scale_ = 1;
    bool scales_itself_ = true;
    std::vector<double> lr_;
    std::size_t rest_bytes_ = 0;
    std::size_t undo_bytes_ = 0;
    std::chrono::steady_clock::time_point started_, started_update_;
    optimizer_report report_;
    std::exception_ptr error_;
};

ADAMANT_END_NAMESPACE
