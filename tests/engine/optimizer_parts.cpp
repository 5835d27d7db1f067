// SPDX-License-Identifier: Apache-2.0
// The parts of an optimizer, each alone: the states of a step, what follows a norm, what is registered, the work line.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include <adamant/detail/engine/block_table.hpp>
#include <adamant/detail/engine/cpu_backend.hpp>
#include <adamant/detail/engine/decision.hpp>
#include <adamant/detail/engine/registry.hpp>
#include <adamant/detail/engine/step_machine.hpp>
#include <adamant/detail/engine/step_plan.hpp>
#include <adamant/detail/engine/written_memory.hpp>
#include <adamant/detail/exec/work_queue.hpp>

#include "catch.hpp"

using namespace adamant;
using namespace adamant::detail;

namespace {

step_state state_of(std::size_t number)
{
    return static_cast<step_state>(number);
}

// A machine that has gone through these states.
void go_through(step_machine& machine, std::initializer_list<step_state> states)
{
    for (step_state const each : states)
        machine.go(each);
}

} // namespace

TEST_CASE("every state of a step leads back to one between steps, and to nothing that is not in the table", "[once]")
{
    std::size_t allowed = 0;
    for (std::size_t from = 0; from < step_states; ++from) {
        // Follow the table from here: a step that is under way always ends.
        std::set<std::size_t> reached{from};
        for (std::size_t before = 0; before != reached.size();) {
            before = reached.size();
            for (std::size_t at = 0; at < step_states; ++at)
                for (std::size_t to = 0; reached.contains(at) && to < step_states; ++to)
                    if (may_follow(state_of(at), state_of(to)))
                        reached.insert(to);
        }
        INFO(name(state_of(from)));
        CHECK(reached.contains(static_cast<std::size_t>(step_state::idle)));
        for (std::size_t to = 0; to < step_states; ++to)
            allowed += may_follow(state_of(from), state_of(to));
    }
    CHECK(allowed == 34); // whoever changes the table knows it

    using enum step_state;
    // What must never happen.
    STATIC_REQUIRE(!may_follow(inconsistent, open));        // a step from no known state
    STATIC_REQUIRE(!may_follow(behind, open));              // or before the device has taken its part back
    STATIC_REQUIRE(!may_follow(inconsistent_behind, idle)); // which makes no state known
    STATIC_REQUIRE(!may_follow(behind, inconsistent));
    STATIC_REQUIRE(!may_follow(failed, over));       // a failed step is never complete
    STATIC_REQUIRE(!may_follow(failed, stepping));   // nor goes on
    STATIC_REQUIRE(!may_follow(rolling_back, over)); // what is rolled back is stepped again
    STATIC_REQUIRE(!may_follow(finishing, failed));  // nothing could be rolled back any more
    STATIC_REQUIRE(!may_follow(finishing, idle));    // without a report
    STATIC_REQUIRE(!may_follow(over, open));         // nor is a report lost
    STATIC_REQUIRE(!may_follow(skipping, stepping)); // a skipped step changes nothing
}

TEST_CASE("a wrong transition is caught, and changes no state", "[once]")
{
    for (std::size_t to = 0; to < step_states; ++to) {
        step_machine machine;
        machine.open(false);
        if (may_follow(step_state::open, state_of(to))) {
            CHECK_NOTHROW(machine.go(state_of(to)));
            CHECK(machine.state() == state_of(to));
            continue;
        }
        CHECK_THROWS_AS(machine.go(state_of(to)), std::logic_error);
        CHECK(machine.state() == step_state::open);
    }
    step_machine machine;
    try {
        machine.go(step_state::stepping);
        FAIL("it was not caught");
    } catch (std::logic_error const& defect) {
        CHECK(std::string(defect.what()).find("from the state 'idle' to 'stepping'") != std::string::npos);
    }
    CHECK_THROWS_AS(machine.fail(), std::logic_error);
}

