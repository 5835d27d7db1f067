// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/adamant.h>: shards, single steps and norms.
#include <adamant/adamant.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <adamant/changes.hpp>
#include <adamant/formats.hpp>
#include <adamant/shard.hpp>
#include <adamant/step.hpp>
#include <adamant/detail/c/convert.hpp>
#include <adamant/detail/c/handles.hpp>
#include <adamant/detail/core/array_size.hpp>

namespace adamant::c {

adamant_hyperparameters struct_description<adamant_hyperparameters>::defaults()
{
    return to_c(hyperparameters{});
}
adamant_hyperparameters to_c(hyperparameters const& source)
{
    return {sizeof(adamant_hyperparameters),
            source.lr,
            source.beta1,
            source.beta2,
            source.eps,
            source.weight_decay,
            static_cast<adamant_decay>(source.mode),
            source.bias_correction,
            static_cast<adamant_rounding>(source.rounding.exp_avg_sq),
            static_cast<adamant_rounding>(source.rounding.param),
            source.rounding.seed};
}
hyperparameters from_c(adamant_hyperparameters const* source)
{
    adamant_hyperparameters const h = read(source);
    return {h.lr,
            h.beta1,
            h.beta2,
            h.eps,
            h.weight_decay,
            to_enum(h.decay, decay_mode::l2, "decay"),
            h.bias_correction != 0,
            {to_enum(h.exp_avg_sq_rounding, rounding::stochastic, "exp_avg_sq_rounding"),
             to_enum(h.param_rounding, rounding::stochastic, "param_rounding"), h.rounding_seed}};
}

shard_format const& format_of(adamant_shard const& source, find_format_function find)
{
    auto const type = [](adamant_dtype value, char const* argument) { return to_enum(value, last_dtype, argument); };
    shard_dtypes const types = {type(source.param_dtype, "param_dtype"), type(source.grad_dtype, "grad_dtype"),
                                type(source.exp_avg_dtype, "exp_avg_dtype"),
                                type(source.exp_avg_sq_dtype, "exp_avg_sq_dtype"),
                                type(source.weight_out_dtype, "weight_out_dtype")};
    // Neighbours in a list mostly have the same types.
    thread_local shard_format const* last = nullptr;
    thread_local find_format_function last_find = nullptr;
    if (last != nullptr && last_find == find && last->types == types)
        return *last;
    if (shard_format const* const format = find(types)) {
        last = format;
        last_find = find;
        return *format;
    }
    std::string asked;
    for (std::size_t i = 0; i < types.size(); ++i)
        (asked += i == 0 ? "" : ", ") += detail::text_of({shard_array::names[i], " ", name(types[i])});
    detail::throw_invalid_argument({"unsupported combination of types: ", asked,
                                    ". param is any type except none and quantized8; grad is float32, bfloat16 or "
                                    "float16; the moments are float32 or bfloat16, or both quantized8; weight_out is "
                                    "bfloat16 with a split_float32 param, bfloat16 or float16 with a float32 param "
                                    "(or float32, without an optimizer), and none otherwise."});
}

static shard_of_c shard_of(adamant_shard const& source, find_format_function find)
{
    dtype const weights = to_enum(source.weight_out_dtype, last_dtype, "weight_out_dtype");
    dtype const sum = to_enum(source.accumulator_dtype, last_dtype, "accumulator_dtype");
    auto const absent = [](dtype type, void const* array, std::string const& argument) {
        if (type == dtype::none && array != nullptr)
            detail::throw_invalid_argument({argument, " is not null, but ", argument,
                                            "_dtype is ADAMANT_NONE. Set its type, or the pointer to null."});
    };
    absent(weights, source.weight_out, "weight_out");
    absent(sum, source.accumulator, "accumulator");
    if (sum != dtype::none && source.accumulator == nullptr && source.elements != 0)
        detail::throw_invalid_argument({"accumulator is a null pointer, but accumulator_dtype is ", name(sum)});
    if (sum != dtype::none && !is_sum_type(sum))
        detail::throw_invalid_argument({"accumulator_dtype is ", name(sum), ", but must be float32, bfloat16 or none"});
    shard_format const& format = format_of(source, find);
    kernel::step_pointers const arrays{
        static_cast<std::byte*>(source.param),      static_cast<std::byte const*>(source.grad),
        static_cast<std::byte*>(source.exp_avg),    static_cast<std::byte*>(source.exp_avg_sq),
        static_cast<std::byte*>(source.weight_out), {source.rounding_stream, source.begin}};
    detail::check_arrays(format.types, arrays, source.elements);
    any_shard const view(format, arrays, source.elements);
    return {source.changed == nullptr ? view : view.track({source.changed, changed_words(source.elements)}),
            {source.accumulator, sum}};
}
shard_of_c shard_of(adamant_shard const& source)
{
    return shard_of(source, find_format);
}
any_shard step_shard_of(adamant_shard const& source, char const* function)
{
    shard_of_c const s = shard_of(source, find_step_format);
    if (s.accumulator.type() != dtype::none)
        detail::throw_invalid_argument({"cannot call ", function,
                                        " with an accumulator: it does not accumulate. Set accumulator_dtype to "
                                        "ADAMANT_NONE, or accumulate with an optimizer."});
    return s.view;
}

} // namespace adamant::c

