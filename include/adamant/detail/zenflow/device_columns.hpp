// SPDX-License-Identifier: Apache-2.0
// Immediate updates on a device: selected columns and vectors keep their master weights and moments only on the device
// from one selection to the next. Gradients and weights are there, too, stored by rows. A device that shares the host's
// memory updates columns in the shards' arrays if these are aligned.
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
#include <adamant/detail/device/device_session.hpp>
#include <adamant/detail/engine/step_plan.hpp>
#include <adamant/detail/zenflow/device_gradients.hpp>
#include <adamant/detail/zenflow/zenflow_model.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

enum class copy_direction { upload, download };

class device_columns {
public:
    // matrices: one for each param; a vector is one column. Throws as device::claim() and device::allocate().
    device_columns(std::shared_ptr<adamant::device> target, std::vector<zenflow_matrix> const& matrices,
                   std::vector<device_arrays> arrays, double timeout_s)
        : device_(std::move(target), timeout_s), matrices_(matrices), arrays_(std::move(arrays))
    {
        try {
            std::size_t bytes = 0;
            for (std::size_t i = 0; i < matrices_.size(); ++i) {
                staged_.push_back(bytes);
                if (columns(i) != 0)
                    bytes += device_aligned(matrices_[i].size() * weight_bytes(i));
                lists_.push_back(bytes);
                bytes += device_aligned(std::max<std::size_t>(1, columns(i)) * sizeof(std::uint32_t));
            }
            staging_ = device_->allocate(bytes);
            gradients_.emplace(device_, matrices_, arrays_);
        } catch (...) {
            (void)device_.stop(); // clears a failure of work that was enqueued
            device_->release(staging_);
            throw;
        }
    }
    device_columns(device_columns const&) = delete;
    device_columns& operator=(device_columns const&) = delete;
    ~device_columns()
    {
        (void)device_.stop();
        drop();
        gradients_.reset();
        device_->release(staging_);
    }

    [[nodiscard]] adamant::device& device() const noexcept { return *device_; }
    [[nodiscard]] device_gradients& gradients() noexcept { return *gradients_; }
    [[nodiscard]] bool has_state() const noexcept { return part_ != nullptr; }

    // ---- State

    // Uploads the state of the listed columns of all params, the residents. Throws as device::allocate(), and
    // device_error; then the device has no state.
    void send(std::vector<zenflow_param_state> const& all)
    {
        drop();
        std::vector<device_piece> pieces;
        std::size_t bytes = 0;
        std::size_t steps = 0;
        residents_.clear();
        auto const reserve = [&](std::size_t size) { return std::exchange(bytes, bytes + device_aligned(size)); };
        for (std::size_t i = 0; i < all.size(); ++i) {
            offload_shard const& s = matrices_[i].shard();
            resident_layout r;
            r.list = all[i].plan.list;
            r.first_step = steps;
            steps += all[i].plan.steps.size();
            r.in_place = can_share(i) && !is_tracked(i, r.list);
            r.pitch = r.in_place
                          ? rows(i)
                          : (rows(i) + quantized_group_elems - 1) / quantized_group_elems * quantized_group_elems;
            std::size_t const elems = r.list.size() * r.pitch;
            for (shard_array::index const which : state_arrays)
                r.offset[which] = r.in_place ? 0 : reserve(s.bytes(which, elems));
            r.offset[shard_array::grad] = reserve(columns(i) == 0 ? 0 : s.bytes(shard_array::grad, elems));
            r.list_offset = reserve(r.list.size() * sizeof(std::uint32_t));
            residents_.push_back(std::move(r));
        }
        try {
            memory_ = device_->allocate(bytes);
            image_ = bytes == 0 ? nullptr : device_->pinned(bytes);
            image_bytes_ = bytes;
            copy_image(copy_direction::upload);
            device_->copy_up(memory_, image_.get(), bytes);
            for (std::size_t i = 0; i < all.size(); ++i)
                add_pieces(i, all[i].plan.step_of, pieces);
            device_->wait_event(device_stream::work, device_->record_event(device_stream::up));
            part_ = device_->make_part(std::move(pieces), true);
            part_->forget_records();
            wait();
        } catch (...) {
            device_.settle(); // enqueued work uses the memory that drop() frees
            drop();
            throw;
        }
    }
    // Copies the state to the host's arrays, and keeps it on the device.
    void copy_to_host()
    {
        if (part_ == nullptr)
            return;
        if (std::all_of(residents_.begin(), residents_.end(), [](resident_layout const& r) { return r.in_place; }))
            return wait();
        device_->wait_event(device_stream::down, device_->record_event(device_stream::work));
        device_->copy_down(image_.get(), memory_, image_bytes_);
        wait();
        copy_image(copy_direction::download);
    }
    void drop() noexcept
    {
        part_.reset();
        device_->release(memory_);
        memory_ = {};
        image_.reset();
        residents_.clear();
    }

