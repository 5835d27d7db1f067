// SPDX-License-Identifier: Apache-2.0
// ZenFlow's step against its reference implementation, to the bit.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <adamant/emulated_device.hpp>
#include <adamant/formats.hpp>
#include <adamant/optimizer.hpp>
#include <adamant/zenflow.hpp>
#include <adamant/detail/step/column_scores.hpp>
#include <adamant/detail/zenflow/column_selection.hpp>

#include "catch.hpp"
#include "emulated.hpp"
#include "refusal.hpp"
#include "zenflow_reference.hpp"

using namespace adamant;
using test::mentions;
using test::refusal;

namespace {

#if defined(_OPENMP)
constexpr unsigned most_threads = 2;
#else
constexpr unsigned most_threads = 1;
#endif

// 0: without a team.
executor own_executor(unsigned threads)
{
    if (threads == 0)
        return executor({.threads = 1});
    return executor(std::make_shared<team>(team_options{.threads = threads, .bind = binding::none}),
                    executor_options{.min_slice_elems = 64});
}

// Adds words of all ranks, or takes the largest of each.
class all_reduce {
public:
    explicit all_reduce(std::size_t ranks) : arrived_(static_cast<std::ptrdiff_t>(ranks)) {}
    void operator()(std::span<std::int64_t> words, column_reduction how = column_reduction::sum)
    {
        {
            std::lock_guard const lock(mutex_);
            results_.resize(words.size(), how == column_reduction::sum ? 0 : INT64_MIN);
            for (std::size_t i = 0; i < words.size(); ++i)
                results_[i] = how == column_reduction::sum ? results_[i] + words[i] : std::max(results_[i], words[i]);
        }
        arrived_.arrive_and_wait();
        std::ranges::copy(results_, words.begin());
        arrived_.arrive_and_wait();
        {
            std::lock_guard const lock(mutex_);
            results_.clear();
        }
        arrived_.arrive_and_wait(); // or a quick rank's next words would be cleared
    }

private:
    std::mutex mutex_;
    std::vector<std::int64_t> results_;
    std::barrier<> arrived_;
};

struct shape {
    std::size_t rows, columns; // columns 0: a vector
};

// A model, and what a run of it is made with.
struct run_options {
    zenflow_options zenflow = {};
    optimizer_options options = {};
    std::vector<shape> shapes = {{96, 33}, {40, 0}, {128, 64}, {7, 5}};
    std::string format = "float32";
    dtype grad = dtype::bfloat16;
    dtype weight = dtype::bfloat16;
    hyperparameters hyper = adamw({.lr = 1e-2, .weight_decay = 0.1});
    std::uint64_t seed = 1;
};

std::vector<std::unique_ptr<test::zenflow_arrays>> make_arrays(run_options const& of)
{
    test::random_bits random(of.seed);
    shard_dtypes const types = types_of_state(of.format, of.grad, of.weight).value();
    std::vector<std::unique_ptr<test::zenflow_arrays>> all;
    for (shape const& s : of.shapes) {
        all.push_back(
            std::make_unique<test::zenflow_arrays>(s.columns == 0, s.rows, std::max<std::size_t>(1, s.columns), types));
        all.back()->draw_state(random);
    }
    return all;
}
std::string name_of(std::size_t i)
{
    return "param " + std::to_string(i);
}

// An optimizer over rows [begin, end) of each matrix, in arrays of its own, of which the whole are copied from and to.
class rank_run {
public:
    rank_run(run_options const& of, executor const& cpu, std::size_t rank, std::size_t ranks, all_reduce* reduce,
             std::vector<std::unique_ptr<test::zenflow_arrays>> const& whole)
        : whole_(whole)
    {
        optimizer_options options = of.options;
        zenflow_options zenflow = of.zenflow;
        if (ranks > 1) {
            options.reduce = [reduce](auto words) { (*reduce)(words); };
            zenflow.reduce_columns = [reduce](auto numbers, column_reduction how) { (*reduce)(numbers, how); };
        }
        by.emplace(cpu, zenflow, options);
        by->add_group("first", of.hyper);
        by->add_group("second", adam({.lr = 3e-3, .weight_decay = 0.01}), true);
        for (std::size_t i = 0; i < whole.size(); ++i) {
            test::zenflow_arrays& all = *whole[i];
            std::size_t const unit = all.rows % 64 == 0 ? 64 : 1;
            auto const cut = [&](std::size_t r) { return all.rows / unit * r / ranks * unit; };
            first_.push_back(cut(rank));
            std::size_t const rows = (rank + 1 == ranks ? all.rows : cut(rank + 1)) - first_.back();
            arrays.push_back(std::make_unique<test::zenflow_arrays>(all.is_vector, rows, all.columns, all.types));
        }
        take_whole();
        for (std::size_t i = 0; i < whole.size(); ++i) {
            test::zenflow_arrays& own = *arrays[i];
            test::zenflow_arrays const& all = *whole[i];
            shard_position position;
            position.shape = all.is_vector ? std::vector{all.rows} : std::vector{all.rows, all.columns};
            position.begin = first_[i] * all.columns;
            optimizer_shard const view(any_shard(*find_format(own.types), pointers(own), own.rows * own.columns));
            changed.emplace_back(i % 3 == 2 ? 0 : changed_words(own.rows * own.columns));
            by->add_param({.group = i % 2,
                           .name = name_of(i),
                           .shard = changed.back().empty() ? view : view.track(changed.back()),
                           .columns = all.is_vector ? 0 : all.columns,
                           .weights = all.is_vector ? nullptr : own.weights.data(),
                           .position = position});
        }
    }
    static kernel::step_pointers pointers(test::zenflow_arrays& a)
    {
        return {a.of[0]->data(), a.of[1]->data(), a.of[2]->data(), a.of[3]->data(), a.of[4]->data()};
    }
    void take_whole()
    {
        for (std::size_t i = 0; i < arrays.size(); ++i)
            copy_rows(i, *whole_[i], *arrays[i], true);
    }
    // With a device they lie there, and the host's arrays are the optimizer's.
    void take_gradients()
    {
        for (std::size_t i = 0; i < arrays.size(); ++i) {
            std::size_t const row = arrays[i]->columns * size_bytes(arrays[i]->types[1]);
            std::size_t const bytes = arrays[i]->rows * row;
            if (bytes != 0)
                std::memcpy(on != nullptr ? on->real(there[i].grad, bytes) : arrays[i]->of[1]->data(),
                            whole_[i]->of[1]->data() + first_[i] * row, bytes);
        }
    }
    // Copies one rank's rows of state and weights from the whole, or into it.
    void copy_rows(std::size_t i, test::zenflow_arrays& whole, test::zenflow_arrays& own, bool from_whole) const
    {
        auto const copy = [&](std::byte* a, std::byte* b, std::size_t bytes) {
            std::memcpy(from_whole ? b : a, from_whole ? a : b, bytes);
        };
        for (std::size_t const which : {0u, 2u, 3u, 4u})
            for (std::size_t c = 0; c < whole.columns && whole.types[which] != dtype::none; ++c)
                copy(whole.of[which]->data() + array_bytes(whole.types[which], c * whole.rows + first_[i]),
                     own.of[which]->data() + array_bytes(whole.types[which], c * own.rows),
                     array_bytes(whole.types[which], own.rows));
        std::size_t const row = whole.columns * size_bytes(whole.source_type());
        if (!whole.is_vector)
            copy(whole.weights.data() + first_[i] * row, own.weights.data(), own.rows * row);
    }

    // Gradients and weights are on that device from now on.
    void place(std::shared_ptr<emulated_device> device)
    {
        on = std::move(device);
        for (std::size_t i = 0; i < arrays.size(); ++i) {
            test::zenflow_arrays const& a = *arrays[i];
            there.push_back({on->allocate(std::max<std::size_t>(16, a.of[1]->bytes())),
                             on->allocate(std::max<std::size_t>(16, weights_bytes(i)))});
            by->set_device_arrays(i, there[i]);
        }
        by->place(on);
    }
    [[nodiscard]] std::size_t weights_bytes(std::size_t i) const
    {
        return array_bytes(arrays[i]->source_type(), arrays[i]->rows * arrays[i]->columns);
    }
    // What the model sees.
    [[nodiscard]] std::string difference_of_weights(std::size_t i, test::zenflow_arrays& expected) const
    {
        test::zenflow_arrays const& own = *arrays[i];
        if (on == nullptr)
            return own.is_vector ? "" : own.weights.difference(expected.weights);
        std::byte const* const seen = on->real(there[i].weight_out, weights_bytes(i));
        std::byte const* const wanted = own.is_vector ? expected.source().data() : expected.weights.data();
        return std::memcmp(seen, wanted, weights_bytes(i)) == 0 ? "" : "weights on the device differ";
    }

