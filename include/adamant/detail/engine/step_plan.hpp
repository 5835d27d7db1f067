// SPDX-License-Identifier: Apache-2.0
// The plan of the current step: its values, coefficients and passes, as plain data that both backends read.
#pragma once

#include <algorithm>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <adamant/error.hpp>
#include <adamant/hyperparameters.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/detail/engine/decision.hpp>
#include <adamant/detail/numerics/float_mode.hpp>
#include <adamant/detail/shard/block_pass.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// The values of one step, with the optimizer's defaults filled in.
struct step_terms {
    std::uint64_t step = 1;
    double loss_scale = 1;
    bool moves_scaler = false; // the loss scale comes from the dynamic scaler, which this step updates
    double max_norm = 0;
    double max_abs = 0;
    nonfinite_policy on_nonfinite = nonfinite_policy::skip;
    std::vector<double> lr = {}; // for each group, or empty
};

// Fills `terms` and reuses its memory. Throws invalid_argument for invalid values.
inline void make_terms(step_terms& terms, step_values const& values, optimizer_options const& options,
                       std::size_t groups, std::uint64_t step, double next_loss_scale)
{
    bool const uses_default_limits = !values.max_norm && !values.max_abs_grad; // a limit in the values replaces both
    double const max_norm = uses_default_limits ? options.max_norm : values.max_norm.value_or(0);
    double const max_abs = uses_default_limits ? options.max_abs_grad : values.max_abs_grad.value_or(0);
    check_limits(max_norm, max_abs);
    if (!values.lr.empty() && values.lr.size() != groups)
        throw_invalid_argument({"cannot step with ", counted(values.lr.size(), "learning rate"), ": the optimizer has ",
                                counted(groups, "group")});
    terms.step = step;
    terms.loss_scale = values.loss_scale.value_or(next_loss_scale);
    terms.moves_scaler = !values.loss_scale;
    terms.max_norm = max_norm;
    terms.max_abs = max_abs;
    terms.on_nonfinite = options.on_nonfinite;
    terms.lr.assign(values.lr.begin(), values.lr.end());
}

// Why a step computes squares and non-finite counts of its gradients.
enum class measuring : std::uint8_t {
    none,
    for_report, // or for the loss scaler: the update need not wait for them
    for_norm    // no block may be stepped for good before the norm is known
};
[[nodiscard]] inline measuring measuring_of(step_terms const& terms, optimizer_options const& options) noexcept
{
    if (terms.max_norm != 0 || terms.on_nonfinite == nonfinite_policy::skip || options.reduce)
        return measuring::for_norm;
    bool const is_reported =
        terms.on_nonfinite == nonfinite_policy::zero || (options.loss_scaling && terms.moves_scaler);
    return is_reported ? measuring::for_report : measuring::none;
}
// Until when the records of stepped blocks are kept.
enum class record_life : std::uint8_t {
    norm,     // only blocks that are stepped before the norm is known have records
    step,     // a device may fail until both backends have completed the step
    next_step // for rollback(), with checksums of the gradients
};

// Updates the state of dynamic loss scaling, if there is one, after a step.
inline void move_scaler(std::optional<loss_scaler_state>& scaler, step_terms const& terms,
                        optimizer_options const& options, bool overflow)
{
    if (scaler && terms.moves_scaler)
        rounded_to_nearest([&] { scaler = after_step(*scaler, *options.loss_scaling, overflow); });
}

// Sets the gradient factor: `clip` / loss scale, rounded to float once. Norms above 8.5e37 require a factor that float
// does not hold. It is applied as two factors: first 2^-125, which is exact for every gradient that the whole factor
// leaves above 2^-126, then the remainder. The result depends on the rounding mode.
inline void set_gradient_factor(group_step& step, parameter_group const& group, double loss_scale, double clip)
{
    double const factor = clip / loss_scale;
    step.rules.limited = !float_holds(factor);
    step.rules.scale = step.rules.limited ? small_factor_unit : 1.0f;
    step.rules.bound = std::bit_cast<float>(float_infinity_bits);
    float const scale = round_coefficient(step.rules.limited ? factor / double{small_factor_unit} : factor);
    step.c.grad_scale = group.maximize ? -scale : scale;
}