    // ---- A step

    // Steps the residents of each param that takes part, with records, and writes their weights. is_new: the residents
    // were just sent, so this writes the weights of all of them. Waits. If it throws device_error, call roll_back().
    void step(std::vector<zenflow_param_state> const& all, std::vector<shard_in_step> const& in_step, bool is_new)
    {
        std::vector<group_step> steps;
        for (zenflow_param_state const& state : all)
            steps.insert(steps.end(), state.plan.steps.begin(), state.plan.steps.end());
        part_->forget_records();
        steps_ = std::move(steps);
        std::vector<std::uint32_t> pieces;
        for (std::size_t p = 0; p < param_of_piece_.size(); ++p)
            if (takes_part(in_step[param_of_piece_[p]]))
                pieces.push_back(static_cast<std::uint32_t>(p));
        for (std::size_t i = 0; i < residents_.size(); ++i)
            if (takes_part(in_step[i]) && columns(i) != 0)
                device_->gather_columns(columns_of(i, shard_array::grad, arrays_[i].grad));
        run(block_pass::speculate, pieces);
        auto const publishes = [&](std::size_t i) { return takes_part(in_step[i]) || is_new; };
        for (std::size_t i = 0; i < residents_.size(); ++i) {
            if (publishes(i))
                send_weights(i);
            if (publishes(i) && is_tracked(i))
                download_weights(i);
        }
        wait();
        part_->forget_records(); // the step is complete
        for (std::size_t i = 0; i < residents_.size(); ++i)
            if (publishes(i) && is_tracked(i))
                copy_weights_to_host(i);
    }
    // Rolls back step(), even if it ran partly. Returns false if the device does not answer.
    [[nodiscard]] bool roll_back() noexcept
    {
        if (!stop())
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
            device_.drop_work();
            return false;
        }
    }

    // ---- Weights

    // Enqueues the upload of a matrix's weights by columns to staging memory, beside the weights in use. Thread-safe.
    // Returns a number for is_staged().
    [[nodiscard]] std::uint64_t stage(std::size_t param)
    {
        std::uint64_t const number = device_->resets();
        zenflow_matrix const& m = matrices_[param];
        device_->copy_up(staging_ + staged_[param], m.shard().data(m.weights_source()), m.size() * weight_bytes(param));
        return number;
    }
    // Whether that copy is enqueued or complete. A reset may have dropped it.
    [[nodiscard]] bool is_staged(std::uint64_t number) const noexcept { return number == device_->resets(); }
    // Enqueues the copy of these columns from staging memory to the weights in use. `columns` must live until
    // wait() has returned.
    void flush(std::size_t param, std::vector<std::uint32_t> const& columns)
    {
        if (columns.empty())
            return;
        device_ptr const list = staging_ + lists_[param];
        device_->copy_up(list, columns.data(), columns.size() * sizeof(std::uint32_t));
        device_->wait_event(device_stream::work, device_->record_event(device_stream::up));
        zenflow_matrix const& m = matrices_[param];
        column_copy copy;
        copy.by_rows = arrays_[param].weight_out;
        copy.by_columns = staging_ + staged_[param];
        copy.indexed = true;
        copy.list = list;
        copy.rows = copy.pitch = m.rows();
        copy.columns = m.columns();
        copy.count = columns.size();
        copy.elem_bytes = weight_bytes(param);
        device_->scatter_columns(copy);
    }
    // Copies the weights of all params by rows between host memory and the device. Waits.
    void copy_weights(copy_direction direction)
    {
        try {
            for (std::size_t i = 0; i < matrices_.size(); ++i) {
                std::byte* const host = matrices_[i].published();
                std::size_t const bytes = matrices_[i].shard().size() * weight_bytes(i);
                if (direction == copy_direction::upload)
                    device_->copy_up(arrays_[i].weight_out, host, bytes);
                else if (columns(i) != 0) // copy_to_host() has copied a vector's
                    device_->copy_down(host, arrays_[i].weight_out, bytes);
            }
            wait();
        } catch (...) {
            device_.settle(); // no copy may use the caller's arrays any more
            throw;
        }
    }
    void wait() { device_.wait(); }
    [[nodiscard]] bool stop() noexcept { return device_.stop(); }

