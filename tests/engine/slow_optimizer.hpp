// SPDX-License-Identifier: Apache-2.0
// What tests of the optimizer share: runs of it beside the reference implementation applied the slow way, and a shard
// that is easy to reckon with.
#pragma once

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <adamant/device.hpp>
#include <adamant/optimizer.hpp>
#include <adamant/reference.hpp>
#include <adamant/split.hpp>
#include <adamant/detail/numerics/float_mode.hpp>

#include "catch.hpp"
#include "emulated.hpp"
#include "exact_sum.hpp"
#include "hyperparameters.hpp"

namespace slow {

using namespace adamant;

enum array : std::size_t { param, grad, exp_avg, exp_avg_sq, weight_out, accumulator, arrays };

// One shard's arrays, and what the slow way makes of them.
struct tensor {
    std::array<dtype, arrays> types;
    std::vector<test::array> mine, expected;
    std::vector<float> summed; // what the step sees
    unsigned micro_steps = 0;
    std::size_t group = 0;
    param_position position = {};
    std::vector<test::array> carried;                     // param and weight_out as weights_ready has taken them away
    std::vector<std::uint64_t> changed, expected_changed; // empty: not tracked

    tensor(std::array<dtype, arrays> const& t, std::size_t n, test::random_bits& random) : types(t)
    {
        for (dtype const type : types)
            mine.emplace_back(type, n, offset_of(random.below(3)));
        for (std::size_t i = 0; i < n; ++i) {
            float const master = test::value_of(test::values::ordinary, random, -9, -4);
            mine[param].set(i, master);
            mine[exp_avg].set(i, 0);
            mine[exp_avg_sq].set(i, 0);
            if (types[weight_out] != dtype::none)
                mine[weight_out].set(i,
                                     types[param] == dtype::split_float32 ? master : mine[param].get(i)); // as a step
        }
        for (test::array const& each : mine)
            expected.emplace_back(each);
        for (array const a : {param, weight_out})
            carried.emplace_back(mine[a]);
        summed.resize(n);
        if (random.below(2) == 0)
            draw_changes(random);
    }
    // What steps find there: nothing, or bits of earlier steps.
    void draw_changes(test::random_bits& random)
    {
        bool const clears = random.below(2) == 0;
        changed.resize(changed_words(size()));
        for (std::uint64_t& word : changed)
            word = clears ? 0 : random() & random() & random();
        expected_changed = changed;
    }
    // The bits of the published weights that are expected.
    [[nodiscard]] std::vector<std::uint32_t> published() const
    {
        std::vector<std::uint32_t> bits;
        for (std::size_t i = 0; i < size() && !changed.empty(); ++i)
            bits.push_back(expected[types[weight_out] == dtype::none ? param : weight_out].element_bits(i));
        return bits;
    }
    // The words of the elements whose published weights were others.
    [[nodiscard]] std::vector<std::uint64_t> changes_since(std::vector<std::uint32_t> const& before) const
    {
        std::vector<std::uint64_t> words(changed.size());
        std::vector<std::uint32_t> const now = published();
        for (std::size_t i = 0; i < now.size(); ++i)
            words[i / 64] |= std::uint64_t{now[i] != before[i]} << i % 64;
        return words;
    }
    // A device that shares the host's memory uses arrays that are aligned, and copies others: here a third of them.
    static std::size_t offset_of(std::size_t r) { return test::shares_memory ? r / 2 : r; }
    [[nodiscard]] std::size_t size() const { return mine[param].size(); }
    // The master that is expected, also where it is split in two.
    [[nodiscard]] float master(std::size_t i) const
    {
        return types[param] != dtype::split_float32
                   ? expected[param].get(i)
                   : joined_master(load_unaligned<bfloat16>(expected[weight_out].data() + i * sizeof(bfloat16)),
                                   load_unaligned<split_float32>(expected[param].data() + i * sizeof(split_float32)));
    }
    void draw_gradient(test::random_bits& random, int low, int high)
    {
        for (std::size_t i = 0; i < size(); ++i)
            mine[grad].set(i, random.below(1000) == 0 ? 0.0f : test::with_exponent(random(), low, high));
    }
    // The gradient goes to the sum as a micro-step's; the last one's sum is not rounded.
    void add_up(bool last)
    {
        for (std::size_t i = 0; i < size(); ++i) {
            float const g = mine[grad].get(i);
            float const sum = micro_steps == 0 ? flush(g) : reference::added(g, summed[i]);
            summed[i] = last                                    ? sum
                        : types[accumulator] == dtype::bfloat16 ? widen(reference::stored<bfloat16>(sum))
                                                                : reference::stored<float>(sum);
        }
        micro_steps = last ? 0 : micro_steps + 1;
    }
    void carry(std::size_t begin, std::size_t end)
    {
        for (array const a : {param, weight_out})
            if (std::size_t const bytes = size_bytes(types[a]); bytes != 0)
                std::memcpy(carried[a == param ? 0 : 1].data() + begin * bytes, mine[a].data() + begin * bytes,
                            (end - begin) * bytes);
    }
    // Between what was carried and what is there.
    [[nodiscard]] std::string left_behind() const
    {
        std::string const text = carried[0].difference(mine[param]);
        return text.empty() && types[weight_out] != dtype::none ? carried[1].difference(mine[weight_out]) : text;
    }
    [[nodiscard]] std::string difference() const
    {
        static constexpr char const* names[] = {"param", "", "exp_avg", "exp_avg_sq", "weight_out"};
        for (std::size_t a : {param, exp_avg, exp_avg_sq, weight_out})
            if (std::string const text = mine[a].difference(expected[a]); !text.empty())
                return std::string(names[a]) + ": " + text;
        return {};
    }
};

template <class T>
void store(test::array& to, std::size_t i, float x)
{
    store_unaligned(to.data() + i * sizeof(T), reference::stored<T>(x));
}
inline void store(test::array& to, dtype type, std::size_t i, float x)
{
    if (type == dtype::float32)
        store<float>(to, i, x);
    else if (type == dtype::bfloat16)
        store<bfloat16>(to, i, x);
    else
        store<float16>(to, i, x);
}

// The same, stochastically where it has to be.
inline void store(test::array& to, dtype type, std::size_t i, float x, bool stochastic, std::uint16_t random)
{
    if (stochastic && type == dtype::bfloat16)
        store_unaligned(to.data() + i * sizeof(bfloat16), stochastically_rounded(x, random));
    else
        store(to, type, i, x);
}

inline constexpr std::array<dtype, arrays> kinds[] = {
    {dtype::float32, dtype::bfloat16, dtype::float32, dtype::float32, dtype::bfloat16, dtype::float32},
    {dtype::bfloat16, dtype::bfloat16, dtype::bfloat16, dtype::bfloat16, dtype::none, dtype::bfloat16},
    {dtype::float32, dtype::float32, dtype::float32, dtype::float32, dtype::none, dtype::none},
    {dtype::float32, dtype::bfloat16, dtype::float32, dtype::bfloat16, dtype::bfloat16, dtype::float32},
    {dtype::split_float32, dtype::bfloat16, dtype::float32, dtype::bfloat16, dtype::bfloat16, dtype::bfloat16},
    {dtype::split_float32, dtype::bfloat16, dtype::float32, dtype::float32, dtype::bfloat16, dtype::none},
    {dtype::split_float32, dtype::bfloat16, dtype::quantized8, dtype::quantized8, dtype::bfloat16, dtype::float32},
    {dtype::bfloat16, dtype::float16, dtype::quantized8, dtype::quantized8, dtype::none, dtype::none},
    {dtype::float32, dtype::bfloat16, dtype::quantized8, dtype::quantized8, dtype::bfloat16, dtype::none},
};

// Both moments as a step sees them, and as it leaves them, whatever they are stored as.
struct moments {
    std::vector<float> exp_avg, exp_avg_sq;

