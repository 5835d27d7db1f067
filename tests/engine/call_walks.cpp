// SPDX-License-Identifier: Apache-2.0
// Calls in random order, right and wrong ones, with and without a device that fails, and with reductions over ranks
// that fail: optimizers with and without deferred gradients must both behave as one model of a step says.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <adamant/changes.hpp>
#include <adamant/step.hpp>

#include "both_optimizers.hpp"
#include "catch.hpp"
#include "emulated.hpp"

using namespace both;

namespace {

enum class call_kind {
    begin_step,
    submit,
    skip,
    finish,
    abandon,
    step,
    step_gradients,
    step_async,
    place,
    set_gradient,
    set_hyperparameters,
    add_group,
    prepare,
    state,
    load
};
constexpr std::size_t call_kinds = 15;
constexpr char const* names[] = {"begin_step()",
                                 "submit()",
                                 "skip()",
                                 "finish()",
                                 "abandon()",
                                 "step()",
                                 "step_gradients()",
                                 "step_async()",
                                 "place()",
                                 "set_gradient()",
                                 "set_hyperparameters()",
                                 "add_group()",
                                 "prepare()",
                                 "state()",
                                 "load()"};

enum class item { awaited, submitted, skipped };

// The states of a step, for optimizers of any kind.
struct session_model {
    std::vector<item> items;
    bool is_open = false;
    std::uint64_t steps = 0;

    // A part of the error that a call must throw; empty if it succeeds.
    [[nodiscard]] std::string refusal(call_kind call, std::size_t i) const
    {
        bool const is_of_shard = call == call_kind::submit || call == call_kind::skip;
        if (call == call_kind::finish || call == call_kind::abandon || is_of_shard) {
            if (!is_open)
                return std::string("cannot call ") + names[std::size_t(call)] + ": no step is open";
        } else if (call == call_kind::place && is_open) {
            return ": a step is in progress"; // zenflow's set_device_arrays() comes first
        } else if (call != call_kind::set_gradient && is_open) {
            return std::string("cannot call ") + names[std::size_t(call)] + ": a step is in progress";
        }
        if (is_of_shard || call == call_kind::set_gradient) {
            if (i >= items.size())
                return "there is no shard";
            if (is_open && items[i] != item::awaited)
                return items[i] == item::submitted ? "has been submitted in this step"
                                                   : "has been skipped in this step";
        }
        if (call == call_kind::finish && count(item::awaited) != 0)
            return std::to_string(count(item::awaited)) + " of " + std::to_string(items.size());
        return {};
    }
    // The change that a call without an error makes.
    void take(call_kind call, std::size_t i)
    {
        if (call == call_kind::begin_step)
            items.assign(items.size(), item::awaited);
        is_open = call == call_kind::begin_step || (is_open && call != call_kind::finish && call != call_kind::abandon);
        if (call == call_kind::submit)
            items[i] = item::submitted;
        if (call == call_kind::skip)
            items[i] = item::skipped;
    }
    [[nodiscard]] std::size_t count(item wanted) const
    {
        return static_cast<std::size_t>(std::count(items.begin(), items.end(), wanted));
    }
};

// A reduction over one rank whose call number `calls` throws. Steps with fewer calls do not fail.
struct failing_reduction {
    std::size_t calls = 0; // 0: none throws
    bool throws_device_error = false;
    bool has_thrown = false;

    void operator()()
    {
        if (calls == 0 || --calls != 0)
            return;
        has_thrown = true;
        if (throws_device_error)
            throw device_error("adamant: another rank's device has failed");
        throw std::runtime_error("another rank has failed");
    }
};

template <class Subject>
class walker {
public:
    walker(std::uint64_t seed, subject_options const& options, bool has_device)
        : random_(seed), on_(has_device ? test::make_device() : nullptr), mine_(make_arrays(seed)),
          expected_(make_arrays(seed)), reduces_(options.step.reduce != nullptr),
          subject_(mine_, with_failing_reductions(options)), reference_(expected_, without_team(options))
    {
        if (on_ != nullptr)
            change_placement();
        model_.items.assign(mine_.size(), item::awaited);
        draw_gradients();
    }
    // An emulated device that hangs or has failed must go on for the destructors.
    ~walker()
    {
        if (on_ != nullptr)
            on_->resume();
    }