TEST_CASE("the machine answers what its states mean", "[once]")
{
    step_machine machine;
    CHECK((machine.is_between_steps() && !machine.takes_shards() && !machine.is_async()));
    machine.open(false);
    CHECK((!machine.is_between_steps() && machine.takes_shards()));
    machine.fail();
    CHECK((machine.has_failed() && machine.takes_shards())); // submit() goes on until finish()
    machine.fail();                                          // again, in another submit()
    CHECK(machine.state() == step_state::failed);
    machine.go(step_state::inconsistent_behind);
    CHECK((machine.is_between_steps() && machine.is_behind() && machine.is_inconsistent() && !machine.has_failed()));
    go_through(machine, {step_state::inconsistent, step_state::idle});
    machine.open(true);
    CHECK((machine.is_async() && !machine.takes_shards()));
    go_through(machine, {step_state::stepping, step_state::finishing});
    machine.fail();
    CHECK((machine.state() == step_state::failed_finishing && machine.has_failed() && machine.is_async()));
    machine.go(step_state::behind);
    CHECK((machine.is_behind() && !machine.is_inconsistent() && !machine.is_async()));
    machine.go(step_state::idle);
    machine.open(true);
    machine.go(step_state::over);
    CHECK((machine.is_async() && !machine.is_between_steps())); // until the ticket was waited for
    machine.go(step_state::idle);
    CHECK(!machine.is_async());
}

TEST_CASE("the sum of squares decides about a skip, the norm and the clip coefficient", "[once]")
{
    double const inf = std::numeric_limits<double>::infinity();
    norm_verdict v = judge({16, 0}, 2, 0, nonfinite_policy::skip);
    CHECK((!v.skips && v.norm == 2 && v.clip == 1));
    v = judge({16, 0}, 2, 1, nonfinite_policy::skip);
    CHECK((!v.skips && v.norm == 2 && v.clip == clip_coefficient(2, 1)));
    v = judge({16, 3}, 2, 1, nonfinite_policy::skip);
    CHECK((v.skips && v.norm == 2 && v.clip == 1)); // a step that is skipped is not clipped
    v = judge({16, 3}, 2, 1, nonfinite_policy::apply);
    CHECK((!v.skips && v.clip == clip_coefficient(2, 1)));
    v = judge({1, 0}, 1, inf, nonfinite_policy::skip);
    CHECK(v.clip == 1);
    CHECK(judge({0x1p260, 0}, 1, 0x1p1, nonfinite_policy::skip).clip ==
          clip_coefficient(0x1p130, 2)); // too small for one float, not for two
    CHECK(judge({0x1p260, 0}, 0x1p120, 0x1p-130, nonfinite_policy::skip).clip == 0); // nor for two
    CHECK(judge({1, 0}, 1e30, 1e-300, nonfinite_policy::skip).clip == 0);            // 0 as a double, too
}

TEST_CASE("once the norm is known, what is wrong is rolled back and what is left is done, and nothing else", "[once]")
{
    using enum step_state;
    auto const is = [](decision const& d, step_state state, block_pass pass, bool rolled_back) {
        return d.state == state && (state == over || d.pass == pass) && d.rolled_back == rolled_back;
    };
    for (unsigned bits = 0; bits < 1u << 7; ++bits)
        for (block_pass const pass : {block_pass::measure, block_pass::step, block_pass::speculate}) {
            auto const bit = [&](unsigned i) { return (bits >> i & 1) != 0; };
            first_pass_facts const f{.pass = pass,
                                     .skips = bit(0),
                                     .same_scales = bit(1),
                                     .stepped = bit(2),
                                     .left_on_cpu = bit(3),
                                     .left_on_device = bit(4),
                                     .keeps_records = bit(5),
                                     .has_device = bit(6)};
            decision const d = decide(f);
            INFO(name(pass) << ", facts " << bits << ": " << name(d.state) << ", pass " << name(d.pass));
            CHECK(may_follow(open, d.state));
            bool const assumed = pass == block_pass::speculate;
            bool const left = f.left_on_cpu || f.left_on_device;
            if (f.skips) {
                CHECK(is(d, assumed && f.stepped ? skipping : over, block_pass::rollback, assumed && f.stepped));
            } else if (pass == block_pass::step) {
                CHECK(is(d, over, block_pass::rest, false));
            } else if (assumed && !f.same_scales) {
                if (!f.stepped)
                    CHECK(is(d, stepping, block_pass::rest, false));
                else if (f.keeps_records)
                    CHECK(is(d, rolling_back, block_pass::rollback, true));
                else
                    CHECK(is(d, stepping, block_pass::redo, true));
            } else if (!left) {
                CHECK(is(d, over, block_pass::rest, false));
            } else {
                CHECK(is(d, f.has_device && !f.left_on_device ? finishing : stepping, block_pass::rest, false));
            }
        }
    // And after the passes.
    CHECK(is(after_pass(rolling_back, false), stepping, block_pass::rest, false));
    CHECK(is(after_pass(rolling_back, true), stepping, block_pass::rest, false));
    CHECK(is(after_pass(stepping, true), finishing, block_pass::rest, false));
    for (step_state const last : {stepping, skipping, finishing})
        CHECK(is(after_pass(last, false), over, block_pass::rest, false));
    CHECK(is(after_pass(finishing, true), over, block_pass::rest, false));
    CHECK(is(after_pass(skipping, true), over, block_pass::rest, false));
}