    std::vector<std::unique_ptr<test::zenflow_arrays>> arrays;
    // The model's weights of these params, as bits.
    [[nodiscard]] std::vector<std::vector<std::uint32_t>> published() const
    {
        std::vector<std::vector<std::uint32_t>> all;
        for (std::size_t i = 0; i < arrays.size(); ++i) {
            std::byte const* const seen = on != nullptr          ? on->real(there[i].weight_out, weights_bytes(i))
                                          : arrays[i]->is_vector ? arrays[i]->source().data()
                                                                 : arrays[i]->weights.data();
            std::size_t const size = size_bytes(arrays[i]->source_type());
            std::vector<std::uint32_t>& bits = all.emplace_back(arrays[i]->rows * arrays[i]->columns);
            for (std::size_t k = 0; k < bits.size(); ++k)
                std::memcpy(&bits[k], seen + k * size, size);
        }
        return all;
    }
    // The bits of changed weights must be those of the weights that are others than `before`; clears them.
    void check_changes(std::vector<std::vector<std::uint32_t>> const& before)
    {
        std::vector<std::vector<std::uint32_t>> const now = published();
        for (std::size_t i = 0; i < arrays.size(); ++i) {
            INFO("changed weights of param " << i);
            std::vector<std::uint64_t> expected(changed[i].size());
            for (std::size_t k = 0; k < now[i].size() && !expected.empty(); ++k)
                expected[k / 64] |= std::uint64_t{now[i][k] != before[i][k]} << k % 64;
            REQUIRE((changed[i] == expected));
            std::fill(changed[i].begin(), changed[i].end(), std::uint64_t{0});
        }
    }

    std::vector<std::vector<std::uint64_t>> changed; // words of each param; empty: not tracked
    std::vector<device_arrays> there;
    std::shared_ptr<emulated_device> on;
    std::optional<zenflow_optimizer> by;

private:
    std::vector<std::unique_ptr<test::zenflow_arrays>> const& whole_;
    std::vector<std::size_t> first_;
};

// A state with memory of its own, as a file would hold it.
struct kept_state {
    zenflow_state state;
    std::vector<std::vector<std::byte>> memory;

    explicit kept_state(zenflow_state of) : state(std::move(of))
    {
        for (zenflow_state_param& p : state.params) {
            std::size_t const n = p.rows * std::max<std::size_t>(1, p.columns);
            for (std::size_t which = 0; which < shard_arrays; ++which)
                keep(p.arrays[which], array_bytes(p.types[which], n));
            dtype const weights = p.types[p.types[4] == dtype::none ? 0 : 4];
            keep(p.weights, array_bytes(weights, n));
            auto const* sums = reinterpret_cast<std::byte const*>(p.sums);
            keep(sums, n * sizeof(float));
            p.sums = reinterpret_cast<float const*>(sums);
        }
    }
    void keep(std::byte const*& at, std::size_t bytes)
    {
        if (at == nullptr)
            return;
        memory.emplace_back(at, at + bytes);
        at = memory.back().data();
    }
};

struct tester {
    run_options of;
    std::vector<std::unique_ptr<test::zenflow_arrays>> expected, whole; // whole: for ranks to copy from
    test::zenflow_reference reference;
    std::unique_ptr<all_reduce> reduce;
    std::vector<std::unique_ptr<rank_run>> ranks;
    test::random_bits random;

    tester(run_options options, std::size_t rank_count, unsigned threads)
        : of(std::move(options)), expected(make_arrays(of)), whole(make_arrays(of)), random(of.seed + 1)
    {
        reference.zenflow = of.zenflow;
        reference.options = of.options;
        reference.groups = {{"first", of.hyper, false}, {"second", adam({.lr = 3e-3, .weight_decay = 0.01}), true}};
        if (of.options.loss_scaling)
            reference.scaler = initial_state(*of.options.loss_scaling);
        for (std::size_t i = 0; i < expected.size(); ++i) {
            std::size_t const flags = expected[i]->is_vector ? 0 : expected[i]->columns;
            reference.params.push_back({expected[i].get(), i % 2, param_number_of(name_of(i)),
                                        std::vector<std::uint64_t>(expected[i]->columns),
                                        std::vector<std::uint8_t>(flags), std::vector<std::uint8_t>(flags),
                                        std::vector<float>(expected[i]->rows * expected[i]->columns)});
        }
        begin(rank_count, threads);
    }
    void begin(std::size_t rank_count, unsigned threads)
    {
        ranks.clear();
        reduce = std::make_unique<all_reduce>(rank_count);
        for (std::size_t r = 0; r < rank_count; ++r)
            ranks.push_back(std::make_unique<rank_run>(of, own_executor(threads), r, rank_count, reduce.get(), whole));
    }
    // extreme: some gradients are infinite, NaN or huge.
    void draw(bool extreme, int shift = 0)
    {
        for (std::size_t i = 0; i < expected.size(); ++i) {
            std::size_t const n = expected[i]->rows * expected[i]->columns;
            std::vector<int> weight(expected[i]->columns);
            for (int& w : weight)
                w = static_cast<int>(random.below(6));
            for (std::size_t k = 0; k < n; ++k) {
                float g = std::ldexp(test::with_exponent(random(), -9, -6), shift + weight[k % weight.size()]);
                if (extreme && random.below(n) == 0)
                    g = random.below(2) == 0 ? std::numeric_limits<float>::infinity() : NAN;
                whole[i]->of[1]->set(k, g);
                expected[i]->of[1]->set(k, whole[i]->of[1]->get(k));
            }
        }
    }
    template <class Call>
    void on_all_ranks(Call const& call)
    {
        std::vector<std::thread> threads;
        std::mutex mutex;
        std::string error;
        auto const run = [&](rank_run& rank) {
            try {
                call(rank);
            } catch (std::exception const& thrown) {
                std::lock_guard const lock(mutex);
                error = thrown.what();
            }
        };
        for (std::size_t r = 1; r < ranks.size(); ++r)
            threads.emplace_back([&, r] { run(*ranks[r]); });
        run(*ranks[0]);
        for (std::thread& each : threads)
            each.join();
        REQUIRE(error == "");
    }
    void step(std::vector<bool> const& present = {})
    {
        bool const applied = reference.step(present);
        std::vector<step_outcome> outcomes(ranks.size());
        std::vector<std::vector<std::vector<std::uint32_t>>> before;
        for (auto const& rank : ranks) {
            for (auto& words : rank->changed)
                std::fill(words.begin(), words.end(), std::uint64_t{0});
            before.push_back(rank->published());
        }
        on_all_ranks([&](rank_run& r) {
            r.take_gradients();
            std::vector<void const*> gradients;
            for (std::size_t i = 0; i < r.arrays.size(); ++i)
                gradients.push_back(present.empty() || present[i] ? r.arrays[i]->of[1]->data() : nullptr);
            zenflow_report const report = r.by->step_gradients(gradients);
            outcomes[static_cast<std::size_t>(std::ranges::find_if(ranks, [&](auto& x) { return x.get() == &r; }) -
                                              ranks.begin())] = report.outcome;
        });
        for (step_outcome const outcome : outcomes)
            REQUIRE((outcome == step_outcome::applied) == applied);
        for (std::size_t r = 0; r < ranks.size(); ++r)
            ranks[r]->check_changes(before[r]);
    }
    // State is compared where nothing goes on in the background, and weights always.
    void compare(bool state)
    {
        for (auto const& rank : ranks) {
            if (state)
                (void)rank->by->state();
            for (std::size_t i = 0; i < expected.size(); ++i) {
                INFO("param " << i << " of " << expected[i]->rows << " x " << expected[i]->columns);
                test::zenflow_arrays part(expected[i]->is_vector, rank->arrays[i]->rows, expected[i]->columns,
                                          expected[i]->types);
                rank->copy_rows(i, *expected[i], part, true);
                for (std::size_t const which : {0u, 2u, 3u, 4u})
                    if (state && part.types[which] != dtype::none)
                        REQUIRE(rank->arrays[i]->of[which]->difference(*part.of[which]) == "");
                if (part.rows != 0)
                    REQUIRE(rank->difference_of_weights(i, part) == "");
                if (!expected[i]->is_vector)
                    REQUIRE(rank->by->selected(i) == reference.params[i].selected);
                REQUIRE(rank->by->updates(i) == reference.params[i].counts);
            }
            REQUIRE(rank->by->position() == reference.at);
        }
    }
};

run_options random_run(std::uint64_t seed)
{
    test::random_bits random(seed * 77 + 5);
    run_options of;
    of.seed = seed;
    constexpr char const* formats[] = {"float32",    "bfloat16", "split_float32",
                                       "quantized8", "float32",  "split_float32+quantized8"};
    of.format = formats[random.below(std::size(formats))];
    constexpr dtype grads[] = {dtype::bfloat16, dtype::float32, dtype::float16};
    of.grad = grads[random.below(3)];
    of.weight = random.below(3) == 0 && of.format[0] != 's' ? dtype::none : dtype::bfloat16;
    if (of.format == "split_float32+quantized8")
        of.grad = dtype::bfloat16;
    bool const groups = of.format.find("quantized8") != std::string::npos;
    of.shapes.clear();
    for (std::size_t i = 0, n = 1 + random.below(4); i < n; ++i)
        of.shapes.push_back({groups ? 64 * (1 + random.below(3)) : 1 + random.below(130),
                             random.below(4) == 0 ? 0 : 1 + random.below(90)});
    if (random.below(5) == 0)
        of.shapes.push_back({64 * (8 + random.below(3)), 70});
    constexpr double ratios[] = {0, 0.05, 0.1, 0.3, 0.5, 1};
    of.zenflow.topk_ratio = ratios[random.below(std::size(ratios))];
    of.zenflow.score = random.below(2) == 0 ? column_score::square : column_score::magnitude;
    of.zenflow.scope = random.below(3) == 0 ? selection_scope::all_params : selection_scope::each_param;
    of.zenflow.select_interval = 1 + random.below(6);
    of.zenflow.update_interval = 1 + random.below(5);
    if (random.below(4) == 0)
        of.zenflow.update_interval.reset();
    of.zenflow.max_deferred = 1 + random.below(8);
    of.zenflow.full_warm_up_rounds = random.below(3) == 0 ? random.below(4) : 0;
    of.zenflow.overlap = random.below(3) != 0;
    of.options.max_norm = random.below(2) == 0 ? 0.05 : 0;
    constexpr nonfinite_policy policies[] = {nonfinite_policy::skip, nonfinite_policy::zero, nonfinite_policy::apply};
    of.options.on_nonfinite = policies[random.below(3)];
    if (random.below(3) == 0)
        of.options.loss_scaling = loss_scaling_options{.initial_scale = 16, .growth_interval = 3};
    of.hyper.rounding.seed = seed;
    return of;
}

} // namespace

