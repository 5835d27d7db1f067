// SPDX-License-Identifier: Apache-2.0
// What an optimizer is made of, and where that lies: parameter groups, shards, memory for their steps, a device. Says
// what optimizer.hpp says.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <adamant/checkpoint/param_places.hpp>
#include <adamant/core/error.hpp>
#include <adamant/core/utf8.hpp>
#include <adamant/device/device.hpp>
#include <adamant/exec/executor.hpp>
#include <adamant/numerics/float_mode.hpp>
#include <adamant/optimizer/step_course.hpp>
#include <adamant/shard/optimizer_shard.hpp>
#include <adamant/shard/overlaps.hpp>
#include <adamant/split/placement.hpp>
#include <adamant/step/optimizer_options.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// The part of an optimizer that is called before its steps and between them, never during one.
class optimizer_setup : protected step_course {
public:
    optimizer_setup(optimizer_setup const&) = delete;
    optimizer_setup& operator=(optimizer_setup const&) = delete;

    // A new group, by its number; its name must be new, not empty, and UTF-8. The last step cannot be taken back any
    // more. Throws invalid_argument where validate() does.
    std::size_t add_group(parameter_group group)
    {
        require_idle("add_group()");
        no_traps_scope const no_traps;
        validate(group.hyper);
        if (group.name.empty())
            throw invalid_argument("adamant: a parameter group has no name; checkpoints go by it");
        check_utf8("the name of a parameter group", group.name);
        for (parameter_group const& other : groups_)
            if (other.name == group.name)
                throw invalid_argument("adamant: there is a parameter group '" + group.name + "' already");
        groups_.push_back(std::move(group));
        laid_out_ = false;
        can_go_back_ = false;
        return groups_.size() - 1;
    }
    std::size_t add_group(std::string name, hyperparameters const& hyper, bool maximize = false)
    {
        return add_group({std::move(name), hyper, maximize});
    }
    [[nodiscard]] std::vector<parameter_group> const& groups() const noexcept { return groups_; }
    // Throws invalid_argument for a number that none has.
    [[nodiscard]] parameter_group const& group(std::size_t number) const
    {
        require_group(number);
        return groups_[number];
    }
    // From the next step on. Throws invalid_argument as add_group() does, and while a step is under way.
    void set_hyperparameters(std::size_t group, hyperparameters const& hyper)
    {
        require_idle("set_hyperparameters()");
        no_traps_scope const no_traps;
        validate(hyper);
        require_group(group);
        groups_[group].hyper = hyper;
    }

    // A new shard, by its number. Its arrays stay the caller's and must outlive the optimizer. `name` is the
    // parameter's, of which there may be several shards, with other elements each and of the same types. accumulator:
    // an array of the shard's size for accumulate(), of float or bfloat16, or null. The last step cannot be taken back
    // any more. Throws invalid_argument for a place outside the parameter or in another shard, a name that is empty or
    // not UTF-8, and for arrays that overlap: this shard's here, those of others before anything is written to them.
    std::size_t add_shard(std::size_t group, std::string const& name, any_shard const& view,
                          accumulator_array const& sum, shard_place place)
    {
        require_idle("add_shard()");
        no_traps_scope const no_traps;
        require_group(group);
        isa const tier = passes_.cpu().tier();
        offload_shard const added(view, tier, static_cast<std::byte*>(sum.data), sum.type,
                                  kernel::sum_kernels_of(sum.type, tier));
        check_accumulator(name, view, sum);
        refuse_overlaps_within(added, passes_.shards.size());
        passes_.shards.push_back({added, group});
        passes_.shards.back().cpu_elems = added.size();
        try {
            places_.add(name, group, view.format().types, view.size(), std::move(place));
        } catch (...) {
            passes_.shards.pop_back();
            throw;
        }
        laid_out_ = false;
        can_go_back_ = false;
        return places_.size() - 1;
    }
    [[nodiscard]] std::size_t shards() const noexcept { return places_.size(); }
    [[nodiscard]] std::string const& name(std::size_t shard) const { return places_.name(shard); }

    // What prepare() will allocate, in bytes, with the journal of begin_step() or without; to some KiB, as there are a
    // few things for each thread and group, too.
    [[nodiscard]] std::size_t memory_bytes(bool with_journal = true) const
    {
        return passes_.memory_bytes(side_.cpu_ranges().size()) + passes_.shards.size() * sizeof(unsigned) +
               (with_journal || options_.keep_last_step || side_.there() ? journal_budget() : 0);
    }
    // Allocates all that steps need; else the first one does, and after it none allocates (with a device, only small
    // things, for what is enqueued). with_journal: for
    // begin_step(), too. Throws invalid_argument where arrays overlap, and what buffer does.
    void prepare(bool with_journal = true)
    {
        no_traps_scope const no_traps;
        require_idle("prepare()");
        if (!laid_out_) {
            refuse_overlaps();
            lay_out();
        }
        if ((with_journal || options_.keep_last_step || side_.there()) && !has_journal_) {
            passes_.make_journal(journal_budget());
            has_journal_ = true;
        }
    }