    void walk(int calls)
    {
        for (int k = 0; k < calls; ++k) {
            call_kind call = static_cast<call_kind>(random_.below(call_kinds));
            std::size_t i = random_.below(mine_.size() + (random_.below(8) == 0));
            if (call == call_kind::step_async && !std::is_same_v<Subject, plain_subject>)
                call = call_kind::step;
            if (call == call_kind::place && on_ == nullptr)
                call = call_kind::prepare;
            if (random_.below(3) != 0) { // a step would rarely be complete
                bool const is_complete = model_.count(item::awaited) == 0;
                call = !model_.is_open ? call_kind::begin_step : is_complete ? call_kind::finish : call_kind::submit;
            }
            INFO("call " << k << ": " << names[std::size_t(call)] << ", shard " << i << ", open " << model_.is_open);
            make(call, i);
            REQUIRE(subject_.by.steps() == model_.steps);
        }
        if (model_.is_open)
            make(call_kind::abandon, 0);
        compare();
    }
    std::size_t failures = 0, skipped = 0, failed_reductions = 0;

private:
    subject_options with_failing_reductions(subject_options options)
    {
        if (reduces_) {
            options.step.reduce = [this](std::span<std::int64_t>) { reduction_(); };
            options.zenflow.reduce_columns = [this](std::span<std::int64_t>, column_reduction) { reduction_(); };
        }
        return options;
    }
    static subject_options without_team(subject_options options)
    {
        options.threads = 0;
        return options;
    }
    static std::vector<param_arrays> make_arrays(std::uint64_t seed)
    {
        test::random_bits random(seed);
        std::vector<param_arrays> all;
        all.emplace_back(96, 130, random);
        all.emplace_back(64, 7, random);
        all.emplace_back(5000, 0, random);
        return all;
    }
    void draw_gradients()
    {
        values_.max_norm = random_.below(3) == 0 ? std::optional(random_.below(2) == 0 ? 0.02 : 1e6) : std::nullopt;
        bool const is_bad = random_.below(8) == 0;
        gradients_.resize(mine_.size());
        for (std::size_t i = 0; i < mine_.size(); ++i) {
            gradients_[i].resize(mine_[i].grad.size());
            for (float& each : gradients_[i])
                each = test::with_exponent(random_(), -12, -3);
            if (is_bad && i == 1)
                gradients_[i][3] = std::numeric_limits<float>::infinity();
        }
        subject_.set_gradients(gradients_);
    }

