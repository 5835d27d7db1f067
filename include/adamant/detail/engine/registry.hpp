// SPDX-License-Identifier: Apache-2.0
// Parameter groups and shards of an optimizer, with their names, positions and accumulators. Holds no per-step state.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <adamant/device.hpp>
#include <adamant/error.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/shard.hpp>
#include <adamant/detail/core/utf8.hpp>
#include <adamant/detail/engine/param_positions.hpp>
#include <adamant/detail/engine/written_memory.hpp>
#include <adamant/detail/io/split_view.hpp>
#include <adamant/detail/shard/offload_shard.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// A shard and its bookkeeping between steps. Kept small: models have many small shards, and a step reads all of them.
struct tracked_shard {
    offload_shard shard;
    std::size_t group = 0;
    std::size_t first_block = 0; // index among the blocks of all shards
    unsigned summed = 0;         // micro-steps in the accumulator
};
static_assert(sizeof(tracked_shard) <= 144);

// If a function throws, it changes nothing. optimizer.hpp documents the exceptions.
class registry {
public:
    // ---- Groups

    [[nodiscard]] std::vector<parameter_group> const& groups() const noexcept { return groups_; }
    [[nodiscard]] std::optional<std::size_t> find_group(std::string_view name) const noexcept
    {
        for (std::size_t i = 0; i < groups_.size(); ++i)
            if (groups_[i].name == name)
                return i;
        return std::nullopt;
    }
    void require_group(std::size_t group) const
    {
        if (group >= groups_.size())
            throw_invalid_argument({"there is no parameter group ", group, "; the optimizer has ", groups_.size()});
    }
    std::size_t add_group(parameter_group group)
    {
        validate(group.hyper);
        if (group.name.empty())
            throw_invalid_argument(
                {"cannot add a parameter group: it has no name. Checkpoints identify groups by name."});
        check_utf8("the name of a parameter group", group.name);
        if (find_group(group.name))
            throw_invalid_argument({"cannot add parameter group '", group.name, "': a group has this name already"});
        groups_.push_back(std::move(group));
        return groups_.size() - 1;
    }
    void set_hyperparameters(std::size_t group, hyperparameters const& hyper)
    {
        validate(hyper);
        require_group(group);
        groups_[group].hyper = hyper;
    }
    // Replaces all groups. The new ones have the same names, in the same order.
    void replace_groups(std::vector<parameter_group> groups) noexcept { groups_ = std::move(groups); }
    void remove_group(std::size_t group)
    {
        require_group(group);
        auto const member = [&](tracked_shard const& s) { return s.group == group; };
        auto const first = std::find_if(shards_.begin(), shards_.end(), member);
        if (first != shards_.end()) {
            auto const shard = static_cast<std::size_t>(first - shards_.begin());
            std::ptrdiff_t const count = std::count_if(first, shards_.end(), member);
            throw_invalid_argument({"cannot remove parameter group '", groups_[group].name, "': ", count,
                                    count == 1 ? " shard still belongs" : " shards still belong",
                                    " to it (first: ", text(shard), "). Call remove_shard() for each of them first."});
        }
        groups_.erase(groups_.begin() + static_cast<std::ptrdiff_t>(group));
        for (tracked_shard& s : shards_)
            s.group -= s.group > group;
        positions_.remove_group(group);
    }

    // ---- Shards

