// SPDX-License-Identifier: Apache-2.0
// The device backend: passes over the pieces on a device, and the transfers that they need.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <adamant/detail/engine/block_table.hpp>
#include <adamant/detail/engine/cpu_backend.hpp>
#include <adamant/detail/engine/device_backend.hpp>
#include <adamant/detail/engine/device_pieces.hpp>
#include <adamant/detail/engine/step_plan.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

class device_partition final : public device_backend {
public:
    device_partition(registry const& shard_registry, step_plan const& plan, block_table& blocks,
                     cpu_backend const& host, optimizer_options const& options)
        : registry_(shard_registry), plan_(plan), blocks_(blocks), host_(host), options_(options),
          pieces_(shard_registry, options)
    {
    }

    void place(std::shared_ptr<adamant::device> target, std::vector<shard_piece> const& pieces) override
    {
        pieces_.place(std::move(target), pieces);
    }
    [[nodiscard]] bool has_device() const noexcept override { return pieces_.has_device(); }
    [[nodiscard]] adamant::device const& device() const noexcept override { return pieces_.device(); }
    [[nodiscard]] std::vector<block_range> cpu_ranges() const override { return pieces_.cpu_ranges(); }
    [[nodiscard]] bool has_pieces() const noexcept override { return !pieces_.all().empty(); }
    [[nodiscard]] bool has_pieces_of(std::size_t shard) const noexcept override
    {
        auto const [begin, end] = pieces_.of_shard(shard);
        return begin != end;
    }
    [[nodiscard]] bool shares_gradient(std::size_t shard) const noexcept override
    {
        return pieces_.shares_gradient(shard);
    }
    [[nodiscard]] bool has_records() const noexcept override { return options_.device_records; }
    [[nodiscard]] bool stepped_for_good() const noexcept override { return stepped_for_good_; }