TEST_CASE("a plan speculates only where it may, and goes by what was wrong lately", "[once]")
{
    auto const first_pass = [](optimizer_options const& options, double max_norm, bool as_they_arrive, bool has_device,
                               std::uint8_t wrong) {
        step_plan plan;
        plan.terms.max_norm = max_norm;
        plan.terms.on_nonfinite = options.on_nonfinite;
        make_plan(plan, options, 3, {as_they_arrive, has_device, wrong});
        CHECK(plan.shards == std::vector(3, shard_in_step::awaited));
        CHECK(plan.on_full_journal == (has_device ? full_journal_policy::defer : full_journal_policy::step));
        CHECK(plan.keeps_records() == (has_device || options.keep_last_step));
        return plan.first_pass;
    };
    optimizer_options const skip, apply{.on_nonfinite = nonfinite_policy::apply};
    CHECK(first_pass(skip, 0, true, false, 0) == block_pass::speculate);
    CHECK(first_pass(skip, 0, false, false, 0) == block_pass::measure);  // all gradients are there
    CHECK(first_pass(apply, 0, true, false, 0) == block_pass::step);     // no norm is needed
    CHECK(first_pass(apply, 0, true, true, 0) == block_pass::speculate); // but a device may fail
    CHECK(first_pass(apply, 1, true, false, 0) == block_pass::speculate);
    CHECK(first_pass(skip, 1, true, false, 0b00001111) == block_pass::speculate);
    CHECK(first_pass(skip, 1, true, false, 0b00011111) == block_pass::measure); // most were wrong
    optimizer_options never, always;
    never.speculate = speculation::never;
    always.speculate = speculation::always;
    CHECK(first_pass(never, 1, true, false, 0) == block_pass::measure);
    CHECK(first_pass(always, 1, true, false, 0xff) == block_pass::speculate);

    auto const until_finish = [](optimizer_options const& options, double max_norm, bool has_device) {
        step_plan plan;
        plan.terms.max_norm = max_norm;
        plan.terms.on_nonfinite = options.on_nonfinite;
        make_plan(plan, options, 3, {true, has_device, 0});
        return plan.speculates_until == speculation_end::finish;
    };
    optimizer_options can_roll_back;
    can_roll_back.keep_last_step = true;
    CHECK(until_finish(skip, 0, false));
    CHECK(until_finish(apply, 1, false));
    CHECK_FALSE(until_finish(apply, 0, false)); // there is nothing to wait for
    CHECK_FALSE(until_finish(always, 1, false));
    CHECK_FALSE(until_finish(skip, 1, true)); // records are wanted anyhow
    CHECK_FALSE(until_finish(can_roll_back, 1, false));
}

namespace {

struct arrays_of {
    std::vector<float> param, grad, exp_avg, exp_avg_sq;
    explicit arrays_of(std::size_t n) : param(n), grad(n), exp_avg(n), exp_avg_sq(n) {}
    [[nodiscard]] any_shard view() { return optimizer_shard(adamant::shard(param, grad, exp_avg, exp_avg_sq)); }
};

std::string refusal(auto const& call)
{
    try {
        call();
    } catch (invalid_argument const& error) {
        return error.what();
    }
    return "no error";
}

} // namespace