    [[nodiscard]] std::vector<tracked_shard> const& shards() const noexcept { return shards_; }
    [[nodiscard]] tracked_shard const& operator[](std::size_t shard) const noexcept { return shards_[shard]; }
    [[nodiscard]] std::size_t size() const noexcept { return shards_.size(); }
    [[nodiscard]] std::string const& name(std::size_t shard) const { return positions_.name(shard); }
    // The shard as error messages name it: "3 ('layer 1')".
    [[nodiscard]] std::string text(std::size_t shard) const { return text_of({shard, " ('", name(shard), "')"}); }
    [[nodiscard]] param_positions const& positions() const noexcept { return positions_; }
    [[nodiscard]] std::size_t blocks() const noexcept
    {
        return shards_.empty() ? 0 : shards_.back().first_block + shards_.back().shard.blocks();
    }
    [[nodiscard]] std::vector<std::size_t> sizes() const
    {
        std::vector<std::size_t> sizes;
        for (tracked_shard const& s : shards_)
            sizes.push_back(s.shard.size());
        return sizes;
    }
    // View of split master weights as an array of float32; null for a shard without them.
    [[nodiscard]] std::shared_ptr<split_view const> const& split_param(std::size_t shard) const noexcept
    {
        return split_params_[shard];
    }
    void require_shard(std::size_t shard) const
    {
        if (shard >= shards_.size())
            throw_invalid_argument({"there is no shard ", shard, "; the optimizer has ", shards_.size()});
    }
    // Adds a shard whose steps run the kernels of `tier`. extents: more arrays to check for overlaps.
    std::size_t add_shard(std::size_t group, std::string const& name, any_shard const& view,
                          accumulator_array const& sum, shard_position position, isa tier,
                          std::vector<array_extent> extents = {})
    {
        require_group(group);
        check_accumulator(name, view, sum);
        offload_shard const added(view.at({param_number_of(name), position.begin}), tier,
                                  static_cast<std::byte*>(sum.data()), sum.type(),
                                  sum.kernels() == nullptr ? nullptr : &sum.kernels()(tier));
        append_extents(extents, added, shards_.size(), true);
        refuse_overlaps(std::move(extents));
        shards_.push_back({added, group, blocks()});
        try {
            split_params_.push_back(has_split_param(view.format().types)
                                        ? std::make_shared<split_view const>(added.data(shard_array::weight_out),
                                                                             added.data(shard_array::param))
                                        : nullptr);
            positions_.add(name, group, view.format().types, view.size(), std::move(position));
        } catch (...) {
            shards_.pop_back();
            split_params_.resize(shards_.size());
            throw;
        }
        return shards_.size() - 1;
    }
    void remove_shard(std::size_t shard)
    {
        require_shard(shard);
        std::size_t const blocks = shards_[shard].shard.blocks();
        shards_.erase(shards_.begin() + static_cast<std::ptrdiff_t>(shard));
        for (std::size_t i = shard; i < shards_.size(); ++i)
            shards_[i].first_block -= blocks;
        if (shard < device_arrays_.size())
            device_arrays_.erase(device_arrays_.begin() + static_cast<std::ptrdiff_t>(shard));
        split_params_.erase(split_params_.begin() + static_cast<std::ptrdiff_t>(shard));
        positions_.remove(shard);
    }

    // ---- Memory

    // Throws if an array that steps write overlaps another array of any shard, or one of `extents`. on_device:
    // gradients of shards with arrays on a device are downloaded, and so written.
    void check_overlaps(bool on_device = true, std::vector<array_extent> extents = {})
    {
        for (std::size_t i = 0; i < shards_.size(); ++i)
            append_extents(extents, shards_[i].shard, i, on_device && has_device_arrays(i));
        written_.assign(std::move(extents));
    }
    // overlaps_are_checked: check_overlaps() has seen all shards. Then this function allocates nothing, and compares
    // only this gradient with the written arrays.
    void set_gradient(std::size_t shard, void const* grad, bool overlaps_are_checked)
    {
        namespace arrays = shard_array;
        offload_shard& current = shards_[shard].shard;
        if (grad == nullptr && current.size() != 0)
            throw_invalid_argument({"cannot set the gradient of shard ", text(shard), " with ", current.size(),
                                    " elements: the pointer is null"});
        auto const begin = reinterpret_cast<std::uintptr_t>(grad);
        std::size_t const bytes = current.bytes(arrays::grad, current.size());
        if (overlaps_are_checked && bytes != 0)
            written_.refuse({arrays::names[arrays::grad], begin, begin + bytes, shard, false});
        offload_shard changed = current;
        changed.set_gradient(static_cast<std::byte const*>(grad));
        if (!overlaps_are_checked) {
            std::vector<array_extent> extents;
            append_extents(extents, changed, shard, true);
            refuse_overlaps(std::move(extents));
        }
        current = changed;
    }