    explicit moments(tensor const& of) : exp_avg(room(of)), exp_avg_sq(room(of))
    {
        bool const coded = is_coded(of);
        for (std::size_t i = 0; i < of.size(); i += coded ? quantized_group_elems : 1) {
            if (coded) {
                decode_exp_avg(group(of.expected[slow::exp_avg], i), exp_avg.data() + i);
                decode_exp_avg_sq(group(of.expected[slow::exp_avg_sq], i), exp_avg_sq.data() + i);
            } else {
                exp_avg[i] = of.expected[slow::exp_avg].get(i);
                exp_avg_sq[i] = of.expected[slow::exp_avg_sq].get(i);
            }
        }
    }
    void put(tensor& to, coefficients const& c) const
    {
        bool const coded = is_coded(to);
        bool const stochastic = c.rounding.exp_avg_sq;
        for (std::size_t i = 0; i < to.size(); i += coded ? quantized_group_elems : 1) {
            rounding_line const line = rounding_lines_at(c.rounding.key, to.position, i).exp_avg_sq;
            if (coded) {
                std::size_t const n = std::min(quantized_group_elems, to.size() - i);
                encode_group(exp_avg_curve, exp_avg.data() + i, n, stochastic, line.from(i),
                             group(to.expected[slow::exp_avg], i));
                encode_group(exp_avg_sq_curve, exp_avg_sq.data() + i, n, stochastic, line.from(i),
                             group(to.expected[slow::exp_avg_sq], i));
            } else {
                store(to.expected[slow::exp_avg], to.types[slow::exp_avg], i, exp_avg[i]);
                store(to.expected[slow::exp_avg_sq], to.types[slow::exp_avg_sq], i, exp_avg_sq[i], stochastic,
                      random_half(line, i));
            }
        }
    }

private:
    static bool is_coded(tensor const& of) { return of.types[slow::exp_avg] == dtype::quantized8; }
    static std::size_t room(tensor const& of) { return of.size() + quantized_group_elems; }
    static std::byte* group(test::array const& in, std::size_t i)
    {
        return const_cast<std::byte*>(in.data()) + array_bytes(dtype::quantized8, i);
    }
};

// Compiled once, as it brings the kernels.
std::size_t add(optimizer& to, tensor& t, std::string const& name, shard_position const& position = {});

struct slow_result {
    bool skipped = false;
    double norm = 0;
    double clip = 1;
    std::uint64_t nonfinite = 0;
};

// What a step is, said plainly. `taken` marks the shards that take part, and `numbers` are those of this step for each.
inline slow_result step_slowly(std::vector<tensor>& tensors, std::vector<bool> const& taken,
                               std::vector<parameter_group> const& groups, std::vector<std::uint64_t> const& numbers,
                               double loss_scale, double max_norm, double max_abs, nonfinite_policy policy)
{
    slow_result result;
    test::exact_sum squares;
    float_mode_scope const mode(subnormals::kept);
    for (std::size_t k = 0; k < tensors.size(); ++k) {
        if (!taken[k]) {
            tensors[k].micro_steps = 0; // what was accumulated is forgotten
            continue;
        }
        tensors[k].add_up(true);
        for (std::size_t b = 0; b < tensors[k].size(); b += norm_block_elems) {
            grad_squares const block =
                reference::block_squares<float>(reinterpret_cast<std::byte const*>(tensors[k].summed.data() + b),
                                                std::min(norm_block_elems, tensors[k].size() - b));
            squares.add(block.sum);
            result.nonfinite += block.nonfinite;
        }
    }
    result.norm = std::sqrt(squares.rounded()) / loss_scale;
    if (policy == nonfinite_policy::skip && result.nonfinite != 0) {
        result.skipped = true;
        return result;
    }
    result.clip = clip_coefficient(result.norm, max_norm);
    for (std::size_t k = 0; k < tensors.size(); ++k) {
        if (!taken[k])
            continue;
        tensor& each = tensors[k];
        coefficients c = make_coefficients(groups[each.group].hyper, numbers[k], {.loss_scale = loss_scale});
        // A factor that float does not hold is two: the first is 2^-125.
        double const factor = result.clip / loss_scale;
        bool const in_two = factor < 0x1.000002p-126;
        c.grad_scale = static_cast<float>(in_two ? factor * 0x1p125 : factor);
        if (groups[each.group].maximize)
            c.grad_scale = -c.grad_scale;
        moments now(each);
        for (std::size_t i = 0; i < each.size(); ++i) {
            float g = each.summed[i];
            if (policy == nonfinite_policy::zero && !is_finite(g))
                g = 0;
            if (in_two)
                g = reference::clamped(g, false, 0x1p-125f, std::numeric_limits<float>::infinity());
            coefficients own = c;
            if (max_abs != 0) {
                g = reference::clamped(g, false, c.grad_scale, static_cast<float>(max_abs));
                own.grad_scale = 1;
            }
            reference::element const updated =
                reference::update({each.master(i), now.exp_avg[i], now.exp_avg_sq[i]}, g, own);
            now.exp_avg[i] = updated.exp_avg;
            now.exp_avg_sq[i] = updated.exp_avg_sq;
            rounding_lines const lines = rounding_lines_at(c.rounding.key, each.position, i);
            bool const is_split = each.types[param] == dtype::split_float32;
            if (is_split) {
                split_parts const parts = split_master(updated.param);
                each.expected[param].set_bits(i, parts.low.bits);
                each.expected[weight_out].set_bits(i, parts.weight.bits);
            } else {
                store(each.expected[param], each.types[param], i, updated.param, c.rounding.param,
                      random_half(lines.param, i));
            }
            if (each.types[weight_out] != dtype::none && !is_split)
                store(each.expected[weight_out], each.types[weight_out], i, updated.param);
        }
        now.put(each, c);
    }
    return result;
}

inline executor executor_of(unsigned threads)
{
    static std::shared_ptr<team> const teams[] = {
        std::make_shared<team>(team_options{.threads = 1, .bind = binding::none}),
        std::make_shared<team>(team_options{.threads = 2, .bind = binding::none}),
        std::make_shared<team>(team_options{.threads = 5, .bind = binding::none})};
    return executor(teams[threads]);
}

// Arrays of a tensor on a device, as an engine has them that makes gradients there.
struct on_device {
    std::shared_ptr<adamant::device> device;
    device_arrays at;