TEST_CASE("the registry finds groups and shards, and numbers them anew where one goes")
{
    registry r;
    CHECK(r.add_group({"a", {}}) == 0);
    CHECK(r.add_group({"b", {}}) == 1);
    CHECK(r.add_group({"c", {}}) == 2);
    CHECK(r.find_group("b") == 1u);
    CHECK(!r.find_group(""));
    std::size_t const n = norm_block_elems + 1; // two blocks
    std::vector<arrays_of> arrays(5, arrays_of(n));
    arrays_of empty(0);
    auto const add = [&](arrays_of& of, std::size_t group, std::string const& name, shard_position position = {}) {
        return r.add_shard(group, name, of.view(), {}, std::move(position), test::tier());
    };
    CHECK(add(arrays[0], 2, "w", {{3 * n}, n}) == 0);
    CHECK(add(arrays[1], 1, "v") == 1);
    CHECK(add(arrays[2], 2, "w", {{3 * n}, 0}) == 2);
    CHECK(add(empty, 2, "w", {{3 * n}, n}) == 3);
    CHECK(add(empty, 2, "w", {{3 * n}, 3 * n}) == 4);
    CHECK(r.blocks() == 6);
    auto const find = [&](char const* name, std::size_t begin) { return r.positions().find(name, begin); };
    CHECK(find("w", n) == 0u); // one with elements before one without
    CHECK(find("w", 0) == 2u);
    CHECK(find("w", 3 * n) == 4u);
    CHECK(find("v", 0) == 1u);
    CHECK(!find("w", 1));
    CHECK(!find("x", 0));

    CHECK(refusal([&] { r.remove_group(2); }) ==
          "adamant: cannot remove parameter group 'c': 4 shards still belong to it (first: 0 ('w')). "
          "Call remove_shard() for each of them first.");
    CHECK(refusal([&] { r.remove_group(3); }) == "adamant: there is no parameter group 3; the optimizer has 3");
    CHECK(refusal([&] { r.remove_shard(5); }) == "adamant: there is no shard 5; the optimizer has 5");
    r.remove_group(0);
    CHECK(r.groups().size() == 2);
    CHECK(r.find_group("c") == 1u);
    CHECK(r[0].group == 1);
    CHECK(r[1].group == 0);
    CHECK(r.positions().params()[0].group == 1);
    CHECK(r.positions().params()[1].group == 0);

    r.count_micro_step(2);
    r.remove_shard(0);
    CHECK(r.size() == 4);
    CHECK(r.blocks() == 4);
    CHECK(r[0].shard.data(shard_array::param) == reinterpret_cast<std::byte*>(arrays[1].param.data()));
    CHECK(r[0].first_block == 0);
    CHECK(r[1].first_block == 2);
    CHECK(r[1].summed == 1); // as it was
    CHECK(find("v", 0) == 0u);
    CHECK(find("w", 0) == 1u);
    CHECK(find("w", n) == 2u); // the one without elements
    CHECK(r.name(1) == "w");
    // Its elements are free again, and its parameter, once it has no shards.
    CHECK(add(arrays[3], 1, "w", {{3 * n}, n}) == 4);
    CHECK(r[4].first_block == 4);
    CHECK(refusal([&] { add(arrays[4], 1, "w", {{3 * n}, n}); }).find("Shards must not overlap") != std::string::npos);
    CHECK(refusal([&] { add(arrays[4], 1, "v"); }).find("cannot add a shard of 'v' without a position") !=
          std::string::npos);
    r.remove_shard(0);
    CHECK(r.positions().params().size() == 1);
    r.remove_group(0);
    CHECK(add(arrays[4], 0, "v", {{7, n}, n}) == 4);
    CHECK(r.positions().params()[1].shape == std::vector<std::size_t>{7, n});
}