using namespace adamant::c;

adamant_status adamant_hyperparameters_init(adamant_hyperparameters* hyper, size_t struct_bytes)
{
    return init(hyper, struct_bytes);
}
adamant_status adamant_shard_init(adamant_shard* shard, size_t struct_bytes)
{
    return init(shard, struct_bytes);
}
adamant_status adamant_step_shard(const adamant_executor* executor, const adamant_shard* shard,
                                  const adamant_hyperparameters* hyper, uint64_t step_number, double loss_scale,
                                  double clip_coefficient, uint64_t* nonfinite)
{
    return guarded([&] {
        adamant::executor const& cpu = cpu_of(executor);
        adamant::any_shard const s = step_shard_of(read(shard), "adamant_step_shard()");
        give(nonfinite,
             step(cpu, s, from_c(hyper), step_number, {.loss_scale = loss_scale, .clip_coefficient = clip_coefficient})
                 .nonfinite_grads);
    });
}
static void needed_if(bool any, void const* array, char const* argument)
{
    if (any)
        (void)needed(static_cast<char const*>(array), argument);
}
adamant_status adamant_split_masters(const float* master, size_t elements, void* weight, void* low)
{
    return guarded([&] {
        adamant::detail::check_array_size("an array of", elements);
        needed_if(elements != 0, master, "master");
        needed_if(elements != 0, weight, "weight");
        needed_if(elements != 0, low, "low");
        adamant::split_masters(master, elements, static_cast<adamant::bfloat16*>(weight),
                               static_cast<adamant::split_float32*>(low));
    });
}
adamant_status adamant_join_masters(const void* weight, const void* low, size_t elements, float* master)
{
    return guarded([&] {
        adamant::detail::check_array_size("an array of", elements);
        needed_if(elements != 0, weight, "weight");
        needed_if(elements != 0, low, "low");
        needed_if(elements != 0, master, "master");
        adamant::join_masters(static_cast<adamant::bfloat16 const*>(weight),
                              static_cast<adamant::split_float32 const*>(low), elements, master);
    });
}
adamant_status adamant_sum_of_squares(const adamant_executor* executor, const void* grad, adamant_dtype dtype,
                                      size_t elements, double* sum, uint64_t* nonfinite)
{
    return guarded([&] {
        adamant::dtype const type = to_enum(dtype, adamant::dtype::float16, "dtype");
        adamant::grad_squares const squares = sum_of_squares(cpu_of(executor), grad, type, elements);
        give(sum, squares.sum);
        give(nonfinite, squares.nonfinite);
    });
}

namespace {

constexpr adamant_dtype value_in_c(adamant::dtype type) noexcept
{
    switch (type) {
    case adamant::dtype::none: return ADAMANT_NONE;
    case adamant::dtype::float32: return ADAMANT_FLOAT32;
    case adamant::dtype::bfloat16: return ADAMANT_BFLOAT16;
    case adamant::dtype::float16: return ADAMANT_FLOAT16;
    case adamant::dtype::split_float32: return ADAMANT_SPLIT_FLOAT32;
    case adamant::dtype::quantized8: return ADAMANT_QUANTIZED8;
    }
    return -1;
}
constexpr bool types_have_the_same_values_in_c() noexcept
{
    for (adamant::dtype const type : adamant::all_dtypes)
        if (value_in_c(type) != static_cast<adamant_dtype>(type))
            return false;
    return true;
}
static_assert(types_have_the_same_values_in_c());

} // namespace