    // Enqueues in portions, so that work starts before the last gradient is uploaded.
    void submit(std::size_t begin, std::size_t end, block_pass pass) override
    {
        constexpr std::size_t portion_elems = std::size_t{1} << 24;
        list_.clear();
        std::size_t elems = 0;
        for (std::size_t i = pieces_.first_of(begin); i < pieces_.first_of(end); ++i) {
            piece const& p = pieces_.all()[i];
            if (!plan_.takes_part(p.shard))
                continue;
            upload_gradient(p);
            list_.push_back(static_cast<std::uint32_t>(i));
            elems += p.device.elems;
            if (elems >= portion_elems) {
                enqueue_listed(first_pass(pass));
                list_.clear();
                elems = 0;
            }
        }
        enqueue_listed(first_pass(pass));
    }
    void run(block_pass pass) override
    {
        if (pass == block_pass::rollback && !has_records()) // no block was stepped
            return;
        list_.clear();
        for (std::size_t i = 0; i < pieces_.all().size(); ++i)
            if (plan_.takes_part(pieces_.all()[i].shard))
                list_.push_back(static_cast<std::uint32_t>(i));
        enqueue_listed(pass);
    }
    void fetch_gradient(std::size_t range, std::function<void()> arrived) override
    {
        block_range const& r = host_.ranges()[range];
        offload_shard const& s = registry_[r.shard].shard;
        std::size_t const offset = s.bytes(s.grad, r.first_element());
        device_ptr const grad = registry_.arrays_on_device(r.shard).grad;
        if (!pieces_.is_shared(s.data(s.grad), grad))
            pieces_.device().copy_down(s.data(s.grad) + offset, grad + offset, s.bytes(s.grad, r.elements(s.size())));
        if (arrived)
            pieces_.device().call(device_stream::down, std::move(arrived));
    }
    void send_weights(std::size_t range) override
    {
        block_range const& r = host_.ranges()[range];
        offload_shard const& s = registry_[r.shard].shard;
        if (!registry_.has_device_arrays(r.shard) || !s.has_weight_out())
            return;
        std::size_t const offset = s.bytes(s.weight_out, r.first_element());
        device_ptr const weights = registry_.arrays_on_device(r.shard).weight_out;
        if (!pieces_.is_shared(s.data(s.weight_out), weights))
            pieces_.device().copy_up(weights + offset, s.data(s.weight_out) + offset,
                                     s.bytes(s.weight_out, r.elements(s.size())));
    }
    void wait() override { pieces_.wait(); }
    void wait_for_results() override
    {
        for_each_result([&](std::size_t, std::size_t block, grad_squares const& result, bool is_recorded) {
            blocks_.set_device_result(block, result, is_recorded);
        });
    }
    bool compare_results() override
    {
        bool same = true;
        for_each_result([&](std::size_t shard, std::size_t block, grad_squares const& result, bool is_recorded) {
            grad_squares const known = blocks_.squares(block);
            same =
                same && (!plan_.takes_part(shard) || (result.sum == known.sum && result.nonfinite == known.nonfinite));
            blocks_.set_device_result(block, known, is_recorded);
        });
        return same;
    }
    void add_squares(squares_total& total) const noexcept override
    {
        for (piece const& p : pieces_.all()) {
            std::size_t const first = registry_[p.shard].first_block + p.begin / norm_block_elems;
            for (std::size_t b = 0; b < p.device.blocks() && plan_.takes_part(p.shard); ++b)
                total.add(blocks_.squares(first + b));
        }
    }
    void require_answer() override { pieces_.session().require_downloads(answer_by_); }
    void forget_records() noexcept override
    {
        stepped_for_good_ = false;
        answer_by_ = pieces_.session().deadline();
        if (pieces_.part() != nullptr)
            pieces_.part()->forget_records();
    }
    [[nodiscard]] std::optional<std::size_t> first_nonfinite(std::size_t shard, std::size_t block) override
    {
        namespace arrays = shard_array;
        tracked_shard const& s = registry_[shard];
        auto const [begin, end] = pieces_.of_shard(shard);
        for (std::size_t i = begin; i < end; ++i) {
            piece const& p = pieces_.all()[i];
            std::size_t const first = p.begin / norm_block_elems;
            if (block < first || block >= first + p.device.blocks())
                continue;
            if (p.is_shared[arrays::grad] && (s.summed == 0 || p.is_shared[arrays::accumulator])) {
                pieces_.wait();
                return std::nullopt;
            }
            std::size_t const n = s.shard.length(block);
            std::size_t const offset = (block - first) * norm_block_elems;
            auto const copy_down = [&](shard_array::index which, scratch_block& target) {
                if (p.is_shared[which]) // no pass writes it
                    return void(std::memcpy(target.grad, pieces_.host_data(p, which) + s.shard.bytes(which, offset),
                                            s.shard.bytes(which, n)));
                pieces_.device().copy_down(target.grad, p.device.arrays[which] + s.shard.bytes(which, offset),
                                           s.shard.bytes(which, n));
            };
            // On the heap: a copy that outlives a timeout must not write to this stack frame.
            auto& [grad, sum] = *scratch_;
            copy_down(arrays::grad, grad);
            if (s.summed != 0)
                copy_down(arrays::accumulator, sum);
            pieces_.wait();
            return block * norm_block_elems +
                   s.shard.with_gradient(grad.grad, sum.grad, n).first_nonfinite(0, s.summed != 0);
        }
        return std::nullopt;
    }

    void commit_changes() noexcept override
    {
        for (piece const& p : pieces_.all())
            if (plan_.takes_part(p.shard))
                pieces_.commit_changes(p);
    }
    void restore_changes() noexcept override
    {
        for (piece const& p : pieces_.all())
            if (plan_.takes_part(p.shard))
                pieces_.restore_changes(p);
    }

    [[nodiscard]] bool stop() noexcept override { return pieces_.session().stop(); }
    [[nodiscard]] bool roll_back() noexcept override
    {
        try {
            run(block_pass::rollback);
            send_all_weights();
            wait_for_results();
            return true;
        } catch (...) {
            pieces_.session().drop_work();
            return false;
        }
    }

