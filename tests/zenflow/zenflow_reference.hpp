// SPDX-License-Identifier: Apache-2.0
// What a run of zenflow_optimizer must be: the whole model in one place, one element after another, with nothing done
// early or late but the publishing of weights.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include <adamant/optimizer_options.hpp>
#include <adamant/reference.hpp>
#include <adamant/shard.hpp>
#include <adamant/zenflow.hpp>
#include <adamant/detail/numerics/squares_total.hpp>
#include <adamant/detail/zenflow/column_selection.hpp>

#include "catch.hpp"

namespace test {

// A param as the model and the optimizer have it: state by columns, grad and weights by rows. A vector has one column.
struct zenflow_arrays {
    bool is_vector;
    std::size_t rows, columns;
    adamant::shard_dtypes types;
    std::vector<std::unique_ptr<array>> of; // by shard_array
    array weights;

    zenflow_arrays(bool vector, std::size_t row_count, std::size_t column_count, adamant::shard_dtypes const& all)
        : is_vector(vector), rows(row_count), columns(column_count), types(all),
          weights(all[4] == adamant::dtype::none ? all[0] : all[4], row_count * column_count)
    {
        for (adamant::dtype const type : types)
            of.push_back(std::make_unique<array>(type, rows * columns));
    }
    [[nodiscard]] array& source() { return *of[types[4] == adamant::dtype::none ? 0 : 4]; }
    void draw_state(random_bits& random)
    {
        for (std::size_t i = 0; i < rows * columns; ++i)
            for (std::size_t const which : {0u, 4u})
                if (types[which] != adamant::dtype::none)
                    of[which]->set(i, with_exponent(random(), -9, -3));
        for (std::size_t const which : {2u, 3u})
            std::memset(of[which]->data(), 0, of[which]->bytes());
        if (types[0] == adamant::dtype::float32 && types[4] != adamant::dtype::none)
            for (std::size_t i = 0; i < rows * columns; ++i)
                of[4]->set(i, of[0]->get(i));
        for (std::size_t c = 0; c < columns; ++c)
            flush(c);
    }
    void flush(std::size_t column)
    {
        std::size_t const bytes = size_bytes(is_vector ? types[0] : source_type());
        for (std::size_t r = 0; r < rows && !is_vector; ++r)
            std::memcpy(weights.data() + (r * columns + column) * bytes, source().data() + (column * rows + r) * bytes,
                        bytes);
    }
    [[nodiscard]] adamant::dtype source_type() const { return types[types[4] == adamant::dtype::none ? 0 : 4]; }
    // The arrays from an element of a column on, as a shard.
    [[nodiscard]] adamant::any_shard part(std::size_t column, std::uint64_t number, std::byte const* grad, bool floats)
    {
        adamant::shard_dtypes with = types;
        if (floats)
            with[1] = adamant::dtype::float32;
        auto const at = [&](std::size_t which) {
            return types[which] == adamant::dtype::none ? nullptr
                                                        : of[which]->data() + array_bytes(types[which], column * rows);
        };
        return {*adamant::find_format(with), {at(0), grad, at(2), at(3), at(4), {number, column * rows}}, rows};
    }
};

class zenflow_reference {
public:
    adamant::zenflow_options zenflow;
    adamant::optimizer_options options;
    std::vector<adamant::parameter_group> groups;
    struct param {
        zenflow_arrays* a;
        std::size_t group;
        std::uint64_t number; // for stochastic rounding
        std::vector<std::uint64_t> counts;
        std::vector<std::uint8_t> selected, publishing;
        std::vector<float> sums; // by rows
        std::uint64_t summed = 0;
    };
    std::vector<param> params;
    adamant::zenflow_position at = {};
    adamant::loss_scaler_state scaler = {};

