// SPDX-License-Identifier: Apache-2.0
// An optimizer and one with deferred gradients behind the same functions, for tests of what both promise.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <adamant/emulated_device.hpp>
#include <adamant/optimizer.hpp>
#include <adamant/split.hpp>
#include <adamant/zenflow.hpp>

#include "catch.hpp"

namespace both {

using namespace adamant;

struct param_arrays {
    std::size_t rows, columns; // columns 0: a vector
    std::vector<float> param, grad, exp_avg, exp_avg_sq, weights;
    param_arrays(std::size_t r, std::size_t c, test::random_bits& random)
        : rows(r), columns(c), param(r * std::max<std::size_t>(c, 1)), grad(param.size()), exp_avg(param.size()),
          exp_avg_sq(param.size()), weights(param.size())
    {
        for (float& each : param)
            each = test::with_exponent(random(), -6, 0);
    }
    [[nodiscard]] adamant::shard<float, float, float, float, void> shard()
    {
        return {param, grad, exp_avg, exp_avg_sq};
    }
};

struct subject_options {
    optimizer_options step;
    zenflow_options zenflow;
    unsigned threads = 0; // 0: no team
};

inline executor executor_of(unsigned threads)
{
    static auto const two = std::make_shared<team>(team_options{.threads = 2, .bind = binding::none});
    return threads == 0 ? executor(executor_options{.threads = 1}) : executor(two);
}

// The plain optimizer. Its shards are divided between CPU and device.
struct plain_subject {
    std::vector<param_arrays>& arrays;
    optimizer by;

    plain_subject(std::vector<param_arrays>& all, subject_options const& options)
        : arrays(all), by(executor_of(options.threads), options.step)
    {
        by.add_group("all", {.lr = 0.01, .mode = decay_mode::decoupled});
        for (std::size_t i = 0; i < all.size(); ++i)
            by.add_shard({0, "p" + std::to_string(i), all[i].shard()});
    }
    void prepare_place(std::shared_ptr<emulated_device> const&) {}
    // null: back to the host.
    void place(std::shared_ptr<emulated_device> on) { by.place(on, split(by.shard_sizes(), {.ratio = on ? 0.5 : 1})); }
    void set_gradients(std::vector<std::vector<float>> const& gradients)
    {
        for (std::size_t i = 0; i < arrays.size(); ++i)
            arrays[i].grad = gradients[i];
    }
};

// ZenFlow. With a device all gradients are there.
struct zenflow_subject {
    std::vector<param_arrays>& arrays;
    std::shared_ptr<emulated_device> on;
    std::vector<device_arrays> there;
    zenflow_optimizer by;

    zenflow_subject(std::vector<param_arrays>& all, subject_options const& options)
        : arrays(all), by(executor_of(options.threads), options.zenflow, options.step)
    {
        by.add_group("all", {.lr = 0.01, .mode = decay_mode::decoupled});
        for (std::size_t i = 0; i < all.size(); ++i) {
            for (std::size_t k = 0; k < all[i].param.size() && all[i].columns != 0; ++k)
                all[i].weights[k % all[i].rows * all[i].columns + k / all[i].rows] = all[i].param[k];
            by.add_param({0, "p" + std::to_string(i), all[i].shard(), all[i].columns,
                          all[i].columns == 0 ? nullptr : all[i].weights.data()});
        }
    }
    void prepare_place(std::shared_ptr<emulated_device> const& device)
    {
        for (std::size_t i = 0; i < arrays.size(); ++i) {
            std::size_t const bytes = arrays[i].grad.size() * sizeof(float);
            there.push_back({device->allocate(bytes), device->allocate(bytes)});
            by.set_device_arrays(i, there.back());
        }
    }
    // null: back to the host.
    void place(std::shared_ptr<emulated_device> device)
    {
        by.place(device);
        on = std::move(device);
    }
    // With a device, the arrays in host memory belong to the optimizer.
    void set_gradients(std::vector<std::vector<float>> const& gradients)
    {
        for (std::size_t i = 0; i < arrays.size(); ++i) {
            std::size_t const bytes = gradients[i].size() * sizeof(float);
            std::memcpy(on == nullptr ? static_cast<void*>(arrays[i].grad.data()) : on->real(there[i].grad, bytes),
                        gradients[i].data(), bytes);
        }
    }
};

// Params and moments, after state() has copied them to host memory, and what else a state has.
template <class Subject>
std::vector<std::vector<float>> contents(Subject& subject)
{
    std::vector<std::vector<float>> all;
    auto const state = subject.by.state();
    for (param_arrays const& each : subject.arrays)
        for (auto const* const array : {&each.param, &each.exp_avg, &each.exp_avg_sq})
            all.push_back(*array);
    if constexpr (std::is_same_v<Subject, zenflow_subject>)
        for (zenflow_state_param const& p : state.params) {
            all.emplace_back(p.counts.begin(), p.counts.end());
            all.emplace_back(p.selected.begin(), p.selected.end());
            std::size_t const sums = p.summed != 0 && p.columns != 0 ? p.rows * p.columns : 0;
            all.emplace_back(p.sums, p.sums + sums);
        }
    return all;
}
// Names the first difference; empty if there is none.
inline std::string difference(std::vector<std::vector<float>> const& a, std::vector<std::vector<float>> const& b)
{
    for (std::size_t i = 0; i < a.size(); ++i)
        for (std::size_t k = 0; k < std::max(a[i].size(), b[i].size()); ++k)
            if (k >= a[i].size() || k >= b[i].size() || test::bits(a[i][k]) != test::bits(b[i][k]))
                return "array " + std::to_string(i) + ", element " + std::to_string(k);
    return {};
}

} // namespace both