static void random_runs(std::uint64_t first, std::uint64_t end)
{
    for (std::uint64_t seed = first; seed < end; ++seed) {
        run_options const of = random_run(seed);
        INFO("seed " << seed << ", " << of.format << ", gradients of " << name(of.grad) << ", ratio "
                     << of.zenflow.topk_ratio << ", overlap " << of.zenflow.overlap);
        tester all(of, 1, static_cast<unsigned>(seed % (most_threads + 1)));
        for (int step = 0; step < 14; ++step) {
            INFO("step " << step);
            all.draw(all.random.below(6) == 0, all.random.below(8) == 0 ? 128 : 0);
            std::vector<bool> present;
            if (all.random.below(4) == 0)
                for (std::size_t i = 0; i < of.shapes.size(); ++i)
                    present.push_back(all.random.below(4) != 0);
            all.step(present);
            all.compare(all.random.below(3) == 0);
        }
        std::vector<std::vector<std::uint32_t>> const before = all.ranks[0]->published();
        all.ranks[0]->by->flush();
        all.ranks[0]->check_changes(before);
    }
}

// User reports: DeepSpeed #7759.
TEST_CASE("zenflow: random runs have the bits of the reference implementation: one state, true counts, every corner",
          "[zenflow_drift]")
{
    random_runs(0, 12);
}

// User reports: DeepSpeed #7759.
TEST_CASE("zenflow: random runs have the bits of the reference implementation: one state, true counts, every corner "
          "(more of them)",
          "[zenflow_drift][once]")
{
    random_runs(12, 12 + test::repeats(5));
}

namespace {

// Norm blocks are of 4096 elements: with such shapes no cut at 64 rows changes a norm.
run_options run_for_ranks(std::uint64_t seed)
{
    run_options of = random_run(seed);
    bool const even = seed % 2 == 0;
    for (shape& s : of.shapes) {
        s.rows = even ? 64 * (1 + s.rows % 5) : s.rows;
        s.columns = s.columns == 0 ? 0 : even ? 64 : s.columns;
        if (s.columns == 0 && even)
            s.rows = 4096 * (1 + s.rows % 3);
    }
    if (!even) {
        of.options.max_norm = 0;
        if (!of.zenflow.update_interval)
            of.zenflow.update_interval = 3;
    }
    return of;
}

} // namespace

TEST_CASE("zenflow: no bit depends on ranks and cuts", "[slow]")
{
    for (std::uint64_t seed = 100; seed < 100 + test::repeats(8); ++seed) {
        run_options const of = run_for_ranks(seed);
        INFO("seed " << seed << ", " << of.format << ", gradients of " << name(of.grad));
        tester all(of, 2 + seed % 2, static_cast<unsigned>(seed % 2));
        for (int step = 0; step < 10; ++step) {
            INFO("step " << step);
            all.draw(all.random.below(8) == 0);
            all.step();
            all.compare(step % 4 == 3);
        }
    }
}

TEST_CASE("zenflow: a run that is killed goes on with the same bits, with other ranks and another share", "[slow]")
{
    for (std::uint64_t seed = 200; seed < 200 + test::repeats(6); ++seed) {
        run_options of = run_for_ranks(seed);
        INFO("seed " << seed << ", " << of.format << ", overlap " << of.zenflow.overlap);
        tester all(of, 1 + seed % 3, static_cast<unsigned>(seed % 2));
        for (int step = 0; step < 12; ++step) {
            INFO("step " << step);
            all.draw(false);
            all.step();
            std::vector<kept_state> kept;
            for (auto const& rank : all.ranks)
                kept.emplace_back(rank->by->state());
            all.compare(true);
            std::size_t const ranks = 1 + all.random.below(3);
            all.of.zenflow.topk_ratio = all.reference.zenflow.topk_ratio = static_cast<double>(all.random.below(8)) / 8;
            for (auto const& whole : all.whole) // what a new process begins with
                for (std::size_t const which : {0u, 2u, 3u, 4u})
                    std::memset(whole->of[which]->data(), 0, whole->of[which]->bytes());
            all.begin(ranks, static_cast<unsigned>(step) % (most_threads + 1));
            std::vector<zenflow_state> states;
            for (kept_state const& each : kept)
                states.push_back(each.state);
            std::ranges::reverse(states);
            for (auto const& rank : all.ranks)
                rank->by->load(states);
            all.compare(true);
        }
    }
}

TEST_CASE("zenflow: without weights in the state they are made from the masters")
{
    run_options of;
    of.zenflow = {.topk_ratio = 0.25, .select_interval = 3, .update_interval = 2};
    tester all(of, 1, 0);
    for (int step = 0; step < 5; ++step) {
        all.draw(false);
        all.step();
    }
    kept_state kept(all.ranks[0]->by->state());
    for (zenflow_state_param& p : kept.state.params)
        p.weights = nullptr;
    all.begin(1, 0);
    all.ranks[0]->by->load(kept.state);
    for (auto& p : all.reference.params)
        for (std::size_t c = 0; c < p.publishing.size(); ++c) {
            p.a->flush(c);
            p.publishing[c] = 0;
        }
    all.compare(true);
    all.draw(false);
    all.step();
    all.compare(true);
}

static void random_runs_with_a_device(std::uint64_t first, std::uint64_t end)
{
    for (std::uint64_t seed = first; seed < end; ++seed) {
        run_options const of = random_run(seed);
        INFO("seed " << seed << ", " << of.format << ", gradients of " << name(of.grad) << ", ratio "
                     << of.zenflow.topk_ratio << ", overlap " << of.zenflow.overlap);
        tester all(of, 1, static_cast<unsigned>(seed % (most_threads + 1)));
        rank_run& rank = *all.ranks[0];
        auto const on = test::make_device();
        for (int step = 0; step < 14; ++step) {
            INFO("step " << step);
            if (step == 2)
                rank.place(on);
            if (step == 11) {
                rank.by->place(nullptr);
                rank.on = nullptr;
            }
            all.draw(all.random.below(6) == 0, all.random.below(8) == 0 ? 128 : 0);
            std::vector<bool> present;
            if (all.random.below(4) == 0)
                for (std::size_t i = 0; i < of.shapes.size(); ++i)
                    present.push_back(all.random.below(4) != 0);
            all.step(present);
            all.compare(step == 11 || all.random.below(4) == 0);
        }
        rank.by->place(nullptr);
    }
}

TEST_CASE("zenflow: with a device the bits are the same", "[both]")
{
    random_runs_with_a_device(300, 308);
}