private:
    struct resident_layout {
        std::vector<std::uint32_t> list;
        std::size_t first_step = 0;
        bool in_place = false;      // state is in the shard's arrays
        std::size_t pitch = 0;      // elements from column to column
        std::size_t offset[6] = {}; // in memory_
        std::size_t list_offset = 0;
    };

    [[nodiscard]] std::size_t columns(std::size_t param) const noexcept { return matrices_[param].columns(); }
    [[nodiscard]] std::size_t rows(std::size_t param) const noexcept { return matrices_[param].state_rows(); }
    [[nodiscard]] std::size_t weight_bytes(std::size_t param) const noexcept
    {
        return size_bytes(matrices_[param].weights_type());
    }
    // Copies from the host's arrays to the image of the device memory before an upload, and back after a download.
    void copy_image(copy_direction direction) noexcept
    {
        bool const to_image = direction == copy_direction::upload;
        for (std::size_t i = 0; i < residents_.size(); ++i) {
            resident_layout const& r = residents_[i];
            offload_shard const& s = matrices_[i].shard();
            for (std::size_t k = 0; k < r.list.size(); ++k) {
                for (shard_array::index const which : state_arrays) {
                    if (s.type(which) == dtype::none || rows(i) == 0 || r.in_place)
                        continue;
                    std::byte* const host = s.data(which) + s.bytes(which, r.list[k] * rows(i));
                    std::byte* const image = image_.get() + r.offset[which] + s.bytes(which, k * r.pitch);
                    std::memcpy(to_image ? image : host, to_image ? host : image, s.bytes(which, rows(i)));
                }
                if (to_image)
                    std::memcpy(image_.get() + r.list_offset + k * sizeof r.list[k], &r.list[k], sizeof r.list[k]);
            }
        }
    }
    // Whether passes can use the shard's state: every column is aligned in memory.
    [[nodiscard]] bool can_share(std::size_t i) const noexcept
    {
        offload_shard const& s = matrices_[i].shard();
        bool shared = device_->shares_host_memory() &&
                      (columns(i) == 0 || s.bytes(shard_array::grad, rows(i)) % device_piece::alignment == 0);
        for (shard_array::index const which : state_arrays)
            if (s.type(which) != dtype::none)
                shared = shared && reinterpret_cast<std::uintptr_t>(s.data(which)) % device_piece::alignment == 0 &&
                         (columns(i) == 0 || s.bytes(which, rows(i)) % device_piece::alignment == 0);
        return shared;
    }
    // The address of the state of the listed column k.
    [[nodiscard]] device_ptr state_of(std::size_t i, shard_array::index which, std::size_t k) const noexcept
    {
        resident_layout const& r = residents_[i];
        offload_shard const& s = matrices_[i].shard();
        if (r.in_place)
            return {reinterpret_cast<std::uintptr_t>(s.data(which) + s.bytes(which, r.list[k] * rows(i)))};
        return memory_ + r.offset[which] + s.bytes(which, k * r.pitch);
    }
    // Merges listed columns of the same step into one piece. They must be adjacent in the param if the device uses the
    // shard's arrays, or if their types may be rounded stochastically, which depends on the position in the param.
    void add_pieces(std::size_t i, std::vector<std::uint32_t> const& step_of, std::vector<device_piece>& pieces)
    {
        resident_layout const& r = residents_[i];
        zenflow_matrix const& m = matrices_[i];
        offload_shard const& s = m.shard();
        bool const by_position = rounds_stochastically(s.format().types, {.exp_avg_sq = true, .param = true});
        bool const whole = r.pitch == rows(i) && (!by_position || m.all_rows() == rows(i));
        if (pieces.empty())
            param_of_piece_.clear();
        for (std::size_t k = 0, end = 0; k < r.list.size() && rows(i) != 0; k = end) {
            std::uint32_t const step = step_of[r.list[k]];
            for (end = k + 1; end < r.list.size() && whole && step_of[r.list[end]] == step &&
                              ((!by_position && !r.in_place) || r.list[end] == r.list[end - 1] + 1);)
                ++end;
            device_piece piece;
            for (shard_array::index const which : state_arrays)
                if (s.type(which) != dtype::none)
                    piece.arrays[which] = state_of(i, which, k);
            piece.arrays[shard_array::grad] =
                columns(i) == 0 ? arrays_[i].grad
                                : memory_ + r.offset[shard_array::grad] + s.bytes(shard_array::grad, k * r.pitch);
            std::copy(s.format().types.begin(), s.format().types.end(), piece.types);
            piece.elems = (end - k - 1) * r.pitch + rows(i);
            piece.group = r.first_step + step;
            piece.position = {s.position(0).param,
                              columns(i) == 0 ? s.position(0).begin : r.list[k] * m.all_rows() + m.first_row()};
            piece.format = &s.format();
            pieces.push_back(piece);
            param_of_piece_.push_back(i);
        }
    }
    [[nodiscard]] column_copy columns_of(std::size_t i, shard_array::index which, device_ptr by_rows) const noexcept
    {
        resident_layout const& r = residents_[i];
        column_copy copy;
        copy.by_rows = by_rows;
        copy.by_columns = memory_ + r.offset[which];
        copy.list = memory_ + r.list_offset;
        copy.rows = rows(i);
        copy.columns = std::max<std::size_t>(1, columns(i));
        copy.count = r.list.size();
        copy.pitch = r.pitch;
        copy.elem_bytes = size_bytes(matrices_[i].shard().type(which));
        return copy;
    }
    // If changed weights are tracked, the weights in host memory are always those on the device, and are compared.
    [[nodiscard]] bool is_tracked(std::size_t i) const noexcept { return is_tracked(i, residents_[i].list); }
    [[nodiscard]] bool is_tracked(std::size_t i, std::vector<std::uint32_t> const& list) const noexcept
    {
        return matrices_[i].shard().changed() != nullptr && rows(i) != 0 && !list.empty();
    }
    void download_weights(std::size_t i)
    {
        resident_layout const& r = residents_[i];
        shard_array::index const source = matrices_[i].weights_source();
        device_->wait_event(device_stream::down, device_->record_event(device_stream::work));
        device_->copy_down(image_.get() + r.offset[source], memory_ + r.offset[source],
                           matrices_[i].shard().bytes(source, r.list.size() * r.pitch));
    }
    void copy_weights_to_host(std::size_t i) const noexcept
    {
        resident_layout const& r = residents_[i];
        std::byte const* const source = image_.get() + r.offset[matrices_[i].weights_source()];
        if (columns(i) == 0)
            matrices_[i].copy_vector_weights(source);
        else
            matrices_[i].copy_weights({source, r.pitch, true}, r.list, 0, rows(i));
    }
    void send_weights(std::size_t i)
    {
        column_copy copy = columns_of(i, matrices_[i].weights_source(), arrays_[i].weight_out);
        if (residents_[i].in_place) {
            copy.by_columns = {
                reinterpret_cast<std::uintptr_t>(matrices_[i].shard().data(matrices_[i].weights_source()))};
            copy.indexed = true;
        }
        device_->scatter_columns(copy);
    }
    void run(block_pass pass, std::vector<std::uint32_t> const& pieces)
    {
        std::vector<std::uint8_t> const not_summed(param_of_piece_.size());
        if (!pieces.empty())
            part_->run({.pass = pass, .pieces = pieces, .speculated = steps_, .settled = steps_, .summed = not_summed});
    }

    device_session device_;
    std::vector<zenflow_matrix> const& matrices_;
    std::vector<device_arrays> const arrays_; // for each param
    device_ptr staging_;                      // unpublished weights by columns, and lists of columns
    std::vector<std::size_t> staged_, lists_;
    std::optional<device_gradients> gradients_;
    // The residents.
    device_ptr memory_;
    std::shared_ptr<std::byte> image_; // image of memory_ in host memory
    std::size_t image_bytes_ = 0;
    std::vector<resident_layout> residents_;
    std::vector<std::size_t> param_of_piece_;
    std::vector<group_step> steps_;
    std::unique_ptr<device_part> part_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