    void copy_state_to_host() override { pieces_.copy_state_to_host(false); }
    void copy_state_from_host() override
    {
        for (piece const& p : pieces_.all())
            pieces_.copy_state_up(pieces_.device(), p);
        send_all_weights();
        if (pieces_.part() != nullptr) {
            pieces_.device().wait_event(device_stream::work, pieces_.device().record_event(device_stream::up));
            pieces_.part()->round_weights();
        }
        pieces_.wait();
    }
    void bring_gradients(std::size_t shard) override
    {
        auto const [begin, end] = pieces_.of_shard(shard);
        for (std::size_t i = begin; i < end; ++i)
            upload_gradient(pieces_.all()[i]);
        if (registry_.has_device_arrays(shard))
            for (std::size_t r = host_.first_range(shard); r < host_.first_range(shard + 1); ++r)
                fetch_gradient(r, {});
        pieces_.wait();
    }
    void accumulate(std::size_t shard, bool first) override
    {
        auto const [begin, end] = pieces_.of_shard(shard);
        for (std::size_t i = begin; i < end; ++i) {
            pieces_.refresh_gradient(i);
            pieces_.part()->accumulate(static_cast<std::uint32_t>(i), first);
        }
        pieces_.wait();
    }

private:
    // Waits for the results of a pass. Calls use(shard, index in the block table, result, is_recorded) for each block.
    template <class Use>
    void for_each_result(Use const& use)
    {
        pieces_.fetch_results();
        pieces_.wait();
        std::size_t result = 0;
        for (piece const& p : pieces_.all()) {
            std::size_t const block = registry_[p.shard].first_block + p.begin / norm_block_elems;
            for (std::size_t b = 0; b < p.device.blocks(); ++b, ++result) {
                // Without records on the device, no block counts as unrecorded.
                bool const is_recorded = !has_records() || pieces_.recorded()[result] != 0;
                use(p.shard, block + b, pieces_.squares()[result], is_recorded);
            }
        }
    }
    using piece = device_pieces::piece;

    // Without records, the first pass never speculates.
    [[nodiscard]] block_pass first_pass(block_pass pass) const noexcept
    {
        return has_records() ? pass : block_pass::measure;
    }
    void upload_gradient(piece const& p)
    {
        if (!pieces_.is_given(p, shard_array::grad))
            pieces_.device().copy_up(p.device.arrays[shard_array::grad], pieces_.host_data(p, shard_array::grad),
                                     array_bytes(p.device.types[shard_array::grad], p.device.elems));
    }
    void send_all_weights()
    {
        for (std::size_t range = 0; range < host_.ranges().size(); ++range)
            send_weights(range);
    }
    // Enqueues a pass over the pieces in list_, and the download of the new weights.
    void enqueue_listed(block_pass pass)
    {
        if (list_.empty())
            return;
        adamant::device& device = pieces_.device();
        summed_.resize(pieces_.all().size());
        for (std::uint32_t const i : list_) {
            summed_[i] = registry_[pieces_.all()[i].shard].summed != 0;
            pieces_.refresh_gradient(i);
        }
        device.wait_event(device_stream::work, device.record_event(device_stream::up));
        pieces_.part()->run({.pass = pass,
                             .pieces = {list_.data(), list_.size()},
                             .speculated = {plan_.assumed.data(), plan_.assumed.size()},
                             .settled = {plan_.decided.data(), plan_.decided.size()},
                             .summed = {summed_.data(), summed_.size()},
                             .keep_records = plan_.keeps_records() && has_records()});
        if (only_reads(pass))
            return;
        stepped_for_good_ = stepped_for_good_ || !has_records();
        bool first = true;
        auto const download = [&](void* target, device_ptr source, std::size_t bytes) {
            if (first)
                device.wait_event(device_stream::down, device.record_event(device_stream::work));
            first = false;
            device.copy_down(target, source, bytes);
        };
        for (std::uint32_t const i : list_) {
            piece const& p = pieces_.all()[i];
            dtype const type = p.device.types[shard_array::weight_out];
            if (p.device.changed)
                download(p.changes.get(), p.device.changed, device_piece::changed_bytes(p.device.elems));
            if (type != dtype::none && !pieces_.is_given(p, shard_array::weight_out))
                download(pieces_.host_data(p, shard_array::weight_out), p.device.arrays[shard_array::weight_out],
                         array_bytes(type, p.device.elems));
        }
    }

    registry const& registry_;
    step_plan const& plan_;
    block_table& blocks_;
    cpu_backend const& host_;
    optimizer_options const& options_;
    std::vector<std::uint8_t> summed_; // for each piece: whether its accumulator holds a sum
    std::vector<std::uint32_t> list_;  // pieces of the pass that is being enqueued
    bool stepped_for_good_ = false;
    std::chrono::steady_clock::time_point answer_by_ = {}; // deadline of the gradient downloads
    std::unique_ptr<std::pair<scratch_block, scratch_block>> scratch_ =
        std::make_unique<std::pair<scratch_block, scratch_block>>();
    device_pieces pieces_; // last: destroyed first, because the device may still use the other members
};

} // namespace detail
ADAMANT_END_NAMESPACE