    // How many blocks of norm_block_elems the CPU's threads have been through since the optimizer was made, every pass
    // over one counted: for whoever shows what is going on. From any thread, at any time.
    [[nodiscard]] std::uint64_t cpu_blocks_done() noexcept { return passes_.line().done(); }

    // Steps taken so far.
    [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }
    // What the next loss is to be multiplied with.
    [[nodiscard]] double loss_scale() const noexcept { return next_loss_scale(); }
    [[nodiscard]] executor const& cpu() const noexcept { return passes_.cpu(); }

    // Gives a part of the shards to a device, or back, or changes what it has: from the next step on the device steps
    // its pieces and the CPU the others, at once, with the same bits wherever the cut. Make the placement by split()
    // from shard_sizes(). The state moves: what a device has is in its memory alone, and the shards' own arrays of it
    // are out of date until update_host_arrays() or state() is called or it comes back (their pages may be given back
    // to the system meanwhile, and are touched again by those two). Shards added later are the CPU's. Null takes
    // everything back.
    //
    // Where an error says that the device failed, or did not answer in time, the step is taken back on both sides:
    // state and accumulated gradients are as before it. For that the steps of both sides are recorded (see
    // journal_budget_bytes and device_records), whether or not they wait for a norm. A device that does not answer does
    // its part of that later, before anything else; until then the gradients of that step must stay where they are on
    // it.
    //
    // The device needs room for what it gets beside what it has: a piece whose cut moves is allocated anew.
    //
    // Throws, with everything where it was: invalid_argument for a placement of other shards, what the device throws
    // where it lacks the memory or fails, or has another optimizer's shards. What prepare() throws comes when all has
    // moved. The last step cannot be taken back any more.
    void place(std::shared_ptr<device> on, placement const& where)
    {
        require_idle("place()");
        no_traps_scope const no_traps;
        settle();
        require_not_lost();
        if (options_.keep_last_step && !options_.device_records && where.device_elems != 0)
            throw invalid_argument(
                "adamant: the last step is to be kept for rollback(), but a device is to have shards "
                "without records of it; set device_records in the options");
        validate(where, shard_sizes());
        if (on == nullptr && where.device_elems != 0)
            throw invalid_argument("adamant: a placement gives " + std::to_string(where.device_elems) +
                                   " elements to a device, but there is none (a null pointer)");
        bool const has_arrays = side_.has_arrays();
        if (has_arrays && side_.there() && on != nullptr && &side_.device() != on.get())
            throw invalid_argument("adamant: shards have arrays on " + side_.device().name() +
                                   " and are to be placed on " + on->name() +
                                   "; take everything back with place(nullptr, ...) first");
        refuse_overlaps();
        if (where.device_elems == 0 && !has_arrays)
            on.reset(); // it would have nothing to do
        laid_out_ = false;
        can_go_back_ = false;
        side_.place(std::move(on), where.pieces);
        lay_out();
        // The weights of what comes back were on the device alone; from now on they go up from here.
        for (block_range const& r : passes_.ranges())
            if (side_.has_arrays(r.shard))
                for_each_slice_of(r, [&](std::size_t begin, std::size_t end) {
                    passes_.shards[r.shard].shard.round_weights(begin, end);
                });
        if (!side_.there())
            side_.forget_arrays();
        prepare();
    }
    // The shards' sizes in elements, in order: for split().
    [[nodiscard]] std::vector<std::size_t> shard_sizes() const
    {
        std::vector<std::size_t> sizes;
        for (tracked_shard const& s : passes_.shards)
            sizes.push_back(s.shard.size());
        return sizes;
    }
    // What all pieces of such a placement take on that device, in bytes.
    [[nodiscard]] std::size_t device_bytes(device const& on, placement const& where) const
    {
        validate(where, shard_sizes());
        return side_.bytes_for(on, where.pieces);
    }
    // A shard's gradient is made on the device that place() names next, and its weights are wanted there: in arrays of
    // the caller's in the device's memory, until place(nullptr). None: in host memory. See device_arrays. Throws
    // invalid_argument where a device has been placed on already, or an array is missing.
    void set_device_arrays(std::size_t shard, device_arrays const& arrays)
    {
        require_idle("set_device_arrays()");
        require_shard(shard);
        if (side_.there())
            throw invalid_argument("adamant: set_device_arrays() is called after place(); take everything back with "
                                   "place(nullptr, ...) first");
        if (!arrays.grad && !arrays.weight_out) {
            side_.set_arrays(shard, {});
            return;
        }
        if (arrays.grad.address % 16 != 0 || arrays.weight_out.address % 16 != 0)
            throw invalid_argument("adamant: an array on the device for shard " + std::to_string(shard) + " ('" +
                                   name(shard) + "') does not begin at a multiple of 16 bytes, as it must");
        if (!arrays.grad || bool(arrays.weight_out) != passes_.shards[shard].shard.has_weight_out())
            throw invalid_argument("adamant: shard " + std::to_string(shard) + " ('" + name(shard) + "') " +
                                   (passes_.shards[shard].shard.has_weight_out()
                                        ? "needs two arrays on the device, of gradients and of weights"
                                        : "has no weights, so it needs an array of gradients on the device, and none "
                                          "of weights"));
        side_.set_arrays(shard, arrays);
    }

protected:
    optimizer_setup(executor const& cpu, optimizer_options options) : step_course(cpu, std::move(options)) {}
    ~optimizer_setup() = default;