static_assert(ADAMANT_SQUARES_WORDS == adamant::squares_total::word_count);
static adamant::squares_total total_of(int64_t const* words)
{
    needed(words, "words");
    adamant::squares_total::word_array all;
    std::copy_n(words, all.size(), all.data());
    adamant::squares_total total;
    if (!total.set_words(all))
        adamant::detail::throw_invalid_argument(
            {"words are not a valid sum of squares: it is negative or too large. Begin with zeros."});
    return total;
}
adamant_status adamant_add_squares(const adamant_executor* executor, const void* grad, adamant_dtype dtype,
                                   size_t elements, int64_t* words)
{
    return guarded([&] {
        adamant::dtype const type = to_enum(dtype, adamant::dtype::float16, "dtype");
        adamant::squares_total total = total_of(words);
        add_squares(cpu_of(executor), grad, type, elements, total);
        std::copy_n(total.words().data(), total.words().size(), words);
    });
}
adamant_status adamant_round_squares(const int64_t* words, double* sum, uint64_t* nonfinite)
{
    return guarded([&] {
        adamant::grad_squares const squares = total_of(words).rounded();
        give(sum, squares.sum);
        give(nonfinite, squares.nonfinite);
    });
}

static adamant::tracked_weights tracked_weights_of(adamant_tracked_weights const* weights)
{
    adamant_tracked_weights const w = read(weights);
    adamant::detail::check_array_size("an array of", w.elements);
    needed_if(w.elements != 0, w.changed, "changed");
    return {{w.changed, adamant::changed_words(w.elements)},
            w.elements,
            w.weights,
            to_enum(w.dtype, adamant::last_dtype, "dtype")};
}
adamant_status adamant_tracked_weights_init(adamant_tracked_weights* weights, size_t struct_bytes)
{
    return init(weights, struct_bytes);
}
adamant_status adamant_count_changed(const adamant_executor* executor, const adamant_tracked_weights* weights,
                                     size_t* count)
{
    return guarded([&] {
        adamant::executor const& cpu = cpu_of(executor);
        needed(count, "count") = count_changed_weights(cpu, tracked_weights_of(weights));
    });
}
adamant_status adamant_changed_weights(const adamant_executor* executor, const adamant_tracked_weights* weights,
                                       uint64_t first_index, size_t capacity, uint32_t* indices, uint64_t* wide_indices,
                                       void* values, int32_t clear, size_t* count)
{
    return guarded([&] {
        adamant::executor const& cpu = cpu_of(executor);
        (void)needed(count, "count");
        if ((indices != nullptr) == (wide_indices != nullptr) && capacity != 0)
            adamant::detail::throw_invalid_argument({"cannot collect changed weights: indices and wide_indices are ",
                                                     indices != nullptr ? "both set" : "both null",
                                                     ". Pass one of them."});
        adamant::changed_options const options{.first_index = first_index, .clear = clear != 0};
        adamant::tracked_weights const tracked = tracked_weights_of(weights);
        *count = indices != nullptr ? changed_weights(cpu, tracked, std::span(indices, capacity), values, options)
                                    : changed_weights(cpu, tracked, std::span(wide_indices, capacity), values, options);
    });
}
adamant_status adamant_changed_mask(const adamant_executor* executor, const adamant_tracked_weights* weights,
                                    uint8_t* mask, int32_t clear)
{
    return guarded([&] {
        adamant::executor const& cpu = cpu_of(executor);
        adamant::tracked_weights const tracked = tracked_weights_of(weights);
        needed_if(tracked.size() != 0, mask, "mask");
        changed_mask(cpu, tracked, std::span(mask, tracked.size()), {.clear = clear != 0});
    });
}
adamant_status adamant_mark_changed(const adamant_tracked_weights* weights, size_t begin, size_t end)
{
    return guarded([&] { mark_changed(tracked_weights_of(weights), begin, end); });
}