    // Makes one call, and compares what becomes of it with the model.
    void make(call_kind call, std::size_t i)
    {
        std::string const refusal = model_.refusal(call, i);
        bool const steps = call == call_kind::finish || call == call_kind::step || call == call_kind::step_gradients ||
                           call == call_kind::step_async;
        bool is_armed = false;
        reduction_ = {};
        if (reduces_ && steps && refusal.empty() && random_.below(4) == 0) {
            reduction_ = {1 + random_.below(2), random_.below(2) == 0};
        } else if (is_placed_ && steps && refusal.empty() && random_.below(3) == 0) {
            constexpr device_operation kinds[] = {device_operation::copy_up, device_operation::copy_down,
                                                  device_operation::work};
            on_->fail(kinds[random_.below(3)], random_.below(6));
            is_armed = true;
        }
        std::vector<void const*> const gradients = gradients_of(call);
        optimizer_report report;
        try {
            run(call, i, gradients, report);
        } catch (std::exception const& error) {
            if (!reduction_.has_thrown)
                return make_of_error(error, refusal, is_armed, gradients);
            INFO(error.what());
            REQUIRE(std::string(error.what()).find("another rank") != std::string::npos);
            ++failed_reductions; // finish() leaves its step open
            REQUIRE(subject_.by.steps() == model_.steps);
            if (!model_.is_open)
                compare();
            return;
        }
        INFO("expected: " << refusal);
        REQUIRE(refusal == "");
        if (is_armed)
            recover();
        model_.take(call, i);
        if (steps) {
            optimizer_report const expected = step_reference(gradients);
            REQUIRE(report.outcome == expected.outcome);
            REQUIRE(report.nonfinite_grads == expected.nonfinite_grads);
            skipped += report.outcome == step_outcome::skipped;
            draw_gradients();
        }
        if (call == call_kind::abandon || call == call_kind::state || call == call_kind::load ||
            call == call_kind::place)
            compare();
    }
    // Compares an error that no reduction has thrown with the model.
    void make_of_error(std::exception const& thrown, std::string const& refusal, bool is_armed,
                       std::vector<void const*> const& gradients)
    {
        if (auto const* const error = dynamic_cast<invalid_argument const*>(&thrown)) {
            INFO(error->what() << "\nexpected: " << refusal);
            REQUIRE(!refusal.empty());
            REQUIRE(std::string(error->what()).find(refusal) != std::string::npos);
            return;
        }
        INFO(thrown.what());
        REQUIRE(dynamic_cast<device_error const*>(&thrown) != nullptr);
        REQUIRE(is_armed);
        ++failures;
        on_->resume();
        model_.is_open = false;
        if (std::string(thrown.what()).find("is complete nevertheless") != std::string::npos)
            step_reference(gradients);
        REQUIRE(subject_.by.steps() == model_.steps);
        recover();
        compare();
        draw_gradients();
    }
    void change_placement()
    {
        if constexpr (std::is_same_v<Subject, plain_subject>) {
            std::vector<std::size_t> const sizes = subject_.by.shard_sizes();
            subject_.by.place(on_, split(sizes, {.ratio = static_cast<double>(random_.below(5)) / 4}));
            is_placed_ = true;
        } else {
            if (!is_placed_) {
                subject_.there.clear();
                subject_.prepare_place(on_);
            }
            subject_.place(is_placed_ ? nullptr : on_);
            is_placed_ = !is_placed_;
        }
    }
    void run(call_kind call, std::size_t i, std::vector<void const*> const& gradients, optimizer_report& report)
    {
        auto& by = subject_.by;
        switch (call) {
        case call_kind::begin_step: return by.begin_step(values_);
        case call_kind::submit: return by.submit(i);
        case call_kind::skip: return by.skip(i);
        case call_kind::finish: report = by.finish(); return;
        case call_kind::abandon: return by.abandon();
        case call_kind::step: report = by.step(values_); return;
        case call_kind::step_gradients: report = by.step_gradients(gradients, values_); return;
        case call_kind::step_async:
            if constexpr (std::is_same_v<Subject, plain_subject>)
                report = by.step_async(values_).wait();
            return;
        case call_kind::place:
            change_placement();
            subject_.set_gradients(gradients_);
            return;
        case call_kind::set_gradient: return by.set_gradient(i, mine_[i % mine_.size()].grad.data());
        case call_kind::set_hyperparameters: return by.set_hyperparameters(0, by.groups()[0].hyper);
        case call_kind::add_group: by.add_group("group " + std::to_string(by.groups().size()), {}); return;
        case call_kind::prepare: return by.prepare();
        case call_kind::state: (void)by.state(); return;
        case call_kind::load: return by.load(model_.is_open ? decltype(by.state()){} : by.state());
        }
    }
    // The gradients of a step that ends with this call: null for a shard that takes no part.
    std::vector<void const*> gradients_of(call_kind call)
    {
        std::vector<void const*> gradients;
        for (std::size_t i = 0; i < mine_.size(); ++i) {
            bool const is_skipped = call == call_kind::finish           ? model_.items[i] == item::skipped
                                    : call == call_kind::step_gradients ? random_.below(4) == 0
                                                                        : false;
            gradients.push_back(is_skipped ? nullptr : mine_[i].grad.data());
        }
        return gradients;
    }
    // The same step of the reference, which is made of whole steps only.
    optimizer_report step_reference(std::vector<void const*> gradients)
    {
        reference_.set_gradients(gradients_);
        for (std::size_t i = 0; i < mine_.size(); ++i)
            if (gradients[i] != nullptr)
                gradients[i] = expected_[i].grad.data();
        optimizer_report const report = reference_.by.step_gradients(gradients, values_);
        model_.steps = reference_.by.steps();
        return report;
    }
    // What goes on in the background after a step may have failed, too.
    void recover()
    {
        on_->resume();
        for (int attempt = 0; attempt < 3; ++attempt) {
            try {
                (void)subject_.by.state();
                return;
            } catch (device_error const&) {
                on_->resume();
            } catch (invalid_argument const&) {
                return; // a step is open
            }
        }
        FAIL("the device does not recover");
    }
    void compare() { REQUIRE(difference(contents(subject_), contents(reference_)) == ""); }