    // Returns whether the step was applied. present: empty, or a flag for each param.
    bool step(std::vector<bool> const& present = {})
    {
        using namespace adamant;
        auto const takes_part = [&](std::size_t i) { return present.empty() || present[i]; };
        squares_total squares;
        for (std::size_t i = 0; i < params.size(); ++i)
            for (std::size_t b = 0, n = params[i].a->rows * params[i].a->columns; takes_part(i) && b < n; b += 4096)
                squares.add(squares_at(*params[i].a, b, std::min<std::size_t>(4096, n - b)));
        double const scale = options.loss_scaling ? scaler.scale : 1;
        bool const skips = options.on_nonfinite == nonfinite_policy::skip && squares.nonfinite() != 0;
        double const clip = clip_coefficient(std::sqrt(squares.rounded().sum) / scale, options.max_norm);
        if (options.loss_scaling)
            scaler = after_step(scaler, *options.loss_scaling, squares.nonfinite() != 0);
        if (skips)
            return false;
        bool const warm_up = at.steps < zenflow.full_warm_up_rounds;
        bool const selects =
            !warm_up && at.in_window == 0 && (!at.has_selection || at.since_selection >= zenflow.select_interval);
        if (selects)
            select(present);
        squares_total deferred_squares, done_squares;
        for (std::size_t i = 0; i < params.size(); ++i) {
            param& p = params[i];
            std::vector<float> scaled(p.a->rows * p.a->columns), masked_done(scaled.size()),
                masked_deferred(scaled.size());
            for (std::size_t k = 0; k < scaled.size(); ++k) { // by rows
                float const infinity = std::numeric_limits<float>::infinity();
                double const factor = (groups[p.group].maximize ? -clip : clip) / scale;
                float const g = reference::clamped(widen_at(*p.a->of[1], k),
                                                   options.on_nonfinite == nonfinite_policy::zero, 1.0f, infinity);
                scaled[k] = std::fabs(factor) < 0x1.000002p-126 // two factors that float holds
                                ? reference::clamped(reference::clamped(g, false, 0x1p-125f, infinity), false,
                                                     static_cast<float>(factor * 0x1p125), infinity)
                                : reference::clamped(g, false, static_cast<float>(factor), infinity);
            }
            for (std::size_t c = 0; c < p.a->columns; ++c) {
                bool const now = p.a->is_vector || (p.selected[c] != 0 && !warm_up);
                if (takes_part(i) && now) {
                    update(p, c, scaled, 1.0f);
                    p.a->flush(c);
                }
                for (std::size_t r = 0; r < p.a->rows && !p.a->is_vector; ++r) {
                    std::size_t const k = r * p.a->columns + c;
                    if (takes_part(i))
                        p.sums[k] = p.summed == 0 ? scaled[k] : reference::added(scaled[k], p.sums[k]);
                    masked_done[k] = now && takes_part(i) ? scaled[k] : 0;
                    masked_deferred[k] = now || p.summed + takes_part(i) == 0 ? 0 : p.sums[k];
                }
            }
            p.summed += takes_part(i);
            for (std::size_t b = 0; b < scaled.size() && !p.a->is_vector; b += 4096) {
                std::size_t const n = std::min<std::size_t>(4096, scaled.size() - b);
                done_squares.add(
                    reference::block_squares<float>(reinterpret_cast<std::byte const*>(masked_done.data() + b), n));
                deferred_squares.add(
                    reference::block_squares<float>(reinterpret_cast<std::byte const*>(masked_deferred.data() + b), n));
            }
        }
        double const done = done_squares.rounded().sum;
        double const deferred_sum = deferred_squares.rounded().sum;
        ++at.steps;
        ++at.in_window;
        at.since_selection = selects ? 1 : at.since_selection + !warm_up;
        at.has_selection = at.has_selection || selects;
        bool ends = warm_up || (zenflow.update_interval && at.in_window >= *zenflow.update_interval);
        if (!warm_up && !zenflow.update_interval) {
            at.done_squares += done;
            ends = at.in_window >= zenflow.max_deferred ||
                   (deferred_sum > 0 && deferred_sum >= zenflow.auto_ratio * at.done_squares);
        }
        if (!ends)
            return true;
        bool const drops = options.on_nonfinite == nonfinite_policy::skip && deferred_squares.nonfinite() != 0;
        for (param& p : params) {
            for (std::size_t c = 0; c < p.publishing.size(); ++c)
                if (p.publishing[c] != 0)
                    p.a->flush(c);
            std::fill(p.publishing.begin(), p.publishing.end(), std::uint8_t{0});
            for (std::size_t c = 0; c < p.publishing.size() && p.summed != 0 && !drops; ++c) {
                if (p.selected[c] != 0 && !warm_up)
                    continue;
                update(p, c, p.sums, static_cast<float>(1.0 / static_cast<double>(p.summed)));
                if (zenflow.overlap && !warm_up)
                    p.publishing[c] = 1;
                else
                    p.a->flush(c);
            }
            p.summed = 0;
        }
        at.in_window = 0;
        at.done_squares = 0;
        return true;
    }

private:
    static float widen_at(array const& grad, std::size_t k) { return grad.get(k); }
    static adamant::grad_squares squares_at(zenflow_arrays const& a, std::size_t begin, std::size_t n)
    {
        std::byte const* const from = a.of[1]->data() + array_bytes(a.types[1], begin);
        if (a.types[1] == adamant::dtype::float32)
            return adamant::reference::block_squares<float>(from, n);
        if (a.types[1] == adamant::dtype::bfloat16)
            return adamant::reference::block_squares<adamant::bfloat16>(from, n);
        return adamant::reference::block_squares<adamant::float16>(from, n);
    }
    // One update of a column with gradients that lie by rows, times `scale`.
    void update(param& p, std::size_t column, std::vector<float> const& by_rows, float scale)
    {
        std::vector<float> grad(p.a->rows);
        for (std::size_t r = 0; r < grad.size(); ++r)
            grad[r] = by_rows[r * p.a->columns + column];
        adamant::coefficients c = adamant::make_coefficients(groups[p.group].hyper, ++p.counts[column]);
        c.grad_scale = scale;
        if (options.on_nonfinite == adamant::nonfinite_policy::zero)
            for (float& g : grad)
                g = adamant::is_finite(g) ? g : 0.0f;
        adamant::any_shard const part = p.a->part(column, p.number, reinterpret_cast<std::byte*>(grad.data()), true);
        (void)part.step_for(adamant::isa::scalar)(part.pointers(), 0, part.size(), c, {false});
    }
    void select(std::vector<bool> const& present)
    {
        std::vector<std::vector<std::int64_t>> scores(params.size());
        std::vector<adamant::column_candidates> all;
        for (std::size_t i = 0; i < params.size(); ++i) {
            param& p = params[i];
            if (p.a->is_vector)
                continue;
            float largest = 0;
            std::size_t const n = p.a->rows * p.a->columns;
            bool const takes_part = present.empty() || present[i];
            for (std::size_t k = 0; k < n && takes_part; ++k)
                if (float const g = std::fabs(p.a->of[1]->get(k)); adamant::is_finite(g))
                    largest = std::max(largest, g);
            adamant::column_score_scale const by = adamant::column_score_scale_for(largest, zenflow.score);
            scores[i].resize(p.a->columns);
            for (std::size_t k = 0; k < n && takes_part; ++k)
                scores[i][k % p.a->columns] += adamant::reference::column_score_of(
                    p.a->of[1]->get(k), by.scale, zenflow.score == adamant::column_score::square);
            all.push_back({scores[i], by.unit, p.a->rows, p.selected});
        }
        if (zenflow.scope == adamant::selection_scope::all_params)
            adamant::select_columns(all, zenflow.topk_ratio);
        else
            for (adamant::column_candidates const& each : all)
                adamant::select_columns(each.scores, zenflow.topk_ratio, each.selected);
        for (param& p : params)
            for (std::size_t c = 0; c < p.publishing.size(); ++c)
                if (p.publishing[c] != 0 && p.selected[c] != 0) {
                    p.a->flush(c);
                    p.publishing[c] = 0;
                }
    }
};

} // namespace test