    // ---- Accumulators

    void count_micro_step(std::size_t shard) noexcept { ++shards_[shard].summed; }
    void forget_sum(std::size_t shard) noexcept { shards_[shard].summed = 0; }
    void forget_sums() noexcept
    {
        for (tracked_shard& s : shards_)
            s.summed = 0;
    }
    // Copies the number of accumulated micro-steps of every shard.
    void copy_sums_to(std::vector<unsigned>& counts) const noexcept
    {
        for (std::size_t i = 0; i < shards_.size(); ++i)
            counts[i] = shards_[i].summed;
    }
    void set_sums(std::vector<unsigned> const& counts) noexcept
    {
        for (std::size_t i = 0; i < shards_.size(); ++i)
            shards_[i].summed = counts[i];
    }

    // ---- Arrays on a device

    [[nodiscard]] bool has_device_arrays(std::size_t shard) const noexcept
    {
        return shard < device_arrays_.size() && device_arrays_[shard].grad;
    }
    [[nodiscard]] bool has_device_arrays() const noexcept
    {
        return std::any_of(device_arrays_.begin(), device_arrays_.end(),
                           [](device_arrays const& a) { return bool(a.grad); });
    }
    // Requires has_device_arrays(shard).
    [[nodiscard]] device_arrays const& arrays_on_device(std::size_t shard) const noexcept
    {
        return device_arrays_[shard];
    }
    // All arrays, one entry for each shard.
    [[nodiscard]] std::vector<device_arrays> all_device_arrays() const
    {
        std::vector<device_arrays> all = device_arrays_;
        all.resize(shards_.size());
        return all;
    }
    // always_has_weights: whether a shard without weight_out has weights on the device, too.
    void set_device_arrays(std::size_t shard, device_arrays const& arrays, bool always_has_weights = false)
    {
        require_shard(shard);
        if (arrays.grad.address % 16 != 0 || arrays.weight_out.address % 16 != 0)
            throw_invalid_argument(
                {"cannot set the device arrays of shard ", text(shard), ": an address is not a multiple of 16 bytes"});
        bool const has_weights = always_has_weights || shards_[shard].shard.has_weight_out();
        if ((arrays.grad || arrays.weight_out) && (!arrays.grad || bool(arrays.weight_out) != has_weights))
            throw_invalid_argument({"cannot set the device arrays of shard ", text(shard), ": ",
                                    has_weights ? "it needs two arrays, of gradients and of weights"
                                                : "it has no weights, so it needs an array of gradients only"});
        device_arrays_.resize(std::max(device_arrays_.size(), shard + 1));
        device_arrays_[shard] = arrays;
    }
    void forget_device_arrays() noexcept { device_arrays_.clear(); }

private:
    static void check_accumulator(std::string const& name, any_shard const& view, accumulator_array const& sum)
    {
        std::string const subject = text_of({"cannot add a shard of '", name, "': its accumulator "});
        if (sum.type() != dtype::none && sum.kernels() == nullptr)
            throw_invalid_argument({subject, "is ", adamant::name(sum.type()), ". Use float32 or bfloat16."});
        if (sum.size() && *sum.size() != view.size())
            throw_invalid_argument(
                {subject, "has ", counted(*sum.size(), "element"), ", but the shard has ", view.size()});
        if (sum.type() != dtype::none && sum.data() == nullptr && view.size() != 0)
            throw_invalid_argument({subject, "is null, but the shard has ", counted(view.size(), "element")});
    }

    std::vector<parameter_group> groups_;
    std::vector<tracked_shard> shards_;
    std::vector<std::shared_ptr<split_view const>> split_params_; // shared with state_dicts
    param_positions positions_;
    std::vector<device_arrays> device_arrays_;
    written_memory written_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