TEST_CASE("a new gradient is compared with what is written, wherever that is")
{
    registry r;
    r.add_group({"g", {}});
    std::size_t const n = 100;
    std::vector<arrays_of> arrays(3, arrays_of(n));
    // Twice as long as the accumulator, so that a gradient that begins at its last element meets no other array.
    std::vector<float> sum(2 * n), other(n + 2);
    std::span<float> const accumulator(sum.data(), n);
    for (std::size_t i = 0; i < 3; ++i)
        r.add_shard(0, std::to_string(i), arrays[i].view(),
                    i == 2 ? accumulator_array(accumulator) : accumulator_array(), {}, test::tier());
    arrays_of empty(0);
    r.add_shard(0, "empty", empty.view(), {}, {}, test::tier());
    auto const grad = [&](std::size_t shard) { return r[shard].shard.data(shard_array::grad); };
    auto const set = [&](std::size_t shard, void const* to, bool checked) {
        return refusal([&] { r.set_gradient(shard, to, checked); });
    };
    for (bool const checked : {false, true}) {
        INFO("overlaps are checked: " << checked);
        if (checked)
            r.check_overlaps();
        CHECK(set(0, nullptr, checked) ==
              "adamant: cannot set the gradient of shard 0 ('0') with 100 elements: the pointer is null");
        CHECK(set(3, nullptr, checked) == "no error");
        // In the shard itself, whole and by one element.
        for (float* const bad : {arrays[2].param.data(), arrays[2].exp_avg.data() + n - 1, arrays[2].exp_avg_sq.data(),
                                 sum.data() + n - 1}) {
            std::byte const* const before = grad(2);
            CHECK(set(2, bad, checked).find("overlap") != std::string::npos);
            CHECK(grad(2) == before);
        }
        CHECK(set(0, other.data() + 1, checked) == "no error");
        CHECK(grad(0) == reinterpret_cast<std::byte*>(other.data() + 1));
        CHECK(set(1, other.data(), checked) == "no error"); // gradients may share memory
        // In another shard: immediately if overlaps have been checked, else when they are.
        CHECK(set(0, sum.data() + n - 1, checked) ==
              (checked
                   ? "adamant: grad of shard 0 and accumulator of shard 2 overlap in memory, and a step writes there. "
                     "Give each array separate memory."
                   : "no error"));
        if (!checked)
            CHECK(refusal([&] { r.check_overlaps(); }).find("grad of shard 0 and accumulator of shard 2") !=
                  std::string::npos);
        CHECK(set(0, arrays[0].grad.data(), checked) == "no error");
    }
    // If gradients are downloaded from a device, the array in host memory is written.
    r.set_device_arrays(1, {{4096}, {}});
    r.check_overlaps();
    CHECK(set(0, other.data() + 2, true).find("grad of shard 0 and grad of shard 1 overlap") != std::string::npos);
    r.remove_shard(0); // whose arrays on a device are not another's
    CHECK(r.has_device_arrays(0));
    CHECK(!r.has_device_arrays(1));
}

TEST_CASE("the table of blocks knows what blocks have, and which can be rolled back")
{
    registry r;
    r.add_group({"g", {}});
    std::vector<arrays_of> arrays{arrays_of(norm_block_elems + 1), arrays_of(0), arrays_of(2 * norm_block_elems)};
    for (std::size_t i = 0; i < 3; ++i)
        r.add_shard(0, std::to_string(i), arrays[i].view(), {}, {}, test::tier());
    block_table blocks;
    blocks.build_layout(r.blocks(), false);
    step_plan plan;
    plan.shards.assign(3, shard_in_step::submitted);
    for (std::size_t b = 0; b < 4; ++b)
        blocks.squares(b) = {1, b == 3 ? 5u : 0u};
    CHECK(blocks.first_nonfinite_block(r[0]) == 2); // none
    CHECK(blocks.first_nonfinite_block(r[2]) == 1);
    plan.shards[0] = shard_in_step::skipped;

    CHECK(blocks.unrecorded_blocks(r, plan) == 2);
    std::byte record{};
    blocks.record(3) = &record;
    CHECK(blocks.unrecorded_blocks(r, plan) == 1);
    CHECK(blocks.recorded_elements(r[2]) == norm_block_elems);
    blocks.set_device_result(2, {7, 0}, true);
    CHECK(blocks.unrecorded_blocks(r, plan) == 0);
    CHECK(blocks.recorded_elements(r[2]) == norm_block_elems); // the device's are not the CPU's
    CHECK(blocks.squares(2).sum == 7);
    plan.shards[0] = shard_in_step::awaited;
    CHECK(blocks.unrecorded_blocks(r, plan) == 0); // nor has it been stepped
    blocks.set_device_result(2, {7, 0}, false);
    CHECK(blocks.unrecorded_blocks(r, plan) == 1);
    blocks.forget_records();
    CHECK(blocks.unrecorded_blocks(r, plan) == 2);
}

