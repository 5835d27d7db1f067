// SPDX-License-Identifier: Apache-2.0
// The optimizer with a part of its shards on a CUDA device, whose runtime is imitated on the host: see cuda_on_host/.
#define ADAMANT_GPU_RUNTIME "cuda_on_host/cuda_runtime.h"

#include <memory>

#include <adamant/cuda.cuh>

#include <adamant/zenflow.hpp>

#include "../engine/slow_optimizer.hpp"

using namespace slow;

namespace {

// A GPU of its own memory, or one that uses the host's.
std::shared_ptr<adamant::cuda_device> make_gpu(bool shares_memory)
{
    cuda_on_host::set_integrated(shares_memory);
    auto made = std::make_shared<adamant::cuda_device>();
    cuda_on_host::set_integrated(false);
    CHECK(made->shares_host_memory() == shares_memory);
    return made;
}

} // namespace

TEST_CASE(
    "Any run of an optimizer with a CUDA device has the bits of the reference implementation applied the slow way",
    "[cuda]")
{
    for (std::uint64_t seed = 600; seed < 600 + test::repeats(8); ++seed)
        for (bool const shares_memory : {false, true})
            run_random(seed, make_gpu(shares_memory));
}

TEST_CASE("What CUDA refuses leaves everything as it was before the step, and the next one is as if nothing had been",
          "[cuda]")
{
    using cuda_on_host::call;
    bool const shares_memory = GENERATE(false, true);
    for (auto const kind : {call::copy, call::launch, call::record}) {
        std::size_t failures = 0;
        for (unsigned after = 0;; after += 1 + after / 8) {
            INFO("call " << static_cast<int>(kind) << ", number " << after);
            test::random_bits random(11);
            std::vector<tensor> tensors;
            tensors.emplace_back(kinds[0], 2 * norm_block_elems + 5, random);
            tensors.emplace_back(kinds[1], norm_block_elems, random);
            adamant::optimizer steps(executor_of(1), {.max_norm = 1e-3});
            steps.add_group("all", usual_adamw);
            for (std::size_t k = 0; k < 2; ++k) {
                tensors[k].draw_gradient(random, -12, -6);
                add(steps, tensors[k], std::to_string(k));
            }
            steps.place(make_gpu(shares_memory), adamant::split(steps.shard_sizes(), {.ratio = 0.4}));
            (void)step_slowly(tensors, {true, true}, steps.groups(), {1, 1}, 1, 1e-3, 0,
                              adamant::nonfinite_policy::skip);
            auto const difference = [&] {
                (void)steps.state();
                return tensors[0].difference() + tensors[1].difference();
            };
            (void)steps.step();
            REQUIRE(difference() == "");
            cuda_on_host::fail(kind, after + 1, cudaErrorInvalidValue);
            bool failed = false;
            try {
                steps.begin_step();
                steps.submit(1);
                steps.submit(0);
                (void)steps.finish();
            } catch (adamant::device_error const&) {
                failed = true;
            }
            cuda_on_host::restart();
            if (failed) {
                CHECK(steps.steps() == 1);
                REQUIRE(difference() == "");
                (void)steps.step();
            }
            (void)step_slowly(tensors, {true, true}, steps.groups(), {2, 2}, 1, 1e-3, 0,
                              adamant::nonfinite_policy::skip);
            REQUIRE(difference() == "");
            failures += failed;
            if (!failed)
                break; // so many calls there are not
        }
        CHECK(failures >= 2);
    }
}

TEST_CASE("zenflow has the same bits with a CUDA device", "[cuda]")
{
    using namespace adamant;
    bool const shares_memory = GENERATE(false, true);
    for (bool const split : {false, true}) {
        constexpr std::size_t rows = 200, columns = 70, n = rows * columns;
        struct side {
            std::vector<float> master = std::vector<float>(n), exp_avg = master, exp_avg_sq = master;
            std::vector<split_float32> low = std::vector<split_float32>(n);
            std::vector<bfloat16> grad = std::vector<bfloat16>(n), weight_out = grad, weights = grad;
            std::vector<float> bias = std::vector<float>(33, 0.5f), bias_grad = bias, bias_m = std::vector<float>(33),
                               bias_v = bias_m;
        } host, both;
        std::vector<device_arrays> there;
        auto const make = [&](side& s, std::shared_ptr<device> const& on) {
            auto by = std::make_unique<zenflow_optimizer>(
                executor_of(1), zenflow_options{.topk_ratio = 0.15, .select_interval = 3, .update_interval = 2},
                optimizer_options{.max_norm = 0.1});
            by->add_group("all", usual_adamw);
            for (std::size_t i = 0; i < n; ++i) {
                s.master[i] = 0.01f * static_cast<float>(i % 97);
                split_parts const halves = split_master(s.master[i]);
                s.low[i] = halves.low;
                s.weight_out[i] = split ? halves.weight : narrow<bfloat16>(s.master[i]);
            }
            for (std::size_t r = 0; r < rows; ++r)
                for (std::size_t c = 0; c < columns; ++c)
                    s.weights[r * columns + c] = s.weight_out[c * rows + r];
            if (split)
                by->add_param(
                    {0, "w", shard(s.low, s.grad, s.exp_avg, s.exp_avg_sq, s.weight_out), columns, s.weights.data()});
            else
                by->add_param({0, "w", shard(s.master, s.grad, s.exp_avg, s.exp_avg_sq, s.weight_out), columns,
                               s.weights.data()});
            by->add_param({0, "b", shard(s.bias, s.bias_grad, s.bias_m, s.bias_v)});
            if (on != nullptr) {
                there = {{on->allocate(2 * n), on->allocate(2 * n)}, {on->allocate(4 * 33), on->allocate(4 * 33)}};
                by->set_device_arrays(0, there[0]);
                by->set_device_arrays(1, there[1]);
                by->place(on);
            }
            return by;
        };
        auto const on = make_gpu(shares_memory);
        auto const alone = make(host, nullptr);
        auto const together = make(both, on);
        std::vector<bfloat16> grad(n);
        test::random_bits random(3);
        for (int step = 0; step < 9; ++step) {
            for (bfloat16& g : grad)
                g = narrow<bfloat16>(test::with_exponent(random(), -9, -4));
            host.grad = grad;
            (void)alone->step();
            // cuda_on_host's memory is the host's, as are addresses of unified memory
            std::memcpy(reinterpret_cast<void*>(there[0].grad.address), grad.data(), 2 * n);
            std::memcpy(reinterpret_cast<void*>(there[1].grad.address), host.bias_grad.data(), 4 * 33);
            (void)together->step();
            (void)alone->state();
            (void)together->state();
            INFO("split " << split << ", step " << step);
            REQUIRE(std::memcmp(host.master.data(), both.master.data(), 4 * n) == 0);
            REQUIRE(host.low == both.low);
            REQUIRE(host.exp_avg_sq == both.exp_avg_sq);
            REQUIRE(host.weights == both.weights);
            REQUIRE(host.bias == both.bias);
        }
    }
}
