// SPDX-License-Identifier: Apache-2.0
// A model in training, as an offload engine has it: bfloat16 gradients under a loss scale, AdamW on float params and
// moments, bfloat16 weights, in shards that follow each other in memory.
//
// Gradients are heavy-tailed and drawn anew before every step that is timed: what a record needs depends on how moments
// and gradients go together. There is no bias correction, so that all steps are alike.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <adamant/adamant.hpp>

#include "arrays.hpp"
#include "random.hpp"
#include "references.hpp"
#include "rows.hpp"

namespace bench {

using adamant::optimizer;
using adamant::optimizer_report;

inline constexpr double loss_scale = 1024;
inline constexpr double never_reached = 1e9; // a max_norm

inline constexpr adamant::hyperparameters training_adamw{
    .lr = 1e-4, .weight_decay = 0.1, .mode = adamant::decay_mode::decoupled, .bias_correction = false};

// Much as Student's distribution of three degrees of freedom, whose tails are heavy: over the length of a vector of
// three even numbers.
inline float heavy_tailed(std::uint32_t random)
{
    std::uint32_t const more = random_bits(random ^ 0x9e3779b9u);
    float squares = 0;
    for (unsigned k = 0; k < 3; ++k) {
        float const x = static_cast<float>(2 * static_cast<int>(more >> 10 * k & 1023) - 1023) * (1 / 1023.0f);
        squares += x * x;
    }
    return bell(random) / std::sqrt(squares);
}

class training {
public:
    // n: a multiple of shards, and where all blocks are to be full of shards * norm_block_elems. shards 0: up to 64.
    training(executor const& on, std::size_t n, std::size_t shards = 0)
        : cpu_(on), n_(n),
          shards_(shards != 0 ? shards : std::clamp<std::size_t>(n / adamant::norm_block_elems, 1, 64)),
          memory_(mixed::dtypes, n)
    {
        fill<mixed>(cpu_, memory_, n_, content::ordinary);
    }

    [[nodiscard]] executor const& cpu() const { return cpu_; }
    [[nodiscard]] bench::arrays const& arrays() const { return memory_; }
    [[nodiscard]] std::size_t elems() const { return n_; }
    [[nodiscard]] std::size_t shards() const { return shards_; }
    [[nodiscard]] std::size_t shard_elems() const { return n_ / shards_; }
    [[nodiscard]] bfloat16* grad() const { return memory_.get<bfloat16>(1); }
    [[nodiscard]] mixed shard(std::size_t i) const
    {
        return shard_of<mixed>(memory_, i * shard_elems(), shard_elems());
    }
    void add_to(optimizer& opt) const
    {
        adamant::group_id const group = opt.add_group("all", training_adamw);
        for (std::size_t i = 0; i < shards_; ++i)
            opt.add_shard({.group = group, .name = "tensor " + std::to_string(i), .shard = shard(i)});
    }

    // Copies runs from a table, each from a random place: as fast as a copy of gradients. After a phase that computes,
    // a Sapphire Rapids moves bytes more slowly (a step took up to 1.1 times as long).
    void draw(bfloat16* to)
    {
        std::uint32_t const seed = random_bits(++draws_);
        cpu_.for_each_slice(n_, [this, to, seed](slice part) {
            for (std::size_t i = part.begin; i < part.end; i += run_elems) {
                std::uint32_t const from = random_bits(static_cast<std::uint32_t>(i) * 0x9e3779b1u ^ seed);
                std::memcpy(to + i, table_.data() + from % (table_.size() - run_elems),
                            std::min(run_elems, part.end - i) * sizeof(bfloat16));
            }
        });
    }
    void draw() { draw(grad()); }
    // Prepares a contender, whether it steps or only moves bytes, so that all find machine and caches alike.
    [[nodiscard]] std::function<void()> before_run()
    {
        return [this] { draw(); };
    }

    // The state as training leaves it. Returns the last report.
    optimizer_report warm_up(optimizer& opt)
    {
        optimizer_report last;
        for (int t = 0; t < 30; ++t) {
            draw();
            last = opt.step({.loss_scale = loss_scale, .max_norm = never_reached});
            require(last.outcome == adamant::step_outcome::applied && last.clip_coefficient == 1, "a warm-up step");
        }
        return last;
    }

private:
    static constexpr std::size_t run_elems = 256;

    static std::vector<bfloat16> random_gradients()
    {
        std::vector<bfloat16> all(std::size_t{1} << 16); // 128 KiB: leaves a core's L2 to the step
        for (std::size_t i = 0; i < all.size(); ++i)
            all[i] = adamant::narrow<bfloat16>(static_cast<float>(loss_scale * 1e-3) *
                                               heavy_tailed(random_bits(static_cast<std::uint32_t>(i))));
        return all;
    }

    executor cpu_;
    std::size_t n_, shards_;
    bench::arrays memory_;
    std::vector<bfloat16> table_ = random_gradients();
    std::uint32_t draws_ = 0;
};

// What the sizes of rows are chosen by: rows have wide gradients or journals besides, and drawing takes its time.
inline constexpr double training_bytes_each = 4 * memory_bytes(mixed::dtypes);

// Gradients are drawn once before all of the runs that are timed as one, so there are few of these.
inline int training_repeats_for(std::size_t elems)
{
    return static_cast<int>(std::clamp<std::size_t>((std::size_t{1} << 19) / elems, 1, 64));
}

inline optimizer_report whole_step(optimizer& opt, double max_norm)
{
    return opt.step({.loss_scale = loss_scale, .max_norm = max_norm});
}

inline optimizer_report submitted_step(optimizer& opt, double max_norm)
{
    opt.begin_step({.loss_scale = loss_scale, .max_norm = max_norm});
    for (std::size_t i = 0; i < opt.shards(); ++i)
        opt.submit(i);
    return opt.finish();
}

} // namespace bench
