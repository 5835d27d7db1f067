// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/adamant.h>: steps and sums over lists of tensors.
#include <adamant/adamant.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include <adamant/shard.hpp>
#include <adamant/step.hpp>
#include <adamant/detail/c/convert.hpp>
#include <adamant/detail/c/handles.hpp>
#include <adamant/detail/core/array_size.hpp>
#include <adamant/detail/shard/granule_layout.hpp>
#include <adamant/detail/shard/offload_shard.hpp>
#include <adamant/detail/shard/overlaps.hpp>

namespace adamant::c {

// Item i of an array of structs that have the size of the caller's version. Adds the item's number to errors.
template <class Struct, class Convert>
void for_each_item(Struct const* items, std::size_t count, char const* action, Convert const& convert)
{
    if (count != 0)
        needed(items, "items");
    std::size_t const stride = count == 0 ? 0 : items->struct_bytes;
    for (std::size_t i = 0; i < count; ++i) {
        try {
            convert(i,
                    read(reinterpret_cast<Struct const*>(reinterpret_cast<unsigned char const*>(items) + i * stride)));
        } catch (invalid_argument const& error) {
            std::string_view reason = error.what();
            reason.remove_prefix(reason.starts_with("adamant: ") ? 9 : 0);
            detail::throw_invalid_argument({"cannot ", action, " item ", i, " of the list: ", reason});
        }
    }
}

// Words of C++ errors about lists, whose elements are items in C.
inline constexpr c_name c_list_names[] = {{"of shard", "of item"}};

// The coefficients of the items of a list. Items with the same hyperparameters, step number and scale share them,
// because small shards are stepped together if they have the same coefficients.
class item_groups {
public:
    std::size_t index(adamant_step_item const& item)
    {
        for (std::size_t back = 1; back <= keys_.size() && back <= searched_; ++back) {
            std::size_t const i = keys_.size() - back;
            if (keys_[i].hyper == item.hyper && keys_[i].step_number == item.step_number &&
                keys_[i].grad_scale == item.grad_scale)
                return i;
        }
        double const scale = item.grad_scale;
        if (!std::isfinite(scale) || scale < 0 || !detail::float_holds(scale))
            detail::throw_invalid_argument({"grad_scale is ", scale,
                                            ", but must be 0 or a positive number that float32 represents. Pass 1 for "
                                            "gradients that are not scaled."});
        coefficients_.push_back(
            make_coefficients(from_c(item.hyper), item.step_number, {.clip_coefficient = item.grad_scale}));
        keys_.push_back(item);
        return keys_.size() - 1;
    }
    [[nodiscard]] std::vector<coefficients> const& all() const noexcept { return coefficients_; }

private:
    static constexpr std::size_t searched_ = 8;
    std::vector<adamant_step_item> keys_;
    std::vector<coefficients> coefficients_;
};

// Gradients that are accumulated in the memory of the caller, with the kernels of an optimizer.
class sum_list {
public:
    sum_list(isa tier, std::size_t count) : tier_(tier), layout_(count) { items_.reserve(count); }

    void append(adamant_sum_item const& item)
    {
        dtype const grad = to_enum(item.grad_dtype, dtype::float16, "grad_dtype");
        dtype const sum = to_enum(item.sum_dtype, dtype::bfloat16, "sum_dtype");
        if (grad == dtype::none || sum == dtype::none)
            detail::throw_invalid_argument(
                {grad == dtype::none ? "grad_dtype" : "sum_dtype", " is ADAMANT_NONE. Set the type of the array."});
        if (item.elements != 0)
            needed(static_cast<char const*>(item.grad), "grad"), needed(static_cast<char*>(item.sum), "sum");
        detail::check_array_size("an array of", item.elements);
        std::byte* const target = static_cast<std::byte*>(item.sum);
        auto const* const source = static_cast<std::byte const*>(item.grad);
        std::size_t const number = items_.size();
        detail::append_extent(extents_, "sum", target, array_bytes(sum, item.elements), number, true);
        detail::append_extent(extents_, "grad", source, array_bytes(grad, item.elements), number, false);
        shard_format const& format = *find_format({dtype::float32, grad, dtype::float32, dtype::float32, dtype::none});
        items_.push_back(
            {detail::offload_shard(any_shard(format, {nullptr, source, nullptr, nullptr, nullptr}, item.elements),
                                   tier_, target, sum, &kernel::sum_kernels_of(sum)(tier_)),
             item.replace != 0});
        layout_.append(item.elements);
    }
    void accumulate(executor const& cpu)
    {
        detail::refuse_overlaps(std::move(extents_));
        constexpr std::size_t moved_bytes = 10; // bfloat16 gradient, float32 sum
        cpu.for_each_slice(
            layout_.granules() * granule_elems,
            [&](slice part) {
                layout_.for_each_piece(part.begin / granule_elems, part.end / granule_elems,
                                       [&](std::size_t i, std::size_t begin, std::size_t end) {
                                           sum_item const& item = items_[i];
                                           item.arrays.accumulate(begin, std::min(end, item.arrays.size()),
                                                                  item.replace);
                                       });
            },
            moved_bytes);
    }

private:
    struct sum_item {
        detail::offload_shard arrays;
        bool replace;
    };
    isa tier_;
    std::vector<sum_item> items_;
    std::vector<detail::array_extent> extents_;
    detail::granule_layout layout_;
};

} // namespace adamant::c

using namespace adamant::c;

adamant_status adamant_step_item_init(adamant_step_item* item, size_t struct_bytes)
{
    return init(item, struct_bytes);
}
adamant_status adamant_sum_item_init(adamant_sum_item* item, size_t struct_bytes)
{
    return init(item, struct_bytes);
}
adamant_status adamant_step_list(const adamant_executor* executor, const adamant_step_item* items, size_t count,
                                 uint64_t* nonfinite)
{
    return guarded(
        [&] {
            adamant::executor const& cpu = cpu_of(executor);
            item_groups groups;
            std::vector<adamant::grouped_shard> shards;
            for_each_item(items, count, "step", [&](std::size_t i, adamant_step_item const& item) {
                if (i == 0)
                    shards.reserve(count);
                std::size_t const group = groups.index(item);
                shards.push_back({step_shard_of(read(item.shard), "adamant_step_list()"), group});
            });
            adamant::shard_list const list(std::move(shards));
            give(nonfinite, step(cpu, list, groups.all()).nonfinite_grads);
        },
        c_list_names);
}
adamant_status adamant_accumulate_list(const adamant_executor* executor, const adamant_sum_item* items, size_t count)
{
    return guarded(
        [&] {
            adamant::executor const& cpu = cpu_of(executor);
            sum_list list(cpu.tier(), items == nullptr ? 0 : count);
            for_each_item(items, count, "accumulate",
                          [&](std::size_t, adamant_sum_item const& item) { list.append(item); });
            list.accumulate(cpu);
        },
        c_list_names);
}