TEST_CASE("zenflow: with a device the bits are the same (more of them)", "[once]")
{
    random_runs_with_a_device(308, 308 + test::repeats(5));
}

TEST_CASE("zenflow: states of ranks that differ in what ranks share are refused", "[once]")
{
    run_options of;
    of.shapes = {{128, 8}, {128, 0}};
    of.zenflow = {.topk_ratio = 0.25, .select_interval = 2, .update_interval = 4};
    of.options.loss_scaling = loss_scaling_options{.initial_scale = 8};
    tester two(of, 2, 0), one(of, 1, 0);
    for (int step = 0; step < 2; ++step) {
        two.draw(false);
        two.step();
    }
    kept_state const first(two.ranks[0]->by->state()), second(two.ranks[1]->by->state());
    auto const load = [&](auto const& change) {
        std::vector<zenflow_state> states = {first.state, second.state};
        change(states[1]);
        return refusal([&] { one.ranks[0]->by->load(states); });
    };
    CHECK(load([](zenflow_state&) {}) == "no exception");
    CHECK(mentions(load([](zenflow_state& s) { s.groups[1].hyper.lr = 0.5; }), {"lr of group 'second'"}));
    CHECK(mentions(load([](zenflow_state& s) { s.groups[0].maximize = true; }), {"an option of group 'first'"}));
    CHECK(mentions(load([](zenflow_state& s) { s.loss_scaler->scale = 2; }), {"the loss scaler"}));
    CHECK(mentions(load([](zenflow_state& s) { s.deferred_norm = 100; }), {"deferred_norm"}));
    CHECK(mentions(load([](zenflow_state& s) { s.position.steps = 5; }), {"different steps: 2 and 5"}));
    CHECK(mentions(load([](zenflow_state& s) { ++s.params[0].counts[0]; }), {"two states differ in its counts"}));
    CHECK(mentions(load([](zenflow_state& s) { s.params[0].selected[0] ^= 1; }), {"two states differ in its counts"}));
    CHECK(mentions(load([](zenflow_state& s) {
                       s.params[0].summed = 0;
                       s.params[0].sums = nullptr;
                   }),
                   {"two states differ in its counts"}));
}

TEST_CASE("zenflow: a device that somebody else resets between steps has the same bits", "[both]")
{
    run_options of;
    of.shapes = {{512, 32}, {40, 0}};
    of.zenflow = {.topk_ratio = 0.25, .select_interval = 4, .update_interval = 2};
    tester all(of, 1, 1);
    rank_run& rank = *all.ranks[0];
    rank.place(test::make_device({.up_bytes_per_s = 1e6})); // 512 * 32 weights take 65 ms
    for (int step = 0; step < 9; ++step) {
        INFO("step " << step);
        all.draw(false);
        all.step();
        CHECK(rank.on->reset(device::clock::now() + std::chrono::seconds(10)));
        all.compare(step == 8);
    }
    rank.by->place(nullptr);
}

TEST_CASE("zenflow: weights that a device shares with the host cannot be tracked in place", "[both]")
{
    run_options of;
    of.zenflow = {.topk_ratio = 0.5, .select_interval = 2, .update_interval = 1};
    tester all(of, 1, 1);
    rank_run& rank = *all.ranks[0];
    auto const on = std::make_shared<emulated_device>(emulation_options{.shares_host_memory = true});
    for (std::size_t i = 0; i < rank.arrays.size(); ++i) {
        test::zenflow_arrays& a = *rank.arrays[i];
        auto const shared = [](std::byte const* data) { return device_ptr{reinterpret_cast<std::uintptr_t>(data)}; };
        rank.by->set_device_arrays(
            i, {shared(a.of[1]->data()), shared(a.is_vector ? a.source().data() : a.weights.data())});
    }
    CHECK(mentions(refusal<invalid_argument>([&] { rank.by->place(on); }),
                   {"cannot place param", "do not track changes"}));
}

TEST_CASE("zenflow: ranks with a device each, killed and resumed", "[both]")
{
    for (std::uint64_t seed = 400; seed < 406; ++seed) {
        run_options const of = run_for_ranks(seed);
        INFO("seed " << seed << ", " << of.format);
        tester all(of, 2, 1);
        for (int step = 0; step < 9; ++step) {
            INFO("step " << step);
            if (step % 3 == 0) {
                std::vector<kept_state> kept;
                for (auto const& rank : all.ranks)
                    kept.emplace_back(rank->by->state());
                all.begin(1 + all.random.below(3), 1);
                std::vector<zenflow_state> states;
                for (kept_state const& each : kept)
                    states.push_back(each.state);
                for (auto const& rank : all.ranks) {
                    rank->place(test::make_device());
                    rank->by->load(states);
                }
            }
            all.draw(false);
            all.step();
            all.compare(step % 2 == 0);
        }
    }
}

static void runs_with_failures(std::uint64_t first, std::uint64_t end)
{
    constexpr device_operation kinds[] = {device_operation::copy_up, device_operation::copy_down,
                                          device_operation::work};
    std::size_t failures = 0;
    for (std::uint64_t seed = first; seed < end; ++seed) {
        run_options of = random_run(seed);
        of.options.on_nonfinite = nonfinite_policy::skip;
        of.options.loss_scaling.reset();
        of.options.device_timeout_s = 20;
        INFO("seed " << seed << ", " << of.format << ", ratio " << of.zenflow.topk_ratio << ", overlap "
                     << of.zenflow.overlap);
        tester all(of, 1, 1);
        rank_run& rank = *all.ranks[0];
        auto const on = test::make_device();
        rank.place(on);
        for (int step = 0; step < 12; ++step) {
            INFO("step " << step);
            all.draw(false);
            rank.take_gradients();
            on->resume(); // one fault at a time
            on->fail(kinds[all.random.below(3)], all.random.below(10 + 8 * of.shapes.size()));
            bool taken = false, published = true;
            for (int attempt = 0; !taken; ++attempt) {
                REQUIRE(attempt < 4);
                rank.take_gradients();
                try {
                    rank.by->step();
                    taken = true;
                } catch (device_error const& error) {
                    ++failures;
                    on->resume();
                    published = std::string(error.what()).find("is complete nevertheless") == std::string::npos;
                    taken = !published;
                    if (!taken) { // the same state as before
                        (void)rank.by->state();
                        REQUIRE(rank.by->position() == all.reference.at);
                        for (std::size_t i = 0; i < of.shapes.size(); ++i)
                            if (!all.expected[i]->is_vector)
                                REQUIRE(rank.by->selected(i) == all.reference.params[i].selected);
                        for (std::size_t i = 0; i < of.shapes.size(); ++i)
                            for (std::size_t const which : {0u, 2u, 3u})
                                REQUIRE(rank.arrays[i]->of[which]->difference(*all.expected[i]->of[which]) == "");
                    }
                }
            }
            REQUIRE(all.reference.step());
            if (step % 3 != 2 && published) { // what goes on in the background may still fail
                all.compare(false);
                continue;
            }
            on->resume();
            try {
                (void)rank.by->state();
            } catch (device_error const&) { // of what has failed in the background
                on->resume();
            }
            all.compare(true);
        }
    }
    REQUIRE(failures > (end - first) / 2);
}

TEST_CASE("zenflow: a device that fails at anything leaves the step before, and goes on", "[both]")
{
    runs_with_failures(500, 504);
}

TEST_CASE("zenflow: a device that fails at anything leaves the step before, and goes on (more of them)", "[once]")
{
    runs_with_failures(504, 512);
}

// What had been enqueued before the failure still runs then.
TEST_CASE("zenflow: weights that could not publish do so at the next call, however slow the device is", "[both]")
{
    run_options of;
    of.zenflow = {.topk_ratio = 0.1, .select_interval = 100, .update_interval = 2};
    tester all(of, 1, 1);
    rank_run& rank = *all.ranks[0];
    auto const on = test::make_device(emulation_options{.work_bytes_per_s = 1e6});
    rank.place(on);
    for (int step = 0; step < 2; ++step) {
        all.draw(false);
        all.step();
    }
    (void)rank.by->state();                 // everything has been stepped and is up
    on->fail(device_operation::copy_up, 1); // the second matrix's list of columns
    CHECK(mentions(refusal<device_error>([&] { rank.by->flush(); }), {"step 2 is complete nevertheless"}));
    on->resume();
    rank.by->flush();
    for (auto& p : all.reference.params)
        for (std::size_t c = 0; c < p.publishing.size(); ++c)
            if (std::exchange(p.publishing[c], std::uint8_t{0}) != 0)
                p.a->flush(c);
    all.compare(true);
    for (int step = 0; step < 4; ++step) {
        all.draw(false);
        all.step();
        all.compare(true);
    }
}

