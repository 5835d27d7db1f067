// SPDX-License-Identifier: Apache-2.0
// A step that began before its norm was known (training.hpp), and the rollback.
//
//   rollback/right/HOW/elems:N/threads:T   nothing had to be rolled back. Against a step that knows its norm, one that
//                                          needs none, and a journal of plain copies; the limit moves one step's bytes
//   rollback/wrong/HOW/elems:N/threads:T   what was stepped was rolled back and done again with the clip coefficient.
//                                          Against a clipped step that waited; the limit moves what that has to move
//   rollback/rollback/elems:N/threads:T        optimizer::rollback() of the last step, which reads the gradient twice;
//   the
//                                          limit moves those bytes and the state's
//
// HOW: until_finish, as it is by default, where all gradients are submitted together and finish() follows; always,
// every block of the model is stepped before the norm is known: what records cost.

#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "references.hpp"
#include "rows.hpp"
#include "training.hpp"

namespace bench {

namespace {

using benchmark::State;

constexpr double step_bytes = mixed::bytes_per_element();
constexpr double step_bytes_after_norm = step_bytes + sizeof(bfloat16);

void count_journal(State& state, optimizer_report const& of, std::size_t n)
{
    state.counters["journal_bytes"] = static_cast<double>(of.journal_bytes) / static_cast<double>(n);
    state.counters["shards_waited"] = static_cast<double>(of.shards_waited);
}

// A step with a record for every block as it would be if the records were the old values themselves.
void step_with_copies(training const& data, std::byte* journal, adamant::coefficients const& c)
{
    constexpr std::size_t block = adamant::norm_block_elems;
    constexpr std::size_t bytes = block * sizeof(float);
    adamant::isa const tier = data.cpu().tier();
    auto const squares = adamant::kernel::block_squares_for<bfloat16>(tier);
    auto const step = adamant::step_format<float, bfloat16, float, float, bfloat16>().step_for(tier);
    bool const stream = data.elems() >= adamant::stream_weight_out_from_elems;
    data.cpu().for_each_slice(data.elems(), [&](slice part) { // the blocks that begin in it
        for (std::size_t b = (part.begin + block - 1) / block; b * block < part.end; ++b) {
            adamant::kernel::step_pointers const at = shard_of<mixed>(data.arrays(), b * block, block).pointers();
            benchmark::DoNotOptimize(squares(at.grad, block));
            std::byte* const record = journal + 3 * bytes * b;
            std::memcpy(record, at.param, bytes);
            std::memcpy(record + bytes, at.exp_avg, bytes);
            std::memcpy(record + 2 * bytes, at.exp_avg_sq, bytes);
            step(at, 0, block, c, stream);
        }
    });
}

template <adamant::speculation How>
void require_all_speculated(optimizer_report const& last)
{
    if (How == adamant::speculation::always)
        require(last.speculated && last.shards_waited == 0, "speculation on all blocks");
}

template <adamant::speculation How>
void right(State& state, executor const& cpu, std::size_t n)
{
    training data(cpu, n);
    optimizer opt(cpu, {.speculate = How});
    data.add_to(opt);
    opt.prepare();
    optimizer no_norm(cpu, {.on_nonfinite = adamant::nonfinite_policy::apply});
    data.add_to(no_norm);
    no_norm.prepare(false);
    data.warm_up(opt);
    auto copies = make_buffer<std::byte>(cpu, n * 3 * sizeof(float));
    adamant::coefficients const c = adamant::make_coefficients(training_adamw, 1, {.loss_scale = loss_scale});

    std::vector<contender> all;
    optimizer_report speculated, without_norm;
    auto const add = [&](part_in_race part, char const* name, std::function<void()> const& run) {
        all.push_back({part, name, "", run, data.before_run()});
    };
    add(part_in_race::subject, "speculated", [&] { speculated = submitted_step(opt, never_reached); });
    add(part_in_race::aside, "step", [&] { whole_step(opt, never_reached); });
    add(part_in_race::aside, "no_norm", [&] { without_norm = no_norm.step({.loss_scale = loss_scale}); });
    add(part_in_race::aside, "copies", [&] { step_with_copies(data, copies.data(), c); });
    add_limits<mixed>(all, cpu, data.arrays(), n, gradient_reads::once, data.before_run());
    race::run(state, all, {training_repeats_for(n)});
    require(!speculated.rolled_back, "speculation that comes true");
    require_all_speculated<How>(speculated);
    require(without_norm.update.bytes_moved == 0, "a step without a norm");
    report(state, all, moving(n, step_bytes));
    count_journal(state, speculated, n);
}

template <adamant::speculation How>
void wrong(State& state, executor const& cpu, std::size_t n)
{
    training data(cpu, n);
    optimizer opt(cpu, {.speculate = How});
    data.add_to(opt);
    opt.prepare();
    double const biting = 0.5 * data.warm_up(opt).global_norm;

    std::vector<contender> all;
    optimizer_report redone;
    all.push_back(
        {part_in_race::subject, "redone", "", [&] { redone = submitted_step(opt, biting); }, data.before_run()});
    all.push_back({part_in_race::aside, "clipped", "", [&] { whole_step(opt, biting); }, data.before_run()});
    add_limits<mixed>(all, cpu, data.arrays(), n, gradient_reads::twice, data.before_run());
    race::run(state, all, {training_repeats_for(n)});
    require(redone.clip_coefficient < 1 && redone.speculated == redone.rolled_back, "speculation that is rolled back");
    require_all_speculated<How>(redone);
    report(state, all, moving(n, step_bytes_after_norm));
    count_journal(state, redone, n);
}

void rollback(State& state, executor const& cpu, std::size_t n)
{
    training data(cpu, n);
    optimizer opt(cpu, {.keep_last_step = true});
    data.add_to(opt);
    opt.prepare();
    data.warm_up(opt);

    std::vector<contender> all;
    optimizer_report last;
    all.push_back({part_in_race::subject, "rollback", "", [&] { opt.rollback(); },
                   [&] {
                       data.draw();
                       last = whole_step(opt, never_reached);
                   }});
    add_limits<mixed>(all, cpu, data.arrays(), n, gradient_reads::twice, data.before_run());
    race::run(state, all);
    require(last.outcome == adamant::step_outcome::applied, "steps that are rolled back");
    report(state, all, moving(n, step_bytes_after_norm));
    count_journal(state, last, n);
}

} // namespace

void add_rollback(setup const& given)
{
    for_each_size(given, sizes(given.chosen, training_bytes_each), [&](executor const& cpu, std::size_t n) {
        auto const add = [&](char const* what, void (*run)(State&, executor const&, std::size_t)) {
            add_row("rollback/" + std::string(what) + "/" + row_name(cpu, n), rounds_for(given.chosen, n),
                    [&cpu, n, run](State& state) { run(state, cpu, n); });
        };
        add("right/until_finish", right<adamant::speculation::automatic>);
        add("right/always", right<adamant::speculation::always>);
        add("wrong/until_finish", wrong<adamant::speculation::automatic>);
        add("wrong/always", wrong<adamant::speculation::always>);
        add("rollback", rollback);
    });
}

} // namespace bench