    test::random_bits random_;
    session_model model_;
    std::shared_ptr<emulated_device> on_;
    std::vector<param_arrays> mine_, expected_;
    std::vector<std::vector<float>> gradients_; // of the next step
    step_values values_;                        // of the next step
    bool is_placed_ = false;
    bool reduces_;
    failing_reduction reduction_;
    Subject subject_, reference_;
};

template <class Subject>
void walk_all(std::uint64_t first, std::uint64_t end)
{
    std::size_t failures = 0, skipped = 0, failed_reductions = 0;
    for (std::uint64_t seed = first; seed < end; ++seed) {
        subject_options options;
        options.threads = seed % 3 == 0 ? 0 : 2;
        options.step.max_norm = seed % 4 < 2 ? 0.05 : 0;
        options.step.speculate = static_cast<speculation>(seed % 3);
        options.step.device_timeout_s = 20;
        if (seed % 5 == 3)
            options.step.journal_budget_bytes = 0;
        if (seed % 4 == 1) {
            options.step.reduce = [](std::span<std::int64_t>) {};
            options.zenflow.reduce_columns = [](std::span<std::int64_t>, column_reduction) {};
        }
        options.zenflow = {.topk_ratio = 0.2, .select_interval = 3, .update_interval = 2};
        options.zenflow.overlap = seed % 5 != 0;
        if (seed % 7 == 0)
            options.zenflow.update_interval.reset();
        INFO("seed " << seed);
        walker<Subject> each(seed, options, seed % 2 == 1);
        each.walk(150);
        failures += each.failures;
        skipped += each.skipped;
        failed_reductions += each.failed_reductions;
    }
    CHECK(failures > (end - first) / 4);
    CHECK(skipped > end - first);
    CHECK(failed_reductions > (end - first) / 4);
}

// Occupies a team for as long as it lives, or until another request waits for the team.
class occupied_team {
public:
    explicit occupied_team(team& all) : request_(all.submit(task{all, ends_, is_needed_})) {}
    ~occupied_team() { ends_ = true; }
    [[nodiscard]] bool is_needed() const { return is_needed_; }

private:
    struct task {
        team const& all;
        std::atomic<bool> const& ends;
        std::atomic<bool>& is_needed;
        void operator()(unsigned) const
        {
            while (!ends && !is_needed) {
                if (all.others_wait())
                    is_needed = true;
                std::this_thread::yield();
            }
        }
    };
    std::atomic<bool> ends_{false}, is_needed_{false};
    submission<task> request_;
};

} // namespace

TEST_CASE("calls in any order go by one model of a step: the optimizer", "[both]")
{
    walk_all<plain_subject>(1, 13);
}

TEST_CASE("calls in any order go by one model of a step: the optimizer with deferred gradients", "[both]")
{
    walk_all<zenflow_subject>(1, 13);
}

TEST_CASE("calls in any order go by one model of a step, many of them", "[slow][once]")
{
    walk_all<plain_subject>(1000, 1150);
    walk_all<zenflow_subject>(100, 160);
}

// Otherwise a larger team would make these calls slower.
TEMPLATE_TEST_CASE("calls over few elements do not use the team", "[both]", plain_subject, zenflow_subject)
{
    test::random_bits random(7);
    std::vector<param_arrays> arrays;
    for (std::size_t const rows : {1u, 5u, 60u})
        for (std::size_t const columns : {0u, 4u, 16u})
            arrays.emplace_back(rows, columns, random);
    subject_options options;
    options.step.max_norm = 0.5;
    options.zenflow = {.topk_ratio = 0.25, .select_interval = 3, .update_interval = 2};
    options.threads = 2;
    TestType subject(arrays, options);
    subject.by.prepare();
    auto const occupied = std::make_unique<occupied_team>(*executor_of(2).team());
    for (int step = 0; step < 12; ++step) {
        INFO("step " << step);
        for (param_arrays& each : arrays)
            for (float& g : each.grad)
                g = test::with_exponent(random(), -6, 0);
        if (step % 2 == 0) {
            subject.by.step();
        } else {
            subject.by.begin_step();
            for (std::size_t i = 0; i < arrays.size(); ++i)
                subject.by.submit(shard_id(i));
            subject.by.finish();
        }
        REQUIRE_FALSE(occupied->is_needed());
    }
    (void)subject.by.state();
    param_arrays& last = arrays.back();
    std::vector<std::uint64_t> bits(changed_words(last.param.size()), 1);
    std::vector<std::uint32_t> indices(last.param.size());
    (void)sum_of_squares(executor_of(2), last.grad);
    (void)changed_weights(executor_of(2), {bits, last.param.size(), last.param.data(), dtype::float32}, indices,
                          nullptr, {});
    REQUIRE_FALSE(occupied->is_needed());
}

// A caller may release or move the memory of state between steps.
TEST_CASE("zenflow: a small deferred update is done when the step that ends its window returns", "[both]")
{
    test::random_bits random(11);
    std::vector<param_arrays> arrays;
    arrays.emplace_back(60, 16, random);
    subject_options options;
    options.zenflow = {.topk_ratio = 0.25, .select_interval = 100, .update_interval = 2};
    options.threads = GENERATE(0u, 2u);
    zenflow_subject subject(arrays, options);
    subject.by.prepare();
    for (int step = 0; step < 6; ++step) {
        for (float& g : arrays[0].grad)
            g = test::with_exponent(random(), -6, 0);
        zenflow_report const report = subject.by.step();
        CHECK(report.window_ended == (step % 2 == 1));
        param_arrays const after = arrays[0];
        (void)subject.by.state(); // finishes background work
        CHECK(arrays[0].param == after.param);
        CHECK(arrays[0].exp_avg == after.exp_avg);
        CHECK(arrays[0].exp_avg_sq == after.exp_avg_sq);
    }
}