static void failing_selections(std::uint64_t first, std::uint64_t end)
{
    std::size_t failures = 0;
    for (std::uint64_t seed = first; seed < end; ++seed) {
        run_options of = random_run(seed);
        of.options.on_nonfinite = nonfinite_policy::skip;
        of.options.loss_scaling.reset();
        of.zenflow.topk_ratio = 0.3;
        of.zenflow.select_interval = 3;
        of.zenflow.update_interval = 1 + seed % 4;
        of.zenflow.overlap = true;
        INFO("seed " << seed << ", " << of.format);
        tester all(of, 1, 1 + seed % 2);
        rank_run& rank = *all.ranks[0];
        auto const on = test::make_device();
        rank.place(on);
        for (int step = 0; step < 16; ++step) {
            INFO("step " << step);
            all.draw(false);
            rank.take_gradients();
            on->fail(device_operation::allocate, 0); // for what is selected
            bool const fails = refusal<device_error>([&] { rank.by->step(); }) != "no exception";
            on->resume();
            failures += fails;
            if (fails && all.random.below(2) == 0)
                all.compare(all.random.below(2) == 0);
            if (fails) {
                all.draw(false);
                all.step();
            } else {
                REQUIRE(all.reference.step());
            }
            all.compare(all.random.below(3) == 0);
        }
    }
    REQUIRE(failures > 3 * (end - first));
}

TEST_CASE("zenflow: a selection that fails changes nothing, and the next one may be another", "[both]")
{
    failing_selections(520, 524);
}

TEST_CASE("zenflow: a selection that fails changes nothing, and the next one may be another (more of them)", "[once]")
{
    failing_selections(524, 532);
}

