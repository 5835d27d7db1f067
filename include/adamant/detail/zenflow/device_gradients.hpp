// SPDX-License-Identifier: Apache-2.0
// Gradients that are made on a device: their norm, the scores of their columns, and how they come down.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <adamant/device.hpp>
#include <adamant/detail/numerics/squares_total.hpp>
#include <adamant/detail/zenflow/device_with_deadline.hpp>
#include <adamant/detail/zenflow/zenflow_matrix.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

class device_gradients {
public:
    // matrices and arrays: of every param. Throws as device::allocate() does.
    device_gradients(device_with_deadline const& on, std::vector<zenflow_matrix> const& matrices,
                     std::vector<device_arrays> const& arrays)
        : on_(on), matrices_(matrices), arrays_(arrays)
    {
        std::size_t bytes = 0;
        std::vector<device_piece> whole;
        std::vector<std::uint8_t> const all(matrices_.size(), std::uint8_t{1});
        for (std::size_t i = 0; i < matrices_.size(); ++i) {
            results_at_.push_back(bytes);
            column_scoring const one = scoring_of(i, all);
            bytes += device_aligned(std::max(one.largest_pieces(), one.scores()) * sizeof(std::uint32_t));
            offload_shard const& s = matrices_[i].shard();
            device_piece piece;
            piece.arrays[shard_array::grad] = arrays_[i].grad;
            std::copy(s.format().types.begin(), s.format().types.end(), piece.types);
            piece.elems = s.size();
            piece.format = &s.format();
            whole.push_back(piece);
            first_block_.push_back(squares_.size());
            squares_.resize(squares_.size() + s.blocks());
        }
        recorded_.resize(squares_.size());
        whole_ = on_->make_part(std::move(whole), false);
        results_ = on_->allocate(bytes);
    }
    device_gradients(device_gradients const&) = delete;
    device_gradients& operator=(device_gradients const&) = delete;
    ~device_gradients() { on_->release(results_); } // nothing is under way

    // The param's gradient is there: its squares are taken. It comes down by bring_down().
    void submit(std::size_t param)
    {
        group_step const none{};
        std::uint32_t const piece[] = {static_cast<std::uint32_t>(param)};
        std::vector<std::uint8_t> const not_summed(matrices_.size());
        if (matrices_[param].shard().size() != 0)
            whole_->run({.pass = block_pass::measure,
                         .pieces = piece,
                         .speculated = {&none, 1},
                         .settled = {&none, 1},
                         .summed = not_summed});
    }
    void bring_down(std::size_t param)
    {
        offload_shard const& s = matrices_[param].shard();
        on_->copy_down(s.data(shard_array::grad), arrays_[param].grad, s.bytes(shard_array::grad, s.size()));
    }
    // All gradients that were submitted are down; sums their squares. present: a flag for each param.
    [[nodiscard]] squares_total squares(std::vector<std::uint8_t> const& present)
    {
        whole_->fetch(squares_, recorded_);
        on_.wait();
        squares_total all;
        for (std::size_t i = 0; i < matrices_.size(); ++i)
            for (std::size_t b = 0; present[i] != 0 && b < matrices_[i].shard().blocks(); ++b)
                all.add(squares_[first_block_[i] + b]);
        return all;
    }

    // ---- Scores of columns

    // The bits of the largest finite magnitude of each matrix that is present; zero for all else. Waits.
    [[nodiscard]] std::vector<std::uint32_t> largest(std::vector<std::uint8_t> const& present)
    {
        std::vector<column_scoring> all(matrices_.size());
        for (std::size_t i = 0; i < all.size(); ++i) {
            all[i] = scoring_of(i, present);
            on_->find_largest(all[i]);
        }
        std::vector<std::uint32_t> result(all.size());
        fetch_results(
            all, [](column_scoring const& one) { return one.largest_pieces(); },
            [&](std::size_t i, std::span<std::uint32_t const> found) {
                for (std::uint32_t const bits : found)
                    result[i] = std::max(result[i], bits);
            });
        return result;
    }
    // Adds the scores of each matrix that is present to those of all columns, one matrix after the other. Waits.
    // scales: of each param.
    void add_scores(std::vector<std::uint8_t> const& present, column_score kind, std::vector<float> const& scales,
                    std::vector<std::int64_t>& scores)
    {
        std::vector<column_scoring> all(matrices_.size());
        for (std::size_t i = 0; i < all.size(); ++i) {
            all[i] = scoring_of(i, present);
            all[i].kind = kind;
            all[i].scale = scales[i];
            on_->score_columns(all[i]);
        }
        std::size_t first = 0;
        fetch_results(
            all, [](column_scoring const& one) { return one.scores(); },
            [&](std::size_t i, std::span<std::uint32_t const> found) {
                for (std::size_t k = 0; k < found.size(); ++k)
                    scores[first + k % matrices_[i].columns()] += found[k];
                first += matrices_[i].columns();
            });
    }

private:
    [[nodiscard]] column_scoring scoring_of(std::size_t i, std::vector<std::uint8_t> const& present) const noexcept
    {
        column_scoring what;
        if (present[i] == 0 || matrices_[i].columns() == 0)
            return what;
        what.grad = arrays_[i].grad;
        what.type = matrices_[i].shard().type(shard_array::grad);
        what.rows = matrices_[i].rows();
        what.columns = matrices_[i].columns();
        what.result = results_ + results_at_[i];
        return what;
    }
    // What the device has found for each matrix comes down.
    template <class Count, class Take>
    void fetch_results(std::vector<column_scoring> const& all, Count const& count, Take const& take)
    {
        on_->wait_event(device_stream::down, on_->record_event(device_stream::work));
        std::vector<std::vector<std::uint32_t>> found(all.size());
        try {
            for (std::size_t i = 0; i < all.size(); ++i) {
                found[i].resize(count(all[i]));
                on_->copy_down(found[i].data(), all[i].result, found[i].size() * sizeof(std::uint32_t));
            }
            on_.wait();
        } catch (...) {
            on_.settle(); // or something could still be written to `found`
            throw;
        }
        for (std::size_t i = 0; i < all.size(); ++i)
            take(i, std::span<std::uint32_t const>(found[i]));
    }

    device_with_deadline const& on_;
    std::vector<zenflow_matrix> const& matrices_;
    std::vector<device_arrays> const& arrays_;
    std::vector<std::size_t> first_block_; // of each param
    std::vector<grad_squares> squares_;
    std::vector<std::uint8_t> recorded_;
    std::unique_ptr<device_part> whole_; // of all gradients
    device_ptr results_;                 // of scores
    std::vector<std::size_t> results_at_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