    void put(device_ptr to, test::array const& from, dtype type) const
    {
        device->copy_up(to, from.data(), from.size() * size_bytes(type));
        REQUIRE(device->wait_until(device->record_event(device_stream::up), adamant::device::clock::time_point::max()));
    }
    void get(test::array& to, device_ptr from, dtype type) const
    {
        device->copy_down(to.data(), from, to.size() * size_bytes(type));
        REQUIRE(
            device->wait_until(device->record_event(device_stream::down), adamant::device::clock::time_point::max()));
    }
};

// A whole run of random choices; with a device, shards lie on both sides, and move between steps.
inline void run_random(std::uint64_t seed, std::shared_ptr<adamant::device> const& gpu = nullptr)
{
    bool const with_device = gpu != nullptr;
    test::random_bits random(seed);
    INFO("seed " << seed);
    bool const big = random.below(4) == 0;
    optimizer_options options;
    options.on_nonfinite = static_cast<nonfinite_policy>(random.below(3));
    options.speculate = static_cast<speculation>(random.below(3));
    if (random.below(2) == 0)
        options.journal_budget_bytes = random.below(3) == 0 ? 0 : random.below(400000);
    options.keep_last_step = random.below(3) == 0;
    if (options.keep_last_step)
        options.journal_budget_bytes.reset();
    if (with_device && !options.keep_last_step)
        options.device_records = random.below(3) != 0;
    if (random.below(2) == 0)
        options.loss_scaling = loss_scaling_options{.initial_scale = 1024, .growth_interval = 2, .hysteresis = 2};
    std::vector<tensor> tensors;
    bool const carries = random.below(2) == 0;
    if (carries)
        options.weights_ready = [&](shard_id shard, std::size_t begin, std::size_t end) {
            tensors[shard.index].carry(begin, end);
        };
    optimizer mine(executor_of(static_cast<unsigned>(random.below(3))), options);
    std::vector<parameter_group> groups;
    for (std::size_t g = 0; g <= random.below(3); ++g) {
        decay_mode const mode = random.below(2) == 0 ? decay_mode::l2 : decay_mode::decoupled;
        groups.push_back({"group " + std::to_string(g),
                          {.lr = 1e-3 * static_cast<double>(1 + random.below(9)),
                           .beta2 = random.below(2) == 0 ? 0.95 : 0.999,
                           .weight_decay = 0.01,
                           .mode = mode,
                           .bias_correction = random.below(4) != 0,
                           .rounding = {static_cast<rounding>(random.below(2)), static_cast<rounding>(random.below(2)),
                                        random.below(3)}},
                          random.below(4) == 0});
        REQUIRE(mine.add_group(groups.back()) == g);
    }
    std::size_t const count = 1 + random.below(6);
    for (std::size_t k = 0; k < count; ++k) {
        std::size_t const n = random.below(8) == 0 ? 0 : big ? random.below(60000) : 1 + random.below(9000);
        tensors.emplace_back(kinds[random.below(std::size(kinds))], n, random);
        tensors.back().group = random.below(groups.size());
    }
    for (std::size_t k = 0; k < count; ++k)
        REQUIRE(add(mine, tensors[k], "tensor " + std::to_string(k)) == k);

    std::vector<on_device> there(count);
    for (std::size_t k = 0; with_device && k < count; ++k)
        if (random.below(2) == 0 && tensors[k].size() != 0) {
            there[k].device = gpu;
            there[k].at.grad = gpu->allocate(tensors[k].size() * size_bytes(tensors[k].types[grad]));
            there[k].at.weight_out = gpu->allocate(tensors[k].size() * size_bytes(tensors[k].types[weight_out]));
            if (there[k].at.weight_out)
                there[k].put(there[k].at.weight_out, tensors[k].mine[weight_out], tensors[k].types[weight_out]);
            mine.set_device_arrays(k, there[k].at);
        }
    // The gradient is where the optimizer is to find it, and nowhere else.
    auto const deliver = [&](std::size_t k) {
        if (!there[k].device)
            return;
        there[k].put(there[k].at.grad, tensors[k].mine[grad], tensors[k].types[grad]);
        for (std::size_t i = 0; i < tensors[k].size(); ++i)
            tensors[k].mine[grad].set(i, 77);
    };
    // What is to be looked at is in host memory again.
    auto const copy_to_host = [&] {
        if (!with_device)
            return;
        (void)mine.state();
        for (std::size_t k = 0; k < count; ++k)
            if (there[k].at.weight_out)
                there[k].get(tensors[k].mine[weight_out], there[k].at.weight_out, tensors[k].types[weight_out]);
    };

    std::uint64_t steps = 0;
    std::optional<loss_scaler_state> scaler;
    if (options.loss_scaling)
        scaler = initial_state(*options.loss_scaling);
    for (int round = 0; round < 6; ++round) {
        INFO("round " << round);
        if (with_device && (round == 0 || random.below(2) == 0)) {
            std::size_t const which = random.below(5);
            double const ratio = which == 0 ? 0.0 : which == 1 ? 1.0 : static_cast<double>(random.below(1000)) / 1000;
            placement const where =
                split(mine.shard_sizes(), {.ratio = ratio,
                                           .unit = random.below(3) == 0 ? split_unit::shard : split_unit::element,
                                           .order = random.below(2) == 0 ? split_order::front : split_order::back});
            mine.place(gpu, where);
        }
        step_values values;
        double loss_scale = scaler ? scaler->scale : 1.0;
        if (random.below(3) == 0)
            values.loss_scale = loss_scale = std::ldexp(1.0, static_cast<int>(random.below(16)));
        double max_norm = 0;
        double max_abs = 0;
        switch (random.below(4)) {
        case 0: values.max_norm = max_norm = 1e-4; break; // bites
        case 1: values.max_norm = max_norm = 1e9; break;  // does not
        case 2: values.max_abs_grad = max_abs = 1e-3 / loss_scale; break;
        default: break;
        }
        std::vector<double> lr;
        if (random.below(3) == 0) {
            for (parameter_group& g : groups)
                lr.push_back(g.hyper.lr * 0.5);
            values.lr = lr;
        } else if (random.below(3) == 0) { // stale_hyper: what is changed between steps counts in the next
            std::size_t const g = random.below(groups.size());
            groups[g].hyper.lr *= 1.25;
            groups[g].hyper.weight_decay *= 2;
            mine.set_hyperparameters(g, groups[g].hyper);
        }
        std::vector<std::uint64_t> numbers(count, steps + 1);
        if (!with_device && random.below(3) == 0) {
            for (std::uint64_t& number : numbers)
                number = random.below(3) == 0 ? steps + 1 : 1 + random.below(5);
            values.shard_steps = numbers;
        }
        for (std::size_t k = 0; k < count; ++k)
            for (std::size_t micro = random.below(3); micro > 0 && tensors[k].types[accumulator] != dtype::none;
                 --micro) {
                tensors[k].draw_gradient(random, -14, -6);
                tensors[k].add_up(false);
                deliver(k);
                mine.accumulate(k);
            }
        bool const huge = random.below(8) == 0; // the clip coefficient is no normal float
        for (tensor& each : tensors) {
            each.draw_gradient(random, huge ? 110 : -14, huge ? 127 : -6);
            if (random.below(6) == 0 && each.size() != 0)
                for (std::size_t bad = 0; bad <= random.below(3); ++bad)
                    each.mine[grad].set(random.below(each.size()),
                                        random.below(2) == 0 ? std::numeric_limits<float>::infinity() : std::nanf(""));
        }
        std::size_t const how = random.below(3);
        std::vector<bool> taken(count, true);
        if (how == 1)
            for (std::size_t k = 0; k < count; ++k)
                taken[k] = random.below(8) != 0;
        std::vector<std::vector<test::array>> before;
        for (tensor const& each : tensors)
            before.push_back(each.expected);
        std::vector<std::vector<std::uint32_t>> published;
        std::vector<std::vector<std::uint64_t>> changed_before;
        for (tensor& each : tensors) {
            if (!each.changed.empty() && random.below(3) == 0)
                each.draw_changes(random);
            published.push_back(each.published());
            changed_before.push_back(each.changed);
        }
        std::vector<parameter_group> now = groups;
        for (std::size_t g = 0; g < lr.size(); ++g)
            now[g].hyper.lr = lr[g];
        slow_result const slow =
            step_slowly(tensors, taken, now, numbers, loss_scale, max_norm, max_abs, options.on_nonfinite);
        std::vector<std::vector<std::uint64_t>> changes;
        for (std::size_t k = 0; k < count; ++k) {
            deliver(k);
            changes.push_back(tensors[k].changes_since(published[k]));
            for (std::size_t w = 0; w < changes[k].size(); ++w)
                tensors[k].expected_changed[w] |= changes[k][w];
        }
        optimizer_report report;
        if (how == 0) {
            report = mine.step(values);
        } else if (how == 1) {
            mine.begin_step(values);
            std::vector<std::size_t> order(count);
            std::iota(order.begin(), order.end(), std::size_t{0});
            for (std::size_t k = count; k > 1; --k)
                std::swap(order[k - 1], order[random.below(k)]);
            std::vector<std::thread> submitters;
            std::size_t const threads = 1 + random.below(3);
            for (std::size_t s = 0; s < threads; ++s)
                submitters.emplace_back([&, s] {
                    for (std::size_t k = s; k < count; k += threads)
                        taken[order[k]] ? mine.submit(order[k]) : mine.skip(order[k]);
                });
            for (std::thread& each : submitters)
                each.join();
            report = mine.finish();
        } else {
            optimizer::ticket const ticket = mine.step_async(values);
            while (!ticket.wait_for(std::chrono::milliseconds(random.below(3)))) {
                CHECK(ticket.progress() >= 0);
                CHECK(ticket.progress() <= 1);
            }
            CHECK(ticket.done());
            report = ticket.wait();
        }
        CHECK(report.step == steps + 1);
        CHECK((report.outcome == step_outcome::skipped) == slow.skipped);
        bool const measured =
            options.on_nonfinite != nonfinite_policy::apply || max_norm != 0 || (scaler && !values.loss_scale);
        CHECK(report.measured == measured);
        CHECK(report.nonfinite_grads == (measured ? slow.nonfinite : 0));
        if (measured)
            CHECK(report.global_norm == slow.norm);
        else
            CHECK(std::isnan(report.global_norm));
        CHECK(report.clip_coefficient == (slow.skipped ? 1.0 : slow.clip));
        CHECK(report.loss_scale == loss_scale);
        CHECK(report.first_nonfinite.has_value() == (measured && slow.nonfinite != 0));
        if (report.first_nonfinite) {
            auto const [s, i] = *report.first_nonfinite;
            CHECK(!is_finite(tensors[s].summed[i]));
            for (std::size_t k = 0; k <= s; ++k)
                for (std::size_t e = 0; taken[k] && e < (k == s ? i : tensors[k].size()); ++e)
                    if (!is_finite(tensors[k].summed[e]))
                        FAIL("an earlier one was passed over");
        }
        copy_to_host();
        for (std::size_t k = 0; k < count; ++k) {
            INFO("shard " << k << ", way " << how << ", journal " << report.journal_bytes << ", waited "
                          << report.shards_waited << ", rolled back " << report.rolled_back);
            REQUIRE(tensors[k].difference() == "");
            REQUIRE((tensors[k].changed == tensors[k].expected_changed));
            if (carries && !with_device) // which has weights that it does not send here
                REQUIRE(tensors[k].left_behind() == "");
        }
        std::optional<loss_scaler_state> const scaler_before = scaler;
        if (scaler && !values.loss_scale)
            scaler = after_step(*scaler, *options.loss_scaling, slow.nonfinite != 0);
        steps += !slow.skipped;
        CHECK(mine.steps() == steps);
        if (scaler)
            CHECK(mine.loss_scale() == scaler->scale);
        if (options.keep_last_step && !slow.skipped && random.below(2) == 0) {
            // Bits that the caller has cleared since the step: the weights change once more.
            bool const clears = random.below(2) == 0;
            for (tensor& each : tensors)
                std::fill(each.changed.begin(), clears ? each.changed.end() : each.changed.begin(), std::uint64_t{0});
            mine.rollback();
            copy_to_host();
            for (std::size_t k = 0; k < count; ++k)
                for (std::size_t w = 0; w < changes[k].size(); ++w) {
                    std::uint64_t const after = changed_before[k][w] | changes[k][w];
                    CHECK(tensors[k].changed[w] == (clears && after != 0 ? changes[k][w] : changed_before[k][w]));
                    tensors[k].expected_changed[w] = tensors[k].changed[w];
                }
            --steps;
            scaler = scaler_before;
            CHECK(mine.steps() == steps);
            for (std::size_t k = 0; k < count; ++k) {
                INFO("shard " << k << " of a step that was rolled back");
                for (std::size_t a = 0; a < arrays; ++a)
                    if (a != grad && a != accumulator)
                        REQUIRE(tensors[k].mine[a].difference(before[k][a]) == "");
                if (carries && !with_device)
                    REQUIRE(tensors[k].left_behind() == "");
                std::swap(tensors[k].expected, before[k]);
            }
            mine.clear_accumulators();
        }
    }
}

// One parameter, with gradients that are easy to reckon with.
struct simple {
    std::size_t n;
    std::vector<float> param, exp_avg, exp_avg_sq;
    std::vector<bfloat16> grad, weight_out;

