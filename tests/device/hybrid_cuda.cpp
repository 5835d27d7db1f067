// SPDX-License-Identifier: Apache-2.0
// The optimizer with a part of its shards on a CUDA device, whose runtime is imitated on the host: see cuda_on_host/.
#define ADAMANT_GPU_RUNTIME "cuda_on_host/cuda_runtime.h"

#include <memory>

#include <adamant/device/cuda.cuh>

#include "../step/slow_optimizer.hpp"

using namespace slow;

TEST_CASE("Any run of an optimizer with a CUDA device has the bits of the oracle applied the slow way", "[cuda]")
{
    for (std::uint64_t seed = 600; seed < 630; ++seed)
        run_random(seed, std::make_shared<adamant::cuda_device>());
}

TEST_CASE("What CUDA refuses leaves everything as it was before the step, and the next one is as if nothing had been",
          "[cuda]")
{
    using cuda_on_host::call;
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
            steps.place(std::make_shared<adamant::cuda_device>(), adamant::split(steps.shard_sizes(), {.ratio = 0.4}));
            (void)step_slowly(tensors, {true, true}, steps.groups(), 1, 1, 1e-3, 0, adamant::nonfinite_policy::skip);
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
            (void)step_slowly(tensors, {true, true}, steps.groups(), 2, 1, 1e-3, 0, adamant::nonfinite_policy::skip);
            REQUIRE(difference() == "");
            failures += failed;
            if (!failed)
                break; // so many calls there are not
        }
        CHECK(failures >= 2);
    }
}