// Coefficients and gradient rules of group i for its step number `step`, with this clip coefficient. The result depends
// on the rounding mode. Throws invalid_argument as make_coefficients() does.
inline group_step make_group_step(parameter_group const& group, std::size_t i, step_terms const& terms, double clip,
                                  std::uint64_t step)
{
    hyperparameters hyper = group.hyper;
    if (!terms.lr.empty())
        hyper.lr = terms.lr[i];
    group_step result{make_coefficients(hyper, step, {.loss_scale = terms.loss_scale}),
                      {.zero_nonfinite = terms.on_nonfinite == nonfinite_policy::zero}};
    set_gradient_factor(result, group, terms.loss_scale, clip);
    if (terms.max_abs != 0) {
        result.rules.limited = true;
        result.rules.scale = result.c.grad_scale;
        result.rules.bound = static_cast<float>(terms.max_abs);
        result.c.grad_scale = 1;
    }
    return result;
}

// Coefficients and gradient rules of each group, without clipping.
inline void make_group_steps(std::vector<parameter_group> const& groups, step_terms const& terms,
                             std::vector<group_step>& out)
{
    out.resize(groups.size());
    for (std::size_t i = 0; i < groups.size(); ++i)
        out[i] = make_group_step(groups[i], i, terms, 1.0, terms.step);
}

// A step number that shards of a group have in place of the optimizer's.
struct own_step {
    std::size_t group;
    std::uint64_t number;
    friend constexpr auto operator<=>(own_step const&, own_step const&) = default;
};

enum class shard_in_step : std::uint8_t { awaited, submitted, skipped };
[[nodiscard]] constexpr bool takes_part(shard_in_step shard) noexcept
{
    return shard != shard_in_step::skipped;
}

// What ends speculation, that is, steps of blocks before the norm is known.
enum class speculation_end : std::uint8_t {
    norm,
    // Once all gradients are submitted, the remaining blocks wait for the norm: measuring them costs less than
    // recording a step that may be rolled back.
    finish
};
// Whether a block is stepped although the journal has no room for its record.
enum class full_journal_policy : std::uint8_t { step, defer };

struct step_plan {
    step_terms terms;
    block_pass first_pass = block_pass::measure;
    // For each group, and then for each of own_steps. assumed: coefficients of steps taken before the norm is known,
    // and of all existing records. decided: coefficients of the step once the norm is known.
    std::vector<group_step> assumed, decided;
    std::vector<own_step> own_steps; // ascending
    // For each shard, an index into assumed and decided. Empty without own_steps: the index is the shard's group.
    std::vector<std::size_t> coefficients_of;
    std::vector<shard_in_step> shards;
    measuring measured = measuring::for_report; // in the first pass
    record_life records = record_life::norm;
    speculation_end speculates_until = speculation_end::norm;
    full_journal_policy on_full_journal = full_journal_policy::step;

    [[nodiscard]] bool measures() const noexcept { return measured != measuring::none; }
    [[nodiscard]] bool needs_norm() const noexcept { return measured == measuring::for_norm; }
    // Whether every pass that steps writes records.
    [[nodiscard]] bool keeps_records() const noexcept { return records != record_life::norm; }
    [[nodiscard]] bool takes_part(std::size_t shard) const noexcept { return detail::takes_part(shards[shard]); }
    // Whether the assumed gradient factors equal the decided ones.
    [[nodiscard]] bool assumption_holds() const noexcept
    {
        for (std::size_t i = 0; i < decided.size(); ++i)
            if (assumed[i].c.grad_scale != decided[i].c.grad_scale || assumed[i].rules.scale != decided[i].rules.scale)
                return false;
        return true;
    }
};