TEST_CASE("what finish() finds unstepped is measured and waits, unless all is to be stepped before the norm is known")
{
    for (bool const until_finish : {false, true}) {
        std::size_t const blocks = 5;
        registry r;
        r.add_group({"g", {}});
        arrays_of arrays(blocks * norm_block_elems);
        for (std::size_t i = 0; i < arrays.grad.size(); ++i)
            arrays.grad[i] = arrays.param[i] = 1;
        r.add_shard(0, "w", arrays.view(), {}, {}, test::tier());
        step_plan plan;
        plan.first_pass = block_pass::speculate;
        plan.measured = measuring::for_norm;
        plan.speculates_until = until_finish ? speculation_end::finish : speculation_end::norm;
        plan.shards = {shard_in_step::submitted};
        plan.assumed = plan.decided = {{make_coefficients({}, 1), {}}};
        executor const cpu;
        block_table table;
        table.build_layout(blocks, false);
        table.records().allocate(cpu, 1 << 20, 1 << 20, r[0].shard.record_bytes_at_most(norm_block_elems));
        cpu_backend host(cpu, r, plan, table);
        host.build_layout(ranges_of_all(r));
        host.begin(0);
        REQUIRE(host.enqueue_all(block_pass::speculate) == blocks);

        host.run(0, 0, 2);
        CHECK(table.unrecorded_blocks(r, plan) == blocks - 2);
        host.all_is_submitted();
        host.run(0, 2, blocks);
        std::size_t const stepped = until_finish ? 2 : blocks;
        CHECK(table.unrecorded_blocks(r, plan) == blocks - stepped);
        for (std::size_t b = 0; b < blocks; ++b) {
            CHECK(table.squares(b).sum == norm_block_elems);
            CHECK((arrays.param[b * norm_block_elems] != 1) == (b < stepped));
        }
        CHECK(host.squares().rounded().sum == blocks * norm_block_elems);

        host.begin(0); // another step
        REQUIRE(host.enqueue_all(block_pass::speculate) == blocks);
        table.forget_records();
        host.run(0, 0, blocks);
        CHECK(table.unrecorded_blocks(r, plan) == 0);
    }
}

TEST_CASE("a journal takes memory for records of ordinary data, and addresses for all others", "[once]")
{
    auto const resident_bytes = [] {
        std::size_t pages = 0;
        std::ifstream file("/proc/self/statm");
        file >> pages >> pages;
        return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    };
    constexpr std::size_t budget = std::size_t{256} << 20;
    executor const cpu({.threads = 1});
    for (std::size_t const usual : {budget / 64, budget}) {
        detail::journal records;
        std::size_t const before = resident_bytes();
        records.allocate(cpu, budget, usual, 1 << 16);
        std::size_t const taken = resident_bytes() - before;
        CHECK((taken < budget / 2) == (usual < budget / 2));
        CHECK(records.room(0, 1 << 16) != nullptr);
    }
}

namespace {

// Counts how often each piece is done. At the end of a queue that is told to go on, adds as many pieces again.
struct counter final : queue_worker {
    std::vector<std::atomic<int>> done;
    std::atomic<int> rounds_left{0};
    std::atomic<int> polls_left{0}; // ends of the queue at which more is expected and nothing is there yet
    std::atomic<int> closes{0};
    std::size_t more = 0;
    background_team threads;
    work_queue line;

    counter(std::shared_ptr<adamant::team> team, std::size_t pieces)
        : done(pieces), threads(std::move(team)), line(threads, *this)
    {
    }
    void run(unsigned, std::size_t begin, std::size_t end) noexcept override
    {
        for (std::size_t i = begin; i < end; ++i)
            ++done[i];
    }
    bool at_end() noexcept override
    {
        ++closes;
        bool const adds = rounds_left > 0 && rounds_left-- > 0;
        if (adds)
            line.add_at_end(more);
        return adds || (polls_left > 0 && polls_left-- > 0);
    }
};

} // namespace