    void require_group(std::size_t group) const
    {
        if (group >= groups_.size())
            throw invalid_argument("adamant: there is no parameter group " + std::to_string(group) + "; there are " +
                                   std::to_string(groups_.size()));
    }
    void require_shard(std::size_t shard) const
    {
        if (shard >= places_.size())
            throw invalid_argument("adamant: there is no shard " + std::to_string(shard) + "; there are " +
                                   std::to_string(places_.size()));
    }

    void lay_out()
    {
        passes_.lay_out(side_.cpu_ranges());
        reserve_for_steps(groups_.size());
        has_journal_ = false;
        laid_out_ = true;
    }
    static void append_extents(std::vector<array_extent>& to, offload_shard const& of, std::size_t shard,
                               bool grad_is_written)
    {
        namespace arrays = shard_array;
        for (auto const which : {arrays::param, arrays::grad, arrays::exp_avg, arrays::exp_avg_sq, arrays::weight_out,
                                 arrays::accumulator})
            append_extent(to, shard_array::names[which], of.data(which), of.size() * of.elem_bytes(which), shard,
                          which != arrays::grad || grad_is_written);
    }
    static void check_accumulator(std::string const& name, any_shard const& view, accumulator_array const& sum)
    {
        if (sum.type == dtype::float16)
            throw invalid_argument("adamant: the accumulator of a shard of '" + name +
                                   "' is of float16, but must be of float32 or bfloat16");
        if (sum.size && *sum.size != view.size())
            throw invalid_argument("adamant: the accumulator of a shard of '" + name + "' has " +
                                   std::to_string(*sum.size) + " elements, but the shard has " +
                                   std::to_string(view.size()));
        if (sum.type != dtype::none && sum.data == nullptr && view.size() != 0)
            throw invalid_argument("adamant: the accumulator of a shard of '" + name + "' is null, but the shard has " +
                                   std::to_string(view.size()) + " elements");
    }
    // What needs no other shard to be seen, at once.
    static void refuse_overlaps_within(offload_shard const& of, std::size_t shard)
    {
        std::vector<array_extent> extents;
        append_extents(extents, of, shard, true);
        detail::refuse_overlaps(std::move(extents));
    }
    void refuse_overlaps() const
    {
        std::vector<array_extent> extents;
        for (std::size_t i = 0; i < passes_.shards.size(); ++i)
            append_extents(extents, passes_.shards[i].shard, i, side_.has_arrays(i));
        detail::refuse_overlaps(std::move(extents));
    }
    // What the journal needs for records of so many bytes: it loses some at the ends of pages, of which each thread has
    // one open.
    [[nodiscard]] std::size_t with_losses(std::size_t bytes) const noexcept
    {
        return bytes + bytes / 8 + 16 * std::size_t{passes_.cpu().threads()} * passes_.longest_record();
    }
    // For the most that records of one step can take.
    [[nodiscard]] std::size_t longest_journal() const noexcept
    {
        std::size_t bytes = 0;
        for (tracked_shard const& s : passes_.shards)
            bytes += s.cpu_elems / norm_block_elems * s.shard.record_bytes_at_most(norm_block_elems) +
                     s.shard.record_bytes_at_most(s.cpu_elems % norm_block_elems);
        return with_losses(bytes);
    }
    // What is allocated: no more than what was allowed, nor than what records of one step can take.
    [[nodiscard]] std::size_t journal_budget() const noexcept
    {
        if (options_.journal_budget_bytes)
            return std::min(*options_.journal_budget_bytes, longest_journal());
        if (options_.keep_last_step)
            return longest_journal();
        std::size_t bytes = 0;
        for (tracked_shard const& s : passes_.shards)
            bytes += s.cpu_elems * (s.shard.records_are_copies() ? s.shard.state_bytes() : 3);
        return std::min(longest_journal(), with_losses(bytes));
    }

    // What fails in there is to leave nothing behind on the device's lanes.
    template <class Work>
    void at_rest(Work const& work)
    {
        try {
            work();
        } catch (...) {
            (void)side_.stop();
            throw;
        }
    }
    template <class Work>
    void for_each_slice_of(block_range const& range, Work const& work) const
    {
        std::size_t const begin = range.begin * norm_block_elems;
        std::size_t const end = std::min(passes_.shards[range.shard].shard.size(), range.end * norm_block_elems);
        passes_.cpu().for_each_slice(end - begin, [&](slice part) { work(begin + part.begin, begin + part.end); });
    }

    std::vector<parameter_group> groups_;
    param_places places_;
    bool laid_out_ = false;
    bool has_journal_ = false;
};

} // namespace detail
ADAMANT_END_NAMESPACE