// Adds the coefficients of shards whose step numbers, if there are any, are not the optimizer's. Requires plan.terms,
// and plan.assumed for each group. If it throws, coefficients_of is unchanged. The result depends on the rounding mode.
template <class Shards>
inline void add_own_steps(step_plan& plan, std::vector<parameter_group> const& groups, Shards const& shards,
                          std::span<std::uint64_t const> numbers)
{
    std::size_t const used = numbers.size(); // 0 or the number of shards
    plan.own_steps.reserve(used);
    plan.coefficients_of.reserve(used);
    for (std::vector<group_step>* const steps : {&plan.assumed, &plan.decided})
        steps->reserve(groups.size() + used);
    plan.own_steps.clear();
    plan.coefficients_of.clear();
    for (std::size_t i = 0; i < used; ++i) {
        own_step const own{shards[i].group, numbers[i]};
        auto const next = std::lower_bound(plan.own_steps.begin(), plan.own_steps.end(), own);
        if (own.number != plan.terms.step && (next == plan.own_steps.end() || *next != own))
            plan.own_steps.insert(next, own);
    }
    if (plan.own_steps.empty())
        return;
    for (own_step const& own : plan.own_steps)
        plan.assumed.push_back(make_group_step(groups[own.group], own.group, plan.terms, 1.0, own.number));
    for (std::size_t i = 0; i < used; ++i) {
        own_step const own{shards[i].group, numbers[i]};
        auto const found = std::lower_bound(plan.own_steps.begin(), plan.own_steps.end(), own);
        plan.coefficients_of.push_back(numbers[i] == plan.terms.step
                                           ? own.group
                                           : groups.size() + static_cast<std::size_t>(found - plan.own_steps.begin()));
    }
}

// Applies another clip coefficient to plan.decided. It changes only the gradient factors.
inline void clip_decided_steps(step_plan& plan, std::vector<parameter_group> const& groups, double clip)
{
    for (std::size_t i = 0; i < plan.decided.size(); ++i)
        set_gradient_factor(plan.decided[i], groups[i < groups.size() ? i : plan.own_steps[i - groups.size()].group],
                            plan.terms.loss_scale, clip);
}

// What a plan depends on besides terms and options.
struct plan_context {
    bool may_speculate = false; // shards arrive one by one, and stepping them meanwhile hides time
    bool has_device = false;
    std::uint8_t wrong_assumptions = 0; // a bit for each of the last eight steps
};
// Initializes the rest of the plan. Requires plan.terms and plan.assumed. Allocates nothing if the plan has had a step
// over as many shards and groups before.
inline void make_plan(step_plan& plan, optimizer_options const& options, std::size_t shards,
                      plan_context const& context)
{
    plan.decided = plan.assumed;
    plan.shards.assign(shards, shard_in_step::awaited);
    plan.measured = measuring_of(plan.terms, options);
    // A device may fail. With a device, every step can therefore be rolled back until both backends have completed it.
    plan.records = options.keep_last_step ? record_life::next_step
                   : context.has_device   ? record_life::step
                                          : record_life::norm;
    plan.on_full_journal = context.has_device ? full_journal_policy::defer : full_journal_policy::step;
    // If every step keeps records anyway, speculating costs nothing more.
    plan.speculates_until = plan.needs_norm() && !plan.keeps_records() && options.speculate != speculation::always
                                ? speculation_end::finish
                                : speculation_end::norm;
    bool const assumes = plan.needs_norm() && context.may_speculate &&
                         (options.speculate == speculation::always || (options.speculate == speculation::automatic &&
                                                                       std::popcount(context.wrong_assumptions) <= 4));
    plan.first_pass = !plan.needs_norm() ? (context.has_device ? block_pass::speculate : block_pass::step)
                      : assumes          ? block_pass::speculate
                                         : block_pass::measure;
}

} // namespace detail
ADAMANT_END_NAMESPACE