TEST_CASE("the work line has every piece done once, whoever adds it and when", "[once]")
{
    auto const team =
        std::make_shared<adamant::team>(adamant::team_options{.threads = 3, .bind = adamant::binding::none});
    std::size_t const pieces = 6000;
    counter c(team, pieces);
    CHECK(c.line.idle());
    c.line.wait(); // for nothing
    c.line.add([] { return std::size_t{0}; });
    CHECK(c.line.idle());
    c.line.set_max_item_pieces(7);
    // From several threads, in portions of all sizes, with drains that end between and others that wait for more.
    std::vector<std::thread> adders;
    for (std::size_t t = 0; t < 3; ++t)
        adders.emplace_back([&, t] {
            for (std::size_t left = 1000, n = t + 1; left != 0; left -= n, n = n * 7 % 31 + 1) {
                n = std::min(n, left);
                c.line.add([&] { return n; }, n % 2 == 0);
                if (n % 5 == 0)
                    c.line.wait();
            }
        });
    for (std::thread& each : adders)
        each.join();
    CHECK(c.line.wait_until(work_queue::clock::now() + std::chrono::minutes(1)));
    CHECK(c.line.added() == 3000);
    CHECK(c.line.done() == 3000);
    // And where the thread that comes to the end adds more.
    c.more = 1000;
    c.rounds_left = 2;
    int const closes = c.closes;
    c.line.add([] { return std::size_t{1000}; });
    c.line.wait();
    CHECK(c.rounds_left == 0);
    CHECK(c.closes >= closes + 3);
    CHECK(c.line.done() == pieces);
    for (std::atomic<int> const& each : c.done)
        REQUIRE(each == 1);
    // Nor does a drain end while the owner expects more.
    counter waiting(team, 1);
    waiting.polls_left = 1000;
    waiting.line.add([] { return std::size_t{1}; });
    waiting.line.wait();
    CHECK(waiting.polls_left == 0);
    CHECK(waiting.closes == 1001);
    // A member of the team must not wait for itself.
    std::atomic<int> refused{0};
    team->run([&](unsigned) { refused += refusal([&] { c.line.add([] { return std::size_t{1}; }); }) != "no error"; });
    CHECK(refused == 3);
    CHECK(c.line.idle());
}

TEST_CASE("A shard that is removed leaves the table as if it had never been added", "[once]")
{
    test::random_bits random(11);
    shard_dtypes const types = all_formats().front().types;
    for (int round = 0; round < 300; ++round) {
        struct part {
            std::string name;
            std::size_t begin, elems;
        };
        std::vector<part> parts;
        param_positions table;
        for (int action = 0; action < 40; ++action) {
            if (parts.empty() || random.below(5) < 3) {
                part const next{std::string(1, static_cast<char>('a' + random.below(6))), 10 * random.below(8),
                                random.below(4) == 0 ? 0 : 10u};
                try {
                    table.add(next.name, 0, types, next.elems, {{80}, next.begin});
                } catch (invalid_argument const&) {
                    continue; // some shard has these elements
                }
                parts.push_back(next);
            } else {
                std::size_t const which = random.below(parts.size());
                table.remove(which);
                parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(which));
            }
            param_positions expected;
            for (part const& each : parts)
                expected.add(each.name, 0, types, each.elems, {{80}, each.begin});
            REQUIRE(table.size() == parts.size());
            REQUIRE(table.params().size() == expected.params().size());
            for (std::size_t i = 0; i < table.params().size(); ++i)
                REQUIRE(table.params()[i].name == expected.params()[i].name);
            for (std::size_t i = 0; i < parts.size(); ++i) {
                REQUIRE(table.name(i) == parts[i].name);
                REQUIRE(table[i].param == expected[i].param);
                REQUIRE(table[i].begin == parts[i].begin);
            }
            for (char name = 'a'; name < 'g'; ++name)
                for (std::size_t begin = 0; begin < 80; begin += 10)
                    REQUIRE(table.find(std::string(1, name), begin) == expected.find(std::string(1, name), begin));
        }
    }
}
