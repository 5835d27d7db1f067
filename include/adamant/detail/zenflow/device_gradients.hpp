// SPDX-License-Identifier: Apache-2.0
// Gradients on a device: their norm, the scores of their columns, and their download.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <adamant/device.hpp>
#include <adamant/detail/device/device_session.hpp>
#include <adamant/detail/engine/step_plan.hpp>
#include <adamant/detail/numerics/squares_total.hpp>
#include <adamant/detail/zenflow/zenflow_matrix.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

class device_gradients {
public:
    // matrices, arrays: one for each param. Throws as device::allocate().
    device_gradients(device_session const& target, std::vector<zenflow_matrix> const& matrices,
                     std::vector<device_arrays> const& arrays)
        : device_(target), matrices_(matrices), arrays_(arrays)
    {
        std::size_t bytes = 0;
        std::vector<device_piece> whole;
        std::vector<shard_in_step> const all(matrices_.size(), shard_in_step::submitted);
        for (std::size_t i = 0; i < matrices_.size(); ++i) {
            result_offsets_.push_back(bytes);
            column_scoring const scoring = scoring_of(i, all);
            bytes += device_aligned(std::max(scoring.largest_pieces(), scoring.scores()) * sizeof(std::uint32_t));
            offload_shard const& s = matrices_[i].shard();
            device_piece piece;
            piece.arrays[shard_array::grad] = arrays_[i].grad;
            std::copy(s.format().types.begin(), s.format().types.end(), piece.types);
            piece.elems = s.size();
            piece.format = &s.format();
            whole.push_back(piece);
            squares_.resize(squares_.size() + s.blocks());
        }
        recorded_.resize(squares_.size());
        whole_ = device_->make_part(std::move(whole), false);
        result_bytes_ = bytes;
        host_results_ = bytes == 0 ? nullptr : device_->pinned(bytes);
        results_ = device_->allocate(bytes);
    }
    device_gradients(device_gradients const&) = delete;
    device_gradients& operator=(device_gradients const&) = delete;
    ~device_gradients()
    {
        whole_.reset(); // waits
        device_->release(results_);
    }

    // Enqueues the squares of a param's complete gradient. download() downloads it.
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
    void download(std::size_t param)
    {
        offload_shard const& s = matrices_[param].shard();
        bool const same = reinterpret_cast<std::uintptr_t>(s.data(shard_array::grad)) == arrays_[param].grad.address;
        if (same && device_->shares_host_memory())
            return;
        device_->copy_down(s.data(shard_array::grad), arrays_[param].grad, s.bytes(shard_array::grad, s.size()));
    }
    // Waits for the submitted gradients' downloads and squares, and returns the sum of squares. params: those of the
    // step.
    [[nodiscard]] squares_total squares(std::vector<shard_in_step> const& params)
    {
        whole_->fetch(squares_, recorded_);
        device_.wait();
        squares_total total;
        auto next = squares_.begin();
        for (std::size_t i = 0; i < matrices_.size(); ++i)
            for (std::size_t b = 0; b < matrices_[i].shard().blocks(); ++b, ++next)
                if (takes_part(params[i]))
                    total.add(*next);
        return total;
    }

    // ---- Scores of columns

    // The bits of the largest finite magnitude of each matrix that takes part; zero for other params. Waits.
    [[nodiscard]] std::vector<std::uint32_t> largest(std::vector<shard_in_step> const& params)
    {
        std::vector<column_scoring> all(matrices_.size());
        for (std::size_t i = 0; i < all.size(); ++i) {
            all[i] = scoring_of(i, params);
            device_->find_largest(all[i]);
        }
        std::vector<std::uint32_t> result(all.size());
        fetch_results(
            all, [](column_scoring const& scoring) { return scoring.largest_pieces(); },
            [&](std::size_t i, std::span<std::uint32_t const> magnitudes) {
                for (std::uint32_t const bits : magnitudes)
                    result[i] = std::max(result[i], bits);
            });
        return result;
    }
    // Adds the scores of each matrix that takes part to `scores`, which holds the columns of all matrices in order.
    // Waits. scales: one for each param.
    void add_scores(std::vector<shard_in_step> const& params, column_score kind, std::vector<float> const& scales,
                    std::vector<std::int64_t>& scores)
    {
        std::vector<column_scoring> all(matrices_.size());
        for (std::size_t i = 0; i < all.size(); ++i) {
            all[i] = scoring_of(i, params);
            all[i].kind = kind;
            all[i].scale = scales[i];
            device_->score_columns(all[i]);
        }
        std::size_t first = 0;
        fetch_results(
            all, [](column_scoring const& scoring) { return scoring.scores(); },
            [&](std::size_t i, std::span<std::uint32_t const> partial) {
                for (std::size_t k = 0; k < partial.size(); ++k)
                    scores[first + k % matrices_[i].columns()] += partial[k];
                first += matrices_[i].columns();
            });
    }

private:
    [[nodiscard]] column_scoring scoring_of(std::size_t i, std::vector<shard_in_step> const& params) const noexcept
    {
        column_scoring scoring;
        if (!takes_part(params[i]) || matrices_[i].columns() == 0)
            return scoring;
        scoring.grad = arrays_[i].grad;
        scoring.type = matrices_[i].shard().type(shard_array::grad);
        scoring.rows = matrices_[i].rows();
        scoring.columns = matrices_[i].columns();
        scoring.result = results_ + result_offsets_[i];
        return scoring;
    }
    // Downloads the results of each matrix, waits, and calls take(i, results) for each.
    template <class Count, class Take>
    void fetch_results(std::vector<column_scoring> const& all, Count const& count, Take const& take)
    {
        device_->wait_event(device_stream::down, device_->record_event(device_stream::work));
        if (result_bytes_ != 0)
            device_->copy_down(host_results_.get(), results_, result_bytes_);
        device_.wait();
        for (std::size_t i = 0; i < all.size(); ++i)
            take(i, std::span(reinterpret_cast<std::uint32_t const*>(host_results_.get() + result_offsets_[i]),
                              count(all[i])));
    }

    device_session const& device_;
    std::vector<zenflow_matrix> const& matrices_;
    std::vector<device_arrays> const& arrays_;
    std::vector<grad_squares> squares_;
    std::vector<std::uint8_t> recorded_;
    std::unique_ptr<device_part> whole_; // all gradients
    device_ptr results_;                 // results of column scoring
    // The same in pinned memory: a copy to other memory would block until the device reaches it, without a timeout.
    std::shared_ptr<std::byte> host_results_;
    std::size_t result_bytes_ = 0;
    std::vector<std::size_t> result_offsets_; // of each param, in bytes
};

} // namespace detail
ADAMANT_END_NAMESPACE
