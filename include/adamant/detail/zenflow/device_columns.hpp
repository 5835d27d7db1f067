// SPDX-License-Identifier: Apache-2.0
// What is updated every step, on a device: selected columns and vectors have their masters and moments there, and
// nowhere else, from one selection to the next. Gradients and weights are made and wanted there, by rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <adamant/device.hpp>
#include <adamant/error.hpp>
#include <adamant/detail/zenflow/device_gradients.hpp>
#include <adamant/detail/zenflow/device_with_deadline.hpp>
#include <adamant/detail/zenflow/zenflow_matrix.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// What a param has on the device at the moment, in the order of its list.
struct resident {
    std::vector<std::uint32_t> const* list; // of columns
    std::vector<std::uint32_t> const* step_of;
    std::size_t steps; // how many different ones there are
    bool stochastic;   // something is rounded stochastically, which goes by the place in the param
};

class device_columns {
public:
    // Claims the device for `owner`. matrices: of every param; a vector is one column. Throws as device::allocate()
    // does.
    device_columns(std::shared_ptr<adamant::device> on, void const* owner, std::vector<zenflow_matrix> const& matrices,
                   std::vector<device_arrays> const& arrays, double timeout_s)
        : on_(std::move(on), timeout_s), owner_(owner), matrices_(matrices), arrays_(arrays)
    {
        on_->claim(owner_);
        try {
            std::size_t bytes = 0;
            for (std::size_t i = 0; i < matrices_.size(); ++i) {
                staged_.push_back(bytes);
                if (columns(i) != 0)
                    bytes += device_aligned(matrices_[i].size() * weight_bytes(i));
                lists_.push_back(bytes);
                bytes += device_aligned(std::max<std::size_t>(1, columns(i)) * sizeof(std::uint32_t));
            }
            staging_ = on_->allocate(bytes);
            publishing_lists_.resize(matrices_.size());
            gradients_.emplace(on_, matrices_, arrays_);
        } catch (...) {
            gradients_.reset();
            on_->release(staging_);
            on_->leave(owner_);
            throw;
        }
    }
    device_columns(device_columns const&) = delete;
    device_columns& operator=(device_columns const&) = delete;
    ~device_columns()
    {
        (void)on_.come_back();
        drop();
        gradients_.reset();
        on_->release(staging_);
        on_->leave(owner_);
    }

    [[nodiscard]] adamant::device& device() const noexcept { return *on_; }
    [[nodiscard]] device_gradients& gradients() noexcept { return *gradients_; }
    [[nodiscard]] bool has_state() const noexcept { return part_ != nullptr; }

    // ---- State

    // What is resident goes up. Throws as device::allocate() does, and device_error; then nothing is there.
    void send(std::vector<resident> const& all)
    {
        drop();
        std::vector<device_piece> pieces;
        std::size_t bytes = 0;
        std::size_t steps = 0;
        residents_.clear();
        auto const take = [&](std::size_t some) { return std::exchange(bytes, bytes + device_aligned(some)); };
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
            on_->wait_event(device_stream::work, on_->record_event(device_stream::up));
            part_ = on_->make_part(std::move(pieces), true);
            part_->forget_records();
            wait();
        } catch (...) {
            on_.settle(); // what is enqueued uses what drop() gives back
            drop();
            throw;
        }
    }
    // The state is copied back to the host, into the host's arrays; and stays here.
    void copy_to_host()
    {
        if (part_ == nullptr)
            return;
        on_->wait_event(device_stream::down, on_->record_event(device_stream::work));
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
    // and then as resident::step_of. Waits. Where it throws device_error, roll_back().
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
        part_->forget_records(); // this step cannot be rolled back any more
    }
    // Back to before step(), as far as it got. False where the device does not answer.
    [[nodiscard]] bool roll_back() noexcept
    {
        if (!come_back())
            return false;
        if (part_ == nullptr)
            return true;
        try {
            std::vector<std::uint32_t> pieces(param_of_piece_.size());
            for (std::size_t p = 0; p < pieces.size(); ++p)
                pieces[p] = static_cast<std::uint32_t>(p);
            run(block_pass::rollback, pieces);
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

    // What a matrix has by columns goes up beside the weights in use. From any thread; enqueues. Returns a number for
    // is_staged().
    [[nodiscard]] std::uint64_t stage(std::size_t param)
    {
        std::uint64_t const number = on_.resets();
        zenflow_matrix const& m = matrices_[param];
        on_->copy_up(staging_ + staged_[param], m.shard().data(m.weights_source()), m.size() * weight_bytes(param));
        return number;
    }
    // Whether that copy is on its way, or there: a reset may have dropped it.
    [[nodiscard]] bool is_staged(std::uint64_t number) const noexcept { return number == on_.resets(); }
    // Those of these columns come into use, when all that was staged is there. Enqueues.
    void flush(std::size_t param, std::vector<std::uint32_t> const& columns)
    {
        if (columns.empty())
            return;
        publishing_lists_[param] = columns;
        device_ptr const list = staging_ + lists_[param];
        on_->copy_up(list, publishing_lists_[param].data(), columns.size() * sizeof(std::uint32_t));
        on_->wait_event(device_stream::work, on_->record_event(device_stream::up));
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
            return; // copy_to_host() has
        if (home)
            on_->copy_down(at, arrays_[param].weight_out, bytes);
        else
            on_->copy_up(arrays_[param].weight_out, at, bytes);
    }
    void wait() { on_.wait(); }
    void settle() noexcept { on_.settle(); }
    [[nodiscard]] bool come_back() noexcept { return on_.come_back(); }

private:
    struct place_of_resident {
        std::vector<std::uint32_t> list;
        std::size_t first_step = 0;
        std::size_t pitch = 0;  // elements from column to column
        std::size_t at[6] = {}; // in memory_
        std::size_t list_at = 0;
    };

    [[nodiscard]] std::size_t columns(std::size_t param) const noexcept { return matrices_[param].columns(); }
    [[nodiscard]] std::size_t rows(std::size_t param) const noexcept
    {
        return columns(param) == 0 ? matrices_[param].shard().size() : matrices_[param].rows();
    }
    [[nodiscard]] std::size_t weight_bytes(std::size_t param) const noexcept
    {
        return size_bytes(matrices_[param].weights_type());
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
    // Columns of one step that lie beside one another are one piece; stochastically only where the param has them so,
    // too.
    void add_pieces(std::size_t i, resident const& what, std::vector<device_piece>& pieces)
    {
        place_of_resident const& r = residents_[i];
        zenflow_matrix const& m = matrices_[i];
        offload_shard const& s = m.shard();
        bool const whole = r.pitch == rows(i) && (!what.stochastic || m.all_rows() == rows(i));
        if (pieces.empty())
            param_of_piece_.clear();
        for (std::size_t k = 0, end = 0; k < r.list.size() && rows(i) != 0; k = end) {
            std::uint32_t const step = (*what.step_of)[r.list[k]];
            for (end = k + 1; end < r.list.size() && whole && (*what.step_of)[r.list[end]] == step &&
                              (!what.stochastic || r.list[end] == r.list[end - 1] + 1);)
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

    device_with_deadline on_;
    void const* owner_;
    std::vector<zenflow_matrix> const& matrices_;
    std::vector<device_arrays> const arrays_; // of each param
    device_ptr staging_;                      // weights by columns that wait to be published, and lists of columns
    std::vector<std::size_t> staged_, lists_;
    std::vector<std::vector<std::uint32_t>> publishing_lists_; // until they are up
    std::optional<device_gradients> gradients_;
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
