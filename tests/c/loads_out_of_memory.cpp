// SPDX-License-Identifier: Apache-2.0
// Loads where memory ends at any allocation: they change nothing unless they succeed. Of the C++ interface, where a
// state comes from memory and no JSON parser fails first; here, because this program has the allocation in its hands.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <adamant/emulated_device.hpp>
#include <adamant/formats.hpp>
#include <adamant/optimizer.hpp>
#include <adamant/split.hpp>
#include <adamant/zenflow.hpp>

#include "allocation.hpp"
#include "catch.hpp"

using namespace adamant;

namespace {

constexpr dtype f32 = dtype::float32, bf16 = dtype::bfloat16, q8 = dtype::quantized8, lower = dtype::split_float32;
constexpr shard_dtypes formats[] = {{lower, bf16, f32, f32, bf16},
                                    {lower, f32, q8, q8, bf16},
                                    {f32, f32, f32, f32, dtype::none},
                                    {bf16, bf16, bf16, bf16, dtype::none}};

// Arrays of a few params of these types, with distinct values.
struct arrays {
    static constexpr std::size_t params = 5, rows = 64, columns = 20, elements = rows * columns;
    shard_dtypes types;
    std::vector<std::vector<std::byte>> all; // for each param those of the shard, and weights by rows

    arrays(shard_dtypes const& of, unsigned seed) : types(of)
    {
        for (std::size_t i = 0; i < params; ++i)
            for (std::size_t a = 0; a <= shard_arrays; ++a) {
                dtype const type = types[a < shard_arrays ? a : types[4] == dtype::none ? 0 : 4];
                std::vector<std::byte> made(array_bytes(type, elements));
                for (std::size_t at = 0; at < made.size(); ++at) // small positive numbers of any type
                    made[at] = static_cast<std::byte>(at % 2 == 1 ? 0x38 : (seed * 16 + i + at) % 128);
                if (type == dtype::none)
                    made.resize(1);
                all.push_back(std::move(made));
            }
    }
    [[nodiscard]] std::byte* at(std::size_t param, std::size_t array)
    {
        return all[param * (shard_arrays + 1) + array].data();
    }
    [[nodiscard]] any_shard shard(std::size_t param)
    {
        return {
            *find_format(types),
            {at(param, 0), at(param, 1), at(param, 2), at(param, 3), types[4] == dtype::none ? nullptr : at(param, 4)},
            elements};
    }
    friend bool operator==(arrays const&, arrays const&) = default;
};

executor one_thread()
{
    return executor(std::make_shared<team>(team_options{.threads = 1, .bind = binding::none}));
}
std::string name_of(std::size_t param)
{
    return "a parameter with a name that is longer than a few letters: " + std::to_string(param);
}

// Of some steps, with a loss scaler and hyperparameters of its own.
struct plain {
    arrays of;
    optimizer by;

    plain(shard_dtypes const& types, unsigned seed)
        : of(types, seed), by(one_thread(), {.loss_scaling = loss_scaling_options{.initial_scale = 2.0 + seed}})
    {
        by.add_group("a group with a name that is longer than a few letters", adamw({.lr = 1e-3 * seed}));
        for (std::size_t i = 0; i < arrays::params; ++i)
            by.add_shard({.group = 0, .name = name_of(i), .shard = optimizer_shard(of.shard(i))});
        for (unsigned step = 0; step < seed; ++step)
            by.step();
    }
    [[nodiscard]] auto numbers() { return std::tuple(by.steps(), by.loss_scale(), by.state().groups[0].hyper.lr); }
};

struct deferred {
    arrays of;
    zenflow_optimizer by;

    deferred(shard_dtypes const& types, unsigned seed)
        : of(types, seed),
          by(one_thread(), {.topk_ratio = 0.2, .select_interval = 2, .update_interval = 2, .overlap = true},
             {.loss_scaling = loss_scaling_options{.initial_scale = 2.0 + seed}})
    {
        by.add_group("a group with a name that is longer than a few letters", adamw({.lr = 1e-3 * seed}));
        for (std::size_t i = 0; i < arrays::params; ++i)
            by.add_param({.group = 0,
                          .name = name_of(i),
                          .shard = optimizer_shard(of.shard(i)),
                          .columns = i == 0 ? 0 : arrays::columns,
                          .weights = i == 0 ? nullptr : of.at(i, shard_arrays)});
        for (unsigned step = 0; step < seed; ++step)
            by.step();
    }
    [[nodiscard]] auto numbers()
    {
        zenflow_state const now = by.state();
        return std::tuple(now.position, by.loss_scale(), now.groups[0].hyper.lr);
    }
};

// Loads `from` into an optimizer in another state, failing each allocation in turn until one load succeeds.
template <class Optimizer, class State, class Prepare>
void load_with_failures(shard_dtypes const& types, State const& from, Optimizer& expected, Prepare const& prepare)
{
    Optimizer into(types, 4);
    prepare(into);
    auto const numbers = into.numbers();
    arrays const before = into.of;
    long n = 0;
    for (;; ++n) {
        INFO("allocation " << n);
        bool failed = false;
        allocation_failed = false;
        allocations_left = n;
        try {
            into.by.load(from);
        } catch (std::bad_alloc const&) {
            failed = true;
        }
        allocations_left = -1;
        REQUIRE(failed == allocation_failed);
        if (!failed)
            break;
        REQUIRE(into.of == before);
        REQUIRE(into.numbers() == numbers);
    }
    REQUIRE(n > 10);
    REQUIRE(into.numbers() == expected.numbers());
    into.by.step(); // the state is still consistent
    expected.by.step();
    static_cast<void>(into.numbers()); // with what goes on in the background
    static_cast<void>(expected.numbers());
    REQUIRE(into.numbers() == expected.numbers());
}

} // namespace

TEST_CASE("A load whose memory ends at any allocation changes nothing")
{
    for (shard_dtypes const& types : formats) {
        INFO(to_text(types));
        plain from(types, 3);
        state_dict const state = from.by.state();
        load_with_failures(types, state, from, [](plain&) {});
    }
}

TEST_CASE("A load into a zenflow optimizer that runs out of memory changes nothing")
{
    for (shard_dtypes const& types : formats)
        for (unsigned const steps : {2u, 3u, 5u}) { // at the end of a window, with weights to publish, and inside
            INFO(to_text(types) << " after " << steps << " steps");
            deferred from(types, steps);
            zenflow_state const state = from.by.state();
            load_with_failures(types, state, from, [](deferred&) {});
        }
}
