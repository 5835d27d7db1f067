// SPDX-License-Identifier: Apache-2.0
// What is stepped at once, on a device: selected columns and vectors have their masters and moments there, and nowhere
// else, from one selection to the next. Gradients and weights are made and wanted there, by rows.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <adamant/core/error.hpp>
#include <adamant/device/device.hpp>
#include <adamant/numerics/squares_total.hpp>
#include <adamant/zenflow/zenflow_matrix.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// What a param has on the device at the moment, in the order of its list.
struct resident {
    std::vector<std::uint32_t> const* list; // of columns
    std::vector<std::uint32_t> const* step_of;
    std::size_t steps; // how many different ones there are
    bool by_chance;    // something is rounded by chance, which goes by the place in the param
};

class device_home {
public:
    // Claims the device for `owner`. matrices: of every param; a vector is one column. Throws as device::allocate()
    // does.
    device_home(std::shared_ptr<adamant::device> on, void const* owner, std::vector<zenflow_matrix> const& matrices,
                std::vector<device_arrays> const& arrays, double timeout_s)
        : on_(std::move(on)), owner_(owner), matrices_(matrices), arrays_(arrays), timeout_s_(timeout_s)
    {
        on_->claim(owner_);
        try {
            std::size_t bytes = 0;
            for (std::size_t i = 0; i < matrices_.size(); ++i) {
                staged_.push_back(bytes);
                if (columns(i) != 0)
                    bytes += aligned(matrices_[i].size() * weight_bytes(i));
                lists_.push_back(bytes);
                bytes += aligned(std::max<std::size_t>(1, columns(i)) * sizeof(std::uint32_t));
            }
            staging_ = on_->allocate(bytes);
            bytes = 0;
            std::vector<std::uint8_t> const all(matrices_.size(), std::uint8_t{1});
            for (std::size_t i = 0; i < matrices_.size(); ++i) {
                results_at_.push_back(bytes);
                column_scoring const one = scoring_of(i, all);
                bytes += aligned(std::max(one.largest_pieces(), one.scores()) * sizeof(std::uint32_t));
            }
            results_ = on_->allocate(bytes);
            landing_lists_.resize(matrices_.size());
            std::vector<device_piece> whole;
            for (std::size_t i = 0; i < matrices_.size(); ++i) {
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
            gradients_ = on_->make_part(std::move(whole), false);
        } catch (...) {
            gradients_.reset();
            on_->release(staging_);
            on_->release(results_);
            on_->leave(owner_);
            throw;
        }
    }
    device_home(device_home const&) = delete;
    device_home& operator=(device_home const&) = delete;
    ~device_home()
    {
        (void)on_->reset(deadline());
        drop();
        gradients_.reset();
        on_->release(staging_);
        on_->release(results_);
        on_->leave(owner_);
    }

    [[nodiscard]] adamant::device& device() const noexcept { return *on_; }
    [[nodiscard]] bool has_state() const noexcept { return part_ != nullptr; }

    // ---- Gradients

    // The param's gradient is there: its squares are taken. It comes down by bring_down().
    void submit(std::size_t param)
    {
        group_step const none{};
        std::uint32_t const piece[] = {static_cast<std::uint32_t>(param)};
        std::vector<std::uint8_t> const not_summed(matrices_.size());
        if (matrices_[param].shard().size() != 0)
            gradients_->run({.pass = block_pass::measure,
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
    // All gradients that were submitted are down; adds up their squares. present: a flag for each param.
    [[nodiscard]] squares_total squares(std::vector<std::uint8_t> const& present)
    {
        gradients_->fetch(squares_, recorded_);
        wait();
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
                    scores[first + k % columns(i)] += found[k];
                first += columns(i);
            });
    }

    // ---- State

    // What is resident goes up. Throws as device::allocate() does, and device_error; then nothing is there.
    void send(std::vector<resident> const& all)
    {
        drop();
        std::vector<device_piece> pieces;
        std::size_t bytes = 0;
        std::size_t steps = 0;
        residents_.clear();
        auto const take = [&](std::size_t some) { return std::exchange(bytes, bytes + aligned(some)); };
        for (std::size_t i = 0; i < all.size(); ++i) {
            offload_shard const& s = matrices_[i].shard();
            place_of_resident r;
            r.list = *all[i].list;
            r.first_step = steps;
            steps += all[i].steps;
            r.pitch = (rows(i) + quantized_group_elems - 1) / quantized_group_elems * quantized_group_elems;
            std::size_t const elems = r.list.size() * r.pitch;
            for (shard_array::index const which : state_arrays)
                r.at[which] = take(s.bytes(which, elems));
            r.at[shard_array::grad] = take(columns(i) == 0 ? 0 : s.bytes(shard_array::grad, elems));
            r.list_at = take(r.list.size() * sizeof(std::uint32_t));
            residents_.push_back(std::move(r));
        }
        try {
            memory_ = on_->allocate(bytes);
            image_ = bytes == 0 ? nullptr : on_->pinned(bytes);
            image_bytes_ = bytes;
            copy_image(true);
            on_->copy_up(memory_, image_.get(), bytes);
            for (std::size_t i = 0; i < all.size(); ++i)
                add_pieces(i, all[i], pieces);
            on_->follow(device_lane::work, on_->mark(device_lane::up));
            part_ = on_->make_part(std::move(pieces), true);
            part_->forget_records();
            wait();
        } catch (...) {
            settle(); // what is enqueued uses what drop() gives back
            drop();
            throw;
        }
    }
    // The state comes home, into the host's arrays; and stays here.
    void bring_home()
    {
        if (part_ == nullptr)
            return;
        on_->follow(device_lane::down, on_->mark(device_lane::work));
        on_->copy_down(image_.get(), memory_, image_bytes_);
        wait();
        copy_image(false);
    }
    void drop() noexcept
    {
        part_.reset();
        on_->release(memory_);
        memory_ = {};
        image_.reset();
        residents_.clear();
    }

    // ---- A step

    // Everything resident whose param is present is stepped, with a record, and its weights are made. steps: by param
    // and then as resident::step_of. Waits. Where it throws device_error, take_back().
    // is_new: what is resident has just been sent, and the weights of all of it are made.
    void step(std::vector<group_step> const& steps, std::vector<std::uint8_t> const& present, bool is_new)
    {
        part_->forget_records();
        steps_ = steps;
        std::vector<std::uint32_t> pieces;
        for (std::size_t p = 0; p < param_of_piece_.size(); ++p)
            if (present[param_of_piece_[p]] != 0)
                pieces.push_back(static_cast<std::uint32_t>(p));
        for (std::size_t i = 0; i < residents_.size(); ++i)
            if (present[i] != 0 && columns(i) != 0)
                on_->gather_columns(columns_of(i, shard_array::grad, arrays_[i].grad));
        run(block_pass::speculate, pieces);
        for (std::size_t i = 0; i < residents_.size(); ++i)
            if (present[i] != 0 || is_new)
                send_weights(i);
        wait();
        part_->forget_records(); // this step cannot be taken back any more
    }
    // After a failure: once what runs on it has ended. False where the device does not answer.
    [[nodiscard]] bool come_back() noexcept { return on_->reset(deadline()); }
    // Back to before step(), as far as it got. False where the device does not answer.
    [[nodiscard]] bool take_back() noexcept
    {
        if (!come_back())
            return false;
        if (part_ == nullptr)
            return true;
        try {
            std::vector<std::uint32_t> pieces(param_of_piece_.size());
            for (std::size_t p = 0; p < pieces.size(); ++p)
                pieces[p] = static_cast<std::uint32_t>(p);
            run(block_pass::undo, pieces);
            for (std::size_t i = 0; i < residents_.size(); ++i)
                send_weights(i);
            wait();
            return true;
        } catch (...) {
            (void)on_->reset(std::chrono::steady_clock::now());
            return false;
        }
    }

    // ---- Weights

    // What a matrix has by columns goes up beside the weights in use. From any thread; enqueues.
    void stage(std::size_t param)
    {
        zenflow_matrix const& m = matrices_[param];
        on_->copy_up(staging_ + staged_[param], m.shard().data(m.weights_source()), m.size() * weight_bytes(param));
    }
    // Those of these columns come into use, when all that was staged is there. Enqueues.
    void land(std::size_t param, std::vector<std::uint32_t> const& columns)
    {
        if (columns.empty())
            return;
        landing_lists_[param] = columns;
        device_ptr const list = staging_ + lists_[param];
        on_->copy_up(list, landing_lists_[param].data(), columns.size() * sizeof(std::uint32_t));
        on_->follow(device_lane::work, on_->mark(device_lane::up));
        zenflow_matrix const& m = matrices_[param];
        column_copy what;
        what.by_rows = arrays_[param].weight_out;
        what.by_columns = staging_ + staged_[param];
        what.own_places = true;
        what.list = list;
        what.rows = what.pitch = m.rows();
        what.columns = m.columns();
        what.count = columns.size();
        what.elem_bytes = weight_bytes(param);
        on_->scatter_columns(what);
    }
    // All weights by rows, to host memory and from there; waits.
    void copy_weights(std::size_t param, bool home)
    {
        zenflow_matrix const& m = matrices_[param];
        bool const vector = columns(param) == 0;
        std::byte* const at = vector ? m.shard().data(m.weights_source()) : m.weights();
        std::size_t const bytes = m.shard().size() * weight_bytes(param);
        if (home && vector)
            return; // bring_home() has
        if (home)
            on_->copy_down(at, arrays_[param].weight_out, bytes);
        else
            on_->copy_up(arrays_[param].weight_out, at, bytes);
    }
    void wait()
    {
        for (device_lane const lane : {device_lane::up, device_lane::work, device_lane::down})
            if (!on_->wait_until(on_->mark(lane), deadline()))
                throw_device_error({on_->name(), " has not finished what is in its lane '", adamant::name(lane),
                                    "' within ", timeout_s_, " s"});
    }

private:
    [[nodiscard]] column_scoring scoring_of(std::size_t i, std::vector<std::uint8_t> const& present) const noexcept
    {
        column_scoring what;
        if (present[i] == 0 || columns(i) == 0)
            return what;
        what.grad = arrays_[i].grad;
        what.type = matrices_[i].shard().type(shard_array::grad);
        what.rows = rows(i);
        what.columns = columns(i);
        what.result = results_ + results_at_[i];
        return what;
    }
    // What the device has found for each matrix comes down.
    template <class Count, class Take>
    void fetch_results(std::vector<column_scoring> const& all, Count const& count, Take const& take)
    {
        on_->follow(device_lane::down, on_->mark(device_lane::work));
        std::vector<std::vector<std::uint32_t>> found(all.size());
        try {
            for (std::size_t i = 0; i < all.size(); ++i) {
                found[i].resize(count(all[i]));
                on_->copy_down(found[i].data(), all[i].result, found[i].size() * sizeof(std::uint32_t));
            }
            wait();
        } catch (...) {
            settle(); // or something could still be written to `found`
            throw;
        }
        for (std::size_t i = 0; i < all.size(); ++i)
            take(i, std::span<std::uint32_t const>(found[i]));
    }
    // Nothing goes on any more.
    void settle() noexcept
    {
        try {
            wait();
        } catch (...) {
            (void)come_back();
        }
    }
    struct place_of_resident {
        std::vector<std::uint32_t> list;
        std::size_t first_step = 0;
        std::size_t pitch = 0;  // elements from column to column
        std::size_t at[6] = {}; // in memory_
        std::size_t list_at = 0;
    };

    static constexpr std::size_t aligned(std::size_t bytes) noexcept { return (bytes + 255) / 256 * 256; }
    [[nodiscard]] std::size_t columns(std::size_t param) const noexcept { return matrices_[param].columns(); }
    [[nodiscard]] std::size_t rows(std::size_t param) const noexcept
    {
        return columns(param) == 0 ? matrices_[param].shard().size() : matrices_[param].rows();
    }
    [[nodiscard]] std::size_t weight_bytes(std::size_t param) const noexcept
    {
        return size_bytes(matrices_[param].weights_type());
    }
    [[nodiscard]] std::chrono::steady_clock::time_point deadline() const
    {
        return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                      std::chrono::duration<double>(timeout_s_));
    }
    // Between the image and the host's arrays.
    void copy_image(bool up) noexcept
    {
        for (std::size_t i = 0; i < residents_.size(); ++i) {
            place_of_resident const& r = residents_[i];
            offload_shard const& s = matrices_[i].shard();
            for (std::size_t k = 0; k < r.list.size(); ++k) {
                for (shard_array::index const which : state_arrays) {
                    if (s.type(which) == dtype::none || rows(i) == 0)
                        continue;
                    std::byte* const here = s.data(which) + s.bytes(which, r.list[k] * rows(i));
                    std::byte* const there = image_.get() + r.at[which] + s.bytes(which, k * r.pitch);
                    std::memcpy(up ? there : here, up ? here : there, s.bytes(which, rows(i)));
                }
                if (up)
                    std::memcpy(image_.get() + r.list_at + k * sizeof r.list[k], &r.list[k], sizeof r.list[k]);
            }
        }
    }
    // Columns of one step that lie beside one another are one piece; by chance only where the param has them so, too.
    void add_pieces(std::size_t i, resident const& what, std::vector<device_piece>& pieces)
    {
        place_of_resident const& r = residents_[i];
        zenflow_matrix const& m = matrices_[i];
        offload_shard const& s = m.shard();
        bool const whole = r.pitch == rows(i) && (!what.by_chance || m.all_rows() == rows(i));
        if (pieces.empty())
            param_of_piece_.clear();
        for (std::size_t k = 0, end = 0; k < r.list.size() && rows(i) != 0; k = end) {
            std::uint32_t const step = (*what.step_of)[r.list[k]];
            for (end = k + 1; end < r.list.size() && whole && (*what.step_of)[r.list[end]] == step &&
                              (!what.by_chance || r.list[end] == r.list[end - 1] + 1);)
                ++end;
            device_piece piece;
            for (shard_array::index const which : state_arrays)
                if (s.type(which) != dtype::none)
                    piece.arrays[which] = memory_ + r.at[which] + s.bytes(which, k * r.pitch);
            piece.arrays[shard_array::grad] =
                columns(i) == 0 ? arrays_[i].grad
                                : memory_ + r.at[shard_array::grad] + s.bytes(shard_array::grad, k * r.pitch);
            std::copy(s.format().types.begin(), s.format().types.end(), piece.types);
            piece.elems = (end - k - 1) * r.pitch + rows(i);
            piece.group = r.first_step + step;
            piece.place = {s.place(0).param,
                           columns(i) == 0 ? s.place(0).begin : r.list[k] * m.all_rows() + m.first_row()};
            piece.format = &s.format();
            pieces.push_back(piece);
            param_of_piece_.push_back(i);
        }
    }
    [[nodiscard]] column_copy columns_of(std::size_t i, shard_array::index which, device_ptr by_rows) const noexcept
    {
        place_of_resident const& r = residents_[i];
        column_copy what;
        what.by_rows = by_rows;
        what.by_columns = memory_ + r.at[which];
        what.list = memory_ + r.list_at;
        what.rows = rows(i);
        what.columns = std::max<std::size_t>(1, columns(i));
        what.count = r.list.size();
        what.pitch = r.pitch;
        what.elem_bytes = size_bytes(matrices_[i].shard().type(which));
        return what;
    }
    void send_weights(std::size_t i)
    {
        on_->scatter_columns(columns_of(i, matrices_[i].weights_source(), arrays_[i].weight_out));
    }
    void run(block_pass pass, std::vector<std::uint32_t> const& pieces)
    {
        std::vector<std::uint8_t> const not_summed(param_of_piece_.size());
        if (!pieces.empty())
            part_->run({.pass = pass, .pieces = pieces, .speculated = steps_, .settled = steps_, .summed = not_summed});
    }

    std::shared_ptr<adamant::device> on_;
    void const* owner_;
    std::vector<zenflow_matrix> const& matrices_;
    std::vector<device_arrays> const arrays_; // of each param
    double timeout_s_;
    device_ptr staging_; // weights by columns that wait to land, and lists of columns
    std::vector<std::size_t> staged_, lists_;
    device_ptr results_; // of scores
    std::vector<std::size_t> results_at_;
    std::vector<std::vector<std::uint32_t>> landing_lists_; // until they are up
    std::vector<std::size_t> first_block_;
    std::vector<grad_squares> squares_;
    std::vector<std::uint8_t> recorded_;
    std::unique_ptr<device_part> gradients_;
    // What is resident.
    device_ptr memory_;
    std::shared_ptr<std::byte> image_; // of it, in host memory
    std::size_t image_bytes_ = 0;
    std::vector<place_of_resident> residents_;
    std::vector<std::size_t> param_of_piece_;
    std::vector<group_step> steps_;
    std::unique_ptr<device_part> part_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