TEST_CASE("zenflow: a device that hangs, or has too little memory, says so", "[both]")
{
    run_options of;
    of.options.device_timeout_s = 0.2;
    tester all(of, 1, 1);
    rank_run& rank = *all.ranks[0];
    auto const small = test::make_device(emulation_options{.memory_bytes = 60'000});
    CHECK(mentions(refusal<unavailable>([&] { rank.place(small); }), {"bytes"}));
    rank.on = nullptr;
    rank.there.clear();
    all.draw(false);
    all.step();
    all.compare(true);

    auto const on = test::make_device();
    CHECK(mentions(refusal([&] {
                       zenflow_optimizer fresh{own_executor(0)};
                       std::vector<float> param(4), grad(4), m(4), v(4);
                       fresh.add_group("all", adamw());
                       fresh.add_param({0, "v", shard(param, grad, m, v)});
                       fresh.place(on);
                   }),
                   {"no arrays on the device"}));
    rank.place(on);
    all.draw(false);
    all.step();
    kept_state const kept(rank.by->state());
    all.draw(false);
    rank.take_gradients();
    on->hang(device_operation::work, 3);
    CHECK(mentions(refusal<device_error>([&] { rank.by->step(); }), {"0.2 s"}));
    on->resume();
    try {
        (void)rank.by->state();
    } catch (error const&) { // where it did not come back in time
    }
    rank.by->load(kept.state);
    all.step();
    all.compare(true);
}

TEST_CASE("zenflow: a gradient is downloaded once the previous one is accumulated, and no sooner", "[both]")
{
    run_options of;
    of.zenflow = {.topk_ratio = 0.2, .select_interval = 100, .update_interval = 4};
    tester all(of, 1, 1);
    rank_run& rank = *all.ranks[0];
    rank.place(test::make_device());
    all.draw(false);
    all.step();             // selects, for which it needs the team
    (void)rank.by->state(); // nothing is left to be accumulated
    std::atomic<bool> goes_on = false;
    {
        auto const holds_the_team = rank.by->cpu().team()->submit([&](unsigned) {
            while (!goes_on)
                std::this_thread::yield();
        });
        all.draw(false);
        all.step(); // its gradients are not accumulated yet
        all.draw(false);
        rank.take_gradients();
        rank.by->begin_step();
        for (std::size_t i = 0; i < of.shapes.size(); ++i)
            rank.by->submit(i);
        REQUIRE(rank.on->wait_until(rank.on->record_event(device_stream::down),
                                    device::clock::now() + std::chrono::seconds(20)));
        goes_on = true;
    }
    rank.by->finish();
    REQUIRE(all.reference.step());
    all.compare(true);
    all.draw(false);
    all.step();
    all.compare(true);
}

TEST_CASE("zenflow: gradients that arrive one by one", "[both]")
{
    run_options of;
    of.zenflow = {.topk_ratio = 0.2, .select_interval = 2, .update_interval = 2};
    tester all(of, 1, 1);
    rank_run& rank = *all.ranks[0];
    for (int step = 0; step < 8; ++step) {
        if (step == 4)
            rank.place(test::make_device());
        if (step == 5) { // they are downloaded to the same array
            rank.by->set_gradient(0, rank.arrays[0]->of[1]->data());
            CHECK(mentions(refusal([&] { rank.by->set_gradient(0, rank.arrays[1]->of[1]->data()); }),
                           {"param 0", "when place() was called"}));
        }
        all.draw(false);
        rank.take_gradients();
        rank.by->begin_step();
        CHECK(mentions(refusal([&] { rank.by->step_gradients({}); }), {"step_gradients()", "in progress"}));
        CHECK(mentions(refusal([&] { rank.by->begin_step(); }), {"in progress"}));
        CHECK(mentions(refusal([&] { (void)rank.by->state(); }), {"in progress"}));
        CHECK(mentions(refusal([&] { rank.by->finish(); }), {"not been submitted: 0"}));
        for (std::size_t i = of.shapes.size(); i-- > 1;)
            rank.by->submit(i);
        CHECK(mentions(refusal([&] { rank.by->submit(1); }), {"submitted"}));
        rank.by->skip(0);
        CHECK(mentions(refusal([&] { rank.by->submit(0); }), {"skipped"}));
        if (step % 3 == 2) {
            rank.by->abandon();
            all.compare(true);
            continue;
        }
        zenflow_report const report = rank.by->finish();
        CHECK(report.ratio == (step < 4 ? 1 : 0));
        CHECK(report.device.elements == (step < 4 ? 0 : report.elements));
        REQUIRE(all.reference.step({false, true, true, true}));
        all.compare(step % 2 == 0);
    }
    CHECK(mentions(refusal([&] { rank.by->submit(0); }), {"no step is open"}));
    CHECK(mentions(refusal([&] { rank.by->finish(); }), {"no step is open"}));
    CHECK(mentions(refusal([&] { rank.by->abandon(); }), {"no step is open"}));
}

// Steps without a pause, of a matrix that takes threads long enough: the one that selects comes before they are
// through.
TEST_CASE("zenflow: gradients after a selection are not accumulated before it", "[once]")
{
    run_options of;
    of.shapes = {{1024, 256}};
    of.zenflow = {.topk_ratio = 0.3, .select_interval = 2, .update_interval = 2};
    tester all(of, 1, 1);
    rank_run& rank = *all.ranks[0];
    test::array& own = *rank.arrays[0]->of[1];
    test::array& expected = *all.expected[0]->of[1];
    std::vector<std::vector<std::byte>> gradients;
    for (int step = 0; step < 4; ++step) {
        all.draw(false, step);
        rank.take_gradients();
        gradients.emplace_back(own.data(), own.data() + own.bytes());
    }
    for (int round = 0; round < 2; ++round) {
        for (auto const& gradient : gradients) {
            void const* const at[] = {gradient.data()};
            (void)rank.by->step_gradients(at);
        }
        for (auto const& gradient : gradients) {
            std::memcpy(expected.data(), gradient.data(), gradient.size());
            REQUIRE(all.reference.step());
        }
        all.compare(true);
    }
}

TEST_CASE("zenflow: everything selected, or nothing deferred for long, is the plain step")
{
    bool const everything = GENERATE(true, false);
    char const* const format = GENERATE("float32", "bfloat16", "split_float32", "quantized8");
    INFO(format << ", everything selected: " << everything);
    run_options of;
    of.format = format;
    of.shapes = {{64, 40}, {192, 0}, {128, 3}};
    of.zenflow.topk_ratio = everything ? 1 : 0.2;
    of.zenflow.update_interval = everything ? 5 : 1;
    of.zenflow.overlap = everything;
    of.hyper.rounding.seed = 3;
    tester all(of, 1, most_threads);

    auto const plain = make_arrays(of);
    optimizer by(own_executor(0));
    by.add_group("first", of.hyper);
    by.add_group("second", adam({.lr = 3e-3, .weight_decay = 0.01}), true);
    for (std::size_t i = 0; i < plain.size(); ++i)
        by.add_shard({.group = i % 2,
                      .name = name_of(i),
                      .shard = optimizer_shard(any_shard(*find_format(plain[i]->types), rank_run::pointers(*plain[i]),
                                                         plain[i]->rows * plain[i]->columns))});
    for (int step = 0; step < 6; ++step) {
        all.draw(step == 3);
        all.step();
        for (std::size_t i = 0; i < plain.size(); ++i)
            for (std::size_t r = 0; r < plain[i]->rows; ++r)
                for (std::size_t c = 0; c < plain[i]->columns; ++c)
                    plain[i]->of[1]->set(c * plain[i]->rows + r, all.whole[i]->of[1]->get(r * plain[i]->columns + c));
        by.step();
        for (std::size_t i = 0; i < plain.size(); ++i)
            for (std::size_t const which : {0u, 2u, 3u, 4u})
                REQUIRE(all.ranks[0]->arrays[i]->of[which]->difference(*plain[i]->of[which]) == "");
        all.compare(true);
    }
}

TEST_CASE("zenflow: what is accumulated to infinity is dropped whole, or counts as zero")
{
    run_options of;
    of.grad = dtype::float32;
    of.zenflow = {.topk_ratio = 0.1, .select_interval = 2, .update_interval = 2};
    of.options.on_nonfinite = GENERATE(nonfinite_policy::skip, nonfinite_policy::zero);
    of.shapes = {{64, 64}, {9, 7}};
    tester all(of, GENERATE(1u, 2u), 1);
    for (int step = 0; step < 8; ++step) {
        INFO("step " << step);
        all.draw(false, step == 2 || step == 3 ? 130 : 0);
        all.step();
        all.compare(true);
    }
}

TEST_CASE("zenflow: the report")
{
    run_options of;
    of.shapes = {{16, 20}, {10, 0}};
    of.zenflow = {.topk_ratio = 0.25, .select_interval = 4, .update_interval = 2, .full_warm_up_rounds = 1};
    tester all(of, 1, 0);
    zenflow_optimizer& by = *all.ranks[0]->by;
    auto const step = [&] {
        all.draw(false);
        all.ranks[0]->take_gradients();
        return by.step();
    };
    zenflow_report const first = step();
    CHECK(first.warm_up);
    CHECK(!first.window_ended);
    CHECK(first.deferred == 0);
    CHECK(first.deferred_stepped == 0);
    CHECK(first.elements == 330);
    zenflow_report const second = step();
    CHECK(!second.warm_up);
    CHECK(second.selected);
    CHECK(second.columns_moved == 5);
    CHECK(second.elements == 5 * 16 + 10);
    CHECK(second.deferred == 15 * 16);
    CHECK(!second.window_ended);
    zenflow_report const third = step();
    CHECK(third.window_ended);
    CHECK(!third.selected);
    CHECK(third.deferred_stepped == 15 * 16);
    CHECK(by.position() == zenflow_position{3, 2, 0, true, 0});
    CHECK(by.memory_bytes() == 320 * 4 * 2);
    CHECK(by.steps() == 3);
}

TEST_CASE("zenflow: where a window ends by itself, vectors count on neither side", "[once]")
{
    auto const position_with = [](float vector_gradient) {
        std::vector<float> param(320, 0.5f), grad(320), m(320), v(320), weights(param);
        std::vector<float> bias(16), bias_grad(16, vector_gradient), bias_m(16), bias_v(16);
        for (std::size_t i = 0; i < grad.size(); ++i)
            grad[i] = i % 20 < 5 ? 0.5f : 0.01f;
        zenflow_optimizer by(executor({.threads = 1}), {.topk_ratio = 0.25, .update_interval = std::nullopt});
        by.add_group("all", adamw());
        by.add_param({.group = 0,
                      .name = "matrix",
                      .shard = shard(param, grad, m, v),
                      .columns = 20,
                      .weights = weights.data()});
        by.add_param({.group = 0, .name = "vector", .shard = shard(bias, bias_grad, bias_m, bias_v)});
        for (int step = 0; step < 3; ++step)
            by.step();
        return by.position();
    };
    CHECK(position_with(1e-3f) == position_with(1e3f));
    CHECK(position_with(0).done_squares == 3 * 80 * 0.25);
}

TEST_CASE("zenflow: a loss scale backs off in a step that is taken with what is not finite as zero", "[once]")
{
    for (bool const plain : {false, true}) {
        std::vector<float> param(4, 0.5f), grad(4, 0.25f), m(4), v(4);
        grad[1] = std::numeric_limits<float>::infinity();
        optimizer_options const options{.on_nonfinite = nonfinite_policy::zero,
                                        .loss_scaling = loss_scaling_options{.initial_scale = 1024}};
        auto const scale_after_step = [&](auto&& by, auto&& add) {
            by.add_group("all", adamw());
            add();
            CHECK(by.step().outcome == step_outcome::applied);
            return by.loss_scale();
        };
        zenflow_optimizer deferred(executor({.threads = 1}), {}, options);
        optimizer whole(executor({.threads = 1}), options);
        CHECK((plain ? scale_after_step(whole,
                                        [&] {
                                            whole.add_shard({0, "v", shard(param, grad, m, v)});
                                        })
                     : scale_after_step(deferred, [&] {
                           deferred.add_param({0, "v", shard(param, grad, m, v)});
                       })) == 512);
    }
}

TEST_CASE("zenflow: errors say what was asked and what was found, and change nothing", "[once]")
{
    run_options of;
    of.shapes = {{64, 8}, {5, 0}};
    tester all(of, 1, 0);
    zenflow_optimizer& by = *all.ranks[0]->by;
    all.draw(false);
    all.step();

    CHECK(mentions(refusal([] { zenflow_optimizer(executor({.threads = 1}), {.topk_ratio = 1.5}); }),
                   {"topk_ratio", "1.5", "from 0 to 1"}));
    CHECK(mentions(refusal([] { zenflow_optimizer(executor({.threads = 1}), {.select_interval = 0}); }),
                   {"select_interval"}));
    CHECK(mentions(refusal([] { zenflow_optimizer(executor({.threads = 1}), {.update_interval = 0}); }),
                   {"update_interval"}));
    CHECK(mentions(refusal([] { zenflow_optimizer(executor({.threads = 1}), {.auto_ratio = -1}); }), {"auto_ratio"}));
    CHECK(
        mentions(refusal([] { zenflow_optimizer(executor({.threads = 1}), {.max_deferred = 0}); }), {"max_deferred"}));
    CHECK(mentions(refusal([] { zenflow_optimizer(executor({.threads = 1}), {}, {.keep_last_step = true}); }),
                   {"keep_last_step"}));
    CHECK(mentions(refusal([&] { by.step({.max_norm = -1.0}); }), {"max_norm"}));
    CHECK(mentions(refusal([&] { by.set_gradient(7, nullptr); }), {"7"}));
    CHECK(mentions(refusal([&] { by.step_gradients({}); }), {"0 gradients", "2 params"}));
    CHECK(mentions(refusal([&] { by.load(std::span<zenflow_state const>{}); }), {"without a state"}));

    std::vector<float> param(64), grad(64), m(64), v(64), weights(64);
    auto const add = [&](std::size_t columns, void* to, shard_position position = {}) {
        return [&, columns, to, position] {
            zenflow_optimizer fresh{executor({.threads = 1})};
            fresh.add_group("all", adamw());
            fresh.add_param({0, "w", shard(param, grad, m, v), columns, to, position});
            fresh.prepare();
        };
    };
    CHECK(refusal(add(8, weights.data())) == "no exception");
    CHECK(mentions(refusal(add(7, weights.data())), {"7 columns", "whole rows"}));
    CHECK(mentions(refusal(add(8, nullptr)), {"8 columns", "no array of weights"}));
    CHECK(mentions(refusal(add(0, weights.data())), {"0 columns", "weights"}));
    CHECK(mentions(refusal(add(8, param.data())), {"overlap"}));
    CHECK(mentions(refusal(add(8, weights.data(), {{16, 4}, 0})), {"shape is 4"}));
    CHECK(mentions(refusal([&] {
                       by.add_param({0, "late", shard(param, grad, m, v), 8, weights.data()});
                   }),
                   {"late", "after 1 step."}));
    std::vector<quantized8> groups(1), more(1);
    CHECK(mentions(refusal([&] {
                       zenflow_optimizer fresh{executor({.threads = 1})};
                       fresh.add_group("all", adamw());
                       fresh.add_param({0, "w", shard(param, grad, groups, more), 8, weights.data()});
                   }),
                   {"groups of 64 rows"}));

    kept_state kept(by.state());
    zenflow_state other = kept.state;
    other.params.pop_back();
    CHECK(mentions(refusal([&] { by.load(other); }), {"'param 1'", "the states have no such param"}));
    other = kept.state;
    other.params[0].columns = 4;
    CHECK(mentions(refusal([&] { by.load(other); }), {"4 columns"}));
    other = kept.state;
    other.groups.back().name = "other";
    CHECK(mentions(refusal([&] { by.load(other); }), {"groups differ"}));
    other = kept.state;
    other.loss_scaler = loss_scaler_state{};
    CHECK(mentions(refusal([&] { by.load(other); }), {"dynamic loss scale"}));
    auto const refused_with = [&](auto const& change) {
        zenflow_state changed = kept.state;
        change(changed);
        return refusal([&] { by.load(changed); });
    };
    double const nan = std::numeric_limits<double>::quiet_NaN();
    CHECK(mentions(refused_with([](zenflow_state& s) { s.position.in_window = 2; }), {"in_window is 2", "steps, 1"}));
    CHECK(mentions(refused_with([](zenflow_state& s) { s.position.since_selection = 7; }), {"since_selection is 7"}));
    CHECK(mentions(refused_with([](zenflow_state& s) { s.position.steps = ~std::uint64_t{0}; }), {"number of steps"}));
    CHECK(mentions(refused_with([&](zenflow_state& s) { s.position.done_squares = nan; }), {"done_squares is nan"}));
    CHECK(mentions(refused_with([](zenflow_state& s) { s.deferred_norm = -1; }), {"deferred_norm is -1"}));
    CHECK(mentions(refused_with([](zenflow_state& s) { s.params[1].counts[0] = ~std::uint64_t{0}; }),
                   {"less than 2^64 - 1"}));

    // Its own arrays may be loaded in their places alone.
    auto const exchange = [](zenflow_state& s) {
        for (std::size_t const p : {0u, 1u})
            s.params[p].name = p == 0 ? "param 1" : "param 0";
    };
    run_options of_equal;
    of_equal.shapes = {{64, 8}, {64, 8}};
    tester equal(of_equal, 1, 0);
    equal.draw(false);
    equal.step();
    zenflow_optimizer& own = *equal.ranks[0]->by;
    zenflow_state exchanged = own.state();
    own.load(exchanged);
    exchange(exchanged);
    CHECK(mentions(refusal([&] { own.load(exchanged); }), {"cannot load 'param ", "Pass a copy"}));
    equal.compare(true);
    kept_state copied(own.state());
    exchange(copied.state);
    own.load(copied.state);
    all.compare(true);
    all.draw(false);
    all.step();
    all.compare(true);
}

TEST_CASE("zenflow: a rank whose reduction fails has changed nothing", "[once]")
{
    int left = 0;
    run_options of;
    of.options.reduce = [&](auto) {
        if (left-- == 0)
            throw std::runtime_error("a rank is gone");
    };
    of.zenflow = {.topk_ratio = 0.2, .select_interval = 1, .update_interval = std::nullopt, .auto_ratio = 0.5};
    of.zenflow.reduce_columns = [&](auto, column_reduction) {
        if (left-- == 0)
            throw std::runtime_error("a rank is gone");
    };
    tester all(of, 1, 1);
    for (int step = 0; step < 6; ++step) {
        all.draw(false);
        all.ranks[0]->take_gradients();
        for (int after = 0;; ++after) { // fails at each of its reductions in turn
            left = after;
            try {
                all.ranks[0]->by->step();
                break;
            } catch (std::runtime_error const&) {
                all.compare(true);
            }
        }
        all.reference.step();
        all.compare(true);
    }
}

TEST_CASE("column scores: every instruction set, cut and thread has the reference implementation's")
{
    test::random_bits random(4);
    for (unsigned run = 0; run < 60; ++run) {
        // 9 and 19: as many rows as make larger pieces, and more columns than are taken together.
        std::size_t const rows = run % 20 == 9 ? 8200 + random.below(900) : random.below(run % 10 == 0 ? 700 : 60) + 1;
        std::size_t const columns =
            run % 20 == 19 ? 8200 + random.below(900) : random.below(run % 7 == 0 && run % 20 != 9 ? 3000 : 90) + 1;
        dtype const type = run % 3 == 0 ? dtype::float32 : run % 3 == 1 ? dtype::bfloat16 : dtype::float16;
        test::array grad(type, rows * columns, 2 * random.below(3));
        for (std::size_t i = 0; i < rows * columns; ++i)
            grad.set(i, test::value_of(run % 5 == 4 ? test::values::special : test::values::ordinary, random,
                                       run % 4 == 0 ? -124 : -20, run % 4 == 0 ? -100 : 4));
        INFO("run " << run << ": " << rows << " x " << columns << " of " << name(type));
        executor const cpu = own_executor(run % (most_threads + 1));
        float largest = 0;
        for (std::size_t i = 0; i < rows * columns; ++i)
            if (float const g = std::fabs(grad.get(i)); is_finite(g))
                largest = std::max(largest, g);
        REQUIRE(largest_magnitude(cpu, grad.data(), type, rows * columns) == largest);
        for (column_score const kind : {column_score::magnitude, column_score::square}) {
            column_score_scale const by = column_score_scale_for(largest, kind);
            std::vector<std::int64_t> expected(columns), found(columns), in_two(columns);
            for (std::size_t i = 0; i < rows * columns; ++i)
                expected[i % columns] +=
                    reference::column_score_of(grad.get(i), by.scale, kind == column_score::square);
            add_column_scores(cpu, grad.data(), type, rows, columns, largest, kind, found);
            REQUIRE(found == expected);
            std::size_t const cut = random.below(rows + 1);
            add_column_scores(cpu, grad.data() + cut * columns * size_bytes(type), type, rows - cut, columns, largest,
                              kind, in_two);
            add_column_scores(cpu, grad.data(), type, cut, columns, largest, kind, in_two);
            REQUIRE(in_two == expected);
        }
    }
}

// More of both than are taken together.
TEST_CASE("column scores: an emulated device's are the reference implementation's", "[once]")
{
    emulated_device on;
    test::random_bits random(9);
    for (dtype const type : {dtype::float32, dtype::bfloat16, dtype::float16}) {
        column_scoring what;
        what.rows = 600;
        what.columns = 2100;
        what.type = type;
        what.kind = type == dtype::float16 ? column_score::square : column_score::magnitude;
        std::size_t const n = what.rows * what.columns;
        test::array grad(type, n);
        std::vector<std::uint32_t> largest(what.largest_pieces()), scores(what.scores());
        std::vector<std::uint32_t> expected_largest(largest.size()), expected(scores.size());
        what.scale = column_score_scale_for(4, what.kind).scale;
        for (std::size_t i = 0; i < n; ++i) {
            grad.set(i, i % 4001 == 0 ? NAN : test::with_exponent(random(), -20, 1));
            std::uint32_t const bits = std::bit_cast<std::uint32_t>(grad.get(i)) & 0x7fffffffu;
            std::uint32_t& piece = expected_largest[i / column_scoring::piece_elems];
            piece = bits < 0x7f800000u ? std::max(piece, bits) : piece;
            expected[i / what.columns / column_score_rows * what.columns + i % what.columns] +=
                reference::column_score_of(grad.get(i), what.scale, what.kind == column_score::square);
        }
        what.grad = on.allocate(grad.bytes());
        std::memcpy(on.real(what.grad, grad.bytes()), grad.data(), grad.bytes());
        for (bool const scored : {false, true}) {
            std::vector<std::uint32_t>& found = scored ? scores : largest;
            what.result = on.allocate(found.size() * sizeof found[0]);
            scored ? on.score_columns(what) : on.find_largest(what);
            on.wait_event(device_stream::down, on.record_event(device_stream::work));
            on.copy_down(found.data(), what.result, found.size() * sizeof found[0]);
            REQUIRE(on.wait_until(on.record_event(device_stream::down), device::clock::time_point::max()));
            on.release(what.result);
        }
        CHECK(largest == expected_largest);
        CHECK(scores == expected);
        on.release(what.grad);
    }
}

TEST_CASE("column scores: close to the sums that they stand for", "[once]")
{
    test::random_bits random(9);
    std::vector<float> grad(500 * 40);
    for (float& g : grad)
        g = test::with_exponent(random(), -12, -3);
    executor const cpu({.threads = 1});
    float const largest = largest_magnitude(cpu, grad.data(), dtype::float32, grad.size());
    for (column_score const kind : {column_score::magnitude, column_score::square}) {
        std::vector<std::int64_t> scores(40);
        add_column_scores(cpu, grad.data(), dtype::float32, 500, 40, largest, kind, scores);
        for (std::size_t c = 0; c < 40; ++c) {
            double exact = 0;
            for (std::size_t r = 0; r < 500; ++r) {
                double const g = std::fabs(grad[r * 40 + c]);
                exact += kind == column_score::square ? g * g : g;
            }
            double const score = static_cast<double>(scores[c]) * column_score_scale_for(largest, kind).unit;
            CHECK(std::fabs(score - exact) < 500 * 0.5 * column_score_scale_for(largest, kind).unit + 1e-9 * exact);
        }
    }
}

TEST_CASE("column scores: errors", "[once]")
{
    executor const cpu({.threads = 1});
    std::vector<float> grad(6);
    std::vector<std::int64_t> scores(2);
    auto const add = [&](void const* from, dtype type, std::size_t columns, float largest) {
        return [&, from, type, columns, largest] {
            add_column_scores(cpu, from, type, 3, columns, largest, column_score::magnitude, scores);
        };
    };
    CHECK(mentions(refusal(add(nullptr, dtype::float32, 2, 1)), {"null", "2 columns"}));
    CHECK(mentions(refusal(add(grad.data(), dtype::quantized8, 2, 1)), {"quantized8"}));
    CHECK(mentions(refusal(add(grad.data(), dtype::float32, 3, 1)), {"3 columns", "scores has 2"}));
    CHECK(mentions(refusal(add(grad.data(), dtype::float32, 2, -1)), {"-1"}));
    CHECK(mentions(refusal(add(grad.data(), dtype::float32, 2, NAN)), {"nan"}));
    CHECK(mentions(refusal([&] { (void)largest_magnitude(cpu, nullptr, dtype::float32, 1); }), {"null"}));
    CHECK(scores == std::vector<std::int64_t>{0, 0});
    CHECK(largest_magnitude(cpu, nullptr, dtype::float32, 0) == 0);
}

TEST_CASE("select_columns: the highest scores, and of equal ones the first", "[once]")
{
    using flags = std::vector<std::uint8_t>;
    auto const of = [](std::vector<std::int64_t> const& scores, double ratio) {
        flags selected(scores.size(), 9);
        select_columns(scores, ratio, selected);
        return selected;
    };
    CHECK(of({5, 1, 9, 3}, 0.5) == flags{1, 0, 1, 0});
    CHECK(of({5, 1, 9, 3}, 0) == flags{0, 0, 0, 0});
    CHECK(of({5, 1, 9, 3}, 1) == flags{1, 1, 1, 1});
    CHECK(of({5, 1, 9, 3}, 0.01) == flags{0, 0, 1, 0});  // at least one
    CHECK(of({5, 1, 9, 3}, 0.375) == flags{1, 0, 1, 0}); // 1.5
    CHECK(of({4, 4, 4, 4}, 0.5) == flags{1, 1, 0, 0});
    CHECK(of({0, 0, 0}, 0.34) == flags{1, 0, 0});
    CHECK(of({0, 7, 7, 8}, 0.5) == flags{0, 1, 0, 1});
    CHECK(of({INT64_MAX, INT64_MAX - 1}, 0.5) == flags{1, 0});
    CHECK(of({}, 0.5).empty());

    // Against sorting.
    test::random_bits random(11);
    for (int run = 0; run < 300; ++run) {
        std::vector<std::int64_t> scores(1 + random.below(40));
        for (std::int64_t& each : scores)
            each = static_cast<std::int64_t>(random() >> (run % 2 == 0 ? 2 : 61));
        double const ratio = static_cast<double>(random.below(101)) / 100;
        std::vector<std::size_t> order(scores.size());
        for (std::size_t i = 0; i < order.size(); ++i)
            order[i] = i;
        std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
        flags expected(scores.size());
        for (std::size_t i = 0; i < selected_columns(scores.size(), ratio); ++i)
            expected[order[i]] = 1;
        REQUIRE(of(scores, ratio) == expected);
    }
}

TEST_CASE("select_columns: among all matrices, as many as fit", "[once]")
{
    test::random_bits random(12);
    for (int run = 0; run < 300; ++run) {
        std::size_t const matrices = 1 + random.below(4);
        std::vector<std::vector<std::int64_t>> scores(matrices);
        std::vector<std::vector<std::uint8_t>> selected(matrices), expected(matrices);
        std::vector<column_candidates> all;
        struct column {
            double score;
            std::size_t matrix, index;
        };
        std::vector<column> sorted;
        std::size_t elements = 0;
        for (std::size_t m = 0; m < matrices; ++m) {
            std::size_t const rows = 1 + random.below(20);
            scores[m].resize(random.below(12));
            for (std::int64_t& each : scores[m])
                each = static_cast<std::int64_t>(random.below(run % 2 == 0 ? 5 : 100000));
            selected[m].assign(scores[m].size(), 9);
            expected[m].assign(scores[m].size(), 0);
            all.push_back({scores[m], std::ldexp(1.0, static_cast<int>(random.below(3))), rows, selected[m]});
            elements += rows * scores[m].size();
            for (std::size_t c = 0; c < scores[m].size(); ++c)
                sorted.push_back({static_cast<double>(scores[m][c]) * all[m].unit / static_cast<double>(rows), m, c});
        }
        double const ratio = static_cast<double>(random.below(11)) / 10;
        std::ranges::stable_sort(sorted, [](column const& a, column const& b) { return a.score > b.score; });
        auto left = static_cast<std::size_t>(std::floor(ratio * static_cast<double>(elements) + 0.5));
        for (column const& each : sorted) {
            if (all[each.matrix].rows > left)
                break;
            left -= all[each.matrix].rows;
            expected[each.matrix][each.index] = 1;
        }
        select_columns(all, ratio);
        INFO("run " << run << ", ratio " << ratio);
        REQUIRE(selected == expected);
    }
}

TEST_CASE("zenflow: options of a DeepSpeed configuration", "[once]")
{
    zenflow_options const by_default = zenflow_options_of({});
    CHECK(by_default.topk_ratio == 0.1);
    CHECK(by_default.select_interval == zenflow_config::never);
    CHECK(!by_default.update_interval);
    CHECK(by_default.auto_ratio == 1);
    CHECK(!by_default.overlap);
    zenflow_options const all = zenflow_options_of({.topk_ratio = 0.3,
                                                    .select_interval = 7,
                                                    .select_epochs = 0,
                                                    .update_interval = 5,
                                                    .full_warm_up_rounds = 9,
                                                    .overlap = true});
    CHECK(all.topk_ratio == 0.3);
    CHECK(all.select_interval == 7);
    CHECK(all.update_interval == 5u);
    CHECK(all.full_warm_up_rounds == 9);
    CHECK(all.overlap);
    CHECK(mentions(refusal([] { (void)zenflow_options_of({.topk_ratio = 2}); }), {"topk_ratio is 2"}));
    // Selects once.
    zenflow_position at{.steps = 1'000'000, .since_selection = 1'000'000, .has_selection = true};
    CHECK(!selects_next(by_default, at));
    at = {};
    CHECK(selects_next(by_default, at));
}

TEST_CASE("zenflow: the schedule's corners", "[once]")
{
    zenflow_options const automatic{.update_interval = std::nullopt, .auto_ratio = 2, .max_deferred = 5};
    CHECK(!ends_window(automatic, {.steps = 9, .in_window = 1, .done_squares = 1}, 1.9));
    CHECK(ends_window(automatic, {.steps = 9, .in_window = 1, .done_squares = 1}, 2));
    CHECK(!ends_window(automatic, {.steps = 9, .in_window = 1, .done_squares = 0}, 0)); // all gradients are zero, ...
    CHECK(ends_window(automatic, {.steps = 9, .in_window = 5, .done_squares = 0}, 0));  // ... or all is selected
    CHECK(ends_window(automatic, {.steps = 9, .in_window = 1, .done_squares = 0}, 1e-30)); // nothing is selected
    zenflow_options const warm{.select_interval = 4, .update_interval = 3, .full_warm_up_rounds = 2};
    CHECK(is_in_warm_up(warm, {.steps = 1}));
    CHECK(!is_in_warm_up(warm, {.steps = 2}));
    CHECK(!selects_next(warm, {.steps = 1}));
    CHECK(selects_next(warm, {.steps = 2}));
    CHECK(ends_window(warm, {.steps = 2, .in_window = 1}, 0));
    CHECK(!ends_window(warm, {.steps = 3, .in_window = 1}, 0));
    CHECK(!selects_next(warm, {.steps = 8, .since_selection = 6, .in_window = 1, .has_selection = true}));
    CHECK(!selects_next(warm, {.steps = 8, .since_selection = 3, .in_window = 0, .has_selection = true}));
    CHECK(selects_next(warm, {.steps = 8, .since_selection = 4, .in_window = 0, .has_selection = true}));
}
