// SPDX-License-Identifier: Apache-2.0
// All definitions that a separately compiled program needs once, except the kernels of formats.
#if !defined(ADAMANT_SEPARATE_COMPILATION)
#error                                                                                                                 \
    "adamant: define ADAMANT_SEPARATE_COMPILATION for every file of the program, this one too (or link to adamant::compiled)"
#endif

#include <array>
#include <cstddef>

#include <adamant/adamant.hpp>
#include <adamant/emulated_device.hpp>
#include <adamant/zenflow.hpp>
#include <adamant/detail/src/formats.hpp>

#include <adamant/detail/core/error.ipp>
#include <adamant/detail/core/isa.ipp>
#include <adamant/detail/device/best_ratio.ipp>
#include <adamant/detail/device/device.ipp>
#include <adamant/detail/device/emulated_device.ipp>
#include <adamant/detail/device/placement.ipp>
#include <adamant/detail/device/split.ipp>
#include <adamant/detail/engine/optimizer.ipp>
#include <adamant/detail/exec/executor.ipp>
#include <adamant/detail/exec/memory.ipp>
#include <adamant/detail/exec/memory_limits.ipp>
#include <adamant/detail/exec/memory_placement.ipp>
#include <adamant/detail/exec/resctrl.ipp>
#include <adamant/detail/exec/resctrl_files.ipp>
#include <adamant/detail/exec/team.ipp>
#include <adamant/detail/io/loss_scaler.ipp>
#include <adamant/detail/io/offload_config.ipp>
#include <adamant/detail/io/optimizer_options.ipp>
#include <adamant/detail/io/optimizer_report.ipp>
#include <adamant/detail/numerics/coefficients.ipp>
#include <adamant/detail/numerics/hyperparameters.ipp>
#include <adamant/detail/numerics/squares_total.ipp>
#include <adamant/detail/shard/format.ipp>
#include <adamant/detail/shard/shard.ipp>
#include <adamant/detail/shard/shard_list.ipp>
#include <adamant/detail/step/changes.ipp>
#include <adamant/detail/step/column_scores.ipp>
#include <adamant/detail/step/grad_norm.ipp>
#include <adamant/detail/step/step.ipp>
#include <adamant/detail/topology/cpu_quota.ipp>
#include <adamant/detail/topology/index_set.ipp>
#include <adamant/detail/topology/launch_mask.ipp>
#include <adamant/detail/topology/local_rank.ipp>
#include <adamant/detail/topology/machine.ipp>
#include <adamant/detail/topology/read_machine.ipp>
#include <adamant/detail/topology/selection.ipp>
#include <adamant/detail/tune/core_search.ipp>
#include <adamant/detail/tune/core_tuning.ipp>
#include <adamant/detail/tune/ratio_follower.ipp>
#include <adamant/detail/tune/trial_step.ipp>
#include <adamant/detail/tune/tuned_cores.ipp>
#include <adamant/detail/zenflow/column_selection.ipp>
#include <adamant/detail/zenflow/zenflow.ipp>
#include <adamant/detail/zenflow/zenflow_options.ipp>

ADAMANT_BEGIN_NAMESPACE

namespace kernel {
template sum_kernels const& sum_kernels_for<float>(isa) noexcept;
template sum_kernels const& sum_kernels_for<bfloat16>(isa) noexcept;
template block_squares_function block_squares_for<float>(isa) noexcept;
template block_squares_function block_squares_for<bfloat16>(isa) noexcept;
template block_squares_function block_squares_for<float16>(isa) noexcept;
} // namespace kernel

namespace detail {

// All formats: for each param type, sorted by grad, moments and weight_out.
[[nodiscard]] inline std::array<shard_format, 6 * formats_in_part> make_all_formats() noexcept
{
    formats_part const parts[] = {
        formats_float32(), formats_float32_to_bfloat16(), formats_float32_to_float16(), formats_bfloat16(),
        formats_float16(), formats_split_float32()};
    std::array<shard_format, 6 * formats_in_part> all;
    std::size_t count = 0;
    for (std::size_t i = 0; i < formats_in_part; ++i)
        for (std::size_t part = 0; part < 3; ++part)
            all[count++] = parts[part][i];
    for (std::size_t part = 3; part < 6; ++part)
        for (shard_format const& format : parts[part])
            all[count++] = format;
    return all;
}

// The formats of float32 params with a float32 weight_out. Their kernels are those without weight_out.
[[nodiscard]] inline formats_part make_formats_with_param_copy() noexcept
{
    formats_part all = formats_float32();
    for (shard_format& format : all) {
        format.types[shard_array::weight_out] = dtype::float32;
        format.block_kernels_for = nullptr;
    }
    return all;
}

} // namespace detail

std::span<shard_format const> all_formats() noexcept
{
    static std::array const all = detail::make_all_formats();
    return all;
}

shard_format const* find_format(shard_dtypes const& types) noexcept
{
    for (shard_format const& format : all_formats())
        if (format.types == types)
            return &format;
    return nullptr;
}
shard_format const* find_step_format(shard_dtypes const& types) noexcept
{
    static detail::formats_part const copying = detail::make_formats_with_param_copy();
    if (!has_param_copy(types))
        return find_format(types);
    for (shard_format const& format : copying)
        if (format.types == types)
            return &format;
    return nullptr;
}

ADAMANT_END_NAMESPACE