    explicit simple(std::size_t size, float g = 0.5f)
        : n(size), param(n, 1.0f), exp_avg(n), exp_avg_sq(n), grad(n, narrow<bfloat16>(g)), weight_out(n)
    {
    }
    void spread() // so that no two elements are alike
    {
        for (std::size_t i = 0; i < n; ++i) {
            param[i] = 0.5f + 0.001f * static_cast<float>(i % 777);
            grad[i] = narrow<bfloat16>(0.01f * static_cast<float>(i % 91) - 0.4f);
        }
    }
    [[nodiscard]] auto view() { return shard(param, grad, exp_avg, exp_avg_sq, weight_out); }
    // The bits of the state; memcmp() takes no null pointers, which empty vectors may have.
    [[nodiscard]] bool operator==(simple const& other) const
    {
        return n == other.n &&
               (n == 0 || (std::memcmp(param.data(), other.param.data(), n * sizeof(float)) == 0 &&
                           std::memcmp(exp_avg.data(), other.exp_avg.data(), n * sizeof(float)) == 0 &&
                           std::memcmp(exp_avg_sq.data(), other.exp_avg_sq.data(), n * sizeof(float)) == 0));
    }
};

template <class Call>
std::string message_of(Call const& call)
{
    try {
        call();
    } catch (error const& e) {
        return e.what();
    }
    return "no error";
}

using test::usual_adamw;

} // namespace slow
